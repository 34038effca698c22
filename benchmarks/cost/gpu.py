"""What the workbench costs on a GPU, in one command of under 25 minutes.

    python -m benchmarks.cost.gpu [--gemma FOLDER] [--minutes 24] [--out FOLDER]

Needs torch, transformers, accelerate, peft, trl and datasets, not vLLM. In bf16: GRPO steps stock against ours at the shape
of Qwen2-0.5B (random weights made here) and on gemma-3-270m where `fetch_gemma` has made it; `padding_report` with
sdpa and flash attention where it is installed; the stop criterion over 64 and 256 rows of 2,048 tokens; a training in two
processes where there are two devices. Started again it goes on. Writes data/measured/cost/gpu.json, with the hardware's name;
without a GPU it says so and ends.
"""

import dataclasses
import functools
import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.cost.stop_cost import model_folder
from benchmarks.record import GEMMA, ROOT, Results, parser, run_main
from workbench.errors import MissingDependencyError
from workbench.training.recording import quiet_libraries

TEXTS = [[(7 * n + 13 * k) % 900 + 5 for k in range(length)] for n, length in enumerate((24, 80, 160, 320))]


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the measurements are: the documented sizes on a GPU, tiny ones where only the code is tried."""

    device: str = "cuda"
    dtype: str = "bfloat16"
    rows: int = 8
    tokens: int = 256
    steps: int = 6
    stop_rows: tuple[int, ...] = (64, 256)
    stop_tokens: int = 2048
    texts: int = 4


TINY = Size("cpu", "float32", 4, 8, 2, (2, 4), 16, 2)


def require_gpu() -> str:
    """The hardware's name.

    Raises:
        MissingDependencyError: torch sees no GPU.
    """
    if not torch.cuda.is_available():
        raise MissingDependencyError("not run: no GPU: torch sees no CUDA device here; nothing was measured or written")
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"


class Meter:
    """Seconds and peak device memory of a block."""

    def __init__(self, size: Size):
        self._on_gpu = size.device == "cuda"

    def __enter__(self):
        gc.collect()
        if self._on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error):
        if self._on_gpu:
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self._began
        self.peak_gib = torch.cuda.max_memory_allocated() / 2**30 if self._on_gpu else 0.0


def grpo_steps(folder: str, size: Size, ours: bool) -> dict:
    """Seconds of each GRPO step after the first, and peak memory, of a training of its own."""
    import trl
    from transformers import PrinterCallback, TrainerCallback

    from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe
    from workbench.training.grpo import GRPOTrainer
    from workbench.training.rewards import length_reward

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            if size.device == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    recipe = make_recipe(
        folder, dataset="starter", max_steps=size.steps, num_generations=size.rows,
        per_device_train_batch_size=size.rows, max_completion_length=size.tokens,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch, Meter(size) as meter:
        precision = {"bf16": True} if size.dtype == "bfloat16" else {}
        config = grpo_config(recipe, scratch, save_strategy="no", model_init_kwargs={"dtype": size.dtype}, **precision)
        cls, options = (GRPOTrainer, {"record_dir": Path(scratch) / "run"}) if ours else (trl.GRPOTrainer, {})
        trainer = cls(folder, length_reward(), config, train_dataset=load_prompts("starter"), **options)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Clock())
        trainer.train()
    seconds = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return {"seconds": seconds, "peak GiB": meter.peak_gib}


def grpo(folder: str, size: Size) -> dict:
    """Stock and ours in turns: stock, ours, ours, stock."""
    turns = [(ours, grpo_steps(folder, size, ours)) for ours in (False, True, True, False)]
    found = {}
    for name, wanted in (("stock", False), ("ours", True)):
        runs = [run for ours, run in turns if ours == wanted]
        seconds = statistics.median(itertools.chain(*(run["seconds"] for run in runs)))
        found[name] = {"seconds a step": seconds, "peak GiB": max(run["peak GiB"] for run in runs)}
    stock, ours = found["stock"], found["ours"]
    found["time, ours over stock"] = ours["seconds a step"] / stock["seconds a step"]
    found["memory, ours over stock"] = ours["peak GiB"] / stock["peak GiB"] if stock["peak GiB"] else None
    return found


def load(folder: str, size: Size):
    """The model on the device, in its dtype."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, size.dtype)).to(size.device)


def padding(folder: str, size: Size) -> dict:
    """`padding_report` in the dtype, with every kernel that is installed: verdict, seconds, memory beyond the weights."""
    from workbench.diagnostics.padding_report import padding_report

    model = load(folder, size)
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**30
    with Meter(size) as meter:
        report = padding_report(
            model, None, TEXTS[: size.texts], dtypes=(size.dtype,), attentions=("sdpa", "flash_attention_2")
        )
    worst = report.rows.query("layout == 'padded'").groupby("attention")["max |Δ log-prob|"].max()
    found = {"verdict": report.verdict, "worst by kernel": worst.to_dict(), "notes": list(report.notes)}
    return found | {"seconds": meter.seconds, "weights GiB": weights, "peak GiB": meter.peak_gib}


def stop_cost(folder: str, size: Size, rows: int) -> dict:
    """`generate` to the limit with a stop string that never comes, and without one, in turns."""
    from transformers import AutoTokenizer, GenerationConfig

    from workbench.experiments.recipes import load_prompts
    from workbench.generation.stops import StopRule, StopSpec

    model, tokenizer = load(folder, size), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer([load_prompts("starter")[0]["prompt"]] * rows, return_tensors="pt")["input_ids"].to(size.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    specs = {"without": StopSpec.never(), "with": StopSpec(stop=("</never>",), ignore_eos=True)}
    seconds: dict[str, list[float]] = {name: [] for name in specs}
    for name in ("without", "with", "with", "without"):
        rule = StopRule(specs[name], tokenizer, model.generation_config, size.stop_tokens)
        config = GenerationConfig(max_new_tokens=size.stop_tokens, do_sample=True, top_k=0)
        with Meter(size) as meter, torch.no_grad():
            made = rule.generate(model, model.generate, config, **inputs)
        seconds[name].append(meter.seconds)
    medians = {f"{name} s": statistics.median(values) for name, values in seconds.items()}
    return medians | {
        "tokens a row": made.shape[1] - ids.shape[1],
        "over": medians["with s"] / medians["without s"] - 1,
    }


def two_processes(folder: str, size: Size) -> dict:
    """The documented example in two processes, one a device."""
    if torch.cuda.device_count() < 2:
        return {"not run": f"{torch.cuda.device_count()} device"}
    with tempfile.TemporaryDirectory() as scratch:
        fields = {"model": folder, "dataset": "starter", "max_steps": 3, "max_completion_length": size.tokens}
        options = list(itertools.chain(*(("-p", f"{name}={value}") for name, value in fields.items())))
        launch = [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--num_processes",
            "2",
            "-m",
            "workbench.experiments.instruments",
        ]
        began = time.perf_counter()
        made = subprocess.run(
            [*launch, "--out", scratch, *options], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        steps = len((Path(scratch) / "metrics.jsonl").read_text().splitlines()) if not made.returncode else 0
    failed = {"failed": made.stderr.strip().splitlines()[-1:]} if made.returncode else {}
    return {"seconds": time.perf_counter() - began, "steps logged": steps, **failed}


def parts(folders: dict[str, str], size: Size) -> dict[str, Callable[[], dict]]:
    """Name -> what measures it, the most telling first."""
    found: dict[str, Callable[[], dict]] = {}
    for name, folder in folders.items():
        found[f"GRPO step, {name}"] = functools.partial(grpo, folder, size)
        found[f"padding_report, {name}"] = functools.partial(padding, folder, size)
    first = next(iter(folders.values()))
    for rows in size.stop_rows:
        found[f"stop criterion, {rows} x {size.stop_tokens}"] = functools.partial(stop_cost, first, size, rows)
    found["two processes"] = functools.partial(two_processes, first, size)
    return found


def measure(folders: dict[str, str], size: Size, results: Results, minutes: float = 24) -> None:
    """Measure all parts that are not there yet, as long as there is time; one that fails says why and the next goes on."""
    began = time.monotonic()
    for name, part in parts(folders, size).items():
        if time.monotonic() - began > minutes * 60 * 0.8:
            print(
                f"{name}: not run: less than a fifth of {minutes:g} minutes left; the same command goes on", flush=True
            )
            continue
        try:
            results.part(name, part)
        except (RuntimeError, subprocess.TimeoutExpired) as error:  # no memory left, a kernel that is missing
            print(f"{name}: failed: {str(error).splitlines()[0]}", flush=True)


def main() -> None:
    args = parser(__doc__, gemma=GEMMA, minutes=24.0).parse_args()
    hardware = require_gpu()
    quiet_libraries()
    results = Results("cost.gpu", args.out)
    results.value["hardware"] = hardware
    folders = {"Qwen2-0.5B's shape": model_folder("qwen2-0.5b")}
    if (args.gemma / "config.json").is_file():
        folders["gemma-3-270m"] = str(args.gemma)
    print(f"{hardware}: {', '.join(folders)}", flush=True)
    measure(folders, Size(), results, args.minutes)


if __name__ == "__main__":
    run_main(main)
