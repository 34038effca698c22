"""What a training wrote for TensorBoard, read with TensorBoard's own reader."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def tensorboard_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Name -> step -> value, of all event files below `folder`."""
    scalars: dict[str, dict[int, float]] = {}
    for path in {file.parent for file in Path(folder).rglob("*tfevents*")}:
        events = EventAccumulator(str(path)).Reload()
        for name in events.Tags()["scalars"]:
            scalars.setdefault(name, {}).update({event.step: event.value for event in events.Scalars(name)})
    return scalars
