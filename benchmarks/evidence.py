"""Makes docs/evidence/real_weights.md and README's figure of what is stored in data/; `python -m benchmarks.pages` writes them.

Programs whose results are in are gone. What was said of their results is in data/measured/real_weights/claims.json.
"""

import json
import re
import statistics

from benchmarks import trl_tests
from benchmarks.fetch_gemma import FETCH
from benchmarks.record import ROOT, made_with, measured, table
from benchmarks.stop_string import made_of
from workbench.curves.curve import Curve
from workbench.curves.documented import load_baseline
from workbench.curves.figures import DescribedFigure, show_curves

GONE = [f"real_weights/{name}" for name in ("toy", "padding", "stops", "sampler", "sampler_faults")]
GONE += ["cost/documented_shape"]
DOCS_EXAMPLE = [f"workbench-gemma-3-270m-{arm}" for arm in ("full-1e-5", "full-1e-6", "lora-1e-4", "lora-1e-6")]
LAST = "d662082"  # the commit that has all programs that are gone
HEAD = ("claim", "toy", "real weights", "verdict")


def without_gradient(training: dict) -> float:
    return statistics.fmean(norm == 0 for norm in training["curves"]["gradient norm"])


def training_in_words(training: dict) -> str:
    arm, seed = training["settings"]["arm"].replace("-", ", "), training["settings"]["seed"]
    curves, right = training["curves"], training["held out"]["reward"]
    logged, true = (statistics.fmean(curves[name]) for name in ("logged clipped ratio", "truncated"))
    return (
        f"{arm}, seed {seed}: {without_gradient(training):.0%} of {training['steps']} steps without gradient, clipped ratio "
        f"{logged:.2f} logged, {true:.2f} true, right on held-out questions {right[0]:.0%} to {right[-1]:.0%}"
    )


def first_result(notebook: str) -> str:
    """Return the first result in a notebook's stored outputs, without its verdict."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(out.get("data", {}).get("text/plain", "")) for one in cells for out in one.get("outputs", ())]
    return next(match[1] for text in texts if (match := re.match("(?:passed|failed|inconclusive): (.*)", text)))


def claims() -> list[list[str]]:
    """Return each claim with what was seen on the toy and on real weights, and the verdict on real weights."""
    rows = [[row[name] for name in HEAD] for row in measured("real_weights/claims")["claims"]]
    models = measured("attribution")["models"].values()
    right = [(sum(row["right"] for row in model), len(model)) for model in models]
    cells = [f"the right causes in {n} of {count} cases<br>*attribution*" for n, count in right]
    where = "[table](error_rates.md#which-cause-is-named)"
    claim = f"`attribute_mismatch` finds causes among suspects, one or two at once ({where})"
    rows.append([claim, *cells, "confirmed" if right[-1][0] == right[-1][1] else "refuted"])
    trainings, idle = measured("stop_string")["trainings"], {}
    for one in trainings:
        idle.setdefault(one["settings"]["arm"], []).append(without_gradient(one))
    fewer = min(idle["stock-masked"]) > max(idle["workbench-masked"])
    claim = "With a stop string stock TRL that masks has fewer steps with a gradient than ours"
    toy = f"{first_result('02_grpo_custom_stops')}<br>`workbench run 02_grpo_custom_stops`"
    cells = [toy, "<br>".join([*map(training_in_words, trainings), "*stop_string*"])]
    rows.append([claim, *cells, "confirmed" if fewer else "refuted"])
    return rows


def costs() -> list[list[str]]:
    """Return a row for each thing whose cost was measured."""
    rows = measured("cost")["rows"].items()
    return [[*name.split("; "), row["says"], made_with(row)] for name, row in rows]


def sources() -> list[list[str]]:
    """Return what each name in italics stands for: the program, and the commit, versions and date of its result."""
    rows = [[f"`{measured(file)['command']}`, gone", made_with(measured(file))] for file in GONE]
    names = [file.partition("/")[2] for file in GONE]
    names += ["docs_example", "control", "attribution", "trl_tests", "stop_string"]
    texts = dict.fromkeys(text for name in DOCS_EXAMPLE for text in load_baseline(name).recorded["made_with"])
    rows.append(["`python -m benchmarks.real_weights.docs_example`, gone", "; ".join(texts)])
    rows.append(
        ["`python -m benchmarks.controls`", *load_baseline("workbench-starter-docs-example").recorded["made_with"]]
    )
    rows += [[f"`python -m benchmarks.{name}`", made_with(measured(name))] for name in ("attribution", "trl_tests")]
    trainings = sorted(set(map(made_of, measured("stop_string")["trainings"])))
    rows.append(["`python -m benchmarks.stop_string`", "; ".join(trainings)])
    return [[f"*{name}*", *row] for name, row in zip(names, rows, strict=True)]


def page() -> list[str]:
    """Make the lines of docs/evidence/real_weights.md."""
    rows, lines = claims(), []
    for word in ("confirmed", "refuted", "inconclusive"):
        found = [f"- {claim}{verdict.removeprefix(word)}." for claim, _, _, verdict in rows if verdict.startswith(word)]
        lines += [f"**{word.capitalize()} on real weights:**", "", *found, ""]
    return [
        "# What was seen on real weights, and what things cost",
        "",
        *lines,
        "**Toy**: the starter, 0.65 M parameters, trained on docstrings. **Real**: gemma-3-270m (base), 268 M",
        f"parameters, Q4_K_M widened to fp32, under the Gemma Terms of Use: fetched by `{FETCH}`,",
        "never shipped. One model of each kind: a second one may differ. Trainings are as short as the cells say: a trend, not",
        "its end. All of it ran on one thread of a CPU that was shared with other work. Nothing here ran on a GPU. A name in",
        "italics is a row of [the sources](#sources).",
        "",
        *table(HEAD[:-1], [row[:-1] for row in rows]),
        "",
        "## TRL's own tests",
        "",
        *trl_tests.page(measured("trl_tests")),
        "",
        "## What things cost",
        "",
        "Measured in pairs within one process, as medians, by `python -m benchmarks.cost --out data/measured/cost.json`.",
        "Seconds are of the processor, on one thread. A step of the starter is as short as steps get. A callback's own work",
        "does not grow with the model, so its share falls.",
        "",
        *table(["what", "model", "measured", "made with"], costs()),
        "",
        "Once, at the shape of Qwen2-0.5B (24 layers, vocabulary 151,936, random weights; *documented_shape*):",
        "",
        *(f"- {text}" for text in measured("real_weights/claims")["costs"]),
        "",
        "## Sources",
        "",
        "`python -m benchmarks.pages` writes this page. Each result is stored in `data/measured/` or `data/baselines/`, with",
        "the commit that it was made with or that holds it, versions and date. Programs that are gone are in commit",
        f"{LAST} (`git show {LAST}:benchmarks/real_weights/padding.py`). What they measured on a model, the notebooks 02, 03,",
        "05, 08 and 09 measure with `-p model=NAME`.",
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
