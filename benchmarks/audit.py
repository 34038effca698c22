"""The audit on `tests/audit/corpus/`: does it name the cause, does it cry wolf, would its advice harm; and what it costs.

    python -m benchmarks.audit [--seed N] [--out data/measured/audit.json]

The answers of three other tools (rldoctor 0.2.0, rlprobe 0.1.0, runmedic 0.1.1) are stored; the program that asked them is gone
(`git show ebfce180:benchmarks/audit.py`). Costs are processor seconds of the whole command with one thread, median of 3.
"""

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from tools.record import ROOT, csv_next_to_page, csv_text, made_with, measured, parser, publish, table
from workbench.audit.report import audit_run

CORPUS = ROOT / "tests" / "audit" / "corpus"
TOOLS = ("workbench", "rldoctor", "rlprobe", "runmedic")
# Runs whose rows all stopped: to mask them as truncated is what kills such a run, or has killed it.
ALL_STOPPED = ("masked-stop-string", "masked-stop-id", "stop-string", "stop-string-texts")
HARM = re.compile(r"(?<!not )mask(ing)? (truncated|them)|overlong filter", re.IGNORECASE)


def judge_ours(path: Path, known: dict) -> tuple[str, list]:
    """`right`, `another`, `silent` or `cannot tell`, and what was found."""
    (run,) = audit_run(path, **known["given"]).runs
    verdicts = {finding.rule: finding for finding in run.findings}
    found = [f for f in run.findings if f.verdict == "found" and f.severity != "note"]
    shown = [(f.severity, f.rule + (f" ({f.cause})" if f.cause else ""), f.advice) for f in found]
    if known["rule"] is None:
        return "", shown
    if known["verdict"] == "cannot tell":  # that, and no other cause than what the data show
        open_ = verdicts[known["rule"]].verdict == "cannot tell"
        return ("right" if open_ and set(run.problems) <= set(known["also"]) else "another"), shown
    main = found[0] if found else None
    if main is None:
        return ("cannot tell" if verdicts[known["rule"]].verdict == "cannot tell" else "silent"), shown
    named = main.rule == known["rule"] and known["cause"] in ("", main.cause)
    return ("right" if named or main.rule in known["also"] else "another"), shown


def on_corpus(seed: int | None) -> list[dict]:
    """A row a run."""
    rows = []
    for run, known in json.loads((CORPUS / "manifest.json").read_text()).items():
        if seed is not None and known["seed"] != seed:
            continue
        name, (result, found) = run.rpartition("-")[0], judge_ours(CORPUS / run, known)
        rows.append(
            {
                "kind": name,
                "seed": known["seed"],
                "fault": known["rule"],
                "about": known["about"],
                "cannot tell": known["verdict"] == "cannot tell",
                "tool": "workbench",
                "result": result,
                "problems": sum(severity == "problem" for severity, *_ in found),
                "warnings": sum(severity == "warning" for severity, *_ in found),
                "harm": name in ALL_STOPPED and any(HARM.search(advice) for *_, advice in found),
                "found": [what for _, what, _ in found],
            }
        )
    return rows


_OLDER, _RULES = "commit 8959924, 2026-11-22, workbench 0.1.0", "the rules alone, commit 4dc5d1e, 2026-11-25"
_LOAD = "commit dac016c, 2026-11-27"
ONCE = [  # inputs that were measured once, on two busy cores
    ["1 GB of console output of TRL, 647,503 steps", "26 s, 0.42 GB of memory", _LOAD],
    ["a notebook of 500 MB", "refused after 2 s", _OLDER],
    ["a `.gz` that unpacks to 3 GB", "refused after 4 s", _OLDER],
    ["1 GB of JSON lines in TRL's form, 1,307,263 steps", "31 s, 0.98 GB of memory", _RULES],
    ["1 GB of JSON lines, 1,000 steps between lines of 20 to 60 MB", "2 s, 0.20 GB of memory", _RULES],
    ["pages of 100, 300 and 1,000 runs, 400 completions each", "9, 23 and 75 s, 0.17 GB of memory", _LOAD],
]


def faults_csv() -> str:
    """Make audit_corpus.csv: what each tool says of each fault; one word where the seeds agree."""
    rows = measured("audit")["runs"]
    tools = _tools(rows)
    return csv_text(["run", "fault", *tools], fault_rows(rows, tools))


def fault_rows(rows: list[dict], tools: list[str]) -> list[list[str]]:
    """Return a row for each fault: its name, what it is, and what each tool says."""
    faults = []
    for kind, about in {row["kind"]: row for row in rows if row["fault"]}.items():
        words = [
            dict.fromkeys(_word(row) for row in rows if (row["kind"], row["tool"]) == (kind, tool)) for tool in tools
        ]
        faults.append([f"`{kind}`", about["about"], *map(", ".join, words)])
    return faults


def _tools(rows: list[dict]) -> list[str]:
    return [tool for tool in TOOLS if any(row["tool"] == tool for row in rows)]


def sums(rows: list[dict]) -> list[str]:
    """Return a Markdown table of how many runs have which result, by tool; a result that no faulty run has is left out."""
    tools = _tools(rows)

    def counted(wanted: Callable[[dict], bool], of: Callable[[dict], bool]) -> list[str]:
        by_tool = [[row for row in rows if row["tool"] == tool and of(row)] for tool in tools]
        return [f"{sum(map(wanted, found))} of {len(found)}" for found in by_tool]

    results = {
        "faulty runs: the right cause first": "right",
        "another cause first": "another",
        "silent": "silent",
        "cannot tell, though the data show it": "cannot tell",
        "cannot read the log": "cannot read",
    }
    faulty, healthy = (lambda row: bool(row["fault"])), (lambda row: not row["fault"])
    lines = [[title, *counted(lambda row, is_=is_: row["result"] == is_, faulty)] for title, is_ in results.items()]
    lines = [line for line in lines if any(not cell.startswith("0 ") for cell in line[1:])]
    lines += [
        ["healthy runs with a problem (CRITICAL)", *counted(lambda row: row["problems"] > 0, healthy)],
        ["healthy runs with a warning", *counted(lambda row: row["warnings"] > 0, healthy)],
        ["runs whose completions all stopped, advised to mask truncated ones",
         *counted(lambda row: row["harm"], lambda row: row["kind"] in ALL_STOPPED)],
    ]  # fmt: skip
    return table(["", *tools], lines)


def _word(row: dict) -> str:
    as_it_is = row["cannot tell"] and row["tool"] == "workbench" and row["result"] == "right"
    return "right: cannot tell" if as_it_is else row["result"]


# --- what it costs ------------------------------------------------------------------------------------------------------------


def costs(folder: Path) -> dict[str, float]:
    """Processor seconds of `workbench audit` on 5,000 steps, and on 100,000 completions of 1,000 steps."""
    source = json.loads((CORPUS / "plain-0" / "trainer_state.json").read_text())["log_history"]
    rows = [row for row in source if "train_runtime" not in row]
    made = {}
    for name, steps in (("5,000 steps", 5000), ("100,000 completions", 1000)):
        made[name] = folder / name
        made[name].mkdir(parents=True)
        history = [rows[n % len(rows)] | {"step": n + 1} for n in range(steps)]
        (made[name] / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    parts = made["100,000 completions"] / "completions"
    parts.mkdir()
    for step in range(1, 1001):
        texts = [f"completion {step} {n} " + "word " * 60 for n in range(100)]
        prompts = [f"prompt {step} {n // 10} " + "word " * 40 for n in range(100)]
        table = {"step": step, "prompt": prompts, "completion": texts, "match": [float(n % 3 == 0) for n in range(100)]}
        pd.DataFrame(table).to_parquet(parts / f"completions_{step:05d}.parquet")
    return {name: statistics.median(_seconds(path) for _ in range(3)) for name, path in made.items()}


def _seconds(path: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    one = dict.fromkeys(("OMP_NUM_THREADS", "ARROW_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "workbench", "audit", str(path)]
    subprocess.run(command, env=os.environ | one, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def page() -> list[str]:
    """Make the part of docs/evidence/audit_corpus.md about the runs."""
    return [*sums(measured("audit")["runs"]), "", *csv_next_to_page("audit_corpus.csv")]


def costs_table() -> list[str]:
    """Make the table of what the audit costs: the stored seconds, and inputs that were measured once."""
    result = measured("audit")
    rows = [[name, f"{seconds:.1f} s", made_with(result)] for name, seconds in result["seconds"].items()]
    return table(["input", "cost", "measured with"], [*rows, *ONCE])


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the results on the corpus."""
    result = measured("audit")
    gone = "`git show ebfce180:benchmarks/audit.py`, gone"
    return [
        ("96 runs, the audit", "`python -m benchmarks.audit --out data/measured/audit.json`", made_with(result)),
        ("96 runs, the other tools", gone, made_with(_of_others(result))),
        ("96 runs, their trainings", "`git show ebfce180:tests/audit/make_corpus.py`, gone", "TRL 1.12.0 and 1.16.0"),
    ]


def _of_others(result: dict) -> dict:
    """What the answers of the other tools were made with."""
    return {"environment": result.get("others") or result["environment"]}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seed", type=int, help="only the runs of this seed")
    asked = options.parse_args()
    known = measured("audit")
    rows = on_corpus(asked.seed)
    rows += [row for row in known["runs"] if row["tool"] != "workbench" and asked.seed in (None, row["seed"])]
    tools = _tools(rows)
    print("\n".join([*table(["run", "fault", *tools], fault_rows(rows, tools)), *sums(rows)]), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        took = costs(Path(scratch))
    print(took)
    publish({"seconds": took, "runs": rows, "others": _of_others(known)["environment"]}, asked.out, quietly=True)


if __name__ == "__main__":
    main()
