"""What a notebook showed on SmolLM2 when it was recorded, next to what this run shows."""

import difflib
import re
from collections.abc import Sequence

import pandas as pd
from pandas.io.formats.style import Styler

from ...packaged import packaged
from ...runs.files import read_json
from ...runs.results import NOT_RUN, Result, results_of

FILE = "smollm2.json"


def on_smollm2(notebook: str, results: Sequence[Result]) -> Styler | str:
    """Show what a notebook showed on SmolLM2-135M-Instruct: each sentence with its verdict there and here, as a table.

    Sentences of two runs are about the same thing if they are alike apart from their numbers. Left out are those that are the
    same in both, such as sentences about other models, and what was not run there.

    Args:
        notebook: its name, such as `04_duplicate_prompts`.
        results: those of this run.

    Returns:
        A table that shows itself, with steps, seeds, commit and date in its caption; a sentence where nothing is recorded.
    """
    row = read_json(packaged("data") / FILE, {})["rows"].get(notebook)
    if row is None:
        return "No run of this notebook on SmolLM2 is recorded."
    verdicts = {re.sub(r"[\d.+-]+", "", one.says): one.verdict for one in results}
    shared, lines = {one.says for one in results}, []
    for there in results_of(row):
        alike = difflib.get_close_matches(re.sub(r"[\d.+-]+", "", there.says), verdicts, n=1)
        if there.says not in shared and not there.why.startswith(NOT_RUN):
            here = verdicts[alike[0]] if alike else ""
            lines.append({"here": here, "SmolLM2": there.verdict, "what SmolLM2 shows": there.says})
    size = ", ".join(f"{name}: {row['parameters'][name]}" for name in ("steps", "seeds") if name in row["parameters"])
    made = f"{size}, commit {row['environment']['git_commit'][:7]}, {row['environment']['date']}"
    table = pd.DataFrame(lines).style.hide(axis="index").set_caption(f"SmolLM2-135M-Instruct ({made})")
    return table.set_table_styles([{"selector": "td, th, caption", "props": "text-align: left"}])
