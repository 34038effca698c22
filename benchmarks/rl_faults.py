"""RL-Faults: logs of RL trainings whose faults are known, and what any tool that reads logs makes of them.

    python -m benchmarks.rl_faults 'COMMAND' [--form line | audit] [--public FOLDER] [--only NAME ...] [--out FILE]
    python -m benchmarks.rl_faults 'python -m workbench audit --json' --form audit
    python -m benchmarks.rl_faults --causes      # the names of causes, a line each

COMMAND is called once for each log, with the log's path as its last argument: a file, or for a planted run the output folder of
TRL. The last line of its output that is not empty is its answer, a JSON object:

    {"verdict": "problem", "causes": ["masked-stops", "zero-gradient"]}

- `verdict`: `problem` (an alarm), `no problem`, or `not read` (no log of an RL training is in it);
- `causes`: everything that it names, the most important first, also what is no alarm. Names are those of `--causes`.

`--form audit` reads the lines of `workbench audit --json` in its place, see `from_audit`. Anything else is no answer, and no
answer is never right. What is right:

- a planted fault: the first cause is the one that was planted, or one of the others that its label accepts;
- a planted fault that the log cannot show: no problem, or one that its label accepts comes first;
- a public log with a fault: the causes have all of `all_of`, one of `any_of`, and none of `none_of`;
- a log without a fault: read, no problem, and no cause of `none_of`;
- a file that holds no RL training: `not read`.

A tool that names every cause finds every public fault, and `none_of` counts against it. `data/rl_faults/README.md` says where
the logs come from.
"""

import dataclasses
import hashlib
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools.record import ROOT, parser, publish, run_main, table
from workbench.audit.check import RULES
from workbench.errors import ParameterError

PUBLIC = ROOT / "data" / "rl_faults"
PLANTED = ROOT / "tests" / "audit" / "corpus"
VERDICTS = PROBLEM, NO_PROBLEM, NOT_READ = "problem", "no problem", "not read"
CAUSES = tuple(rule.name for rule in RULES)
_PATIENCE_S = 600  # of one log
_UNUSABLE = 2  # exit code of `workbench audit` for what holds no log


@dataclasses.dataclass(frozen=True)
class Answer:
    """One tool's answer for one log.

    Attributes:
        verdict: one of `VERDICTS`.
        causes: names from `CAUSES`, the most important first.
    """

    verdict: str
    causes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Label:
    """A log and what a right answer for it is.

    Attributes:
        part: `planted` or `public`.
        name: of the log.
        path: the file or folder that a tool is given.
        kind: `fault`, `hidden` (a fault that the log cannot show), `none` (no fault) or `no log`.
        first: causes of which one has to come first, for planted faults.
        all_of: causes that all have to be named.
        any_of: causes of which one has to be named.
        none_of: causes that are wrong.
    """

    part: str
    name: str
    path: Path
    kind: str
    first: frozenset[str] = frozenset()
    all_of: frozenset[str] = frozenset()
    any_of: frozenset[str] = frozenset()
    none_of: frozenset[str] = frozenset()


# --- labels -------------------------------------------------------------------------------------------------------------


def planted() -> Iterator[Label]:
    """The runs of `tests/audit/corpus`, without those whose log needs a documented run or a setting next to it."""
    manifest = json.loads((PLANTED / "manifest.json").read_text(encoding="utf-8"))
    for name, truth in manifest.items():
        if truth["given"]:
            continue
        kind = "none"
        first: frozenset[str] = frozenset()
        if truth["rule"]:
            kind = "hidden" if truth["verdict"] == "cannot tell" else "fault"
            first = frozenset([truth["rule"], *truth["also"]])
        yield Label("planted", name, PLANTED / name, kind, first)


def public(folder: Path | None = None) -> Iterator[Label]:
    """The public logs that are kept here, and those in a folder of the user's, each in a folder of its name.

    Raises:
        ParameterError: a log there is not the one that was judged.
    """
    labels = json.loads((PUBLIC / "public.json").read_text(encoding="utf-8"))
    for name, label in labels.items():
        file = Path(name) / Path(label["path"]).name
        places = [PUBLIC / "logs" / file]
        if folder:
            places.append(folder / file)
        for path in places:
            if path.is_file():
                check_blob(path, label["blob"])
                yield _public_label(name, label, path)
                break


def _public_label(name: str, label: dict, path: Path) -> Label:
    kind = "none"
    if not label["read"]:
        kind = "no log"
    elif label["all_of"] or label["any_of"]:
        kind = "fault"
    sets = {key: frozenset(label[key]) for key in ("all_of", "any_of", "none_of")}
    return Label("public", name, path, kind, **sets)


def check_blob(path: Path, blob: str) -> None:
    """Refuse a file that git would not store under this name."""
    data = path.read_bytes()
    found = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if found != blob:
        raise ParameterError(f"{path}: is git blob {found}, the log that was judged is {blob}; take it from its commit")


# --- answers ------------------------------------------------------------------------------------------------------------


def from_line(output: str, code: int) -> Answer | None:
    """Return the answer in the last line of an output; None where that is none. The exit code does not count.

    Example:
        >>> from_line('reading ...\\n{"verdict": "problem", "causes": ["collapse"]}\\n', 1)
        Answer(verdict='problem', causes=('collapse',))
        >>> from_line("Traceback", 1)
    """
    lines = [line for line in output.splitlines() if line.strip()]
    try:
        answer = json.loads(lines[-1])
        verdict, causes = answer["verdict"], tuple(answer.get("causes", ()))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if verdict not in VERDICTS or not all(cause in CAUSES for cause in causes):
        return None
    return Answer(verdict, causes)


def from_audit(output: str, code: int) -> Answer | None:
    """Return the answer in the output of `workbench audit --json`, which has a line for each run in a log.

    What a run has first comes first. Exit code 2 without a line is `not read`.
    """
    if code == _UNUSABLE and not output.strip():
        return Answer(NOT_READ)
    try:
        runs = [json.loads(line) for line in output.splitlines()]
        findings = [finding for run in runs for finding in run["findings"] if finding["verdict"] == "found"]
    except (ValueError, KeyError, TypeError):
        return None
    if not runs:
        return None
    is_problem = any(finding["severity"] == "problem" for finding in findings)
    causes = dict.fromkeys(finding["rule"] for finding in findings)
    return Answer(PROBLEM if is_problem else NO_PROBLEM, tuple(causes))


FORMS: dict[str, Callable[[str, int], Answer | None]] = {"line": from_line, "audit": from_audit}


def ask(command: Sequence[str], path: Path, form: str) -> Answer | None:
    """Return what a tool answers for one log; None where it gives no answer, or takes longer than 10 minutes.

    Raises:
        ParameterError: the command cannot be started.
    """
    words = [*command, str(path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise ParameterError(f"{command[0]}: cannot be started ({error}); give a program that is on PATH") from None
    return FORMS[form](done.stdout, done.returncode)


# --- the judge ----------------------------------------------------------------------------------------------------------


def judged(answer: Answer | None, label: Label) -> str:
    """Return `right`, `missed`, `wrong cause`, `false problem`, `not read`, `read, and no log` or `no answer`."""
    if answer is None:
        return "no answer"
    if label.kind == "no log":
        return "right" if answer.verdict == NOT_READ else "read, and no log"
    if answer.verdict == NOT_READ:
        return "not read"
    if label.part == "planted" and label.kind != "none":
        return _judged_by_the_first(answer, label)
    if label.kind == "fault":
        named = set(answer.causes)
        if not label.all_of <= named or (label.any_of and not label.any_of & named):
            return "missed"
    elif answer.verdict == PROBLEM:
        return "false problem"
    return "wrong cause" if label.none_of & set(answer.causes) else "right"


def _judged_by_the_first(answer: Answer, label: Label) -> str:
    is_named = bool(answer.causes) and answer.causes[0] in label.first
    if label.kind == "hidden":
        return "right" if is_named or answer.verdict != PROBLEM else "wrong cause"
    if is_named:
        return "right"
    return "wrong cause" if answer.causes else "missed"


def run(command: Sequence[str], labels: Sequence[Label], form: str) -> list[dict]:
    """Ask a tool about each log; a row each, which is also printed."""
    rows = []
    for label in labels:
        answer = ask(command, label.path, form)
        result = judged(answer, label)
        row: dict = {"part": label.part, "log": label.name, "kind": label.kind, "result": result}
        row |= {"verdict": answer.verdict if answer else "", "causes": list(answer.causes) if answer else []}
        rows.append(row)
        print(f"{label.part} {label.name}: {result} ({', '.join(row['causes']) or 'no cause'})", flush=True)
    return rows


_COUNTED = {  # row of the table -> which logs, which results
    "read": (("fault", "hidden", "none"), lambda result: result not in ("not read", "no answer")),
    "faults: named": (("fault",), lambda result: result == "right"),
    "faults that the log cannot show: no other problem named": (("hidden",), lambda result: result == "right"),
    "without a fault: a false problem or a wrong cause": (
        ("none",),
        lambda result: result in ("false problem", "wrong cause"),
    ),
    "files without a log: refused": (("no log",), lambda result: result == "right"),
    "no answer": (("fault", "hidden", "none", "no log"), lambda result: result == "no answer"),
}


def scores(rows: Sequence[dict]) -> list[str]:
    """Return a Markdown table of what is right, for planted and public logs.

    Example:
        >>> scores([{"part": "public", "kind": "none", "result": "right"}])[-1]
        '| no answer | 0 of 0 | 0 of 1 |'
    """
    lines = []
    for title, (kinds, is_counted) in _COUNTED.items():
        cells: list[str] = [title]
        for part in ("planted", "public"):
            results = [row["result"] for row in rows if row["part"] == part and row["kind"] in kinds]
            cells.append(f"{sum(map(is_counted, results))} of {len(results)}")
        lines.append(cells)
    return table(["", "planted", "public"], lines)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("command", nargs="?", help="the tool, as one word of the shell")
    options.add_argument("--form", choices=FORMS, default="line", help="of its answers (default: line)")
    options.add_argument("--public", type=Path, help="folder with further public logs, each in a folder of its name")
    options.add_argument("--only", nargs="*", help="names of logs to ask about; default: all")
    options.add_argument("--causes", action="store_true", help="print the names of causes")
    asked = options.parse_args()
    if asked.causes:
        for rule in RULES:
            says = rule.function.__doc__ or ""
            print(f"{rule.name}: {says.partition(chr(10))[0]}")
        return
    if not asked.command:
        options.error("give the command of a tool, or --causes")
    labels = [*planted(), *public(asked.public)]
    if asked.only is not None:
        if unknown := set(asked.only) - {label.name for label in labels}:
            raise ParameterError(f"--only {sorted(unknown)[0]}: no such log; there are {labels[0].name}, ...")
        labels = [label for label in labels if label.name in asked.only]
    rows = run(shlex.split(asked.command), labels, asked.form)
    print("\n".join(scores(rows)))
    publish({"command": asked.command, "logs": rows}, asked.out, quietly=True)


if __name__ == "__main__":
    run_main(main)
