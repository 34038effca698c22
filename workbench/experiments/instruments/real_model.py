"""What a notebook showed on SmolLM2 when it was recorded, next to what this run shows."""

import difflib
import html
import re
from collections.abc import Sequence

from IPython.display import HTML

from ...extras import packaged
from ...runs.files import read_json
from ...runs.results import NOT_RUN, Result, results_of
from ...runs.text import html_table

FILE = "smollm2.json"


def on_smollm2(notebook: str, results: Sequence[Result]) -> HTML | str:
    """Show what a notebook showed on SmolLM2-135M-Instruct: each sentence with its verdict there and here, as a table.

    Sentences of two runs are about the same thing if they are alike apart from their numbers. Left out are those that have the
    same words and verdict in both, such as sentences about other models, and what was not run there.

    Args:
        notebook: its name, such as `04_duplicate_prompts`.
        results: those of this run.

    Returns:
        A table that shows itself, with steps, seeds, rate, TRL, commit, date and minutes in its caption; a sentence where
        nothing is recorded.
    """
    row = read_json(packaged("data") / FILE, {})["rows"].get(notebook)
    if row is None:
        return "No run of this notebook on SmolLM2 is recorded."
    verdicts = {re.sub(r"[\d.+-]+", "", one.says): one.verdict for one in results}
    shared, lines = {(one.says, one.verdict) for one in results}, []
    for there in results_of(row):
        alike = difflib.get_close_matches(re.sub(r"[\d.+-]+", "", there.says), verdicts, n=1)
        if (there.says, there.verdict) not in shared and not there.why.startswith(NOT_RUN):
            here = verdicts[alike[0]] if alike else ""
            says = f"{there.says} ({there.why})" if there.why else there.says
            lines.append([here, there.verdict, html.escape(says)])
    made = row["environment"]
    about = [
        f"{name}: {row['parameters'][name]}"
        for name in ("steps", "seeds", "learning_rate")
        if name in row["parameters"]
    ]
    about += [f"TRL {made['packages']['trl']}", f"commit {made['git_commit'][:7]}", made["date"]]
    caption = f"SmolLM2-135M-Instruct ({', '.join(about)}); {row['minutes']} minutes on {made['cores']} CPU cores"
    return HTML(html_table(lines, ("here", "SmolLM2", "what SmolLM2 shows"), caption))
