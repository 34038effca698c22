"""The command line: `workbench list | notebooks | new | run | sweep | status | logs | cancel | report | claims | audit` ..."""

import argparse
import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__
from .errors import ParameterError, RunError, WorkbenchError
from .help_texts import COMMANDS
from .runs.parameters import notebook_parameters, parse_assignments
from .runs.run import Run, check_readable, list_runs, load_run, runs_root, what_is_unknown
from .runs.secrets import hide_tokens
from .runs.summary import RunSummary, title, unreadable
from .runs.text import one_line, printable


def main(argv: list[str] | None = None) -> int:
    """Parse, dispatch, and turn the workbench's own errors into one line and exit code 2."""
    parser = _parser()
    args, unknown = parser.parse_known_args(_joined(sys.argv[1:] if argv is None else argv))
    if unknown and args.command not in (_run, _sweep):
        parser.error(f"unrecognized arguments: {hide_tokens(' '.join(unknown))}")
    out, err = _Patient(sys.stdout), _Patient(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _dispatch(args, unknown)
        out.flush()
        if out.lost and out.lost.errno != errno.EPIPE:  # a full disk behind `> FILE`
            print(f"workbench: standard output: {out.lost.strerror}", file=sys.stderr)
            code = code or 1
    return code


def _dispatch(args, unknown: Sequence[str]) -> int:
    try:
        if unknown:
            raise ParameterError(_meant_as_parameter(unknown))
        return args.command(args)
    except WorkbenchError as error:
        print(f"workbench: {one_line(hide_tokens(str(error)))}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that cannot be written
        full = error.errno == errno.ENOSPC
        advice = "; free space, then go on with `workbench run NOTEBOOK --resume RUN`" if full else ""
        print(f"workbench: {one_line(str(error))}{advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("workbench: interrupted", file=sys.stderr)
        return 130


class _Patient:
    """A stream that takes any text, and whose reader may leave, as `| head` does: what is written then is dropped."""

    def __init__(self, stream):
        self._stream, self.lost = stream, None
        if hasattr(stream, "reconfigure"):  # a terminal of latin-1
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, method: str, *arguments) -> None:
        if self._stream is None:  # closed by `>&-`
            return
        try:
            getattr(self._stream, method)(*arguments)
        except OSError as error:
            self.lost = error
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), self._stream.fileno())  # what is buffered is dropped at the end


def _joined(argv: Sequence[str]) -> list[str]:
    """papermill's `-p NAME VALUE` as `-p NAME=VALUE`."""
    made = list(argv)
    if made and made[0] in ("run", "sweep"):
        for n in range(len(made) - 3, -1, -1):
            if (
                made[n] in ("-p", "--parameter", "--parameters")
                and made[n + 1].isidentifier()
                and not re.match(r"-\D", made[n + 2])
            ):
                made[n + 1 : n + 3] = [f"{made[n + 1]}={made[n + 2]}"]
    return made


def _meant_as_parameter(unknown: Sequence[str]) -> str:
    """What to say of options that `run` and `sweep` do not have: most likely a parameter of the notebook is meant."""
    option, sign, value = unknown[0].partition("=")
    if not sign:
        value = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("--") else "VALUE"
    name = option.lstrip("-").replace("-", "_")
    meant = option.startswith("--") and name.isidentifier()
    hint = f"; a parameter of the notebook is written `-p {name}={value}`" if meant else ""
    return f"unrecognized arguments: {' '.join(unknown)}{hint}"


# --- what may be written --------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    more = "`workbench COMMAND --help` has the options of a command and an example"
    parser = argparse.ArgumentParser(
        prog="workbench", description="RL fine-tuning runs that can be trusted", epilog=more
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(function: Callable, *, of_runs: bool = True) -> argparse.ArgumentParser:
        name = function.__name__.removeprefix("_")
        short, purpose, example = COMMANDS[name]
        epilog = f"Example: workbench {name} {example}".rstrip()
        made = commands.add_parser(name, help=short, description=purpose, epilog=epilog)
        made.set_defaults(command=function)
        if of_runs:
            made.add_argument("--runs-dir", type=Path, help=f"folder of all runs (default {runs_root()})")
        return made

    run = command(_run)
    run.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="name, or path of an .ipynb file")
    one = "a parameter of the notebook, e.g. steps=80; `workbench list NOTEBOOK` names them"
    run.add_argument("-p", "--parameter", "--parameters", action="append", default=[], metavar="NAME=VALUE", help=one)
    unfinished = "go on with an interrupted run (default: the latest)"
    run.add_argument("--resume", nargs="?", const="", metavar="RUN", help=unfinished)
    run.add_argument(
        "--force",
        action="store_true",
        help="with --resume RUN: also one that is running on another host",
    )
    run.add_argument("-q", "--quiet", action="store_true", help="no bars and no output of the notebook")
    _add_batch_options(run)

    grid = "values of a parameter: seed=0..4 or learning_rate=1e-4,3e-4"
    sweep = command(_sweep)
    sweep.add_argument("notebook", metavar="NOTEBOOK", help="name, or path of an .ipynb file")
    sweep.add_argument(
        "-p", "--parameter", "--parameters", action="append", default=[], metavar="NAME=VALUES", help=grid
    )
    _add_page_options(sweep, "of the comparison")
    _add_batch_options(sweep)

    status = command(_status)
    which = "a notebook for all of its runs, or a run id, folder or `last` (default: all)"
    status.add_argument("runs", nargs="*", metavar="RUN", help=which)
    status.add_argument("--json", action="store_true", help="one JSON object a run")

    logs = command(_logs)
    logs.add_argument("run", metavar="RUN", help="run id, folder, `last`, or a notebook for its newest run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")

    cancel = command(_cancel)
    cancel.add_argument("runs", nargs="+", metavar="RUN", help="run id, folder or `last`")
    cancel.add_argument("--grace", type=float, default=60, metavar="SECONDS", help="for the current step (default 60)")

    cancel.add_argument("--force", action="store_true", help="also a run whose process cannot be reached from here")

    listing = command(_list)
    listing.add_argument("notebook", nargs="?", metavar="NOTEBOOK", help="name, or path of an .ipynb file")
    listing.add_argument("--json", action="store_true", help="one JSON object a run")

    copies = command(_notebooks, of_runs=False)
    copies.add_argument("folder", nargs="?", type=Path, default=Path("notebooks"), help="where to (default notebooks/)")

    new = command(_new, of_runs=False)
    new.add_argument("name", metavar="NAME", help="of the notebook, and of its runs")
    new.add_argument("--folder", type=Path, default=Path("."), help="where to (default here)")

    report = command(_report)
    report.add_argument(
        "runs", nargs="*", type=Path, help="run folders (default: all), or a TRL output with completions"
    )
    _add_page_options(report, "of the index")

    sheet = command(_claims)
    sheet.add_argument("--markdown", action="store_true", help="as a markdown table")
    sheet.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers in FILE")

    audit = command(_audit, of_runs=False)
    audit.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folder or file of anybody's log, or -")
    audit.add_argument("--model", metavar="MODEL", help="its folder or hub id, where PATH has no config.json")
    audit.add_argument("--limit", type=int, metavar="N", help="max_completion_length of the run")
    audit.add_argument("--stop", action="append", default=[], metavar="STRING", help="a stop string of the run")
    audit.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the run, by TRL's name"
    )
    audit.add_argument("--baseline", metavar="NAME", help="documented run to compare the reward with")
    audit.add_argument("--json", action="store_true", help="one JSON object a run")
    audit.add_argument("--html", type=Path, metavar="FILE", help="a page with the same, which opens without a network")

    doctor = command(_doctor, of_runs=False)
    doctor.add_argument("--trl", metavar="RELEASE", help="with --args: a release of TRL (default: the installed one)")
    arguments = "TRL's arguments as JSON or YAML, or a run's folder: the known defects that these settings meet"
    doctor.add_argument("--args", type=Path, metavar="FILE", dest="arguments", help=arguments)
    return parser


def _add_page_options(parser: argparse.ArgumentParser, what: str) -> None:
    text = "copies to share, without host names, user names, absolute paths and secrets (default reports-redacted/)"
    parser.add_argument("--out", type=Path, help=f"folder {what} (default reports/ next to runs/)")
    parser.add_argument("--redact", action="store_true", help=text)


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time, each in its own process")
    parser.add_argument("--gpus", metavar="N", help="GPUs for each run (default 1 where there are any)")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    parser.add_argument("--executor", choices=("local", "slurm"), default="local", help="where (default local)")
    any_notebook = parser.add_argument_group("as papermill's")
    file = "parameters from a YAML file; -y and -p come after it"
    any_notebook.add_argument("-f", "--parameters-file", action="append", default=[], metavar="FILE", help=file)
    any_notebook.add_argument(
        "-y", "--parameters-yaml", action="append", default=[], metavar="YAML", help="parameters as YAML"
    )
    any_notebook.add_argument(
        "-k", "--kernel", metavar="NAME", help="one of Jupyter's Python kernels (default this Python)"
    )
    any_notebook.add_argument("--cwd", metavar="FOLDER", help="where the kernel works (default the notebook's folder)")
    limit = "limit of each cell, in seconds (default none)"
    any_notebook.add_argument("--execution-timeout", type=float, metavar="SECONDS", help=limit)
    slurm = parser.add_argument_group("with --executor slurm")
    slurm.add_argument("--partition", metavar="NAME")
    slurm.add_argument("--time", default="60", help="limit of a job: minutes, or as 4:00:00 or 1-12 (default 60)")
    slurm.add_argument("--cpus", type=int, default=1, metavar="N", help="cores for each run (default 1)")
    slurm.add_argument("--mem", default="4", help="memory for each run: GB, or as 64G or 512M (default 4)")
    slurm.add_argument("--requeues", type=int, default=10, metavar="N", help="after preemption or time limit (10)")
    slurm.add_argument("--sbatch", action="append", default=[], metavar="KEY=VALUE", help="any other sbatch option")
    slurm.add_argument(
        "--setup", action="append", default=[], metavar="LINE", help="shell line before a run: module load x"
    )
    slurm.add_argument("--python", metavar="COMMAND", help="Python of the nodes, as `apptainer exec --nv IMAGE python`")
    slurm.add_argument("--detach", action="store_true", help="submit and return; see `workbench status`")


# --- what is done ---------------------------------------------------------------------------------------------------


def _run(args) -> int:
    from .batch import plan
    from .batch import run as batch

    given = parse_assignments(args.parameter)
    several = len(args.notebooks) > 1
    given = _of_yaml(args) | given
    if several and (args.resume is not None or given):
        raise ParameterError("-p and --resume go with one notebook; run the others by a command of their own")
    if args.force and not args.resume:
        raise ParameterError("--force goes with --resume RUN: name the run that is to be taken over")
    options = {"root": args.runs_dir, "resume": args.resume, "force": args.force, "how": _how(args)}
    entries = [plan.plan_run(name, given, **options) for name in args.notebooks]
    if several or args.dry_run or args.executor == "slurm":
        return _conclude(entries) if _execute(args, entries) else 0
    gpus = _number_of_gpus(args.gpus)
    batch.check_here(args.jobs, gpus)
    if args.force and (unknown := what_is_unknown(entries[0].run.status)):
        print(f"--force: takes the run although it is {unknown}", file=sys.stderr)
    run, state = batch.execute_one(entries[0], quiet=args.quiet, gpus=gpus)
    print(batch.finish(run))
    return 0 if batch.succeeded(run) else 130 if state == "interrupted" else 1


def _sweep(args) -> int:
    from .batch.plan import plan_sweep

    given = parse_assignments(args.parameter)
    fixed = {name: value for name, value in _of_yaml(args).items() if name not in given}
    entries = plan_sweep(args.notebook, given, args.runs_dir, fixed, _how(args))
    if not _execute(args, entries):
        return 0
    from .reports import default_folder
    from .reports.sweep import build_sweep_report  # loads what draws; a plan is shown without

    folder = args.out or default_folder(args.runs_dir, redact=args.redact)
    page = build_sweep_report(args.notebook, given, entries, folder, fixed=fixed, redact=args.redact)
    print(f"report {page}")
    return _conclude(entries)


def _how(args) -> dict:
    if args.execution_timeout is not None and not args.execution_timeout > 0:
        raise ParameterError(f"--execution-timeout {args.execution_timeout:g}: expected seconds above 0")
    cwd = args.cwd and os.path.abspath(args.cwd)
    return {"kernel": args.kernel, "cwd": cwd, "execution_timeout": args.execution_timeout}


def _of_yaml(args) -> dict:
    """The parameters of `-f` and `-y`, the later ones winning."""
    if not args.parameters_file and not args.parameters_yaml:
        return {}
    import yaml

    found: dict = {}
    texts = [(f"-f {path}", Path(path).read_text(encoding="utf-8")) for path in args.parameters_file]
    for source, text in [*texts, *((f"-y {text}", text) for text in args.parameters_yaml)]:
        try:
            values = yaml.safe_load(text)
            json.dumps(values)
        except (yaml.YAMLError, TypeError) as error:
            raise ParameterError(f"{source}: not YAML that a parameter can hold ({error})") from None
        if not isinstance(values, dict):
            raise ParameterError(f"{source}: expected NAME: VALUE")
        found |= {str(name): value for name, value in values.items()}
    return found


def _number_of_gpus(given: str | None) -> int | None:
    try:
        return None if given is None else int(given)
    except ValueError:
        raise ParameterError(
            f"--gpus {given}: expected a whole number; a kind of GPU is for --executor slurm"
        ) from None


def _execute(args, entries: Sequence) -> bool:
    """Execute a plan where `--executor` says; False when it was only shown or handed over to Slurm."""
    from .batch import plan
    from .batch import run as batch

    options, scripts, unchecked = _slurm_options(args), "", ""
    gpus = args.gpus if options else _number_of_gpus(args.gpus)
    if not options:
        batch.check_here(args.jobs, gpus)
    elif args.dry_run:
        scripts, unchecked = batch.preview_on_slurm(entries, options)
    if args.dry_run:
        print(plan.plan_text(entries, gpus, on_slurm=bool(options)) + scripts, end="")
        print(f"not checked: {unchecked}\n" if unchecked else "", end="", file=sys.stderr)
        return False
    for entry in entries:
        if not entry.to_run:
            print(entry)
    if options:
        batch.execute_on_slurm(entries, options, wait=not args.detach)
    else:
        batch.execute_here(entries, jobs=args.jobs, gpus=gpus)
    return not args.detach


def _slurm_options(args):
    """The options of each job; None with `--executor local`."""
    from .batch.slurm import SlurmOptions, parse_memory, parse_time

    if args.executor == "slurm":
        options = {name: getattr(args, name) for name in ("partition", "cpus", "requeues", "setup", "python")}
        options |= {"time": parse_time(args.time), "mem": parse_memory(args.mem)}
        parallel = None if args.jobs == 1 else args.jobs
        extra = parse_assignments(args.sbatch, "--sbatch")
        return SlurmOptions(gpus=args.gpus or 0, parallel=parallel, extra=extra, **options)
    if args.partition or args.sbatch or args.detach or args.setup or args.python:
        raise ParameterError("--partition, --sbatch, --setup, --python and --detach go with --executor slurm")
    return None


def _conclude(entries: Sequence) -> int:
    from .batch import run as batch

    print(batch.tally(entries))
    return 0 if all(batch.succeeded(e.run) for e in entries) else 1


def _status(args) -> int:
    from .batch import manage

    named = [run for name in args.runs for run in manage.find_runs(name, args.runs_dir)]
    runs = named or list_runs(args.runs_dir)
    seen = dict(manage.look(runs))
    if not runs and not args.json:
        print(f"no runs in {args.runs_dir or runs_root()}")

    good: list[bool] = []

    def row(run: Run) -> object:
        summary = RunSummary.of(run, seen[run])
        good.append(summary.succeeded)
        return summary.row if args.json else summary.line

    code = _print_rows(runs, row, as_json=args.json)
    if len(runs) > 1 and not args.json:
        print(f"{sum(good)} of {len(runs)} runs are done and no check failed")
    return code


def _print_rows(runs: Sequence[Run], row: Callable[[Run], object], *, as_json: bool = False) -> int:
    """A line for each run; the exit code is 1 where one cannot be read, and its line says why."""
    code = 0
    for run in runs:
        try:
            shown = row(run)
        except (RunError, ParameterError, OSError) as error:
            about = {"run": str(run.path), "notebook": run.notebook, "id": run.id, "state": "unreadable"}
            shown = about | {"error": str(error)} if as_json else unreadable(run, error)
            code = 1
        if shown:
            print(json.dumps(shown) if as_json else shown)
    return code


def _logs(args) -> int:
    from .batch import manage

    for text in manage.read_log(manage.find_runs(args.run, args.runs_dir)[-1], follow=args.follow):
        print(text, end="", flush=True)
        if getattr(sys.stdout, "lost", None):  # nobody reads on
            break
    return 0


def _cancel(args) -> int:
    from .batch import manage

    for run in [manage.find_run(name, args.runs_dir) for name in args.runs]:  # all are looked up before the first ends
        manage.cancel(run, args.grace, force=args.force)
        print(RunSummary.of(run).line)
    return 0


def _claims(args) -> int:
    from . import claims

    known = claims.load_claims()
    sound: list[Run] = []

    def examined(run: Run) -> None:
        claims.claims_of(run, known)
        sound.append(run)

    code = _print_rows(list_runs(args.runs_dir), examined)
    rows = claims.claims_sheet(sound)
    if args.write:
        claims.write_sheet(args.write, rows)
        print(args.write)
    elif args.markdown:
        print(printable(claims.as_markdown(rows)), end="")
    else:
        for row in rows:
            here = f" | here: {row.measured}" if row.measured else ""
            print(one_line(f"{row.id}  {row.verdict}: {row.claim}{here}"))
    return code


def _list(args) -> int:
    from .batch import plan

    if args.notebook:
        for p in notebook_parameters(plan.find_notebook(args.notebook)).values():
            print(one_line(f"{p.name} = {p.default!r}  ({p.expected})  {p.help}"))
        return 0
    runs = list_runs(args.runs_dir)
    if args.json:
        return _print_rows(
            runs,
            lambda run: {"run": str(run.path), "status": run.status, "params": run.params, "result": run.result},
            as_json=True,
        )
    print("notebooks")
    for name in plan.list_notebooks():
        print(f"  {one_line(name)}")
    print(f"runs in {args.runs_dir or runs_root()}")
    return _print_rows(runs, lambda run: f"  {title(run)}: {RunSummary.of(run).outcome}")


def _notebooks(args) -> int:
    from .batch.plan import copy_notebooks

    for path in copy_notebooks(args.folder):
        print(path)
    return 0


def _new(args) -> int:
    from .new_notebook import write_notebook

    path = write_notebook(args.name, args.folder)
    print(f"{path}\nchange it with `jupyter lab {path}`, run it with `workbench run {path}`")
    return 0


def _report(args) -> int:
    from .reports import build_index, default_folder

    others = [p for p in args.runs if not (p / "params.json").is_file()]
    runs = [load_run(p) for p in args.runs if p not in others] or ([] if others else list_runs(args.runs_dir))
    if not runs and not others:
        raise WorkbenchError(f"no runs in {args.runs_dir or runs_root()}; make one with `workbench run NOTEBOOK`")
    if others:
        from .reports.microscope import report_folder  # loads what reads tables

        for folder in others:
            print(report_folder(folder, args.out, redact=args.redact))
    if not runs:
        return 0
    code = _print_rows(runs, check_readable)
    folder = args.out or default_folder(args.runs_dir, redact=args.redact)
    print(build_index(runs, folder, redact=args.redact))
    return code


def _audit(args) -> int:
    from .audit.report import audit_paths

    given = {"limit": args.limit, "stops": args.stop, "model": args.model, "baseline": args.baseline}
    given["settings"] = args.set
    return audit_paths(args.paths, as_json=args.json, page=args.html, **given)


def _doctor(args) -> int:
    from .doctor import examine

    if args.arguments or args.trl:
        from .defects import print_defects

        if not args.arguments:
            raise ParameterError("--trl: which settings? Give them with --args FILE")
        return print_defects(args.trl, args.arguments)

    findings = sorted(examine(), key=lambda finding: ("error", "warning", "ok").index(finding.verdict))
    for finding in findings:
        print(f"{finding.verdict:8} {finding.subject}: {finding.detail}")
    return 1 if any(f.verdict == "error" for f in findings) else 0
