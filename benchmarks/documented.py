"""The documented runs of data/baselines: add one from any log, and work its numbers out again from the file they are of.

    python -m benchmarks.documented add LOG --name my-run --title "Shown in figures" --like unsloth-llama3.1-8b-gsm8k-grpo
                                            --repository OWNER/NAME --file PATH --commit SHA --licence MIT
    python -m benchmarks.documented check FOLDER     FOLDER/OWNER+NAME/PATH of every file that is at hand

`python -m benchmarks.pages` then writes baselines.md. A log is whatever `workbench.logs.read` reads. data/sources.json
names, for each file, the run whose figures it holds.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from tools.record import ROOT, run_main
from workbench.curves.documented import as_text, load_baseline, load_sources
from workbench.errors import ParameterError, RunError
from workbench.logs.formats import runs_in
from workbench.logs.names import canonical
from workbench.logs.read import read_logs
from workbench.runs.files import write_text

SOURCES = ROOT / "data" / "sources.json"
MOST = 60  # points of a curve; of evaluations, which are never averaged, as many as there are
METRICS = {"reward": "reward", "completion_length": "mean_length"}  # of a new run -> name in the log
KNOWN = METRICS | {"reward_std": "reward_std", "kl": "kl"}  # of those that can be worked out again
FIELDS = (
    "run",
    "repository",
    "file",
    "commit",
    "blob",
    "sha256",
    "licence",
    "loads",
    "which",
    "column",
    "evals",
    "taken",
)


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def full_curves(
    path: Path, which: int = 0, column: str | None = None, evals: str | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Metric -> the steps that were logged and their values, (N,) each, of one of the runs in a log.

    Args:
        path: of the log.
        which: of its runs, as `workbench audit` lists them.
        column: the reward's, where the log has a name for it that is not known; null for known names.
        evals: column with a held-out accuracy, as the log names it.

    Raises:
        RunError: fewer runs, or no such column.
    """
    if column is None:
        logs = read_logs(path)
        if which >= len(logs):
            raise RunError(f"{path}: which={which}, it holds {len(logs)} runs, counted from 0")
        log = logs[which]
        values = {metric: log.logged(name) for metric, name in KNOWN.items()}
        steps = log.steps["step"].to_numpy(float)
        found = {metric: (steps[np.isfinite(y)], y[np.isfinite(y)]) for metric, y in values.items() if y is not None}
    else:
        found = {"reward": _column(path, which, column)}
    if evals:
        found["eval_accuracy"] = _column(path, which, evals)
    return found


def _column(path: Path, which: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps and values of a column, (N,) each, of those rows that have it."""
    run = runs_in(path, str(path))[which]
    table = run.table
    if path.suffix == ".csv":  # of which the reader keeps the columns that it knows
        table, (key, _, value) = pd.read_csv(path), run.label.partition(" ")
        table = table[table[key].astype(str) == value] if key in table else table
    steps = next((column for column, known in canonical(map(str, table.columns)).items() if known == "step"), None)
    if name not in table or steps is None:
        raise RunError(f"{path}: no {name if steps else 'step'}; it has {', '.join(map(str, table.columns))}")
    rows = table[[steps, name]].astype(float).dropna().groupby(steps, as_index=False).last()
    return rows[steps].to_numpy(), rows[name].to_numpy()


def thinned(x: np.ndarray, y: np.ndarray, most: int = MOST) -> dict:
    """The part of a baseline's curve that says where its points stand: at most so many, each the mean over its steps.

    Args:
        x, y: (N,), the steps that were logged, which end the stretches they are the means of.

    Example:
        >>> thinned(np.arange(1, 5), np.array([1.0, 2.0, 4.0, 8.0]), most=2)
        {'x': 'step', 'at': 'centre', 'steps_per_point': 2, 'points': [[1.5, 1.5], [3.5, 6.0]]}
        >>> thinned(np.array([10, 20]), np.array([1.0, 2.0]))
        {'x': 'step', 'at': 'end', 'steps_per_point': 10, 'points': [[10, 1.0], [20, 2.0]]}
    """
    gap = (
        round(float(np.median(np.diff(x)))) if len(x) > 1 and x[0] > 0 else 1
    )  # what is known before step 1 is no mean
    together = -(-len(x) // most)
    parts = [slice(n, n + together) for n in range(0, len(x), together)]
    shift = (gap - 1) / 2 if together > 1 else 0
    points = [[_short(x[part].mean() - shift), float(f"{y[part].mean():.6g}")] for part in parts]
    return {"x": "step", "at": "centre" if together > 1 else "end", "steps_per_point": together * gap, "points": points}


def _points(metric: str, full: dict) -> dict:
    if metric.startswith("eval_"):
        return thinned(*full[metric], most=len(full[metric][0])) | {"steps_per_point": 1}
    return thinned(*full[metric])


def _short(number: float) -> int | float:
    return int(number) if number == int(number) else round(float(number), 4)


def baseline(full: dict, about: dict) -> dict:
    """A baseline's file from the curves of a log and what is known about the run.

    Args:
        full: of `full_curves`.
        about: `name`, `title`, `source`, `reward` (with unit, low, high), and any other field of a baseline.
    """
    reward = about["reward"]
    lengths = {"unit": "tokens", "low": 0, "high": None}
    accuracy = {"unit": "share of right answers", "low": 0.0, "high": 1.0}
    kinds = {"reward": {k: reward[k] for k in ("unit", "low", "high")}}
    kinds |= {"completion_length": lengths, "eval_accuracy": accuracy}
    curves = {metric: kind | _points(metric, full) for metric, kind in kinds.items() if metric in full}
    fields = ("name", "title", "source", "date", "method", "model", "data", "hardware", "time")
    made = {name: about.get(name) for name in fields} | {
        "seeds": about.get("seeds", 1),
        "reward": reward,
        "curves": curves,
    }
    made |= {"figures": about.get("figures", {}), "unknown": about.get("unknown") or ["spread between seeds"]}
    return made | {"task": about.get("task", ""), "recipe": about.get("recipe", "")}


def source_row(path: Path | None, **fields) -> dict:
    """A row of the table of sources, with the file's hash where it is at hand."""
    if odd := fields.keys() - set(FIELDS):
        raise ParameterError(f"a source has no {', '.join(sorted(odd))}; expected {', '.join(FIELDS)}")
    return dict.fromkeys(FIELDS) | fields | ({"sha256": sha256(path)} if path else {})


def save_sources(rows: list[dict]) -> None:
    """Write the table, in the order of the runs' names; of a run's files the one that its figures are of comes first."""
    write_text(SOURCES, as_text(sorted(rows, key=lambda row: row["run"])))


def differences(row: dict, path: Path) -> list[str]:
    """What a run's stored curves have otherwise than its source's file; empty where every number comes out again.

    Raises:
        RunError: the file has another hash.
    """
    if (found := sha256(path)) != row["sha256"]:
        raise RunError(f"{path}: sha256 {found[:12]}..., expected {row['sha256'][:12]}...: another version of the file")
    full = full_curves(path, row["which"] or 0, row["column"], row["evals"])
    stored, wrong = load_baseline(row["run"]).curves, []
    again = [metric for metric in stored if metric in full]
    if not again:
        wrong.append(f"{row['run']}: none of {', '.join(stored) or 'no curve'} is in {path.name}")
    for metric in again:
        mine, theirs = (np.array(one["points"], float) for one in (stored[metric], _points(metric, full)))
        near = mine.shape == theirs.shape and np.allclose(mine, theirs, rtol=2e-5, atol=1e-6)
        if not near:
            wrong.append(f"{row['run']}: {metric}: {len(mine)} stored points, {len(theirs)} worked out, not the same")
    return wrong


def check(folder: Path) -> int:
    """Work out again what the files at hand say; prints a line a source, returns how many do not agree."""
    bad = seen = 0
    for row in load_sources():
        path = folder / (row["repository"] or "").replace("/", "+") / (row["file"] or "")
        if not row["sha256"] or not path.is_file():
            continue
        seen += 1
        try:
            wrong = differences(row, path)
        except (RunError, ParameterError) as error:
            wrong = [str(error)]
        bad += bool(wrong)
        print("; ".join(wrong) or f"{row['run']}: agrees with {row['repository']} {row['file']}")
    print(f"{seen} files at hand, {bad} do not agree")
    return bad


def add(args: argparse.Namespace) -> None:
    """Write data/baselines/NAME.json and the row of its source."""
    target = ROOT / "data" / "baselines" / f"{args.name}.json"
    if target.exists():
        raise ParameterError(f"name={args.name!r}: {target} is there; give another name")
    like = load_baseline(args.like) if args.like else None
    if like is None and not args.unit:
        raise ParameterError("expected --like NAME, a documented run of the same reward and data, or --unit in words")
    reward = like.reward if like else {"name": args.unit, "unit": args.unit, "low": args.low, "high": args.high}
    source = f"github.com/{args.repository}, {args.file} at {args.commit[:7]}"
    about = {"name": args.name, "title": args.title, "source": source, "reward": reward}
    about |= {"model": args.model, "method": args.method, "data": args.data or (like and like.data)}
    about |= {"task": args.task or (like.task if like else ""), "recipe": args.recipe}
    made = baseline(full_curves(args.log, args.which, args.column, args.evals), about)
    row = source_row(args.log, run=args.name, repository=args.repository, file=args.file, commit=args.commit)
    row |= {name: getattr(args, name) for name in ("licence", "which", "column", "evals")}
    row |= {"taken": ", ".join(made["curves"])}
    write_text(target, as_text(made))
    save_sources([*load_sources(), row])
    print(f"{target.relative_to(ROOT)}: {', '.join(made['curves'])}; now: python -m benchmarks.pages")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("add")
    new.add_argument("log", type=Path)
    for name in ("name", "title", "repository", "file", "commit"):
        new.add_argument(f"--{name}", required=True)
    for name in ("like", "licence", "unit", "method", "model", "data", "task", "recipe", "column", "evals"):
        new.add_argument(f"--{name}", default="" if name in ("task", "recipe") else None)
    for name in ("low", "high"):
        new.add_argument(f"--{name}", type=float)
    new.add_argument("--which", type=int, default=0)
    commands.add_parser("check").add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.command == "check":
        sys.exit(1 if check(args.folder) else 0)
    add(args)


if __name__ == "__main__":
    run_main(main)
