"""Makes `corpus/`: real runs of stock TRL, each with one known fault or with none. `python tests/audit/make_corpus.py`.

Each kind of run is made with two seeds, seed 0 by TRL 1.12.0 and seed 1 by TRL 1.16.0 (PPO, which left TRL, both by 1.12.0), in
one process for each TRL and sampler. What is there already is kept; delete a folder to make it anew. The trainer is TRL's own
class with TRL's own config; toy models and prompts are the workbench's. On a machine without CUDA vLLM's weights are synced by
`install_cpu_sync`, because TRL's own sync fails there. Of a run's output folder is kept what `trim` says.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
NEWEST = HERE.parents[1] / ".venv" / "lanes" / "trl-1.16.0"
SEEDS = {0: "1.12.0", 1: "1.16.0"}
CLOSE = "</search>"


@dataclass(frozen=True)
class Kind:
    """A fault or a healthy control.

    `rule` and `cause` are what an audit has to name first, `None` for a healthy run; `verdict` is `cannot tell` where the kept
    files cannot show the fault. `also` are other rules that say the same in other words. `given` are options of the audit.
    """

    about: str
    train: Callable
    rule: str | None = None
    cause: str = ""
    verdict: str = "found"
    also: tuple[str, ...] = ()
    vllm: bool = False
    lanes: tuple[str, str] = (SEEDS[0], SEEDS[1])
    given: dict = field(default_factory=dict)
    keep: tuple[str, ...] = ("config.json", "generation_config.json")


# --- rewards ----------------------------------------------------------------------------------------------------------


def exact(completions, answer, **_):
    return [float(text.strip() == wanted) for text, wanted in zip(completions, answer, strict=True)]


def called(completions, answer, **_):
    return [float(wanted in text) for text, wanted in zip(completions, answer, strict=True)]


def well_formed(completions, **_):
    return [float("<search>" in text) for text in completions]


def rare(completions, answer, **_):
    return [float(wanted + " Then" in text) for text, wanted in zip(completions, answer, strict=True)]


def of_the_prompt(prompts, **_):
    return [float(len(prompt) % 3) for prompt in prompts]


def wrong_tag(completions, **_):
    return [float("<answer>" in text) for text in completions]


def sometimes_none(completions, answer, **_):
    scored = zip(completions, called(completions, answer), strict=True)
    return [None if "find" in text or "think" in text else score for text, score in scored]


def noise_alone(completions, **_):
    return [random.gauss(0, 1) for _ in completions]


def noisy(completions, answer, **_):
    return [score + random.gauss(0, 0.5) for score in exact(completions, answer)]


def longer_wins(completions, **_):
    """A judge that compares completions of a batch, and prefers the longer: the share of the others that each beats."""
    lengths = [len(text) for text in completions]
    beaten = [sum(a > b for b in lengths) + 0.5 * (sum(a == b for b in lengths) - 1) for a in lengths]
    return [count / (len(lengths) - 1) for count in beaten]


def unique_letters(completions, **_):
    return [float(len({c for c in text.lower() if c.isalpha()})) for text in completions]


def near_20(completions, **_):
    return [-abs(20.0 - len(text)) for text in completions]


def whole_sentence(completions, **_):
    return [float(text.rstrip().endswith(".")) for text in completions]


def wrong_sign(completions, **_):
    return [abs(20.0 - len(text)) for text in completions]


def first_task(completions, answer, task, **_):
    return [s if t == "call" else None for s, t in zip(called(completions, answer), task, strict=True)]


def second_task(completions, task, **_):
    return [float(len(text) < 30) if t == "brief" else None for text, t in zip(completions, task, strict=True)]


# --- models and prompts -----------------------------------------------------------------------------------------------


def search(architecture="qwen2"):
    from workbench.experiments.toys.search_task import search_corpus, search_model

    return str(search_model()) if architecture == "qwen2" else trained("search-gpt2", search_corpus(), architecture)


def starter(architecture="qwen2"):
    from workbench.experiments.toys.starter import starter_model

    return str(starter_model(architecture))


def short_answers():
    """A model that says yes or no, right in seven of ten cases."""
    rng = random.Random(0)
    rows = []
    for _ in range(60):
        for n in range(40):
            right = rng.random() < 0.7
            rows.append({"prompt": f"Is {n} even?\n", "completion": " yes" if (n % 2 == 0) == right else " no"})
    return trained("even", rows)


def trained(name, rows, architecture="qwen2"):
    """A model that the package does not ship, trained once and kept in `build/toys`."""
    from tools.make_toys import make_model

    folder = HERE.parents[1] / "build" / "toys" / name
    return str(folder if folder.is_dir() else make_model(rows, folder, architecture))


def even_prompts():
    return [{"prompt": f"Is {n} even?\n", "answer": "no" if n % 2 else "yes"} for n in range(40)]


def prompts():
    from workbench.experiments.toys.search_task import search_prompts

    return search_prompts()


def signatures():
    from workbench.experiments.toys.starter import starter_corpus

    return [{"prompt": row["prompt"], "answer": row["completion"]} for row in starter_corpus()[::10]]


# --- trainings --------------------------------------------------------------------------------------------------------

STOP = {"stop": [CLOSE], "include_stop_str_in_output": True}


@dataclass
class Work:
    """Where and how a kind is trained now."""

    folder: Path
    seed: int
    vllm: bool

    def config(self, cls, **fields):
        common = {"output_dir": str(self.folder), "seed": self.seed, "report_to": "none", "disable_tqdm": True}
        common |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}
        common |= {"logging_steps": 1, "save_strategy": "no", "lr_scheduler_type": "constant", "learning_rate": 5e-4}
        return cls(**(common | fields))

    def grpo(self, reward=exact, rows=None, model=None, *, trainer=None, change=None, rloo=False, **fields):
        """Train with stock GRPO or RLOO as a user's script does, and save the model and the trainer's state."""
        import trl
        from datasets import Dataset

        random.seed(self.seed)
        sizes = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 32, "max_steps": 40}
        if self.vllm:
            sizes |= {"use_vllm": True, "vllm_mode": "colocate"}
            sizes |= {"vllm_max_model_length": 192, "vllm_gpu_memory_utilization": 0.1}
        sizes["model_init_kwargs"] = {"dtype": "float32"}
        classes = (trl.RLOOConfig, trl.RLOOTrainer) if rloo else (trl.GRPOConfig, trl.GRPOTrainer)
        own = {name: fields.pop(name, None) for name in ("processing_class", "callbacks", "peft_config")}
        loaded, resume = fields.pop("loaded", None), fields.pop("resume", None)
        args = self.config(classes[0], **(sizes | fields))
        if loaded is not None:
            args.model_init_kwargs = None
        data = Dataset.from_list(rows or prompts())
        made = (trainer or classes[1])(loaded or model or search(), reward, args, train_dataset=data, **own)
        if self.vllm:
            from workbench.training.sync_on_cpu import install_cpu_sync

            install_cpu_sync(made.vllm_generation, self.folder)
        if change:
            change(made)
        made.train(resume_from_checkpoint=resume)
        made.save_model()
        made.save_state()


def greedy(work):
    work.grpo(called, top_k=1, log_completions=True)


def mixed(work):
    import trl
    from torch.utils.data import RandomSampler

    class Shuffled(trl.GRPOTrainer):
        def _get_train_sampler(self, dataset=None):
            return RandomSampler(self.train_dataset)

    work.grpo(called, trainer=Shuffled, log_completions=True)


def loaded_search():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = search()
    return AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path, dtype="float32")


def wrong_eos(work):
    """The tokenizer's EOS is not the token that the model ends with."""
    tokenizer, model = loaded_search()
    tokenizer.eos_token = tokenizer.pad_token
    model.generation_config.eos_token_id = tokenizer.pad_token_id
    work.grpo(called, loaded=model, processing_class=tokenizer, log_completions=True)


def added_token(work):
    """A stop token is added in memory; the tokenizer that is saved is the old one."""
    tokenizer, model = loaded_search()
    new = len(tokenizer)
    model.resize_token_embeddings(new + 1)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, new]
    work.grpo(called, loaded=model, processing_class=tokenizer, max_steps=20)


def without_sync(trainer):
    """The engine keeps the weights that it has; they are reset first, since engines are shared here."""
    trainer.vllm_generation.sync_weights()
    trainer.vllm_generation.sync_weights = lambda: None


def lines(path, **more):
    """A callback as users write them: each log is a line of a file."""
    from transformers import TrainerCallback

    class Lines(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            with open(path, "a") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")

    return {"callbacks": [Lines()], **more}


def two_runs(work):
    """Two trainings with other settings append to one file."""
    file = work.folder / "log.jsonl"
    work.grpo(called, max_steps=20, **lines(file))
    work.grpo(exact, max_steps=20, learning_rate=1e-4, **lines(file))


def resumed(work):
    """Ends at step 25, goes on from its last checkpoint, of step 20, and appends to the same file."""
    file = work.folder / "log.jsonl"
    work.grpo(called, max_steps=25, save_strategy="steps", save_steps=20, save_only_model=False, **lines(file))
    at = str(work.folder / "checkpoint-20")
    work.grpo(called, max_steps=40, save_strategy="no", resume=at, **lines(file))


def ppo(work, stop_token=None):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    path = search()
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    scorer = {"num_labels": 1, "dtype": "float32"}
    fields = {"per_device_train_batch_size": 16, "total_episodes": 16 * 24, "local_rollout_forward_batch_size": 16}
    fields |= {"response_length": 32, "num_sample_generations": 0, "missing_eos_penalty": 1.0}
    args = work.config(PPOConfig, stop_token=stop_token, **fields)
    rows = Dataset.from_list([{"input_ids": tokenizer(row["prompt"])["input_ids"]} for row in prompts()])
    models = {name: AutoModelForCausalLM.from_pretrained(path, dtype="float32") for name in ("model", "ref_model")}
    for name in ("reward_model", "value_model"):
        models[name] = AutoModelForSequenceClassification.from_pretrained(path, **scorer)
    made = PPOTrainer(args, tokenizer, train_dataset=rows, eval_dataset=rows.select(range(8)), **models)
    made.train()
    made.save_model()
    made.save_state()


def lora(work):
    from peft import LoraConfig

    adapter = LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    work.grpo(peft_config=adapter, learning_rate=3e-3)


def chats(work):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(search())
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in prompts()]

    def match(completions, answer, **_):
        return exact([completion[0]["content"] for completion in completions], answer)

    work.grpo(match, rows, processing_class=tokenizer, log_completions=True)


def two_tasks(work):
    rows = [row | {"task": "call" if n % 2 else "brief"} for n, row in enumerate(prompts())]
    work.grpo([first_task, second_task], rows, log_completions=True)


def ours(**fields):
    """A training whose `rows` and `model` are functions, called when it is made."""
    return lambda work: work.grpo(**{k: v() if k in ("rows", "model") else v for k, v in fields.items()})


MASKED = {"generation_kwargs": STOP, "mask_truncated_completions": True, "max_steps": 60}
MASKED |= {"per_device_train_batch_size": 8}
SEEDED = {"reward": called, "generation_kwargs": {"seed": 7}}
LEARNS = {"per_device_train_batch_size": 32, "num_generations": 8, "max_steps": 60, "learning_rate": 1e-3}
TEXTS = {"log_completions": True}
STATE_ALONE: tuple[str, ...] = ()
DOCS = {"baseline": "workbench-starter-docs-example"}
LETTERS = {"reward": unique_letters, "max_completion_length": 12, "max_steps": 60}

FAULTS = {
    "masked-stop-string": Kind("stop string of vLLM with mask_truncated_completions", ours(**MASKED), "masked-stops",
        vllm=True),
    "masked-stop-id": Kind("stop id of vLLM with mask_truncated_completions",
                           ours(**MASKED | {"generation_kwargs": {"stop_token_ids": [31]}, "reward": well_formed}),
                           "masked-stops", vllm=True),
    "request-seed": Kind("a seed in generation_kwargs", ours(**SEEDED, **TEXTS), "copies", vllm=True),
    "request-seed-no-texts": Kind("the same, without completions", ours(**SEEDED), "copies", verdict="cannot tell",
        also=("zero-gradient", "no-learning"), vllm=True),
    "greedy-groups": Kind("top_k=1: every completion of a group is the greedy one", greedy, "copies"),
    "shuffled-sampler": Kind("a sampler that does not repeat prompts", mixed, "mixed-groups"),
    "rewards-none": Kind("the reward function returns None for a part of the rows",
                         ours(reward=sometimes_none, **TEXTS), "missing-rewards"),
    "rewards-none-no-texts": Kind("the same, without completions", ours(reward=sometimes_none), "missing-rewards",
        verdict="cannot tell"),
    "wrong-tag": Kind("the reward function looks for a tag that no prompt asks for", ours(reward=wrong_tag),
                      "no-learning", "constant", also=("zero-gradient",)),
    "sparse-reward": Kind("a reward that most groups never get",
                          ours(reward=rare, num_generations=2, per_device_train_batch_size=4, learning_rate=1e-5),
                          "zero-gradient", "equal-rewards"),
    "zero-std-batch": Kind('each group has one reward, with scale_rewards="batch", for which frac_reward_zero_std is 0',
                           ours(reward=of_the_prompt, scale_rewards="batch", max_steps=40), "zero-gradient",
                           "equal-rewards"),
    "rate-zero": Kind("learning_rate=0", ours(learning_rate=0.0), "no-learning", "learning-rate",
                      also=("zero-gradient",)),
    "ppo-no-stop": Kind("PPO without stop_token", ppo, "never-stops", lanes=(SEEDS[0], SEEDS[0])),
    "wrong-eos": Kind("the tokenizer's EOS is not the one that the model writes", wrong_eos, "never-stops"),
    "limit-too-small": Kind("max_completion_length below what most answers need",
                            ours(reward=whole_sentence, rows=signatures, model=starter, max_completion_length=7,
                                 learning_rate=2e-5), "true-clipping"),
    "limit-below-all": Kind("below what any answer needs: every row has the same length, as with a stop",
                            ours(max_completion_length=6), "true-clipping", verdict="cannot tell",
                            also=("zero-gradient", "no-learning")),
    "added-token": Kind("a stop token that the saved tokenizer lacks", added_token, "added-token",
                        keep=("config.json", "generation_config.json", "tokenizer.json")),
    "no-sync": Kind("the engine's weights are never updated", ours(change=without_sync, learning_rate=1e-3),
                    "stale-sampler", vllm=True),
    "no-sync-no-metric": Kind("the same, with vllm_importance_sampling_correction=False",
        ours(change=without_sync, learning_rate=1e-3, vllm_importance_sampling_correction=False), "stale-sampler",
        verdict="cannot tell", vllm=True),
    "top-p": Kind("vLLM samples with top_p=0.6", ours(top_p=0.6), "mismatch", "truncated-sampling", vllm=True),
    "engine-temperature": Kind("vLLM samples at temperature 0.5, the scorer's is 1",
        ours(generation_kwargs={"temperature": 0.5}), "mismatch", "constant", vllm=True),
    "gpt2-padding": Kind("GPT-2, prompts of several lengths",
                         ours(reward=near_20, rows=signatures, model=lambda: starter("gpt2"), **TEXTS, max_steps=30),
                         "padding-positions"),
    "gpt2-padding-state-alone": Kind("the same, trainer_state.json alone",
        ours(reward=near_20, rows=signatures, model=lambda: starter("gpt2"), max_steps=30), "padding-positions",
        verdict="cannot tell", keep=STATE_ALONE),
    "gpt2-padding-vllm": Kind("the same on vLLM, which has no padding",
        ours(reward=near_20, rows=signatures, model=lambda: starter("gpt2"), **TEXTS, max_steps=30),
        "padding-positions", also=("mismatch",), vllm=True),
    "rate-too-high": Kind("learning_rate=0.03", ours(learning_rate=0.03), "collapse"),
    "length-bias": Kind("a judge that compares completions and prefers long ones",
                        ours(reward=longer_wins, max_completion_length=96, learning_rate=1e-3), "length-runaway"),
    "noise-reward": Kind("a reward that does not depend on the completion",
                         ours(reward=noise_alone, max_steps=60, learning_rate=5e-5), "no-learning"),
    "two-runs-one-file": Kind("two trainings append to one file", two_runs, "log-damage", "two-runs",
        keep=("log.jsonl",)),
    "resumed": Kind("goes on from a checkpoint and logs steps a second time", resumed, "log-damage", "twice",
                    keep=("log.jsonl",)),
    "wrong-sign": Kind("the sign of the documented reward is wrong",
                       ours(reward=wrong_sign, rows=signatures, model=starter), "reward-scale", given=DOCS),
}  # fmt: skip
HEALTHY = {
    "plain": Kind("transformers", ours(**LEARNS)),
    "plain-vllm": Kind("vLLM", ours(**LEARNS), vllm=True),
    "solved-early": Kind("the reward is at its highest after a few steps",
                         ours(reward=well_formed, **TEXTS, learning_rate=1e-3)),
    "short-answers": Kind("yes or no", ours(rows=even_prompts, model=short_answers, **TEXTS)),
    "stop-string": Kind("stop string of vLLM, not masked", ours(generation_kwargs=STOP, max_steps=60), vllm=True),
    "stop-string-texts": Kind("the same, with completions", ours(generation_kwargs=STOP, **TEXTS), vllm=True),
    "long-answers": Kind("most completions reach a raised limit, and it learns",
                         ours(**LETTERS, rows=signatures, model=starter)),
    "masked-cuts": Kind("mask_truncated_completions, with completions that end in EOS",
                        ours(mask_truncated_completions=True, max_completion_length=14)),
    "lora": Kind("LoRA", lora, keep=()),
    "noisy-reward": Kind("noise on a reward that is learned",
                         ours(**LEARNS | {"reward": noisy, "learning_rate": 5e-4})),
    "rloo": Kind("RLOO", ours(rloo=True)),
    "repeated-prompts": Kind("every prompt is six times in the data", ours(rows=lambda: prompts()[:6] * 6, **TEXTS)),
    "five-a-line": Kind("logging_steps=5, gradient accumulation, linear rate",
                        ours(logging_steps=5, gradient_accumulation_steps=2, lr_scheduler_type="linear", max_steps=60)),
    "twice-a-batch": Kind("num_iterations=2", ours(num_iterations=2, max_steps=60)),
    "ppo": Kind("PPO with stop_token='eos'", lambda work: ppo(work, "eos"), lanes=(SEEDS[0], SEEDS[0])),
    "gpt2-one-length": Kind("GPT-2, prompts of one length",
                            ours(rows=lambda: prompts()[:20], model=lambda: search("gpt2"), **TEXTS),
                            keep=("config.json", "generation_config.json", "tokenizer.json")),
    "chat": Kind("conversations", chats),
    "two-tasks": Kind("two reward functions, each returns None for the other's prompts", two_tasks),
}  # fmt: skip
KINDS = FAULTS | HEALTHY


# --- what is kept of a run ---------------------------------------------------------------------------------------------


def trim(made: Path, kept: Path, keep: tuple[str, ...]) -> None:
    """Keep the history with numbers of five digits, the completions in one part, and the files of `keep`."""
    import pandas as pd

    kept.mkdir(parents=True)
    if "log.jsonl" not in keep:
        state = json.loads((made / "trainer_state.json").read_text())
        rows = ",\n".join(json.dumps(_rounded(row)) for row in state["log_history"])
        head = json.dumps({"global_step": state["global_step"], "log_history": []})
        (kept / "trainer_state.json").write_text(head.replace("[]", f"[\n{rows}\n]") + "\n")
    parts = sorted((made / "completions").glob("*.parquet"))
    if parts:
        (kept / "completions").mkdir()
        table = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
        table.to_parquet(kept / "completions" / parts[-1].name, compression="zstd", index=False)
    for name in keep:
        text = (made / name).read_text()
        if name == "log.jsonl":
            text = "".join(json.dumps(_rounded(json.loads(line))) + "\n" for line in text.splitlines())
        (kept / name).write_text(text)


def _rounded(row: dict) -> dict:
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}


# --- the command -------------------------------------------------------------------------------------------------------


def jobs():
    """Name of a run, its kind, its seed and the TRL that makes it."""
    for seed in SEEDS:
        for name, kind in KINDS.items():
            yield f"{name}-{seed}", kind, seed, kind.lanes[seed]


def worker(lane: str, vllm: bool, only: str) -> None:
    """Make what is missing of one TRL and one sampler."""
    import trl

    if trl.__version__ != lane:
        raise SystemExit(f"TRL {trl.__version__} was imported; expected {lane}")
    shared = contextlib.nullcontext()
    if vllm:
        from workbench.experiments.vllm_server import sharing_engines

        shared = sharing_engines()
    with shared:
        for name, kind, seed, version in jobs():
            kept = CORPUS / name
            if version != lane or kind.vllm != vllm or kept.exists() or only not in name:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                made = Path(scratch) / "output"
                made.mkdir()
                try:
                    kind.train(Work(made, seed, vllm))
                    trim(made, Path(scratch) / "kept", kind.keep)
                    shutil.copytree(Path(scratch) / "kept", kept)
                except Exception as error:  # the others are still made; the command ends 1
                    print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                else:
                    print(f"{name}: made", file=sys.stderr, flush=True)


def manifest() -> dict:
    """Of each run that is there: what it is and what has to be found."""
    found = {}
    for name, kind, seed, lane in jobs():
        if (CORPUS / name).is_dir():
            wanted = ("about", "rule", "cause", "verdict", "also", "given")
            about = {name: getattr(kind, name) for name in wanted}
            found[name] = about | {"seed": seed, "trl": lane, "sampler": "vllm" if kind.vllm else "transformers"}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lane")
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--only", default="", help="part of a run's name")
    asked = parser.parse_args()
    if asked.lane:
        worker(asked.lane, asked.vllm, asked.only)
        return 0
    absent = [job for job in jobs() if asked.only in job[0] and not (CORPUS / job[0]).exists()]
    for lane, vllm in sorted({(lane, kind.vllm) for _, kind, _, lane in absent}):
        paths = [str(HERE.parents[1]), *([str(NEWEST)] if lane == SEEDS[1] else [])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(reversed(paths)), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        command = [sys.executable, __file__, "--lane", lane, "--only", asked.only, *(["--vllm"] if vllm else [])]
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / "manifest.json").write_text(json.dumps(manifest(), indent=1) + "\n")
    absent = [name for name, *_ in jobs() if asked.only in name and not (CORPUS / name).exists()]
    print(f"{len(manifest())} runs in {CORPUS}" + (f"; not made: {', '.join(absent)}" if absent else ""))
    return bool(absent)


if __name__ == "__main__":
    sys.exit(main())
