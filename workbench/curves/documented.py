"""Documented runs as data with their sources.

A baseline is a JSON file in `data/baselines/`; `$WORKBENCH_BASELINES` names a folder of more, whose files come first.
`data/README.md` describes the format.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from ..errors import ParameterError, WorkbenchError, did_you_mean, warn_user
from ..extras import packaged
from ..runs.files import jsonable, read_json
from .curve import Curve

OPTIONAL = {"recorded", "task", "recipe"}  # fields of a file


@dataclasses.dataclass(frozen=True, repr=False)
class Baseline:
    """One documented run: where it is from, what was trained on what, and its figures.

    `seeds` is None where it is not stated. `figures` maps a name to `value`, `unit`, `what` and `from` ("published",
    "full log": computed from the log before its curve was thinned, or "computed": from what was published). `unknown` lists
    what is not known of the run. `task` is what was learned, in a word that runs share; `recipe` names a recipe (task, reward,
    model) that several people ran.
    """

    name: str
    title: str
    source: str
    date: str | None
    method: str
    model: str | None
    data: str | None
    hardware: str | None
    time: str | None
    seeds: int | None
    reward: dict
    curves: dict
    figures: dict
    unknown: list
    recorded: dict = dataclasses.field(default_factory=dict)
    task: str = ""
    recipe: str = ""

    def __repr__(self) -> str:
        return f"<Baseline {self.name}: {self.title}; curves: {', '.join(self.curves)}; {self.source}>"

    def curve(self, metric: str = "reward") -> Curve:
        """One of the documented curves; a ParameterError names those that there are, and the nearest spelling."""
        y = np.array(self._stored(metric)["points"], float)[:, 1]  # null becomes NaN
        return self._drawn(metric, self.title, y)

    def curves_by_seed(self, metric: str = "reward") -> list[Curve]:
        """The same curve of each seed, where the file holds them; `curve` is their mean. Empty where it does not."""
        by_seed = self._stored(metric).get("by_seed", {})
        return [self._drawn(metric, f"{self.name}, seed {seed}", np.array(y, float)) for seed, y in by_seed.items()]

    def _stored(self, metric: str) -> dict:
        return _known(f"{self.name} has no curve", metric, self.curves)

    def _drawn(self, metric: str, label: str, y: np.ndarray) -> Curve:
        found = self._stored(metric)
        span = found.get("steps_per_point")
        x = np.array([point[0] for point in found["points"]], float)
        return Curve(label, x, y, found["unit"], found["low"], found["high"], found["at"], span)

    def figure(self, name: str) -> float:
        """The value of one of the figures; a ParameterError names those that there are, and the nearest spelling."""
        return _known(f"{self.name} has no figure", name, self.figures)["value"]


def _known(complaint: str, name: str, known: dict):
    if name in known:
        return known[name]
    raise ParameterError(
        f"{complaint} {name!r}: {did_you_mean(name, known, 0.5)}there are {', '.join(known) or 'none'}"
    )


def _own_folders() -> list[Path]:
    folder = os.environ.get("WORKBENCH_BASELINES")
    return [Path(folder)] if folder else []


def _files() -> dict[str, Path]:
    """Name -> file; those of `$WORKBENCH_BASELINES` stand for bundled ones of the same name."""
    folders = [packaged("data") / "baselines", *_own_folders()]
    files = {p.stem: p for folder in folders for p in folder.glob("*.json")}
    return dict(sorted(files.items()))


def list_baselines() -> list[str]:
    """Names of all documented runs that `load_baseline` finds, sorted."""
    return list(_files())


def load_baseline(name: str) -> Baseline:
    """Load a documented run by name.

    Raises:
        ParameterError: the name is unknown (the message names the nearest), or the file lacks a field or has an unknown one.
        RunError: the file is no JSON.
    """
    path = _known("unknown baseline", name, _files())
    value = read_json(path.resolve(), {})  # the user's own file, which may be a link
    if not isinstance(value, dict):
        raise ParameterError(f"{path}: holds {value!r:.40}; expected an object of fields, see data/README.md")
    fields = {f.name for f in dataclasses.fields(Baseline)}
    if value.keys() | OPTIONAL != fields:
        missing, odd = sorted(fields - value.keys() - OPTIONAL), sorted(value.keys() - fields)
        raise ParameterError(f"{path}: missing fields {missing}, unknown fields {odd}; see data/README.md")
    parts = [value["reward"], value["curves"], value["figures"]]
    parts += [inner for outer in parts[1:] if isinstance(outer, dict) for inner in outer.values()]
    if odd := [part for part in parts if not isinstance(part, dict)]:
        raise ParameterError(f"{path}: {odd[0]!r:.40} among its fields; expected an object there, see data/README.md")
    for metric, curve in value["curves"].items():
        if absent := {"unit", "low", "high", "x", "at", "points"} - curve.keys():
            raise ParameterError(f"{path}: curve {metric!r} lacks {sorted(absent)}; see data/README.md")
        if curve["x"] != "step":
            raise ParameterError(f"{path}: curve {metric!r}: x={curve['x']!r}; expected 'step', see data/README.md")
        if not _are_points(curve["points"]):
            raise ParameterError(
                f"{path}: curve {metric!r}: points={curve['points']!r:.40}; expected [step, value] each, at least one, "
                "see data/README.md"
            )
    _check_units(path, value)
    baseline = Baseline(**value)
    for metric in baseline.curves:
        try:
            baseline.curve(metric)
        except ParameterError as error:
            raise ParameterError(f"{path}: curve {metric!r}: {error}") from None
    return baseline


def _are_points(points) -> bool:
    try:
        table = np.array(points, float)  # null becomes NaN
    except (TypeError, ValueError):
        return False
    return table.ndim == 2 and table.shape[1] == 2


def _check_units(path: Path, value: dict) -> None:
    """Say whether curves are comparable is judged by their units: each has one, and the reward's curve has the reward's."""
    parts = {"reward": value["reward"]}
    for kind in ("curve", "figure"):
        parts |= {f"{kind} {name!r}": part for name, part in value[f"{kind}s"].items()}
    for place, part in parts.items():
        unit = part.get("unit")
        if not isinstance(unit, str) or not unit.strip():
            raise ParameterError(
                f"{path}: {place}: unit={unit!r}; expected words such as 'characters from the target of 20', see data/README.md"
            )
    reward = value["reward"]["unit"]
    if (drawn := value["curves"].get("reward", {}).get("unit", reward)) != reward:
        raise ParameterError(
            f"{path}: curve 'reward' has unit={drawn!r}, the reward itself {reward!r}; expected one unit"
        )


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The first points of a documented curve, with which most audits need not open its file."""

    run: str
    metric: str  # as the run's own log calls it
    first: Curve
    last: float  # step up to which the whole curve reaches
    spread: float  # between the largest and the smallest value of the whole curve


BEGINNING = 16  # points


def beginning_of(run: str, metric: str, curve: Curve) -> dict:
    """The row of a curve in `first_values.json`."""
    known = curve.y[np.isfinite(curve.y)]
    about = {
        "run": run,
        "metric": metric,
        "last": float(curve.stretches[1][-1]),
        "spread": float(np.ptp(known)) if len(known) else 0.0,
    }
    points = [curve.x[:BEGINNING].tolist(), curve.y[:BEGINNING].tolist()]
    return about | {"at": curve.at, "span": curve.span, "points": points}


def beginnings() -> list[Beginning]:
    """The beginnings of all documented curves: those of this installation from one file, others from their own files.

    `python -m tools.first_values` writes that file. Without it an audit would open every documented run. A file of the user
    that cannot be used is left out, with a warning.
    """
    rows = read_json(packaged("data") / "first_values.json", [])
    stored_there = {row["run"] for row in rows}
    own = [path.stem for folder in _own_folders() for path in folder.glob("*.json")]
    rows = [row for row in rows if row["run"] not in own]
    for name in sorted({*own, *(_files().keys() - stored_there)}):
        try:
            baseline = load_baseline(name)
        except WorkbenchError as error:
            warn_user(f"left out of the documented runs: {error}")
            continue
        rows += [beginning_of(name, metric, baseline.curve(metric)) for metric in baseline.curves]
    curves = []
    for row in rows:
        x, y = (np.array(part, float) for part in row["points"])  # null becomes NaN
        first = Curve(row["run"], x, y, "", at=row["at"], span=row["span"])
        curves.append(Beginning(row["run"], row["metric"], first, row["last"], row["spread"]))
    return curves


def as_baselines(runs: Iterable[Baseline | str]) -> list[Baseline]:
    """Documented runs, of which some are given by name."""
    return [load_baseline(one) if isinstance(one, str) else one for one in runs]


def load_sources() -> list[dict]:
    """The files that documented runs are of, a row a file, that which the figures are of first.

    Each has `run`, `repository`, `file`, `commit` or `blob`, `sha256`, `licence`, `loads` (the model that the file's code
    loads), `which` of its runs, `column` and `evals` (where the log has names of its own), `taken`; null where not known.
    """
    return read_json(packaged("data") / "sources.json", [])


def stored(by_seed: Mapping[int, Curve]) -> dict:
    """A curve of each seed, at the same x, as the file of a baseline holds them: their mean, and each seed's values."""
    first, values = next(iter(by_seed.values())), np.stack([curve.y for curve in by_seed.values()])
    points = [[int(x), float(f"{y:.5g}")] for x, y in zip(first.x, values.mean(axis=0), strict=True)]
    about = {"unit": first.unit, "low": first.low, "high": first.high, "x": "step", "at": "end", "steps_per_point": 1}
    return about | {
        "points": points,
        "by_seed": {str(seed): [float(f"{y:.5g}") for y in curve.y] for seed, curve in by_seed.items()},
    }


def as_text(baseline: dict) -> str:
    """The file of a baseline: JSON with each list of numbers on a line of its own."""
    text = json.dumps(jsonable(baseline), indent=1, allow_nan=False, ensure_ascii=False)
    return re.sub(r"\[([-+\d.eE,\s]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"
