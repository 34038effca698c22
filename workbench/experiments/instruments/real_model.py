"""What a notebook showed on SmolLM2 when it was recorded, next to what this run shows."""

import difflib
import re
from collections.abc import Sequence

import pandas as pd

from ...packaged import packaged
from ...runs.files import read_json
from ...runs.results import Result, results_of

FILE = "smollm2.json"


def on_smollm2(notebook: str, results: Sequence[Result]):
    """Show the verdict of each result here and on SmolLM2, with its sentence there: a pandas `Styler`.

    Sentences of two runs are about the same thing if they are alike apart from their numbers. Those that both runs share, such
    as sentences about other models, are left out; a sentence that only SmolLM2 has stands alone. Where nothing is
    recorded of a notebook, it says so.
    """
    row = read_json(packaged("data") / FILE, {})["rows"].get(notebook)
    if row is None:
        return "No run of this notebook on SmolLM2 is recorded."
    verdicts = {re.sub(r"[\d.+-]+", "", one.says): one.verdict for one in results}
    shared, lines = {one.says for one in results}, []
    for there in results_of(row):
        alike = difflib.get_close_matches(re.sub(r"[\d.+-]+", "", there.says), verdicts, n=1)
        if there.says not in shared:
            here = verdicts[alike[0]] if alike else ""
            lines.append({"here": here, "SmolLM2": there.verdict, "what SmolLM2 shows": there.says})
    size = ", ".join(f"{name}: {row['parameters'][name]}" for name in ("steps", "seeds") if name in row["parameters"])
    made = f"{size}, commit {row['environment']['git_commit'][:7]}, {row['environment']['date']}"
    left = {"selector": "td, th, caption", "props": "text-align: left"}
    return (
        pd.DataFrame(lines)
        .style.hide(axis="index")
        .set_table_styles([left])
        .set_caption(f"SmolLM2-135M-Instruct ({made})")
    )
