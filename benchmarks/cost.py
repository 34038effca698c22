"""What things cost: a row for each, measured in pairs with the plain way within one process; figures are medians of the pairs.

    python -m benchmarks.cost [--only ROW ...] [--model starter] [--steps 40] [--repeats 5] [--rows 32] [--tokens 64]
                              [--prompts 1000000] [--out FILE.json]

`--model` is a folder, a name of the workbench, or `qwen2-0.5b`: that shape with random weights. `--rows` are the completions of
a step, of at most `--tokens`. Seconds are the processor's on one thread, so that other load does not count, and those on the
wall where there is a GPU. The row `not stopping` needs the last TRL with PPO (PYTHONPATH=.venv/lanes/trl-1.12.0), `sampler
probe` needs vLLM. In a file that exists the rows that were measured are replaced. Each step
has its seed, and nothing learns but with the probe, so that both ways sample alike.
"""

import argparse
import copy
import ctypes
import functools
import gc
import importlib
import json
import os
import random
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import torch
import trl
from scipy.stats import binom
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PrinterCallback,
    TrainerCallback,
)

from tools.record import about, parser, run_main, use_one_thread
from workbench.errors import MissingDependencyError
from workbench.experiments.recipes import grpo_config, load_prompts, lora_fields, make_recipe, resolve_model
from workbench.experiments.train import ppo_config, random_heads
from workbench.experiments.vllm_server import sharing_engines
from workbench.generation.stops import StopRule, StopSpec
from workbench.lab.batch.audit import write_audit
from workbench.runs.files import jsonable, read_json, write_json
from workbench.runs.run import Run
from workbench.training.duplicate_report import duplicate_report
from workbench.training.groups import check_groups
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward
from workbench.training.rows import has_gpu
from workbench.training.sync_on_cpu import install_cpu_sync
from workbench.watch import check_step
from workbench.watch.attach import attach_watch
from workbench.watch.padding_monitor import attach_padding_monitor
from workbench.watch.sampler_probe import attach_sampler_probe


def model_folder(name: str) -> str:
    """Return what `from_pretrained` takes; for `qwen2-0.5b` a folder of random weights with the starter's tokenizer."""
    if name != "qwen2-0.5b":
        return resolve_model(name)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter"))
    shape = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    shape |= {"num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True}
    shape |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: str):
    """Load the model, in bf16 on a GPU and fp32 elsewhere, and the tokenizer."""
    dtype, device = ("bfloat16", "cuda") if has_gpu() else ("float32", "cpu")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device), AutoTokenizer.from_pretrained(folder)


# --- timing -----------------------------------------------------------------------------------------------------------------


def now() -> float:
    """Return this process's own seconds; on a GPU those on the wall, when what was asked for is done."""
    if has_gpu():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def in_turns(repeats: int, *ways: Callable[[], dict]) -> list[tuple[dict, ...]]:
    """Return what each way gives, `repeats` times, each time in the opposite order."""
    rounds = []
    for n in range(repeats):
        order = range(len(ways)) if n % 2 else reversed(range(len(ways)))
        made = {place: ways[place]() for place in order}
        rounds.append(tuple(made[place] for place in range(len(ways))))
    return rounds


def timed_method(owner: object, name: str) -> list[float]:
    """Replace a method by itself with a clock; returns the list that its calls' seconds go to."""
    plain, seconds = getattr(owner, name), []

    def clocked(*args, **kwargs):
        began = now()
        result = plain(*args, **kwargs)
        seconds.append(now() - began)
        return result

    setattr(owner, name, clocked)
    return seconds


class Clock(TrainerCallback):
    """Seconds of each step after the first; `between` runs uncounted after each."""

    def __init__(self, between: Callable[[], None] = lambda: None):
        self.seconds: list[float] = []
        self._between, self._began = between, None

    def on_step_begin(self, args, state, control, **_):
        torch.manual_seed(state.global_step)

    def on_step_end(self, *_, **__):
        if self._began is not None:
            self.seconds.append(now() - self._began)
        self._between()
        self._began = now()


def train(args, folder: str, cls=trl.GRPOTrainer, *, attach=None, between=lambda: None, learns=False, **given) -> dict:
    """Train GRPO for `--steps` steps.

    Args:
        folder: of the model; `given` may hold the model itself.
        attach: attaches something to the trainer; what it returns is in the result as `attached`.
        learns: with the usual learning rate.

    Returns:
        `seconds` of all, `steps` the seconds of each step after the first, `attached`.
    """
    sizes = {"max_steps": args.steps, "max_completion_length": args.tokens, "num_generations": min(8, args.rows)}
    sizes |= {"per_device_train_batch_size": args.rows, "backend": given.pop("backend", "transformers")}
    recipe = make_recipe("starter", **sizes)
    with tempfile.TemporaryDirectory() as scratch:
        fields = {} if learns else {"learning_rate": 1e-12, "optim": "sgd"}
        config = grpo_config(recipe, scratch, save_strategy="no", **fields)
        own = {"record_dir": Path(scratch) / "run"} if cls is GRPOTrainer else {}
        model, data = given.pop("model", folder), load_prompts("starter")
        trainer = cls(model, length_reward(), config, train_dataset=data, **(own | given))
        if recipe.backend == "vllm":
            install_cpu_sync(trainer.vllm_generation, config.output_dir)
        trainer.remove_callback(PrinterCallback)
        attached, clock = attach(trainer) if attach else None, Clock(between)
        trainer.add_callback(clock)
        began = now()
        trainer.train()
        return {"seconds": now() - began, "steps": clock.seconds, "attached": attached}


def observed(args, folder: str, attach: Callable, cls=trl.GRPOTrainer, **given) -> tuple[dict, list]:
    """Train with a callback and without, in turns; `attach` returns the callback, whose work is in its `guarded`.

    Returns:
        The numbers, and the callback of each training.
    """

    def timed(trainer):
        callback = attach(trainer)
        return callback, timed_method(callback, "guarded")

    train(argparse.Namespace(**vars(args) | {"steps": 2}), folder, cls, attach=timed, **given)  # loads libraries
    ways = (functools.partial(train, args, folder, cls, attach=how, **given) for how in (timed, None))
    pairs = in_turns(args.repeats, *ways)
    calls = [one["attached"][1] for one, _ in pairs]
    share = [sum(spent) / (one["seconds"] - sum(spent)) for spent, (one, _) in zip(calls, pairs, strict=True)]
    steps = [[statistics.median(one["steps"]) for one in pair] for pair in pairs]
    found = {
        "steps": args.steps,
        "median step, s": statistics.median(plain for _, plain in steps),
        "calls of a training": statistics.median(map(len, calls)),
        "s a call": statistics.median(sum(spent) / len(spent) for spent in calls),
        "share of time, direct": statistics.median(share),
        "share of a step, paired": statistics.median(one / plain - 1 for one, plain in steps),
    }
    says = (
        f"{found['share of time, direct']:.1%} of the time of {args.steps} steps of {found['median step, s']:.2f} s, in "
        f"{found['calls of a training']:g} calls of {1000 * found['s a call']:.1f} ms; "
        f"step by step, in pairs, {found['share of a step, paired']:+.1%}"
    )
    return found | {"says": says}, [one["attached"][0] for one, _ in pairs]


# --- the rows ---------------------------------------------------------------------------------------------------------------


def step(args, folder: str) -> dict:
    """Measure a step of our trainer, recorded, over one of stock TRL's: their steps alternate within one process.

    Steps of two processes, or of two trainings one after the other, differ by tens of per cent. These are neighbours in time,
    of two models with the same weights in the same place. The interval is of the median of the pairs, 95%, by their ranks.
    """
    model, tokenizer = load(folder)
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict(), assign=True)
    twin.tie_weights()
    may_go, ended = (threading.Semaphore(1), threading.Semaphore(0)), [False, False]

    def steps(ours: bool) -> list[float]:
        def hand_over() -> None:
            if not ended[not ours]:
                may_go[not ours].release()
                may_go[ours].acquire()

        may_go[ours].acquire()
        try:
            own = {"model": twin if ours else model, "processing_class": tokenizer}
            return train(args, folder, GRPOTrainer if ours else trl.GRPOTrainer, between=hand_over, **own)["steps"]
        finally:
            ended[ours] = True
            may_go[not ours].release()

    with ThreadPoolExecutor(2) as pool:
        stock, ours = pool.map(steps, (False, True))
    ratios = sorted(b / a for a, b in zip(stock, ours, strict=True))
    rank = max(int(binom.ppf(0.025, len(ratios), 0.5)) - 1, 0)
    middle, low, high = statistics.median(ratios), ratios[rank], ratios[-1 - rank]
    says = f"{middle:.3f} of the time of stock's step (95%: {low:.3f} to {high:.3f}; {len(ratios)} pairs of steps"
    says += f", {statistics.median(stock):.2f} s each)"
    return {"seconds": statistics.median(ours), "ours over stock": middle, "interval": [low, high], "says": says}


def sampler_probe(args, folder: str) -> dict:
    """Measure `attach_sampler_probe` at every step of stock TRL on vLLM in process; a fault that it names is a false alarm."""
    if not find_spec("vllm"):
        raise MissingDependencyError("vLLM is not installed")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # as TRL sets it: weights are synced within the process
    with sharing_engines():
        found, probes = observed(
            args, folder, functools.partial(attach_sampler_probe, every=1), backend="vllm", learns=True
        )
    verdicts = [verdict for probe in probes for _, verdict in probe.verdicts]
    found |= {
        "probes": len(verdicts),
        "faults": sum(verdict.fault for verdict in verdicts),
        "cannot tell": sum(verdict.cause == "cannot tell" for verdict in verdicts),
        "largest difference": max(verdict.difference for verdict in verdicts),
    }
    found["says"] += f"; {found['probes']} probes of clean steps: {found['faults']} faults named, "
    found["says"] += f"{found['cannot tell']} cannot tell, {found['largest difference']:.1e} nats at most"
    return found


SMALL_GB = 0.3  # below which peaks are not compared


class PeakMemory:
    """Bytes that this process, or its GPU, takes at most within a block, above what it had when this was made."""

    def __init__(self):
        self._before, self.largest = self._taken("VmRSS"), 0

    def _taken(self, what: str) -> int:
        if has_gpu():
            return torch.cuda.memory_allocated() if what == "VmRSS" else torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)[1])

    def __enter__(self):
        gc.collect()
        if has_gpu():
            torch.cuda.reset_peak_memory_stats()
        else:  # free what malloc keeps, and let the peak begin anew
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(self, *_):
        self.largest = self._taken("VmHWM") - self._before


class CheckedSteps(TrainerCallback):
    """Runs `check_step` before each step but the first; seconds and peak memory of both, in pairs."""

    def __init__(self):
        self.trainer, self.memory, self.pairs = None, PeakMemory(), []
        self._check: dict | None = None

    def on_step_begin(self, args, state, control, **_):
        torch.manual_seed(state.global_step)
        if state.global_step == 0:
            return
        with self.memory:
            began = now()
            report = check_step(self.trainer)
            self._check = {"seconds": now() - began, "bytes": 0, "different": report.first is not None}
        self._check["bytes"] = self.memory.largest
        self.memory.__enter__()
        self._began = now()

    def on_step_end(self, *_, **__):
        if self._check is None:
            return
        seconds = now() - self._began
        self.memory.__exit__()
        self.pairs.append((self._check, {"seconds": seconds, "bytes": self.memory.largest}))


# What a check does beyond its step: module, and the function or method that does it. The step itself holds the first one.
PARTS = {
    "the update computed": ("workbench.training.record_step", "step_and_undo"),
    "each row alone": ("workbench.watch.judge", "Judge._score_and_differentiate"),
    "the loss asked": ("workbench.watch.judge", "ask_off_policy"),
    "weights moved": ("workbench.watch.judge", "check_by_moving"),
}


def timed_parts() -> dict[str, list[float]]:
    """Put a clock on each part of a check; its name, and the list that the seconds of its calls go to."""
    clocks = {}
    for name, (module, path) in PARTS.items():
        owner: object = importlib.import_module(module)
        *outer, method = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        clocks[name] = timed_method(owner, method)
    return clocks


def checked_steps(folder: str, model: str, rank: int, repeats: int) -> list[tuple[dict, dict]]:
    """Train stock TRL with 16 completions of at most 16 tokens in two batches; checks and the steps that follow, in pairs."""
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_completion_length": 16}
    recipe = make_recipe(model, max_steps=repeats + 1, lora_rank=rank, **sizes)
    checked, data = CheckedSteps(), load_prompts(recipe.dataset)
    with tempfile.TemporaryDirectory() as scratch:
        config = grpo_config(recipe, scratch, save_strategy="no")
        own = lora_fields(recipe, {})
        checked.trainer = trl.GRPOTrainer(folder, length_reward(), config, train_dataset=data, **own)
        checked.trainer.remove_callback(PrinterCallback)
        checked.trainer.add_callback(checked)
        checked.trainer.train()
    checked.trainer = None
    gc.collect()
    return checked.pairs


def step_check(args, folder: str) -> dict:
    """Measure `check_step` over the training step that follows it.

    A check of the starter loads the libraries before, and one step without a check makes the optimizer's state. So every pair
    counts, which a large model needs: a pair of SmolLM2 takes minutes.
    """
    checked_steps(resolve_model("starter"), "starter", rank=0, repeats=1)
    found: dict = {}
    clocks = timed_parts()
    for way, rank in (("all weights", 0), ("LoRA", 16)):
        for seconds in clocks.values():
            seconds.clear()
        pairs = checked_steps(folder, args.model, rank, args.repeats)
        found[way] = {
            "step, s": statistics.median(step["seconds"] for _, step in pairs),
            "step, GB": statistics.median(step["bytes"] for _, step in pairs) / 1e9,
            "times the seconds": statistics.median(check["seconds"] / step["seconds"] for check, step in pairs),
            "times the memory": statistics.median(check["bytes"] / step["bytes"] for check, step in pairs),
            "each, times the seconds": [check["seconds"] / step["seconds"] for check, step in pairs],
            "parts, share of the check": {
                name: sum(seconds) / sum(check["seconds"] for check, _ in pairs) for name, seconds in clocks.items()
            },
            "different": sum(check["different"] for check, _ in pairs),
        }
    shown = []
    for way, one in found.items():  # what Python itself takes and gives back hides the tensors of a small model
        memory = f", {one['times the memory']:.2f} times its peak memory ({one['step, GB']:.1f} GB)"
        shown.append(f"{way}: {one['times the seconds']:.2f} times the seconds of a step ({one['step, s']:.2f} s)")
        shown[-1] += memory if one["step, GB"] > SMALL_GB else ", in too little memory to compare"
    pairs = f"{args.repeats} pair{'s' if args.repeats > 1 else ''} each"
    return found | {"pairs": args.repeats, "says": f"{'; '.join(shown)}; {pairs}"}


def stops(args, folder: str) -> dict:
    """Measure `generate` to the limit with a stop string that never comes, over `generate` without one."""
    model, tokenizer = load(folder)
    ids = tokenizer([load_prompts("starter")[0]["prompt"]] * args.rows, return_tensors="pt")["input_ids"].to(
        model.device
    )
    config = GenerationConfig(max_new_tokens=args.tokens, do_sample=True, top_k=0)

    def generate(spec: StopSpec) -> dict:
        rule = StopRule(spec, tokenizer, model.generation_config, args.tokens)
        began = now()
        with torch.no_grad():
            made = rule.generate(model, model.generate, config, input_ids=ids, attention_mask=torch.ones_like(ids))
        return {"seconds": now() - began, "tokens": made.shape[1] - ids.shape[1]}

    specs = (StopSpec.never(), StopSpec(stop=("</never>",), ignore_eos=True))
    in_turns(1, *(functools.partial(generate, spec) for spec in specs))  # a warm-up
    pairs = in_turns(args.repeats, *(functools.partial(generate, spec) for spec in specs))
    more = statistics.median(watched["seconds"] / plain["seconds"] - 1 for plain, watched in pairs)
    says = f"{more:+.1%} time for {args.rows} x {pairs[0][0]['tokens']} tokens"
    return {"tokens": pairs[0][0]["tokens"], "share of time, paired": more, "says": says}


def not_stopping(args, folder: str) -> dict:
    """Measure a PPO update of TRL, which by default never stops, of TRL with `stop_token="eos"`, and of ours with both."""
    try:
        from trl.experimental.ppo import PPOTrainer as StockPPOTrainer

        from workbench.training.ppo import PPOTrainer
    except ImportError as error:
        raise MissingDependencyError(f"TRL {trl.__version__} has no PPO") from error
    tokenizer, updates = AutoTokenizer.from_pretrained(folder, padding_side="left"), 3
    prompts = load_prompts("starter").select(range(256))
    dataset = prompts.map(lambda row: tokenizer(row["prompt"]), remove_columns=prompts.column_names)
    recipe = make_recipe(
        "starter", max_steps=updates, per_device_train_batch_size=16, max_completion_length=args.tokens
    )

    def update(cls: type, own: dict | None = None, **fields) -> dict:
        policy, (value, reward) = AutoModelForCausalLM.from_pretrained(folder), random_heads(folder, 0)
        forwards: list[int] = []  # of one token: those of generation after the first
        policy.register_forward_pre_hook(
            lambda module, args, kwargs: forwards.append(kwargs["input_ids"].shape[1] == 1), with_kwargs=True
        )
        with tempfile.TemporaryDirectory() as scratch:
            config = ppo_config(recipe, Path(scratch), **fields)
            trainer = cls(config, tokenizer, policy, copy.deepcopy(policy), reward, dataset, value, **own or {})
            trainer.remove_callback(PrinterCallback)
            clock = Clock()
            trainer.add_callback(clock)
            trainer.train()
        return {"seconds": statistics.median(clock.seconds), "forward passes": sum(forwards) / updates + 1}

    ways = {
        "TRL": functools.partial(update, StockPPOTrainer),
        "TRL, stop_token": functools.partial(update, StockPPOTrainer, stop_token="eos"),
        "workbench, never": functools.partial(update, PPOTrainer, {"stops": StopSpec.never()}),
        "workbench": functools.partial(update, PPOTrainer),
    }
    rounds = in_turns(args.repeats, *ways.values())
    found = {}
    for name, made in zip(ways, zip(*rounds, strict=True), strict=True):
        found[name] = {key: statistics.median(one[key] for one in made) for key in made[0]}
    shown = (
        f"{name}: {one['seconds']:.1f} s, {one['forward passes']:.0f} forward passes" for name, one in found.items()
    )
    return found | {"limit": args.tokens, "says": f"an update at a limit of {args.tokens} tokens: {'; '.join(shown)}"}


def groups(args, folder: str) -> dict:
    """Measure `duplicate_report` on a file of prompts, and the check of a step's groups."""
    rng, words = random.Random(0), [f"word{n}" for n in range(2000)]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "prompts.jsonl"
        rows = ({"prompt": " ".join(rng.choices(words, k=rng.choice((1, 12, 20))))} for _ in range(args.prompts))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        began = now()
        duplicate_report(path, prompts_per_batch=32)
        report = now() - began
    prompts = [row["prompt"] for row in load_prompts("starter").select(range(args.rows // 8)) for _ in range(8)]
    began = now()
    for _ in range(1000):
        check_groups(prompts, 8)
    check = (now() - began) / 1000
    says = f"`duplicate_report` of {args.prompts:,} prompts: {report:.0f} s; "
    says += f"a check of {len(prompts)} rows: {1e6 * check:.0f} µs"
    return {"prompts": args.prompts, "report, s": report, "check, s": check, "says": says}


def run_audit(args, folder: str) -> dict:
    """Measure the audit of a run with one training, as the runner does it when the run ends."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(Path(scratch))
        train(args, folder, GRPOTrainer, record_dir=run.path)
        write_audit(run, {})  # loads libraries
        seconds = []
        for _ in range(args.repeats):
            began = now()
            write_audit(run, {})
            seconds.append(now() - began)
    took, rows = statistics.median(seconds), args.steps * args.rows
    says = f"{took:.2f} s for a training of {args.steps} steps and {rows:,} completions, once a run has ended"
    return {"steps": args.steps, "completions": rows, "seconds": took, "says": says}


ROWS: dict[str, Callable[[argparse.Namespace, str], dict]] = {
    "step": step,
    "watch": lambda args, folder: observed(args, folder, attach_watch)[0],  # on stock TRL
    "padding monitor": lambda args, folder: observed(args, folder, attach_padding_monitor, GRPOTrainer)[0],
    "check_step": step_check,
    "sampler probe": sampler_probe,
    "stops": stops,
    "not stopping": not_stopping,
    "groups": groups,
    "run audit": run_audit,
}


def measure(args) -> None:
    """Measure the rows that are asked for; one that needs what is missing gives its reason."""
    use_one_thread()
    folder = model_folder(args.model)
    for name in args.only:
        print(f"{name} ...", flush=True)
        try:
            row = ROWS[name](args, folder)
        except MissingDependencyError as error:
            print(f"not run: {error}")
            continue
        print(json.dumps(jsonable(row), indent=1), flush=True)
        if args.out:
            rows = read_json(args.out, {}).get("rows", {})
            rows[f"{name}; {Path(args.model).name}"] = row | {"environment": about()}
            write_json(args.out, {"rows": rows})


def main() -> None:
    options = parser(__doc__, model="starter", steps=40, repeats=5, rows=32, tokens=64, prompts=1_000_000)
    options.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    measure(options.parse_args())


if __name__ == "__main__":
    run_main(main)
