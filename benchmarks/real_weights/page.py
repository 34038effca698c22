"""Writes docs/evidence/real_weights.md from data/measured/, baselines, and stored outputs of a notebook; and README's figure.

python -m benchmarks.real_weights.page
"""

import dataclasses
import json
import re
import statistics
from pathlib import Path

from benchmarks.pages import table, write_page
from benchmarks.record import FETCH, MEASURED, ROOT
from workbench.curves.curve import Curve
from workbench.curves.documented import load_baseline
from workbench.curves.figures import DescribedFigure, show_curves
from workbench.curves.verdicts import trend
from workbench.runs.files import read_json

NO_GPU, NOT_RUN, NONE = "not run: no GPU", "not run", "-"
GPU = "`python -m benchmarks.cost.gpu`"
BASELINES = ROOT / "data" / "baselines"
LOGGED = "TRL's clipped ratio"
FULL_RATES = ("workbench-gemma-3-270m-full-1e-5", "workbench-gemma-3-270m-lora-1e-4")
DOCUMENTED_RATES = ("workbench-gemma-3-270m-full-1e-6", "workbench-gemma-3-270m-lora-1e-6")


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim, what was seen of it at each scale, whether it holds on real weights (None: not decided there), and a remark.

    Of a claim that does not hold the remark says what was seen instead.
    """

    claim: str
    toy: str
    real: str
    shape: str
    gpu: str
    held: bool | None = None
    remark: str = ""


class Evidence:
    """The recorded results; a part that is not there reads as an empty one."""

    def __init__(self, folder: Path = MEASURED):
        self.of = {path.stem: read_json(path, {}) for path in folder.rglob("*.json")}

    def part(self, name: str, part: str) -> dict:
        return self.of.get(name, {}).get("parts", {}).get(part, {})

    def shape(self, part: str, key: str) -> float | None:
        """The median over rounds of a number at the documented shape."""
        parts = self.of.get("documented_shape", {}).get("parts", {})
        values = [value[key] for name, value in parts.items() if name.rpartition(", round")[0] == part]
        return statistics.median(values) if values else None

    def ratio(self, part: str, key: str) -> float | None:
        """Ours over stock at the documented shape."""
        stock, ours = (self.shape(f"{part}, {arm}", key) for arm in ("stock", "ours"))
        return ours / stock if stock and ours else None

    def gpu(self, part: str) -> list[tuple[str, dict]]:
        """Model -> what was measured on a GPU."""
        parts = self.of.get("gpu", {}).get("parts", {})
        return [(name.partition(", ")[2], value) for name, value in parts.items() if name.startswith(part)]


def cell(text: str | None, command: str) -> str:
    """A number with its command."""
    return f"{text}<br>`{command}`" if text else NOT_RUN


def nats(value: float) -> str:
    return f"{value:.1e}"


def padding_rows(seen: Evidence) -> list[Row]:
    toy, short, long = (
        seen.part(*at)
        for at in (("toy", "padding"), ("padding", "short texts"), ("padding", "beyond the sliding window"))
    )

    def moved(found: dict, dtype: str) -> str | None:
        if dtype not in found:
            return None
        numbers = found[dtype]
        worst = max(numbers["implicit"], numbers["explicit"])
        return f"{nats(worst)} nats at most (other batch sizes alone {nats(numbers['control'])})"

    def outside(found: dict) -> str | None:
        if "bfloat16" not in found:
            return None
        share = found["bfloat16"]["share of ratios outside [0.9, 1.1]"]
        return f"{moved(found, 'bfloat16')}; up to {share:.0%} of ratios outside [0.9, 1.1]"

    commands = (
        "python -m benchmarks.real_weights.toy",
        "python -m benchmarks.real_weights.padding",
        "python -m benchmarks.cost.documented_shape",
    )
    on_gpu = "; ".join(f"{name}: {found['verdict'].split(':')[0]}" for name, found in seen.gpu("padding_report"))
    shape = next(
        (p for n, p in seen.of.get("documented_shape", {}).get("parts", {}).items() if n.startswith("padding_report")),
        {},
    )
    return [
        Row(
            "With rotary positions padding only rounds (fp32)",
            cell(moved(toy, "float32"), commands[0]),
            cell(moved(short, "float32"), commands[1]),
            cell(shape.get("kind"), commands[2]),
            on_gpu or NO_GPU,
            short["kind"] == "rounding only" if short else None,
        ),
        Row(
            "In bf16 padding moves no ratio out of [0.9, 1.1]",
            cell(outside(toy), commands[0]),
            cell(outside(short), commands[1]),
            NONE,
            on_gpu or NO_GPU,
            short["bfloat16"]["share of ratios outside [0.9, 1.1]"] == 0 if short else None,
            f"it moved up to {short['bfloat16']['share of ratios outside [0.9, 1.1]']:.0%} of them out; other batch sizes "
            f"alone move log-probs by {nats(short['bfloat16']['control'])} nats"
            if short
            else "",
        ),
        Row(
            "Texts beyond a sliding window are scored alike with padding",
            "tiny models of each family<br>`pytest tests/diagnostics/test_padding_report.py`",
            cell(
                long and f"{moved(long, 'float32')}, window {long['window']}, text of {long['tokens'][0]}", commands[1]
            ),
            NONE,
            NO_GPU,
            long["kind"] == "rounding only" if long else None,
        ),
    ]


def stop_rows(seen: Evidence) -> list[Row]:
    def wasted(name: str, prefix: str, limits: tuple[int, ...]) -> str | None:
        found = []
        for limit in limits:
            stock, ours = (seen.part(name, f"{prefix}, {limit}, {arm}") for arm in ("stock", "ours"))
            if stock and ours:
                found.append(f"{limit} tokens: stock {stock['share wasted']:.0%}, ours {ours['share wasted']:.0%}")
        return "; ".join(found) or None

    def logged(name: str, prefix: str, limits: tuple[int, ...], arm: str = "ours") -> str | None:
        found = {limit: seen.part(name, f"{prefix}, {limit}, {arm}") for limit in limits}
        shown = [
            f"{limit} tokens: {part[LOGGED]:.2f} logged, {part['true clipped ratio']:.2f} true"
            for limit, part in found.items()
            if part
        ]
        return "; ".join(shown) or None

    limits, toy_limits = (64, 128, 256), (64, 128)
    real = [seen.part("stops", f"transformers, {limit}, ours") for limit in limits]
    both = [
        (seen.part("stops", f"transformers, {limit}, stock"), part) for limit, part in zip(limits, real, strict=True)
    ]
    engine = logged("stops", "vllm", limits, "stops passed on")
    text = logged("stops", "transformers", limits)
    on_gpu = "; ".join(f"{name}: {value['over']:+.1%} time" for name, value in seen.gpu("stop criterion"))
    return [
        Row(
            "TRL's rule takes rows that a stop string ended for cut by the limit",
            cell(logged("toy", "stops", toy_limits), "python -m benchmarks.real_weights.toy"),
            cell(
                text and text + (f"<br>vLLM: {engine}" if engine else "<br>vLLM: not run"),
                "python -m benchmarks.real_weights.stops",
            ),
            NONE,
            NO_GPU,
            any(p[LOGGED] > p["true clipped ratio"] for p in real if p) if any(real) else None,
        ),
        Row(
            "Stops in `generate` save tokens that come after an end",
            cell(wasted("toy", "stops", toy_limits), "python -m benchmarks.real_weights.toy"),
            cell(wasted("stops", "transformers", limits), "python -m benchmarks.real_weights.stops"),
            NONE,
            f"the criterion itself: {on_gpu}<br>{GPU}" if on_gpu else NO_GPU,
            all(a["share wasted"] > b["share wasted"] for a, b in both if a and b) if any(real) else None,
            "at some limits they saved none: a batch runs to its longest row, and one row without a stop takes it to the limit"
            if any(real)
            else "",
        ),
    ]


def sampler_rows(seen: Evidence) -> list[Row]:
    causes = ("dtype", "temperature", "top-p")

    def named(name: str, prefix: str) -> str | None:
        parts = {cause: seen.part(name, f"{prefix}{cause}") for cause in causes}
        shown = [
            f"{cause}: {p['largest cause']} ({nats(p['mean |Δ| by cause'][cause])})" for cause, p in parts.items() if p
        ]
        return "put in: named (its size, nats a token): " + "; ".join(shown) if shown else None

    def clean(part: dict) -> str | None:
        return f"{nats(part['mean |Δ| by cause']['all'])} nats a token" if part else None

    found = {cause: seen.part("sampler", cause) for cause in causes}
    none = seen.part("sampler", "none")
    of_dtype, remark = found["dtype"].get("mean |Δ| by cause", {}), ""
    if of_dtype and found["dtype"]["largest cause"] != "dtype":
        remark = (
            f"with a sampler in bf16 the cast explains {nats(of_dtype['dtype'])} nats a token, and {nats(of_dtype['sampler'])} "
            "are left, because cached decoding in bf16 rounds as much again"
        )
    attributed = {}
    for model, rows in seen.of.get("attribution", {}).get("models", {}).items():
        right = sum(row["right"] for row in rows)
        attributed["real" if "gemma" in model else "toy"] = f"the right causes in {right} of {len(rows)} cases"
    command = "python -m benchmarks.verdicts.attribution"
    return [
        Row(
            "Sampled and scored log-probs agree where nothing is wrong (fp32)",
            cell(clean(seen.part("toy", "sampler, none")), "python -m benchmarks.real_weights.toy"),
            cell(clean(none), "python -m benchmarks.real_weights.sampler"),
            NONE,
            NO_GPU,
            none["verdict"].startswith("sampler and scorer agree") if none else None,
        ),
        Row(
            "`mismatch_report` names the cause that was put in as the largest",
            cell(named("toy", "sampler, "), "python -m benchmarks.real_weights.toy"),
            cell(named("sampler", ""), "python -m benchmarks.real_weights.sampler"),
            NONE,
            NO_GPU,
            all(part["largest cause"] == cause for cause, part in found.items()) if all(found.values()) else None,
            remark,
        ),
        Row(
            "`attribute_mismatch` finds causes among suspects, one or two at once ([table](attribution.md))",
            cell(attributed.get("toy"), command),
            cell(attributed.get("real"), command),
            NONE,
            NO_GPU,
        ),
        *proof_rows(seen),
    ]


def proof_rows(seen: Evidence) -> list[Row]:
    """What `attach_sampler_probe` says of trainings with a fault and without."""
    clean = read_json(MEASURED / "cost" / "sampler_probe-starter-2-core-cpu.json", {})["clean"]
    parts = seen.of.get("sampler_faults", {}).get("parts", {})
    faults = {name: part for name, part in parts.items() if not name.startswith("clean")}
    wrong = [f"{name}: {' and '.join(part['named'])}" for name, part in parts.items() if not part["right"]]
    shown = None
    if faults:
        right = [part for part in faults.values() if part["right"]]
        steps = max((part["after updates"] for part in right), default=None)
        shown = f"{len(right)} of {len(faults)} injected faults named, after {steps} updates at the latest"
        for name, part in parts.items():
            if name.startswith("clean"):
                shown += f"; {name}: {nats(part['largest difference'])} nats at most"
        shown += f"<br>not right: {'; '.join(wrong)}" if wrong else ""
    return [
        Row(
            "`attach_sampler_probe` names an engine that is not the policy within two steps, and nothing in clean trainings",
            "each of six faults, in process and on a server: `pytest tests/diagnostics/test_sampler_probe.py`<br>"
            f"{clean['steps']} clean steps: {clean['faults']} named, {nats(clean['largest difference'])} nats at most<br>"
            "`python -m benchmarks.cost.sampler_probe`",
            cell(shown, "python -m benchmarks.real_weights.sampler_faults"),
            NONE,
            NO_GPU,
            not wrong if faults else None,
        )
    ]


def seeds_of(name: str) -> list[Curve]:
    """The reward of each seed of a baseline; none where it is not recorded."""
    return load_baseline(name).curves_by_seed() if (BASELINES / f"{name}.json").exists() else []


def ends(name: str) -> list[tuple[float, float]]:
    """Of a baseline's seeds, the mean reward of the first three and of the last three steps."""
    return [(statistics.fmean(curve.y[:3]), statistics.fmean(curve.y[-3:])) for curve in seeds_of(name)]


def learns(name: str) -> str | None:
    """Whether a baseline's reward rises, in the mean of its seeds, as `baselines.md` says; None where it is not recorded."""
    return trend(load_baseline(name).curve()).word if (BASELINES / f"{name}.json").exists() else None


def training_rows(seen: Evidence) -> list[Row]:
    command = "python -m benchmarks.real_weights.docs_example"

    def curve(name: str) -> str | None:
        if not (found := ends(name)):
            return None
        file = read_json(BASELINES / f"{name}.json", {})
        shown = "; ".join(f"{first:.0f} to {last:z.0f}" for first, last in found)
        steps, title = len(file["curves"]["reward"]["points"]), name.rpartition("270m-")[2]
        return f"{title}: {shown} (seeds: {len(found)}, steps: {steps}; in the mean: {learns(name)})"

    rates = [text for name in FULL_RATES if (text := curve(name))]
    rise = [learns(name) for name in FULL_RATES if ends(name)]
    documented = {name.rpartition("270m-")[2]: learns(name) for name in DOCUMENTED_RATES if ends(name)}
    rose = [name for name, found in documented.items() if found == "rises"]
    starter = ends("workbench-starter-docs-example")
    toy = f"{statistics.fmean(a for a, _ in starter):.0f} to {statistics.fmean(b for _, b in starter):.0f}, ten seeds, 80 steps"
    shown, idle = [], {}
    for training in seen.of.get("stop_string", {}).get("trainings", []):
        arm, seed = training["settings"]["arm"], training["settings"]["seed"]
        curves, right = training["curves"], training["held out"]["reward"]
        none = statistics.fmean(norm == 0 for norm in curves["gradient norm"])
        idle.setdefault(arm, []).append(none)
        shown.append(
            f"{arm.replace('-', ', ')}, seed {seed}: {none:.0%} of {training['steps']} steps without gradient, clipped ratio "
            f"{statistics.fmean(curves['logged clipped ratio']):.2f} logged, {statistics.fmean(curves['truncated']):.2f} true, "
            f"right on held-out questions {right[0]:.0%} to {right[-1]:.0%}"
        )
    masked, ours = (idle.get(name, []) for name in ("stock-masked", "workbench-masked"))
    lost = min(masked) > max(ours) if masked and ours else None
    return [
        Row(
            "The documented example learns at higher rates: reward of the first three and last three steps",
            cell(toy, "python -m benchmarks.verdicts.record_controls"),
            cell("<br>".join(rates) or None, command),
            NONE,
            NO_GPU,
            None if not rise or "inconclusive" in rise else all(word == "rises" for word in rise),
        ),
        Row(
            "The documented example does not rise at its documented rate of 1e-6 in as few steps",
            "`workbench run 05_grpo_docs_example`, arm 'documented rate'",
            cell("<br>".join(text for name in DOCUMENTED_RATES if (text := curve(name))) or None, command),
            NONE,
            NO_GPU,
            False if rose else True if set(documented.values()) == {"falls"} else None,
            "; ".join(f"{name}: {'it does' if name in rose else word}" for name, word in documented.items()),
        ),
        Row(
            "With a stop string stock TRL that masks has fewer steps with a gradient than ours",
            cell(first_result("02_grpo_custom_stops"), "workbench run 02_grpo_custom_stops"),
            cell("<br>".join(shown) or None, "python -m benchmarks.real_weights.stop_string"),
            NONE,
            NO_GPU,
            lost,
            f"seeds: {len(ours)}",
        ),
    ]


def first_result(notebook: str) -> str | None:
    """The first result in a notebook's stored outputs, without its verdict."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(out.get("data", {}).get("text/plain", "")) for one in cells for out in one.get("outputs", ())]
    found = [re.match("(?:passed|failed|inconclusive): (.*)", text) for text in texts]
    return next((match[1] for match in found if match), None)


def cost_rows(seen: Evidence) -> list[Row]:
    command = "python -m benchmarks.cost.documented_shape"
    starter = read_json(MEASURED / "cost" / "stop_cost-starter-2-core-cpu.json", {})["grpo step overhead"]
    memory, step = seen.ratio("GRPO step", "peak GiB"), None
    if memory and (time := seen.shape("GRPO step, in turns", "time, ours over stock")):
        own = seen.shape("GRPO step, in turns", "own work, share of a step")
        turns = seen.part("documented_shape", "GRPO step, in turns, round 1")
        low, high = turns["interval"]
        step = (
            f"{own:.1%} of a step is the workbench's own work (profile; target 2%), {memory:.3f} of stock's peak memory"
        )
        pairs = f"median of {len(turns['pairs'])} pairs of steps, 95%: {low:.3f} to {high:.3f}"
        step += f"; {time:.3f} of its processor time ({pairs})"
    weights, padded = seen.shape("weights", "peak GiB"), seen.shape("padding_report", "peak GiB")
    beyond = f"{padded - weights:.2f} GiB beyond the process with the weights" if weights and padded else None
    seconds, joined = (seen.shape("recorder", key) for key in ("seconds", "joining s a step"))
    recorded = seconds and (
        f"{seconds + joined:.2f} s a step of 1,000 x 2,048 tokens ({seconds:.2f} s at once, {joined:.2f} s at the end): 1% of "
        f"a step of {100 * (seconds + joined):.0f} s"
    )
    mismatch, sampling = seen.shape("mismatch_report", "seconds"), seen.shape("mismatch_report", "sampling s")
    others = []
    for name in ("log-probs", "rollouts"):
        if ratio := seen.ratio(name, "seconds"):
            others.append(
                f"{name}: {ratio:.2f} of the plain call's time, {seen.ratio(name, 'peak GiB'):.2f} of its peak"
            )
    if mismatch:
        others.append(f"`mismatch_report`: {mismatch / sampling:.1f} x the seconds of sampling the same tokens")
    on_gpu = "; ".join(
        f"{name}: {value['time, ours over stock']:.3f} of the time, {value['memory, ours over stock']:.3f} of the memory"
        for name, value in seen.gpu("GRPO step")
    )
    return [
        Row(
            "What our trainer adds to a step of stock's",
            cell(f"{1 + starter['process']:.3f} of stock's processor time", "python -m benchmarks.cost.stop_cost"),
            NONE,
            cell(step, command),
            f"{on_gpu}<br>{GPU}" if on_gpu else NO_GPU,
        ),
        Row(
            "`padding_report` takes less than 2 GiB in addition to the weights",
            NONE,
            NONE,
            cell(beyond, command),
            NO_GPU,
        ),
        Row("What recording costs", NONE, NONE, cell(recorded, command), NO_GPU),
        Row("What the other helpers cost", NONE, NONE, cell("<br>".join(others) or None, command), NO_GPU),
    ]


def own_tests(seen: Evidence) -> Row:
    found = seen.of.get("trl_tests", {})
    pieces = list(found.get("parts", {}).values())
    stock, ours = (sum(piece["passed"][n] for piece in pieces) for n in (0, 1))
    worse = sum(line.endswith(": passed, failed") for piece in pieces for line in piece["differ"])
    of = f"TRL {found.get('trl')}, {sum(piece['tests'] for piece in pieces)} tests"
    text = f"{of}: {stock} pass on TRL's trainers, {ours} on ours; {worse} only on TRL's" if pieces else None
    claim = "TRL's own tests of GRPO, RLOO and OnlineDPO pass on our trainers"
    return Row(claim, cell(text, "python -m benchmarks.verdicts.trl_tests FOLDER"), NONE, NONE, NO_GPU)


def verdicts(rows: list[Row]) -> list[str]:
    """What a reader wants first: what carried over to real weights."""
    holds = [row.claim + (f" ({row.remark})" if row.remark else "") for row in rows if row.held]
    fails = [f"{row.claim}. Measured: {row.remark}" for row in rows if row.held is False]
    lines = []
    for title, claims in {"Confirmed on real weights": holds, "Refuted on real weights": fails}.items():
        lines += [f"**{title}:**", "", *(f"- {claim}." for claim in claims or ["Nothing that was tried"]), ""]
    return lines


def page(seen: Evidence) -> list[str]:
    """The lines of the page."""
    rows = [*padding_rows(seen), *stop_rows(seen), *sampler_rows(seen), *training_rows(seen), *cost_rows(seen)]
    rows.append(own_tests(seen))
    hardware = seen.of.get("gpu", {}).get("hardware")
    environment = seen.of.get("padding", {}).get("environment", {})
    cells = [[row.claim, row.toy, row.real, row.shape, row.gpu] for row in rows]
    return [
        "# What was seen on real weights, at the documented shape, and on GPUs",
        "",
        *verdicts(rows),
        "**Toy**: the starter, 0.65 M parameters, trained on docstrings. **Real**: gemma-3-270m (base), 268 M",
        f"parameters, Q4_K_M widened to fp32, under the Gemma Terms of Use: fetched by `{FETCH}`,",
        "never shipped. **Shape**: Qwen2-0.5B (24 layers, vocabulary 151,936), random weights, fit for cost alone. One",
        "model of each kind: a second one may differ. Trainings are as short as the cells say: a trend, not its end.",
        "",
        f"CPU: one thread of {environment.get('cpu', 'unknown')}, shared with other work. GPU: {hardware or 'none at hand'}.",
        "",
        *table(["claim", "toy", "real weights", "documented shape", "GPU"], cells),
        "",
        "Each command goes on where it was interrupted, and writes to `data/measured/`; of these",
        "`python -m benchmarks.real_weights.page` writes this page.",
        "",
    ]


def held_out_figure(seen: Evidence) -> DescribedFigure:
    """The share of held-out questions answered right, of each training with a stop string."""
    arms: dict[str, list[Curve]] = {}
    for training in seen.of["stop_string"]["trainings"]:
        seed, held = training["settings"]["seed"], training["held out"]
        curve = Curve(f"seed {seed}", held["step"], held["reward"], "share", 0, 1)
        arms.setdefault(training["settings"]["arm"].replace("-", ", "), []).append(curve)
    title = "gemma-3-270m with a stop string: held-out questions answered right"
    return show_curves(arms, title=title, metric="right answers")


if __name__ == "__main__":
    recorded = Evidence()
    write_page(ROOT / "docs" / "evidence" / "real_weights.md", page(recorded))
    (ROOT / "docs" / "images" / "real_weights.png").write_bytes(held_out_figure(recorded).png())
