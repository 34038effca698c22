"""Write docs/reference/rules.md from the rules of the audit and from what they find in logs: `python -m tools.rules`."""

import inspect
import json
import re
import tempfile
from functools import cache
from pathlib import Path

import pandas as pd

from workbench.audit.check import RULES
from workbench.audit.finding import FOUND, Finding
from workbench.audit.report import audit_run, paragraph
from workbench.audit.rule import Rule
from workbench.curves.documented import load_baseline

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "audit" / "corpus"
PAGE = ROOT / "docs" / "reference" / "rules.md"
START = """# The rules of the audit

For each rule: its question, an example, how it is computed, and when it is wrong. The examples are the findings in real runs
of `tests/audit/corpus/`, and in a few places in made-up logs. `python -m tools.rules` writes this page.

If a finding shows that a metric is wrong, no later rule uses the metric. If one finding explains another, the report says so.
What severities and exit codes mean: [the audit](audit.md). How far to trust the rules: [evidence](../evidence/audit.md). To add
one: [write a rule](../how-to/audit_a_log.md#write-a-rule).

| rule | question |
|---|---|
"""
STEPS = range(1, 61)
PUBLISHED = [y for y in load_baseline("unsloth-llama3.1-8b-gsm8k-grpo").curve().y for _ in range(5)]  # means of 5 steps
# What no run of the corpus shows: log -> its columns.
MADE_UP = {
    "a reward that somebody has published": {"reward": PUBLISHED},
    "a gradient norm of 900 in step 31": {"grad_norm": [900.0 if n == 31 else 0.4 + 0.1 * (n % 2) for n in STEPS]},
    "bf16 weights at a rate of 1e-6": {
        "update/moved": [0.006 + 0.0001 * (n % 5) for n in STEPS],
        "learning_rate": [1e-6 for _ in STEPS],
        "reward": [0.5 + 0.02 * (n % 3) for n in STEPS],
    },
    "a KL that grows to 3 nats": {
        "reward": [0.5 + 0.02 * (n % 3) for n in STEPS],
        "kl": [(n / 60) ** 2 * 3 for n in STEPS],
    },
    "format rises as much as correctness falls": {
        "rewards/format/mean": [0.2 + 0.4 * n / 60 + 0.02 * (n % 3) for n in STEPS],
        "rewards/correctness/mean": [0.7 - 0.4 * n / 60 + 0.03 * (n * n % 7) for n in STEPS],
        "reward": [0.9 + 0.02 * (n % 3) + 0.03 * (n * n % 7) for n in STEPS],
    },
    "whatever ends before the limit is right": {
        "completions/clipped_ratio": [0.2 + 0.05 * (n * n % 7) for n in STEPS],
        "reward": [0.8 - 0.05 * (n * n % 7) for n in STEPS],
    },
    "62% of the calls of tools fail": {
        "reward": [0.06 + 0.02 * (n % 3) for n in STEPS],
        "tools/call_frequency": [1.8 for _ in STEPS],
        "tools/failure_frequency": [0.61 + 0.01 * (n % 3) for n in STEPS],
    },
    "one of two reward functions always gives 0": {
        "rewards/match/mean": [0.0 for _ in STEPS],
        "rewards/format/mean": [n / 60 for n in STEPS],
    },
}


@cache
def examples() -> dict[str, tuple[str, Finding]]:
    """Rule -> a log, in words, and what is found in it: in the run of the corpus that was made for it, or in another log."""
    made_for_it: dict[str, tuple[str, Finding]] = {}
    others: dict[str, tuple[str, Finding]] = {}
    for name, known in json.loads((CORPUS / "manifest.json").read_text()).items():
        if not known["seed"]:
            (run,) = audit_run(CORPUS / name, **known["given"]).runs
            for finding in run.findings:
                about = f"**A real log**, `{name}`: {known['about']}."
                if finding.verdict == FOUND and finding.rule == known["rule"]:
                    made_for_it.setdefault(finding.rule, (about, finding))
                elif finding.verdict == FOUND and not finding.follows_from:
                    others.setdefault(finding.rule, (about, finding))
    with tempfile.TemporaryDirectory() as folder:
        for about, columns in MADE_UP.items():
            rows = pd.DataFrame({"reward": 0.5} | columns)
            rows.set_index(rows.index + 1).rename_axis("step").to_csv(Path(folder, "history.csv"))
            (run,) = audit_run(Path(folder, "history.csv")).runs
            for finding in run.findings:
                if finding.verdict == FOUND:
                    others.setdefault(finding.rule, (f"**A made-up log**: {about}.", finding))
    return others | made_for_it


def question(rule: Rule) -> str:
    """The first paragraph of a rule's docstring."""
    return " ".join(inspect.getdoc(rule.function).partition("\n\n")[0].split())


def section(rule: Rule) -> str:
    """The part of the page about one rule."""
    how, _, wrong = inspect.getdoc(rule.function).partition("\n\n")[2].partition("Wrong where: ")
    how = re.sub("^How: ", "", how.strip())
    if rule.name not in examples():
        raise LookupError(
            f"{rule.name}: no log shows it; add one to MADE_UP in tools/rules.py, or to tests/audit/corpus/"
        )
    about, finding = examples()[rule.name]
    parts = [f"## {rule.name}\n", f"{question(rule)}\n", f"{about}\n"]
    parts += ["```text", *paragraph(finding, width=84), "```\n"]
    needs = re.sub("--[a-z]+", r"`\g<0>`", rule.needs)
    parts += [f"**Needs** {needs}.\n"] * bool(needs)
    parts += [
        f"**How it is computed.** {how[:1].upper() + how[1:]}\n",
        f"**When it is wrong.** Where {wrong.strip()}\n",
    ]
    return "\n".join(parts)


def page() -> str:
    """The whole page."""
    rows = [f"| [{rule.name}](#{rule.name}) | {question(rule)} |\n" for rule in RULES]
    return "".join([START, *rows, "\n", "\n".join(map(section, RULES))])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
