"""Measures what sampling past EOS costs SmolLM2 before anything is trained: the same prompts without a stop and with EOS.

    python -m benchmarks.without_training --out data/measured/without_training.json

It samples 96 prompts twice at each token limit, in batches of 16, on one thread of a CPU: minutes at 64 tokens on an idle
machine. `--dataset` takes `number-words`, `sums`, or a file with a column `prompt`. The file at `--out` has what is
finished after each batch, and keeps rows of other data sets and limits.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from tools.record import about, made_with, measured, parser, run_main, table, use_one_thread
from workbench.curves.stats import share_interval
from workbench.experiments.instruments.without_training import ROWS, ratio_of_arms, sampled_twice
from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.runs.files import jsonable, read_json, write_json


def summary(batches: pd.DataFrame) -> dict[str, str]:
    """Say what the batches took without a stop and with EOS as the stop.

    Example:
        >>> passes = {"passes, no stop": [8, 8], "passes, stop at EOS": [4, 4]}
        >>> seconds = {"seconds, no stop": [3.0, 3.0], "seconds, stop at EOS": [2.0, 2.0]}
        >>> counts = {"tokens": 16, "after EOS": 10, "with EOS": 2, "completions": 2, "same up to EOS": 2}
        >>> said = summary(pd.DataFrame(passes | seconds | counts))
        >>> said["forward passes"], said["tokens after EOS"]
        ('16 without a stop, 8 with it; 2 (2 to 2) times', '20 of 32 (62%)')
    """
    total = batches.sum()
    rng = np.random.default_rng(0)
    passes, seconds = (ratio_of_arms(batches, what, rng) for what in ("passes", "seconds"))
    with_eos = share_interval(int(total["with EOS"]), int(total["completions"]))
    return {
        "forward passes": f"{total['passes, no stop']:.0f} without a stop, {total['passes, stop at EOS']:.0f} with it; "
        f"{passes.in_brief('.2g')} times",
        "tokens after EOS": f"{total['after EOS']:.0f} of {total['tokens']:.0f} "
        f"({total['after EOS'] / total['tokens']:.0%})",
        "completions with EOS": f"{with_eos.in_brief('.0%')}",
        "the same up to EOS": f"{total['same up to EOS']:.0f} of {total['completions']:.0f} completions",
        "seconds": f"{seconds.in_brief('.2g')} times",
    }


def page() -> list[str]:
    """Make the section of docs/evidence/real_weights.md."""
    rows = measured("without_training")["rows"]
    first = next(iter(rows.values()))
    shown = [what for what in first["summary"] if what != "seconds"]  # which are of a busy machine
    cells = [[name, *(row["summary"][what] for what in shown)] for name, row in rows.items()]
    return [
        '<a id="ppo-without-a-stop-before-training"></a>',
        "",
        "## PPO without a stop, before training",
        "",
        f"Untrained SmolLM2 answers {first['completions']} questions in batches of {first['rows of a batch']}, each twice with",
        "one seed: without a stop, and with EOS as the stop. Ratios are geometric means.",
        "",
        *table(["questions", *shown], cells),
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Return what made each row, for the end of the page."""
    rows = measured("without_training")["rows"]
    made = dict.fromkeys(made_with(row) for row in rows.values())
    return [("PPO before training", "`python -m benchmarks.without_training`", versions) for versions in made]


def main() -> None:
    args = parser(__doc__, dataset="number-words", limits=[64], prompts=96).parse_args()
    use_one_thread()
    model = resolve_model("smollm2")
    prompts = load_prompts(args.dataset)["prompt"][: args.prompts]
    for limit in args.limits:
        batches: list[dict] = []
        for batch in sampled_twice(model, prompts, limit):
            batches.append(batch)
            table_of_batches = pd.DataFrame(batches)
            row = {"completions": int(table_of_batches["completions"].sum()), "rows of a batch": ROWS}
            row |= {"summary": summary(table_of_batches), "batches": table_of_batches.round(2).to_dict("list")}
            print(row["summary"], flush=True)
            if args.out:
                rows = read_json(args.out, {}).get("rows", {})
                rows[f"{Path(args.dataset).stem}, at most {limit} tokens"] = row | {"environment": about()}
                write_json(args.out, jsonable({"rows": rows}))


if __name__ == "__main__":
    run_main(main)
