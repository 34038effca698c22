"""Asks `workbench reward` and other tools about reward functions with a known fault, and about healthy ones.

    python -m benchmarks.reward_trials [--python PATH] [--column NAME] [--out data/measured/reward_trials.json]

The functions are in `rewards_to_try.py`; they were fixed before a tool was asked, and the tools' own cases had not been read,
those of the workbench had. `--python` is the interpreter of an environment with reward-doctor, rewardlint, rewardprobe and
gradecheck (Python 3.12); without it their stored answers stay. `--column` stores the workbench's answers under another name:
*before* is the workbench of the commit that added the functions.

A finding counts only if the tool does not have it for a healthy function, too. A fault is *named* if one says what `NAMED` has
for it, *seen* if there are others alone. rewardprobe runs without the checks that need an API. gradecheck's attacks on
completions are called with a stand-in for the environment that it expects. rlgate 0.0.1 takes a repository with a patch and a
command that grades it: it cannot be asked about a function.
"""

import json
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.rewards_to_try import FAULTS, HEALTHY, ROWS, exact_in_tag
from tools.record import ROOT, about, csv_next_to_page, csv_text, made_with, measured, parser, run_main
from workbench.errors import RunError
from workbench.reward import try_reward
from workbench.runs.files import read_json, write_json

WORKBENCH, BEFORE = "workbench", "workbench, before"
IN_FORM = "reward-doctor, in the form"
OTHERS = ("reward-doctor", IN_FORM, "rewardlint", "rewardprobe", "gradecheck")
ALARMS = {"problem", "warning", "crash", "exploit", "critical", "fooled", "warn"}  # of any tool, by its own words
LIMIT = 300  # seconds for a function
CANNOT = "not answered"
NAMED: dict[str, dict[str, str]] = {  # function -> tool -> a pattern of the finding that says what is wrong
    "pays_for_nothing": {
        WORKBENCH: "pays for nothing|for white space",
        "reward-doctor": r"^x\.empty\.(blank|whitespace)",
        "rewardprobe": "^(empty|whitespace):",
        "gradecheck": "^empty-completion",
    },
    "answer_anywhere": {
        WORKBENCH: "pays for the right answer (first|within)",
        "reward-doctor": r"^(x\.(contradiction|negation)|ne\.substring)",
        "rewardprobe": "^answer_in_reasoning",
    },
    "format_alone": {
        WORKBENCH: "right or wrong$",
        "reward-doctor": r"^x\.format\.",
        "rewardprobe": "^format_only",
        "gradecheck": "^format-only",
    },
    "longer_is_better": {WORKBENCH: "long nonsense", "reward-doctor": r"^x\.padding", "rewardprobe": "long"},
    "each_repetition": {WORKBENCH: "pays more for the right answer 3 times"},
    "scores_the_prompt": {WORKBENCH: "scores the prompt", "reward-doctor": "prompt", "rewardprobe": "prompt"},
    "raises_on_nothing": {
        WORKBENCH: "raises IndexError.* nothing",
        "reward-doctor": r"^x\.empty.*IndexError",
        "rewardprobe": "^(empty|whitespace):.*crashed",
    },
    "nan_without_tag": {WORKBENCH: "returned nan", "reward-doctor": "nan", "rewardprobe": "nan"},
    "none_without_tag": {WORKBENCH: "gives None", "reward-doctor": "None", "rewardprobe": "None"},
    "too_few": {WORKBENCH: "returned 0 values", "reward-doctor": "returned 0 values", "rewardprobe": "0 values|length"},
    "draws_lots": {WORKBENCH: "asked twice", "rewardprobe": "^determinism"},
    "remembers_calls": {WORKBENCH: "asked twice", "rewardprobe": "^(determinism|stale_state)"},
    "takes_seconds": {WORKBENCH: "s for a completion", "rewardprobe": "slow|seconds"},
    "one_spelling": {
        WORKBENCH: "does not pay for .*commas",
        "reward-doctor": r"^eq\.int\.thousands",
        "rewardprobe": "^format_variation",
    },
    "the_copied_prompt": {
        WORKBENCH: "the prompt copied",
        "reward-doctor": r"^x\.echo",
        "rewardprobe": "^echo_prompt",
        "gradecheck": "^prompt-echo",
    },
    "against_its_batch": {WORKBENCH: "compares the completions", "rewardprobe": "^batch_"},
    "any_of_many": {WORKBENCH: "many guesses, each", "reward-doctor": r"^x\.shotgun", "rewardprobe": "^multiple_tags"},
    "wrong_sign": {
        WORKBENCH: "earns less than a wrong one",
        "reward-doctor": r"^eq\.int\.plain",
        "rewardprobe": "^(ground_truth|wrong_sign)",
        "gradecheck": "^baseline",
    },
    "nearly_is_enough": {WORKBENCH: "a number nearby", "reward-doctor": r"^ne\.off_by_one", "rewardprobe": "near"},
    "confident_words": {WORKBENCH: "praise of itself", "reward-doctor": r"^x\.judge", "gradecheck": "^flattery"},
}


def of_workbench(function: Callable) -> list[dict]:
    """Ask the workbench, as `workbench reward` does."""
    findings = try_reward(function, ROWS).findings
    return [{"id": finding.says, "severity": finding.severity, "says": finding.says} for finding in findings]


def of_other(python: Path, tool: str, name: str) -> tuple[str, list[dict] | None]:
    """Ask another tool in its own process; its version, and its findings or None."""
    command = [str(python), "-B", str(ROOT / "benchmarks" / "ask_reward_tools.py"), tool, name]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "", None
    if process.returncode:
        raise RunError(f"{tool}, {name}: {process.stderr.strip()[-300:]}; expected an environment that has the tool")
    answer = json.loads(process.stdout)
    return answer["version"], answer["findings"]


def judged(findings: list[dict] | None, healthy: set[str], pattern: str | None) -> dict:
    """Say whether findings name a fault, and with which words.

    Example:
        >>> empty = {"id": "empty", "severity": "critical", "says": "pays for an empty text"}
        >>> judged([empty], set(), "^empty")["verdict"], judged([empty], set(), None)["verdict"]
        ('named', 'seen')
        >>> judged([empty], {"empty"}, "^empty")["verdict"], judged(None, set(), None)["verdict"]
        ('silent', 'not answered')
    """
    if findings is None:
        return {"verdict": CANNOT, "says": f"no answer within {LIMIT} s", "findings": []}
    own = [finding for finding in findings if finding["id"] not in healthy]
    texts = [f"{one['id']}: {one['says']}" if one["id"] != one["says"] else one["says"] for one in own]
    says = [text for text in texts if pattern and re.search(pattern, text)]
    verdict = "named" if says else "seen" if own else "silent"
    ids = dict.fromkeys(f"{finding['severity']}: {finding['id']}" for finding in findings)
    return {"verdict": verdict, "says": (says or texts or [""])[0][:200], "findings": list(ids)}


def alarms(row: dict) -> int:
    """Count the kinds of findings that are an alarm in the tool's own words."""
    return sum(finding.partition(": ")[0] in ALARMS for finding in row["findings"])


def column_of(findings: dict[str, list[dict] | None], tool: str, version: str) -> dict:
    """Judge what a tool found in all functions."""
    healthy = {finding["id"] for finding in findings[exact_in_tag.__name__] or []}
    package = WORKBENCH if tool.startswith(WORKBENCH) else tool.partition(",")[0].replace("rewardlint", "reward-doctor")
    rows = {}
    for name, found in findings.items():
        rows[name] = judged(found, healthy, NAMED.get(name, {}).get(package))
    return {"version": version, "made": about(), "rows": rows}


# --- pages ------------------------------------------------------------------------------------------------------------


def counts(column: dict) -> tuple[int, int, int]:
    """Count the faults that a tool named, those that it named or saw, and the healthy functions with an alarm."""
    verdicts = [column["rows"][fault.__name__]["verdict"] for fault in FAULTS]
    false = sum(alarms(column["rows"][one.__name__]) > 0 for one in HEALTHY)
    return verdicts.count("named"), verdicts.count("named") + verdicts.count("seen"), false


def title(tool: str, column: dict) -> str:
    """Name a tool with its version.

    Example:
        >>> title("reward-doctor, in the form", {"version": "0.2.0"}), title("workbench, before", {"version": "0.2.0"})
        ('reward-doctor 0.2.0, in the form', 'workbench, before')
    """
    package, comma, rest = tool.partition(", ")
    return tool if package == WORKBENCH else f"{package} {column['version']}{comma}{rest}"


def functions_csv() -> str:
    """Make docs/evidence/reward_trials.csv: a row for each function, a column for each tool."""
    tools = {tool: column for tool, column in measured("reward_trials")["tools"].items() if tool != "rewardlint"}
    lines = []
    for fault, what in FAULTS.items():
        cells = [column["rows"][fault.__name__]["verdict"] for column in tools.values()]
        lines.append([f"`{fault.__name__}`", what, *cells])
    for one, what in HEALTHY.items():
        numbers = [alarms(column["rows"][one.__name__]) for column in tools.values()]
        lines.append([f"`{one.__name__}`", f"healthy: {what}", *(f"{n} alarms" if n else "silent" for n in numbers)])
    return csv_text(["function", "what is wrong with it", *(title(*item) for item in tools.items())], lines)


def page() -> list[str]:
    """Make the part of docs/evidence/false_alarms.md."""
    tools = measured("reward_trials")["tools"]
    ours, before = counts(tools[WORKBENCH]), counts(tools[BEFORE])
    others = {tool: counts(tools[tool]) for tool in (IN_FORM, "rewardprobe", "gradecheck")}
    says = [
        f"{tool.replace(', in the form', ' in tags')} {named} and {false}" for tool, (named, _, false) in others.items()
    ]
    return [
        "### Asked before a training",
        "",
        f"Of {len(FAULTS)} faulty reward functions, fixed before a tool was asked, `workbench reward` named {before[0]} and",
        f"alarmed on {before[2]} of {len(HEALTHY)} healthy ones; after changes that this led to, {ours[0]} and {ours[2]}.",
        f"Its cases had been known, the others' not: {', '.join(says)}.",
        "",
        *csv_next_to_page("reward_trials.csv"),
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the table."""
    by = "`python -m benchmarks.reward_trials --python PATH --out data/measured/reward_trials.json`"
    return [("asked rewards", by, made_with(measured("reward_trials")))]


def main() -> None:
    asked = parser(__doc__, python=Path(), column=WORKBENCH).parse_args()
    if asked.python != Path() and not asked.python.is_file():
        raise RunError(
            f"--python {asked.python}: no such file; expected the interpreter of an environment with the other tools"
        )
    functions = [*FAULTS, *HEALTHY]
    stored: dict[str, Any] = read_json(asked.out, {"tools": {}}) if asked.out else {"tools": {}}
    tools = stored["tools"]
    tools[asked.column] = column_of({one.__name__: of_workbench(one) for one in functions}, asked.column, "")
    if asked.python != Path():
        for tool in OTHERS:
            with ThreadPoolExecutor(3) as pool:
                answers = list(pool.map(lambda one, tool=tool: of_other(asked.python, tool, one.__name__), functions))
            findings = {one.__name__: found for one, (_, found) in zip(functions, answers, strict=True)}
            tools[tool] = column_of(findings, tool, answers[0][0])
    for tool, column in tools.items():
        named, seen, false = counts(column)
        print(
            f"{tool}: {named} of {len(FAULTS)} named, {seen} seen; an alarm on {false} of {len(HEALTHY)} healthy",
            flush=True,
        )
    if asked.out:
        order = [tool for tool in (WORKBENCH, BEFORE, *OTHERS) if tool in tools]
        write_json(asked.out, {"environment": about(), "tools": {tool: tools[tool] for tool in order}})


if __name__ == "__main__":
    run_main(main)
