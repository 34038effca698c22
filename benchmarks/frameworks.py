"""The page of what frameworks' losses answer to `workbench conform`; `python -m repros.frameworks.run --all` asks them."""

from collections import Counter
from collections.abc import Iterator

from repros.frameworks.causes import cause_of
from repros.frameworks.run import cases_of
from tools.record import csv_next_to_page, csv_text, made_with, measured, table
from workbench.conform.definitions import DEFINITIONS

NAMES = {
    "trl": "TRL",
    "trl_async": "TRL AsyncGRPO",
    "trl_distillation": "TRL Distillation",
    "trl_async_distillation": "TRL AsyncDistillation",
    "verl": "verl",
    "openrlhf": "OpenRLHF",
    "skyrl": "SkyRL",
    "areal": "AReaL",
    "ms_swift": "ms-swift",
    "unsloth": "Unsloth",
}
VERDICTS = ("same", "other by choice", "wrong", "not offered")
# How the names of a group's cases begin; a name belongs to the first group that fits.
GROUPS = {
    "missing rewards": ("one reward ", "a group of nan", "None for some"),
    "groups of one": ("a group of one", "groups of one"),
    "KL": ("kl",),
    "NaN behind the end": ("nan behind",),
    "the sampler": ("weights ", "a log-prob of", "a sampler ", "rows off policy"),
    "divergences": ("forward", "a mixture"),
    "micro-batches, processes": ("two micro", "two unequal", "three ", "a micro-batch", "two processes"),
    "masks": ("tool tokens", "a row ", "all rows"),
    "large ratios": ("ratios far",),
    "settings": ("a higher", "a limit", "two-sided", "ratio of", "temperatures", "other gamma"),
}
REST = ("plain", "rewards")
# Only read: framework, commit or release, its default loss, the verdict that follows.
READ = (
    (
        "TRL ServerDistillation",
        "1.16.0",
        "the divergence at the sampled token, divided by the tokens of a micro-batch, then by the number of micro-batches",
        "wrong with several micro-batches, as its comment says (server_distillation_trainer.py:339)",
    ),
    ("slime", "06787cf", "clipped, a mean of rows; dual clip is off", "same, as grpo"),
    (
        "NeMo-RL",
        "006907a",
        "clipped, a mean over tokens, with KL",
        "same, as dapo; its KL has the gradient of the score too",
    ),
    ("prime-rl", "559b447", "DPPO's, and 0.001 times the squared log-ratio", "other by choice, to dppo"),
    (
        "open-instruct",
        "0063d12",
        "clipped at 0.8 and 1.272, weights of the sampler up to 2, a mean over tokens, with KL",
        "same, as dapo with epsilon_high and token_truncate",
    ),
)


def group_of(case: str) -> str:
    """The group of a case by its name.

    Example:
        >>> [group_of(case) for case in ("kl by k1", "grpo: groups of one", "rloo: two groups", "distilled: four rows")]
        ['KL', 'groups of one', 'rewards', 'plain']
    """
    start, colon, rest = case.partition(": ")
    name = rest or case
    of_rewards = bool(colon) and start != "distilled"
    return next((group for group, starts in GROUPS.items() if name.startswith(starts)), REST[of_rewards])


def cells(answers: dict) -> Iterator[tuple[str, str, dict]]:
    """The answers of a release: definition, case, what is stored of it; a case that is not stored is the same."""
    for claim, answer in answers.items():
        for case in cases_of(claim):
            yield claim, case, answer["others"].get(case, {"verdict": "same"})


def row(framework: str, release: str, answers: dict, group: str) -> list[str] | None:
    """The cells of a row behind the release: numbers of verdicts, and what is not the same; None where nothing is asked."""
    counts: Counter[str] = Counter()
    said: Counter[str] = Counter()
    for claim, case, cell in cells(answers):
        if group_of(case) != group:
            continue
        counts[cell["verdict"]] += 1
        if cell["verdict"] == "other by choice":
            said[f"other: {cell['says']}"] += 1
        if cell["verdict"] == "wrong":
            cause = cause_of(framework, release, claim, case)
            said[f"{cause.kind}: {cause.text}" if cause else f"not read: {claim}, {case}"] += 1
        if cell["verdict"] == "not offered":
            said[f"not offered: {cell['says'].rstrip('.')}"] += 1
    if not counts:
        return None
    return [*(str(counts[verdict]) for verdict in VERDICTS), "; ".join(f"{text} ({n})" for text, n in said.items())]


def not_asked(answers: dict) -> list[str]:
    """The row of the definitions for which a framework has no function."""
    names = ", ".join(name for name in DEFINITIONS if name not in answers)
    return ["definitions without a function", *["0"] * len(VERDICTS), f"not asked: {names}"]


def cases_csv() -> str:
    """Framework by group of cases by release; releases that answer the same are one row."""
    rows = []
    for name, releases in measured("conform")["frameworks"].items():
        for group in (REST[0], *reversed(GROUPS), REST[1], None):
            merged: dict[tuple[str, ...], list[str]] = {}
            for release, answers in releases.items():
                if group is None:
                    merged.setdefault(tuple(not_asked(answers)), []).append(release)
                elif cells_of := row(name, release, answers, group):
                    merged.setdefault((group, *cells_of), []).append(release)
            rows += [[NAMES[name], ", ".join(several), *of_row] for of_row, several in merged.items()]
    for name, commit, loss, verdict in READ:
        rows.append(
            [name, f"{commit}, only read", "default loss", *["not asked"] * len(VERDICTS), f"{loss}: {verdict}"]
        )
    return csv_text(["framework", "release", "cases", *VERDICTS, "what is not the same (cases)"], rows)


def page() -> list[str]:
    """The lines of the page."""
    result = measured("conform")
    frameworks = []
    for name, releases in result["frameworks"].items():
        release, answers = next(iter(releases.items()))
        counts = Counter(cell["verdict"] for _, _, cell in cells(answers))
        wrong = [(claim, case) for claim, case, cell in cells(answers) if cell["verdict"] == "wrong"]
        causes = [cause_of(name, release, *one) for one in wrong]
        kinds = Counter(cause.kind if cause else "not read" for cause in causes)
        of_kind = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        numbers = [str(counts[verdict]) for verdict in VERDICTS]
        frameworks.append(
            [
                f"{NAMES[name]} {release}",
                *numbers[:2],
                of_kind if len(kinds) == 1 else numbers[2] + (f": {of_kind}" if of_kind else ""),
                numbers[3],
            ]
        )
    return [
        "# One definition, every framework",
        "",
        "[`workbench conform`](../how-to/conform.md) asked the losses in these wheels, as their trainers add them up, and "
        "the advantages. Distillation is asked over two outcomes: the sampled token, and all others.",
        "",
        *table(["newest release", *VERDICTS[:2], "neither", VERDICTS[3]], frameworks),
        "",
        "*Own formula*: a choice that conform has no name for, right or wrong. *No guard*: NaN in, or no token left, and NaN "
        "out; a trainer may prevent it. *Fault*: TRL's asynchronous trainers take the mean of the micro-batches' means; in "
        "ms-swift a completion that no function scored has reward 0, and before 4.6.0 two losses were divided once more.",
        "",
        "AReaL has one wheel; AsyncGRPO and Distillation of TRL 1.15.0 do not fit the adapters.",
        "",
        *csv_next_to_page("conform.csv"),
        "",
        f"Made by `python -m repros.frameworks.run --all` and `python -m benchmarks.pages`: {made_with(result)}.",
        "",
    ]
