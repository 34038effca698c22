"""The steps in the lines that any loop prints: a step with its metrics in one line, below it, or in a table."""

import math
import re
from collections.abc import Mapping

import pandas as pd

from .names import FINITE, canonical, of_reinforcement_learning
from .rows import Rows

NUMBER = r"[-+]?(?:\d{1,40}\.?\d{0,40}(?:[eE][+-]?\d{1,4})?|(?i:nan|inf(?:inity)?)(?![A-Za-z]))"
_LONGEST = 4_000  # bytes of a line
_MOST, _MOST_PARSED = 15_000_000, 500_000  # lines of a log; those of two bytes each would take minutes
_BELOW = 30  # lines below a line with a step in which its metrics stand
_SEPARATORS = str.maketrans(dict.fromkeys("|;│┃\t", ","))
# Between two pairs, as in `loss=0.1 reward=0.5` and `loss: 0.1 reward: 0.5`.
_NEXT = re.compile(r"(?:(?<=[\d%])|(?<=\d\.)|(?<=nan)|(?<=inf)|(?<=infinity))\s+(?=[^\W\d][\w./-]{0,40}\s?[=:])", re.I)
_VALUE = re.compile(rf"\s?({NUMBER})(\s?%|[kKM](?=\s|$)|)(?:\s?[^\s:=]{{1,16}})?(?:\s[^\s:=]{{1,16}})?")
_GAP = re.compile(r"\s[-+]?(?:\d|(?:nan|inf|infinity)$)", re.I)  # before the number of `name number`
_RIGHT_OF = re.compile(r"\s?(\d{1,9})\s?/\s?0*([1-9]\d{0,8})")  # right answers of so many
_NO_VALUE = ("none", "null", "n/a")
_TIMES = {"": 1.0, "%": 0.01, "k": 1e3, "K": 1e3, "M": 1e6}  # what stands right behind a number
_THOUSANDS = re.compile(r"(?<![\w.,/-])(?<!\d:)[1-9]\d{0,2}(?:,\d{3})+(?![\w,])")  # as in `1,024`
# A number with a decimal comma; one that begins with 0 is no number with thousands, and its line has no decimal points.
_DECIMAL = re.compile(r"(?<=[:=\s])([-+]?\d{1,40}),(\d{1,40}(?:[eE][+-]?\d{1,4})?)(?![\w,.])")
_SURELY_DECIMAL = re.compile(r"(?<=[:=\s])[-+]?0,\d{2,40}(?![\d,.])")
_POINT = re.compile(r"[:=]\s?[-+]?\d{1,40}\.\d")
_STEP = re.compile(
    r"(?:step|iteration|iter|update|rollout)(?:\s{0,3}[:=#]\s{0,3}|\s{1,8})[\[(]?(\d{1,9})(?: ?/ ?\d{1,9})?[\])]?:?(?![.\d])"
)
_PART_OF_A_NAME = re.compile(r"(?<!global)(?<!train)(?<!training)_$|micro $")  # before `step`
_PART_OF_A_NAME_IN_A_TABLE = re.compile(r"(?<!global)_$|micro $")
_STEP_OF = re.compile(r"(?<![\d./])(\d{1,9})/\d{1,9}(?![\d./])")  # such as 3/100, without a word
# Such as [Epoch 2/3], which no `name: number` gives, and OpenRLHF's `Episode [2/3]`, whose steps begin again too.
_EPOCH = re.compile(r"\bep(?:och|isode)\W{0,3}(\d{1,6})(?![.\d])")
_EPOCH_ALONE = re.compile(r"\W*epoch\W{0,3}(\d{1,6})(?:(?: ?/ ?| of )\d{1,6})?\W*")  # the line above its steps
_OPENS = re.compile(r"\W*(?:training results:?|metrics)\W*")
_RULED = re.compile(r"[\s|:+-]*-[\s|:+-]*")
_EVALUATED = re.compile(r"(?:val|validation|eval\w*|test)[ _/]", re.I)
_OTHER = r"(?:val|valid|validation|eval|evaluation|test)"
TAGGED = re.compile(rf"(?:^|[\s\[(|]){_OTHER}\s?(?:[\])|:>-]|(?:(?:at|after|in|for|of)\s)?$)")  # before `Step 3`
_TAGGED_BEHIND = re.compile(rf"[\s|:,(\[-]*{_OTHER}\s?(?:[\])|:>-]+(?!\s*[-+.]?\d)|$)")  # as in `Step 3 eval: loss=0.1`


class Lines:
    """Reads blocks of lines; prose, tables of other things and supervised trainings have no step, or no reward."""

    def __init__(self) -> None:
        self.cut_short = self._has_decimal_commas = False
        self._lines = self._parsed = 0
        self._single, self._other, self._tagged = Rows(), Rows(), Rows()
        self._into = self._other  # what is open
        self._open: dict[str, float] | None = None  # the metrics below a line with a step
        self._left = 0  # lines of it
        self._epoch: float | None = None  # announced in a line of its own, above its steps
        self._head: list[str] = []  # of a table
        self._cells: list[str] = []  # of the line before

    def feed(self, block: bytes) -> None:
        for raw in block.splitlines():
            self._left -= 1
            words = raw[:_LONGEST].lower()
            of_step = b"reward" in words or b"loss" in words
            title = len(raw) < 200 and any(word in words for word in (b"step", b"metrics", b"results", b"epoch"))
            below = self._left > 0 and (b":" in raw or b"\xe2\x94" in raw)
            if of_step or title or below or self._head or self._cells:
                text = raw[:_LONGEST].decode("utf-8", "replace").strip()
                text = self._without_commas(text) if "," in text else text
                if not self._row_of_table(text):
                    self._line(text.lstrip("•*- "), of_step)
            self._lines += 1
            self.cut_short = self._lines > _MOST or self._parsed > _MOST_PARSED
            if self.cut_short:
                return

    def table(self) -> pd.DataFrame | None:
        """The steps: lines that stand alone, if at least two have the same names, else tables and blocks.

        Lines that say they are of an evaluation count where there are no others: it may be the name of a run.
        """
        self._close()
        for rows, least in ((self._single, 2), (self._other, 1), (self._tagged, 2)):
            if rows.count and of_reinforcement_learning(map(str, (table := rows.table(least=least)).columns)):
                return table
        return None

    def _without_commas(self, text: str) -> str:
        """Numbers in it without thousands, and with a decimal point from the first on that surely has a decimal comma."""
        self._has_decimal_commas = self._has_decimal_commas or bool(
            _SURELY_DECIMAL.search(text) and not _POINT.search(text)
        )
        if self._has_decimal_commas:
            return _DECIMAL.sub(r"\1.\2", text)
        return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)

    def _line(self, text: str, of_step: bool) -> None:
        lower = text.lower()
        if announced := _EPOCH_ALONE.fullmatch(lower):
            self._epoch = float(announced[1])
        # In a table of metrics `training_step` is one of them.
        other = _PART_OF_A_NAME if of_step else _PART_OF_A_NAME_IN_A_TABLE
        steps = [m for m in _STEP.finditer(lower) if not other.search(lower[: m.start()])]
        if not (steps or self._left > 0 or ("/" in text and _STEP_OF.search(text)) or _OPENS.fullmatch(lower)):
            return
        self._parsed += 1
        rest = text
        if steps:
            before = re.sub("(?:global|train|training)_$", "", text[: steps[0].start()], flags=re.IGNORECASE)
            rest = f"{before}, {text[steps[0].end() :]}"
        pairs, words = _pairs(rest)
        number = float(steps[0][1]) if steps else None
        is_tagged = steps and (
            TAGGED.search(lower[: steps[0].start()]) or _TAGGED_BEHIND.match(lower[steps[0].end() :])
        )
        if not steps and len(pairs) > 1 and (of := _STEP_OF.findall(text[: text.find(next(iter(pairs)))])):
            number = float(of[-1])
        if number is not None and len(pairs) > 1:
            if of_step and words <= 4 and not _EVALUATED.match(next(iter(pairs))):
                (self._tagged if is_tagged else self._single).add(
                    {**pairs, **self._epoch_of(lower, pairs), "step": number}
                )
        elif (steps or _OPENS.fullmatch(lower)) and not (pairs and of_step):
            step = {"step": float(steps[-1][1]), **self._epoch_of(lower, pairs)} if steps else self._step_alone()
            self._close()
            self._open, self._left = step, _BELOW
            self._into = self._tagged if is_tagged else self._other
        elif pairs and not words and self._open is not None:
            if self._open.keys() & pairs.keys():
                self._close()
                self._open = {}
            self._open |= pairs

    def _epoch_of(self, lower: str, pairs: Mapping[str, float]) -> dict[str, float]:
        """The epoch that a line says, else the one above it; none where it is one of its pairs."""
        said = _EPOCH.search(lower)
        epoch = float(said[1]) if said else self._epoch
        return {} if epoch is None or "epoch" in map(str.lower, pairs) else {"epoch": epoch}

    def _step_alone(self) -> dict[str, float]:
        """The step that was said above the title of its metrics, where none of them stood between."""
        opened = self._open or {}
        between = of_reinforcement_learning(opened)
        return {} if between else {name: opened[name] for name in ("step", "epoch") if name in opened}

    def _close(self) -> None:
        if self._open and of_reinforcement_learning(self._open):
            self._into.add(self._open)
        self._open = None

    def _row_of_table(self, text: str) -> bool:
        """Say whether a line is of a table with pipes or tabs whose head names a reward."""
        pipes = text.count("|") > 1
        if not (pipes or self._head or text.count("\t") > 1):
            self._cells = []
            return False
        cells = [cell.strip() for cell in text.strip("|").split("|" if pipes else "\t")]
        if self._head and len(cells) == len(self._head):
            row = {name: float(c) for name, c in zip(self._head, cells, strict=True) if re.fullmatch(NUMBER, c)}
            if len(row) > 1:
                self._other.add(row)
            return True
        before, self._cells, self._head = self._cells, cells, []
        ruled = _RULED.fullmatch(text)
        named = before if ruled else [] if pipes else cells
        known = canonical(named) if len(named) == len(cells) else {}
        if "step" in known.values() and of_reinforcement_learning(named):
            self._head = ["step" if known.get(name) == "step" else name for name in named]
        return bool(ruled or self._head)


def _pairs(text: str) -> tuple[dict[str, float], int]:
    """The `name: number` in a line, and how many words stand between and behind them."""
    found: dict[str, float] = {}
    words, before = 0, ""
    text = text.translate(_SEPARATORS).replace("  ", ",").replace(" - ", ",").replace(" • ", ",")
    for field in (_NEXT.sub(",", text) if max(map(text.count, "=:")) > 1 else text).split(","):
        field = field.strip().removeprefix("- ")
        pair = _pair(field) or (_pair(f"{before}:{field}") if before and field else None)
        if pair:
            words -= len(before.split()) if found and before and pair[0] == before else 0
            found[pair[0]] = pair[1]
        elif found:
            words += len(field.split())
        before = "" if pair else field or before
    return found, words


def _pair(field: str) -> tuple[str, float] | None:
    """`name: number`, `name=number` or `name number`, each with a unit behind it; a loss that is `None` is no number."""
    name, apart, value = field.partition(":" if ":" in field else "=")
    if not apart and (match := _GAP.search(field)):
        name, value = field[: match.start()], field[match.start() :]
    name = name.strip()
    if _STEP_OF.search(name):  # `Episode [2/3]: 100%|`
        return None
    if not value or not (name[:1].isalpha() or name[:1] == "_") or len(name) > 60 or name.count(" ") > 4 or "=" in name:
        return None
    try:
        return name, float(value)
    except ValueError:
        match = _VALUE.fullmatch(value)
    if match is None and value.strip().lower() in _NO_VALUE and FINITE & set(canonical([name]).values()):
        return name, math.nan
    if (part := _RIGHT_OF.fullmatch(value)) and "reward" in canonical([name]).values():
        return name, int(part[1]) / int(part[2])
    return (name, float(match[1]) * _TIMES[match[2].strip()]) if match else None
