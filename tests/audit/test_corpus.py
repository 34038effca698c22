"""Real runs of stock TRL, each with one known fault or none, see corpus/README.md; and documented runs of other people."""

import json
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from workbench.audit.report import audit_run
from workbench.extras import packaged

CORPUS = Path(__file__).parent / "corpus"
MANIFEST = json.loads((CORPUS / "manifest.json").read_text())
FAULTY = [name for name, known in MANIFEST.items() if known["rule"]]
HEALTHY = [name for name, known in MANIFEST.items() if not known["rule"]]
# The faults that the log of the run cannot show, so that any cause would be a guess.
HIDDEN = [name for name in FAULTY if MANIFEST[name]["verdict"] == "cannot tell"]
SHOWN = [name for name in FAULTY if name not in HIDDEN]


@cache
def audited(name):
    (run,) = audit_run(CORPUS / name, **MANIFEST[name]["given"]).runs
    return run, {finding.rule: finding for finding in run.findings}


def test_the_corpus_is_whole():
    assert set(MANIFEST) == {path.name for path in CORPUS.iterdir() if path.is_dir()}
    assert len({name[:-2] for name in FAULTY}) >= 14 and len({name[:-2] for name in HEALTHY}) >= 8
    assert {known["seed"] for known in MANIFEST.values()} == {0, 1}
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert {path.suffix for path in files} == {".json", ".jsonl", ".parquet", ".md"}


@pytest.mark.parametrize("name", SHOWN)
def test_a_fault_is_the_first_thing_that_is_named(name):
    known, (run, _) = MANIFEST[name], audited(name)
    main = next(f for f in run.findings if f.verdict == "found" and f.severity != "note")
    assert main.rule in (known["rule"], *known["also"])
    assert main.rule != known["rule"] or known["cause"] in ("", main.cause)
    assert main.says and main.advice and main.follows_from is None


@pytest.mark.parametrize("name", HIDDEN)
def test_a_fault_the_log_cannot_show_is_open_with_no_wrong_cause(name):
    known, (run, findings) = MANIFEST[name], audited(name)
    assert findings[known["rule"]].verdict == "cannot tell"
    assert findings[known["rule"]].advice
    assert set(run.problems) <= set(known["also"])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_problem(name):
    assert audited(name)[0].problems == []


@pytest.mark.parametrize("name", ["masked-stop-string-0", "stop-string-0", "stop-string-texts-1"])
def test_nobody_whose_rows_stopped_is_told_to_mask_them(name):
    found = [f for f in audited(name)[0].findings if f.verdict == "found"]
    assert any(f.rule == "false-clipping" and f.advice.startswith("Do not mask") for f in found)
    assert not any(f.rule in ("true-clipping", "never-stops", "collapse") and not f.follows_from for f in found)


# --- runs that other people have documented ----------------------------------------------------------------------------------


def as_csv(curves, path):
    table = pd.DataFrame({name: dict(curve["points"]) for name, curve in curves.items()})
    table.rename_axis("step").to_csv(path)


DOCUMENTED = {
    "rasbt-qwen3-0.6b-math-grpo-no-kl": ["collapse", "length-runaway"],  # as its source says
    "trl-5697-deepmath-grpo": ["no-learning"],  # reward 0 in all steps that were posted
    "rasbt-qwen3-0.6b-math-grpo-kl": ["no-learning"],  # reward 0 in each of the last 49 of 56 steps
    "jianghoucheng-opd": [
        "collapse",
        "no-learning",
    ],  # one token each, and the lowest reward there is, from the fifth step on
    "workbench-smollm2-stops-number-words-stock-trl-masked": ["zero-gradient"],  # masked stops, see notebook 02
    "workbench-smollm2-stops-sums-stock-trl-masked": ["zero-gradient"],
    "workbench-smollm2-duplicates-different-stock-trl-seed": [
        "zero-gradient"
    ],  # one completion a group, see notebook 04
}


@pytest.mark.parametrize("path", sorted((packaged("data") / "baselines").glob("*.json")), ids=lambda path: path.stem)
def test_documented_runs_have_exactly_their_sources_problems(path, tmp_path):
    curves = json.loads(path.read_text())["curves"]
    if "reward" not in curves:
        pytest.skip("no curve of its reward is published")
    as_csv(curves, tmp_path / "history.csv")
    assert audit_run(tmp_path / "history.csv").problems == DOCUMENTED.get(path.stem, [])


def test_the_limit_of_a_documented_run_tells_why_its_reward_is_0(tmp_path):
    documented = json.loads((packaged("data") / "baselines" / "trl-5697-deepmath-grpo.json").read_text())
    as_csv(documented["curves"], tmp_path / "history.csv")
    (run,) = audit_run(tmp_path / "history.csv", limit=256).runs
    assert run.problems[0] == "never-stops"
    assert next(f for f in run.findings if f.rule == "no-learning").follows_from == "true-clipping"
