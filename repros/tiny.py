"""What the repros share: a byte-level tokenizer, random models of some ten thousand weights, and how a verdict is given.

Exit codes: 1 the defect is present, 0 it is fixed, 2 this version cannot run the repro (the last line says why).
"""

import os
import sys
import traceback
from importlib.metadata import version

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
# On a CPU TRL 1.15 scores with a Triton kernel and nothing else; interpreted, it runs there.
os.environ.update(OFFLINE | {"TRITON_INTERPRET": "1"})
if "engine" not in sys.modules:  # engine.py is imported before this where vLLM is needed
    sys.modules["vllm"] = None  # TRL imports vLLM wherever it finds it, which takes longer than most repros

import datasets  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402

WORDS = ["the red fox ran.", "a blue cat sat.", "go on, old dog.", "we see the sea."]
CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}
QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
ONE_STEP = CPU | QUIET | {"max_steps": 1, "per_device_train_batch_size": 8}
GRPO = ONE_STEP | {"num_generations": 4, "max_completion_length": 16, "beta": 0.0, "learning_rate": 1e-3}


def stop(code: int, *lines: str) -> None:
    """Print and leave at once: no thread of an engine may change the exit code."""
    print(*lines, f"TRL: {version('trl')}", sep="\n", flush=True)
    os._exit(code)


def verdict(present: bool, happens: str, should: str) -> None:
    """Print what happens and what should; end the process with 1 if the defect is present, with 0 if it is fixed."""
    stop(int(present), f"happens: {happens}", f"should:  {should}", "PRESENT" if present else "FIXED")


def cannot_run(why: str) -> None:
    """End the process with 2."""
    stop(2, f"CANNOT RUN: {why}")


def _uncaught(kind, error, trace) -> None:
    traceback.print_exception(kind, error, trace)
    cannot_run(f"{kind.__name__}: {' '.join(str(error).split())[:200]}")


sys.excepthook = _uncaught  # Python's own exit code for an error is 1, which here says something else
transformers.logging.set_verbosity_error()
transformers.trainer.PrinterCallback.on_log = lambda *_, **__: None  # its lines would hide ours
transformers.set_seed(0)


def tokenizer(*special: str):
    """A byte-level BPE tokenizer of 40 tokens: `<eos>` is 0, `<pad>` 1, then `special`, letters and pieces of words."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    tokens = ["<eos>", "<pad>", *special]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=40, special_tokens=tokens, show_progress=False)
    bpe.train_from_iterator(WORDS, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        additional_special_tokens=list(special),
    )


def config(own, **fields):
    """A Qwen2 of one layer for the tokenizer `own`."""
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    ids = {
        "vocab_size": len(own),
        "bos_token_id": None,
        "eos_token_id": own.eos_token_id,
        "pad_token_id": own.pad_token_id,
    }
    rest = {"num_key_value_heads": 1, "max_position_embeddings": 256, "tie_word_embeddings": True}
    return transformers.Qwen2Config(**size | ids | rest | fields)


def model(own, **fields):
    """That Qwen2 with random weights: any token of the 40 is about as likely as any other."""
    return transformers.AutoModelForCausalLM.from_config(config(own, **fields)).float()


def prompts(*texts: str):
    """A data set of prompts, four rows unless `texts` are given."""
    return datasets.Dataset.from_list([{"prompt": text} for text in texts or WORDS])


def parity(completions, **_):
    """A reward: every second completion is right, so every group has an advantage and a gradient to lose."""
    return [float(n % 2) for n in range(len(completions))]


STOPS = ["a", "e", "o"]


def rollout(prompts, trainer):
    """A rollout function whose completions end at one of STOPS, as those of an agent that calls a tool do."""
    own = trainer.processing_class
    batch = own(list(prompts), return_tensors="pt", padding=True)
    options = {"stop_strings": STOPS, "tokenizer": own, "suppress_tokens": [own.eos_token_id, own.pad_token_id]}
    both = trainer.model.generate(**batch, **options, max_new_tokens=16, do_sample=True, top_k=0)
    rows = both[:, batch["input_ids"].shape[1] :].tolist()
    ids = [[token for token in row if token != own.pad_token_id] for row in rows]
    return {"prompt_ids": [own(text)["input_ids"] for text in prompts], "completion_ids": ids, "logprobs": None}


PPO_ROWS = 8
PPO = CPU | QUIET | {"per_device_train_batch_size": PPO_ROWS, "total_episodes": PPO_ROWS, "num_sample_generations": 0}
PPO |= {"num_mini_batches": 1, "num_ppo_epochs": 1, "local_rollout_forward_batch_size": PPO_ROWS}


def ppo():
    """PPO's config and trainer, or the end: TRL has none since 1.13."""
    try:
        from trl.experimental.ppo import PPOConfig, PPOTrainer
    except ImportError:
        cannot_run("this TRL has no PPO (removed in 1.13.0 by huggingface/trl#7020)")
    return PPOConfig, PPOTrainer


def ppo_parts(own):
    """A reward model, the prompts and a value model, in the order that PPOTrainer takes them."""
    score, value = (
        transformers.AutoModelForSequenceClassification.from_config(config(own, num_labels=1)) for _ in range(2)
    )
    rows = [own(text) for text in WORDS * (PPO_ROWS // len(WORDS))]
    return score, datasets.Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows]), value
