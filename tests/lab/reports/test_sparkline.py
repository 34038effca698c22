import json
import os
import re

from conftest import write_run

from workbench.lab.reports.facts import limits
from workbench.lab.reports.sparkline import sparkline


def points(svg: str) -> list[list[list[float]]]:
    lines = re.findall(r'points="([^"]*)"', svg)
    return [[[float(v) for v in point.split(",")] for point in line.split()] for line in lines]


def training(run, folder: str, *rewards):
    (run.path / folder).mkdir(parents=True)
    lines = [json.dumps({"step": n, "reward": value}) for n, value in enumerate(rewards, 1)]
    (run.path / folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_a_curve_runs_left_to_right_and_up_where_rewards_rise(tmp_path):
    run = write_run(tmp_path, metrics=[{"step": n, "reward": 2.0 * n} for n in range(1, 6)])
    svg = sparkline(run)
    assert points(svg) == [[[2, 28], [31, 22], [60, 15], [89, 8], [118, 2]]]
    assert 'aria-label="reward, 2 to 10"' in svg


def test_of_a_long_log_some_points_are_drawn_and_the_shape_stays(tmp_path):
    run = write_run(tmp_path, metrics=[{"step": n, "reward": n, "text": "x"} for n in range(1, 5001)])
    (line,) = points(sparkline(run))
    assert len(line) == 30
    assert line == sorted(line, key=lambda p: (p[0], -p[1]))


def test_of_several_settings_those_with_most_seeds_show_one_each(tmp_path):
    run = write_run(tmp_path)
    for seed in range(2):
        training(run, f"stock/seed-{seed}", 1, 0)
        training(run, f"ours/seed-{seed}", 1, 2)
    training(run, "probe/seed-0", 50, 60)
    assert [line[-1][1] for line in points(sparkline(run))] == [2.0, 28.0]


def test_a_missing_damaged_hostile_or_linked_log_gives_no_curve(tmp_path):
    assert sparkline(write_run(tmp_path, "1")) == ""
    for n, text in enumerate(
        ['{"step": 1, "reward": "<b>"}\n{"step": NaN, "reward": 1}\n', "[1\n" * 9, '{"step": 1, "reward": 2}\n']
    ):
        run = write_run(tmp_path, f"2-{n}")
        (run.path / "metrics.jsonl").write_text(text)
        assert sparkline(run) == ""
    linked = write_run(tmp_path, "3")
    (tmp_path / "elsewhere").write_text('{"step": 1, "reward": 2}\n{"step": 2, "reward": 3}\n')
    os.symlink(tmp_path / "elsewhere", linked.path / "metrics.jsonl")
    assert sparkline(linked) == ""


def test_one_seed_is_a_limit_only_of_what_was_trained_with_one(tmp_path):
    def told(run):
        return [line for line in limits(run, run.status, {}, {"git_commit": "abc"}, None) if "seed" in line]

    nothing = write_run(tmp_path, "1", params={"seed": 0})
    assert told(nothing) == []  # it trained nothing: its seed is that of the resamples
    alone = write_run(tmp_path, "2", metrics=[{"step": 1, "reward": 1}])
    assert told(alone) == ["This is one run with one seed; how far another seed would be from it is unknown."]
    several = write_run(tmp_path, "3")
    for folder in ("ours/seed-0", "ours/seed-1", "arms/stock/seed-0"):
        training(several, folder, 1, 2)
    assert told(several) == ["Trained with one seed only, so how far another would be is unknown: arms/stock."]
