import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from workbench.errors import ParameterError
from workbench.lab.widgets import padding_explorer
from workbench.lab.widgets.padding_explorer import plot_deltas, score_deltas, show_padding


def test_left_pads_move_by_nats_or_with_position_ids_by_rounding():
    found = show_padding("gpt2", "left", "float32")
    assert "wrong without position ids" in found.caption
    numbers = found.table.set_index("positions").drop(columns="text")
    assert numbers.loc["without position ids"].max(axis=None) > 0.5
    assert numbers.loc["with them"].max(axis=None) < 1e-5
    assert numbers.shape == (6, 23)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_largest_difference_is_one_number_everywhere(family):
    shown = show_padding(family, "left", "float32")
    titles = re.findall(r"(.*): at most (\S+) nats", "\n".join(ax.get_title() for ax in shown.figure.axes))
    alt = re.findall(r"(with\w* .*?) at most (\S+) nats", shown.alt.partition("float32: ")[2])
    assert len(titles) == 2 and alt == titles
    assert re.findall(r"[\d.]+e-\d+", shown.caption) == ["1e-07"]  # below which a difference is drawn as 0


def test_right_padding_moves_nothing_and_beyond_a_text_is_nan():
    from workbench.experiments.toys.families import family_model, random_texts

    deltas = score_deltas(family_model("gpt2"), random_texts(9, 5), side="right", pads=3)
    for values in deltas.values():
        assert values.shape == (2, 8)
        assert abs(values[0]).max() < 1e-5
        assert set(map(bool, values[1] != values[1])) == {False, True}


def test_another_family_and_side_change_heat_map_and_alt_text():
    explorer = padding_explorer()
    before = explorer.result.value
    explorer.controls["family"].value = "llama"
    explorer.controls["side"].value = "right"
    assert explorer.result.value != before
    assert 'alt="llama, right padding, float32: without position ids at most' in explorer.result.value


OFFERED = padding_explorer().controls["family"].options


@pytest.mark.parametrize("family", OFFERED)
def test_every_family_that_the_explorer_offers_is_shown(family):
    """Two were always refused: Falcon does not change its kernel later."""
    shown = show_padding(family, "left", "float32")
    assert shown.table.set_index("positions").drop(columns="text").loc["with them"].max(axis=None) < 1e-5


@pytest.mark.parametrize("wrong", [{"family": "gpt5"}, {"dtype": "int8"}, {"side": "top"}])
def test_an_unknown_family_dtype_or_side_is_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong.values()))):
        show_padding(**{"family": "gpt2", "side": "left", "dtype": "float32"} | wrong)


def test_a_heat_map_writes_nats_and_leaves_out_missing_tokens():
    ax = Figure().subplots()
    plot_deltas(ax, np.array([[1e-1, 1e-3], [0.0, np.nan]]))
    assert [text.get_text() for text in ax.texts] == ["0.10", "1e-3", "0"]
