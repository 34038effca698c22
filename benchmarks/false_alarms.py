"""How often what looks at a training alarms without a cause: healthy trainings of toys, on real TRL and real vLLM.

    python -m benchmarks.false_alarms [--steps 40] [--only NAME ...] [--out data/measured/false_alarms.json]

Each training has `attach_watch`, and with vLLM the sampler probe at every step. All that speaks is counted: warnings of the
probe, lines of the watch (its live rules), warnings of this package, and what `audit_run` finds in the finished record. The
engine samples in bf16 and in this process. `LAGS` are the trainings with a fault: an engine that is one sync late.

With `--out` each training is stored when it ends, and one that the file has already is not trained again.
"""

import contextlib
import dataclasses
import functools
import gc
import io
import json
import os
import re
import resource
import shutil
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import trl
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

from tools.record import (
    about,
    by_versions,
    csv_next_to_page,
    csv_text,
    made_with,
    measured,
    parser,
    run_main,
    table,
    use_one_thread,
)
from workbench.audit.report import audit_run
from workbench.curves.stats import share_interval
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.experiments.vllm_server import shared_engine, sharing_engines
from workbench.runs.files import jsonable, read_json, write_json
from workbench.training import sync_on_cpu
from workbench.training.grpo import GRPOTrainer, RLOOTrainer
from workbench.training.rewards import length_reward
from workbench.watch.attach import attach_watch
from workbench.watch.sampler_probe import attach_sampler_probe
from workbench.watch.sampler_verdict import CANNOT_TELL, PRECISION

STOCK, OURS, STOCK_RLOO, OURS_RLOO = trl.GRPOTrainer, GRPOTrainer, trl.RLOOTrainer, RLOOTrainer
COLUMNS = {"starter": "q_proj", "starter-gpt2": "c_attn"}  # what LoRA adapts
MASKED = {"mask_truncated_completions": True}
TWICE = {"num_iterations": 2}
OFF_POLICY = {"gradient_accumulation_steps": 2, "steps_per_generation": 4}


def few_letters(completions, **_):
    """Return a second reward: fewer letters `e` are better."""
    return [-float(text.count("e")) for text in completions]


def starts_with_return(completions, **_):
    """Return a sparse reward: most groups have none."""
    return [float(text.strip().startswith("Return")) for text in completions]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One training. `engine` is vLLM's dtype, empty for the transformers back end; `bf16` is the trainer's autocast."""

    trainer: type
    model: str
    rate: float
    bf16: bool = True
    engine: str = "bfloat16"
    rewards: tuple = ()
    lora: bool = False
    late: bool = False
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def words(self) -> str:
        """Say what it is, in a row of the table."""
        sampler = {"bfloat16": "vLLM bf16", "float32": "vLLM fp32", "": "transformers"}[self.engine]
        who = "stock" if self.trainer in (STOCK, STOCK_RLOO) else "ours"
        kind = "RLOO" if self.trainer in (STOCK_RLOO, OURS_RLOO) else "GRPO"
        parts = [f"{who} {kind}", self.model, f"{self.rate:g}", "bf16" if self.bf16 else "fp32", sampler]
        parts += ["LoRA"] * self.lora + [reward.__name__ for reward in self.rewards]
        return ", ".join([*parts, *(f"{name}={value}" for name, value in self.fields.items())])


C, QWEN2, GPT2 = Configuration, "starter", "starter-gpt2"
HEALTHY = [
    C(OURS, GPT2, 1e-6),
    C(STOCK, GPT2, 1e-5),
    C(OURS, QWEN2, 1e-6),
    C(STOCK, QWEN2, 1e-5),
    C(STOCK, GPT2, 1e-6, bf16=False),
    C(OURS, GPT2, 1e-5, bf16=False),
    C(STOCK, QWEN2, 1e-6, bf16=False),
    C(OURS, QWEN2, 1e-5, bf16=False),
    C(STOCK, QWEN2, 3e-4),
    C(OURS, GPT2, 3e-4),
    C(OURS, GPT2, 1e-6, bf16=False, engine="float32"),
    C(STOCK, QWEN2, 1e-5, bf16=False, engine="float32"),
    C(STOCK, GPT2, 1e-5, fields=MASKED),
    C(OURS, QWEN2, 1e-5, lora=True),
    C(STOCK, GPT2, 1e-4, lora=True),
    C(STOCK, QWEN2, 1e-6, fields=TWICE),
    C(OURS, GPT2, 1e-5, fields=OFF_POLICY),
    C(OURS, QWEN2, 1e-5, rewards=(length_reward(), few_letters)),
    C(OURS_RLOO, GPT2, 1e-6),
    C(STOCK_RLOO, QWEN2, 1e-5),
    C(STOCK, GPT2, 1e-5, rewards=(starts_with_return,)),
    C(STOCK, "search", 1e-6),
    C(STOCK, QWEN2, 1e-6, engine=""),
    C(OURS, GPT2, 1e-5, engine=""),
    C(STOCK, GPT2, 3e-4, bf16=False, engine="", fields=MASKED),
    C(STOCK, QWEN2, 1e-5, engine="", lora=True, fields=TWICE),
    C(STOCK_RLOO, GPT2, 1e-6, bf16=False, engine="", rewards=(length_reward(), few_letters)),
    C(OURS, QWEN2, 1e-5, engine="", rewards=(starts_with_return,)),
]
LAGS = [C(OURS, model, rate, late=True) for model in (GPT2, QWEN2) for rate in (1e-3, 1e-4, 1e-5, 1e-6)]
LAGS += [C(OURS, GPT2, rate, bf16=False, late=True) for rate in (1e-3, 1e-4, 1e-5, 1e-6)]


# --- a training ---------------------------------------------------------------------------------------------------------------


@functools.cache
def folder_of(model: str, dtype: str) -> str:
    """Return a copy of the model: engines are shared by path, and each dtype has its own."""
    return shutil.copytree(resolve_model(model), Path(tempfile.mkdtemp()) / f"{model}-{dtype}").as_posix()


@contextlib.contextmanager
def one_sync_late() -> Iterator[None]:
    """While open, each sync sends what was to be sent by the one before."""
    reload, kept = sync_on_cpu.reload_colocated, deque(maxlen=2)

    def send(llm: Any, params: Any) -> None:
        kept.append([(name, tensor.detach().clone()) for name, tensor in params])
        reload(llm, kept[0])

    with mock.patch.object(sync_on_cpu, "reload_colocated", send):
        yield


def prompts(one: Configuration) -> Any:
    """Return the prompts; of one length where stock TRL would score padded rows at wrong positions (GPT-2)."""
    data = load_prompts("search" if one.model == "search" else "starter")
    if one.model != GPT2 or one.trainer not in (STOCK, STOCK_RLOO):
        return data
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(one.model))
    lengths = [len(tokenizer(text)["input_ids"]) for text in data["prompt"]]
    usual = Counter(lengths).most_common(1)[0][0]
    return data.select([row for row, length in enumerate(lengths) if length == usual])


def made(one: Configuration, folder: Path, steps: int) -> Any:
    """Make the trainer, its engine with the weights that it starts from."""
    path, data = folder_of(one.model, one.engine), "search" if one.model == "search" else "starter"
    fields = {"max_steps": steps, "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 32}
    fields |= {"learning_rate": one.rate, "backend": "vllm" if one.engine else "transformers", "dataset": data}
    recipe = make_recipe(one.model, **fields)
    config = trl.RLOOConfig if one.trainer in (STOCK_RLOO, OURS_RLOO) else trl.GRPOConfig
    options = {"bf16": one.bf16, "save_strategy": "no", "disable_dropout": True, **one.fields}
    args = grpo_config(recipe, folder, config, **options)
    options = {"train_dataset": prompts(one)}
    if one.lora:
        options["peft_config"] = LoraConfig(r=4, target_modules=[COLUMNS[one.model]])
    if one.engine:
        engine = shared_engine(path, dtype=one.engine, max_model_len=256, logprobs_mode="processed_logprobs")
        start = AutoModelForCausalLM.from_pretrained(path)
        sync_on_cpu.reload_colocated(engine, start.named_parameters())
    with sync_on_cpu.building_on_cpu(args), sharing_engines():
        rewards = list(one.rewards) or length_reward()
        trainer = one.trainer(path, rewards, args, **options)
    if one.engine and one.trainer in (STOCK, STOCK_RLOO):
        sync_on_cpu.install_cpu_sync(trainer.vllm_generation, folder)
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(one: Configuration, steps: int) -> dict:
    """Train, and return what was said of it."""
    began, printed = time.monotonic(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = made(one, Path(folder), steps)
        probe = attach_sampler_probe(trainer)
        if probe:
            probe._every = 1  # at every step, whatever it costs
        watch = attach_watch(trainer, every=1)
        with contextlib.redirect_stderr(printed), one_sync_late() if one.late else contextlib.nullcontext():
            trainer.train()
        audited = audit_run(watch.recorder.record_dir).runs[0].findings
    said = [f"{Path(w.filename).stem}: {w.message}" for w in caught if is_ours(w)]
    lines = [line for line in printed.getvalue().splitlines() if line.startswith("workbench:")]
    said += [line for line in lines if "watching, recorded in" not in line]
    found = [f.rule + f" ({f.cause})" * bool(f.cause) for f in audited if f.verdict == "found" and f.severity != "note"]
    verdicts = Counter(verdict.cause for _, verdict in probe.verdicts) if probe else {}
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    return {
        "steps": trainer.state.global_step,
        "said": said,
        "audited": found,
        "verdicts": dict(verdicts),
        "first named": first_named(probe),
        "difference": float(np.max([v.difference for _, v in probe.verdicts])) if probe else None,
        "moved": moved(probe),
        "reward": [float(np.mean(part)) for part in (rewards[:10], rewards[-10:])],
        "seconds": round(time.monotonic() - began, 1),
        "peak memory, GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def is_ours(warning: warnings.WarningMessage) -> bool:
    """Whether a warning comes from this package; one that names a caller's file is known by its text."""
    text = str(warning.message)
    return "/workbench/" in warning.filename or text.startswith(("vLLM at step", "log_extra("))


def first_named(probe: Any) -> list | None:
    """Return step and cause of the first fault that the probe decided; precision is a setting of these, and no fault."""
    faults = ((step, v.cause) for step, v in (probe.verdicts if probe else ()) if v.fault and v.decided)
    return next(([step, cause] for step, cause in faults if cause != PRECISION), None)


def moved(probe: Any) -> float | None:
    """Return how far the training has moved a log-prob of the probe's text from its start, mean, nats."""
    return None if not probe else float(np.abs(probe.probes[-1].trainer - probe._start).mean())


# --- the result ---------------------------------------------------------------------------------------------------------------

SPEAKERS = ("probe", "watch", "audit")


def alarms(row: Mapping) -> list[str]:
    """Return who said what of a training, such as `probe: synced late`; any other warning of ours is whole.

    Example:
        >>> said = ["sampler_probe: vLLM at step 3, not synced: 3 steps on", "workbench: step 25: mismatch: Sampler and"]
        >>> alarms({"said": said, "audited": ["no-learning"]})
        ['probe: not synced', 'watch: mismatch', 'audit: no-learning']
    """
    found = []
    for text in row["said"]:
        probe = re.match(r"sampler_probe: vLLM at step \d+, (.+?):", text)
        live = re.match(r"workbench: step \d+: ([\w-]+):", text)
        found.append(f"probe: {probe[1]}" if probe else f"watch: {live[1]}" if live else f"other: {text}")
    return found + [f"audit: {rule}" for rule in row["audited"]]


def is_true(one: Configuration, alarm: str) -> bool:
    """Whether what was said of a healthy training is true of it by the way it was made.

    An engine in bf16 next to a trainer in fp32 has lost precision. At 1e-5 and below, with LoRA at 1e-4 and below, the reward
    of a toy hardly changes in 40 steps: by less than it scatters is what `no-learning` says. A reward that most groups have
    none of leaves these without a gradient.
    """
    if alarm == f"probe: {PRECISION}":
        return one.engine == "bfloat16" and not one.bf16
    rule = alarm.partition(": ")[2].partition(" ")[0]
    slow, sparse = one.rate <= (1e-4 if one.lora else 1e-5), starts_with_return in one.rewards
    return (rule == "no-learning" and slow) or (rule == "zero-gradient" and sparse)


def rate(wrong: int, trainings: int) -> str:
    """Write a rate with its exact interval.

    Example:
        >>> rate(0, 20)
        '0 of 20 (95%: 0% to 17%)'
    """
    found = share_interval(wrong, trainings)
    return f"{wrong} of {trainings} (95%: {found.low:.0%} to {found.high:.0%})"


def judged(rows: Mapping[str, dict]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the false and the true alarms of each healthy training."""
    made = {name: (one, alarms(rows[name])) for name, one in NAMES.items() if name in rows}
    return {
        name: ([a for a in said if not is_true(one, a)], [a for a in said if is_true(one, a)])
        for name, (one, said) in made.items()
    }


def rates(rows: Mapping[str, dict]) -> list[list[str]]:
    """Return a row for each speaker: trainings with a false alarm, and with any."""
    found, lines = judged(rows), []
    for speaker in (*SPEAKERS, ""):
        spoken = [[[a for a in part if a.startswith(speaker)] for part in parts] for parts in found.values()]
        if speaker == "probe":
            spoken = [part for part, name in zip(spoken, found, strict=True) if NAMES[name].engine]
        false, any_ = sum(bool(part[0]) for part in spoken), sum(bool(part[0] or part[1]) for part in spoken)
        lines.append([speaker or "all of them", rate(false, len(spoken)), rate(any_, len(spoken))])
    return lines


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the results."""
    rows = measured("false_alarms")["rows"]
    by = "`python -m benchmarks.false_alarms --out data/measured/false_alarms.json`"
    return [("trainings", by, text) for text in by_versions(sorted({made_with(row) for row in rows.values()}))]


def trainings_csv() -> str:
    """Make false_alarms.csv: the healthy trainings, and those whose engine is one sync late."""
    rows = measured("false_alarms")["rows"]
    lines = []
    for name, (false, true) in judged(rows).items():
        row = rows[name]
        verdicts = _counted(row["verdicts"]) or "no engine"
        alarms = [", ".join(false) or "none", ", ".join(true) or "none"]
        lines.append([name, "in time", str(row["steps"]), verdicts, *alarms, ""])
    for name in (name for name in LATE if name in rows):
        row, first = rows[name], rows[name]["first named"]
        answer = f"{first[1]}, from step {first[0]} on" if first else CANNOT_TELL
        training = name.removeprefix("one sync late: ")
        lines.append([training, "one sync late", str(row["steps"]), _counted(row["verdicts"]), "", "", answer])
    head = ["training", "weight sync", "steps", "verdicts of the probe", "false alarms", "true warnings"]
    return csv_text([*head, "answer of the probe"], lines)


def page() -> list[str]:
    """Make the lines of docs/evidence/false_alarms.md, without its other sections."""
    rows = measured("false_alarms")["rows"]
    probes = sum(sum(rows[name]["verdicts"].values()) for name in judged(rows))
    late = [rows[name] for name in LATE if name in rows]
    named = sum(bool(row["first named"]) for row in late)
    return [
        "# How often the workbench alarms without a cause",
        "",
        f"In {len(judged(rows))} healthy trainings of toys on real TRL and real vLLM (in process, on a CPU), this page counts",
        "every warning. `attach_watch` applies the live rules at every step, on vLLM the sampler probe scores at every step",
        f"too ({probes} times), and the audit reads the finished record.",
        "",
        *table(
            ["what warned", "trainings with a false alarm", "trainings with any warning, also a true one"], rates(rows)
        ),
        "",
        "A true warning comes from how the training was made:",
        "",
        "- `lost precision` of an engine in bf16 next to a trainer in fp32.",
        "- `no-learning` at rates of 1e-5 and below, with LoRA 1e-4: the reward changed by less than it scatters, as most toys",
        "  need more than 40 steps. LoRA, added after its result was seen, moved log-probs by 0.01 nats.",
        "",
        "What would be a true alarm was taken out: GPT-2 trains with `disable_dropout=True`, and on stock TRL with prompts of",
        "one length. With dropout TRL scores GPT-2 0.16 nats a token away from its sampler, and with padding at wrong",
        "positions; the rules `mismatch` and `padding-positions` find that. Toys are not large models, 40 steps are few, and",
        "the trainings were chosen by hand.",
        "",
        '<a id="an-engine-that-is-one-sync-late"></a>',
        "",
        "## An engine that is one sync late",
        "",
        "Trainings whose syncs send the weights of the sync before. The probe names it in "
        f"{named} of {len(late)}, from the",
        "second step on. In the others an update is smaller than the rounding of bf16 weights: a healthy engine has the same",
        "weights, and the probe answers `cannot tell`.",
        "",
        *csv_next_to_page("false_alarms.csv"),
        "",
    ]


def _counted(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in verdicts.items())


NAMES = {one.words(): one for one in HEALTHY}
LATE = {f"one sync late: {one.words()}": one for one in LAGS}


def result(steps: str, *parts: str, out: Path | None = None) -> dict[str, dict]:
    """Train what has one of `parts` in its name, and return the rows by name; what `out` holds is not trained again."""
    found = {}
    for name, one in (NAMES | LATE).items():
        if not any(part in name for part in parts):
            continue
        rows = read_json(out, {}).get("rows", {}) if out else {}
        if rows.get(name, {}).get("steps") != int(steps):
            rows[name] = train(one, int(steps)) | {"environment": about()}
            gc.collect()  # a trainer is a circle of references
            print(name, json.dumps(jsonable(rows[name])), flush=True)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, {"rows": rows})
        found[name] = rows[name]
    return found


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # weights are loaded within the process
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, value)
    options = parser(__doc__, steps=40)
    options.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="parts of names")
    args = options.parse_args()
    use_one_thread()
    result(args.steps, *args.only, out=args.out)


if __name__ == "__main__":
    run_main(main)
