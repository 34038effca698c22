"""`completions.parquet/`: parts written as a training goes, joined at its end, forgotten where a resumed one repeats them."""

import json
from pathlib import Path

from .files import write_text

_JOINED = "part-000000.parquet"


def part_path(out_dir: Path, step: int) -> Path:
    """Where the completions of one step are kept."""
    return out_dir / "completions.parquet" / f"part-{step:06d}.parquet"


def save_part(out_dir: Path, step: int, completions) -> None:
    """Write one step's completions, whole or not at all."""
    part = part_path(out_dir, step)
    part.parent.mkdir(exist_ok=True)
    temporary = part.with_suffix(".tmp")
    completions.to_parquet(temporary)
    temporary.rename(part)


def completion_parts(folder: Path) -> list[Path]:
    """The files of a `completions.parquet/`, in order: `part-<step>`, and `part-000000` for the steps joined so far.

    A part that the joined file covers is left over from a kill while joining, and left out.
    """
    import pandas as pd

    parts = sorted(folder.glob("part-*.parquet")) if folder.is_dir() else []
    if parts and parts[0].name == _JOINED:
        covered = pd.read_parquet(parts[0], columns=["step"])["step"].max()
        parts = parts[:1] + [p for p in parts[1:] if int(p.stem.rpartition("-")[2]) > covered]
    return parts


def join_completions(out_dir: Path) -> None:
    """Turn the parts of `completions.parquet/` into one: thousands of small files are slow to read."""
    import pandas as pd

    folder = out_dir / "completions.parquet"
    parts = completion_parts(folder)
    if len(parts) < 2:
        return
    temporary = folder / "joined.tmp"
    pd.concat([pd.read_parquet(p) for p in parts], ignore_index=True).to_parquet(temporary)
    temporary.rename(folder / _JOINED)  # from here on it stands for all of them
    for part in parts:
        if part.name != _JOINED:
            part.unlink()


def forget_after(out_dir: Path, step: int) -> float:
    """Drop what was recorded after `step`, which a resumed run repeats, so that each step is recorded once.

    Returns:
        Seconds trained up to `step`.
    """
    import pandas as pd

    metrics = out_dir / "metrics.jsonl"
    kept = []
    if metrics.is_file():
        for line in metrics.read_text(encoding="utf-8").split("\n")[:-1]:  # what follows the last newline was cut short
            if json.loads(line)["step"] <= step:
                kept.append(line)
        write_text(metrics, "".join(line + "\n" for line in kept))
    folder = out_dir / "completions.parquet"
    kept_parts = completion_parts(folder)
    for part in folder.glob("*") if folder.is_dir() else ():
        if part not in kept_parts or int(part.stem.rpartition("-")[2]) > step:
            part.unlink()
    if (joined := folder / _JOINED).is_file():
        table = pd.read_parquet(joined)
        table[table["step"] <= step].to_parquet(joined)
    return json.loads(kept[-1])["elapsed_s"] if kept else 0.0
