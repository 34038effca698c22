"""Write workbench/conform/cases.json, questions to any loss and the reference's answers: `python -m tools.conform_cases`.

Numbers have three decimals, so that a reader can follow one by hand. Places behind the end of a row hold numbers too, as the
tables of a trainer do: a function that trains them is found in each case.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.conform.definitions import DEFINITIONS, Answer, answer_of
from workbench.conform.names import NAMES
from workbench.conform.questions import FILE, question_from

LOSSES = tuple(name for name, d in DEFINITIONS.items() if not d.of_rewards and "divergence_beta" not in d.settings)
CLIPPED = ("dapo", "grpo", "bnpo", "dr_grpo", "gspo", "luspo")
BEHAVIOUR = ("decoupled_ppo", "icepop", "dppo")  # they take the sampler's own log-probs
# Their divisor is the tokens of the step, however its rows are split.
OF_TOKENS = ("dapo", "cispo", "vespo", "dual_clip", *BEHAVIOUR)
WITH_OPTIONS = (*CLIPPED, "cispo", "sapo", "vespo")
LIMITS = (0.8, 1.2, 1.28, 2.0, 3.0, 5.0)  # of a ratio
FOUR, FOUR_SIGNS = (3, 6, 2, 5), (1.2, -0.7, 0.4, -0.9)
TWO_BATCHES = [[[0, 1], [2, 3]]]
FAR = [[2.5, 1.15, 0.7], [2.5, 1.15, 0.7]]


def step(
    name: str,
    lengths: Sequence[int] = FOUR,
    advantages: Sequence[float] = FOUR_SIGNS,
    losses: Iterable[str] = LOSSES,
    *,
    seed: int = 0,
    log_ratios: Sequence[Sequence[float]] | None = None,
    tools: Mapping[int, Sequence[int]] | None = None,
    left_out: Sequence[int] = (),
    nan_behind: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    parts: list[list[list[int]]] | None = None,
    reference: bool = False,
    sampler: bool = False,
) -> dict[str, Any]:
    """A step of rows.

    Args:
        name: of the case.
        lengths: tokens of each row.
        advantages: of each row.
        losses: that are asked.
        seed: of the log-probs.
        log_ratios: of each row's tokens; random by default, on both sides of the clip.
        tools: row -> its tokens that a tool wrote.
        left_out: rows of which no token counts.
        nan_behind: tables that are NaN behind the end of a row.
        settings: other than the plain ones.
        parts: processes, micro-batches, rows.
        reference: with a reference that is not the policy.
        sampler: whose log-probs are not the trainer's.
    """
    random = np.random.default_rng(seed)
    shape = len(lengths), max([*lengths, 1])
    mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(int)
    behind = mask == 0
    logps = -0.1 - random.exponential(1.0, shape).round(3)
    moves = random.normal(0, 0.3, shape).round(3)
    moves[behind] = 0.9
    for row, values in enumerate(log_ratios or ()):
        moves[row, : len(values)] = values
    moves[_at_a_limit(moves)] += 0.01
    for row, tokens in (tools or {}).items():
        mask[row, tokens] = 0
        moves[row, tokens] = 1.7
    mask[list(left_out)] = 0
    tables = {"logps": logps, "old_logps": logps - moves}
    if reference:
        tables["ref_logps"] = logps - random.normal(0, 0.5, shape)
    if sampler:
        tables["sampled_logps"] = tables["old_logps"] - random.choice([-0.9, -0.2, 0.15, 0.6, 1.4], shape)
    for table in nan_behind:
        tables[table] = np.where(behind, np.nan, tables.get(table, tables["old_logps"]))
    stored: dict[str, Any] = {"name": name, "settings": dict(settings or {})}
    if parts:
        stored["parts"] = parts
    stored |= {table: values.round(3) for table, values in tables.items()}
    return stored | {"advantages": list(advantages), "mask": mask, "expected": tuple(losses)}


def distilled(name: str, lengths: Sequence[int] = FOUR, *, seed: int, **options: Any) -> dict[str, Any]:
    """A step of rows that imitate a teacher, whose log-probs are the reference's."""
    stored = step(f"distilled: {name}", lengths, [1.0] * len(lengths), ("distillation",), seed=seed, **options)
    teacher = -0.1 - np.random.default_rng(seed + 100).exponential(1.0, stored["mask"].shape)
    stored["ref_logps"] = np.where(np.isnan(stored["ref_logps"]), np.nan, teacher).round(3)
    return stored


def rewards(
    name: str, values: Sequence, num_generations: int, definition: str, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A question about advantages: rewards (N,) or (N, F), None or NaN for a missing one."""
    return {
        "name": name,
        "settings": dict(settings or {}),
        "rewards": np.array(values, dtype=float),
        "num_generations": num_generations,
        "expected": (definition,),
    }


def steps() -> list[dict[str, Any]]:
    """The questions to a loss."""
    return [*plain_steps(), *split_steps(), *steps_with_options(), *distilled_steps()]


def plain_steps() -> list[dict[str, Any]]:
    """One micro-batch, no option."""
    one, two = (1.0,), (1.0, -1.0)
    below = [[-log_ratio for log_ratio in row] for row in FAR]
    old, others = ["old_logps"], ["old_logps", "ref_logps", "sampled_logps"]
    return [
        step("one token", (1,), one, log_ratios=[[0.1]]),
        step("one token with a negative advantage", (1,), (-1.0,), log_ratios=[[0.1]]),
        step("two rows on policy", (2, 1), (1.0, -0.5), log_ratios=[[0.0, 0.0], [0.0]]),
        step("a short and a long row", (1, 6), two, seed=1),
        step("four rows", seed=2),
        step("advantages of 0", (2, 3), (0.0, 0.0), seed=3),
        step("tool tokens inside rows", seed=4, tools={1: [2, 3], 3: [0]}),
        step("a row left out", seed=5, left_out=[1]),
        step("all rows left out", (2, 3), two, seed=6, left_out=[0, 1]),
        step("a row without tokens", (2, 0, 4), (1.0, -0.5, -0.8), seed=7),
        step("ratios far above 1", (3, 3), two, log_ratios=FAR),
        step("ratios far below 1", (3, 3), two, log_ratios=below),
        step("nan behind the end (old)", (1, 3), (0.6, -0.7), seed=8, nan_behind=old),
        step(
            "nan behind the end (all but the policy's)", (1, 3), (0.6, -0.7), seed=9, nan_behind=others, reference=True
        ),
    ]


def split_steps() -> list[dict[str, Any]]:
    """Several micro-batches, or several processes."""
    unequal = (1, 2, 6, 5)
    return [
        step("two micro-batches", (1, 3), (1.0, -0.5), seed=10, parts=[[[0], [1]]]),
        step("two unequal micro-batches", unequal, seed=11, parts=TWO_BATCHES),
        step("three unequal micro-batches", losses=OF_TOKENS, seed=12, parts=[[[0], [1, 2], [3]]]),
        step("a micro-batch left out", seed=13, left_out=[0, 1], parts=TWO_BATCHES),
        step("two processes", unequal, seed=14, parts=[[[0, 1]], [[2, 3]]]),
        step("two processes with two micro-batches each", unequal, seed=15, parts=[[[0], [1]], [[2], [3]]]),
    ]


def steps_with_options() -> list[dict[str, Any]]:
    """A setting that the plain loss does not have."""
    two = (1.0, -1.0)
    kl = partial(step, losses=WITH_OPTIONS, reference=True)
    scaled = {"beta": 0.3, "use_bias_correction_kl": True}
    inside = {1: [2, 3]}
    sampler = partial(step, losses=WITH_OPTIONS, sampler=True)
    mode, low, high = (f"importance_sampling_{what}" for what in ("mode", "clip_min", "clip_max"))
    drifting = [[], [-0.4] * 6, [], [-0.05] * 5]
    temperatures = {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.5}
    weights = {"vespo_k_pos": 1.0, "vespo_lambda_pos": 2.0, "vespo_k_neg": 2.0, "vespo_lambda_neg": 1.0}
    unknown = sampler("a log-prob of the sampler missing", seed=27, settings={mode: "token_truncate"})
    unknown["sampled_logps"][1, 0] = np.nan
    return [
        step("a higher upper limit", losses=CLIPPED, log_ratios=[[0.22, 0.4, -0.3]], settings={"epsilon_high": 0.28}),
        step("a limit of 2", (3, 3), two, ("cispo",), log_ratios=FAR, settings={"epsilon_high": 2.0}),
        step("two-sided clip", (3, 3), two, CLIPPED, log_ratios=FAR, settings={"delta": 2.0}),
        step("ratio of the row", losses=("grpo",), tools=inside, settings={"importance_sampling_level": "sequence"}),
        kl("kl", seed=18, settings={"beta": 0.3}),
        kl("kl with tool tokens and a row left out", seed=19, settings={"beta": 0.3}, tools=inside, left_out=[0]),
        kl("kl in two micro-batches", seed=20, settings={"beta": 0.3}, parts=TWO_BATCHES),
        *(
            kl(f"kl by {estimator}", losses=CLIPPED, seed=31, settings={"beta": 0.3, "kl_estimator": estimator})
            for estimator in ("k1", "k2", "k1+", "k3+")
        ),
        kl("kl weighted with the ratio", losses=(*CLIPPED, "sapo"), seed=21, settings=scaled),
        kl("kl next to weights of tokens", seed=35, settings={"beta": 0.3, mode: "token_truncate"}, sampler=True),
        sampler("weights of tokens truncated", seed=22, settings={mode: "token_truncate"}),
        sampler("weights of tokens masked", seed=23, settings={mode: "token_mask"}),
        sampler(
            "weights of rows truncated", losses=CLIPPED, seed=24, settings={mode: "sequence_truncate"}, tools=inside
        ),
        sampler("weights of rows masked", losses=CLIPPED, seed=25, settings={mode: "sequence_mask"}),
        sampler("weights masked on both sides", seed=26, settings={mode: "token_mask", low: 0.5}),
        sampler("weights of rows by their mean", losses=CLIPPED, seed=32, settings={mode: "geometric_mask", high: 1.4}),
        unknown,
        sampler("a sampler of its own", losses=BEHAVIOUR, seed=33),
        sampler(
            "a sampler of its own in two micro-batches", losses=BEHAVIOUR, seed=34, tools=inside, parts=TWO_BATCHES
        ),
        step("rows off policy", losses=WITH_OPTIONS, log_ratios=drifting, settings={"off_policy_mask_threshold": 0.1}),
        step("temperatures of 2 and 0.5", losses=("sapo",), seed=29, settings=temperatures),
        step("other gamma weights", losses=("vespo",), seed=30, settings=weights),
    ]


def distilled_steps() -> list[dict[str, Any]]:
    """Distillation on policy: the divisors of DAPO, and two other divergences."""
    own = partial(distilled, reference=True)
    unequal = (1, 2, 6, 5)
    return [
        own("one token", (1,), seed=40),
        own("four rows", seed=41),
        own("tool tokens inside rows", seed=42, tools={1: [2, 3], 3: [0]}),
        own("a row left out", seed=43, left_out=[1]),
        own("all rows left out", (2, 3), seed=44, left_out=[0, 1]),
        own("a row without tokens", (2, 0, 4), seed=45),
        own("nan behind the end", (1, 3), seed=46, nan_behind=["ref_logps"]),
        own("two micro-batches", (1, 3), seed=47, parts=[[[0], [1]]]),
        own("two unequal micro-batches", unequal, seed=48, parts=TWO_BATCHES),
        own("three unequal micro-batches", seed=49, parts=[[[0], [1, 2], [3]]]),
        own("a micro-batch left out", seed=50, left_out=[0, 1], parts=TWO_BATCHES),
        own("two processes", unequal, seed=51, parts=[[[0, 1]], [[2, 3]]]),
        own("two processes with two micro-batches each", unequal, seed=52, parts=[[[0], [1]], [[2], [3]]]),
        own("forward", seed=53, settings={"divergence_beta": 0.0}),
        own("a mixture", seed=54, settings={"divergence_beta": 0.5}),
    ]


def tables_of_rewards() -> list[dict[str, Any]]:
    """The questions about advantages."""
    nan, questions = math.nan, []
    lists = {
        "a group of two": ([1.0, 0.0], 2),
        "two groups": ([1.0, 0.0, 0.0, 1.0, 2.5, -1.0, 0.0, 1.5], 4),
        "equal rewards": ([0.1, 0.1, 0.1, 0.1], 4),
        "an equal group and another": ([0.3, 0.3, 1.0, 0.0], 2),
        "a group of one": ([5.0], 1),
        "groups of one": ([5.0, -2.0, 0.0], 1),
        "large rewards": ([1000.25, 1000.5, 1000.0, 1001.0], 4),
        "negative rewards": ([-3.0, -1.0, -2.0], 3),
        "one reward nan": ([1.0, nan, 0.0, 0.5], 4),
        "one reward left": ([nan, 2.0, nan, 1.0, 0.0, 0.0], 3),
        "a group of nan": ([nan, nan, 1.0, 0.0], 2),
    }
    for name, (values, group) in lists.items():
        for kind in ("grpo", "rloo"):
            questions.append(rewards(f"{kind}: {name}", values, group, f"{kind}_advantages"))
    two, group = lists["two groups"]
    for scale in ("batch", "none"):
        questions.append(rewards(f"grpo: scale {scale}", two, group, "grpo_advantages", {"scale_rewards": scale}))
    questions.append(
        rewards("rloo: normalized", two, group, "rloo_advantages", {"normalize_advantages": True}),
    )
    table = [[1.0, 8.0], [0.0, 8.0], [1.0, 2.0], [1.0, 4.0]]
    partly = [[1.0, None], [0.0, 8.0], [None, None], [1.0, 4.0]]
    for definition in ("gdpo_advantages", "weighted_rewards"):
        kind = definition.partition("_")[0]
        questions += [
            rewards(f"{kind}: two functions", table, 2, definition),
            rewards(f"{kind}: weights", table, 2, definition, {"reward_weights": [1.0, 0.5]}),
            rewards(f"{kind}: None for some", partly, 4, definition),
        ]
    return questions


def build() -> dict[str, Any]:
    """What the file holds."""
    definitions = {name: {"about": NAMES[name], "settings": dict(d.settings)} for name, d in DEFINITIONS.items()}
    stored = []
    for case in [*steps(), *tables_of_rewards()]:
        question = question_from(case | {"expected": {}})
        stored.append(case | {"expected": {name: _plain(answer_of(name, question)) for name in case["expected"]}})
    about = "null is NaN. slopes: the derivative of the value by each log-prob. python -m tools.conform_cases"
    return {"about": about, "definitions": definitions, "cases": _rounded(stored)}


def _plain(answer: Answer) -> Any:
    return answer.numbers if answer.value is None else {"value": answer.value, "slopes": answer.numbers}


def _rounded(value: Any) -> Any:
    """Lists for arrays, null for NaN, ten digits, and integers for whole numbers."""
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if abs(value) < 1e-15:  # what rounding left of a zero
            return 0
        return int(value) if value.is_integer() else float(f"{value:.10g}")
    return value


def _at_a_limit(moves: np.ndarray) -> np.ndarray:
    """True where a ratio is at a limit: its slope would depend on the last bit."""
    return (np.abs(np.exp(moves)[..., None] - LIMITS) < 2e-3).any(axis=-1)


def main() -> None:
    stored = build()
    lines = ",\n".join(json.dumps(case) for case in stored["cases"])
    head = json.dumps({name: value for name, value in stored.items() if name != "cases"})
    FILE.write_text(f'{head[:-1]}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{FILE}: {len(stored['cases'])} cases, {FILE.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
