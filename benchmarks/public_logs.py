"""The audit and four other tools on other people's logs, each judged by hand before a tool ran.

    python -m benchmarks.public_logs FOLDER [--rivals FOLDER] [--out data/measured/public_logs.json]

FOLDER has `dev/` and `held/`, a folder a log in each, with the log and `source.json` (repo, path, commit), and `expected.json`:
what a right tool says of each log. The logs are other people's and stay there. `--rivals` has a virtual environment for each of
rldoctor, runmedic, rlwatch and trainproof, named after it; they read the files as they are. A cause counts as found at any
severity, and `SAME` says which of their names lead to ours, on the generous side.
"""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.record import csv_next_to_page, csv_text, made_with, measured, parser, publish, table
from workbench.audit.finding import FOUND
from workbench.audit.report import audit_run
from workbench.errors import WorkbenchError

HALVES = {"dev": "looked at", "held": "held back"}
TOOLS = ("workbench", "rldoctor", "runmedic", "trainproof", "rlwatch")
_SPIKES = "gradient_pathology kl_drift divergence grad_spikes loss_spikes TP-GRAD-SPIKE TP-DIVERGE"
SAME = {  # our rule -> the names of others that lead there
    "true-clipping": "length_pathology",
    "never-stops": "length_pathology",
    "reward-is-ending": "length_pathology",
    "zero-gradient": "advantage_collapse gradient_pathology TP-ZERO-LOSS-ONSET TP-DEAD-RUN",
    "wasted-groups": "advantage_collapse",
    "copies": "advantage_collapse",
    "no-learning": "plateau TP-DEAD-RUN",
    "solved": "plateau",
    "spikes": _SPIKES,
    "kl-runaway": _SPIKES,
}
# What one tool says of a log: names of what it found, those that it calls a problem; None where it did not read it.
Said = tuple[list[str], list[str]] | None


def ours(folder: Path) -> tuple[Said, str]:
    """What the audit says, and the verdict of `reward-is-ending`."""
    try:
        findings = [finding for run in audit_run(folder).runs for finding in run.findings]
    except WorkbenchError:
        return None, "not read"
    found = [finding for finding in findings if finding.verdict == FOUND]
    endings = [finding.verdict for finding in findings if finding.rule == "reward-is-ending"]
    names = sorted({finding.rule for finding in found})
    return (names, sorted({f.rule for f in found if f.is_problem})), FOUND if FOUND in endings else endings[0]


def _asked(rivals: Path, tool: str, *arguments: str) -> dict | list | None:
    command = [str(rivals / tool / "bin" / tool), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None


def rldoctor(log: Path, rivals: Path) -> Said:
    answer = _asked(rivals, "rldoctor", "diagnose", str(log), "-f", "json")
    known = {"reward_mean", "reward_std", "policy_loss", "response_len_mean", "zero_var_group_frac"}
    if not isinstance(answer, dict) or not known & set(answer["run"]["fields"]):
        return None
    found = [f for f in answer["findings"] if f["severity"] in ("CRITICAL", "WARNING")]
    return [f["detector"] for f in found], [f["detector"] for f in found if f["severity"] == "CRITICAL"]


def runmedic(log: Path, rivals: Path) -> Said:
    runs = _asked(rivals, "runmedic", "diagnose", str(log), "--json") or []
    series = {name.lower(): s["points"] for run in runs for name, s in run["series"].items()}
    if not any(points > 2 and any(w in name for w in ("reward", "score", "loss")) for name, points in series.items()):
        return None
    found = [f for run in runs for f in run["findings"] if f["severity"] in ("critical", "warning")]
    return [f["check"] for f in found], [f["check"] for f in found if f["severity"] == "critical"]


def trainproof(log: Path, rivals: Path) -> Said:
    answer = _asked(rivals, "trainproof", "doctor", str(log), "--json")
    reports = answer.get("reports", []) if isinstance(answer, dict) else []
    codes = [f["id"] for report in reports for f in report["findings"] if f["id"] not in ("TP-PASS", "TP-NO-LOSS")]
    if not reports or any(f["id"] == "TP-NO-LOSS" for report in reports for f in report["findings"]):
        return None
    return codes, codes if any(report["verdict"] == "FAIL" for report in reports) else []


def rlwatch(log: Path, rivals: Path) -> Said:
    """It opens a database that its own recorder wrote, and nothing else."""
    answer = _asked(rivals, "rlwatch", "diagnose", "--log-dir", str(log.parent), "--format", "json")
    return None if answer is None else ([], [])


RIVALS = {"rldoctor": rldoctor, "runmedic": runmedic, "trainproof": trainproof, "rlwatch": rlwatch}


def judged(said: Said, want: dict, names: dict[str, str] | None) -> str:
    """`right`, `missed`, `false problem`, `wrong finding` or `not read`; `names` are a rival's for each rule of ours."""
    if said is None:
        return "right" if not want["readable"] else "not read"
    if not want["readable"]:
        return "read, and no log of RL"
    found, problems = set(said[0]), said[1]
    asked = [*([n] for n in want["must_find"]), *([want["any_of"]] if want["any_of"] else [])]
    if names is None and found & set(want["must_not_find"]):
        return "wrong finding"
    for causes in asked:
        wanted = set(causes) if names is None else {n for cause in causes for n in names.get(cause, "").split()}
        if not found & wanted:
            return "missed"
    return "false problem" if problems and not asked else "right"


def rows(folder: Path, rivals: Path | None) -> list[dict]:
    """A row a log."""
    found = []
    for half in HALVES:
        for name, want in sorted(json.loads((folder / half / "expected.json").read_text()).items()):
            place = folder / half / name
            source = json.loads((place / "source.json").read_text())
            log = max((p for p in place.iterdir() if p.name != "source.json"), key=lambda p: p.stat().st_size)
            said, ending = ours(place)
            row = {"name": name, "half": half, **{k: source[k] for k in ("repo", "path", "commit")}}
            row |= {"judgement": want["judgement"], "readable": want["readable"], "ending": ending}
            row |= {
                "fault": bool(want["must_find"] or want["any_of"]),
                "known": bool(said) and "documented-run" in said[0],
            }
            row["found"] = said[0] if said else []
            row["workbench"] = judged(said, want, None)
            row |= {tool: judged(with_it(log, rivals), want, SAME) for tool, with_it in RIVALS.items() if rivals}
            found.append(row)
            print(name, {tool: row.get(tool) for tool in TOOLS}, flush=True)
    return found


def _counts(rows: Iterable[dict], tool: str) -> list[str]:
    logs = [row for row in rows if row["readable"]]
    faults, others = [r for r in logs if r["fault"]], [r for r in logs if not r["fault"]]
    counted = ((logs, lambda r: r[tool] != "not read"), (faults, lambda r: r[tool] == "right"))
    counted = (*counted, (others, lambda r: r[tool] in ("false problem", "wrong finding")))
    return [f"{sum(map(is_one, of))} of {len(of)}" for of, is_one in counted]


def held_back() -> str:
    """Say what the audit found in the half that the rules had not seen."""
    logs = measured("public_logs")["logs"]
    new = [row for row in logs if not row["known"] and row["half"] == "held"]
    read, causes, false = _counts(new, "workbench")
    where = f"[{len(logs)} public logs](#logs-that-nobody-had-looked-at), of which half was held back"
    return f"{where}: the cause found in {causes} faulty or flat logs, a false finding in {false} others, {read} read"


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the results."""
    by = "`python -m benchmarks.public_logs FOLDER --rivals FOLDER`"
    gone = "`git show d662082:benchmarks/verdicts/audit.py`, `--public FOLDER`, gone"
    return [
        ("46 public logs", by, made_with(measured("public_logs"))),
        ("43 public logs", gone, "commit 8959924, 2026-11-22, workbench 0.1.0"),
    ]


def logs_csv() -> str:
    """Make public_logs.csv: our judgement of each log, and what the audit finds."""
    lines = []
    for row in measured("public_logs")["logs"]:
        half = HALVES[row["half"]] + (", known" if row["known"] else "")
        rules = "" if row["workbench"] == "not read" else ", ".join(row["found"]) or "nothing"
        place = [f"`{row['repo']}`", f"`{row['path']}`", f"`{row['commit'][:7]}`"]
        lines.append([*place, half, row["judgement"], rules, row["workbench"]])
    head = ["repository", "file", "commit", "half", "our judgement, before any tool ran", "the audit finds", "verdict"]
    return csv_text(head, lines)


def page() -> list[str]:
    """Make the part of docs/evidence/audit.md about these logs."""
    result = measured("public_logs")
    new = [row for row in result["logs"] if not row["known"]]
    halves = [[row for row in new if row["half"] == half] for half in HALVES]
    heads = [f"workbench, {len(half)} {words}" for half, words in zip(halves, HALVES.values(), strict=True)]
    columns = [_counts(half, "workbench") for half in halves] + [_counts(new, tool) for tool in TOOLS]
    names = ("read", "faulty or flat: the cause among what is found", "others: a false problem or a wrong finding")
    endings = [row["ending"] for row in new if row["readable"]]
    fired = [f"{row['repo']} `{row['path']}`" for row in new if row["ending"] == FOUND]
    known = len(result["logs"]) - len(new)
    notebooks = sum(row["path"].endswith(".ipynb") and row["readable"] for row in new)
    counts = [[name, *column] for name, *column in zip(names, *columns, strict=True)]
    return [
        *table(["", *heads, *(f"{tool}, all {len(new)}" for tool in TOOLS)], counts),
        "",
        f"{known} more logs turned out to be copies of documented runs, which the rules had seen: *known*; no count has them.",
        f"{notebooks} of the {len(endings)} that can be read are notebooks; of the other tools runmedic alone reads one.",
        f"Of the {len(endings)} logs `reward-is-ending` is found in {len(fired)} ({', '.join(fired)}) and not found in",
        f"{endings.count('not found')}. {endings.count('not read')} were not read; {endings.count('cannot tell')} log no",
        "truncated share, or fewer than 12 steps of it.",
        "",
        *csv_next_to_page("public_logs.csv"),
    ]  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--rivals", type=Path)
    asked = options.parse_args()
    publish({"logs": rows(asked.folder, asked.rivals)}, asked.out, quietly=True)


if __name__ == "__main__":
    main()
