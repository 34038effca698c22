"""What the helpers cost at the documented shape: Qwen2-0.5B (24 layers, vocabulary 151,936), random weights made here.

    python -m benchmarks.cost.documented_shape [--rounds 2] [--only PART ...] [--out FOLDER]

Every number is of a process of its own, stock and ours in turns; seconds are of the processor, on one thread, peaks of the
whole process. One fp32 step of the documented example (8 x 256 tokens with Adam and a reference model) takes 18.9 GB: here rows
are fewer and shorter and the optimizer is SGD, so that 12 GiB do. Started again it goes on.
"""

import argparse
import cProfile
import functools
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from scipy.stats import binom

from benchmarks.cost.stop_cost import model_folder
from benchmarks.record import ROOT, Results, need_room, parser, peak_gib, run_main
from workbench.errors import RunError
from workbench.training.recording import quiet_libraries

ROWS, TOKENS, STEPS = 2, 16, 8  # the first steps of a process are slow: the median of seven
FOLDER = ROOT / "build" / "measured" / "qwen2-0.5b"
TEXTS = [[(7 * n + 13 * k) % 1000 + 5 for k in range(length)] for n, length in enumerate((6, 9, 12, 16))]


def load(folder: Path):
    """The model in fp32, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def timed(function: Callable, *args, **kwargs):
    """What a call returns, and its processor seconds."""
    began = time.process_time()
    result = function(*args, **kwargs)
    return result, time.process_time() - began


def grpo_steps(model, tokenizer, ours: bool, between: Callable = lambda: None, **sizes) -> list[float]:
    """Processor seconds of each GRPO step after the first, recorded where it is ours; `between` runs uncounted after each."""
    import trl
    from transformers import PrinterCallback, TrainerCallback

    from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe
    from workbench.training.grpo import GRPOTrainer
    from workbench.training.rewards import length_reward

    seconds, began = [], None

    class Clock(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            nonlocal began
            if began is not None:
                seconds.append(time.process_time() - began)
            between()
            began = time.process_time()

    sizes = {"max_steps": STEPS, "max_completion_length": TOKENS, "num_generations": ROWS} | sizes
    recipe = make_recipe("shape", dataset="starter", per_device_train_batch_size=sizes["num_generations"], **sizes)
    with tempfile.TemporaryDirectory() as scratch:
        args = grpo_config(recipe, scratch, save_strategy="no", optim="sgd", beta=0.0)
        cls, options = (GRPOTrainer, {"record_dir": Path(scratch) / "run"}) if ours else (trl.GRPOTrainer, {})
        data = load_prompts("starter")
        trainer = cls(model, length_reward(), args, train_dataset=data, processing_class=tokenizer, **options)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Clock())
        trainer.train()
    return seconds


def grpo_step(folder: Path, ours: bool, **sizes) -> dict:
    """Median processor seconds of a GRPO step: a process that has but one of the two, for its peak."""
    return {"seconds": statistics.median(grpo_steps(*load(folder), ours, **sizes))}


def grpo_in_turns(folder: Path, pairs: int = 12, **sizes) -> dict:
    """A step of stock, a step of ours and so on in one process, and what a profile of ours says.

    Steps of two processes, or of two trainings one after the other, differ by tens of per cent: by what else the machine does,
    and by where in memory the weights lie. These are neighbours in time, of two models with the same weights in the same place.
    The interval is of the median of the pairs, 95%, by their ranks.
    """
    model, tokenizer = load(folder)
    twin = type(model)(model.config)
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
            return grpo_steps(twin if ours else model, tokenizer, ours, hand_over, **({"max_steps": pairs + 1} | sizes))
        finally:
            ended[ours] = True
            may_go[not ours].release()

    with ThreadPoolExecutor(2) as pool:
        stock, ours = pool.map(steps, (False, True))
    ratios = sorted(b / a for a, b in zip(stock, ours, strict=True))
    rank = max(int(binom.ppf(0.025, len(ratios), 0.5)) - 1, 0)
    profile = cProfile.Profile()
    seconds = profile.runcall(grpo_steps, twin, tokenizer, True, **({"max_steps": 4} | sizes))
    own = own_seconds(profile) / (len(seconds) + 1)
    return {
        "seconds": statistics.median(ours),
        "time, ours over stock": statistics.median(ratios),
        "interval": [ratios[rank], ratios[-1 - rank]],
        "pairs": [round(b / a, 3) for a, b in zip(stock, ours, strict=True)],
        "own work, s a step": own,
        "own work, share of a step": own / statistics.median(seconds),
    }


def own_seconds(profile: cProfile.Profile) -> float:
    """Of a profile, the seconds in the workbench's functions and in what they call, but for TRL's and transformers' own.

    With what the profile itself costs, which is most where functions are many and small, as ours are: not less than the truth.
    """
    ours = f"{ROOT / 'workbench'}{os.sep}"
    stock = ("/trl/", "/transformers/", "/torch/utils/_contextlib.py")  # the last only passes calls on
    total = 0.0
    for (file, _, _), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():
        if file.startswith(ours):
            total += own
        elif not any(part in file for part in stock):
            total += sum(whole for (caller, _, _), (_, _, _, whole) in callers.items() if caller.startswith(ours))
    return total


def weights(folder: Path) -> dict:
    """Nothing but the weights: the peak that the others are compared with."""
    model, _ = load(folder)
    ids = torch.tensor([TEXTS[0]])
    with torch.no_grad():
        model(ids)
    return {"seconds": 0.0}


def logprobs(folder: Path, ours: bool) -> dict:
    """Log-probs of 4 x 256 tokens: ours, or logits and log-softmax at once."""
    from workbench.consistency.padding import pad_batch, token_logprobs

    model, _ = load(folder)
    batch = pad_batch([(text * 50)[: 256 - n] for n, text in enumerate(TEXTS)], 0)

    @torch.no_grad()
    def stock():
        logits = model(**batch).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, batch["input_ids"][:, 1:].unsqueeze(-1))

    return {"seconds": timed(token_logprobs, model, batch)[1] if ours else timed(stock)[1]}


def padding(folder: Path) -> dict:
    """`padding_report` of four texts of 6 to 16 tokens in fp32 and bf16."""
    from workbench.diagnostics.padding_report import padding_report

    model, _ = load(folder)
    report, seconds = timed(padding_report, model, None, TEXTS, attentions=("sdpa",))
    return {"seconds": seconds, "kind": report.kind}


def rollouts(folder: Path, ours: bool, rows: int = 32, tokens: int = 512) -> dict:
    """32 x 512 tokens sampled: ours with log-probs and stops watched, or transformers' `generate` alone."""
    from workbench.experiments.recipes import load_prompts
    from workbench.generation.sampling import Sampling, TransformersSampler, generate
    from workbench.generation.stops import StopSpec

    model, tokenizer = load(folder)
    prompt = load_prompts("starter")[0]["prompt"]
    if ours:
        sampling = Sampling(max_completion_length=tokens, num_generations=rows, seed=0)
        stops = StopSpec(stop=("</never>",), ignore_eos=True)
        _, seconds = timed(generate, TransformersSampler(model, tokenizer), [prompt], stops=stops, sampling=sampling)
    else:
        inputs = tokenizer([prompt] * rows, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        how = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True, "top_k": 0}
        _, seconds = timed(torch.no_grad()(model.generate), **inputs, **how)
    return {"seconds": seconds}


def mismatch(folder: Path) -> dict:
    """`mismatch_report` of 2 x 16 sampled tokens, and the seconds of sampling them."""
    from workbench.diagnostics.mismatch import mismatch_report_of
    from workbench.experiments.recipes import load_prompts
    from workbench.generation.sampling import Sampling, TransformersSampler, generate

    model, tokenizer = load(folder)
    sampling = Sampling(max_completion_length=TOKENS, num_generations=ROWS, seed=0)
    rows, sampled = timed(
        generate, TransformersSampler(model, tokenizer), [load_prompts("starter")[0]["prompt"]], sampling=sampling
    )
    report, seconds = timed(mismatch_report_of, model, rows)
    return {"seconds": seconds, "sampling s": sampled, "verdict": report.verdict}


def recorder(folder: Path, rows: int = 1000, tokens: int = 2048) -> dict:
    """A step's 1,000 completions of 2,048 tokens recorded, the median of five steps."""
    from transformers import AutoTokenizer

    from workbench.training.recording import RunRecorder

    tokenizer = AutoTokenizer.from_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, len(tokenizer), (rows, tokens), generator=generator).tolist()
    texts = [tokenizer.decode(row) for row in ids]
    columns = {"prompt": ["a prompt of a few words"] * rows, "completion": texts, "finish_reason": ["length"] * rows}
    columns |= {"trl_finish_reason": ["length"] * rows, "completion_tokens": [tokens] * rows, "reward": [0.5] * rows}
    with tempfile.TemporaryDirectory() as scratch:
        made = RunRecorder(scratch)
        steps = [timed(made.add_completions, step, columns | {"advantage": [0.1] * rows})[1] for step in range(1, 6)]
        size = sum(p.stat().st_size for p in Path(scratch).rglob("*.jsonl")) / 5 / 2**20
    seconds, joined = statistics.median(steps), 0.0  # nothing is done at the end any more
    shortest = 100 * (seconds + joined / 5)
    return {
        "seconds": seconds,
        "joining s a step": joined / 5,
        "MiB a step": size,
        "1% of a step of at least s": shortest,
    }


PARTS: dict[str, Callable] = {
    "recorder": recorder,
    "weights": weights,
    "GRPO step, stock": functools.partial(grpo_step, ours=False),
    "GRPO step, ours": functools.partial(grpo_step, ours=True),
    "GRPO step, in turns": grpo_in_turns,
    "padding_report": padding,
    "log-probs, stock": functools.partial(logprobs, ours=False),
    "log-probs, ours": functools.partial(logprobs, ours=True),
    "mismatch_report": mismatch,
    "rollouts, stock": functools.partial(rollouts, ours=False),
    "rollouts, ours": functools.partial(rollouts, ours=True),
}


def in_a_process(part: str, folder: Path) -> dict:
    """What a part measures, with the peak memory of its process.

    Raises:
        RunError: it failed; the message ends in its last line.
    """
    need_room(part, memory=6)
    # Seconds in turns are of memory that the process keeps: to give it back and get it again takes as long as luck has it.
    keeps = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.cost.documented_shape", "--part", part, "--model", str(folder)],
        env=os.environ | (keeps if part == "GRPO step, in turns" else {}),
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise RunError(f"{part}: {(made.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(made.stdout.splitlines()[-1])


def main() -> None:
    options = parser(__doc__, rounds=2, model=FOLDER)
    options.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    options.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    args = options.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    if args.part:
        print(json.dumps(PARTS[args.part](args.model) | {"peak GiB": round(peak_gib(), 3)}))
        return
    if not (args.model / "config.json").exists():
        need_room("the model", disk=3, folder=args.model)
        args.model.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(model_folder("qwen2-0.5b"), args.model)
    results = Results("cost.documented_shape", args.out)
    for n in range(args.rounds):
        for part in args.only:
            results.part(f"{part}, round {n + 1}", functools.partial(in_a_process, part, args.model))


if __name__ == "__main__":
    run_main(main)
