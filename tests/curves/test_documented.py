import json
import re

import numpy as np
import pytest
from conftest import ROOT

from benchmarks import documented as the_set
from tools import first_values
from workbench.curves.documented import beginnings, list_baselines, load_baseline, load_sources
from workbench.errors import ParameterError, RunError

FOLDER = ROOT / "data" / "baselines"
each_baseline = pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.json")))


# --- documented ------------------------------------------------------------------------------------------------------


def test_every_documented_run_is_there():
    assert len(list_baselines()) >= 14
    assert set(list_baselines()) == {p.stem for p in FOLDER.glob("*.json")}


@each_baseline
def test_a_baseline_says_where_it_is_from_and_what_is_not_known(name):
    baseline = load_baseline(name)
    assert baseline.name == name
    assert baseline.source
    assert baseline.unknown
    assert len(repr(baseline)) < 800  # a cell that ends with it shows no curve's points
    assert baseline.reward.keys() == {"name", "unit", "low", "high"}
    assert baseline.curves or baseline.figures
    assert all(f["from"] in ("published", "full log", "computed") and f["what"] for f in baseline.figures.values())


@each_baseline
def test_a_mean_stands_at_its_steps_centre_unless_logged_at_end(name):
    for metric, curve in load_baseline(name).curves.items():
        x = [point[0] for point in curve["points"]]
        # A log of every tenth step has its points where it logged them, as trainers do: at the end of the steps.
        thinned = x[0] < curve["steps_per_point"] and curve["steps_per_point"] > 1
        assert curve["at"] == ("centre" if thinned else "end")
        assert not metric.startswith("eval_") or curve["steps_per_point"] == 1


@each_baseline
def test_its_curves_are_short_in_order_and_inside_their_range(name):
    baseline = load_baseline(name)
    for metric in baseline.curves:
        curve = baseline.curve(metric)  # order and range are checked there
        assert 1 <= len(curve.x) <= (200 if metric.startswith("eval_") else 80 if baseline.recorded else 60)
        assert np.isfinite(curve.y).all()
    if "reward" in baseline.curves:
        assert baseline.curve().unit == baseline.reward["unit"]


def test_the_known_figures_come_out():
    qwen3b, qwen4b = load_baseline("unsloth-qwen2.5-3b-gsm8k-grpo"), load_baseline("unsloth-qwen3-4b-math-grpo")
    assert qwen3b.figure("share_at_cap_first_125") == pytest.approx(0.57, abs=0.005)
    # The points of the curve, each a mean of several steps, have lost the share at the cap.
    assert np.mean(qwen3b.curve("completion_length").y == 200) < qwen3b.figure("share_at_cap") - 0.2
    assert qwen4b.figure("first_20_steps") == pytest.approx(-2.8, abs=0.05)
    assert qwen4b.figure("last_20_steps") == pytest.approx(-3.4, abs=0.05)
    assert qwen4b.figure("change_low") < 0 < qwen4b.figure("change_high")
    late = load_baseline("verl-qwen2.5-0.5b-gsm8k-ppo-0.567").curve("eval_accuracy")
    late = late.y[late.x >= 199]
    assert (len(late), late.min(), late.max()) == (24, 0.538, 0.579)


ARMS = {arm: load_baseline(f"arvindcr4-qwen3-8b-gsm8k-{arm}") for arm in ("grpo", "drgrpo", "gspo", "dapo", "aero")}


@pytest.mark.parametrize("arm", ARMS)
def test_curves_of_eight_seeds_end_at_the_mean_of_the_summary(arm):
    seeds = np.array([curve.y for curve in ARMS[arm].curves_by_seed()])
    assert seeds.shape == (8, 30)
    assert seeds[:, -10:].mean() == pytest.approx(ARMS[arm].figure("last_10_steps"), abs=1e-4)


@pytest.mark.parametrize("metric", ["reward", "completion_length", "clipped_ratio"])
@pytest.mark.parametrize("arm", ["drgrpo", "gspo"])
def test_arms_of_one_seed_start_with_the_same_completions(arm, metric):
    first, other = ({c.label[-3:]: c.y[0] for c in ARMS[name].curves_by_seed(metric)} for name in ("grpo", arm))
    assert other == pytest.approx(first, abs=0.01)  # of lengths five digits are kept


def test_an_unknown_name_gets_the_nearest_spelling():
    with pytest.raises(ParameterError, match=r"'unsloth-qwen3-4b-maths': did you mean 'unsloth-qwen3-4b-math-grpo'\?"):
        load_baseline("unsloth-qwen3-4b-maths")
    with pytest.raises(ParameterError, match=r"did you mean 'reward_std'\? there are reward, reward_std"):
        load_baseline("unsloth-qwen3-4b-math-grpo").curve("reward_sd")
    with pytest.raises(ParameterError, match="'peak': did you mean 'peak_step'"):
        load_baseline("trl-3406-qwen2-0.5b-tldr-grpo").figure("peak")
    with pytest.raises(ParameterError, match="has no curve 'reward': there are none"):
        load_baseline("trl-docs-qwen2-0.5b-tldr-grpo").curve()


def test_a_user_adds_a_baseline_by_dropping_a_file_in(mine):
    mine.write_text(json.dumps(W3NG | {"title": "Mine"}))
    assert {"mine", "w3ng-qwen2.5-1.5b-tldr-grpo"} <= set(list_baselines())
    assert load_baseline("mine").curve().y[0] == -368.4


W3NG = json.loads((FOLDER / "w3ng-qwen2.5-1.5b-tldr-grpo.json").read_text()) | {"name": "mine"}
CURVE = W3NG["curves"]["reward"]
FIGURE = {"value": 1, "what": "peak", "from": "published"}
WORDS = "expected words such as 'characters from the target of 20'"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The file of a baseline of one's own, which is not there yet."""
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path))
    return tmp_path / "mine.json"


@pytest.mark.parametrize(
    "change, message",
    [({"colour": 1}, "unknown fields ['colour']"),
     ({"curves": {"reward": {"points": []}}}, "curve 'reward' lacks ['at', 'high', 'low', 'unit', 'x']"),
     *(({"reward": W3NG["reward"] | {"unit": unit}}, f"mine.json: reward: unit={unit!r}; {WORDS}") for unit in (None, 3, "  ")),
     ({"reward": {"name": "reward"}}, f"mine.json: reward: unit=None; {WORDS}"),
     ({"curves": {"reward": CURVE, "loss": CURVE | {"unit": ""}}}, f"mine.json: curve 'loss': unit=''; {WORDS}"),
     ({"figures": {"peak": FIGURE | {"unit": []}}}, f"mine.json: figure 'peak': unit=[]; {WORDS}"),
     *(({"curves": {"reward": CURVE | {"points": points}}}, f"curve 'reward': points={points}; expected [step, value]")
       for points in ([], [1, 2], [[1, "a"]], [[1]])),
     *(({name: 3}, "mine.json: 3 among its fields; expected an object") for name in ("reward", "curves", "figures")),
     ({"curves": {"reward": 3}}, "mine.json: 3 among its fields; expected an object"),
     ({"curves": {"reward": CURVE | {"x": "hours"}}}, "curve 'reward': x='hours'; expected 'step'"),
     ({"curves": {"reward": CURVE | {"unit": "tokens"}}},
      "mine.json: curve 'reward' has unit='tokens', the reward itself 'characters from the target of 200'")],
)  # fmt: skip
def test_an_odd_file_is_refused_with_what_is_odd(mine, change, message):
    mine.write_text(json.dumps(W3NG | change))
    with pytest.raises(ParameterError) as error:
        load_baseline("mine")
    assert message in str(error.value)


@pytest.mark.parametrize("points, message", [([[2, 1], [1, 1]], "step 1 follows 2"), ([[1, 9e9]], "lie outside")])
def test_an_odd_file_of_ones_own_leaves_the_others(mine, points, message):
    curve = CURVE | {"points": points, "high": 0.0}
    mine.write_text(json.dumps(W3NG | {"curves": {"reward": curve}}))
    with pytest.warns(UserWarning, match=rf"left out of the documented runs: .*mine.json: curve 'reward': .*{message}"):
        runs = {one.run for one in beginnings()}
    assert "w3ng-qwen2.5-1.5b-tldr-grpo" in runs and "mine" not in runs


def test_a_file_that_is_no_object_is_refused(mine):
    mine.write_text("[1]")
    with pytest.raises(ParameterError, match=r"mine.json: holds \[1\]; expected an object of fields"):
        load_baseline("mine")


def test_a_curve_without_a_known_value_has_a_beginning(mine):
    """It ended each audit, which reads the beginnings of all curves."""
    mine.write_text(json.dumps(W3NG | {"curves": {"reward": CURVE | {"points": [[1, None], [2, None]]}}}))
    (found,) = [one for one in beginnings() if one.run == "mine"]
    assert (found.last, found.spread) == (2, 0)


def test_curves_of_seeds_have_the_unit_and_steps_of_the_curve(mine):
    by_seed = {"4": [-50.0] * 11, "5": [-60.0] * 11}
    mine.write_text(json.dumps(W3NG | {"curves": {"reward": CURVE | {"by_seed": by_seed}}}))
    four, five = load_baseline("mine").curves_by_seed()
    assert (four.label, five.label) == ("mine, seed 4", "mine, seed 5")
    assert (four.unit, four.high, four.x[-1], four.y[0], five.y[0]) == (CURVE["unit"], 0.0, 110, -50, -60)
    assert load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").curves_by_seed() == []
    with pytest.raises(ParameterError, match="has no curve 'loss'"):
        load_baseline("mine").curves_by_seed("loss")
    mine.write_text(json.dumps(W3NG | {"curves": {"reward": CURVE | {"by_seed": {"0": [1.0, 2.0]}}}}))
    with pytest.raises(ParameterError, match=r"mine, seed 0: expected equally many x and y"):
        load_baseline("mine").curves_by_seed()


def test_a_damaged_file_is_refused(mine):
    mine.write_text('{"name": ')
    with pytest.raises(RunError, match="not JSON"):
        load_baseline("mine")


# --- sources ---------------------------------------------------------------------------------------------------------


EXTRACTS = ROOT / "tests" / "data" / "documented"  # the steps and figures of a source's file, and nothing else of it


def test_documented_runs_name_source_licence_and_what_was_taken():
    rows = load_sources()
    assert {row["run"] for row in rows} == set(list_baselines())
    assert all(
        row.keys() == set(the_set.FIELDS) and row["repository"] and row["licence"] and row["taken"] for row in rows
    )
    assert len({row["repository"] for row in rows}) >= 15
    hashed = [row for row in rows if row["sha256"]]
    assert len({row["run"] for row in hashed}) >= 60
    assert all(len(row["sha256"]) == 64 and (row["commit"] or row["blob"]) for row in hashed)
    assert sum(path.stat().st_size for path in FOLDER.glob("*.json")) < 10_000_000
    folders = re.compile(
        r'"/(home|Users|root|tmp|var|mnt|opt|work)/'
    )  # of one machine; a completion may begin with a slash
    assert not [path.name for path in FOLDER.glob("*.json") if folders.search(path.read_text())]


@pytest.mark.parametrize("path", sorted(EXTRACTS.glob("*.csv")), ids=lambda path: path.stem)
def test_the_numbers_of_a_run_come_out_of_its_log_again(path):
    row = next(row for row in load_sources() if row["run"] == path.stem)
    again = row | {"which": 0, "column": None, "evals": "eval_accuracy" if row["evals"] else None}
    assert the_set.differences(again | {"sha256": the_set.sha256(path)}, path) == []


def test_a_log_with_another_number_or_another_hash_is_noticed(tmp_path):
    path = sorted(EXTRACTS.glob("imjonezz*.csv"))[0]
    (row,) = [row for row in load_sources() if row["run"] == path.stem]
    changed = tmp_path / path.name
    lines = path.read_text().splitlines()
    lines[5] = ",".join([lines[5].split(",")[0], "3.9", *lines[5].split(",")[2:]])
    changed.write_text("\n".join(lines))
    with pytest.raises(RunError, match="another version of the file"):
        the_set.differences(row, changed)
    (wrong,) = the_set.differences(row | {"sha256": the_set.sha256(changed)}, changed)
    assert "reward: 50 stored points, 50 worked out, not the same" in wrong
    with pytest.raises(RunError, match="which=3, it holds 1 runs, counted from 0"):
        the_set.full_curves(path, which=3)


def test_a_command_adds_a_run_from_a_log_but_under_no_taken_name(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": n, "reward": n / 100}) + "\n" for n in range(1, 151)))
    (tmp_path / "data" / "baselines").mkdir(parents=True)
    monkeypatch.setattr(the_set, "ROOT", tmp_path)
    monkeypatch.setattr(the_set, "SOURCES", tmp_path / "data" / "sources.json")
    about = "--name mine --title Mine --repository me/mine --file log.jsonl --commit 0123456789"
    like = "--like imjonezz-llama3.1-8b-gsm8k-grpo"
    monkeypatch.setattr("sys.argv", ["x", "add", str(log), *about.split(), *like.split()])
    the_set.main()
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path / "data" / "baselines"))
    mine = load_baseline("mine")
    assert (mine.task, mine.curve().unit, mine.curve().high) == ("GSM8K", "points (GSM8K tags, at most 4)", 4.0)
    assert len(mine.curve().x) == 50 and mine.curve().y[0] == pytest.approx(0.02)
    (row,) = [row for row in json.loads((tmp_path / "data" / "sources.json").read_text()) if row["run"] == "mine"]
    assert row["sha256"] == the_set.sha256(log) and row["taken"] == "reward"
    with pytest.raises(ParameterError, match=r"name='mine': .* is there; give another name"):
        the_set.main()


def test_the_first_values_of_all_runs_are_up_to_date():
    assert first_values.PATH.read_text() == first_values.text(), "written by `python -m tools.first_values`"
