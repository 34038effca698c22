"""Verdicts on documented runs: each with what it is true of, and a counter-example that it must not be said of."""

import dataclasses
import itertools
import json

import numpy as np

from benchmarks.documented import thinned
from benchmarks.error_rates import noise
from tools.record import measured
from workbench.curves import place as v
from workbench.curves.curve import Curve
from workbench.curves.documented import beginnings, list_baselines, load_baseline, load_sources

STEPS = np.arange(1, 61)


def curve(y, label="run", **about):
    return Curve(label, np.arange(1, len(y) + 1), y, "points", **about)


def drift(rng, n=60, rho=0.8):
    return noise(rng, n, rho)


def test_rise_and_fall_differ_from_drifting_noise_in_95_per_cent():
    rng = np.random.default_rng(1)
    flat = [v.trend(curve(drift(rng))).word for _ in range(200)]
    assert flat.count(v.RISES) + flat.count(v.FALLS) <= 22  # 5.8% by 1,000 runs, and three deviations of 200
    slope = 8 * STEPS / 60
    assert [v.trend(curve(sign * slope + 0.3 * drift(rng))).word for sign in (1, -1)] == [v.RISES, v.FALLS]


def test_a_reward_learned_in_the_first_tenth_counts_as_rising():
    rng = np.random.default_rng(0)
    assert v.trend(curve(1 - np.exp(-STEPS / 6) + 0.1 * rng.normal(size=60))).word == v.RISES
    assert v.trend(load_baseline("happynessi-babyai-dapo").curve()).word == v.RISES


def test_only_bounded_rewards_of_enough_points_are_called_flat():
    y = 0.5 + 0.01 * np.tile([1, -1], 30)
    assert v.trend(curve(y, low=0, high=1)).word == v.FLAT
    assert v.trend(curve(y)).word == v.UNCLEAR
    lost = v.trend(curve(0.05 + 0.85 * np.sin(np.pi * STEPS / 61) + y - 0.5, low=0, high=1))
    assert lost.word == v.UNCLEAR and "but its third fifth is at 0.8" in lost.why
    few = v.trend(curve(np.arange(19.0)))
    assert few.word == v.TOO_FEW and few.why.startswith("19 points, from 1.5 to 16.5; 25 or more are needed")


def test_a_copy_is_found_in_another_form_and_no_other_run_is():
    rng = np.random.default_rng(0)
    y = rng.normal(size=200)
    made = thinned(np.arange(1.0, 201), y)
    short = Curve("thinned", *np.array(made["points"]).T, "points", at=made["at"], span=made["steps_per_point"])
    assert v.same_table(curve(y), short).word == v.same_table(short, curve(y)).word == v.COPY
    assert v.same_table(curve(y), curve(y[:90])).word == v.COPY  # a run that was stopped
    assert v.same_table(curve(y), curve(rng.normal(size=200))).word == v.OTHER
    assert v.same_table(curve(y), curve(np.where(np.arange(200) == 7, y + 0.1, y))).word == v.OTHER


def test_a_reward_that_is_stuck_or_short_is_no_copy_of_another():
    stuck = np.zeros(100)
    assert v.same_table(curve(stuck), curve(stuck)).word == v.UNCLEAR
    assert "9 points in common" in v.same_table(curve(np.arange(9.0)), curve(np.arange(100.0))).why


def test_three_digits_show_a_copy_only_if_finer_than_the_scatter():
    y = np.random.default_rng(0).normal(size=60)
    shifted = {away: curve(away + y) for away in (0, 300, 3000)}
    words = {away: v.same_table(one, curve(one.y.round(2))).word for away, one in shifted.items()}
    assert words == {0: v.COPY, 300: v.COPY, 3000: v.COPY}
    by = 0.01 * np.where(np.arange(60) % 2, 1, -1)  # as much as that rounding, and not its result
    assert v.same_table(shifted[0], curve(shifted[0].y + by)).word == v.OTHER
    coarse = curve((0.1 * y).round(1))
    assert v.same_table(curve(0.1 * y), coarse).word == v.UNCLEAR
    other = curve(3000 + np.random.default_rng(1).normal(size=60))
    assert v.same_table(shifted[3000], other).word == v.OTHER  # all of their digits that are alike are the offset's


def test_a_copy_that_counts_its_steps_from_zero_is_found():
    y = np.random.default_rng(0).normal(size=60)
    from_zero = Curve("a log", range(60), y, "points")
    for pair in ((from_zero, curve(y)), (curve(y), from_zero)):
        assert (
            v.same_table(*pair).word == v.COPY
            and "where one of them counts its steps from 0" in v.same_table(*pair).why
        )
    logged = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").curve()
    (first,) = (one for one in beginnings() if one.run == "w3ng-qwen2.5-1.5b-tldr-grpo" and one.metric == "reward")
    moved = dataclasses.replace(logged, x=logged.x - 1, y=logged.y.round(2))
    assert v.may_be_same(logged, first) and v.may_be_same(moved, first)


def test_no_two_documented_runs_are_one_table_but_a_known_copy():
    """A table that several files hold is one run with several sources."""
    runs = [load_baseline(name) for name in list_baselines()]
    curves = {one.name: one.curve() for one in runs if "reward" in one.curves and not one.recorded}
    pairs = [(a, b) for a, b in itertools.combinations(curves, 2) if curves[a].unit == curves[b].unit]
    assert len(pairs) > 50
    same = [pair for pair in pairs if v.same_table(*map(curves.get, pair)).word == v.COPY]
    assert same == [("kevindic0214-gemma3-1b-gsm8k-grpo", "unsloth-gemma3-1b-gsm8k-grpo")]  # of 50 steps, and of 12


def test_three_saved_tables_stand_under_code_of_several_models():
    loads = {}
    for row in load_sources():
        if row["loads"]:
            loads.setdefault(row["run"], set()).add(row["loads"].rpartition("/")[2].lower().removeprefix("meta-"))
    assert sum(len(models) > 1 for models in loads.values()) == 3


def test_a_run_is_placed_among_runs_as_long_and_of_the_same_unit():
    flat = lambda level, n=100, **about: Curve(f"at {level}", np.arange(1, n + 1), np.full(n, level), "points", **about)  # noqa: E731
    others = [flat(1.0), flat(1.2), flat(1.4), flat(5.0, n=20)]
    found = v.place(flat(1.3, n=1000), others)  # compared at step 100, which three of them have
    assert found.word == v.INSIDE and "3 others at step 100" in found.why
    assert [v.place(flat(level), others).word for level in (9.0, -9.0)] == [v.ABOVE, v.BELOW]
    assert v.place(flat(1.3), others[:2]).word == v.UNCLEAR
    assert v.place(Curve("mine", [1, 2], [1, 2], "points"), others).why == "mine has 2 points; 3 or more are needed"
    assert v.place(flat(1.3, high=4), others).word == v.place(flat(1.0), []).word == v.NOT_COMPARABLE


def test_each_unusable_log_is_a_line_and_the_others_are_drawn(tmp_path):
    like = load_baseline("imjonezz-llama3.1-8b-gsm8k-grpo")
    logs = {"good": [n / 100 for n in range(1, 101)], "other_unit": [-30.0 + n for n in range(100)], "two": [0.5, 0.6]}
    for name, rewards in logs.items():
        lines = [json.dumps({"step": n, "reward": reward}) for n, reward in enumerate(rewards, 1)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "damaged.json").write_text('{"log_history": [{"step": 1, "rew')
    (tmp_path / "other.csv").write_text("step,loss\n1,2.0\n2,1.5\n")
    paths = [*sorted(tmp_path.iterdir()), tmp_path / "none"]
    curves, left_out = v.curves_of(paths, like)
    assert [one.label.rpartition("/")[2] for one in curves] == ["good.jsonl", "two.jsonl"]
    assert {one.unit for one in curves} == {like.reward["unit"]}
    assert len(left_out) == 4
    for line, words in zip(
        left_out, ("damaged.json: not JSON", "other.csv: no reward", "per cent and shares", "no such file"), strict=True
    ):
        assert words in line


def test_peers_are_of_the_recipe_or_else_of_the_task_and_unit():
    runs = [load_baseline(name) for name in list_baselines()]
    recipe = v.peers(load_baseline("imjonezz-llama3.1-8b-gsm8k-grpo"), runs)
    assert len(recipe) >= 5 and {"Llama-3.1-8B" in one.title for one in recipe} == {True}
    task = v.peers(load_baseline("unsloth-mistral-7b-gsm8k-grpo"), runs)
    assert {one.task for one in task} == {"GSM8K"} and len({one.recipe for one in task}) > 2


def test_recorded_rates_of_verdicts_are_within_bounds():
    found = measured("documented_verdicts")
    for kind, about in found["trends"].items():
        points = int(kind.split(";")[0])
        said = next((share for least, share in v.WRONG if points >= least), 0)
        assert about["noise"] <= said, kind
    for least, share in v.WRONG:  # none is said to be larger than it is
        lengths = [kind for kind in found["trends"] if int(kind.split(";")[0]) >= least]
        assert max(found["trends"][kind]["noise"] for kind in lengths) > share - 0.01
    assert found["copies"]["two seeds, 8 completions that are right or wrong"].get(v.COPY, 0) == 0


def test_an_early_jump_is_seen():
    assert (
        v.trend(load_baseline("kanishkg-llama-countdown-empty-cot").curve()).word == v.RISES
    )  # 0.259 to 0.415, 26 points
    jump = 3.0 * (np.arange(40) >= 8) + np.random.default_rng(0).normal(size=40)
    rises = v.trend(curve(jump))
    assert rises.word == v.RISES and "up to 22% of runs so long without a trend look like it" in rises.why


def test_an_open_verdict_says_what_would_have_shown():
    found = v.trend(curve(np.random.default_rng(1).normal(size=60)))
    assert found.word == v.UNCLEAR and "would show in 80% of such runs" in found.why


def test_no_documented_curve_is_ruled_out_by_its_beginning():
    rows = [(b, load_baseline(b.run).curve(b.metric)) for b in beginnings()]
    assert len(rows) > 250
    assert all(v.may_be_same(whole, beginning) for beginning, whole in rows)


def test_a_beginning_rules_out_most_other_curves():
    rows = [(b, load_baseline(b.run).curve(b.metric)) for b in beginnings() if b.metric == "reward"]
    some = rows[::3]
    left = [(b.run, one.label) for b, _ in some for _, one in rows if v.may_be_same(one, b)]
    copies = {(b.run, one.label) for b, whole in some for _, one in rows if v.same_table(one, whole).word == v.COPY}
    assert copies <= set(left)
    assert len(left) < 0.2 * len(some) * len(rows)


def test_a_reward_that_stays_as_it_is_neither_rises_nor_falls():
    """By its rounding it did in 754 of 805 lengths and levels."""
    for level in (0.1, 0.3, 0.7, 0.99):
        for n in (25, 33, 59):
            assert v.trend(curve(np.full(n, level))).word == v.UNCLEAR  # of no range that has both ends
            assert v.trend(curve(np.full(n, level), low=0, high=1)).word == v.FLAT


def test_a_run_equal_to_all_others_is_inside_their_spread():
    for level in (0.1, 0.3, 0.9):
        often, seldom = (
            Curve("c", np.arange(every, 100, every), np.full(99 // every, level), "points") for every in (1, 3)
        )
        assert v.place(seldom, [often] * 3).word == v.INSIDE
        assert v.place(dataclasses.replace(seldom, y=seldom.y + 0.001), [often] * 3).word == v.ABOVE


def test_a_run_that_ends_a_little_earlier_is_one_of_the_others():
    levels = {1000: (1.0, 1.05, 1.1), 950: (5.0,), 970: (-3.0,)}
    others = [curve(np.full(n, level), f"{n} {level}") for n, of in levels.items() for level in of]
    verdict = v.place(curve(np.full(1000, 1.6)), others)
    assert "5 others" in str(verdict) and "above" not in str(verdict)


def test_a_curve_that_never_moves_says_nothing_of_its_scatter():
    assert "all of its 40 points are 0.3" in str(v.trend(curve(np.full(40, 0.3))))


def test_a_gap_outside_the_end_of_a_run_does_not_unplace_it():
    others = [curve(np.full(100, level)) for level in (1.0, 1.2, 1.4)]
    early, late = (curve(np.where(np.arange(100) == at, np.nan, 1.3), "mine") for at in (5, 95))
    assert v.place(early, others).word == v.INSIDE
    found = v.place(late, others)
    assert found.word == v.UNCLEAR and found.why == "mine has no finite reward in all of the 20 steps up to 100"


def test_one_broken_seed_of_a_folder_is_left_out_alone(tmp_path):
    for seed, rewards in enumerate(([0.1, 0.2, 0.3], [0.1, 5.0, 0.3])):
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        rows = [json.dumps({"step": n, "reward": reward}) for n, reward in enumerate(rewards, 1)]
        (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    curves, left_out = v.curves_of([tmp_path], load_baseline("imjonezz-llama3.1-8b-gsm8k-grpo"))
    assert [one.y.tolist() for one in curves] == [[0.1, 0.2, 0.3]] and len(left_out) == 1
