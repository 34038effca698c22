"""A batch from its plan to its last report: on this machine or as Slurm jobs."""

import functools
from pathlib import Path

from ..errors import WorkbenchError
from ..runs.run import Run, load_run


def _run_batch(args, given: dict) -> int:
    from . import sweep

    entries = [sweep.plan_run(name, given, root=args.runs_dir, resume=args.resume) for name in args.notebooks]
    if not _execute(args, entries):
        return 0
    print(_tally(entries))
    return 0 if all(_good(e.run) for e in entries) else 1


def _execute(args, entries: list) -> bool:
    """Run a plan to its end where `--executor` says; False when it was only shown or handed over."""
    from . import gpus, local

    for entry in entries:
        if args.dry_run or entry.action in ("skip", "leave"):
            print(f"{entry.action:6} {entry.name}" + (f"  ({entry.run.id}, {entry.state})" if entry.run else ""))
    if args.executor == "slurm":
        return _execute_on_slurm(args, entries)
    if args.partition or args.sbatch or args.detach:
        raise WorkbenchError("--partition, --sbatch and --detach go with --executor slurm")
    gpus.check_gpus(args.gpus)
    if not args.dry_run:
        work = functools.partial(_execute_prepared, gpus=args.gpus)
        local.run_entries(entries, work, jobs=args.jobs, root=args.runs_dir)
    return not args.dry_run


def _execute_prepared(folder: str, notebook: str, gpus: int | None) -> int:
    """What each process of a batch does."""
    from .execute import execute_run

    run = load_run(folder)
    return _finish(run, execute_run(run, notebook=notebook, quiet=True, gpus=gpus))


def _execute_on_slurm(args, entries: list) -> bool:
    from ..runs import parameters
    from . import slurm

    options = slurm.SlurmOptions(
        partition=args.partition,
        time=args.time,
        gpus=args.gpus or 0,
        cpus=args.cpus,
        mem=args.mem,
        parallel=args.jobs if args.jobs > 1 else None,
        requeues=args.requeues,
        extra=parameters.parse_assignments(args.sbatch, "--sbatch"),
    )
    slurm.check_slurm(options, max(1, sum(e.action in ("run", "resume") for e in entries)))
    if args.dry_run:
        print(slurm.scripts(entries, options, args.runs_dir), end="")
        return False
    slurm.submit(entries, options, args.runs_dir)
    if not args.detach:
        slurm.follow(entries)
        for entry in entries:
            _build(entry.run)
    return not args.detach


def _tally(entries: list) -> str:
    return f"{sum(_good(e.run) for e in entries)} of {len(entries)} runs are done and their checks hold"


def _good(run: Run | None) -> bool:
    from .display import failed_checks

    return run is not None and run.status["state"] == "done" and not failed_checks(run)


def _finish(run: Run, state: str) -> int:
    from .display import outcome

    print(f"{run.notebook} {run.id}: {outcome(run)}")
    print(f"report {_build(run)}")
    return 0 if _good(run) else 130 if state == "interrupted" else 1


def _build(run: Run) -> Path:
    from ..reports import build_report

    return build_report(run)
