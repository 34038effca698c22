"""What TRL or verl printed to a console, between anything else, progress bars too."""

import re
from collections.abc import Iterable

from ..errors import RunError
from .rows import EXPECTED, Found, steps_of

_LONGEST_STEP = 20_000  # bytes of a line of verl that a terminal broke into several
_OTHERS = 1_000  # printed dicts that are no steps, from which on they are not looked at
_NUMBER = r"-?(?:\d{1,40}\.?\d{0,40}(?:[eE][+-]?\d{1,4})?|(?i:nan|inf(?:inity)?))"
_DICT = re.compile(rb"\{\s{0,9}['\"][^{}]{1,20000}\}")
_STEP = re.compile(
    rb"\{[^{}]{0,20000}['\"](?:loss|train_runtime|objective/|eval_)[^{}]{1,20000}\}"
)  # the same of a trainer
_ENTRY = re.compile(
    rf"""['"]([^'"]{{1,100}})['"]:\s{{0,99}}['"]?(?:[\w.]{{1,20}}\()?({_NUMBER})(?:/\d+)?\)?['"]?\s{{0,99}}[,}}]"""
)
_VERL = re.compile(rb"step:(\d{1,12}) - ([^\r\n]+)")
_CONFIG = re.compile(rb"'max_response_length': (\d{1,9})")  # of verl, printed before its first step
_METRIC = re.compile(rf"(\S{{1,200}}):(?:[\w.]{{1,20}}\()?({_NUMBER})\)?")
_COLOURS = re.compile(r"\x1b\[[\d;]*[A-Za-z]")


def printed(blocks: Iterable[bytes], source: str) -> Found:
    """What TRL or verl printed, between anything else, progress bars too."""
    rows: list[dict] = []
    verl: list[dict] = []
    others: dict[tuple, int] = {}
    limits: set[bytes] = set()
    for block in blocks:
        if not verl:
            limits |= set(_CONFIG.findall(block))
        for match in _VERL.finditer(block):
            if block[match.start() - 1 : match.start()] not in (b"_", b"/") and (
                row := _verl_row(_unwrapped(block, match))
            ):
                verl.append(row | {"step": float(match[1])})
        if verl:
            continue
        for match in (_DICT if sum(others.values()) < _OTHERS else _STEP).findall(block):
            entries = _ENTRY.findall(match.decode("utf-8", "replace"))
            row = {name: float(value) for name, value in entries}
            if _of_a_trainer(row):
                rows.append(row)
            elif row:
                key = tuple(row)
                if key in others or len(others) < 100:
                    others[key] = others.get(key, 0) + 1
    if verl:
        settings = (
            {"max_completion_length": int(next(iter(limits))), "settings_from": "the log"} if len(limits) == 1 else {}
        )
        return Found("verl console log", steps_of(verl), trainer="verl", settings=settings)
    if any("epoch" in row for row in rows):  # which every Trainer logs, and a dict of the user's own seldom has
        rows = [row for row in rows if "epoch" in row]
    count = sum(others.values())
    number = f"{count}" + " and more" * (count >= _OTHERS)
    if not rows:
        most = max(others, key=others.__getitem__, default=())
        seen = f"; {number} other dicts are, such as {{{', '.join(map(repr, most[:6]))}}}" if others else ""
        raise RunError(
            f"{source}: no line like {{'loss': 0.1, 'reward': 0.5}} or `step:1 - critic/score/mean:0.5` is in it{seen}; "
            f"expected {EXPECTED}"
        )
    notes = [f"{number} printed dicts that are no steps of a trainer are left out"] * (count > 0)
    return Found("console log", steps_of(rows), notes=notes)


def _of_a_trainer(row: dict) -> bool:
    """Whether a printed dict is what a Trainer logs: it always has a loss, or PPO's `objective/...`."""
    return "loss" in row or "train_runtime" in row or any(name.startswith(("objective/", "eval_")) for name in row)


def _unwrapped(block: bytes, match: re.Match) -> str:
    """The line of a step with those that a terminal's width broke off: they begin with ` - `, or go on inside a name."""
    lines = block[match.start(2) : match.end() + _LONGEST_STEP].splitlines()
    text = lines[0].decode("utf-8", "replace")
    for line in lines[1:]:
        more = line.decode("utf-8", "replace")
        if more.lstrip().startswith("- "):
            text = f"{text.rstrip()} {more.lstrip()}"
        elif not _is_metric(text.rpartition(" - ")[2]) and _is_metric(
            (text + more)[text.rfind(" - ") + 3 :].partition(" - ")[0]
        ):
            text += more
        else:
            break
    return _COLOURS.sub("", text) if "\x1b" in text else text


def _is_metric(text: str) -> re.Match | None:
    return _METRIC.fullmatch(text.strip())


def _verl_row(line: str) -> dict | None:
    """`name:value - name:value ...`; None where no metric is in it."""
    found = filter(None, map(_is_metric, line.split(" - ")))
    row = {metric[1]: float(metric[2]) for metric in found}
    return row if any("/" in name for name in row) else None
