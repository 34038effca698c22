"""How stop token ids and new tokens reach a real vLLM engine, and the figure of what masking makes of custom stops."""

import contextlib
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import trl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ...curves.documented import Baseline
from ...curves.figures import COLORS, DescribedFigure, apart
from ...curves.stats import Interval, crossed_interval, seed_interval
from ...errors import refusal
from ...generation.preflight import check_tokenizers, save_policy
from ...generation.stops import StopSpec
from ..vllm_server import serve, shared_engine, sharing_engines
from .duplicate_prompts import make_trainer

CURVES = {  # column here -> metric of a recorded run
    "logged": "completions/clipped_ratio",
    "truncated": "truncated",
    "grad_norm": "grad_norm",
    "equal": "frac_reward_zero_std",
    "right": "eval_accuracy",
}


def stop_ids_table(path: str, stop_id: int, *, server: bool) -> pd.DataFrame:
    """Stock GRPO with `generation_kwargs={"stop_token_ids": [stop_id]}`: does vLLM get the id, and do completions end there?

    A row per back end, with `server` a vLLM server too: whether the `request has the id`, how many of 16 `completions that
    hold the id`, and the `most tokens after it` in one of them. `path` is a saved model of the search task.
    """
    table = {}
    with sharing_engines(), serve(path) if server else contextlib.nullcontext() as url:
        for place in ("vLLM", *(["vLLM server"] if server else [])):
            served = place == "vLLM server"
            options = {"generation_kwargs": {"stop_token_ids": [stop_id]}}
            trainer = make_trainer(trl.GRPOTrainer, path, 16, vllm=True, url=url if served else None, **options)
            at = trainer.vllm_generation.vllm_client if served else trainer.vllm_generation.llm
            name = "_post" if served else "generate"
            with mock.patch.object(at, name, wraps=getattr(at, name)) as request:
                rows = trainer._generate([row["prompt"] for row in trainer.train_dataset.select(range(16))])[1]
            asked = request.call_args.kwargs
            carried = asked["json"].get("stop_token_ids") if served else asked["sampling_params"].stop_token_ids
            after = [len(row) - 1 - row.index(stop_id) for row in rows if stop_id in row]
            table[place] = {
                "request has the id": stop_id in (carried or ()),
                "completions that hold the id": len(after),
                "most tokens after it": max(after, default=0),
            }
    return pd.DataFrame(table).T


def added_token_table(path: str, token: str, *, folder: Path) -> pd.DataFrame:
    """A token added in memory and then saved to `folder`, as a real vLLM engine sees it: a column for each engine.

    The token is forced by a logit bias, so that the stop, not the model's will, is tested.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    grown = AutoTokenizer.from_pretrained(path)
    save_policy(AutoModelForCausalLM.from_pretrained(path), grown, folder, new_tokens=[token])
    new_id = grown.convert_tokens_to_ids(token)
    columns = {}
    for name, place in {"in memory": path, "saved": str(folder)}.items():
        llm = shared_engine(model=place, max_model_len=256, num_gpu_blocks_override=16)  # for one request at a time
        columns[name] = {
            "checked": refusal(check_tokenizers, grown, llm.get_tokenizer(), StopSpec(stop=(token,))),
            "spelt in tokens": len(llm.get_tokenizer().encode(token)),
            "stop by id": _forced(llm, new_id, stop_token_ids=[new_id]),
            "stop by string": _forced(llm, new_id, stop=[token], skip_special_tokens=False),
        }
    return pd.DataFrame(columns)


def _forced(llm, token_id: int, **stops) -> str:
    """Return what comes of a generation that is made to emit `token_id`, where the engine has such a token at all."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    known = token_id < len(llm.get_tokenizer())
    params = SamplingParams(
        max_tokens=8, temperature=0, ignore_eos=True, logit_bias={token_id: 100.0} if known else None, **stops
    )
    try:
        made = llm.generate([{"prompt_token_ids": [2, 3, 4]}], params, use_tqdm=False)[0].outputs[0]
    except VLLMValidationError as error:
        return f"error: {str(error).splitlines()[0][:90]}"
    if made.finish_reason == "stop":
        return f"stopped at {made.stop_reason} after {len(made.token_ids)} tokens"
    return f"did not stop, hit its {len(made.token_ids)}-token limit"


def recorded(one: Baseline) -> list[pd.DataFrame]:
    """The seeds of a recorded run, with the columns of `CURVES`, by step; NaN where a step has no look at held-out answers."""
    curves = {name: one.curves_by_seed(metric) for name, metric in CURVES.items()}
    seeds = range(len(curves["logged"]))
    return [
        pd.DataFrame({name: pd.Series(c[n].y, index=c[n].x.astype(int)) for name, c in curves.items()}) for n in seeds
    ]


def held_out_gain(ours: Baseline, theirs: Baseline) -> Interval | None:
    """How many more held-out questions one recorded arm answers right at its end than another: an interval of the share.

    It is over seeds and questions where both arms have each answer, else over seeds. None if no seed is in both.
    """
    answers = [one.recorded.get("answers", {}) for one in (ours, theirs)]
    looks = [one.curves.get("eval_accuracy", {}).get("by_seed", {}) for one in (ours, theirs)]
    first, second = answers if all(answers) else looks
    seeds = sorted(first.keys() & second.keys(), key=str)
    if not seeds:
        return None
    if all(answers):
        return crossed_interval([np.subtract(first[seed], second[seed]) for seed in seeds])
    gains = sorted(first[seed][-1] - second[seed][-1] for seed in seeds)
    return seed_interval(gains, np.random.default_rng(0), statistic=np.mean)


def useful_steps(seed: pd.DataFrame) -> tuple[int, int]:
    """Steps with a gradient, and the steps that could have one, because the rewards of a group differ.

    Example:
        >>> useful_steps(pd.DataFrame({"grad_norm": [0.0, 0.2, 0.0, None], "equal": [1.0, 0.5, 0.5, None]}))
        (1, 2)
    """
    differ = seed["equal"] < 1
    return int((seed["grad_norm"][differ] > 0).sum()), int(differ.sum())


def stops_figure(arms: Mapping[str, Sequence[pd.DataFrame]], *, title: str, narrow: bool = False) -> DescribedFigure:
    """Draw cause, mechanism and effect: arm -> its seeds, each with the columns of `CURVES` by step. The first arm is stock.

    Every seed is drawn. The caption has the numbers with their denominators. A narrow figure has its panels one below the
    other, as a phone makes a wide one too small to read.
    """
    if narrow:
        figure = Figure(figsize=(4.8, 8.6), layout="constrained")
        cause, mechanism, effect = figure.subplots(3, 1)
    else:
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        cause, mechanism, effect = figure.subplots(1, 3)
    stock = next(iter(arms))
    logged, truncated = (
        pd.concat([seed[name] for seed in arms[stock]], axis=1).dropna() for name in ("logged", "truncated")
    )
    for values, color, name in (
        (logged, COLORS[0], "logged: clipped_ratio"),
        (truncated, "#555555", "truncated at the limit"),
    ):
        cause.plot(values.index, values, color=color, linewidth=0.6, alpha=0.5)
        cause.plot(values.index, values.mean(axis=1), color=color, linewidth=2)
        middle, low, high = values.index.to_numpy().mean(), values.to_numpy().min(), values.to_numpy().max()
        cause.annotate(name, (middle, high + 0.04 if high < 0.5 else low - 0.1), color=color, ha="center")
    cause.set(title=f"{stock}:\ncompletions that count as truncated", xlabel="steps", ylabel="share of completions")
    ends: dict[str, pd.Series] = {}
    used, rows = {arm: [useful_steps(seed) for seed in seeds] for arm, seeds in arms.items()}, []
    for n, (arm, seeds) in enumerate(arms.items()):
        color = COLORS[n]
        shares = np.array([with_one / could if could else np.nan for with_one, could in used[arm]])
        mechanism.plot(n + np.linspace(-0.2, 0.2, len(shares)), shares, "o", color=color, alpha=0.8)
        count = "{} of {}".format(*np.sum(used[arm], axis=0))
        mechanism.annotate(count, (n, 1.08), color=color, ha="center", annotation_clip=False)
        looks = pd.concat([seed["right"] for seed in seeds], axis=1).dropna()
        effect.plot(looks.index, looks, color=color, linewidth=1, alpha=0.7, marker=".")
        ends[arm] = looks.iloc[-1]
        rows += [
            {"arm": arm, "seed": seed, "steps with a gradient": a, "steps whose rewards differ": b}
            | {"right before": looks.iloc[0, seed], "right after": looks.iloc[-1, seed]}
            for seed, (a, b) in enumerate(used[arm])
        ]
    mechanism.set_xticks(range(len(arms)), [arm.replace(", ", "\n") for arm in arms])
    mechanism.set(
        xlim=(-0.6, len(arms) - 0.4),
        title="Steps with a gradient,\nof those whose rewards differ",
        ylabel="share of steps",
    )
    effect.set(title="Held-out questions\nanswered right", xlabel="steps", ylabel="share right")
    heights = apart([end.mean() for end in ends.values()], [0.09] * len(ends), 0, 1)
    for n, (arm, height) in enumerate(zip(ends, heights, strict=True)):
        effect.annotate(arm, (1.02, height), xycoords=effect.get_yaxis_transform(), color=COLORS[n], va="center")
    for ax in (cause, mechanism, effect):
        ax.set(ylim=(-0.04, 1.2 if ax is mechanism else 1.04), yticks=np.linspace(0, 1, 6))
        ax.yaxis.set_major_formatter(PercentFormatter(1))
        ax.spines[["top", "right"]].set_visible(False)
    for ax in (cause, effect):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(textwrap.fill(title, 46) if narrow else title)
    table = pd.DataFrame(rows)
    before = table["right before"].mean()
    after = "; ".join(f"{arm}, {', '.join(f'{y:.0%}' for y in sorted(end))}" for arm, end in ends.items())
    counts = "; ".join("{}, {} of {}".format(arm, *np.sum(pairs, axis=0)) for arm, pairs in used.items())
    caption = (
        f"{stock} logs {logged.to_numpy().mean():.0%} of the completions as clipped, and {truncated.to_numpy().mean():.0%} "
        "were. "
        f"Steps with a gradient, of those whose rewards differ: {counts}. Held-out questions answered right, untrained: "
        f"{before:.0%}; at the end, each seed: {after}. Each dot and each line on the right is a seed; on the left thin lines "
        "are seeds, and thick lines their means."
    )
    return DescribedFigure(figure, alt=f"{title}. Three panels. {caption}", table=table, caption=caption)
