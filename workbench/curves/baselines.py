"""Documented runs as data with their sources, and tables read from the logs that trainers leave.

A baseline is a JSON file in `data/baselines/`; `$WORKBENCH_BASELINES` names a folder of more, whose files come first.
`data/README.md` describes the format.
"""

import dataclasses
import difflib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import ParameterError, RunError
from ..runs.files import load_metrics, read_json
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

    def curve(self, metric: str = "reward") -> Curve:
        """One of the documented curves.

        Raises:
            ParameterError: names the curves there are, and the nearest spelling.
        """
        if metric not in self.curves:
            raise ParameterError(f"{self.name} has no curve {_unknown(metric, self.curves)}")
        c = self.curves[metric]
        x, y = zip(*c["points"], strict=True)
        return Curve(
            self.title, x, [float("nan") if v is None else v for v in y], c["unit"], c["low"], c["high"], c["x"]
        )

    def figure(self, name: str) -> float:
        """The value of one of the figures.

        Raises:
            ParameterError: names the figures there are, and the nearest spelling.
        """
        if name not in self.figures:
            raise ParameterError(f"{self.name} has no figure {_unknown(name, self.figures)}")
        return self.figures[name]["value"]


def _unknown(name: str, known) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{name!r}: {hint}there are {', '.join(known) or 'none'}"


def baseline_folders() -> list[Path]:
    """`$WORKBENCH_BASELINES` when set, then the bundled `data/baselines/`."""
    given = os.environ.get("WORKBENCH_BASELINES")
    return [*([Path(given)] if given else []), Path(__file__).parents[2] / "data" / "baselines"]


def _files() -> dict[str, Path]:
    return {p.stem: p for folder in reversed(baseline_folders()) for p in sorted(folder.glob("*.json"))}


def list_baselines() -> list[str]:
    """Names of all baselines."""
    return sorted(_files())


def load_baseline(name: str) -> Baseline:
    """A documented run by name.

    Raises:
        ParameterError: unknown name (the nearest spelling is given), or a file that lacks a field or has an odd one.
        RunError: the file is no JSON.
    """
    files = _files()
    if name not in files:
        raise ParameterError(f"unknown baseline {_unknown(name, sorted(files))}")
    value = read_json(files[name], {})
    fields = {f.name for f in dataclasses.fields(Baseline)}
    if value.keys() != fields:
        missing, odd = sorted(fields - value.keys()), sorted(value.keys() - fields)
        raise ParameterError(f"{files[name]}: lacks {missing}, does not know {odd}; see data/README.md")
    if value["name"] != name:
        raise ParameterError(f"{files[name]}: its name is {value['name']!r}; a baseline is named as its file")
    for metric, curve in value["curves"].items():
        if absent := {"unit", "low", "high", "x", "points"} - curve.keys():
            raise ParameterError(f"{files[name]}: curve {metric!r} lacks {sorted(absent)}; see data/README.md")
    return Baseline(**value)


# --- imports: logs of other trainers, each as a table with a `step` column -------------------------------------------


def import_metrics(path: str | os.PathLike):
    """A run's `metrics.jsonl`, or any file of one JSON object a line, as a DataFrame."""
    return load_metrics(Path(path))


def import_trainer_state(path: str | os.PathLike):
    """The log history of a transformers `trainer_state.json` as a DataFrame; evaluations join the line of their step.

    Raises:
        RunError: no such file, or one without a log history.
    """
    import pandas as pd

    history = read_json(Path(path), {}).get("log_history")
    if not history:
        raise RunError(f"{path}: no log_history; expected a trainer_state.json with at least one logged step")
    rows: dict[int, dict] = {}
    for line in history:
        if "train_runtime" not in line:  # the closing summary is not a step
            rows.setdefault(line["step"], {"step": line["step"]}).update(line)
    return pd.DataFrame(sorted(rows.values(), key=lambda row: row["step"]))


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

    Reads the format itself (records of length, checksum, protobuf): TensorBoard is no dependency, and a dozen more
    packages would be a high price for three fields. A last record cut short by a kill is left out.

    Raises:
        RunError: no such file, no event file, or one without scalars.
    """
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise RunError(f"{path}: no such file; expected an events.out.tfevents... file")
    rows: dict[int, dict] = {}
    start = None
    try:
        for event in _records(path.read_bytes()):
            fields = dict(_fields(event))
            start = start or fields[1]
            step = fields.get(2, 0)
            for value in (v for k, v in _fields(fields.get(5, b"")) if k == 1):
                tag, number = _scalar(value)
                if number is not None:
                    rows.setdefault(step, {"step": step, "elapsed_s": fields[1] - start})[tag] = number
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise RunError(f"{path}: not a TensorBoard event file ({type(error).__name__}: {error})") from error
    if not rows:
        raise RunError(f"{path}: no scalars in it")
    return pd.DataFrame(sorted(rows.values(), key=lambda row: row["step"]))


def _records(data: bytes) -> Iterator[bytes]:
    """Payloads of a TFRecord file: length (8 bytes), its checksum (4), payload, its checksum (4)."""
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at == 0 and length > 1 << 20:
            raise KeyError("the first record is larger than any event")
        if at + 16 + length > len(data):
            return
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Field number and value of a protobuf message: varints as int, 8 and 4 bytes as double and float, else bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 1:
            (value,), at = struct.unpack_from("<d", message, at), at + 8
        elif kind == 5:
            (value,), at = struct.unpack_from("<f", message, at), at + 4
        elif kind == 2:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        else:
            raise KeyError(f"wire type {kind}")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _scalar(value: bytes) -> tuple[str, float | None]:
    """Tag and number of a summary value: `simple_value` (2), or a tensor (8) of one float (5, or raw bytes 4)."""
    fields = dict(_fields(value))
    tag = fields[1].decode()
    if 2 in fields:
        return tag, fields[2]
    tensor = dict(_fields(fields.get(8, b"")))
    raw = tensor.get(5, tensor.get(4))
    if isinstance(raw, float):
        return tag, raw
    return tag, struct.unpack("<f", raw)[0] if tensor.get(1) == 1 and raw and len(raw) == 4 else None
