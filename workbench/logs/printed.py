"""What TRL, verl or any other loop printed to a console, between anything else, progress bars too."""

import json
import re
from collections.abc import Iterable
from functools import lru_cache

from ..errors import RunError
from .lines import NUMBER, TAGGED, Lines
from .names import of_reinforcement_learning
from .rows import EXPECTED, Found, Rows

_MOST = 2_000_000  # steps after which the rest of a log is not read
_LONGEST_STEP = 20_000  # bytes of a line of verl, also of one that a terminal broke into several
_OTHERS = 1_000  # printed dicts that are no steps, from which on they are not looked at
_DICT = re.compile(rb"\{\s{0,9}['\"][^{}]{8,20000}\}")
_BARE = re.compile(rb"(?m)^'loss': [^{}\r\n]{8,20000}\}")  # a dict without its first brace, as people paste it
_WORDS = (b"loss", b"reward", b"objective/", b"train_runtime", b"eval_")  # of which a step has one
_VALUE = re.compile(rf"(?:[\w.]{{1,20}}\()?({NUMBER})(?:/\d+)?\)?")
_ENTRY = re.compile(rf"""['"]([^'"]{{1,100}})['"]:\s{{0,99}}['"]?{_VALUE.pattern}['"]?\s{{0,99}}[,}}](?!\d)""")
_STEP_BEFORE = re.compile(r"\b(?:step|rollout|perf|iter(?:ation)?)[ :_]{1,2}(\d{1,9}):?\s*(?:\([^()]*\))?\s*$", re.I)
_VERL = re.compile(rb"step:(\d{1,12}) - ([^\r\n/]{1,300}/[^\r\n]*)")
_CONFIG = re.compile(rb"'max_response_length': (\d{1,9})")  # of verl, printed before its first step
_METRIC = re.compile(rf"(\S{{1,200}}):{_VALUE.pattern}")
_COLOURS = re.compile(rb"\x1b\[[\d;]*[A-Za-z]")


def printed(blocks: Iterable[bytes], source: str) -> Found:
    """The steps of verl where there are some, else those that a trainer printed as dicts, else those in other lines."""
    verl, dicts, lines = Rows(), _Dicts(), Lines()
    limits: set[bytes] = set()
    damage = []
    for coloured in blocks:
        block = _COLOURS.sub(b"", coloured) if b"\x1b" in coloured else coloured
        if max(verl.count, dicts.rows.count) > _MOST:
            damage = [f"only the first {_MOST:,} steps are read"]
            break
        if not verl.count:
            limits |= set(_CONFIG.findall(block))
        for match in _VERL.finditer(block):
            begins = block[match.start() - 1 : match.start()] not in (b"_", b"/")
            if begins and len(match[2]) <= _LONGEST_STEP and (row := _verl_row(_unwrapped(block, match))):
                verl.add(row | {"step": float(match[1])})
        if not verl.count:
            dicts.feed(block)
        if not (verl.count or dicts.rows.count):
            lines.feed(block)
    if verl.count:
        settings = {"max_completion_length": int(limits.pop()), "settings_from": "the log"} if len(limits) == 1 else {}
        return Found("verl console log", verl.table(), damage=damage, trainer="verl", settings=settings)
    table = dicts.rows.table() if dicts.rows.count else lines.table()
    if table is None and dicts.tagged.count:  # no others are there
        table = dicts.tagged.table()
    if not dicts.rows.count and lines.cut_short:
        damage = ["the log is not read to its end: too many lines"]
    if table is None:
        raise RunError(
            f"{source}: no line like {{'loss': 0.1, 'reward': 0.5}}, `step:1 - critic/score/mean:0.5` or `Step 1 | loss: 0.1 | "
            f"reward: 0.5` is in it{dicts.example()}; expected {EXPECTED}"
        )
    notes = [f"{dicts.number()} printed dicts that are no steps of a trainer are left out"] * (dicts.count > 0)
    notes += table.attrs.get("notes", [])
    return Found("console log", table, damage=damage, notes=notes)


# --- dicts ----------------------------------------------------------------------------------------------------------


class _Dicts:
    """The printed dicts that are steps: those of a Trainer, and those after a number, as in `step 3: {...}`."""

    def __init__(self) -> None:
        self.rows, self.count = Rows(), 0
        self.tagged = Rows()  # what says that it is of an evaluation
        self._others: dict[tuple, int] = {}

    def feed(self, block: bytes) -> None:
        for match in _DICT.finditer(block):
            span = match[0]
            if self.count >= _OTHERS and not any(word in span for word in _WORDS):
                continue
            row = _entries(span.decode("utf-8", "replace"))
            names = tuple(row)
            numbered = "epoch" in row or "step" in row
            step, is_tagged = (None, False) if numbered else _step_before(block, match.start())
            if _is_of_a_trainer(names) or (step is not None and of_reinforcement_learning(names)):
                (self.tagged if is_tagged else self.rows).add(row if step is None else row | {"step": step})
            elif row:
                self.count += 1
                if names in self._others or len(self._others) < 100:
                    self._others[names] = self._others.get(names, 0) + 1
        for bare in () if self.rows.count else _BARE.findall(block):
            self.rows.add(_entries("{" + bare.decode("utf-8", "replace")))

    def number(self) -> str:
        return f"{self.count}" + " and more" * (self.count >= _OTHERS)

    def example(self) -> str:
        """The dicts that are no steps, in words."""
        most = max(self._others, key=self._others.__getitem__, default=())
        return f"; {self.number()} other dicts are, such as {{{', '.join(map(repr, most[:6]))}}}" * bool(most)


def _entries(text: str) -> dict[str, float]:
    """The numbers of a printed dict. Most are JSON but for their quotes, and so read ten times faster."""
    try:
        row = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        return {name: float(value) for name, value in _ENTRY.findall(text)}
    try:
        return dict(zip(row, map(float, row.values()), strict=True))
    except (ValueError, TypeError, OverflowError):
        found = {name: _VALUE.fullmatch(str(value)) for name, value in row.items()}
        return {name: float(match[1]) for name, match in found.items() if match}


def _step_before(block: bytes, start: int) -> tuple[float | None, bool]:
    """The number of the step before a dict, and whether an evaluation is said there."""
    before = block[max(0, start - 100) : start].decode("utf-8", "replace")
    if (match := _STEP_BEFORE.search(before)) is None:
        return None, False
    return float(match[1]), TAGGED.search(before[: match.start()].rpartition("\n")[2].lower()) is not None


@lru_cache(1000)
def _is_of_a_trainer(names: tuple[str, ...]) -> bool:
    """Say whether a printed dict is what a Trainer logs: it always has a loss, or PPO's `objective/...`."""
    known = {"loss", "train_runtime", "eval_loss", "eval_runtime"} & set(names)
    # A config that a script prints has eval_steps, eval_strategy and others, and no epoch.
    is_evaluation = "epoch" in names and any(name.startswith("eval_") for name in names)
    return bool(known) or is_evaluation or any(name.startswith("objective/") for name in names)


# --- verl -----------------------------------------------------------------------------------------------------------


def _unwrapped(block: bytes, match: re.Match) -> str:
    """The line of a step with those that a terminal's width broke off: they begin with ` - `, or go on inside a name."""
    lines = block[match.start(2) : match.end() + _LONGEST_STEP].split(b"\n", 50)[:50]
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
    return text


def _is_metric(text: str) -> re.Match | None:
    return _METRIC.fullmatch(text.strip())


def _verl_row(line: str) -> dict | None:
    """`name:value - name:value ...`; None where no metric is in it."""
    row = {}
    for part in line.split(" - "):
        name, _, value = part.strip().rpartition(":")
        try:
            if name and " " not in name:
                row[name] = float(value)
        except ValueError:
            if match := _is_metric(part):
                row[match[1]] = float(match[2])
    return row if any("/" in name for name in row) else None
