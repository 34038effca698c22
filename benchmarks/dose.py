"""Trains SmolLM2 with a stop string where few to all completions end with EOS instead: what does masking cost then?

    python -m benchmarks.dose --seeds 0 1 2 3 4 --out data/measured/dose.json [--doses 1-0]

The worked examples in front of a question decide how many completions write the tag and stop at `</answer>`, and how many write
the number alone and end with EOS. Both are right answers. Each dose is trained with stock TRL, masked and unmasked, with the
same seeds. A training takes 7 minutes on a CPU. A second call goes on. What `--out` holds, perhaps from another machine, is
not trained again if all held-out questions were asked. A dose is its worked examples, and how many of them have no tag.
"""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tools.record import ROOT, about, made_with, parser, publish, run_main, stored_runs, table, use_one_thread
from workbench.curves.figures import COLORS, DescribedFigure
from workbench.curves.stats import crossed_interval
from workbench.experiments.arms import Arm, ObservedGRPOTrainer, train_arms
from workbench.experiments.held_out import HeldOut, held_out_rewards
from workbench.experiments.recipes import make_recipe
from workbench.experiments.tasks import STOP, task_rows
from workbench.generation.stops import StopSpec
from workbench.runs.files import write_text
from workbench.runs.run import Run
from workbench.training.rewards import completion_text, described

DOSES = ((2, 0), (1, 0), (2, 1), (2, 2))  # worked examples, and how many of them have no tag
WAYS = {"masked": True, "unmasked": False}
ASKED = 47  # held-out questions: all


@described(unit="share of right numbers", lowest=0.0, highest=1.0)
def right_number(completions, answer, **_) -> list[float]:
    """1.0 where the last number of a completion is the answer's, with a tag or without.

    Example:
        >>> right_number(["<answer>7</answer>", "3 + 4 = 7", "8", "none"], answer=["<answer>7</answer>"] * 4)
        [1.0, 1.0, 0.0, 0.0]
    """
    wanted = [re.findall(r"\d+", one) for one in answer]
    said = [re.findall(r"\d+", completion_text(one))[-1:] for one in completions]
    return [float(a == b) for a, b in zip(said, wanted, strict=True)]


def dose_arms(folder: Path, steps: int) -> dict[str, Arm]:
    """Write each dose's questions to `folder`, and return its two arms by name, such as `2-1-masked`."""
    arms, spec = {}, StopSpec(stop=(STOP,))
    stop = {"generation_kwargs": {"stop": [STOP], "include_stop_str_in_output": True}, "save_strategy": "no"}
    looks = (0, steps // 2, steps)
    for examples, untagged in DOSES:
        name = f"{examples}-{untagged}"
        train, test = (task_rows("sums", of, examples=examples, untagged=untagged) for of in ("train", "test"))
        file = folder / f"{name}.jsonl"
        write_text(file, "".join(f"{json.dumps(row)}\n" for row in train))
        recipe = make_recipe("smollm2", dataset=str(file), backend="vllm", max_steps=steps)
        held_out = HeldOut(test[:ASKED], right_number, looks, spec, recipe.max_completion_length)
        for way, masked in WAYS.items():
            options = stop | {"mask_truncated_completions": masked, "callbacks": [held_out]}
            arms[f"{name}-{way}"] = Arm(recipe, right_number, ObservedGRPOTrainer, spec, options)
    return arms


def seen(run: Run) -> dict:
    """What one training shows: how its completions ended, its steps with a gradient, its right answers at each look."""
    metrics, made = run.metrics.set_index("step"), run.completions
    differ = metrics["frac_reward_zero_std"] < 1
    eos = (made["trl_finish_reason"] == "stop").groupby(made["step"]).mean()
    looks = held_out_rewards(run.path)
    return {
        "EOS, first 3 steps": round(eos.head(3).mean(), 4),
        "EOS, last 3 steps": round(eos.tail(3).mean(), 4),
        "EOS, all steps": round(eos.mean(), 4),
        "steps whose rewards differ": int(differ.sum()),
        "of these with a gradient": int((metrics["grad_norm"][differ] > 0).sum()),
        "questions": ASKED,
        "right": {step: round(float(np.mean(rewards)), 4) for step, rewards in looks.items()},
        "answers": looks,
    }


# --- page and figure ----------------------------------------------------------------------------------------------------


def trained(result: dict) -> pd.DataFrame:
    """A row for each training: dose, arm, share of steps with a gradient, gain on held-out questions."""
    rows = pd.DataFrame(result["runs"])
    looks = [list(right.values()) for right in rows.pop("right")]
    rows["untrained"], rows["last"] = [one[0] for one in looks], [one[-1] for one in looks]
    rows["gain"] = rows["last"] - rows["untrained"]
    rows["with a gradient"] = rows["of these with a gradient"] / rows["steps whose rewards differ"]
    rows["dose"] = rows.groupby(["examples", "untagged"])["EOS, first 3 steps"].transform("mean")
    return rows.sort_values(["dose", "way", "seed"], ignore_index=True)


def page(result: dict) -> list[str]:
    """Make the section of docs/evidence/real_weights.md."""
    rows, lines = trained(result), []
    asked = " or ".join(str(n) for n in sorted(set(rows["questions"])))
    for (dose, examples, untagged), of in rows.groupby(["dose", "examples", "untagged"]):
        line = [f"{dose:.0%}", f"{untagged} of {examples}"]
        for way in WAYS:
            one = of[of["way"] == way]
            counts = one[["of these with a gradient", "steps whose rewards differ"]].sum()
            line += ["{} of {}".format(*counts), f"{one['EOS, last 3 steps'].mean():.0%}"]
            line += [f"{one['untrained'].mean():.0%} to {', '.join(f'{y:.0%}' for y in one['last'])}"]
        lines.append([*line, masked_less_unmasked(of)])
    head = ["end with EOS", "examples without a tag"]
    head += [
        f"{way}: {what}" for way in WAYS for what in ("steps with a gradient", "EOS at the end", "held-out, seeds")
    ]
    head += ["masked less unmasked"]
    return [
        '<a id="where-many-completions-end-with-eos"></a>',
        "",
        "## Where many completions end with EOS",
        "",
        f"![{(drawn := figure(result)).alt}](../images/dose.svg)",
        "",
        f"*{drawn.caption}*",
        "",
        "The worked examples in front of a question decide how many completions write the tag and stop at `</answer>`, and",
        "how many write the number alone and end with EOS; both are right here. All trainings are stock TRL. *End with",
        f"EOS* is the share in the first three of {result['steps']} steps, *EOS at the end* that of the last three. Steps with",
        "a gradient are given of those whose rewards differ. Held-out questions are answered right by the untrained model and,",
        f"seed by seed, after the last step ({asked} questions). *Masked less unmasked*: over seeds and questions.",
        "",
        *table(head, lines),
        "",
    ]


def masked_less_unmasked(rows: pd.DataFrame) -> str:
    """What masking changes in the share of right answers after the last step, from the rows of one dose.

    With an interval over seeds and questions from three pairs on whose answers were kept; else pair by pair.
    """
    pairs = rows.pivot(index="seed", columns="way", values="last").reindex(columns=[*WAYS]).dropna()
    if len(pairs) < 3 or "answers" not in rows or rows["answers"].isna().any():
        return ", ".join(f"{of['masked'] - of['unmasked']:+.2f}" for _, of in pairs.iterrows()) or "no pair"
    kept = rows.assign(answers=[next(reversed(looks.values())) for looks in rows["answers"]])
    answers = kept.pivot(index="seed", columns="way", values="answers").loc[pairs.index, [*WAYS]]
    return crossed_interval([np.subtract(*pair) for pair in answers.to_numpy()]).in_brief("+.2f")


def figure(result: dict) -> DescribedFigure:
    """Draw the share of steps with a gradient, and the gain on held-out questions, over the dose; each training is a mark."""
    rows = trained(result)
    drawn = Figure(figsize=(4.6, 6.4), layout="constrained")  # narrow, as a phone makes a wide one too small to read
    panels = dict(zip(("with a gradient", "gain"), drawn.subplots(2, 1), strict=True))
    says = {}
    for color, way in zip(COLORS, WAYS, strict=False):
        one = rows[rows["way"] == way]
        means = one.groupby("dose")[[*panels]].mean()
        for what, ax in panels.items():
            ax.plot(one["dose"], one[what], "o", color=color, alpha=0.5)
            ax.plot(means.index, means[what], color=color, linewidth=2, label=f"stock TRL, {way}")
        says[way] = "; ".join(f"{dose:.0%}: {y:.0%}" for dose, y in means["with a gradient"].items())
    share, group = np.linspace(0, 1, 101), result["num_generations"]
    chance = {"color": "#555555", "linewidth": 1, "linestyle": ":", "label": f"$1 - (1 - x)^{group}$"}
    panels["with a gradient"].plot(share, 1 - (1 - share) ** group, **chance)
    for ax in panels.values():
        ax.set(xlabel="completions that end with EOS, first 3 steps", xlim=(-0.03, 1.03))
        ax.xaxis.set_major_formatter(PercentFormatter(1))
        ax.yaxis.set_major_formatter(PercentFormatter(1))
        ax.spines[["top", "right"]].set_visible(False)
    panels["with a gradient"].set(
        title="Steps with a gradient,\nof those whose rewards differ", ylabel="share of steps", ylim=(-0.04, 1.04)
    )
    panels["gain"].set(
        title="Held-out questions answered right,\nlast step less untrained", ylabel="share of questions"
    )
    panels["gain"].axhline(0, color="#555", linewidth=0.8)
    drawn.legend(
        *panels["with a gradient"].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    seeds = sorted(set(rows.groupby(["dose", "way"])["seed"].nunique()))
    caption = (
        f"SmolLM2-135M-Instruct adds two numbers. Each mark is a training ({' or '.join(map(str, seeds))} seeds), lines "
        f"are means. Dotted: how likely one of the {group} completions of a prompt ends with EOS; masking leaves such a group "
        "something to learn from."
    )
    alt = " ".join(f"Steps with a gradient, {way}, by share of EOS: {text}." for way, text in says.items())
    return DescribedFigure(drawn, alt=alt, table=rows, caption=caption)


def main() -> None:
    doses = [f"{examples}-{untagged}" for examples, untagged in DOSES]
    args = parser(__doc__, seeds=[0], doses=doses, steps=24, runs=ROOT / "runs" / "dose").parse_args()
    use_one_thread()
    args.runs.mkdir(parents=True, exist_ok=True)
    arms = dose_arms(args.runs, args.steps)
    settings = {"steps": args.steps, "num_generations": make_recipe("smollm2").num_generations}
    rows = stored_runs(args.out, settings, "arm", "seed")
    for dose, seed, way in itertools.product(args.doses, args.seeds, WAYS):
        arm = f"{dose}-{way}"
        if rows.get((arm, seed), {}).get("questions") == ASKED:
            continue
        (run,) = train_arms({arm: arms[arm]}, out_dir=args.runs, seeds=[seed])[arm]
        examples, untagged = map(int, dose.split("-"))
        row = {"arm": arm, "examples": examples, "untagged": untagged, "way": way, "seed": seed}
        rows[arm, seed] = row | seen(run) | {"made_with": made_with({"environment": about()})}
        publish(settings | {"runs": [rows[key] for key in sorted(rows)]}, args.out, quietly=True)
    publish(settings | {"runs": [rows[key] for key in sorted(rows)]}, args.out)


if __name__ == "__main__":
    run_main(main)
