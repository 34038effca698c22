"""Documented runs as data with their sources, and tables read from the logs that trainers leave.

A baseline is a JSON file in `data/baselines/`; `$WORKBENCH_BASELINES` names a folder of more, whose files come first.
`data/README.md` describes the format.
"""

import dataclasses
import difflib
import os
from pathlib import Path

import numpy as np

from ..errors import MissingDependencyError, ParameterError, RunError
from ..packaged import packaged
from ..runs.files import read_json
from .curve import Curve


@dataclasses.dataclass(frozen=True)
class Baseline:
    """One documented run: where it is from, what was trained on what, and its figures.

    `seeds` is None where it is not stated. `figures` maps a name to `value`, `unit`, `what` and `from` ("published", or
    "full log": computed from the log before its curve was thinned). `unknown` lists what the source does not say.
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

    def curve(self, metric: str = "reward") -> Curve:
        """One of the documented curves.

        Raises:
            ParameterError: names the curves there are, and the nearest spelling.
        """
        y = np.array(self._stored(metric)["points"], float)[:, 1]  # null becomes NaN
        return self._drawn(metric, self.title, y)

    def curves_by_seed(self, metric: str = "reward") -> list[Curve]:
        """The same curve of each seed, where the file holds them; `curve` is their mean. Empty where it does not.

        Raises:
            ParameterError: names the curves there are, and the nearest spelling.
        """
        by_seed = self._stored(metric).get("by_seed", {})
        return [self._drawn(metric, f"{self.name}, seed {seed}", np.array(y, float)) for seed, y in by_seed.items()]

    def _stored(self, metric: str) -> dict:
        return _known(f"{self.name} has no curve", metric, self.curves)

    def _drawn(self, metric: str, label: str, y: np.ndarray) -> Curve:
        found = self._stored(metric)
        span = found.get("steps_per_point") if found["x"] == "step" else None
        x = np.array([point[0] for point in found["points"]], float)
        return Curve(label, x, y, found["unit"], found["low"], found["high"], found["x"], found["at"], span)

    def figure(self, name: str) -> float:
        """The value of one of the figures.

        Raises:
            ParameterError: names the figures there are, and the nearest spelling.
        """
        return _known(f"{self.name} has no figure", name, self.figures)["value"]


def _known(complaint: str, name: str, known: dict):
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ParameterError(f"{complaint} {name!r}: {hint}there are {', '.join(known) or 'none'}")


def _files() -> dict[str, Path]:
    """Name -> file; those of `$WORKBENCH_BASELINES` stand for bundled ones of the same name."""
    folders = [packaged("data") / "baselines", os.environ.get("WORKBENCH_BASELINES")]
    files = {p.stem: p for folder in folders if folder for p in Path(folder).glob("*.json")}
    return dict(sorted(files.items()))


def list_baselines() -> list[str]:
    """Names of all baselines."""
    return list(_files())


def load_baseline(name: str) -> Baseline:
    """A documented run by name.

    Raises:
        ParameterError: unknown name (the nearest spelling is given), or a file that lacks a field or has an odd one.
        RunError: the file is no JSON.
    """
    path = _known("unknown baseline", name, _files())
    value = read_json(path.resolve(), {})  # the user's own file, which may be a link
    fields = {f.name for f in dataclasses.fields(Baseline)}
    if value.keys() | {"recorded"} != fields:
        missing, odd = sorted(fields - value.keys() - {"recorded"}), sorted(value.keys() - fields)
        raise ParameterError(f"{path}: lacks {missing}, does not know {odd}; see data/README.md")
    if value["name"] != name:
        raise ParameterError(f"{path}: its name is {value['name']!r}; a baseline is named as its file")
    for metric, curve in value["curves"].items():
        if absent := {"unit", "low", "high", "x", "at", "points"} - curve.keys():
            raise ParameterError(f"{path}: curve {metric!r} lacks {sorted(absent)}; see data/README.md")
        _check_seeds(path, metric, curve)
    _check_units(path, value)
    return Baseline(**value)


def _check_units(path: Path, value: dict) -> None:
    """Two curves are judged to be comparable by their units: each has one, and the reward's curve has the reward's."""
    curves, figures = value["curves"].items(), value["figures"].items()
    places = {"reward": value["reward"]}
    places |= {f"curve {name!r}": part for name, part in curves} | {f"figure {name!r}": part for name, part in figures}
    for place, part in places.items():
        unit = part.get("unit")
        if not isinstance(unit, str) or not unit.strip():
            shown = f"unit={unit!r}" if "unit" in part else "no unit"
            raise ParameterError(
                f"{path}: {place}: {shown}; expected words such as 'characters from the target of 20', see data/README.md"
            )
    reward = value["reward"]["unit"]
    if (drawn := value["curves"].get("reward", {}).get("unit", reward)) != reward:
        raise ParameterError(
            f"{path}: curve 'reward' has unit={drawn!r}, the reward itself {reward!r}; expected one unit for both"
        )


def _check_seeds(path: Path, metric: str, curve: dict) -> None:
    by_seed, points = curve.get("by_seed", {}), len(curve["points"])
    if not isinstance(by_seed, dict):
        raise ParameterError(
            f"{path}: curve {metric!r}: by_seed is a {type(by_seed).__name__}; expected seed -> values"
        )
    for seed, values in by_seed.items():
        place = f"{path}: curve {metric!r}, seed {seed}"
        if not isinstance(values, list):
            raise ParameterError(f"{place}: {values!r}; expected a list of {points} numbers")
        if len(values) != points:
            raise ParameterError(
                f"{place}: {len(values)} values; expected {points}, one for each of the curve's points"
            )


def import_trainer_state(path: str | os.PathLike):
    """The log history of a transformers `trainer_state.json` as a DataFrame; evaluations join the line of their step.

    Raises:
        RunError: no such file, or one without a log history.
    """
    import pandas as pd

    history = read_json(Path(path).resolve(), {}).get("log_history")  # a link in the cache of Hugging Face
    if not history:
        raise RunError(f"{path}: no log_history; expected a trainer_state.json with at least one logged step")
    steps = [line for line in history if "train_runtime" not in line]  # the closing summary is not a step
    return pd.DataFrame(steps).groupby("step", as_index=False).last()


def import_csv(path: str | os.PathLike, step: str = "step"):
    """A CSV file as a DataFrame whose column `step` is called so.

    Raises:
        RunError: no such file, or no such column.
    """
    import pandas as pd

    if not Path(path).is_file():
        raise RunError(f"{path}: no such file")
    table = pd.read_csv(path)
    if step not in table:
        raise RunError(f"{path}: no column {step!r}; it has {', '.join(table)}; name the one that counts steps")
    return table.rename(columns={step: "step"})


def import_tensorboard(path: str | os.PathLike):
    """The scalars of a TensorBoard event file as a DataFrame, a row a step; `elapsed_s` counts from the first event.

    A last record cut short by a kill is left out.

    Raises:
        MissingDependencyError: TensorBoard, which reads its own files, is not installed.
        RunError: no such file, or no scalars in it (a file of another format has none).
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise MissingDependencyError("event files are read with TensorBoard: pip install tensorboard") from error
    import pandas as pd

    if not Path(path).is_file():
        raise RunError(f"{path}: no such file; expected an events.out.tfevents... file")
    rows: dict[int, dict] = {}
    events = list(EventFileLoader(str(path)).Load())  # it turns scalars of TensorFlow 1 into tensors, as 2 writes them
    for event in events:
        for value in event.summary.value:
            number = make_ndarray(value.tensor) if value.HasField("tensor") else np.array("")
            if number.ndim == 0 and np.issubdtype(number.dtype, np.number):
                row = rows.setdefault(event.step, {"step": event.step})
                row |= {"elapsed_s": event.wall_time - events[0].wall_time, value.tag: float(number)}
    if not rows:
        raise RunError(f"{path}: no scalars in it; expected a TensorBoard file, whose name contains tfevents")
    return pd.DataFrame(rows.values()).sort_values("step", ignore_index=True)
