"""Recorded results of SmolLM2, of notebooks and of programs."""

import difflib
import html
import itertools
import re
from collections.abc import Sequence

from IPython.display import HTML

from ...extras import packaged
from ...runs.files import read_json
from ...runs.results import NOT_RUN, Result, results_of, show_results
from ...runs.run import Run
from ...runs.text import html_table

FILE = "smollm2.json"
NAMES = {"smollm2": "SmolLM2-135M-Instruct"}  # a run's parameter `model` -> the model's name
ALIKE = 0.9  # the share of equal letters, numbers apart, from which on two sentences say the same
MEASURED = "measured"  # the folder of what the programs of benchmarks/ stored


def on_smollm2(results: Sequence[Result], run: Run) -> HTML | str:
    """Show what a notebook showed on SmolLM2-135M-Instruct: each sentence with its verdict there and here, as a table.

    Sentences of two runs are about the same thing if they are alike apart from their numbers; each belongs to the one that it
    is most like. What was not run there is left out. Sentences about other models are not stored (`benchmarks.real`).

    Args:
        results: those of this run.
        run: of the notebook. One of a toy confirms and refutes no claim.

    Returns:
        A table that shows itself, with the run's model, parameters, TRL, commit, date and minutes in its caption; a sentence
        where nothing is recorded.
    """
    row = read_json(packaged("data") / FILE, {})["rows"].get(run.notebook)
    if row is None:
        return "No run of this notebook on SmolLM2 is recorded."
    here, recorded = list(show_results(results, run)), list(results_of(row))
    place = alike([one.says for one in recorded], [one.says for one in here])
    lines = []
    for number, there in enumerate(recorded):
        if not there.why.startswith(NOT_RUN):
            verdict = here[place[number]].verdict if number in place else ""
            of_others = row["results"][number].get("of", {})  # size and commit of other trainings than the run's
            size = ", ".join(f"{name}: {value}" for name, value in of_others.items())
            notes = "; ".join(filter(None, [size, there.why]))
            says = f"{there.says} ({notes})" if notes else there.says
            lines.append([verdict, there.verdict, html.escape(says)])
    made = row["environment"]
    about = [f"{name}: {value}" for name, value in row["parameters"].items() if name != "model" and value != ""]
    about += [f"TRL {made['packages']['trl']}", f"commit {made['git_commit'][:7]}", made["date"]]
    model = NAMES[row["parameters"]["model"]]
    caption = f"{model} ({', '.join(about)}); {row['minutes']} minutes, threads: {made['threads']}"
    return HTML(html_table(lines, ("here", "SmolLM2", "what SmolLM2 shows"), html.escape(caption)))


def alike(ours: Sequence[str], others: Sequence[str]) -> dict[int, int]:
    """Place of one of our sentences -> place of the other that says the same, numbers apart; the most alike pair first.

    Example:
        >>> alike(["By transformers 3 rows end.", "By vllm 4 rows end."], ["By vllm 5 rows end."])
        {1: 0}
    """
    words = [[re.sub(r"[\d.+-]+", "", says) for says in side] for side in (ours, others)]
    share = {
        (n, m): difflib.SequenceMatcher(None, one, other).ratio()
        for (n, one), (m, other) in itertools.product(*map(enumerate, words))
    }
    found: dict[int, int] = {}
    for n, m in sorted(share, key=share.__getitem__, reverse=True):
        if share[n, m] >= ALIKE and n not in found and m not in found.values():
            found[n] = m
    return found


def measured_on_smollm2(name: str) -> HTML | str:
    """Show what a program of `benchmarks/` measured on SmolLM2-135M-Instruct, as a table.

    Args:
        name: of the program and its stored result, such as `bf16_padding`; `_smollm2` at its end is of the result alone.

    Returns:
        A table of the result's summary that shows itself, with commit, date, torch and processor in its caption; a sentence
        where nothing is stored.
    """
    result = read_json(packaged("data") / MEASURED / f"{name}.json", {})
    program = f"benchmarks/{name.removesuffix('_smollm2')}.py"
    if not result:
        return f"No result of {program} is stored."
    made = result["environment"]
    commit, _, changed = made["git_commit"].partition(" ")
    about = [f"torch {made['packages']['torch']}", f"{made['cpu']}, threads: {made['threads']}"]
    about += [f"commit {commit[:7]} {changed}".strip(), made["date"]]
    caption = html.escape(f"SmolLM2-135M-Instruct, measured by {program} ({'; '.join(about)})")
    lines = [[html.escape(what), html.escape(says)] for what, says in result["summary"].items()]
    return HTML(html_table(lines, ("", html.escape(result["unit"])), caption))
