"""The binary files in which W&B and SwanLab keep a run on disk: protobuf messages in the framing of LevelDB's log.

The framing is that of LevelDB's doc/log_format.md, with zlib's CRC-32. The numbers of the fields are those of
wandb_internal.proto (W&B 0.31) and record.proto (SwanLab 0.10).
"""

import contextlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError
from ..runs.files import open_plain
from .reader import Source, reader
from .rows import Found, flat_row, steps_of
from .settings import of_arguments, of_tracker

_WANDB, _SWANLAB = b":W&B", b":SWL"
_SWANLAB_VERSION = 2
_BLOCK = 32_768  # bytes
_HEAD = 7  # bytes at the start of the file, and before each piece of a record: its CRC-32, length and place
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4  # places of a piece in its record


@reader(sniff=lambda source: _is_journal(source, _WANDB, "*.wandb"))
def wandb_run(source: Source) -> list[Found]:
    """The history and the settings of a run of W&B, from `run-ID.wandb` or the folder with it."""
    path = _file_of(source, "*.wandb")
    damage: list[str] = []
    rows: list[dict] = []
    config: dict = {}
    for record in _records(path, damage):
        fields = dict(_fields(record))
        if history := _bytes(fields, 2):
            rows.append(_wandb_values(history))
        first_config = _bytes(dict(_fields(_bytes(fields, 17))), 4)
        config |= _wandb_values(first_config) | _wandb_values(_bytes(fields, 5))
    if not rows:
        raise RunError(
            f"{source.name}: no step of a run of W&B is in it; give what was printed, files/output.log, or send the run with "
            "`wandb sync` and export its history as CSV"
        )
    return [Found("W&B", steps_of(rows), damage=damage, settings=of_arguments(config, "W&B's config"))]


def _wandb_values(message: bytes) -> dict:
    """The numbers and words in the items of a history or a config; tables and pictures are left out."""
    row: dict = {}
    for number, item in _fields(message):
        if not isinstance(item, bytes):
            continue
        parts = list(_fields(item))
        if number == 2:
            row["_step"] = dict(parts).get(1, 0)
        if number != 1:
            continue
        names = [
            text.decode("utf-8", "replace") for field, text in parts if field in (1, 2) and isinstance(text, bytes)
        ]
        value = _bytes(dict(parts), 16)
        if value[:1] not in (b"", b"{", b"["):
            with contextlib.suppress(ValueError):
                row[".".join(filter(None, names))] = json.loads(value)
    return flat_row(row)


@reader(sniff=lambda source: _is_journal(source, _SWANLAB, "*.swanlab"))
def swanlab_run(source: Source) -> list[Found]:
    """The numbers and the settings of a run of SwanLab, from `run-ID.swanlab` or the folder with it."""
    path = _file_of(source, "*.swanlab")
    with open_plain(path) as file:
        head = file.read(_HEAD)
    if head[-1:] != bytes([_SWANLAB_VERSION]):
        version = head[-1] if len(head) == _HEAD else "none"
        raise RunError(
            f"{source.name}: version {version} of SwanLab's file; expected {_SWANLAB_VERSION}, which SwanLab 0.10 writes. "
            "Send it with `swanlab sync`, then export the run's metrics as CSV"
        )
    damage: list[str] = []
    steps: dict[int, dict] = {}
    for record in _records(path, damage):
        scalar = dict(_fields(_bytes(dict(_fields(record)), 13)))
        name, step = _bytes(scalar, 1), scalar.get(2, 0)
        if name and isinstance(step, int):
            number = dict(_fields(_bytes(scalar, 5))).get(1, 0.0)  # a field that is 0 is not written
            steps.setdefault(step, {"step": step})[name.decode("utf-8", "replace")] = number
    if not steps:
        raise RunError(f"{source.name}: no number is in this run of SwanLab; expected a run with `swanlab.log`")
    table = steps_of(steps[step] for step in sorted(steps))
    return [Found("SwanLab", table, damage=damage, settings=of_tracker(path.parent / "files" / "config.yaml"))]


def _is_journal(source: Source, magic: bytes, pattern: str) -> bool:
    if source.path.is_dir():
        return len(_journals(source.path, pattern)) == 1
    return source.start.startswith(magic) or source.suffix == pattern.removeprefix("*")


def _journals(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink()]


def _file_of(source: Source, pattern: str) -> Path:
    return _journals(source.path, pattern)[0] if source.path.is_dir() else source.path


def _records(path: Path, damage: list[str]) -> Iterator[bytes]:
    """The records of a file up to where it is cut short; what is damaged is left out, and `damage` gets a sentence on it."""
    lost = 0
    record: bytes | None = None  # its pieces so far; None where its start is lost
    with open_plain(path) as file:
        at = _HEAD
        while block := file.read(_BLOCK):
            while at + _HEAD <= len(block):
                crc, size, place = struct.unpack_from("<IHB", block, at)
                piece = block[at + _HEAD : at + _HEAD + size]
                if (len(piece) < size and len(block) < _BLOCK) or not (crc or size or place):
                    break  # it is still being written, or was killed
                if zlib.crc32(piece, zlib.crc32(bytes([place]))) != crc:
                    lost += 1
                    record = None
                    break  # a length that is wrong would lead astray: go on in the next block
                at += _HEAD + size
                if place in (_WHOLE, _FIRST):
                    record = piece
                elif record is not None:
                    record += piece
                if place in (_WHOLE, _LAST) and record is not None:
                    yield record
            at = 0
    if lost:
        blocks = "1 block of 32 KB is" if lost == 1 else f"{lost} blocks of 32 KB are"
        damage.append(f"{path.name}: {blocks} damaged, and what it held is left out")


def _bytes(fields: dict[int, int | float | bytes], number: int) -> bytes:
    """A field that is text or a message; empty where there is none."""
    value = fields.get(number)
    return value if isinstance(value, bytes) else b""


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a protobuf message: number -> an integer, a double, or the bytes of text or of a message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            size, at = _varint(message, at)
        data = message[at : at + size]
        at += size
        if kind not in (1, 2, 5) or len(data) < size:
            raise ValueError(f"a field of kind {kind} and {size} bytes in a message of {len(message)}")
        yield tag >> 3, data if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", data)[0]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """An integer in pieces of 7 bits, the lowest first, and where the next field begins."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | message[at] << shift, at + 1
