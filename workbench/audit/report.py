"""The audit as a value: `audit_run` reads what is at a path, asks every rule, and gives a report that shows itself.

`audit_paths` is the command `workbench audit`.
"""

import dataclasses
import html
import json
import numbers
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ..curves.documented import load_baseline
from ..errors import MissingDependencyError, ParameterError, WorkbenchError
from ..extras import install
from ..logs.log import Log
from ..logs.read import read_logs, recorded_logs
from ..logs.reader import Reader
from ..logs.rollouts import with_rollouts
from ..logs.settings import PARAMETERS, facts_of, of_words
from ..runs.secrets import hide_tokens
from ..runs.text import html_table, labelled, one_line, printable
from .check import check, checked
from .finding import CANNOT_TELL, FOUND, NOTE, PROBLEM, WARNING, Finding, in_words_of, severe_as, step_ranges
from .rule import Rule, what_would_help
from .rules_reward import FORM_ONLY
from .sarif import as_sarif

NO_PROBLEM, PROBLEMS, UNUSABLE = 0, 1, 2  # exit codes
SCHEMA = 1  # of `--json`; a name that goes or changes its meaning raises it, a new one does not
_WIDTH = 110
_MODEL_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
_OPEN_SHOWN = 3  # rules that cannot tell, in a notebook; the others are folded
_TITLES = ("run", "verdict", "main cause")


@dataclasses.dataclass(frozen=True)
class RunAudit:
    """What the audit says of one run.

    Attributes:
        run: its name.
        kind: what was read, such as `trainer_state.json`.
        steps: logged ones.
        findings: of every rule, problems first.
        lacks: what the log does not contain, in words.
        settings: of the run that were read with the log, in words, such as `scale_rewards batch (train.py)`.
        has: what rules use of the log, in words.
        trainer: the one that wrote the log, where that is known.
    """

    run: str
    kind: str
    steps: int
    findings: tuple[Finding, ...]
    lacks: tuple[str, ...]
    settings: str = ""
    has: tuple[str, ...] = ()
    trainer: str = ""

    @property
    def main(self) -> str:
        """The main finding with its cause, or an empty string."""
        return next((f.title for f in self.findings if f.verdict == FOUND and f.severity != NOTE), "")

    @property
    def verdict(self) -> str:
        """`problem` or `no problem`, which is what the exit code says."""
        return "problem" if self.problems else "no problem"

    @property
    def what_is_lost(self) -> str:
        """Such as `in 82% of the steps rewards teach nothing`, where that is half of the run; else an empty string."""
        return _what_is_lost(self.findings)

    @property
    def _word(self) -> str:
        """The verdict in a table, which is no all-clear where a run learned only the form, or most of it had no effect."""
        return "warning" if not self.problems and self.what_is_lost else self.verdict

    @property
    def problems(self) -> list[str]:
        """The rules that found a problem; the main one first, those that follow from others last."""
        return [finding.rule for finding in self.findings if finding.is_problem]

    def as_json(self) -> dict:
        """Strict JSON: `schema`, `run`, `verdict`, `findings` and what the log lacks."""
        about = {"schema": SCHEMA, "run": self.run, "kind": self.kind, "steps": self.steps, "lacks": list(self.lacks)}
        return about | {"verdict": self.verdict, "findings": [finding.as_json() for finding in self.findings]}

    @property
    def brief(self) -> str:
        """The run in a line: its worst finding, and what was seen in a sentence."""
        worst = next((f for f in self.findings if f.verdict == FOUND and f.severity != NOTE), None)
        if worst is None:
            return f"{self.run}: {self.what_is_lost or 'no problem'}"
        return f"{self.run}: {worst.severity} {worst.title}: {re.split(r'(?<=[.!?]) ', worst.says)[0]}"

    def text(self) -> str:
        """The report as a terminal shows it: the verdict, what was found, what is open."""
        return "\n".join([self._head(), *self._found(), *self._open()])

    def _repr_html_(self) -> str:
        """Return what was found as a table, then how many rules were checked, then the others: three, and the rest folded."""
        name = "/".join(Path(self.run).parts[-2:])  # enough to know it by, and no path of a machine
        page = f"<p><b>{html.escape(name)}</b>: {html.escape(_count(self.findings))}</p>"
        seen = [f for f in self.findings if f.verdict == FOUND]
        if seen:
            rows = [(f.rule, f.severity, f.says, f.advice or _because(f)) for f in seen]
            page += html_table(_escaped(rows), ("rule", "severity", "what was seen", "what to do"))
        silent = [(f.rule, f.advice) for f in self.findings if f.verdict == CANNOT_TELL]
        page += f"<p>checked {len(self.findings) - len(silent)} of {len(self.findings)} rules</p>"
        heads = ("cannot tell", "what would decide it")
        if silent:
            page += html_table(_escaped(silent[:_OPEN_SHOWN]), heads)
        if more := silent[_OPEN_SHOWN:]:
            page += f"<details><summary>{len(more)} more</summary>{html_table(_escaped(more), heads)}</details>"
        return page

    def _head(self) -> str:
        settings = f"\n  settings: {self.settings}" if self.settings else ""
        steps = f"{self.steps} step{'s' * (self.steps != 1)}"
        return f"{self.run}: {_count(self.findings)} ({self.kind}, {steps}){settings}"

    def _found(self) -> list[str]:
        return [line for f in self.findings if f.verdict == FOUND for line in paragraph(f)]

    def _open(self) -> list[str]:
        """Lines on how many rules were checked, what this log has, and the two settings that would let most others speak."""
        silent = [f for f in self.findings if f.verdict == CANNOT_TELL]
        failed = [f"{f.rule}: {f.advice}" for f in silent if f.cause == "error"]
        has = f"; this log has {', '.join(self.has)}" if self.has else ""
        line = f"checked {len(self.findings) - len(silent)} of {len(self.findings)} rules{has}"
        helps = [(in_words_of(self.trainer, setting), rules) for setting, rules in what_would_help(silent)]
        if self.trainer.startswith("verl"):  # whose completions do not lie next to its log
            helps = [
                (setting.replace("=FOLDER", "=FOLDER and --completions FOLDER"), rules) for setting, rules in helps
            ]
        if helps:
            more = " and with ".join(f"{setting} {rules} more" for setting, rules in helps)
            line += f". With {more} could speak; --json has what each rule lacks"
        head = ["  cannot tell:"] if failed else []
        return head + _wrapped(failed, "    ") + _wrapped([line], "  ")


def _because(finding: Finding) -> str:
    return f"follows from {finding.follows_from}" if finding.follows_from else ""


def _escaped(rows: Iterable[Iterable[str]]) -> list[list[str]]:
    return [[html.escape(labelled(cell)) for cell in row] for row in rows]


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """The audits of all runs at a path; shows itself as a table of what was found and what is open."""

    runs: tuple[RunAudit, ...]

    @property
    def problems(self) -> list[str]:
        """The rules that found a problem in any run, each once."""
        return list(dict.fromkeys(rule for run in self.runs for rule in run.problems))

    def table(self) -> pd.DataFrame:
        """A row a finding, without those that were not found."""
        rows = [
            {"run": run.run, "rule": f.rule, "cause": f.cause, "verdict": f.verdict, "severity": f.severity}
            | {"what was seen": f.says, "what to do": f.advice, "follows from": f.follows_from or ""}
            for run in self.runs
            for f in run.findings
            if f.verdict in (FOUND, CANNOT_TELL)
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.runs)

    def __str__(self) -> str:
        """One run in full; of several a table first, then what was found, where alike once for all of them."""
        if len(self.runs) == 1:
            return self.runs[0].text()
        rows = [_TITLES, *((run.run, run._word, run.main) for run in self.runs)]
        wide = max(len(name) for name, *_ in rows)
        lines = [f"{name:{wide}}  {verdict:10}  {main}".rstrip() for name, verdict, main in rows]
        blocks: dict[str, list[str]] = {}
        open_: dict[str, list[str]] = {}
        for run in self.runs:
            blocks.setdefault("\n".join(run._found()), []).append(run._head())
            open_.setdefault("\n".join(run._open()), []).append(run.run)
        parts = ["\n".join([*heads, *filter(None, [block])]) for block, heads in blocks.items()]
        for block, names in open_.items():
            more = f" and {len(names) - 4} more" * (len(names) > 4)
            parts.append(f"open in {', '.join(names[:4])}{more}\n{block}")
        return "\n\n".join(["\n".join(lines), *parts])


def audit_run(
    path: str | os.PathLike,
    *,
    limit: int | None = None,
    stops: Sequence[str] = (),
    model: str | os.PathLike | None = None,
    baseline: str | None = None,
    settings: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    readers: Sequence[Reader] = (),
    completions: str | os.PathLike | None = None,
) -> AuditReport:
    """Read the log of any run and report what is wrong with it, why, and what the log cannot show.

    Args:
        path: a TRL output or checkpoint folder, a run folder, or a log: trainer_state.json, console output of TRL, verl's
            JSONL, a CSV such as W&B's history, TensorBoard events.
        limit: `max_completion_length` of the run, in tokens; needed only if no file at the path says it.
        stops: stop strings of the run; needed only if no file at the path says them.
        model: folder or hub id of the model, if the path has no config.json.
        baseline: name of a documented run; the audit compares the reward with it, see `load_baseline`.
        settings: TRL settings of the run, such as `["scale_rewards=batch"]`, see `logs.settings.PARAMETERS`.
        rules: your own rules, made by `workbench.audit.rule`; the audit asks them after the built-in ones.
        readers: of your own formats, made by `workbench.logs.reader`; they are asked before the built-in ones.
        completions: folder or file of the run's completions, if they do not lie next to its log: verl's `rollout_data_dir`,
            prime-rl's step folders.

    Raises:
        ParameterError: a limit below 1 or below a logged length, an empty stop string, an unknown setting, a model that is
            neither a folder nor on the hub, an unknown baseline, a rule with the name of another, or completions of other
            steps or for several runs.
        RunError: the path holds no log that can be read.
        MissingDependencyError: the path holds TensorBoard events, and TensorBoard is not installed.
    """
    own, given = checked(rules), _given(limit, stops) | of_words(settings)
    known, damage = ({}, []) if model is None else facts_of(_model_folder(model), links=True)
    given |= known
    if baseline is not None:
        curve = load_baseline(baseline).curve()
        given["documented"] = {"name": baseline, "low": curve.low, "high": curve.high, "unit": curve.unit}
    logs = read_logs(path, readers=readers)
    if completions is not None:
        if len(logs) != 1:
            raise ParameterError(f"completions={completions}: {path} holds {len(logs)} runs; expected the log of one")
        logs = [with_rollouts(logs[0], completions)]
    for log in logs:
        longest = 0 if (lengths := log.logged("max_length")) is None else np.nanmax(lengths)
        if limit is not None and limit < longest and float(f"{limit:.4g}") < longest:  # a Trainer prints four digits
            about = f"{log.name} logs completions of {longest:.0f} tokens; expected at least {longest:.0f}"
            raise ParameterError(f"limit={limit}: {about}")
    merged = [dataclasses.replace(log, facts={**log.facts, **given}, damage=(*log.damage, *damage)) for log in logs]
    return AuditReport(tuple(_audit(log, own) for log in merged))


def audit_recorded(folder: str | os.PathLike) -> tuple[AuditReport, list[str]]:
    """Audit the trainings that a run has recorded in its folder, and no other file; with a sentence for each damaged record."""
    logs, damaged = recorded_logs(Path(folder))
    return AuditReport(tuple(_audit(log, ()) for log in logs)), damaged


def audit_paths(paths: Sequence[Path], *, form: str = "text", fail_on: str = PROBLEM, **given) -> int:
    """Audit each path and print what was found; the exit code.

    Args:
        paths: as of `audit_run`.
        form: `text`, `brief` (a line a run), `json` (an object a run) or `sarif` (one document).
        fail_on: `problem` or `warning`: the least severity that makes the code 1.
        given: the other arguments of `audit_run`.

    Returns:
        0 if no run has a finding of that severity, 1 if one has, 2 if a path could not be used.
    """
    code = NO_PROBLEM
    runs: list[RunAudit] = []
    unusable: list[str] = []
    places: list[tuple[str, str]] = []  # path, and name of the run
    for path in paths:
        try:
            report = audit_run(path, **given)
        except (WorkbenchError, OSError) as error:  # the latter where a file may not be read
            says = str(error) if isinstance(error, WorkbenchError) else f"{path}: {error.strerror}"
            unusable.append(one_line(hide_tokens(says)))
            print(f"workbench: {unusable[-1]}", file=sys.stderr)
            code = UNUSABLE
            continue
        for run in report.runs if form == "json" else ():
            print(json.dumps(run.as_json(), allow_nan=False), flush=True)
        runs += report.runs
        several = len(report.runs) > 1
        places += [(str(path), run.run if several else str(path)) for run in report.runs]
        failed = any(severe_as(finding, fail_on) for run in report.runs for finding in run.findings)
        code = max(code, PROBLEMS if failed else NO_PROBLEM)
    if form == "sarif":
        audits = [(*place, run.findings) for place, run in zip(places, runs, strict=True)]
        document = json.dumps(as_sarif(audits, unusable, code), allow_nan=False, indent=1)
        print(printable(hide_tokens(document)), flush=True)
    elif runs and form != "json":
        shown = "\n".join(one_line(run.brief) for run in runs) if form == "brief" else f"{AuditReport(tuple(runs))}\n"
        print(printable(hide_tokens(shown)), flush=True)
    return code


def _model_folder(model: str | os.PathLike) -> Path:
    """The folder with a model's config: the one given, or a hub's id, of which config and tokenizer are fetched, no weights."""
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not isinstance(model, str) or model.count("/") > 1:
        raise ParameterError(f"model={str(model)!r}: no config.json there; expected the folder of a model, or a hub id")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingDependencyError(
            f"model={model!r}: this is no folder with a config.json; a hub id needs huggingface_hub: {install('train')}"
        ) from error
    try:
        return Path(snapshot_download(model, allow_patterns=_MODEL_FILES))
    except Exception as error:  # offline, unknown, gated, not an id: each has a class of its own
        reason = str(error).split("\n")[0][:160]
        raise ParameterError(
            f"model={model!r}: this is no folder with a config.json, and the hub did not return a model of this name "
            f"({type(error).__name__}: {reason}); expected the folder of a model, or the id of a model on the hub"
        ) from error


def _given(limit: int | None, stops: Sequence[str]) -> dict:
    whole = isinstance(limit, numbers.Integral) and not isinstance(limit, bool)  # NumPy's too
    if limit is not None and (not whole or limit < 1):
        raise ParameterError(f"limit={limit!r}: expected the run's max_completion_length, at least 1")
    if isinstance(stops, str) or not all(stops):
        raise ParameterError(f"stops={stops!r}: expected strings that are not empty, such as ['</search>']")
    return ({"max_completion_length": int(limit)} if limit else {}) | ({"stop_strings": list(stops)} if stops else {})


def _audit(log: Log, own: Sequence[Rule]) -> RunAudit:
    known = ", ".join(f"{name} {log.facts[name]}" for name in PARAMETERS if name in log.facts)
    where = f" ({log.facts['settings_from']})" if "settings_from" in log.facts else ""
    lacks = tuple(log.lacks)
    settings = known + where if known else ""
    findings = tuple(check(log, own))
    kind = f"{log.kind} without step numbers, its lines are counted" if log.facts.get("lines_counted") else log.kind
    return RunAudit(log.name, kind, len(log.steps), findings, lacks, settings, tuple(log.has), log.trainer)


# --- text -----------------------------------------------------------------------------------------------------------


def _count(findings: Sequence[Finding]) -> str:
    """Such as `2 problems, 1 warning`; the main problem is named."""
    severities = [f.severity for f in findings if f.verdict == FOUND]
    words = [f"{n} {s}{'s' * (n > 1)}" for s in (PROBLEM, WARNING) if (n := severities.count(s))]
    if PROBLEM in severities:
        return f"{findings[0].rule}; {', '.join(words)}"
    return ", ".join([_what_is_lost(findings) or "no problem", *words])


def _what_is_lost(findings: Sequence[Finding]) -> str:
    """The owner's loss where nothing is called a problem, such as `in 82% of the steps rewards teach nothing`.

    An empty string where it is less than half of the steps or of the groups, and the answers get better.
    """
    if any(f.verdict == FOUND and f.rule == "reward-parts" and f.cause == FORM_ONLY for f in findings):
        return "the reward rises and the answers do not"
    for rule, unit in (("zero-gradient", "steps"), ("wasted-groups", "groups")):
        for share in (f.cost.get(f"share of {unit}", 0.0) for f in findings if f.rule == rule and f.verdict == FOUND):
            if share >= 0.5:
                return f"in {share:.0%} of the {unit} rewards teach nothing"
    return ""


def paragraph(finding: Finding, width: int = _WIDTH) -> list[str]:
    """The lines that a terminal shows of a finding."""
    because = f", because of {finding.follows_from}" if finding.follows_from else ""
    lines = [f"  {finding.severity.upper()} {finding.title}{because}"]
    about = [finding.says] + [f"steps {step_ranges(finding.steps)}"] * bool(finding.steps)
    if finding.cost:
        about.append("affected: " + ", ".join(_cost(name, value) for name, value in finding.cost.items()))
    if not finding.follows_from:
        about += [f"do: {finding.advice}"] * bool(finding.advice) + [f"more: {finding.more}"]
    return lines + _wrapped(about, "    ", width)


def _cost(name: str, value: float) -> str:
    """Such as `100% of steps`."""
    if name == "seconds" and value >= 120:
        name, value = "minutes", value / 60
    return f"{value:.0%} of {name.removeprefix('share of ')}" if name.startswith("share of ") else f"{value:.3g} {name}"


def _wrapped(texts: Sequence[str], indent: str, width: int = _WIDTH) -> list[str]:
    wrapper = textwrap.TextWrapper(width=width, initial_indent=indent, subsequent_indent=indent + "  ")
    return [line for text in texts for line in wrapper.wrap(text)]
