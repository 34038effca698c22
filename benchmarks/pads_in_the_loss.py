"""README's figure: what stock TRL trains of completions that end at a token of one's own, and what `check_step` says of it.

    python -m benchmarks.pads_in_the_loss --out data/measured/pads_in_the_loss.json

It runs README's script twice: as it stands, and with the two lines changed that README names.
"""

import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tools.record import ROOT, parser, publish, run_main, use_one_thread
from workbench.curves.figures import DescribedFigure
from workbench.replay.report import StepReport

OUR_TRAINER = (
    "from trl import GRPOConfig, GRPOTrainer",
    "from trl import GRPOConfig\nfrom workbench import GRPOTrainer",
)
OUR_STOP = ("train_dataset=data)", 'train_dataset=data, stops=["</search>"])')
KINDS = {"after the end": "#d55e00", "in the loss": "#0072b2", "not sampled": "#f2f2f2"}


def script() -> str:
    """The lines of README's script."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)[0]


def fixed(code: str) -> str:
    """The script with our trainer and a stop string in place of the option."""
    code = re.sub(r", generation_kwargs=\{.*?\}", "", code)
    for before, after in (OUR_TRAINER, OUR_STOP):
        if before not in code:
            raise ValueError(f"README's script: no {before!r}")
        code = code.replace(before, after)
    return code


def checked(code: str) -> dict:
    """Run a script whose last line prints `check_step(trainer)`; return what it says and each row's tokens."""
    lines, last = code.rstrip().rsplit("\n", 1)
    names: dict = {}
    exec(compile(lines, "README.md", "exec"), names)
    if last != "print(check_step(trainer))":
        raise ValueError(f"README's script ends with {last!r}")
    report = names["check_step"](names["trainer"])
    pad = names["trainer"].processing_class.pad_token_id
    return {"headline": report.headline, "says": str(report), **tokens(report, pad)}


def tokens(report: StepReport, pad: int) -> dict:
    """Of each row, how many tokens of the loss are its own and how many are pads; and the pads' share of the slopes."""
    rows, of_pads, of_all = [], 0.0, 0.0
    for row in report.rows:
        trained = np.asarray(row.mask) > 0
        pads = trained & (np.asarray(row.completion_ids) == pad)
        slopes = np.abs(row.slopes)
        of_pads, of_all = of_pads + float(slopes[pads].sum()), of_all + float(slopes[trained].sum())
        rows.append({"own": int((trained & ~pads).sum()), "pads": int(pads.sum())})
    return {"rows": rows, "pads' share of the slopes": round(of_pads / of_all, 4) if of_all else 0.0}


def figure(result: dict) -> DescribedFigure:
    """Draw each token that the loss takes, row by row: the completion's own, and those behind its end."""
    drawn = Figure(figsize=(4.6, 4.8), layout="constrained")  # narrow, as a phone makes a wide one too small to read
    panels = drawn.subplots(2, 1, sharex=True)
    titles = {"stock": "Stock TRL", "workbench": "The two lines changed"}
    width = max(row["own"] + row["pads"] for arm in titles for row in result[arm]["rows"])
    said = []
    for ax, (arm, title) in zip(panels, titles.items(), strict=True):
        rows = result[arm]["rows"]
        cells = np.full((len(rows), width), 2)
        for n, row in enumerate(rows):
            cells[n, : row["own"]] = 1
            cells[n, row["own"] : row["own"] + row["pads"]] = 0
        ax.pcolormesh(cells, cmap=ListedColormap([*KINDS.values()]), vmin=0, vmax=2, edgecolors="white", linewidth=1.5)
        ax.invert_yaxis()
        verdict = result[arm]["headline"].partition(",")[0]
        ax.set_title(f"{title}\ncheck_step says “{verdict}”", fontsize=11, loc="left")
        ax.set(ylabel="completion", yticks=[], xticks=range(0, width + 1, 5))
        ax.spines[:].set_visible(False)
        pads, own = (sum(row[kind] for row in rows) for kind in ("pads", "own"))
        said.append(f"{title}: {own} tokens of the completions and {pads} behind their ends; {verdict}")
    panels[-1].set_xlabel("token of the completion")
    legend = {"in the loss": "sampled", "after the end": "behind the completion's end, in the loss"}
    handles = [Patch(color=KINDS[kind], label=label) for kind, label in legend.items()]
    drawn.legend(handles=handles, loc="outside lower center", frameon=False)
    alt = f"Tokens that the loss takes in one step of GRPO. {'. '.join(said)}."
    table = pd.DataFrame([{"arm": arm, **row} for arm in titles for row in result[arm]["rows"]])
    return DescribedFigure(drawn, alt=alt, table=table)


def main() -> None:
    args = parser(__doc__).parse_args()
    use_one_thread()
    code = script()
    with tempfile.TemporaryDirectory() as folder:
        code = code.replace('"outputs"', repr(str(Path(folder) / "outputs")))
        publish({"stock": checked(code), "workbench": checked(fixed(code))}, args.out)


if __name__ == "__main__":
    run_main(main)
