import numpy as np
import pandas as pd

from workbench.curves.curve import Curve
from workbench.curves.documented import load_baseline, stored
from workbench.experiments.instruments.custom_stops import CURVES, recorded, stops_figure


def one_seed(norms: list[float], right: list[float]) -> pd.DataFrame:
    """Four steps, of which the first has equal rewards; answers to held-out questions before and after."""
    rows = {"logged": [1.0] * 4, "truncated": [0.25, 0, 0, 0], "grad_norm": norms, "equal": [1.0, 0.5, 0.0, 0.5]}
    frame = pd.DataFrame(rows, index=range(1, 5)).reindex(range(5))
    frame["right"] = [right[0], None, None, None, right[1]]
    return frame


STOCK, OURS = one_seed([0, 0, 0.5, 0], [0.2, 0.2]), one_seed([0, 1, 0.5, 2], [0.2, 0.6])


def test_caption_has_the_counts_of_all_seeds():
    figure = stops_figure({"stock TRL, masked": [STOCK, STOCK], "workbench, masked": [OURS]}, title="SmolLM2")
    assert "logs 100% of the completions as clipped, and 6% were" in figure.caption
    assert "stock TRL, masked, 2 of 6; workbench, masked, 3 of 3." in figure.caption
    assert (
        "untrained: 20%; at the end, each seed: stock TRL, masked, 20%, 20%; workbench, masked, 60%." in figure.caption
    )
    assert figure.table["seed"].tolist() == [0, 1, 0] and figure.png().startswith(b"\x89PNG")


def test_a_narrow_figure_has_its_panels_one_below_the_other():
    arms = {"stock TRL, masked": [STOCK, STOCK], "workbench, masked": [OURS]}
    wide, narrow = (stops_figure(arms, title="SmolLM2", narrow=narrow) for narrow in (False, True))
    columns = [{ax.get_subplotspec().colspan.start for ax in one.figure.axes} for one in (wide, narrow)]
    assert columns == [{0, 1, 2}, {0}] and narrow.caption == wide.caption and narrow.figure.get_figwidth() < 5


def test_seed_without_differing_rewards_has_no_share():
    idle = STOCK.assign(equal=1.0)
    figure = stops_figure({"stock TRL, masked": [idle]}, title="SmolLM2")
    assert "stock TRL, masked, 0 of 0" in figure.caption


def test_recorded_run_becomes_its_seeds():
    curves = {}
    for column, metric in CURVES.items():
        rows = [frame[column].dropna() for frame in (STOCK, OURS)]
        seeds = {n: Curve("", y.index.to_numpy(float), y.to_numpy(float), "share") for n, y in enumerate(rows)}
        curves[metric] = stored(seeds)
    known = load_baseline("arvindcr4-qwen3-8b-gsm8k-grpo")
    frames = recorded(type(known)(**{**vars(known), "curves": curves}))
    for frame, expected in zip(frames, (STOCK, OURS), strict=True):
        pd.testing.assert_frame_equal(frame, expected[list(CURVES)], check_dtype=False, check_index_type=False)
        assert np.isnan(frame["right"][1])
