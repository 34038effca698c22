"""What a training wrote for TensorBoard, read with TensorBoard's own reader."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def tensorboard_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Name -> step -> value, of all event files below `folder`."""
    scalars: dict[str, dict[int, float]] = {}
    for path in {file.parent for file in Path(folder).rglob("*tfevents*")}:
        events = EventAccumulator(str(path)).Reload()
        for name in events.Tags()["scalars"]:
            scalars.setdefault(name, {}).update({event.step: event.value for event in events.Scalars(name)})
    return scalars


def write_events(path: Path, rows: list[dict]) -> None:
    """Scalars as TensorBoard's own writer stores them, a row a step."""
    others = set(path.parent.glob("events.*"))
    writer = EventFileWriter(str(path.parent))
    for row in rows:
        for name, value in row.items():
            if name != "step":
                summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
                writer.add_event(Event(step=row["step"], wall_time=float(row["step"]), summary=summary))
    writer.close()
    (written,) = set(path.parent.glob("events.*")) - others
    written.rename(path)
