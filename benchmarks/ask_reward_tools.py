"""Asks another tool about one function of `rewards_to_try.py`, in the environment that has the tool; prints JSON.

    PYTHON benchmarks/ask_reward_tools.py TOOL FUNCTION

`reward_trials.py` starts it once for each tool and function. It needs the tool and the standard library alone.
"""

import dataclasses
import importlib
import importlib.metadata
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import rewards_to_try

FORMS = {
    "exact_in_box": "\\boxed{{{}}}",
    "after_four_hashes": "#### {}",
}  # how a right answer is written for a function
IN_TAGS = "<answer>{}</answer>"


def of_reward_doctor(name, function, form, *, in_form):
    """Ask reward-doctor or rewardlint; `in_form` puts its bare answers into the form that the function reads."""
    tool = importlib.import_module(name)
    cases = importlib.import_module(f"{name}.corpus").load(include_contested=False)
    if in_form:
        bare = ("equivalence", "distinction")
        cases = [
            dataclasses.replace(case, completion=form.format(case.completion)) if case.category in bare else case
            for case in cases
        ]
    report = tool.audit(function, cases=cases)
    if report.is_graded:  # its note on such functions says to run again with a threshold
        report = tool.audit(function, cases=cases, threshold=0.5)
    return [
        {
            "id": outcome.case.id,
            "severity": "crash" if outcome.error else outcome.case.category,
            "says": outcome.error or f"{outcome.failure_mode}: {outcome.case.why}",
        }
        for outcome in report.outcomes
        if not outcome.passed
    ]


def of_rewardprobe(function):
    """Ask rewardprobe's checks that need no model behind an API."""
    from rewardprobe import Probe

    report = Probe().test_fn(function, rewards_to_try.ROWS)
    return [
        {"id": finding.attack, "severity": finding.severity.value, "says": finding.recommendation}
        for finding in report.findings
    ]


class Environment:
    """What gradecheck's attacks ask of an environment of the library verifiers, for one function."""

    pass_threshold = 0.5

    def __init__(self, function, form):
        from gradecheck.verifiers_env import Example

        self.function = function
        self.form = form
        self.examples = [
            Example(place, row["prompt"], row["answer"], {}, row, row["prompt"])
            for place, row in enumerate(rewards_to_try.ROWS)
        ]

    def format_payload(self, text):
        return self.form.format(text)

    def formatted_gold(self, answer):
        return self.form.format(answer)

    def score(self, example, text):
        try:  # as gradecheck does: a function that raises scores 0
            return float(self.function([text], answer=[example.answer], prompts=[example.prompt])[0])
        except Exception:
            return 0.0

    def solved(self, reward):
        return reward >= self.pass_threshold


def of_gradecheck(function, form):
    """Ask gradecheck's attacks on completions."""
    from gradecheck.completion_attacks import run_all

    every = f"{len(rewards_to_try.ROWS)}/{len(rewards_to_try.ROWS)}"
    findings = run_all(Environment(function, form))
    return [
        {"id": finding.attack, "severity": finding.verdict, "says": finding.summary}
        for finding in findings
        if finding.verdict != "resisted" and not (finding.attack == "baseline" and every in finding.summary)
    ]


def main() -> None:
    tool, name = sys.argv[1:]
    function = getattr(rewards_to_try, name)
    form = FORMS.get(name, IN_TAGS)
    package, _, in_form = tool.partition(", ")
    if package in ("reward-doctor", "rewardlint"):
        findings = of_reward_doctor(package.replace("-", "_"), function, form, in_form=bool(in_form))
    elif package == "rewardprobe":
        findings = of_rewardprobe(function)
    else:
        findings = of_gradecheck(function, form)
    print(json.dumps({"version": importlib.metadata.version(package), "findings": findings}))


if __name__ == "__main__":
    main()
