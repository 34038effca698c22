"""Each trainer in two processes (tests/helpers/configurations_in_two_processes.py), with `record_dir` and beside stock."""

import json
import os
import subprocess
import sys

import pytest
from configuration_runs import BATCH, LIMIT, PENALTY, STEPS, STOP, G
from configuration_table import shows
from conftest import HELPERS, ROOT

from workbench.runs.files import read_json
from workbench.runs.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.rare]

EOS_SHARE = "val/contain_eos_token"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder, and what each process says of each trainer."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(HELPERS / "configurations_in_two_processes.py"), str(folder)]
    path = [ROOT / "tests", HELPERS, *filter(None, [os.environ.get("PYTHONPATH")])]  # of the TRL that this runs on
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    with (folder / "out").open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as torchrun:
        try:
            code = torchrun.wait(300)
        finally:
            torchrun.terminate()  # it then ends its processes, as it does not when it is killed
    assert code == 0, (folder / "out").read_text()[-4000:]
    return folder, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def without(lines: list[dict], name: str) -> list[dict]:
    return [{key: value for key, value in line.items() if key != name} for line in lines]


@shows("two processes")
def test_without_custom_stops_both_processes_train_as_stock_does(kind, two):
    for said in two[1]:
        theirs, own = (without(said[kind][who], EOS_SHARE) for who in ("stock", "ours"))  # which the next test compares
        assert repr(own) == repr(theirs)  # NaN is NaN
        assert len(said[kind]["stock"]) == STEPS and said[kind]["learned"]
        assert said[kind]["apart"] == []


@shows("two processes", "OnlineDPO")
def test_stock_logs_the_ended_rows_of_the_first_process_and_ours_those_of_both(kind, two):
    folder, said = two
    shares = [[line[EOS_SHARE] for line in of[kind]["stock"]] for of in said]
    assert shares[0] != shares[1]
    for of in said:
        mean = [sum(pair) / 2 for pair in zip(*shares, strict=True)]
        assert [line[EOS_SHARE] for line in of[kind]["ours"]] == pytest.approx(mean)
    ended = Run(folder / kind).completions.groupby("step")["finish_reason"].agg(lambda rows: (rows == "stop").mean())
    assert Run(folder / kind).metrics[EOS_SHARE].tolist() == pytest.approx(ended.tolist())


@shows("two processes")
def test_both_end_and_every_step_and_row_is_recorded_once(kind, two):
    folder, said = two
    assert [of[kind]["steps"] for of in said] == [STEPS, STEPS]
    run = Run(folder / kind)
    assert run.metrics["step"].tolist() == list(range(1, STEPS + 1))
    assert read_json(folder / kind / "progress.json", {})["finished"]
    rows = run.completions
    assert rows.groupby("step").size().tolist() == [2 * BATCH] * STEPS
    if kind != "PPO":
        seen = sorted(map(tuple, said[0][kind]["seen"] + said[1][kind]["seen"]))
        scores = rows["reward"] + (PENALTY if kind == "OnlineDPO" else 0) * (rows["finish_reason"] == "length")
        kept = sorted(zip(rows["completion"], scores, strict=True))
        assert [text for text, _ in kept] == [text for text, _ in seen]
        assert [score for _, score in kept] == pytest.approx([score for _, score in seen], abs=1e-4)
    per_prompt = {"GRPO": G, "RLOO": G, "OnlineDPO": 2, "PPO": 1}[kind]
    assert (rows.groupby(["step", "prompt"]).size() % per_prompt == 0).all()


@shows("two processes")
def test_the_log_is_of_the_rows_of_both(kind, two):
    folder, _ = two
    rows, metrics = Run(folder / kind).completions, Run(folder / kind).metrics.set_index("step")
    cut = rows["finish_reason"] == "length"
    assert (rows["completion_tokens"][cut] == LIMIT).all()
    assert (rows["finish_reason"][rows["completion"].str.endswith(STOP)] == "stop").all()
    name = {"GRPO": "reward", "RLOO": "reward"}.get(kind, "objective/scores")
    assert metrics[name].tolist() == pytest.approx(rows.groupby("step")["reward"].mean().tolist(), rel=1e-4)
    share = cut.groupby(rows["step"]).mean().tolist()
    assert metrics["stops/clipped_ratio"].tolist() == pytest.approx(share)
    if kind in ("GRPO", "RLOO"):
        assert metrics["completions/clipped_ratio"].tolist() == pytest.approx(share)
