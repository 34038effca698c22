"""Measures what pads do to SmolLM2's log-probs in bf16, with position ids and without, next to another batch size alone.

    python -m benchmarks.bf16_padding --out data/measured/bf16_padding.json

Forward passes of 30 texts on one thread of a CPU, no training: minutes.
"""

import numpy as np
import pandas as pd

from tools.record import parser, publish, run_main, table, use_one_thread
from workbench.curves.stats import seed_interval
from workbench.experiments.instruments.bf16_padding import ANOTHER_SIZE, ROWS, bf16_changes
from workbench.experiments.recipes import load_prompts, resolve_model

TEXTS = range(0, 5600, 187)  # 30 rows of the starter's texts


def summary(changes: pd.DataFrame) -> dict[str, str]:
    """Say for each way its mean change over texts, and how far it lies from that of another batch size, with intervals.

    Example:
        >>> texts = {"left pads, no position ids": [3.0, 5.0, 4.0], ANOTHER_SIZE: [1.0, 1.0, 1.0]}
        >>> summary(pd.DataFrame(texts))["left pads, no position ids"]
        '4.0000 (1.5159 to 6.4841); less another batch size alone 3.0000 (0.5159 to 5.4841)'
    """
    said = {}
    for way in changes:
        mean, more = (
            seed_interval(values, np.random.default_rng(0), statistic=np.mean).in_brief(".4f")
            for values in (changes[way], changes[way] - changes[ANOTHER_SIZE])
        )
        said[way] = mean if way == ANOTHER_SIZE else f"{mean}; less another batch size alone {more}"
    return said


def page(result: dict) -> list[str]:
    """Make the section of docs/evidence/real_weights.md."""
    return [
        '<a id="pads-in-bf16"></a>',
        "",
        "## Pads in bf16",
        "",
        f"Mean change of a log-prob of SmolLM2 in bf16 [nats], from each text alone: {result['texts']} texts of the starter",
        f"in batches of {result['rows of a batch']}. Intervals are over texts. Another batch size: copies of a text,",
        "without pads.",
        "",
        *table(["way", "mean change"], [(way, says.split(";")[0]) for way, says in result["summary"].items()]),
        "",
    ]


def main() -> None:
    args = parser(__doc__).parse_args()
    use_one_thread()
    rows = load_prompts("starter").select(TEXTS)
    changes = bf16_changes(resolve_model("smollm2"), [row["prompt"] + row["completion"] for row in rows])
    of = {
        "texts": len(changes),
        "rows of a batch": ROWS,
        "unit": "nats, mean |change| of a log-prob from the text alone",
    }
    publish(of | {"summary": summary(changes), "changes": changes.round(6).to_dict("list")}, args.out)


if __name__ == "__main__":
    run_main(main)
