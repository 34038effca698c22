"""What each notebook found, in sentences made of its numbers. The first sentence is the one that its report opens with."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..curves.stats import Interval
from ..runs.files import jsonable

_UNDECIDED = "; the interval holds no difference too, so this is undecided"


def show_findings(sentences: Sequence[str]):
    """The sentences as a numbered list, for a notebook."""
    from IPython.display import Markdown

    return Markdown("\n".join(f"{n}. {sentence}" for n, sentence in enumerate(sentences, 1)))


def show_checks(checks: Mapping[str, bool | str]):
    """How many checks hold, and those that do not, for a notebook; its report has a table of all."""
    from IPython.display import Markdown

    outcomes = [value if isinstance(value, bool) else None for value in map(jsonable, checks.values())]
    counts = {"hold": outcomes.count(True), "do not hold": outcomes.count(False), "were not run": outcomes.count(None)}
    first = ", ".join(f"{n} {words}" for words, n in counts.items() if n)
    others = {n: v for n, v in zip(checks, outcomes, strict=True) if v is not True}
    lines = [f"- {name}: {'**does not hold**' if value is False else checks[name]}" for name, value in others.items()]
    return Markdown("\n".join([f"Of {len(checks)} checks {first}.", "", *lines]))


def of_ppo_stops(forwards: float, time: Interval, noise: Interval, *, limit: int, saved_eos, names_eos) -> list[str]:
    """Notebook 01.

    Args:
        forwards: passes an update, without a stop over with one at EOS.
        time: seconds to one reward, the same ratio.
        noise: standard deviation of what text after EOS adds to a reward, over that of rewards up to EOS.
        limit: tokens a response may have.
        saved_eos: of the policy that stock PPO saved; `names_eos` of the one that the workbench's did.

    Example:
        >>> of_ppo_stops(3.7, Interval(4.6, 3.7, 5.7, 0.95, 3, "t", ""), Interval(1.3, 1.0, 1.6, 0.95, 3, "t", ""),
        ...              limit=48, saved_eos=None, names_eos=1)[0]
        'PPO as TRL has it samples all 48 tokens ...: 3.7 x the forward passes of a stop at EOS, and 4.6 (3.7 to 5.7) x ...'
    """
    lost = "has lost its EOS" if saved_eos is None else f"keeps its EOS ({saved_eos})"
    return [
        f"PPO as TRL has it samples all {limit} tokens of every response: {forwards:.1f} x the forward passes of a stop at "
        f"EOS, and {time.in_brief('.2g')} x the seconds to the same reward{_if_undecided(time, 1.0)}.",
        f"Where the whole text is scored, what comes after EOS moves a reward by {noise.in_brief('.2g')} x the spread of "
        "rewards. Scored up to EOS, that noise is gone, and every token is still paid for.",
        f"The policy that stock PPO saves {lost}; the workbench's has {names_eos}, as its tokenizer.",
    ]


def of_custom_stops(table: pd.DataFrame, by_rule: pd.DataFrame, by_id: pd.DataFrame, trl: str) -> list[str]:
    """Notebook 02.

    Args:
        table: of `stop_table`.
        by_rule: rows `in the loss` and `masked out` of stock's first masked run, with `count` and `mean` reward.
        by_id: of `stop_ids_table`.
        trl: its version.

    Example:
        >>> ends = {"stock, masked": 0.31, "stock, unmasked": 0.7, "workbench, masked": 0.75}
        >>> columns = {"logged clipped ratio": 0.98, "true clipped ratio": 0.0, "steps without gradient": 0.74}
        >>> table = pd.DataFrame({"reward, last 10 steps": ends} | {c: dict.fromkeys(ends, v) for c, v in columns.items()})
        >>> by_rule = pd.DataFrame({"count": [62, 2498], "mean": [0.0, 0.37]}, index=["in the loss", "masked out"])
        >>> by_id = pd.DataFrame({"carries": {"vLLM": True}, "tokens after it": {"vLLM": 0}})
        >>> of_custom_stops(table, by_rule, by_id, "1.12.0")[0]
        'With truncated completions masked, stock TRL ... 0.31, the workbench at 0.75; stock without masking at 0.70. ...'
    """
    # Here, since it imports TRL, which a notebook that trains nothing can do without.
    from .custom_stops import OURS, STOCK_MASKED, STOCK_UNMASKED

    ends, stock = table["reward, last 10 steps"], table.loc[STOCK_MASKED]
    out, kept = by_rule.loc["masked out"], by_rule.loc["in the loss"]
    passed = ", ".join(place for place, carries in by_id["carries"].items() if carries) or "no back end"
    return [
        f"With truncated completions masked, stock TRL {trl} ends at a reward of {ends[STOCK_MASKED]:.2f}, the workbench at "
        f"{ends[OURS]:.2f}; stock without masking at {ends[STOCK_UNMASKED]:.2f}. TRL counts rows that ended at the stop as cut "
        "off and leaves them out of the loss.",
        f"Stock logs {stock['logged clipped ratio']:.0%} of the completions as cut off; {stock['true clipped ratio']:.1%} "
        f"were. With masking {stock['steps without gradient']:.0%} of its steps have no gradient at all.",
        f"In its first masked run {out['count']:.0f} of {out['count'] + kept['count']:.0f} completions were left out of the "
        f"loss, with a mean reward of {out['mean']:.2f}; those left in it had {kept['mean']:.2f}.",
        f"What was reported is fixed: `stop_token_ids` in `generation_kwargs` reach {passed}, and at most "
        f"{by_id['tokens after it'].max():.0f} tokens follow the id.",
    ]


def of_positions(
    families: pd.DataFrame, learned: Sequence[float], rotary: Sequence[float], outside: Mapping[str, float]
) -> list[str]:
    """Notebook 03, but its training.

    Args:
        families: of `family_table`.
        learned, rotary: nats that padding moves a log-prob by, at most, without and with position ids: a model with
            learned positions in fp32, one with rotary positions in bf16.
        outside: share of the ratios of scorer to sampler outside 0.8..1.2, `implicit` and `explicit`.

    Example:
        >>> families = pd.DataFrame({"family": ["llama", "gpt2"], "verdict": ["rounding only", "wrong without position ids"],
        ...                          "fp32, without position ids": [3e-6, 3.0]})
        >>> of_positions(families, (3.0, 1e-6), (0.033, 7.8e-4), {"implicit": 0.3, "explicit": 0.0})[0]
        'Llama, Qwen ...: padding costs rounding alone, 0.033 nats at most in bf16, 0.00078 with position ids. GPT-2 ...'
    """
    wrong = families[families["verdict"].str.startswith("wrong")]["family"]
    return [
        f"Llama, Qwen and all others with rotary positions: padding costs rounding alone, {rotary[0]:.2g} nats at most in "
        f"bf16, {rotary[1]:.2g} with position ids. GPT-2 and all others with learned positions: wrong by up to "
        f"{learned[0]:.2g} nats, {learned[1]:.0e} with them.",
        f"{len(wrong)} of {len(families)} families are wrong without position ids: {', '.join(wrong)}. Positions scaled by "
        "the length are wrong near the model's window, whichever side the pads are on.",
        f"Before any update {outside['implicit']:.0%} of the ratios of scorer to sampler of a model with learned positions "
        f"lie outside 0.8..1.2; {outside['explicit']:.0%} with position ids.",
    ]


def of_position_training(gain: Interval, seeds: int, backend: str, passes: Mapping[str, bool], trl: str) -> list[str]:
    """Notebook 03, its training: reward with position ids less that without, and which trainers pass them.

    Example:
        >>> of_position_training(Interval(0.05, -0.15, 0.44, 0.95, 5, "bootstrap", ""), 5, "transformers",
        ...                      {"GRPO": False, "PPO": True}, "1.12.0")[0][:67]
        'Training: with position ids the reward ends 0.05 (-0.15 to 0.44) hi'
    """
    seen = "a difference" if not gain.low <= 0 <= gain.high else "no difference shown at this size"
    why = (
        "the ratio of GRPO is then of the scorer to itself, so that the error cancels; with `backend=vllm` it does not"
    )
    lacks = ", ".join(name for name, given in passes.items() if not given) or "none"
    return [
        f"Training: with position ids the reward ends {gain.in_brief('.2g')} higher, {seeds} seeds: {seen}. "
        + (f"It sampled with transformers: {why}." if backend == "transformers" else f"It sampled with {backend}."),
        f"Trainers of TRL {trl} whose scoring passes no position ids: {lacks}.",
    ]


def of_duplicates(
    trained: pd.DataFrame,
    rises: Sequence[Interval],
    gains: Mapping[str, Interval],
    batches: pd.DataFrame,
    error: str,
    trl: str,
) -> list[str]:
    """Notebook 04.

    Args:
        trained: of `repeated_table`, the part of one data set.
        rises: of the reward there, by stock TRL with a seed and by the workbench's trainer with `generation_seed`.
        gains: reward at the end: `repeats`, with repeated prompts less without; `sharing`, with shared generation less without.
        batches: of `compare_backends`.
        error: that the removed rule, put back, ends in; empty where it was not tried.
        trl: its version.

    Example:
        >>> arms = ["stock, a seed", "workbench, generation_seed", "workbench, shared too"]
        >>> trained = pd.DataFrame({"steps without gradient": [1.0, 0, 0], "requests a step": [64, 64, 16]}, index=arms)
        >>> rises = [Interval(x, x - 0.1, x + 0.1, 0.95, 3, "t", "") for x in (0.0, 0.2)]
        >>> gains = dict.fromkeys(("repeats", "sharing"), Interval(0.01, -0.01, 0.03, 0.95, 3, "t", ""))
        >>> of_duplicates(trained, rises, gains, pd.DataFrame({"wrong prompt": [0, 0]}), "", "1.12.0")[0]
        'A seed ... 100% of the steps have no gradient ... 0 (-0.1 to 0.1); with generation_seed, by 0.2 (0.1 to 0.3).'
    """
    from .repeated_prompts import OURS as SEED_OF_ITS_OWN
    from .repeated_prompts import SEEDED, SHARED

    stock, ours, shared = (trained.loc[arm] for arm in (SEEDED, SEED_OF_ITS_OWN, SHARED))
    rule = f" Put back, the rule of those weeks ends in the reported error ({error})." if error else ""
    return [
        f"A seed in generation_kwargs makes every group one repeated sample: with stock TRL {trl} "
        f"{stock['steps without gradient']:.0%} of the steps have no gradient and the reward changes by "
        f"{rises[0].in_brief('.2g')}; with generation_seed, by {rises[1].in_brief('.2g')}.",
        f"Equal prompts are safe today: in {len(batches)} batches, one a back end and trainer, "
        f"{batches['wrong prompt'].sum():.0f} rows were trained under a prompt that they were not sampled for.{rule}",
        f"Where half of the prompts repeat, the reward ends {gains['repeats'].in_brief('+.2g')} from where none does.",
        f"Sent as one request, equal prompts take {shared['requests a step']:.3g} requests a step for "
        f"{ours['requests a step']:.3g}; the reward ends {gains['sharing'].in_brief('+.2g')} from that without.",
    ]


def of_docs_example(
    summary: Mapping[str, float],
    rates: Sequence[float],
    ends: Mapping[str, float],
    *,
    figure: Sequence[float],
    trainer: type,
    verdicts: Sequence[str],
) -> list[str]:
    """Notebook 05.

    Args:
        summary: of `curve_summary`, this run's.
        rates: learning rate of this run, and the documented one.
        ends: arm -> reward over the last 20 steps; empty where none was trained.
        figure: lowest and highest of the documented figure's axis.
        trainer: class that trained.
        verdicts: of the run against its recorded control.

    Example:
        >>> summary = {"lowest": -33.4, "highest": -2.6, "first": -26.3, "last": -3.97, "flips": 0.67}
        >>> ends = {"documented settings": -22.7, "documented rate": -28.1}
        >>> found = of_docs_example(summary, (3e-4, 1e-6), ends, figure=(0, 1), trainer=dict, verdicts=["same process"])
        >>> found[0]
        "The example's reward is never above 0, here -33.4 to -2.6; the docs' figure lies in 0..1: it came ..."
        >>> found[1]
        'This run ends at -3.97, at a learning rate 300 x the documented one; ... ends at -22.7, ... -28.1.'
    """
    from ..training.grpo import GRPOTrainer

    ratio = rates[0] / rates[1]
    named = {"documented settings": "with all documented settings this model ends at"}
    named |= {"documented rate": "with the documented rate alone at"}
    others = ", ".join(f"{words} {ends[arm]:.3g}" for arm, words in named.items() if arm in ends)
    rate = "the documented learning rate" if ratio == 1 else f"a learning rate {ratio:.3g} x the documented one"
    own = "TRL's, with position ids, checked groups and a recorder" if issubclass(trainer, GRPOTrainer) else "TRL's own"
    return [
        f"The example's reward is never above 0, here {summary['lowest']:.3g} to {summary['highest']:.3g}; the docs' figure "
        f"lies in {figure[0]:g}..{figure[1]:g}: it came with a reward model (RM-Gemma-2B) and LoRA, not with this example.",
        f"This run ends at {summary['last']:.3g}, at {rate}"
        + (f"; {others}." if others else "; the documented settings were not tried here (`comparisons=true` does)."),
        f"After {summary['flips']:.0%} of its late steps the curve turns: 0% in a smooth rise, 67% in pure noise.",
        f"Against its control, ten recorded seeds of this recipe: {', '.join(sorted(set(verdicts))) or 'another recipe'}.",
        f"It was trained by `{trainer.__module__}.{trainer.__name__}`, {own}.",
    ]


def of_documented_runs(
    learning: pd.DataFrame, counts: Mapping[str, int], late: np.ndarray, published: float, verdicts: pd.Series
) -> list[str]:
    """Notebook 06.

    Args:
        learning: a row a documented run whose full log was published, with its `verdict`.
        counts: `baselines`, all that are bundled, `of this project` among them, and `with a reward curve`.
        late: (N,), evaluations of a PPO run near its end.
        published: the accuracy that was published of it.
        verdicts: of measured groups against documented curves on one axis.

    Example:
        >>> learning = pd.DataFrame({"verdict": ["learning", "learning", "not learning"]}, index=["a", "b", "c"])
        >>> found = of_documented_runs(learning, {"baselines": 14, "of this project": 4, "with a reward curve": 10},
        ...                            np.array([0.538, 0.579]), 0.567, pd.Series(["different"] * 2 + ["inconclusive"]))
        >>> found[0].partition(": ")[0]
        "Of 14 documented runs, 4 of them this project's own, 10 have a reward curve and 3 of these a full log"
        >>> found[0].partition(": ")[2]
        '2 of the 3 learn, 1 does not (c).'
        >>> found[2]
        'Runs of this machine against documented curves of the same unit and range: 2 different, 1 inconclusive.'
    """
    not_learning = learning.index[learning["verdict"] != "learning"]
    words = "do not" if len(not_learning) != 1 else "does not"
    counted = ", ".join(f"{n} {word}" for word, n in verdicts.value_counts().items()) or "none can be compared"
    return [
        f"Of {counts['baselines']} documented runs, {counts['of this project']} of them this project's own, "
        f"{counts['with a reward curve']} have a reward curve and {len(learning)} of these a full log: "
        f"{len(learning) - len(not_learning)} of the {len(learning)} learn, {len(not_learning)} {words} "
        f"({', '.join(not_learning)}).",
        f"A published accuracy fluctuates: {published:.1%} was published of one PPO run, its last {len(late)} evaluations lie "
        f"between {late.min():.1%} and {late.max():.1%}.",
        f"Runs of this machine against documented curves of the same unit and range: {counted}.",
    ]


def _if_undecided(found: Interval, bound: float) -> str:
    return _UNDECIDED if found.method and found.low <= bound <= found.high else ""
