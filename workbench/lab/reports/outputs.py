"""The outputs of a cell (nbformat 4) as a reader wants them: joined, without progress bars and echoes of what is known."""

import itertools
import re

from ...runs.text import ESCAPES

_BAR = re.compile(  # how tqdm ends the line of a progress bar, or how its widget is printed
    r"\[[\d:]{4,12}(<[\d:?]{1,12})?, {1,4}[\d.?]{1,9}[a-zA-Z ]{0,12}/[a-zA-Z]{1,12}[,\]]|Progress\("
)
_PATH = re.compile(r"\s*(Posix|Windows)Path\(.*\)\s*")
WIDGET = "application/vnd.jupyter.widget-view+json"


def readable(outputs: list[dict]) -> list[dict]:
    """Return what is left to show: neighbouring pieces of a stream joined, what libraries said on stderr at the end.

    Left out are progress bars (their last state says nothing), the path that `save_result` returns.
    """
    kept = [output for output in outputs if not _is_noise(output)]
    kept.sort(key=lambda output: output.get("name") == "stderr" and output.get("output_type") == "stream")
    return joined_streams(kept)


def _is_noise(output: dict) -> bool:
    data = output.get("data", {})
    plain = text_of(data.get("text/plain"))
    if WIDGET in data:
        return bool(_BAR.search(plain))
    if set(data) != {"text/plain"}:
        return False
    return bool(_PATH.fullmatch(plain))


def stream_lines(text: str) -> list[str]:
    """The lines that a terminal would show in the end, without those of progress bars."""
    lines = terminal_text(text).rstrip("\n").split("\n")
    return [line for line in lines if not _BAR.search(line)]


def text_of(value) -> str:
    """A multi-line value of nbformat: text, or a list of lines."""
    return "".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def joined_streams(outputs: list) -> list[dict]:
    """Neighbouring pieces of one stream as one output."""
    joined: list[dict] = []
    for stream, neighbours in itertools.groupby(outputs, lambda o: o.get("output_type") == "stream" and o.get("name")):
        pieces = list(neighbours)
        text = "".join(text_of(piece.get("text")) for piece in pieces)
        joined += [pieces[0] | {"text": text}] if stream else pieces
    return joined


def terminal_text(text: str) -> str:
    """Return what a terminal would show in the end: no escape sequences, and of a line that was overwritten its last state."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in ESCAPES.sub("", text).split("\n"))
