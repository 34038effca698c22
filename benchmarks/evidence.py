"""Makes docs/evidence.md and README's figure of what is stored in data/; `python -m benchmarks.pages` writes them."""

import json
import re
import statistics

from benchmarks import cost
from benchmarks.fetch_gemma import FETCH
from benchmarks.record import ROOT, made_with, measured, table
from benchmarks.stop_string import made_of
from workbench.curves.curve import Curve
from workbench.curves.documented import load_baseline
from workbench.curves.figures import DescribedFigure, show_curves
from workbench.curves.verdicts import trend

TRL_RULE, TRUE, SHARE = "TRL's clipped ratio", "true clipped ratio", "share of ratios outside [0.9, 1.1]"
ARMS = ("full-1e-5", "lora-1e-4", "full-1e-6", "lora-1e-6")  # of the documented example on gemma-3-270m
TOYS, REAL = (64, 128), (64, 128, 256)  # limits of the stops
CAUSES = ("dtype", "temperature", "top-p")


def nats(value: float) -> str:
    return f"{value:.1e}"


def moved(part: dict, dtype: str) -> str:
    numbers = part[dtype]
    worst = max(numbers["implicit"], numbers["explicit"])
    return f"{nats(worst)} nats at most (other batch sizes alone {nats(numbers['control'])})"


def outside(part: dict) -> str:
    return f"{moved(part, 'bfloat16')}; up to {part['bfloat16'][SHARE]:.0%} of ratios outside [0.9, 1.1]"


def per_limit(parts: dict, limits: tuple[int, ...], name: str) -> str:
    found = {limit: parts[name.format(limit)] for limit in limits}
    return "; ".join(f"{n} tokens: {part[TRL_RULE]:.2f} logged, {part[TRUE]:.2f} true" for n, part in found.items())


def wasted(parts: dict, limits: tuple[int, ...], name: str) -> str:
    stock, ours = ([parts[name.format(n, arm)]["share wasted"] for n in limits] for arm in ("stock", "ours"))
    rows = zip(limits, stock, ours, strict=True)
    return "; ".join(f"{limit} tokens: stock {a:.0%}, ours {b:.0%}" for limit, a, b in rows)


def named(parts: dict, prefix: str = "") -> str:
    found = {cause: parts[prefix + cause] for cause in CAUSES}
    sizes = {cause: nats(part["mean |Δ| by cause"][cause]) for cause, part in found.items()}
    return "; ".join(
        f"{cause} was put in, {part['largest cause']} named ({sizes[cause]})" for cause, part in found.items()
    )


def ends(name: str) -> str:
    """Return the mean reward of the first and last three steps of each seed, and whether it rises in their mean."""
    baseline = load_baseline(name)
    seeds = [
        f"{statistics.fmean(one.y[:3]):.0f} to {statistics.fmean(one.y[-3:]):z.0f}" for one in baseline.curves_by_seed()
    ]
    word = trend(baseline.curve()).word
    return f"{'; '.join(seeds)} (seeds: {len(seeds)}, steps: {len(baseline.curve().y)}; in the mean: {word})"


def first_result(notebook: str) -> str:
    """Return the first result in a notebook's stored outputs, without its verdict."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(out.get("data", {}).get("text/plain", "")) for one in cells for out in one.get("outputs", ())]
    return next(match[1] for text in texts if (match := re.match("(?:passed|failed|inconclusive): (.*)", text)))


def without_gradient(training: dict) -> float:
    return statistics.fmean(norm == 0 for norm in training["curves"]["gradient norm"])


def arm_of(training: dict) -> str:
    curves, right = training["curves"], training["held out"]["reward"]
    return (
        f"{training['settings']['arm'].replace('-', ', ')}, seed {training['settings']['seed']}: {without_gradient(training):.0%} of "
        f"{training['steps']} steps without gradient, clipped ratio {statistics.fmean(curves['logged clipped ratio']):.2f} "
        f"logged, {statistics.fmean(curves['truncated']):.2f} true, right on held-out questions {right[0]:.0%} to {right[-1]:.0%}"
    )


def verdict(held: bool | None, instead: str = "") -> str:
    """Say confirmed, or refuted and what was seen instead; None is inconclusive."""
    return "confirmed" if held else "inconclusive" if held is None else f"refuted: {instead}"


def rise(arm: str) -> str:
    return trend(load_baseline(f"workbench-gemma-3-270m-{arm}").curve()).word


def claims() -> list[tuple[str, str, str, str]]:
    """Return each claim with what was seen on the toy and on real weights, and the verdict on real weights."""
    toy, stops, sampler, faults = (
        measured(f"real_weights/{name}")["parts"] for name in ("toy", "stops", "sampler", "sampler_faults")
    )
    short, long = measured("real_weights/padding")["parts"].values()
    models = measured("attribution")["models"].values()
    right = [sum(row["right"] for row in rows) for rows in models]
    causes = [f"the right causes in {n} of {len(rows)} cases" for n, rows in zip(right, models, strict=True)]
    dtype, other = sampler["dtype"]["mean |Δ| by cause"], nats(short["bfloat16"]["control"])
    pairs = [[stops[f"transformers, {limit}, {arm}"] for arm in ("stock", "ours")] for limit in REAL]
    clean = {name: part for name, part in faults.items() if name.startswith("clean")}
    steps = [part["after updates"] for name, part in faults.items() if name not in clean and part["right"]]
    gemma = {arm: f"{arm}: {ends(f'workbench-gemma-3-270m-{arm}')}" for arm in ARMS}
    rises = {arm: rise(arm) for arm in ARMS}
    trainings = measured("stop_string")["trainings"]
    idle: dict[str, list[float]] = {}
    for one in trainings:
        idle.setdefault(one["settings"]["arm"], []).append(without_gradient(one))
    return [
        ("With rotary positions padding only rounds (fp32)",
         f"{moved(toy['padding'], 'float32')}<br>*toy*", f"{moved(short, 'float32')}<br>*padding*",
         verdict(short["kind"] == "rounding only", short["kind"])),
        ("In bf16 padding moves no ratio out of [0.9, 1.1]",
         f"{outside(toy['padding'])}<br>*toy*", f"{outside(short)}<br>*padding*",
         verdict(short["bfloat16"][SHARE] == 0, f"it moved up to {short['bfloat16'][SHARE]:.0%} of them out, and other batch sizes alone move log-probs by {other} nats")),
        ("Texts beyond a sliding window are scored alike with padding",
         "tiny models of each family<br>`pytest tests/diagnostics/test_padding_report.py`",
         f"{moved(long, 'float32')}, window {long['window']}, text of {long['tokens'][0]}<br>*padding*",
         verdict(long["kind"] == "rounding only", long["kind"])),
        ("TRL's rule counts completions that a stop string ended as truncated",
         f"{per_limit(toy, TOYS, 'stops, {}, ours')}<br>*toy*",
         f"{per_limit(stops, REAL, 'transformers, {}, ours')}<br>vLLM: {per_limit(stops, REAL, 'vllm, {}, stops passed on')}"
         "<br>*stops*", verdict(any(ours[TRL_RULE] > ours["true clipped ratio"] for _, ours in pairs))),
        ("Stops in `generate` save tokens that come after an end",
         f"{wasted(toy, TOYS, 'stops, {}, {}')}<br>*toy*", f"{wasted(stops, REAL, 'transformers, {}, {}')}<br>*stops*",
         verdict(all(stock["share wasted"] > ours["share wasted"] for stock, ours in pairs),
                 "at some limits they saved none, because one completion without a stop takes its batch to the limit")),
        ("Sampled and scored log-probs agree where nothing is wrong (fp32)",
         f"{nats(toy['sampler, none']['mean |Δ| by cause']['all'])} nats a token<br>*toy*",
         f"{nats(sampler['none']['mean |Δ| by cause']['all'])} nats a token<br>*sampler*",
         verdict(sampler["none"]["verdict"].startswith("sampler and scorer agree"))),
        ("`mismatch_report` names the cause that was put in as the largest",
         f"{named(toy, 'sampler, ')}<br>*toy*", f"{named(sampler)}<br>*sampler*",
         verdict(all(sampler[cause]["largest cause"] == cause for cause in CAUSES),
                 f"with a sampler in bf16 the cast explains {nats(dtype['dtype'])} nats a token, and {nats(dtype['sampler'])} "
                 "are left, because cached decoding in bf16 rounds as much again")),
        ("`attribute_mismatch` finds causes among suspects, one or two at once ([table](attribution.md))",
         *(f"{text}<br>*attribution*" for text in causes), verdict(right[1] == len([*models][1]))),
        ("`attach_sampler_probe` names an engine that is not the policy within two steps, and nothing in clean trainings",
         "each of six faults, in process and on a server<br>`pytest tests/diagnostics/test_sampler_probe.py`",
         f"{len(steps)} of {len(faults) - len(clean)} faults named, after {max(steps)} updates at the latest"
         + "".join(f"; {name}: {nats(part['largest difference'])} nats at most" for name, part in clean.items())
         + "<br>*sampler_faults*", verdict(all(part["right"] for part in faults.values()))),
        ("The documented example learns at higher rates: reward of the first three and last three steps",
         f"{ends('workbench-starter-docs-example')}<br>*control*",
         f"{gemma['full-1e-5']}<br>{gemma['lora-1e-4']}<br>*docs_example*",
         verdict(None if "inconclusive" in (rises["full-1e-5"], rises["lora-1e-4"]) else
                 rises["full-1e-5"] == rises["lora-1e-4"] == "rises")),
        ("The documented example does not rise at its documented rate of 1e-6 in as few steps",
         "`workbench run 05_grpo_docs_example`, arm 'documented rate'",
         f"{gemma['full-1e-6']}<br>{gemma['lora-1e-6']}<br>*docs_example*",
         verdict("rises" not in (rises["full-1e-6"], rises["lora-1e-6"]), f"with all weights it does (LoRA, 12 steps: {rises['lora-1e-6']})")),
        ("With a stop string stock TRL that masks has fewer steps with a gradient than ours",
         f"{first_result('02_grpo_custom_stops')}<br>`workbench run 02_grpo_custom_stops`",
         f"{'<br>'.join(map(arm_of, trainings))}<br>*stop_string*",
         verdict(min(idle["stock-masked"]) > max(idle["workbench-masked"]))),
    ]  # fmt: skip


def costs_at_the_shape() -> list[str]:
    """Make the lines about Qwen2-0.5B's shape, whose rounds are stored."""
    parts = measured("cost/documented_shape")["parts"]

    def number(part: str, key: str = "seconds") -> float:
        return statistics.median(value[key] for name, value in parts.items() if name.rpartition(", round")[0] == part)

    def ratio(part: str, key: str) -> float:
        return number(f"{part}, ours", key) / number(f"{part}, stock", key)

    turns, recorded = parts["GRPO step, in turns, round 1"], number("recorder") + number("recorder", "joining s a step")
    low, high = turns["interval"]
    return [
        "Once, at the shape of Qwen2-0.5B (24 layers, vocabulary 151,936, random weights; *documented_shape*):",
        "",
        f"- A step of our trainer takes {turns['time, ours over stock']:.3f} of the processor time of stock's (95%: {low:.3f} to",
        f"  {high:.3f}, {len(turns['pairs'])} pairs of steps) and {ratio('GRPO step', 'peak GiB'):.3f} of its peak memory.",
        f"- `padding_report` takes {number('padding_report', 'peak GiB') - number('weights', 'peak GiB'):.2f} GiB in addition to "
        "the weights.",
        f"- Recording takes {recorded:.2f} s a step of 1,000 x 2,048 tokens.",
        *(
            f"- {name}: {ratio(part, 'seconds'):.2f} of the plain call's time, {ratio(part, 'peak GiB'):.2f} of its peak."
            for name, part in {"Log-probs": "log-probs", "Sampling": "rollouts"}.items()
        ),
        f"- `mismatch_report` takes {number('mismatch_report') / number('mismatch_report', 'sampling s'):.1f} x the seconds of "
        "sampling the same tokens.",
    ]


def sources() -> list[list[str]]:
    """Return the rows of the table of sources: what a name in italics stands for."""
    gone = {name: f"real_weights/{name}" for name in ("toy", "padding", "stops", "sampler", "sampler_faults")}
    rows = [
        [f"*{name}*", f"`{measured(file)['command']}`, gone", made_with(measured(file))]
        for name, file in (gone | {"documented_shape": "cost/documented_shape"}).items()
    ]
    rows += [
        [f"*{name}*", f"`python -m benchmarks.{name}`", made_with(measured(name))]
        for name in ("attribution", "trl_tests")
    ]
    trainings = "; ".join(sorted(set(map(made_of, measured("stop_string")["trainings"]))))
    rows.append(["*stop_string*", "`python -m benchmarks.stop_string`", trainings])
    runs = {
        "control": ["workbench-starter-docs-example"],
        "docs_example": [f"workbench-gemma-3-270m-{arm}" for arm in ARMS],
    }
    for name, baselines in runs.items():
        found = [load_baseline(one) for one in baselines]
        commands = dict.fromkeys(re.search("`(.*)`", one.source)[1] for one in found)
        made = dict.fromkeys(text for one in found for text in one.recorded["made_with"])
        gone_too = ", gone" * ("real_weights" in " ".join(commands))
        rows.append([f"*{name}*", "; ".join(f"`{command}`" for command in commands) + gone_too, "; ".join(made)])
    return rows


def page() -> list[str]:
    """Make the lines of docs/evidence.md."""
    rows, tests = claims(), measured("trl_tests")
    pieces = list(tests["parts"].values())
    stock, ours = (sum(piece["passed"][n] for piece in pieces) for n in (0, 1))
    worse = sum(line.endswith(": passed, failed") for piece in pieces for line in piece["differ"])
    lines = ["# What was seen on real weights, and what things cost", ""]
    for word in ("confirmed", "refuted", "inconclusive"):
        found = [claim + found[len(word) :] for claim, _, _, found in rows if found.startswith(word)]
        lines += [f"**{word.capitalize()} on real weights:**", "", *(f"- {claim}." for claim in found), ""]
    return [
        *lines,
        "**Toy**: the starter, 0.65 M parameters, trained on docstrings. **Real**: gemma-3-270m (base), 268 M",
        f"parameters, Q4_K_M widened to fp32, under the Gemma Terms of Use: fetched by `{FETCH}`,",
        "never shipped. One model of each kind: a second one may differ. Trainings are as short as the cells say: a trend, not",
        "its end. All of it ran on one thread of a CPU that was shared with other work. Nothing here ran on a GPU. A name in",
        "italics is a row of [the sources](#sources).",
        "",
        *table(["claim", "toy", "real weights"], [row[:3] for row in rows]),
        "",
        f"TRL's own tests of GRPO, RLOO and OnlineDPO on TRL {tests['trl']} ({sum(piece['tests'] for piece in pieces)} tests):",
        f"{stock} pass on TRL's trainers, {ours} on ours, {worse} only on TRL's (*trl_tests*).",
        "",
        "## What things cost",
        "",
        "Measured in pairs within one process, as medians, by `python -m benchmarks.cost --out data/measured/cost.json`. Seconds",
        "are of the processor, on one thread. Steps of the starter are as short as steps get: a callback's own work does not",
        "grow with the model, so its share falls.",
        "",
        *cost.page(),
        "",
        *costs_at_the_shape(),
        "",
        "## Sources",
        "",
        "Each result is stored in `data/measured/` or `data/baselines/`. A program that is gone is in the commit d662082: what it",
        "measured on a model, the notebooks 02, 03, 05, 08 and 09 measure with `-p model=NAME`.",
        "",
        *table(["source", "program", "made with"], sources()),
        "",
    ]


def figure() -> DescribedFigure:
    """Draw README's figure: the share of held-out questions answered right, of each training with a stop string."""
    arms: dict[str, list[Curve]] = {}
    for training in measured("stop_string")["trainings"]:
        seed, held = training["settings"]["seed"], training["held out"]
        curve = Curve(f"seed {seed}", held["step"], held["reward"], "share", 0, 1)
        arms.setdefault(training["settings"]["arm"].replace("-", ", "), []).append(curve)
    title = "gemma-3-270m with a stop string: held-out questions answered right"
    return show_curves(arms, title=title, metric="right answers")
