"""The command line. The docstring of a command is its help: what it does in a few words, what it is for, an example."""

import argparse
import contextlib
import errno
import inspect
import json
import math
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__
from .conform.names import NAMES
from .errors import NO_MEMORY, MissingDependencyError, ParameterError, WorkbenchError, did_you_mean
from .runs.files import jsonable, parse_yaml
from .runs.parameters import notebook_parameters, parse_assignments
from .runs.run import Run, check_readable, list_runs, load_run, runs_root, what_is_unknown
from .runs.secrets import hide_tokens
from .runs.summary import RunSummary, tally, unreadable
from .runs.text import one_line, printable

UNFINISHED = 3  # exit code; 1 says that something was found


def main(argv: list[str] | None = None) -> int:
    """Parse, dispatch, and turn errors into a line: exit code 2 for wrong input, 3 where the command could not finish."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal of latin-1 shows the rest as escapes
    try:
        parser = _parser()
        args, unknown = parser.parse_known_args(argv)
        if unknown and args.command not in (_run, _sweep):
            parser.error(f"unrecognized arguments: {hide_tokens(' '.join(unknown))}")
        if unknown:
            parse_assignments(args.parameter)  # `-p steps 5` leaves 5 over: the first mistake is named
            raise ParameterError(_meant_as_parameter(unknown))
        code = args.command(args)
        print(end="", flush=True)
        return code
    except WorkbenchError as error:
        print(f"workbench: {one_line(hide_tokens(str(error)))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader left, as `| head` does
        return 141  # the code of a program that SIGPIPE ended
    except OSError as error:  # a full disk, a folder that cannot be written
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "; free some space, then continue a run with `workbench run NOTEBOOK --resume RUN`" if full else ""
        print(f"workbench: {one_line(hide_tokens(str(error)))}{advice}", file=sys.stderr)
        return UNFINISHED
    except MemoryError as error:
        advice = "end other programs, then continue a run with `workbench run NOTEBOOK --resume RUN`"
        print(f"workbench: {one_line(str(error) or NO_MEMORY)}; {advice}", file=sys.stderr)
        return UNFINISHED
    except KeyboardInterrupt:
        print("workbench: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        print(printable(hide_tokens(traceback.format_exc())), end="", file=sys.stderr)
        says = one_line(hide_tokens(f"{type(error).__name__}: {error}"))
        advice = "Report it with the lines above and what `workbench doctor` prints"
        print(f"workbench: an error of the workbench itself ({says}). {advice}", file=sys.stderr)
        return UNFINISHED
    finally:
        _drop_unwritable()


def _drop_unwritable() -> None:
    """Discard what stdout and stderr hold and cannot write; Python would fail on it again when it exits."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # one that `>&-` closed is None
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())


def _meant_as_parameter(unknown: Sequence[str]) -> str:
    """Return what to say of options that `run` and `sweep` do not have: most likely a parameter of the notebook is meant."""
    option, sign, value = unknown[0].partition("=")
    if not sign:
        value = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("--") else "VALUE"
    name = option.lstrip("-").replace("-", "_")
    meant = option.startswith("--") and name.isidentifier()
    hint = f"; a parameter of the notebook is written `-p {name}={value}`" if meant else ""
    return f"unrecognized arguments: {' '.join(unknown)}{hint}"


# --- what may be written --------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser that names the closest of the words that an argument can be, which argparse itself does from Python 3.14 on."""

    def error(self, message: str):
        if wrong := re.search(r"invalid choice: '([^']*)' \((choose from .*)\)", message):
            hint = did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
            message = f"{message[: wrong.start()]}invalid choice: '{wrong[1]}'; {hint}{wrong[2]}"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    more = "`workbench COMMAND --help` shows the options of a command and an example"
    parser = _Parser(prog="workbench", description="RL fine-tuning runs that can be trusted", epilog=more)
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(function: Callable, *, of_runs: bool = True) -> argparse.ArgumentParser:
        *purpose, example = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        about, name = " ".join(" ".join(purpose).split()), function.__name__.removeprefix("_").replace("_", "-")
        made = commands.add_parser(name, help=purpose[0], description=about, epilog=example)
        made.set_defaults(command=function)
        if of_runs:
            default = str(runs_root()).replace("%", "%%")  # argparse fills in `%(name)s`
            made.add_argument("--runs-dir", type=Path, help=f"folder of all runs (default {default})")
        return made

    run = command(_run)
    run.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="name, or path of an .ipynb file")
    unfinished = (
        "go on with an interrupted run; its parameters need no -p (default: the latest with the same parameters)"
    )
    run.add_argument("--resume", nargs="?", const="", metavar="RUN", help=unfinished)
    run.add_argument("--force", action="store_true", help="with --resume RUN: even if another host may execute it")
    run.add_argument("-q", "--quiet", action="store_true", help="no bars and no output of the notebook")
    one = "a parameter of the notebook, e.g. steps=80; `workbench list NOTEBOOK` names them"
    _add_batch_options(run, "NAME=VALUE", one)

    sweep = command(_sweep)
    sweep.add_argument("notebook", metavar="NOTEBOOK", help="name, or path of an .ipynb file")
    _add_page_options(sweep, "of the comparison")
    _add_batch_options(sweep, "NAME=VALUES", "values of a parameter: seed=0..4 or learning_rate=1e-4,3e-4")

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

    listing = command(_list, of_runs=False)
    listing.add_argument("notebook", nargs="?", metavar="NOTEBOOK", help="name, or path of an .ipynb file")

    copies = command(_notebooks, of_runs=False)
    copies.add_argument("folder", nargs="?", type=Path, default=Path("notebooks"), help="target (default notebooks/)")

    new = command(_new, of_runs=False)
    new.add_argument("name", metavar="NAME", help="name of the notebook, and of its runs")
    new.add_argument("--folder", type=Path, default=Path("."), help="folder of the notebook (default here)")

    report = command(_report)
    folders = "run folders (default: all), or a TRL output with completions"
    report.add_argument("runs", nargs="*", type=Path, help=folders)
    _add_page_options(report, "of the index")

    audit = command(_audit, of_runs=False)
    audit.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folder or log of any run; - reads stdin")
    _add_audit_options(audit)
    severity = "least severity that makes the exit code 1: problem (default) or warning"
    audit.add_argument("--fail-on", choices=("problem", "warning"), default="problem", help=severity)
    form = audit.add_mutually_exclusive_group()
    form.add_argument("--brief", action="store_true", help="one line a run, with only its worst finding")
    form.add_argument("--json", action="store_true", help="one JSON object a run")
    form.add_argument(
        "--sarif", action="store_true", help="one SARIF 2.1.0 document, as CI systems and editors read it"
    )

    watch = command(_watch, of_runs=False)
    watch.add_argument("path", type=Path, metavar="LOGFILE", help="log that grows, or its folder; may not exist yet")
    stop = "end with exit code 1 at the first one (default: go on)"
    watch.add_argument("--until", choices=("problem", "warning"), help=stop)
    watch.add_argument("--every", type=float, default=10, metavar="SECONDS", help="between two looks (default 10)")
    watch.add_argument("--pid", type=int, metavar="N", help="end with process N, after a last audit of the whole log")
    _add_audit_options(watch)

    pays = command(_reward_report, of_runs=False)
    recorded = "folder or file of recorded completions with rewards"
    pays.add_argument("path", type=Path, metavar="PATH", help=recorded)
    right = "JSON lines with `prompt` and `answer`, if the completions have no answers"
    pays.add_argument("--answers", type=Path, metavar="FILE", help=right)
    more = "Python file with your own features; it is executed"
    pays.add_argument("--features", type=Path, metavar="FILE", help=more)
    pays.add_argument("--json", action="store_true", help="one JSON object")

    trial = command(_reward, of_runs=False)
    place = "MODULE:FUNCTION or FILE.py:FUNCTION; it is executed: name what you trust"
    trial.add_argument("function", metavar="FUNCTION", help=place)
    examples = "JSON lines or parquet with prompts and right answers"
    trial.add_argument("--data", type=Path, metavar="FILE", required=True, help=examples)
    trial.add_argument("--answer", metavar="COLUMN", help="column of the right answer (default: answer, solution, ...)")
    trial.add_argument("--form", metavar="TEXT", help="how completions answer, such as '<answer>{}</answer>'")
    trial.add_argument("--rows", type=int, default=20, metavar="N", help="how many prompts are asked (default 20)")
    trial.add_argument("--json", action="store_true", help="one JSON object")

    replay = command(_replay)
    source = "run id, folder, `last`, or the file of a recorded step or of another framework's dump"
    replay.add_argument("run", metavar="RUN", help=source)
    replay.add_argument("--step", type=int, metavar="N", help="number of a recorded step")
    replay.add_argument("--tokens", type=int, metavar="ROW", help="also show each token of completion ROW")
    replay.add_argument("--json", action="store_true", help="one JSON object a stage")

    conform = command(_conform, of_runs=False)
    conform.add_argument("function", metavar="FUNCTION", help=place)
    claim = "what it claims to be: " + ", ".join(NAMES)
    conform.add_argument("--as", required=True, metavar="NAME", dest="definition", help=claim)
    conform.add_argument("--json", action="store_true", help="one JSON object a case")

    completion = command(_completion, of_runs=False)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell that the script is for")

    doctor = command(_doctor, of_runs=False)
    doctor.add_argument("--trl", metavar="RELEASE", help="with --args: a release of TRL (default: the installed one)")
    arguments = (
        "TRL's arguments as JSON or YAML, or the folder of a recorded training: name the known defects that they meet"
    )
    doctor.add_argument("--args", type=Path, metavar="FILE", dest="arguments", help=arguments)
    return parser


def _add_audit_options(audit: argparse.ArgumentParser) -> None:
    audit.add_argument("--model", metavar="MODEL", help="folder or hub id of the model, if PATH has no config.json")
    audit.add_argument("--limit", type=int, metavar="N", help="max_completion_length of the run")
    audit.add_argument("--stop", action="append", default=[], metavar="STRING", help="a stop string of the run")
    setting = "a setting of the run, by TRL's name"
    audit.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=setting)
    audit.add_argument("--baseline", metavar="NAME", help="documented run to compare the reward with")
    elsewhere = "the run's completions, if not next to its log: verl's rollout_data_dir"
    audit.add_argument("--completions", type=Path, metavar="FOLDER", help=elsewhere)
    own = "Python file with your own rules; it is executed"
    audit.add_argument("--rules", type=Path, metavar="FILE", help=own)
    formats = "the same with readers of your own formats"
    audit.add_argument("--readers", type=Path, metavar="FILE", help=formats)


def _add_page_options(parser: argparse.ArgumentParser, what: str) -> None:
    text = "pages to share, without host names, user names, absolute paths and secrets (default reports-redacted/)"
    parser.add_argument("--out", type=Path, help=f"folder {what} (default reports/ next to runs/)")
    parser.add_argument("--redact", action="store_true", help=text)


def _add_batch_options(parser: argparse.ArgumentParser, metavar: str, help: str) -> None:
    several = {"action": "append", "default": []}
    parser.add_argument("-p", "--parameter", metavar=metavar, help=help, **several)
    file = "parameters from a YAML file; -p overrides them"
    parser.add_argument("-f", "--parameters-file", metavar="FILE", help=file, **several)
    jobs = "runs at a time, each in its own process (default 1; on Slurm as many as it starts)"
    parser.add_argument("--jobs", type=int, metavar="N", help=jobs)
    gpus = "GPUs for each run (default 1 where there are any; on Slurm none)"
    parser.add_argument("--gpus", metavar="N", help=gpus)
    fail = "finding of the audit that makes the exit code 1 (default problem in your own notebooks)"
    parser.add_argument("--fail-on", choices=("problem", "nothing"), help=fail)
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    parser.add_argument("--executor", choices=("local", "slurm"), default="local", help="where to run (default local)")
    kernel = "one of Jupyter's Python kernels (default this Python)"
    parser.add_argument("-k", "--kernel", metavar="NAME", help=kernel)
    parser.add_argument("--cwd", metavar="FOLDER", help="working folder of the kernel (default the notebook's folder)")
    limit = "time limit of each cell, in seconds (default none)"
    parser.add_argument("--execution-timeout", type=float, metavar="SECONDS", help=limit)
    slurm = parser.add_argument_group("with --executor slurm")
    slurm.add_argument("--partition", metavar="NAME")
    slurm.add_argument("--time", help="time limit of a job: minutes, or as 4:00:00 or 1-12 (default 60)")
    slurm.add_argument("--cpus", type=int, metavar="N", help="cores for each run (default 1)")
    slurm.add_argument("--mem", help="memory for each run: GB, or as 64G or 512M (default 4G)")
    slurm.add_argument("--requeues", type=int, metavar="N", help="after preemption or time limit (10)")
    slurm.add_argument("--sbatch", metavar="KEY=VALUE", help="any other sbatch option", **several)
    slurm.add_argument("--setup", metavar="LINE", help="shell line to execute before a run: module load x", **several)
    slurm.add_argument("--python", metavar="COMMAND", help="Python of the nodes, as `apptainer exec --nv IMAGE python`")
    own = "your own job script, see --print-template"
    slurm.add_argument("--sbatch-template", type=Path, metavar="FILE", help=own)
    slurm.add_argument("--print-template", action="store_true", help="print the default job script, start nothing")
    slurm.add_argument("--detach", action="store_true", help="submit and return; see `workbench status`")


# --- what is done ---------------------------------------------------------------------------------------------------


def _run(args) -> int:
    """Run notebooks, each in a new run folder with its log, metrics, completions and report.

    Example: workbench run 05_grpo_docs_example -p steps=80 -p seed=1
    """
    from .lab.batch import plan
    from .lab.batch import run as batch

    given = _of_files(args) | parse_assignments(args.parameter)
    several = len(args.notebooks) > 1
    if several and (args.resume is not None or given):
        raise ParameterError("-p and --resume need a single notebook; run the others with separate commands")
    if args.force and not args.resume:
        raise ParameterError("--force needs --resume RUN, with the run to take over")
    options = {"root": args.runs_dir, "resume": args.resume, "force": args.force, "how": _how(args)}
    entries = [plan.plan_run(name, given, **options) for name in args.notebooks]
    if several or args.dry_run or args.executor == "slurm":
        return _conclude(args, entries) if _execute(args, entries) else 0
    gpus = _number_of_gpus(args.gpus)
    batch.check_here(args.jobs, gpus)
    if args.force and (unknown := what_is_unknown(entries[0].run.status)):
        print(f"--force: takes the run although it is {unknown}", file=sys.stderr)
    run, state = batch.execute_one(entries[0], quiet=args.quiet, gpus=gpus)
    print(batch.finish(run))
    return 0 if batch.succeeded(run, args.fail_on) else 130 if state == "interrupted" else 1


def _sweep(args) -> int:
    """Run a notebook over a grid of parameters and compare the runs.

    If you call it again, it skips the runs that are done and continues those that were interrupted.

    Example: workbench sweep 05_grpo_docs_example -p seed=0..4 --jobs 2
    """
    from .lab.batch.plan import plan_sweep

    given = parse_assignments(args.parameter)
    fixed = {name: value for name, value in _of_files(args).items() if name not in given}
    entries = plan_sweep(args.notebook, given, args.runs_dir, fixed, _how(args))
    if not _execute(args, entries):
        return 0
    from .lab.reports import default_folder
    from .lab.reports.sweep import build_sweep_report, remember_sweep  # loads what draws; a plan is shown without

    remember_sweep(args.notebook, given, entries, fixed=fixed)
    folder = args.out or default_folder(args.runs_dir, redact=args.redact)
    page = build_sweep_report(args.notebook, given, entries, folder, fixed=fixed, redact=args.redact)
    print(f"report {page}")
    return _conclude(args, entries)


def _how(args) -> dict:
    if args.execution_timeout is not None and not 0 < args.execution_timeout < math.inf:
        expected = "expected seconds above 0; leave it out for no limit"
        raise ParameterError(f"--execution-timeout {args.execution_timeout:g}: {expected}")
    cwd = args.cwd and os.path.abspath(args.cwd)
    limit = args.execution_timeout and math.ceil(args.execution_timeout)  # nbclient takes whole seconds
    return {"kernel": args.kernel, "cwd": cwd, "execution_timeout": limit}


def _of_files(args) -> dict:
    """Read the parameters of all `-f FILE`; a later file wins."""
    if not args.parameters_file:
        return {}
    found: dict = {}
    for path in args.parameters_file:
        try:
            values = parse_yaml(Path(path).read_text(encoding="utf-8"))
            json.dumps(values)
        except (OSError, ValueError, TypeError) as error:
            raise ParameterError(f"-f {path}: expected YAML with values that a parameter can have ({error})") from None
        if not isinstance(values, dict):
            raise ParameterError(f"-f {path}: expected a mapping, NAME: VALUE")
        for name, value in values.items():
            if isinstance(value, list | dict) and jsonable(value) != value:  # params.json would change it
                raise ParameterError(
                    f"-f {path}: {name}: {repr(value)[:200]}: expected finite numbers, and texts as the names of a mapping"
                )
        found |= {str(name): value for name, value in values.items()}
    return found


def _number_of_gpus(given: str | None) -> int | None:
    try:
        return None if given is None else int(given)
    except ValueError:
        raise ParameterError(
            f"--gpus {given}: expected a whole number; only --executor slurm takes a kind of GPU"
        ) from None


def _execute(args, entries: Sequence) -> bool:
    """Execute a plan where `--executor` says; False when it was only shown or handed over to Slurm."""
    from .lab.batch import plan
    from .lab.batch import run as batch

    options, scripts, unchecked = _slurm_options(args), "", ""
    if args.print_template:
        print(options.template.read_text(encoding="utf-8"), end="")
        return False
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
    from .lab.batch.slurm import TEMPLATE, SlurmOptions, parse_time

    names = ("partition", "time", "cpus", "mem", "requeues", "setup", "python")
    if args.executor == "slurm":
        options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        if "time" in options:
            options["time"] = parse_time(options["time"])
        extra = parse_assignments(args.sbatch, "--sbatch")
        options["template"] = args.sbatch_template or TEMPLATE
        return SlurmOptions(gpus=args.gpus or 0, parallel=args.jobs, extra=extra, **options)
    every = (*names, "sbatch", "sbatch_template", "print_template", "detach")
    if any(value or type(value) is int for value in (getattr(args, name) for name in every)):  # a number may be 0
        *most, last = (f"--{name.replace('_', '-')}" for name in every)
        raise ParameterError(f"{', '.join(most)} and {last} need --executor slurm")
    return None


def _conclude(args, entries: Sequence) -> int:
    from .lab.batch import run as batch

    print(batch.tally(entries))
    return 0 if all(batch.succeeded(e.run, args.fail_on) for e in entries) else 1


def _status(args) -> int:
    """Show each run in a line: its state, step and place, or its result, failed checks and findings.

    The exit code is 1 where a run or a check of it failed, your own notebook has a problem, or a run cannot be read.

    Example: workbench status 05_grpo_docs_example
    """
    from .lab.batch import manage

    runs = [run for name in args.runs for run in manage.find_runs(name, args.runs_dir)] or list_runs(args.runs_dir)
    seen, bad = dict(manage.look(runs)), []
    summaries: list[RunSummary | None] = []

    def row(run: Run) -> str:
        summary = RunSummary.of(run, seen[run])
        summaries.append(summary)
        if summary.status["state"] == "failed" or summary.failed or summary.problem_counts():
            bad.append(f"{run.notebook}/{run.id}")
        return json.dumps(jsonable(summary.row)) if args.json else summary.line

    code = _print_rows(runs, row, as_json=args.json)
    if not args.json and len(runs) != 1:
        unread = [None] * (len(runs) - len(summaries))
        text = tally([*summaries, *unread])
        if bad:
            names = one_line(", ".join(bad[:5])) + f" and {len(bad) - 5} more" * (len(bad) > 5)
            text += f"; {len(bad)} failed: {names}"
        print(text if runs else f"no runs in {args.runs_dir or runs_root()}")
    return int(code or bool(bad))


def _print_rows(runs: Sequence[Run], row: Callable[[Run], str | None], *, as_json: bool = False) -> int:
    """A line for each run; the exit code is 1 where one cannot be read, and its line says why."""
    code = 0
    for run in runs:
        try:
            shown = row(run)
        except Exception as error:  # whatever is odd in one run, the others are shown
            about = {"run": str(run.path), "notebook": run.notebook, "id": run.id, "state": "unreadable"}
            shown = json.dumps(about | {"error": hide_tokens(str(error))}) if as_json else unreadable(run, error)
            code = 1
        if shown:
            print(shown)
    return code


def _logs(args) -> int:
    """Print what a run's notebook and the training in it wrote, also while it runs.

    Example: workbench logs last --follow
    """
    from .lab.batch import manage

    for text in manage.read_log(manage.find_runs(args.run, args.runs_dir)[-1], follow=args.follow):
        print(text, end="", flush=True)
    return 0


def _cancel(args) -> int:
    """End runs; a training finishes its step and writes a checkpoint, from which `--resume` goes on.

    Example: workbench cancel last
    """
    from .lab.batch import manage

    for run in [manage.find_run(name, args.runs_dir) for name in args.runs]:  # all are looked up before the first ends
        manage.cancel(run, args.grace, force=args.force)
        print(RunSummary.of(run).line)
    return 0


def _list(args) -> int:
    """List the notebooks, or of one notebook the parameters with default, allowed values and meaning.

    Example: workbench list 05_grpo_docs_example
    """
    from .lab.batch import notebooks

    if not args.notebook:
        print(*map(one_line, notebooks.list_notebooks()), sep="\n")
        return 0
    for p in notebook_parameters(notebooks.find_notebook(args.notebook)).values():
        print(one_line(f"{p.name} = {p.default!r}  ({p.expected})  {p.help}"))
    return 0


def _notebooks(args) -> int:
    """Copy the notebooks into a folder where you can change them; the other commands look into notebooks/ first.

    Example: workbench notebooks notebooks
    """
    from .lab.batch.notebooks import copy_notebooks

    for path in copy_notebooks(args.folder):
        print(path)
    if args.folder.name != "notebooks":
        print(f"JupyterLab writes their runs to {args.folder / 'runs'}; pass it as --runs-dir", file=sys.stderr)
    return 0


def _new(args) -> int:
    """Write a small notebook that runs at once, as a start for your own.

    `workbench run NAME.ipynb` and `workbench sweep` take it like the others.

    Example: workbench new my_question
    """
    from .lab.batch.notebooks import write_notebook

    path = write_notebook(args.name, args.folder)
    quoted = shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))
    print(f"{path}\nchange it with `jupyter lab {quoted}`, run it with `workbench run {quoted}`")
    return 0


def _report(args) -> int:
    """Build the HTML reports and their index; the pages open without a network.

    Each run gets a report and a page of all its completions, each sweep its comparison. A folder that stock TRL wrote gets the
    page of completions.

    Example: workbench report --redact
    """
    from .lab.batch.audit import audit_done
    from .lab.reports import build_index, default_folder
    from .lab.reports.index import lies_below

    others = [p for p in args.runs if not (p / "params.json").is_file()]
    runs = [load_run(p) for p in args.runs if p not in others] or ([] if others else list_runs(args.runs_dir))
    if not runs and not others:
        raise WorkbenchError(f"no runs in {args.runs_dir or runs_root()}; make one with `workbench run NOTEBOOK`")
    if others:
        from .lab.reports.microscope import report_folder  # loads what reads tables

        for folder in others:
            print(report_folder(folder, args.out, redact=args.redact))
    if not runs:
        return 0
    code = _print_rows(runs, check_readable)
    root = None if args.runs else Path(args.runs_dir or runs_root())
    audit_done([run for run in runs if root is None or lies_below(run, root)])
    folder = args.out or default_folder(args.runs_dir, redact=args.redact)
    if not args.runs:
        from .lab.reports.sweep import rebuild_sweep_reports  # loads what draws

        _, unread = rebuild_sweep_reports(args.runs_dir or runs_root(), folder, redact=args.redact)
        for line in unread:
            print(one_line(hide_tokens(line)), file=sys.stderr)
    print(build_index(runs, folder, redact=args.redact, root=root))
    return code


def _audit(args) -> int:
    """Find out from the log of any RL training what is wrong with it, why, and how to fix it.

    It also says what the log cannot show. In a folder it reads all runs and logs, but none in hidden folders or among
    installed packages. Exit code 0: no problem, 1: problems, 2: unusable input,
    3: the audit could not finish.

    Example: workbench audit outputs/checkpoint-500 --stop '</answer>'
    """
    from .audit.report import audit_paths

    form = next((name for name in ("brief", "json", "sarif") if getattr(args, name)), "text")
    return audit_paths(args.paths, form=form, fail_on=args.fail_on, **_given_to_audit(args))


def _given_to_audit(args) -> dict:
    """The arguments of `audit_run`; files of the user are executed before a log is read."""
    from .audit.check import load_rules
    from .logs.formats import load_readers

    return {
        "rules": load_rules(args.rules) if args.rules else (),
        "readers": load_readers(args.readers) if args.readers else (),
        "limit": args.limit,
        "stops": args.stop,
        "model": args.model,
        "baseline": args.baseline,
        "settings": args.set,
        "completions": args.completions,
    }


def _watch(args) -> int:
    """Audit the log of any framework whenever it grows, and print each new problem or warning in a line.

    `attach_watch` sees more of a training with TRL. Exit code 0: process N ended without a problem, 1: problems,
    2: unusable input, 3: the audit could not finish, 130: Ctrl-C.

    Example: workbench watch train.log --until problem --pid 4711
    """
    from .audit.follow import follow

    return follow(args.path, until=args.until, every=args.every, pid=args.pid, **_given_to_audit(args))


def _reward_report(args) -> int:
    """Say which feature of a completion the reward of a training paid for, from its recorded completions.

    Exit code 0: none is named, 1: one is, 2: unusable input, 3: the report could not finish.

    Example: workbench reward-report outputs --answers train.jsonl
    """
    from .reward.features import load_features
    from .reward.report import reward_report

    own = load_features(args.features) if args.features else []
    report = reward_report(args.path, answers=args.answers, features=own)
    print(json.dumps(jsonable(report.as_json())) if args.json else report)
    return int(bool(report.named))


def _reward(args) -> int:
    """Ask a reward function before a training about completions that are made to fool it.

    Exit code 0: no problem, 1: problems, 2: unusable input, 3: the trial could not finish.

    Example: workbench reward rewards.py:reward_exact --data train.jsonl
    """
    from .reward.call import load_function  # after the trial's own imports, which a user's folder is not to answer
    from .reward.trial import try_reward

    # A shell passes `\n` as two characters; LaTeX has commands that begin with them.
    form = args.form and re.sub(r"\\n(?!abla|eq\b|earrow|exists|ewline|ot(?:in)?\b|u\b)", "\n", args.form)
    with contextlib.redirect_stdout(sys.stderr):  # what the function prints is no part of the report
        function = load_function(args.function)
        report = try_reward(function, args.data, answer=args.answer, form=form, rows=args.rows)
    print(json.dumps(jsonable(report.as_json())) if args.json else report)
    return int(bool(report.problems))


def _replay(args) -> int:
    """Compute a recorded step again, stage by stage, and name the first that differs; it needs no model and no GPU.

    A training with `record_steps` keeps each of these steps in a file, which you can attach to a bug report. Secrets in it
    are hidden; it holds the prompts and completions of the run. Dumps of slime, prime-rl, NeMo-RL, verl and AReaL are judged
    as far as they go. Exit code 0: no stage differs, 1: one does, 2: unusable input,
    3: the replay could not finish.

    Example: workbench replay last --step 50
    """
    from .lab.replay import replay

    return replay(args.run, args.step, args.runs_dir, tokens=args.tokens, as_json=args.json)


def _conform(args) -> int:
    """Ask any loss or advantages what their definition answers: same, other by choice, or wrong with the smallest case.

    The function gets arrays by its parameters' names, such as logps, advantages, mask; an error lists all. A loss returns value
    and slopes by logps, or is @with_torch. Exit code 0: no case is wrong, 1: one is, 2: unusable input, 3: the comparison
    could not finish.

    Example: workbench conform my_pkg.loss:policy_loss --as dapo
    """
    from .conform.command import conform

    return conform(args.function, args.definition, as_json=args.json)


def _completion(args) -> int:
    """Print a script that lets a shell complete commands, options, notebooks and files; it needs the package shtab.

    Write it to ~/.local/share/bash-completion/completions/workbench, or execute it in each shell.

    Example: workbench completion bash
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise MissingDependencyError("workbench completion needs shtab: pip install shtab") from None
    parser = _parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for action in (action for command in commands.values() for action in command._actions):
        if action.metavar == "NOTEBOOK":
            action.complete = shtab.cmd("workbench list")  # asked at the Tab key, as the folder may have notebooks
        elif action.type is Path or action.metavar in ("FILE", "FOLDER"):
            action.complete = shtab.FILE
    print(shtab.complete(parser, args.shell))
    return 0


def _doctor(args) -> int:
    """Compare the installed packages with what the workbench needs, and say which back ends can run here.

    With --args FILE it says instead which known defects of a TRL release these settings meet. The exit code is 1 if
    something is wrong, or if the settings meet a defect.

    Example: workbench doctor --trl 1.8.0 --args grpo.yaml
    """
    from .lab.doctor import examine

    if args.arguments or args.trl:
        from .audit.known_defects import print_defects

        if not args.arguments:
            raise ParameterError("--trl needs the settings of a training: give them with --args FILE")
        return print_defects(args.trl, args.arguments)

    findings = sorted(examine(), key=lambda finding: ("error", "warning", "ok").index(finding.verdict))
    for finding in findings:
        print(f"{finding.verdict:8} {finding.subject}: {finding.detail}")
    return 1 if any(f.verdict == "error" for f in findings) else 0
