"""What one GPU says of this project in under eight minutes, with transformers as the back end (no vLLM).

    python -m benchmarks.gpu [--only PART ...] [--seconds 430] [--device cpu --tiny 1] [--out data/measured/gpu.json]

Parts, in the order of their worth:

- grid: healthy steps of stock TRL in many settings. Any `different` is a false alarm, apart from weights in bf16, whose
  updates are lost in rounding.
- faults: four faults, put into stock TRL. Each has a stage at which `check_step` should name it.
- cost: stock TRL, our trainer, and stock TRL with the watch, each twice in mirrored order: seconds and peak memory.
- itself: the log-probs of rows alone against those in a padded batch, by dtype and attention.
- moves: the share of the weights that one update moves, by dtype and learning rate.
- learn: the notebooks' task `search` for 80 steps.

Random weights in the shape of Qwen2-0.5B stand where the answer does not depend on what the weights know. Each part has a
limit of time and is written to `--out` when it ends, so a call that is cut leaves what it had.
"""

import dataclasses
import gc
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import trl
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

from benchmarks.check_step_grid import BASE, BF16, LORA, RECOMPUTED, cells, row_of
from benchmarks.false_alarms import few_letters
from tools.record import about, csv_next_to_page, csv_text, made_section, made_with, measured, parser, run_main
from workbench import GRPOTrainer, attach_watch, audit_run, check_step, exact_match_reward, length_reward
from workbench.experiments import make_recipe, train
from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.train import quiet_libraries
from workbench.runs.files import jsonable, load_metrics, read_json, write_json

QWEN2_05B = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
}


@dataclasses.dataclass
class Setup:
    """Where it runs, and how small."""

    device: str
    tiny: bool

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def shaped(self) -> str:
        """The folder of a model with random weights in the shape of Qwen2-0.5B, and the starter's tokenizer."""
        folder = Path(tempfile.gettempdir()) / ("workbench-tiny-shape" if self.tiny else "workbench-shape")
        if not (folder / "config.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter"))
            ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
            shape = TINY if self.tiny else QWEN2_05B
            torch.manual_seed(0)
            config = AutoConfig.for_model("qwen2", **shape, tie_word_embeddings=True, **ends)
            AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return str(folder)

    def build(self, cls: Any = None, model: str = "", weights: Any = torch.float32, **options: Any) -> Any:
        """A trainer of stock TRL, or of `cls`; `weights` is the dtype in which they are loaded, `bf16` is autocast."""
        fields = BASE | {"use_cpu": not self.on_gpu} | options
        kind, lora = fields.pop("trainer", "GRPO"), fields.pop("lora", None)
        stock, config = (trl.RLOOTrainer, trl.RLOOConfig) if kind == "RLOO" else (trl.GRPOTrainer, trl.GRPOConfig)
        more = {}
        if lora:
            from peft import LoraConfig

            more["peft_config"] = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        set_seed(0)
        path = model or resolve_model("starter")
        return (cls or stock)(
            AutoModelForCausalLM.from_pretrained(path, dtype=weights),
            [length_reward(40), few_letters],
            args=config(output_dir=tempfile.mkdtemp(), **fields),
            train_dataset=load_prompts("starter"),
            processing_class=AutoTokenizer.from_pretrained(path),
            **more,
        )

    def free(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak(self, reset: bool = False) -> float | None:
        """GiB of the GPU at the most, since the last reset."""
        if not self.on_gpu:
            return None
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return round(torch.cuda.max_memory_allocated() / 2**30, 3)


def grid(setup: Setup) -> Iterator[tuple[str, Any]]:
    healthy = {n: c for n, c in cells().items() if not c.get("use_vllm") and "processes" not in c}
    healthy["batch scaling, bf16"] = {"scale_rewards": "batch"} | BF16
    healthy["weights in bf16"] = {"weights": torch.bfloat16}
    healthy["weights in bf16, LoRA"] = {"weights": torch.bfloat16} | LORA
    shape = {"model": setup.shaped(), "max_completion_length": 64}
    healthy["0.5B shape"] = shape
    healthy["0.5B shape, bf16"] = shape | BF16
    healthy["0.5B shape, weights in bf16"] = shape | {"weights": torch.bfloat16}
    healthy["0.5B shape, bf16, recomputed, 64 tokens"] = shape | BF16 | RECOMPUTED
    if setup.tiny:
        healthy = dict(list(healthy.items())[::12])
    # The most different ones first: a call that is cut has then seen more kinds.
    for name in sorted(healthy, key=lambda name: (name.count(","), "0.5B" not in name)):
        began = time.monotonic()
        try:
            row = row_of(check_step(setup.build(**healthy[name])))
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"[:400]}
        yield name, row | {"seconds": round(time.monotonic() - began, 2)}
        setup.free()


class Twice(trl.GRPOTrainer):
    def _compute_loss(self, model: Any, inputs: Any):
        return 2 * super()._compute_loss(model, inputs)


class Shifted(trl.GRPOTrainer):
    def _calculate_rewards(self, *args: Any, **kwargs: Any):
        return torch.roll(super()._calculate_rewards(*args, **kwargs), 1, 0)


class Larger(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs: Any):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = output["advantages"] * 1.2
        return output


def faults(setup: Setup) -> Iterator[tuple[str, Any]]:
    planted = [
        ("sampled at half the temperature", None, "sampling"),
        ("loss twice", Twice, "loss"),
        ("rewards shifted by a row", Shifted, "rewards"),
        ("advantages times 1.2", Larger, "advantages"),
    ]
    for name, cls, stage in planted:
        for label, more in (("fp32", {}), ("bf16", {"bf16": True})):
            trainer = setup.build(cls=cls, temperature=0.7, per_device_train_batch_size=32, num_generations=8, **more)
            if cls is None:
                trainer.generation_config.temperature = 0.35
            first = check_step(trainer).first
            yield f"{name}, {label}", {"first": first.name if first else None, "planted at": stage}
            setup.free()


class Clock(transformers.TrainerCallback):
    """Seconds of each step."""

    def __init__(self, setup: Setup):
        self._setup, self.times = setup, list[float]()

    def on_step_begin(self, *args: Any, **kwargs: Any):
        self._setup.wait()
        self._start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any):
        self._setup.wait()
        self.times.append(time.perf_counter() - self._start)


def cost(setup: Setup) -> Iterator[tuple[str, Any]]:
    rows, tokens, steps = (4, 8, 3) if setup.tiny else (32, 64, 6)
    common = {
        "model": setup.shaped(),
        "bf16": setup.on_gpu,
        "per_device_train_batch_size": rows,
        "max_completion_length": tokens,
        "learning_rate": 1e-7,
    }

    def timed(cls: Any = None, watch: bool = False) -> tuple[list[float], float | None]:
        trainer, clock = setup.build(cls=cls, **common | {"max_steps": steps}), Clock(setup)
        trainer.add_callback(clock)
        if watch:
            attach_watch(trainer)
        setup.peak(reset=True)
        trainer.train()
        peak = setup.peak()
        del trainer
        setup.free()
        return clock.times[2:], peak  # the first steps warm up

    timed()  # kernels are chosen and loaded in the first training
    who = {"stock": {}, "ours": {"cls": GRPOTrainer}, "stock with the watch": {"watch": True}}
    seen: dict[str, list[float]] = {name: [] for name in who}
    for number, name in enumerate([*who, *reversed(who)]):
        times, peak = timed(**who[name])
        seen[name] += times
        yield f"{name}, {number}", {"seconds": [round(t, 4) for t in times], "peak GiB": peak}
    of_stock = statistics.median(seen["stock"])
    over = {name: round(statistics.median(times) / of_stock, 3) for name, times in seen.items()}
    yield "median over stock's", over | {"rows": rows, "tokens": tokens, "pairs": len(seen["stock"])}
    trainer = setup.build(**common)
    setup.peak(reset=True)
    setup.wait()
    start = time.perf_counter()
    check_step(trainer)
    setup.wait()
    yield "check_step", {"steps": round((time.perf_counter() - start) / of_stock, 2), "peak GiB": setup.peak()}


def itself(setup: Setup) -> Iterator[tuple[str, Any]]:
    path = setup.shaped()
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 24 if setup.tiny else 200, (8,), generator=generator).tolist()
    texts = [torch.randint(10, 2000, (length,), generator=generator) for length in lengths]
    width = max(lengths)
    batch = torch.stack([torch.nn.functional.pad(text, (width - len(text), 0)) for text in texts])
    mask = torch.stack([torch.nn.functional.pad(torch.ones_like(text), (width - len(text), 0)) for text in texts])

    def logps(model: Any, ids: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        ids, there = ids.to(setup.device), there.to(setup.device)
        positions = (there.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=there, position_ids=positions).logits.float()
        return logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]

    for dtype in (torch.float32, torch.bfloat16):
        for attention in ("eager", "sdpa"):
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=attention)
            model = model.to(setup.device).eval()
            together = logps(model, batch, mask)
            alone = [logps(model, text[None], torch.ones_like(text)[None])[0] for text in texts]
            away = torch.cat([row[width - len(t) :] - one for row, t, one in zip(together, texts, alone, strict=True)])
            ratio = away.double().exp()
            yield (
                f"{str(dtype).removeprefix('torch.')}, {attention}",
                {
                    "outside 0.9..1.1": float(((ratio < 0.9) | (ratio > 1.1)).double().mean()),
                    "largest nats": float(away.abs().max()),
                    "mean |nats|": float(away.abs().double().mean()),
                    "tokens": len(away),
                },
            )
            del model
            setup.free()


def moves(setup: Setup) -> Iterator[tuple[str, Any]]:
    for dtype in (torch.float32, torch.bfloat16):
        for rate in (1e-6, 1e-5, 1e-4):
            longer = {"max_completion_length": 64}  # of 16 random tokens often none is text, and all rewards are equal
            report = check_step(setup.build(model=setup.shaped(), weights=dtype, learning_rate=rate, **longer))
            stage = report["update"]
            name = f"{str(dtype).removeprefix('torch.')}, {rate:g}"
            yield name, {"verdict": stage.verdict, "cause": stage.cause}
            setup.free()


def learn(setup: Setup) -> Iterator[tuple[str, Any]]:
    steps = 4 if setup.tiny else 80
    for seed in range(1 if setup.tiny else 2):
        folder, began = Path(tempfile.mkdtemp()) / "run", time.monotonic()
        recipe = make_recipe("search", max_steps=steps, seed=seed)
        train(recipe, reward_funcs=[exact_match_reward("answer")], record_dir=folder)
        rewards = load_metrics(folder / "metrics.jsonl")["reward"].dropna().to_numpy()
        yield (
            f"seed {seed}",
            {
                "first ten": round(float(np.mean(rewards[:10])), 3),
                "last ten": round(float(np.mean(rewards[-10:])), 3),
                "seconds": round(time.monotonic() - began, 1),
                "audit": str(audit_run(folder)).splitlines()[0].partition(": ")[2],
            },
        )


PARTS: dict[str, tuple[Callable[[Setup], Iterator[tuple[str, Any]]], float]] = {  # and its limit in seconds
    "grid": (grid, 180),
    "faults": (faults, 60),
    "cost": (cost, 150),
    "itself": (itself, 40),
    "moves": (moves, 40),
    "learn": (learn, 60),
}


def _rows(part: str) -> dict[str, dict]:
    return {name: row for name, row in measured("gpu")[part].items() if isinstance(row, dict)}


def _spread(who: str) -> str:
    seconds = [
        second for name, row in _rows("cost").items() if name.startswith(f"{who}, ") for second in row["seconds"]
    ]
    return f"{who} {min(seconds):.1f} to {max(seconds):.1f} s"


def settings_csv() -> str:
    """The table of healthy settings."""
    lines = []
    for name, row in _rows("grid").items():
        verdicts = list(row["verdicts"].values())
        numbers = [str(verdicts.count(each)) for each in ("same", "rounding", "different", "cannot tell")]
        why = "; ".join(f"{stage}: {cause}" for stage, cause in row["why"].items())
        lines.append([name, *numbers, why])
    return csv_text(["setting", "same", "rounding", "different", "cannot tell", "why"], lines)


def page() -> Iterator[str]:
    """Make docs/evidence/gpu.md."""
    healthy, planted, costs = _rows("grid"), _rows("faults"), _rows("cost")
    different = {n: row for n, row in healthy.items() if "different" in row["verdicts"].values()}
    right = sum(row["first"] == row["planted at"] for row in planted.values())
    shapes = [row["verdicts"]["gradient"] for name, row in healthy.items() if name.startswith("0.5B shape")]
    shapes += [row["verdict"] for row in _rows("moves").values()]
    here = measured("gpu")["environment"]
    shape = costs["median over stock's"]
    peaks = sorted({f"{row['peak GiB']:.2f}" for row in costs.values() if row.get("seconds")})
    bf16 = [row["largest nats"] for name, row in _rows("itself").items() if name.startswith("bfloat16")]
    yield from (
        "# What has run on a GPU",
        "",
        f"One {here['gpu']}, {here['cores']} cores, with transformers as the back end. vLLM, several GPUs, several nodes and",
        "pretrained weights have not run on a GPU.",
        "",
        f"- `check_step` checked one healthy step of stock TRL in each of {len(healthy)} settings on the GPU's kernels.",
        f"  {len(different)} has a stage that is called different, and truly so: {', '.join(different)}, where rounding",
        "  loses most of the update. In the shape of Qwen2-0.5B with random weights "
        f"{shapes.count('cannot tell')} of {len(shapes)} steps had equal",
        "  rewards, so their gradient could not be judged.",
        f"- Of {len(planted)} planted faults (four, in fp32 and bf16) {right} were named at their stage.",
        f"- Seconds of a step ({shape['rows']} completions of {shape['tokens']} tokens, two trainings each):",
        f"  {_spread('stock')}, {_spread('ours')},",
        f"  {_spread('stock with the watch')}. They overlap, so no difference is shown. All took {' and '.join(peaks)} GiB at",
        f"  the most. `check_step` took as long as {costs['check_step']['steps']:.0f} steps, with "
        f"{costs['check_step']['peak GiB']:.2f} GiB.",
        f"- A row alone and the same row in a padded batch differ by up to {max(bf16):.3f} nats a token in bf16, and no",
        "  ratio of the two lies outside of 0.9 to 1.1.",
        "- The notebooks' task `search`, 80 steps, mean reward of the first and the last ten: "
        + "; ".join(f"{row['first ten']:.2f} and {row['last ten']:.2f}" for row in _rows("learn").values())
        + ". The audit of both records says no problem.",
        "",
        *csv_next_to_page("gpu.csv"),
        "",
        *made_section(
            [("all of it", "`python -m benchmarks.gpu --out data/measured/gpu.json`", made_with(measured("gpu")))]
        ),
    )


def main() -> None:
    options = parser(__doc__, only=[""], seconds=430.0, device="cuda", tiny=0).parse_args()
    setup, end = Setup(options.device, bool(options.tiny)), time.monotonic() + options.seconds
    quiet_libraries()
    result = read_json(options.out, {}) if options.out else {}
    gpu = torch.cuda.get_device_name() if setup.on_gpu else "none"
    result |= {"environment": about() | {"gpu": gpu, "cuda": torch.version.cuda}}
    for name, (part, limit) in PARTS.items():
        if options.only != [""] and name not in options.only:
            continue
        began, rows = time.monotonic(), {}
        last = min(end, began + limit)
        try:
            for row, value in part(setup):
                rows[row] = value
                print(f"{name}: {row}: {value}", flush=True)
                if time.monotonic() > last:
                    rows["cut"] = f"after {limit:.0f} s"
                    break
        except Exception:
            rows["error"] = traceback.format_exc()[-1500:]
        setup.free()
        result[name] = jsonable(rows | {"part's seconds": round(time.monotonic() - began, 1)})
        if options.out:
            write_json(options.out, result)


if __name__ == "__main__":
    run_main(main)
