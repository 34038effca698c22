"""The command line: `workbench list | run | sweep | report | claims | doctor`."""

import argparse
import json
import sys
from pathlib import Path

from .errors import WorkbenchError
from .runs import Run, list_runs, load_run, runs_root


def main(argv: list[str] | None = None) -> int:
    """Parse, dispatch, and turn the workbench's own errors into one line and exit code 2."""
    args = _parser().parse_args(argv)
    try:
        return args.command(args)
    except WorkbenchError as error:
        print(f"workbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("workbench: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="workbench", description="RL fine-tuning runs that can be trusted")
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser("run", help="run notebooks, each in a run folder of its own")
    run.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="name, or path of an .ipynb file")
    run.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE")
    run.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with an interrupted run (default: the latest)"
    )
    run.add_argument("--runs-dir", type=Path, help=f"folder of all runs (default {runs_root()})")
    run.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="notebooks at a time, each in a process of its own"
    )
    run.add_argument("-q", "--quiet", action="store_true", help="no bars and no output of the notebook")
    run.set_defaults(command=_run)

    sweep = commands.add_parser("sweep", help="run a notebook over a grid of parameters and compare the runs")
    sweep.add_argument("notebook")
    sweep.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="seed=0..4, learning_rate=1e-4,3e-4",
    )
    sweep.add_argument("--runs-dir", type=Path)
    sweep.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time, each in a process of its own")
    sweep.add_argument("--dry-run", action="store_true", help="check everything and print the plan")
    sweep.add_argument("--out", type=Path, help="folder of the comparison (default reports/ beside runs/)")
    sweep.set_defaults(command=_sweep)

    listing = commands.add_parser("list", help="notebooks and runs; with a notebook, its parameters")
    listing.add_argument("notebook", nargs="?")
    listing.add_argument("--runs-dir", type=Path)
    listing.add_argument("--json", action="store_true", help="one JSON object a run")
    listing.set_defaults(command=_list)

    report = commands.add_parser("report", help="build the HTML reports and their index")
    report.add_argument("runs", nargs="*", type=Path, help="run folders (default: all)")
    report.add_argument("--runs-dir", type=Path)
    report.add_argument("--out", type=Path, help="folder of the index (default reports/ beside runs/)")
    report.set_defaults(command=_report)

    sheet = commands.add_parser("claims", help="every claim of the articles beside what was measured here")
    sheet.add_argument("--runs-dir", type=Path)
    sheet.add_argument("--markdown", action="store_true", help="as a markdown table")
    sheet.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers in FILE")
    sheet.set_defaults(command=_claims)

    doctor = commands.add_parser("doctor", help="check the environment: versions, back ends, hardware")
    doctor.set_defaults(command=_doctor)
    return parser


def _run(args) -> int:
    from .batch import execute, local, parameters

    given = parameters.parse_assignments(args.parameter)
    if len(args.notebooks) > 1:
        if args.resume is not None or given:
            raise WorkbenchError("-p and --resume go with one notebook; run the others by a command of their own")
        for name in args.notebooks:  # all are looked up before the first starts
            parameters.notebook_parameters(execute.find_notebook(name))
        return local.run_many([[name] for name in args.notebooks], jobs=args.jobs, runs_dir=args.runs_dir)
    notebook = args.notebooks[0]
    run = execute.prepare_run(notebook, given, root=args.runs_dir, resume=args.resume)
    print(f"run folder {run.path}", file=sys.stderr)
    state = execute.execute_run(run, notebook=notebook, quiet=args.quiet)
    return _finish(run, state)


def _sweep(args) -> int:
    from .batch import parameters, sweep

    given = parameters.parse_assignments(args.parameter)
    entries = sweep.plan_sweep(args.notebook, given, args.runs_dir)
    for entry in entries:
        if args.dry_run or entry.action in ("skip", "leave"):
            print(f"{entry.action:6} {entry.name}" + (f"  ({entry.run.id}, {entry.state})" if entry.run else ""))
    if args.dry_run:
        return 0
    sweep.run_sweep(args.notebook, entries, jobs=args.jobs, root=args.runs_dir)
    return _compare(args, given, entries)


def _compare(args, given: dict, entries: list) -> int:
    from .reports import default_folder
    from .sweep_report import build_sweep_report

    name = " ".join(f"{k}={v}" for k, v in given.items())
    folder = args.out or default_folder(args.runs_dir)
    print(f"report {build_sweep_report(Path(args.notebook).stem, name, entries, folder)}")
    good = [e for e in entries if e.state == "done" and not _failed_checks(e.run)]
    print(f"{len(good)} of {len(entries)} runs are done and their checks hold")
    return 0 if len(good) == len(entries) else 1


def _claims(args) -> int:
    from . import claims

    rows = claims.claims_sheet(list_runs(args.runs_dir))
    if args.write:
        claims.write_sheet(args.write, rows)
        print(args.write)
    elif args.markdown:
        print(claims.as_markdown(rows), end="")
    else:
        for row in rows:
            print(f"{row.id}  {row.verdict}: {row.claim}" + (f" | here: {row.measured}" if row.measured else ""))
    return 0


def _failed_checks(run: Run) -> list[str]:
    return [name for name, ok in run.result.get("checks", {}).items() if ok is False]


def _finish(run: Run, state: str) -> int:
    from .reports import build_report

    print(f"{run.notebook} {run.id}: {_outcome(run)}")
    print(f"report {build_report(run)}")
    return 0 if state == "done" and not _failed_checks(run) else 130 if state == "interrupted" else 1


def _outcome(run: Run) -> str:
    status, result = run.status, run.result
    text = status["state"] + (f": {status['error']}" if status.get("error") else "")
    if headline := result.get("headline"):
        value = headline["value"]
        text += f", {headline['name']} {value:.4g}" if isinstance(value, float) else f", {headline['name']} {value}"
    failed = _failed_checks(run)
    return text + (f", {len(failed)} checks fail: {'; '.join(failed)}" if failed else "")


def _list(args) -> int:
    from .batch import execute, parameters

    if args.notebook:
        for p in parameters.notebook_parameters(execute.find_notebook(args.notebook)).values():
            print(f"{p.name} = {p.default!r}  ({p.expected})  {p.help}")
        return 0
    if args.json:
        for run in list_runs(args.runs_dir):
            print(json.dumps({"run": str(run.path), "status": run.status, "params": run.params, "result": run.result}))
        return 0
    print("notebooks")
    for path in sorted(execute.notebooks_dir().glob("*.ipynb")):
        print(f"  {path.stem}")
    print(f"runs in {args.runs_dir or runs_root()}")
    for run in list_runs(args.runs_dir):
        print(f"  {run.notebook} {run.id}: {_outcome(run)}")
    return 0


def _report(args) -> int:
    from .reports import build_index, build_report, default_folder

    runs = [load_run(p) for p in args.runs] or list_runs(args.runs_dir)
    if not runs:
        raise WorkbenchError(f"no runs in {args.runs_dir or runs_root()}; make one with `workbench run NOTEBOOK`")
    for run in runs:
        build_report(run)
    print(build_index(runs, args.out or default_folder(args.runs_dir)))
    return 0


def _doctor(args) -> int:
    from .doctor import examine

    findings = examine()
    for finding in findings:
        print(f"{finding.verdict:5} {finding.subject}: {finding.detail}")
    return 1 if any(f.verdict == "wrong" for f in findings) else 0
