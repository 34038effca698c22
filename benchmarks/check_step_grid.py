"""How often `check_step` calls a healthy step different: stock TRL in many settings, on the starter.

    python -m benchmarks.check_step_grid [--only NAME ...] [--out data/measured/check_step_grid.json]

Each cell is one trainer and one call of `check_step`; in two processes a training of one step that `StepCheck` looks at. With
vLLM the engine samples in this process. With `--out` a cell that the file has already is not run again.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trl
from peft import LoraConfig
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM, set_seed

from benchmarks.false_alarms import few_letters
from tools.record import (
    ROOT,
    about,
    csv_next_to_page,
    csv_text,
    made_section,
    made_with,
    measured,
    parser,
    run_main,
    table,
    use_one_thread,
)
from workbench.consistency.ratios import MODES
from workbench.curves.stats import share_interval
from workbench.errors import RunError
from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.vllm_server import sharing_engines
from workbench.replay.report import StepReport
from workbench.runs.files import read_json, write_json
from workbench.training.rewards import length_reward
from workbench.training.sync_on_cpu import install_cpu_sync
from workbench.watch.attach import StepCheck
from workbench.watch.check_step import check_step

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
SCALES = ("group", "batch", "none")
LORA = {"lora": True, "learning_rate": 1e-4}
BF16 = {"bf16": True, "learning_rate": 1e-4}
VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 256}
RECOMPUTED = {"gradient_checkpointing": True}
BASE = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": [], "save_strategy": "no"}
BASE |= {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 16, "learning_rate": 1e-5}
BASE |= {"max_steps": 1, "disable_tqdm": True, "logging_strategy": "no"}


def cells() -> dict[str, dict[str, Any]]:
    """Return the settings of each cell by its name.

    `trainer`, `lora`, `lora_dropout`, `experts` and `processes` are no fields of TRL's config.
    """
    made: dict[str, dict[str, Any]] = {}
    for number, loss in enumerate(LOSSES):
        own = {"loss_type": loss} | ({"importance_sampling_level": "sequence"} if loss == "luspo" else {})
        made |= {f"{loss}, {scale}": own | {"scale_rewards": scale} for scale in SCALES}
        kind, more = [("bf16", BF16), ("LoRA", LORA), ("bf16, LoRA", BF16 | LORA), ("recomputed", RECOMPUTED)][
            number % 4
        ]
        made[f"{loss}, {kind}"] = own | more
        mode = MODES[number % 4] if loss != "vespo" else "token_truncate"
        correction = {"vllm_importance_sampling_mode": mode, "scale_rewards": SCALES[number % 3]}
        made[f"{loss}, vLLM, {mode}"] = own | VLLM | correction
    made["beta, accumulated, bf16"] = {"beta": 0.1, "gradient_accumulation_steps": 2} | BF16
    made["several updates, LoRA"] = {
        "num_iterations": 2,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
    } | LORA
    made["RLOO"] = {"trainer": "RLOO", "beta": 0.05}
    made["RLOO, bf16, LoRA, normalized"] = {"trainer": "RLOO", "normalize_advantages": True} | BF16 | LORA
    for loss in ("dapo", "grpo", "dr_grpo"):
        made[f"{loss}, two processes"] = {"loss_type": loss, "processes": 2}
    made["RLOO, two processes"] = {"trainer": "RLOO", "processes": 2}
    return made


def option_cells() -> dict[str, dict[str, Any]]:
    """Return settings one by one: options of loss, adapter, optimizer and sampler, and models with experts."""
    made: dict[str, dict[str, Any]] = {}
    for loss in LOSSES:
        own = {"loss_type": loss} | ({"importance_sampling_level": "sequence"} if loss == "luspo" else {})
        made[f"{loss}, beta"] = own | {"beta": 0.1}
        made[f"{loss}, several updates"] = own | {"num_iterations": 2}
        made[f"{loss}, experts"] = own | {"experts": True}
        made[f"{loss}, LoRA dropout"] = own | LORA | {"lora_dropout": 0.1}
    for loss in ("grpo", "dr_grpo", "dapo", "bnpo"):
        made[f"{loss}, sequence level"] = {"loss_type": loss, "importance_sampling_level": "sequence"}
    made["experts, bf16"] = {"experts": True} | BF16
    made["experts, accumulated"] = {"experts": True, "gradient_accumulation_steps": 2}
    made["experts, recomputed"] = {"experts": True} | RECOMPUTED
    options: dict[str, dict[str, Any]] = {
        "epsilon_high": {"epsilon_high": 0.4, "num_iterations": 2},
        "delta": {"delta": 1.5, "num_iterations": 2},
        "top_entropy_quantile": {"top_entropy_quantile": 0.5},
        "entropy_coef": {"entropy_coef": 0.01},
        "adaptive entropy": {"use_adaptive_entropy": True},
        "off_policy_mask_threshold": {"off_policy_mask_threshold": 0.5, "num_iterations": 2},
        "corrected KL": {"use_bias_correction_kl": True, "beta": 0.1, "num_iterations": 2},
        "truncated rows masked": {"mask_truncated_completions": True},
        "normalize_then_sum": {"multi_objective_aggregation": "normalize_then_sum"},
        "reward_weights": {"reward_weights": [0.3, 2.0]},
        "SGD": {"optim": "sgd", "learning_rate": 1e-2},
        "Adafactor": {"optim": "adafactor"},
        "weight decay": {"weight_decay": 0.1, "learning_rate": 1e-4},
        "clipped gradient": {"max_grad_norm": 0.01},
        "temperature 0.7": {"temperature": 0.7},
        "temperature 1.3": {"temperature": 1.3},
    }
    rloo: dict[str, dict[str, Any]] = {
        "no KL": {"beta": 0.0},
        "clipped rewards": {"reward_clip_range": (-25.0, 0.0)},
        "accumulated": {"gradient_accumulation_steps": 2},
        "several updates": {"num_iterations": 2},
        "recomputed": RECOMPUTED,
        "LoRA dropout": LORA | {"lora_dropout": 0.1},
        "experts": {"experts": True},
    }
    return made | options | {f"RLOO, {name}": {"trainer": "RLOO"} | fields for name, fields in rloo.items()}


def async_cells() -> dict[str, dict[str, Any]]:
    """Return 30 settings of AsyncGRPO: `rows` are arguments of `samples` of the tests, the others fields of its config."""
    made: dict[str, dict[str, Any]] = {}
    whole = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 8}
    kinds: dict[str, dict[str, Any]] = {
        "fp32": {},
        "bf16": BF16,
        "recomputed": RECOMPUTED,
        "one-sided": {"epsilon_high": 0.4},
    }
    kinds |= {"narrow clip": {"epsilon": 0.05}, "budget": {"token_budget": 120}}
    ages: dict[str, dict[str, Any]] = {"newest": {}, "two ages": {"versions": (2, 1), "now": 2}}
    ages |= {"turns": {"turns": 2}, "forks": {"turns": 2, "fork": True}, "old": {"versions": (0,), "now": 1, "seed": 3}}
    for age, rows in ages.items():
        for kind, fields in kinds.items():
            made[f"AsyncGRPO, {age}, {kind}"] = {"trainer": "AsyncGRPO", "rows": rows} | whole | fields
    return made


def distillation_cells() -> dict[str, dict[str, Any]]:
    """Return 10 settings of distillation."""
    made: dict[str, dict[str, Any]] = {}
    for beta in (0.0, 0.1, 0.5, 0.9, 1.0):
        made[f"distillation, beta {beta:g}"] = {"trainer": "Distillation", "beta": beta}
    halves = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    made["distillation, accumulated"] = {"trainer": "Distillation"} | halves
    made["distillation, bf16"] = {"trainer": "Distillation"} | BF16
    made["distillation, temperature 0.7"] = {"trainer": "Distillation", "temperature": 0.7, "beta": 0.5}
    made["distillation, recomputed"] = {"trainer": "Distillation"} | RECOMPUTED
    made["distillation, padded to 16"] = {"trainer": "Distillation", "pad_to_multiple_of": 16} | halves
    return made


def _helper(name: str) -> Any:
    """A module of the tests' helpers, which import one another."""
    folder = str(ROOT / "tests" / "helpers")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def measure_elsewhere(options: dict[str, Any], folder: str) -> dict:
    """Run a cell of AsyncGRPO or of a distillation, with the stand-ins for server and GPU kernel that the tests have."""
    fields = {name: value for name, value in options.items() if name not in ("trainer", "rows")}
    if options["trainer"] == "Distillation":
        trainer, batch = _helper("distillation_cases").make(folder, **fields), None
    else:
        cases = _helper("async_cases")
        batch = cases.samples(**options["rows"])
        trainer = cases.make(folder, version=options["rows"].get("now", 0), **fields)
    began = time.monotonic()
    report = check_step(trainer, batch=batch)
    return row_of(report) | {"seconds": round(time.monotonic() - began, 2)}


def save_model_of_experts(tokenizer: Any, path: str) -> str:
    """Write a random mixture of experts, whose router has an auxiliary loss, and return where."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    tokens = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    routing = {"num_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=len(tokenizer), **sizes, **tokens, **routing)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def build(options: dict[str, Any], folder: str) -> Any:
    """Build the trainer of a cell."""
    fields = BASE | options
    kind, lora, _, experts, dropout = (
        fields.pop(name, None) for name in ("trainer", "lora", "processes", "experts", "lora_dropout")
    )
    cls, config = (trl.RLOOTrainer, trl.RLOOConfig) if kind == "RLOO" else (trl.GRPOTrainer, trl.GRPOConfig)
    adapter = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", "lora_dropout": dropout or 0.0}
    more = {"peft_config": LoraConfig(**adapter)} if lora else {}
    set_seed(0)
    args = config(output_dir=folder, **fields)
    rewards = [length_reward(40), few_letters]
    policy: Any = resolve_model("starter")
    if experts:
        more["processing_class"] = AutoTokenizer.from_pretrained(policy, padding_side="left")
        policy = save_model_of_experts(more["processing_class"], f"{folder}/experts")
    trainer = cls(policy, rewards, args=args, train_dataset=load_prompts("starter"), **more)
    if args.use_vllm:
        install_cpu_sync(trainer.vllm_generation, folder)
    return trainer


def row_of(report: StepReport) -> dict:
    verdicts = {stage.name: stage.verdict for stage in report.stages}
    why = {stage.name: stage.cause for stage in report.stages if stage.verdict in ("different", "cannot tell")}
    return {"verdicts": verdicts, "why": why}


def measure(options: dict[str, Any]) -> dict:
    """Run a cell: the verdicts of its stages, and the seconds of the check."""
    with tempfile.TemporaryDirectory() as folder:
        if options.get("trainer") in ("AsyncGRPO", "Distillation"):
            return measure_elsewhere(options, folder)
        if options.get("processes", 1) > 1:
            return _in_processes(options, folder)
        trainer = build(options, folder)
        began = time.monotonic()
        report = check_step(trainer)
        return row_of(report) | {"seconds": round(time.monotonic() - began, 2)}


def _in_processes(options: dict[str, Any], folder: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={options['processes']}",
    ]
    command += ["-m", "benchmarks.check_step_grid", "--process-of", json.dumps(options), "--folder", folder]
    done = subprocess.run(command, cwd=ROOT, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RunError(f"{options}: ended with {done.returncode}; its last words: {done.stderr[-2000:]}")
    rows = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*.json"))]
    worst = max(rows, key=lambda row: len(row["why"]))
    return worst | {"seconds": max(row["seconds"] for row in rows)}


def check_in_a_process(options: dict[str, Any], folder: str) -> None:
    """Train one step that is checked before, as a process of several; leaves `rank-N.json`."""
    trainer = build(options, folder)
    check = StepCheck(trainer, 1)
    began = time.monotonic()
    trainer.train()
    row = row_of(check.reports[1]) | {"seconds": round(time.monotonic() - began, 2)}
    write_json(Path(folder) / f"rank-{trainer.accelerator.process_index}.json", row)


def main() -> None:
    made = cells() | option_cells() | async_cells() | distillation_cells()
    options = parser(__doc__, only=[""], process_of="", folder="").parse_args()
    use_one_thread()
    if options.process_of:
        return check_in_a_process(json.loads(options.process_of), options.folder)
    rows = read_json(options.out, {}).get("cells", {}) if options.out else {}
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    with contextlib.ExitStack() as stack:
        if any(cell.get("use_vllm") for name, cell in made.items() if name not in rows):
            stack.enter_context(sharing_engines())
        for name, cell in made.items():
            if name in rows or not name.startswith(tuple(options.only)):
                continue
            rows[name] = measure(cell)
            print(f"{name:40} {rows[name]['seconds']:6.1f} s  {rows[name]['why'] or 'no difference'}", flush=True)
            if options.out:
                write_json(options.out, {"environment": about(), "cells": rows})
    return None


# Why one step before the training does not show a fault that is planted.
NOT_IN_ONE_STEP = {
    "OtherWeights": "the tokens of the step are too few for a difference of this size",
    "LikelierOfTwo": "the completions of the step are too few for a difference of this size",
    "KlLeftOutOfBaseline": "each KL is 0 before the first update",
    "OldLogpsRenewed": "completions are trained a second time at a later update",
    "SquaredKl": "each KL is 0 before the first update, and this loss cannot be asked about others",
    "StaleBuffer": "the second update is the first with old completions",
    "OptimizerForgets": "the optimizer has no state before the first update",
    "SameSeedEachStep": "the second generation is the first with the noise of another",
    "RewardsOfStepBefore": "no step is before the first one",
    "KlTwice": "each KL is 0 before the first update",
    "RlooK3": "each KL is 0 before the first update",
    "KlSubtracted": "each KL is 0 before the first update",
    "KlDetached": "each KL is 0 before the first update, and this loss cannot be asked about others",
    "AdapterInReference": "the adapter changes nothing before the first update",
    "ReferenceDrifts": "reference and policy are the same before the first update",
    "AdvantagesDecayInBuffer": "completions are trained a second time at a later update",
    "SecondPassShuffled": "completions are trained a second time at a later update",
    "GradientsKept": "no gradient is there before the first update",
    "LoraALost": "the gradient of each lora_A is 0 before the first update",
    "ClipRatiosExchanged": "no ratio is clipped before the first update",
    "TeacherDrifts": "what the teacher was at an earlier update is not known before the first one",
}
# Why one step does not show a named fault, or shows it as another.
NOT_NAMED = {
    "rewards of the next row, in the function": "one call of a function does not show to which rows its rewards belong",
    "half of the layers frozen": "frozen layers can be meant: the stage says which share of the parameters trains",
    "the shortest of three is taken": "32 completions are too few: the stage says from how many tokens on it shows",
}
COST = (
    "## What it costs",
    "",
    "`check_step` ran before each training step of stock TRL but the first, with 16 completions of at most 16 tokens in two",
    "batches, on one thread of a shared CPU. Seconds are processor time, medians over pairs of a check",
    "and a step in one process. Memory is the peak minus that before the model was loaded.",
    "",
)
RESULTS = ("named at its stage", "at another", "cannot tell", "silent")
VERDICTS = ("same", "rounding", "different", "cannot tell")


def settings_csv() -> str:
    """Make check_step_grid.csv: how many stages of each setting have which verdict."""
    lines = []
    for name, row in measured("check_step_grid")["cells"].items():
        verdicts = Counter(row["verdicts"].values())
        why = "; ".join(f"{stage}: {cause}" for stage, cause in row["why"].items())
        lines.append([name, *(str(verdicts[each]) for each in VERDICTS), why])
    return csv_text(["setting", *VERDICTS, "why"], lines)


def _where(row: dict[str, Any]) -> str:
    """The stage that is named for a fault, with the update where it is a watched one."""
    if not row["named"]:
        return ""
    return row["named"] + (f", watched update {row['at']}" if row["at"] else "")


# The tables of planted_faults.csv: the program's name, and what the page calls its faults.
PLANTED = {"planted": "planted", "sceptic": "of a sceptic"}


def faults_csv() -> str:
    """Make planted_faults.csv: each planted fault, and what the check said of it when it was planted and now."""
    lines = []
    for program, kind in PLANTED.items():
        columns = measured(f"{program}_faults")["rows"]
        found = columns["as found"]["faults"] if "as found" in columns else {}
        for name, row in columns["now"]["faults"].items():
            before = [found[name]["result"], _where(found[name])] if name in found else ["", ""]
            at_once = row["result"] == "right" and row["at"] == 0
            reason = "" if at_once else NOT_IN_ONE_STEP.get(name, "")
            result = [row["result"], _where(row), row["cause"], reason]
            lines.append([kind, name, row["stage"], row["says"], *before, *result])
    head = ["faults", "fault", "its stage", "what is wrong", "as found", "named", "now", "named now", "cause now"]
    return csv_text([*head, "why one step does not show it"], lines)


def _counted(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How many faults are named at their stage, at another, not told, and not seen."""
    results = Counter(row["result"] for row in rows)
    later = sum(row["result"] == "right" and row["at"] > 0 for row in rows)
    right = f"{results['right']}" + (f" ({later} of them watched)" if later else "")
    return [right, *(str(results[name]) for name in ("other stage", "honest", "silent"))]


def named_csv() -> str:
    """Make named_faults.csv: each named fault, and what the check said of it before and now."""
    before, now = (measured("named_faults")["rows"][column]["faults"] for column in ("before", "now"))
    lines = []
    for name, row in now.items():
        earlier = [before[name]["result"], before[name]["named"]]
        replayed, reason = row.get("replay", ""), NOT_NAMED.get(name, "")
        lines.append(
            [row["table"], name, row["stage"], *earlier, row["result"], _where(row), row["cause"], replayed, reason]
        )
    head = [
        "faults",
        "fault",
        "its stage",
        "before",
        "named before",
        "now",
        "named now",
        "cause now",
        "named by replay",
    ]
    return csv_text([*head, "why one step does not show it"], lines)


# Faults of TRL's code of turns, of which `tests/watch/test_check_turns.py` has ten: counted by hand.
OF_TURNS = (["13 of turns, before", "6", "1", "0", "6"], ["13 of turns, now", "12", "0", "1", "0"])

# Those of `tests/helpers/steps_in_two_processes.py`, at the commit before them (b302695) and now: counted by hand.
OF_PROCESSES = (["9 of two processes, before", "3", "0", "2", "4"], ["9 of two processes, now", "9", "0", "0", "0"])


def faults_section() -> Iterator[str]:
    """Make the section of check_step_grid.md on faults."""
    planted = {kind: measured(f"{program}_faults")["rows"] for program, kind in PLANTED.items()}
    named = measured("named_faults")["rows"]
    lines = [*OF_TURNS, *OF_PROCESSES]
    for kind, columns in planted.items():
        for column, row in columns.items():
            rows = [*row["faults"].values()]
            lines.append([f"{len(rows)} {kind}, {column}", *_counted(rows)])
    for kind in dict.fromkeys(one["table"] for one in named["now"]["faults"].values()):
        for column, row in named.items():
            rows = [one for one in row["faults"].values() if one["table"] == kind]
            lines.append([f"{len(rows)} {kind}, {column}", *_counted(rows)])
    now = named["now"]["faults"].values()
    replayed = [one["replay"] for one in now if "replay" in one]
    false = [
        name
        for row in (*(row for columns in planted.values() for row in columns.values()), named["now"])
        for one in row["faults"].values()
        for name in one["false alarms of twin"]
    ]
    yield from (
        "## Faults",
        "",
        "Faults were written down before the check was read, those at the seams where it looked open, and it was changed for",
        "what it missed. Where `check_step` names none, three updates are watched, but for `before`. `workbench replay` names",
        f"{sum(map(bool, replayed))} of {len(replayed)} off-policy ones. The same settings",
        f"without the fault have {len(false) or 'no'} difference{'s' * (len(false) > 1)}.",
        "",
        *table(["faults", *RESULTS], lines),
        "",
        *csv_next_to_page("planted_faults.csv"),
        "",
        *csv_next_to_page("named_faults.csv"),
        "",
    )


def _faults_made_with(name: str) -> dict[str, str]:
    """Say what made a table of faults: one text, by its name, where all columns have the same versions, else one for each."""
    made = {column: made_with(row).partition(", TRL ") for column, row in measured(f"{name}_faults")["rows"].items()}
    if len({versions for *_, versions in made.values()}) > 1:
        return {f"{name} faults, {column}": "".join(parts) for column, parts in made.items()}
    commits = [f"{column}: {commit}" for column, (commit, *_) in made.items()]
    return {f"{name} faults": "; ".join([*commits, f"TRL {made['now'][-1]}"])}


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the results."""
    cost = "`python -m benchmarks.cost --only check_step --model starter --out data/measured/cost.json`"
    return [
        (
            "`check_step` in each setting",
            "`python -m benchmarks.check_step_grid --out data/measured/check_step_grid.json`",
            made_with(measured("check_step_grid")),
        ),
        *(
            (
                faults,
                f"`python -m benchmarks.{name}_faults --out data/measured/{name}_faults.json`",
                made,
            )
            for name in (*PLANTED, "named")
            for faults, made in _faults_made_with(name).items()
        ),
        *(
            (
                f"its cost, {name}",
                cost.replace("starter --out", f"{name} --repeats {row['pairs']} --out"),
                made_with(row),
            )
            for name, row in _costs().items()
        ),
    ]


def _costs() -> dict[str, dict]:
    rows = measured("cost")["rows"].items()
    return {name.partition("; ")[2]: row for name, row in rows if name.startswith("check_step")}


def page() -> Iterator[str]:
    """Make the lines of docs/evidence/check_step_grid.md."""
    rows = measured("check_step_grid")["cells"]
    false = [name for name, row in rows.items() if "different" in row["verdicts"].values()]
    high = share_interval(len(false), len(rows)).high
    stages = Counter(verdict for row in rows.values() for verdict in row["verdicts"].values())
    yield from (
        "# How often check_step calls a healthy step different",
        "",
        "`check_step` checked one step of stock TRL on the starter in each of these settings. No defect of TRL is known in",
        f"any of them, so `different` would be a false alarm. **{len(false)} of {len(rows)} steps have a stage that is called",
        f"different** (95%: up to {high:.0%}). Of all stages {stages['same']} are `same`, {stages['rounding']} `rounding`, and",
        f"{stages['cannot tell']} `cannot tell`.",
        "",
        "In a setting's name `recomputed` is gradient checkpointing, `experts` a random mixture of experts, and on vLLM the",
        "mode is that of the importance-sampling correction. AsyncGRPO has the tests' stand-ins for its server and GPU",
        "kernel.",
        "",
        *csv_next_to_page("check_step_grid.csv"),
        "",
        *faults_section(),
        *COST,
        *table(["model", "measured"], [[name, row["says"]] for name, row in _costs().items()]),
        "",
        *made_section(provenance()),
    )


if __name__ == "__main__":
    run_main(main)
