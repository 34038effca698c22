"""The first screen of a notebook: what the installed versions do, from `data/defects.json`, and a picture drawn by hand."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..curves.figures import COLORS, DescribedFigure
from ..packaged import packaged

_HATCHES = ("", "//", "..", "xx")
_WORDS = {"lives": "happens", "mended": "fixed", "cannot run": "cannot happen: this TRL lacks the trainer"}


def installed_table(defects: Mapping[str, str], trl: str = "") -> pd.DataFrame:
    """What was seen of known defects on the installed TRL, and in which releases.

    Args:
        defects: name of a script in `repros/` -> what the defect does, in words.
        trl: release looked at; default the installed one.

    Returns:
        A row a defect; `docs/defects.md` has all of them.

    Example:
        >>> installed_table({"several_eos_ids": "only one EOS counts"}, trl="1.14.2").iloc[0].tolist()
        ['fixed', '1.0.0 to 1.14.1']
    """
    trl = trl or version("trl")
    seen = json.loads((packaged("data") / "defects.json").read_text(encoding="utf-8"))["results"]
    rows = {words: _row(seen[name], trl) for name, words in defects.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=[f"TRL {trl}", "seen to happen in TRL"])


def _row(results: Mapping[str, Mapping], trl: str) -> list[str]:
    here = _WORDS[results[trl]["state"]] if trl in results else "not tried"
    found = sorted((r for r in results if results[r]["state"] == "lives"), key=lambda r: [*map(int, r.split("."))])
    return [here, f"{found[0]} to {found[-1]}" if found else "none"]


def show_cells(rows: Mapping[str, Sequence[str]], kinds: Sequence[str], *, title: str) -> DescribedFigure:
    """Rows of tokens as cells, coloured and hatched by what becomes of them.

    Args:
        rows: name -> for each kind the tokens of that kind, with blanks between them; the kinds follow each other.
        kinds: what becomes of a token, at most four.
        title: of the figure.

    Example:
        >>> show_cells({"a row": ("Return it EOS", "and on")}, ("kept", "wasted"), title="PPO").alt
        'PPO. a row: Return it EOS (kept), and on (wasted).'
    """
    figure = Figure(figsize=(9, 0.5 * len(rows) + 1.1), layout="constrained")
    ax, longest = figure.subplots(), 0.0
    for row, parts in enumerate(rows.values()):
        left = 0.0
        for kind, part in enumerate(parts):
            for word in part.split():
                width = 0.9 + 0.35 * len(word)
                look = {"facecolor": COLORS[kind], "alpha": 0.3, "hatch": _HATCHES[kind], "edgecolor": "#555"}
                ax.add_patch(Rectangle((left, row + 0.08), width, 0.84, **look))
                ax.text(left + width / 2, row + 0.5, word, ha="center", va="center", family="monospace", fontsize=9)
                left += width
        longest = max(longest, left)
    ax.set(xlim=(0, longest), ylim=(len(rows), 0), title=title, xticks=[])
    ax.set_yticks([n + 0.5 for n in range(len(rows))], list(rows))
    ax.spines[:].set_visible(False)
    marks = [Patch(facecolor=COLORS[n], alpha=0.3, hatch=_HATCHES[n], edgecolor="#555") for n in range(len(kinds))]
    figure.legend(marks, kinds, loc="outside lower center", ncols=len(kinds), frameon=False, fontsize=9)
    said = [
        f"{name}: {', '.join(f'{p} ({k})' for p, k in zip(parts, kinds, strict=False) if p)}"
        for name, parts in rows.items()
    ]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(kinds)).rename_axis("row").reset_index()
    return DescribedFigure(
        figure, alt=f"{title}. {'; '.join(said)}.", table=table, caption="Drawn by hand, not measured."
    )
