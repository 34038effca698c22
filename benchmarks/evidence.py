"""Makes docs/evidence/real_weights.md and README's figure of what is stored; `python -m benchmarks.pages` writes them."""

import csv
import json
import re
from collections.abc import Iterator

import numpy as np

from benchmarks import bf16_padding, dose, ppo_stops, without_training
from tools.record import (
    ROOT,
    by_versions,
    csv_next_to_page,
    csv_text,
    made_runs,
    made_section,
    made_with,
    measured,
    table,
)
from workbench.curves.documented import Baseline, list_baselines, load_baseline
from workbench.curves.figures import DescribedFigure
from workbench.curves.stats import seed_interval
from workbench.errors import RunError
from workbench.experiments.instruments.custom_stops import held_out_gain, stops_figure
from workbench.experiments.instruments.custom_stops import recorded as by_seed
from workbench.runs.files import read_json
from workbench.runs.results import Result, results_of

LAST = "d662082"  # the commit that has the programs that are gone
SHOWN = "sums of two numbers from 2 to 20"  # the task of README's figure
SMOLLM2 = "workbench-smollm2-"
BEFORE = 44  # held-out questions that were asked before each answer was kept
COMPARED = (  # arms of notebook 02
    ("workbench, masked", "stock TRL, masked"),
    ("stock TRL, unmasked", "stock TRL, masked"),
    ("stock TRL, unmasked", "workbench, masked"),
)
PROBLEMS = {
    "01_ppo_eos_stop": "PPO never stops at EOS",
    "02_grpo_custom_stops": "a stop string counts as truncated",
    "03_position_ids_and_padding": "padding and positions",
    "04_duplicate_prompts": "equal prompts, one seed",
    "05_grpo_docs_example": "the documented example",
    "10_do_the_weights_move": "bf16 weights lose updates",
}
# How the result that is compared begins, where it is not the notebook's first.
BEGINS = {
    "01_ppo_eos_stop": ("The untrained policy spends",),
    "03_position_ids_and_padding": ("A monitor sees", "In training, pads"),
}
# Claims of a write-up -> the notebook that tests them, and why SmolLM2 has no row about one.
TESTED_BY = {
    "A0": ("01_ppo_eos_stop", "the notebook asks the toy alone"),
    "A1": (
        "02_grpo_custom_stops",
        "what TRL hands to vLLM, whatever the model is; README's figure has the cost on SmolLM2",
    ),
    "A2": ("03_position_ids_and_padding", "SmolLM2's positions are rotary; models with learned ones were toys"),
    "A3": ("04_duplicate_prompts", "no model is in it"),
    "A4": ("05_grpo_docs_example", "not tried"),
    "A5": ("07_one_step_recomputed", "arithmetic of one step, whatever the model is"),
    "A6": ("08_is_the_sampler_the_policy", "not tried: the notebook trained toys alone"),
    "A7": ("08_is_the_sampler_the_policy", "not tried: the notebook trained toys alone"),
}
SEEN = {"seen on a toy": True, "not seen on a toy": False, "confirmed": True, "refuted": False}
# The notebook with a second row: what position ids take away in bf16.
BF16, OF_BF16, IDS = "03_position_ids_and_padding", "In bf16 position ids", ("no position ids", "position ids")
# SmolLM2 is expected to differ from the toy.
DIFFERS = {BF16: "no, as expected: SmolLM2's positions are rotary, the toy's are learned"}
# A result about a published claim has the claim's words in its first line.
_RESULT = r"^(passed|failed|inconclusive|not comparable|(?:not )?seen on a toy): (?:the claim .*\n +)?(.*)"
VERDICTS = SEEN | {"passed": True, "failed": False}
HEAD = ("claim", "toy", "real weights", "verdict")


def toy_result(notebook: str, begins: str | tuple[str, ...] = "") -> tuple[str, str]:
    """Return verdict and sentence of the result in a notebook's stored outputs.

    Raises:
        RunError: no result there begins as asked, or as `BEGINS` says.
    """
    begins = begins or BEGINS.get(notebook, "")
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(out.get("data", {}).get("text/plain", "")) for one in cells for out in one.get("outputs", ())]
    for text in texts:
        for match in re.finditer(_RESULT, text, re.MULTILINE):
            if match[2].startswith(begins):
                return match[1], match[2]
    raise RunError(f"{notebook}: expected a result in its outputs that begins with {begins or 'a verdict'}")


def real_result(notebook: str) -> tuple[str, str]:
    """Return verdict and sentence of the same result on SmolLM2, with what the run was; empty where none is stored."""
    if notebook == "01_ppo_eos_stop":
        return "confirmed", f"confirmed: {before_training()}"
    stored = on_the_model(notebook)
    found = next((one for one in stored["results"] if one["says"].startswith(BEGINS.get(notebook, ""))), None)
    return ("", "") if found is None else (_result(found).verdict, in_words(stored, found))


def on_the_model(notebook: str) -> dict:
    """Return what a notebook showed on SmolLM2: parameters and results; no results where nothing is stored."""
    none = {"parameters": {}, "results": ()}
    return read_json(ROOT / "data" / "smollm2.json", {"rows": {}})["rows"].get(notebook, none)


def in_words(stored: dict, found: dict) -> str:
    """Give verdict, sentence, size of the run and reason of a stored result."""
    size = found.get("of", stored["parameters"])  # of other trainings than the run's, which are more
    sizes = [f"{name}: {size[name]}" for name in ("steps", "seeds") if name in size]
    result = _result(found)
    return f"{result.verdict}: {result.says} ({'; '.join([', '.join(sizes), *filter(None, [result.reason])])})"


def _result(stored: dict) -> Result:
    (result,) = results_of({"results": [stored]})
    return result


def before_training() -> str:
    """Say what the untrained model spends without a stop."""
    (row,) = measured("without_training")["rows"].values()
    batches = len(row["batches"]["longest"])
    passes = row["summary"]["forward passes"]
    return f"The untrained policy spends, in forward passes, {passes} (batches: {batches}, no training)"


def claims_csv() -> str:
    """Make claims_real.csv: each claim on a toy, on SmolLM2, by documented runs of others, and whether both models agree."""
    with (ROOT / "docs" / "evidence" / "claims.csv").open(encoding="utf-8", newline="") as file:
        rows = [_three_ways(claim) for claim in csv.DictReader(file)]
    return csv_text(["id", "published claim", "toy", "SmolLM2", "documented runs of others", "agree"], rows)


def _three_ways(claim: dict[str, str]) -> list[str]:
    notebook, why_not = TESTED_BY[claim["id"].partition(".")[0]]
    stored = on_the_model(notebook)
    about = [one for one in stored["results"] if one["claim"] == claim["id"]]
    real = [in_words(stored, one) for one in about]
    verdicts = {_result(one).verdict for one in about}
    if claim["id"] == "A0.2":
        real = [f"confirmed: {before_training()}", *real]
    if claim["id"] in ("A2.2", "A2.3"):
        changes = measured("bf16_padding")["summary"].items()
        real = [f"not comparable: in bf16, {'; '.join(f'{way}: {says}' for way, says in changes)} nats (30 texts)"]
    verdict = claim["on the installed version"]
    toy = f"{verdict}: {claim['measured']}" if claim["measured"] else f"{verdict}: it needs 8 GPUs for a day"
    pair = [SEEN.get(verdict), *(SEEN.get(one) for one in verdicts)]
    if not real:
        agree = "SmolLM2 was not asked"
    elif None in pair or len(pair) < 2:
        agree = "one of the two verdicts is open"
    else:
        agree = "yes" if len(set(pair)) == 1 else "no"
    others = ", ".join(drawn_by(notebook)) or "no curve with numbers"
    return [claim["id"], claim["published claim"], toy, "; ".join(real) or f"none: {why_not}", others, agree]


def drawn_by(notebook: str) -> list[str]:
    """Return the documented runs of other people that a notebook names."""
    text = (ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8")
    return [name for name in list_baselines() if f'"{name}\\"' in text and not name.startswith("workbench-")]


def recorded(experiment: str) -> dict[str, dict[str, Baseline]]:
    """Return task -> arm -> the stored trainings of SmolLM2."""
    tasks: dict[str, dict[str, Baseline]] = {}
    for name in list_baselines():
        if name.startswith(f"{SMOLLM2}{experiment}-"):
            one = load_baseline(name)
            tasks.setdefault(str(one.task), {})[one.recorded["arm"]] = one
    return tasks


def held_out(one: Baseline) -> dict[str, list[float]]:
    """Return seed -> the share of held-out questions answered right at each look; empty where there was no look."""
    return one.curves.get("eval_accuracy", {}).get("by_seed", {})


def asked() -> str:
    """Say how many held-out questions the stored arms of notebook 02 were asked, by task."""
    answers = {
        task: [one.recorded.get("answers", {}) for one in arms.values()] for task, arms in recorded("stops").items()
    }
    counts = {task: {len(a) for of in kept for a in of.values()} or {BEFORE} for task, kept in answers.items()}
    short = {task: re.split(r",| of ", task)[0] for task in counts}
    each = "; ".join(f"{short[task]} {' or '.join(map(str, sorted(count)))}" for task, count in counts.items())
    return f"Held-out questions: {each}."


def effect(arms: dict[str, Baseline]) -> tuple[str, bool | None]:
    """Say what the workbench's masked arm gains over stock TRL's on held-out questions, and whether that is surely above 0."""
    known = {arm.lower(): one for arm, one in arms.items()}
    if not {"workbench, masked", "stock trl, masked"} <= known.keys():
        return f"recorded: {'; '.join(arms)}", None
    gain = held_out_gain(known["workbench, masked"], known["stock trl, masked"])
    if gain is None:
        return "recorded, no seed in both arms", None
    over = gain.about.partition(", ")[2] if "questions" in gain.about else f"seeds: {gain.n}"
    says = f"workbench less stock TRL, both masked, on held-out questions: {gain.in_brief('+.2f')}, {over}"
    return says, gain.above(0)[0]


def problems() -> Iterator[list[str]]:
    """Yield a row for each problem: what the toy shows, what SmolLM2 does, whether they agree, and who else has a curve."""
    for notebook, problem in PROBLEMS.items():
        verdict, says = toy_result(notebook)
        if notebook == "02_grpo_custom_stops":  # the only one with held-out questions, on several tasks
            tasks = {task: effect(arms) for task, arms in recorded("stops").items()}
            above = {holds for _, holds in tasks.values()}
            seen = "<br>".join(f"{task}: {text}" for task, (text, _) in tasks.items())
        else:
            there, seen = real_result(notebook)
            above = {VERDICTS.get(there)}
        both = above | {VERDICTS.get(verdict)}
        agree = "inconclusive" if None in both else "yes" if len(both) == 1 else "no"
        agree = DIFFERS.get(notebook, agree) if seen else ""
        seen = seen or "not recorded"
        others = ", ".join(f"`{name}`" for name in drawn_by(notebook)) or "no curve with numbers"
        link = f"[{problem}](../../notebooks/{notebook}.ipynb)"
        yield [link, f"{verdict}: {says}", seen, agree, others]
        if notebook == BF16:
            yield [link.replace(problem, "pads in bf16"), *pads_in_bf16(), others]


def pads_in_bf16() -> list[str]:
    """Say what position ids take away in bf16, of a toy and of SmolLM2, and whether both are above 0."""
    _, says = toy_result(BF16, OF_BF16)
    toy = [float(number) for number in re.findall(r"\d\.\d+e-\d+", says)]
    without, with_ids = (np.array(measured("bf16_padding")["changes"][f"left pads, {ids}"]) for ids in IDS)
    taken = seed_interval(without - with_ids, np.random.default_rng(0), statistic=np.mean)
    real = f"In bf16 position ids take away {taken.in_brief('.3f')} nats with left pads. (texts: {len(without)}, no training)"
    return [says, real, "yes" if min(toy) > 0 and taken.above(0)[0] else "no"]


def arms() -> Iterator[list[str]]:
    """Yield a row for each stored arm of SmolLM2."""
    for name in (name for name in list_baselines() if name.startswith(SMOLLM2)):
        one = load_baseline(name)
        norms, equal = (np.array([c.y for c in one.curves_by_seed(m)]) for m in ("grad_norm", "frac_reward_zero_std"))
        counts = f"{(norms[equal < 1] > 0).sum()} of {(equal < 1).sum()}"
        if (span := one.curve().span) and span > 1:
            counts = f"not counted: means over {span:g} steps are stored"
        logged, true = (f"{one.curve(metric).y.mean():.2f}" for metric in ("completions/clipped_ratio", "truncated"))
        right = "not asked"
        if looks := held_out(one):
            first, *_, last = zip(*looks.values(), strict=True)
            right = f"{np.mean(first):.0%} to {np.mean(last):.0%} ({', '.join(f'{y:.0%}' for y in last)})"
        arm = f"{one.recorded['arm']}, rate {one.recorded['recipe']['learning_rate']:g}"
        yield [str(one.task), arm, str(len(norms)), counts, logged, true, right]


def gains_csv() -> str:
    """Make smollm2_gains.csv: held-out questions that one arm with a stop string answers right, less another arm's."""
    rows = []
    for task, arms in recorded("stops").items():
        known = {arm.lower(): one for arm, one in arms.items()}
        for pair in COMPARED:
            gain = held_out_gain(*(known[arm.lower()] for arm in pair))
            over = gain.about.partition(", ")[2]
            rows.append([task, " less ".join(pair), gain.in_brief("+.2f"), over, f"{gain.detectable:.2f}"])
    return csv_text(["task", "arms", "share of held-out questions", "interval over", "would show in 80%"], rows)


def made_arms() -> list[str]:
    """Say what made the stored arms of SmolLM2."""
    stored = [load_baseline(name) for name in list_baselines() if name.startswith(SMOLLM2)]
    return by_versions(made for one in stored for made in one.recorded["made_with"])


def gemma_arms() -> Iterator[list[str]]:
    """Yield a row for each training of gemma-3-270m with a stop string."""
    for one in measured("stop_string")["trainings"]:
        curves, held = one["curves"], one["held out"]["reward"]
        norms, equal = np.array(curves["gradient norm"]), np.array(curves["groups without spread"])
        counts = f"{(norms[equal < 1] > 0).sum()} of {(equal < 1).sum()}"
        logged, true = (f"{np.mean(curves[name]):.2f}" for name in ("logged clipped ratio", "truncated"))
        arm, seed = one["settings"]["arm"].replace("-", ", "), str(one["settings"]["seed"])
        yield [arm, seed, counts, logged, true, f"{held[0]:.0%} to {held[-1]:.0%}"]


ABOUT = ("steps with a gradient, of those whose rewards differ", "logged as clipped", "truncated")


def gemma_csv() -> str:
    """Make gemma.csv: each claim, on the toy and on gemma-3-270m."""
    claims = measured("real_weights/claims")["claims"]
    return csv_text(HEAD, [[row[name] for name in HEAD] for row in claims])


def gemma_stops_csv() -> str:
    """Make gemma_stops.csv: the trainings of gemma-3-270m with a stop string."""
    return csv_text(["arm", "seed", *ABOUT, "held-out questions right, untrained to last"], gemma_arms())


def smollm2_csv() -> str:
    """Make smollm2.csv: each stored arm of SmolLM2."""
    return csv_text(["task", "arm", "seeds", *ABOUT, "held-out questions right, untrained to last (seeds)"], arms())


def page() -> list[str]:
    """Make the lines of docs/evidence/real_weights.md."""
    head = ["problem", "toy", "SmolLM2", "agree", "documented runs of others"]
    bf16 = measured("real_weights/padding")["parts"]["short texts"]["bfloat16"]
    none = ["None is stored yet: `make real` trains them, `python -m benchmarks.real` stores those that are finished."]
    made = [("examples and EOS", "`python -m benchmarks.dose`", text) for text in made_runs(measured("dose"))]
    made += [("bf16 and pads", "`python -m benchmarks.bf16_padding`", made_with(measured("bf16_padding")))]
    made += without_training.provenance() + ppo_stops.provenance()
    made = [*(("SmolLM2", "`python -m benchmarks.real`", versions) for versions in made_arms()), *made]
    return [
        "# What was seen on real weights",
        "",
        "**Toy** is a model of at most 0.65 M parameters. **SmolLM2** is SmolLM2-135M-Instruct (a 4-bit file, widened to",
        "fp32), trained by the same notebooks with `-p model=smollm2` (`make real`), on CPUs.",
        "",
        *table(head, problems()),
        "",
        "*Agree* compares the verdicts of both models. For stop strings SmolLM2's is whether the interval lies above 0.",
        "",
        asked(),
        "",
        "## Trainings of SmolLM2",
        "",
        *(csv_next_to_page("smollm2.csv") if list(arms()) else none),
        "",
        "Held-out answers of two arms:",
        "",
        *csv_next_to_page("smollm2_gains.csv"),
        "",
        *without_training.page(),
        *ppo_stops.page(),
        *dose.page(measured("dose")),
        *bf16_padding.page(measured("bf16_padding")),
        "## gemma-3-270m",
        "",
        "A base model, 268 M parameters, one CPU thread. Its weights were a Q4_K_M",
        "quantisation, expanded to fp32 (Gemma Terms of Use). The programs are gone:",
        f"`git show {LAST}:benchmarks/real_weights/padding.py` shows one. Its trainings are [documented",
        "runs](baselines.md), `workbench-gemma-3-270m-...`. Names in italics are files in `data/measured/real_weights/`.",
        "",
        *csv_next_to_page("gemma.csv"),
        "",
        "In bf16 position ids change little here: the largest change of a log-prob by padding is "
        f"{bf16['implicit']:.3f} nats without",
        f"them and {bf16['explicit']:.3f} with them (four texts), by another batch size {bf16['control']:.3f} (*padding*).",
        "",
        "Its trainings with the stop string `</answer>`: 60 steps each, LoRA, vLLM, TRL 1.16.0",
        "(`data/measured/stop_string.json`).",
        "",
        *csv_next_to_page("gemma_stops.csv"),
        "",
        *made_section(made),
    ]


def costs_csv() -> str:
    """Make costs.csv: a row for each thing whose cost was measured."""
    rows = measured("cost")["rows"].items()
    head = ["what", "model", "measured", "made with"]
    return csv_text(head, [[*name.split("; "), row["says"], made_with(row)] for name, row in rows])


def figure() -> DescribedFigure:
    """Draw README's figure: what is logged, what reaches the loss and what is learnt, by SmolLM2 with a stop string."""
    arms = {arm: by_seed(one) for arm, one in recorded("stops")[SHOWN].items()}
    return stops_figure(
        arms,
        title="SmolLM2-135M-Instruct adds two numbers: GRPO on vLLM with the stop string </answer>",
        narrow=True,
    )
