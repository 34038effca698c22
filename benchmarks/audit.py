"""The audit and three other tools on `tests/audit/corpus/`: who names the cause, who cries wolf, whose advice would harm; and
what the audit costs.

    python -m benchmarks.audit [--seed N] [--out FILE.json] [--no-rivals]

rldoctor 0.2.0, rlprobe 0.1.0 and runmedic 0.1.1 are installed without dependencies into `$WORKBENCH_CACHE/rivals` on first
use. rldoctor and runmedic read the run's own file. rlprobe reads only recordings of its own, so each log is replayed through
its recorder, under the names of its own TRL integration. What counts as the right cause of theirs is in `RIGHT`, on the
generous side: symptoms that lead there. Costs are processor seconds of the whole command with one thread, median of 3.
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

from benchmarks.record import CACHE, ROOT, made_with, measured, parser, publish, table
from workbench.audit.report import audit_run

CORPUS = ROOT / "tests" / "audit" / "corpus"
PINS = ("rldoctor==0.2.0", "rlprobe==0.1.0", "runmedic==0.1.1")
TOOLS = ("workbench", "rldoctor", "rlprobe", "runmedic")
# A fault of the corpus -> the signatures that lead to it.
RIGHT = {
    "wrong-tag": "advantage_collapse plateau no_learning DEGENERATE_GROUPS ADV_COLLAPSE REWARD_STD_DEATH",
    "sparse-reward": "advantage_collapse gradient_pathology DEGENERATE_GROUPS ADV_COLLAPSE REWARD_STD_DEATH",
    "zero-std-batch": "advantage_collapse gradient_pathology DEGENERATE_GROUPS ADV_COLLAPSE GRAD_PATHOLOGY",
    "wrong-eos": "length_pathology TRUNCATION_STARVE",
    "limit-too-small": "length_pathology TRUNCATION_STARVE",
    "limit-below-all": "length_pathology TRUNCATION_STARVE",
    "rate-too-high": "gradient_pathology kl_drift GRAD_PATHOLOGY KL_BLOWUP divergence grad_spikes",
    "length-bias": "length_pathology REWARD_HACK_LENGTH TRUNCATION_STARVE",
    "noise-reward": "plateau no_learning",
}
# Runs whose rows all stopped: to mask them as truncated is what kills such a run, or has killed it.
ALL_STOPPED = ("masked-stop-string", "masked-stop-id", "stop-string", "stop-string-texts")
HARM = re.compile(r"(?<!not )mask(ing)? (truncated|them)|overlong filter", re.IGNORECASE)


# --- the three tools: (severity, name, advice) of each finding, main one first, or a text where the run cannot be read -------


def log_in(path: Path) -> Path:
    """The log itself: of a folder, which some of these tools do not read."""
    named = (path / name for name in ("trainer_state.json", "log.jsonl"))
    files = (p for p in path.glob("*") if p.is_file() and p.name != "source.json")
    others = sorted(files, key=lambda p: -p.stat().st_size)
    return path if path.is_file() else next((p for p in named if p.is_file()), others[0])


def ask(rivals: Path, *command: str) -> subprocess.CompletedProcess:
    """Run one of the tools."""
    env = os.environ | {"PYTHONPATH": str(rivals)}
    return subprocess.run([sys.executable, "-m", *command], env=env, capture_output=True, text=True)


def with_runmedic(path: Path, rivals: Path):
    done = ask(rivals, "runmedic", "diagnose", str(log_in(path)), "--json")
    try:
        found = [f for run in json.loads(done.stdout) for f in run["findings"]]
    except ValueError:
        return (done.stderr.strip().splitlines() or ["no answer"])[-1]
    order = {"critical": "problem", "warning": "warning"}
    return [(order[f["severity"]], f["check"], " ".join(f["fixes"])) for f in found if f["severity"] in order]


def with_rldoctor(path: Path, rivals: Path):
    done = ask(rivals, "rl_doctor.cli", "diagnose", str(log_in(path)), "-f", "json")
    if done.returncode == 2 or not done.stdout:
        return done.stderr.strip().splitlines()[-1]
    order = {"CRITICAL": "problem", "WARNING": "warning"}
    found = [f for f in json.loads(done.stdout)["findings"] if f["severity"] in order]
    found.sort(key=lambda f: (f["severity"] != "CRITICAL", f["detector"]))  # as its own report sorts them
    return [(order[f["severity"]], f["detector"], " ".join(f["prescription"])) for f in found]


def with_rlprobe(path: Path, rivals: Path):
    sys.path.append(str(rivals))
    from rlprobe.doctor import diagnose
    from rlprobe.integrations.trl import _map_logs
    from rlprobe.recorder.core import Recorder

    log = log_in(path)
    if log.name == "trainer_state.json":
        rows = json.loads(log.read_text())["log_history"]
    else:
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(Path(scratch) / "run", algorithm="grpo", capture_env=False)
        for row in rows:
            if "train_runtime" not in row:
                recorder.log_step(row["step"], **_map_logs({k: v for k, v in row.items() if k != "step"}))
        recorder.close()
        found = diagnose(Path(scratch) / "run")
    order = {"critical": "problem", "warn": "warning"}
    return [(order[f.severity], f.signature_id, " ".join(f.suggested_actions)) for f in found if f.severity in order]


RIVALS = {"rldoctor": with_rldoctor, "rlprobe": with_rlprobe, "runmedic": with_runmedic}


def install_rivals() -> Path:
    folder = CACHE / "rivals"
    if not (folder / "runmedic").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PINS]
        subprocess.run(pip, check=True)
    return folder


# --- the corpus -------------------------------------------------------------------------------------------------------------


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


def judge_theirs(name: str, known: dict, found) -> str:
    if known["rule"] is None:
        return ""
    if isinstance(found, str):
        return "cannot read"
    if not found:
        return "silent"
    first = [what for severity, what, _ in found if severity == found[0][0]]  # theirs have no order within a severity
    return "right" if set(first) & set(RIGHT.get(name, "").split()) else "another"


def on_corpus(rivals: Path | None, seed: int | None) -> list[dict]:
    """A row a run and tool."""
    rows = []
    for run, known in json.loads((CORPUS / "manifest.json").read_text()).items():
        name = run.rpartition("-")[0]
        if seed is not None and known["seed"] != seed:
            continue
        answers = {"workbench": judge_ours(CORPUS / run, known)}
        if rivals is not None:
            for tool, with_it in RIVALS.items():
                found = with_it(CORPUS / run, rivals)
                answers[tool] = (judge_theirs(name, known, found), found)
        for tool, (result, found) in answers.items():
            told = [] if isinstance(found, str) else found
            rows.append(
                {
                    "kind": name,
                    "seed": known["seed"],
                    "fault": known["rule"],
                    "about": known["about"],
                    "cannot tell": known["verdict"] == "cannot tell",
                    "tool": tool,
                    "result": result,
                    "problems": sum(severity == "problem" for severity, *_ in told),
                    "warnings": sum(severity == "warning" for severity, *_ in told),
                    "harm": name in ALL_STOPPED and any(HARM.search(advice) for *_, advice in told),
                    "found": found if isinstance(found, str) else [what for _, what, _ in told],
                }
            )
    return rows


def tables(rows: list[dict]) -> list[str]:
    """Return a Markdown table with a line a fault, and one of the sums."""
    tools = [tool for tool in TOOLS if any(row["tool"] == tool for row in rows)]
    faults = []
    for kind, about in {row["kind"]: row for row in rows if row["fault"]}.items():
        words = [
            dict.fromkeys(_word(row) for row in rows if (row["kind"], row["tool"]) == (kind, tool)) for tool in tools
        ]
        faults.append([f"`{kind}`: {about['about']}", *map(", ".join, words)])  # one word where the seeds agree

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
    sums = [[title, *counted(lambda row, is_=is_: row["result"] == is_, faulty)] for title, is_ in results.items()]
    sums += [
        ["healthy runs with a problem (CRITICAL)", *counted(lambda row: row["problems"] > 0, healthy)],
        ["healthy runs with a warning", *counted(lambda row: row["warnings"] > 0, healthy)],
        ["runs whose completions all stopped, advised to mask truncated ones",
         *counted(lambda row: row["harm"], lambda row: row["kind"] in ALL_STOPPED)],
    ]  # fmt: skip
    return [*table(["fault", *tools], faults), "", *table(["", *tools], sums)]


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
    """Make the part of docs/audit.md about the corpus, and what the audit costs."""
    result = measured("audit")
    costs = "; ".join(f"{name} {seconds:.1f} s" for name, seconds in result["seconds"].items())
    by = f"Made by `python -m benchmarks.audit --out data/measured/audit.json` ({made_with(result)})."
    return [
        *tables(result["runs"]),
        "",
        by,
        f"The audit of {costs}: processor seconds of the whole command, on one thread.",
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--no-rivals", action="store_true")
    options.add_argument("--seed", type=int, help="only the runs of this seed")
    asked = options.parse_args()
    rivals = None if asked.no_rivals else install_rivals()
    rows = on_corpus(rivals, asked.seed)
    print("\n".join(tables(rows)), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        took = costs(Path(scratch))
    print(took)
    publish({"seconds": took, "runs": rows}, asked.out, quietly=True)


if __name__ == "__main__":
    main()
