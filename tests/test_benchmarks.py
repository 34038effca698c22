"""The programs of benchmarks/: what is stored, and costs measured in pairs."""

import argparse
import csv
import dataclasses
import io
import json
import subprocess

import pandas as pd
import pytest
from conftest import append_table

from benchmarks import (
    divisor,
    dose,
    evidence,
    hacked_rewards,
    ppo_stops,
    real,
    recorded_rewards,
    reward_trials,
    trl_tests,
)
from tools import record
from workbench.curves.documented import load_baseline
from workbench.errors import RunError
from workbench.experiments.held_out import FILE
from workbench.experiments.recipes import make_recipe
from workbench.runs.files import read_json, write_json, write_text
from workbench.runs.results import Result, save_result
from workbench.runs.run import Run


def test_published_result_holds_what_made_it_and_no_host(tmp_path, capsys):
    record.publish({"rate": 0.5}, tmp_path / "new" / "result.json")
    stored = json.loads((tmp_path / "new" / "result.json").read_text())
    assert stored["rate"] == 0.5 and {"git_commit", "packages", "date"} <= stored["environment"].keys()
    assert {"host", "argv"}.isdisjoint(stored["environment"])


@pytest.mark.slow
def test_training_that_is_stored_is_not_trained_again(tmp_path, monkeypatch):
    from benchmarks import false_alarms

    asked, out = [], tmp_path / "rows.json"
    monkeypatch.setattr(false_alarms, "train", lambda one, steps: asked.append(one.words()) or {"steps": steps})
    for steps in ("2", "2", "3"):
        rows = false_alarms.result(steps, "ours RLOO", out=out)
    assert len(asked) == 2 == len(set(asked)) + 1 and rows[asked[0]]["steps"] == 3


SMALL = argparse.Namespace(steps=3, repeats=1, rows=2, tokens=4)


@pytest.mark.slow
def test_steps_of_stock_and_ours_alternate(starter_folder):
    from benchmarks import cost

    found = cost.step(SMALL, str(starter_folder))
    assert found["interval"][0] <= found["ours over stock"] <= found["interval"][1]
    assert "2 pairs of steps" in found["says"]


@pytest.mark.slow
def test_the_audit_of_a_run_is_measured_on_a_training(starter_folder):
    from benchmarks import cost

    found = cost.ROWS["run audit"](SMALL, str(starter_folder))
    assert found["completions"] == 6 and found["seconds"] > 0


THEIR_TESTS = """
import pytest, trl
def test_same(): pass
def test_of_the_hub(): raise OSError("We couldn't connect to the hub")
def test_left_out(): pytest.skip("no GPU")
def test_whose(): assert trl.RLOOTrainer.__module__.startswith("trl.")
"""


@pytest.mark.slow
@pytest.mark.rare
def test_trls_tests_are_counted_by_outcome_and_commit(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_rloo_trainer.py").write_text(THEIR_TESTS)
    (tmp_path / "VERSION").write_text("9.9\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    files, out = ["--files", "test_rloo_trainer"], ["--out", str(tmp_path / "made.json")]
    monkeypatch.setattr("sys.argv", ["trl_tests", str(tmp_path), *files, *out])
    trl_tests.main()
    made = json.loads((tmp_path / "made.json").read_text())
    part = made["parts"]["test_rloo_trainer"]
    assert made["tests of"]["version"] == "9.9" and len(made["tests of"]["commit"]) == 40
    assert (part["tests"], part["passed on both"], list(part["skipped"].values())) == (4, 1, [1])
    assert {why: len(names) for why, names in part["failed on both"].items()} == {
        "loads a model or data set that is not here": 1
    }
    assert [line.partition(": ")[0].rpartition("::")[2] for line in part["passed on stock alone"]] == ["test_whose"]
    text = "\n".join(trl_tests.page(made))
    assert "version\n9.9" in text and "| passed on TRL's trainers alone | 1 |" in text


MANY = {"comparisons": False, "seeds": 5}
ONE = {"comparisons": False, "seeds": 1}  # the seeds are those of the comparisons, which were left out


def test_a_training_without_questions_keeps_what_it_wrote(tmp_path):
    recipe = dataclasses.asdict(make_recipe("smollm2", dataset="starter-chat", max_steps=2))
    del recipe["lora_rank"]  # as a record of all weights is
    reward = {"name": "reward_len", "unit": "characters", "lowest": None, "highest": 0.0}
    write_json(tmp_path / "recipe.json", {"recipe": recipe, "reward_funcs": [reward], "stops": {}, "overrides": {}})
    write_json(tmp_path / "progress.json", {"step": 2, "max_steps": 2, "finished": True})
    rows = {"step": [1, 2, 2, 2], "completion": ["long text", "name", "name", "other"], "finish_reason": "stop"}
    append_table(tmp_path, pd.DataFrame(rows | {"reward": -1.0}))
    lines = [{"step": n, "reward": -1.0} | dict.fromkeys(real.LOGGED, 0.25) for n in (1, 2)]
    write_text(tmp_path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    made = real.baseline("all-weights", {0: Run(tmp_path)}, "trial", record.about() | {"date": "2026-01-01"})
    assert ", all weights, " in made["method"] and "no questions" in made["data"]
    assert made["recorded"]["said"] == {"untrained": ["long text"], "trained": ["name", "name", "other"]}
    assert made["recorded"]["commonest"] == {"0": {"completion": "name", "count": 2, "of": 3}}
    assert made["method"].endswith(", fp32") and made["recorded"]["moved"] == {}


def test_a_training_of_bf16_weights_says_so_and_what_moved(tmp_path):
    recipe = dataclasses.asdict(make_recipe("smollm2", max_steps=3))
    reward = {"name": "reward_exact_match", "unit": "share", "lowest": 0.0, "highest": 1.0}
    overrides = {"model_init_kwargs": {"dtype": "bfloat16"}}
    about = {"recipe": recipe, "reward_funcs": [reward], "stops": {}, "overrides": overrides}
    write_json(tmp_path / "recipe.json", about)
    append_table(tmp_path, pd.DataFrame({"step": [1, 2, 3], "completion": "a", "finish_reason": "stop", "reward": 0.5}))
    lines = [{"step": n, "reward": 0.5} | dict.fromkeys(real.LOGGED, 0.25) for n in (1, 2, 3)]
    lines[0]["update/moved"], lines[2]["update/moved"] = 0.02, 0.04  # a step of three was not measured
    write_text(tmp_path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    made = real.baseline("bf16", {3: Run(tmp_path)}, "trial", record.about() | {"date": "2026-01-01"})
    assert made["method"].endswith(", bf16") and made["recorded"]["moved"] == {"3": pytest.approx(0.03)}


def test_a_real_run_is_documented_by_its_finished_seeds(tmp_path, monkeypatch, capsys):
    recipe = dataclasses.asdict(make_recipe("smollm2", max_steps=2))
    for seed in (0, 1):
        folder = tmp_path / "run" / "stock-TRL--masked" / f"seed-{seed}"
        folder.mkdir(parents=True)
        reward = {"name": "reward_exact_match", "unit": "share of exact answers", "lowest": 0.0, "highest": 1.0}
        about = {"recipe": recipe | {"seed": seed}, "reward_funcs": [reward], "stops": {}, "overrides": {}}
        write_json(folder / "recipe.json", about)
        write_json(folder / "progress.json", {"step": 2, "max_steps": 2, "finished": seed == 0})
        append_table(folder, pd.DataFrame({"step": [1, 2], "completion": "a", "finish_reason": "stop", "reward": 0.5}))
        lines = [{"step": n, "reward": 0.5} | dict.fromkeys(real.LOGGED, 0.25) for n in (1, 2)]
        write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        said = {0: "before", 2: "after"}
        asked = [{"step": n, "completion": said[n], "reward": one} for n in said for one in (0.0, float(n > 0))]
        write_text(folder / FILE, "".join(json.dumps(line) + "\n" for line in asked))
    write_json(tmp_path / "run" / "env.json", record.about())
    write_json(tmp_path / "run" / "params.json", {"seed": 3, "model": "smollm2", "steps": 2, **MANY})
    save_result(Run(tmp_path / "run"), [Result("it rises", True)])
    call = ["real", str(tmp_path / "run"), "--name", "trial", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", call)
    real.main()
    assert "seed-1: not finished, left out" in capsys.readouterr().out
    (stored,) = read_json(tmp_path / "smollm2.json", {})["rows"].values()
    assert (stored["parameters"], stored["results"][0]["says"]) == ({"model": "smollm2", "steps": 2} | ONE, "it rises")
    write_json(tmp_path / "run" / "params.json", {"model": "starter"})
    with pytest.raises(RunError, match="model='starter'; expected model='smollm2'"):
        real.main()
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path / "baselines"))
    made = load_baseline("workbench-smollm2-trial-sums-stock-trl-masked")
    assert (made.seeds, made.recorded["arm"]) == (1, "stock TRL, masked")
    (held,) = made.curves_by_seed("eval_accuracy")
    assert held.x.tolist() == [0, 2] and held.y.tolist() == [0, 0.5]
    assert made.recorded["said"] == {"untrained": ["before"] * 2, "trained": ["after"] * 2}
    assert made.recorded["commonest"] == {
        "0": {"completion": "a", "count": 1, "of": 1}
    }  # of the last tenth of the steps
    ((_, arm, seeds, steps, _, _, right),) = [
        row for row in evidence.arms() if row[:3] == [made.task, "stock TRL, masked, rate 0.0001", "1"]
    ]
    assert (arm, seeds, steps, right) == ("stock TRL, masked, rate 0.0001", "1", "2 of 2", "0% to 50% (50%)")
    assert evidence.effect(evidence.recorded("trial")[made.task]) == ("recorded: stock TRL, masked", None)


def test_five_seeds_replace_two_in_the_row_of_ppo_costs():
    notebook = (record.ROOT / "notebooks" / "01_ppo_eos_stop.ipynb").read_text(encoding="utf-8")
    assert [says for says, _ in ppo_stops.COSTS if says not in notebook] == []
    (row,) = [line for line in csv.DictReader(io.StringIO(evidence.claims_csv())) if line["id"] == "A0.2"]
    assert row["SmolLM2"].count("Without a stop an update takes") == 1
    assert row["SmolLM2"].count("seeds: 5") == len(ppo_stops.COSTS)
    again = ppo_stops.with_more_seeds(evidence.on_the_model("01_ppo_eos_stop")["results"])
    assert again == evidence.on_the_model("01_ppo_eos_stop")["results"]


def test_seeds_of_an_earlier_run_stay_in_the_file():
    def made(commit, rate=1e-4, at_once=8, **seeds):
        curve = {"points": [[0, 0.5], [1, 0.5]]}
        batch = {"per_device_train_batch_size": at_once, "gradient_accumulation_steps": 16 // at_once}
        of = {"recipe": {"learning_rate": rate} | batch, "stops": {}, "overrides": {}, "made_with": [commit]}
        curve["by_seed"] = {name.removeprefix("seed"): values for name, values in seeds.items()}
        return {"title": f"T, seeds: {len(seeds)}", "seeds": len(seeds), "curves": {"reward": curve}, "recorded": of}

    first, second = made("a", seed0=[0.0, 1.0]), made("b", at_once=4, seed1=[0.5, 0.5])
    second["recorded"]["answers"] = {"1": [1.0, 0.0]}
    both = real.with_stored(second, first)
    assert both["recorded"]["answers"] == {"1": [1.0, 0.0]}
    assert (both["seeds"], both["title"], both["recorded"]["made_with"]) == (2, "T, seeds: 2", ["a", "b"])
    assert both["curves"]["reward"]["points"] == [[0, 0.25], [1, 0.75]]
    assert real.with_stored(second, {}) == second
    assert real.with_stored(made("b", rate=1e-5, seed1=[0.5, 0.5]), first)["seeds"] == 1


def test_the_effect_on_a_real_model_obeys_its_interval():
    def arm(last):
        return dataclasses.replace(
            known, curves={"eval_accuracy": {"by_seed": {n: [0.1, y] for n, y in enumerate(last)}}}
        )

    known = load_baseline("workbench-starter-docs-example")
    stock = arm([0.1, 0.2, 0.1])
    says, above = evidence.effect({"stock TRL, masked": stock, "workbench, masked": arm([0.8, 0.9, 0.7])})
    assert above and says.startswith("workbench less stock TRL") and says.endswith("seeds: 3")
    none = {str(seed): [0.0] * 20 for seed in range(3)}
    all_but_one = {str(seed): [float(n != seed) for n in range(20)] for seed in range(3)}
    answers = [none, all_but_one]
    stock, ours = (dataclasses.replace(known, recorded=known.recorded | {"answers": of}) for of in answers)
    says, above = evidence.effect({"stock TRL, masked": stock, "workbench, masked": ours})
    assert above and says.endswith("+0.95 (+0.89 to +1.01), 3 seeds and 20 questions")
    assert evidence.effect({"stock TRL, masked": stock, "workbench, masked": arm([0.0, 0.9, 0.1])})[1] is None


def test_the_page_of_doses_counts_each_training_once():
    def training(untagged, way, seed, eos, used, right):
        answers = {step: [1.0] * round(10 * share) + [0.0] * round(10 - 10 * share) for step, share in right.items()}
        dose = {"examples": 2, "untagged": untagged, "way": way, "seed": seed, "questions": 10}
        dose |= {"right": right, "answers": answers}
        of = {f"EOS, {when}": eos for when in ("first 3 steps", "last 3 steps", "all steps")}
        return dose | of | {"steps whose rewards differ": 10, "of these with a gradient": used}

    trainings = [training(2, way, seed, 1.0, 10, {0: 0.2, 4: 0.5}) for way in dose.WAYS for seed in (0, 1)]
    trainings += [training(0, "masked", seed, 0.0, seed, {0: 0.2, 4: 0.1}) for seed in (0, 1)]
    trainings += [training(0, "unmasked", seed, 0.1, 10, {0: 0.2, 4: 0.4}) for seed in (0, 1)]
    made = {"runs": trainings, "steps": 4, "num_generations": 8, "environment": record.about()}
    low, high = [line for line in dose.page(made) if line.startswith("| ")][1:]
    assert low.startswith("| 5% | 0 of 2 | 1 of 20 | 0% | 20% to 10%, 10% | 20 of 20 | 10% |")
    assert low.endswith("| -0.30, -0.30 |")
    assert high.startswith("| 100% | 2 of 2 | 20 of 20 | 100% | 20% to 50%, 50% | 20 of 20 |")
    assert high.endswith("| +0.00, +0.00 |")
    assert "masked, by share of EOS: 5%: 5%; 100%: 100%." in dose.figure(made).alt
    of = pd.DataFrame(
        [training(0, way, n, 0.0, 9, {4: y}) for n in range(3) for way, y in (("masked", 0.1), ("unmasked", 0.4))]
    )
    of["last"] = [share[4] for share in of["right"]]
    assert dose.masked_less_unmasked(of) == "-0.30 (-0.65 to +0.05)"


def test_a_divisor_is_compared_seed_by_seed():
    ends = {"dapo": {0: {"reward": 1.0}, 1: {"reward": 3.0}, 2: {"reward": 2.0}, 3: {"reward": 9.0}}}
    ends["grpo"] = {seed: {"reward": values["reward"] - 1} for seed, values in ends["dapo"].items() if seed < 3}
    assert divisor.against_dapo(ends) == {"grpo": {"reward": [-1.0, -1.0, -1.0]}}
    stored = record.measured("divisor")
    assert divisor.against_dapo(stored["ends"]) == stored["less dapo"]


def test_answers_of_sums_come_from_their_prompts():
    table = pd.DataFrame({"prompt": ["What is 338+987? Answer with just the number."] * 2})
    assert recorded_rewards.answers_of(table) == {table["prompt"][0]: "1325"}
    assert recorded_rewards.answers_of(table.assign(ground_truth="1")) is None


def test_a_commit_that_a_clone_lacks_is_an_error(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(RunError, match="expected a clone with this commit"):
        recorded_rewards.stored_file(tmp_path, "0" * 40, "results.jsonl")


def test_a_placebo_is_compared_on_the_seeds_that_both_have():
    random = {1: 0.2, 2: 0.2, 3: 0.2, 4: 0.2}
    ends = {"exact": {0: 0.9, 1: 1.0, 2: 0.8, 3: 0.9}, "placebo random": random, "placebo format": {0: 0.1, 1: 0.1}}
    rows = [
        {"arm": arm, "seed": seed, "right before": 0.0, "right after": end}
        for arm, seeds in ends.items()
        for seed, end in seeds.items()
    ]
    report = hacked_rewards.against(rows, "random")
    assert report.beyond.n == 3 and round(report.beyond.estimate, 6) == 0.7
    assert hacked_rewards.against(rows, "format") is None


def test_the_page_counts_trainings_that_cannot_be_judged_apart(monkeypatch):
    rows = []
    for hack in hacked_rewards.toy.HACKS:
        for seed in range(2):
            row = {"arm": hack, "seed": seed, "named": "length", "right": True, "verdict": "pays for length"}
            rows.append(row | {"right before": 0.0, "right after": 0.1})
    rows[0] |= {"verdict": "cannot tell", "named": "", "right": False}
    rows.append(rows[0] | {"arm": "exact", "right after": 1.0})
    result = {"steps": 24, "runs": rows, "placebos": {}}
    monkeypatch.setattr(hacked_rewards, "measured", lambda name: result)
    text = " ".join(hacked_rewards.page())
    assert "in 9 of 9 trainings (could not tell: 1)" in text
    assert "nothing in 0 of 1 (could not tell: 1) with an exact" in text


def test_what_another_machine_trained_stays_in_the_file(tmp_path):
    here = {"git_commit": "0123456", "packages": {"trl": "1.16.0"}, "date": "2026-11-23"}
    row = {"arm": "exact", "seed": 3, "made_with": record.made_with({"environment": here})}
    file = tmp_path / "hacked.json"
    write_json(file, {"model": "smollm2", "steps": 30, "runs": [row]})
    known = record.stored_runs(file, {"model": "smollm2", "steps": 30}, "arm", "seed")
    assert hacked_rewards.rows_of(tmp_path / "no trainings here", "smollm2", known) == [row]
    with pytest.raises(RunError, match="runs with steps=30, not 24; give another --out"):
        record.stored_runs(file, {"model": "smollm2", "steps": 24}, "arm", "seed")


def test_stored_trials_are_what_the_workbench_says_now():
    stored = record.measured("reward_trials")["tools"][reward_trials.WORKBENCH]["rows"]
    functions = [one for one in (*reward_trials.FAULTS, *reward_trials.HEALTHY) if one.__name__ != "takes_seconds"]
    findings = {one.__name__: reward_trials.of_workbench(one) for one in functions}
    now = reward_trials.column_of(findings, reward_trials.WORKBENCH, "")["rows"]
    assert {name: row["verdict"] for name, row in now.items()} == {name: stored[name]["verdict"] for name in now}
    assert [one.__name__ for one in reward_trials.HEALTHY if reward_trials.alarms(now[one.__name__])] == []


def test_each_tool_was_asked_about_each_function():
    functions = {one.__name__ for one in (*reward_trials.FAULTS, *reward_trials.HEALTHY)}
    tools = record.measured("reward_trials")["tools"]
    assert list(tools) == [reward_trials.WORKBENCH, reward_trials.BEFORE, *reward_trials.OTHERS]
    assert all(column["rows"].keys() == functions for column in tools.values())
    same = [[row["findings"] for row in tools[tool]["rows"].values()] for tool in ("rewardlint", "reward-doctor")]
    assert same[0] == same[1]  # so the table has one of them
    assert reward_trials.NAMED.keys() == {one.__name__ for one in reward_trials.FAULTS}
