"""The embedded default: real text, a tokenizer and a tiny warm-started model, made without any network.

Text: the docstrings of the installed Python standard library. A prompt is a module and a signature and ends in `TL;DR:`
(the form of the documented TL;DR data set); the completion is the docstring's first sentence. The model learns the form
of the task in well under a minute on one core, which leaves GRPO something to improve.

Everything here is toy scale: it supports a mechanism, never a number about a real model.
"""

import ast
import contextlib
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback

from ..errors import ParameterError
from ..runs.files import write_text
from .cache import cache_root, key_of, made_once, only_mine

EOS, PAD = "<|im_end|>", "<|pad|>"
_LAUNCHED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # by torchrun
VOCAB_SIZE = 2048
# Everything below decides the weights and so goes into the cache key.
_SFT: dict[str, Any] = {
    "max_steps": 400,
    "per_device_train_batch_size": 16,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 20,
    "max_length": 256,
    "seed": 0,
}
_SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,  # head size 32: vLLM's CPU kernel refuses e.g. 24
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    },
    "gpt2": {"n_embd": 128, "n_inner": 512, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
ARCHITECTURES = tuple(_SHAPES)


def load_corpus() -> list[dict[str, str]]:
    """Prompt and completion pairs from the standard library's docstrings, sorted, without duplicates.

    Returns:
        About 5,900 rows `{"prompt": "textwrap\\ndef dedent(text)\\nTL;DR:", "completion": " Remove ..."}` on
        Python 3.11; completions have 10 to 90 characters. Other Python versions give slightly other text.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
    prompts: dict[str, str] = {}  # completion -> prompt: a sentence copied over many classes counts once
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if skip.isdisjoint(relative.parts):
            module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            for prompt, completion in _pairs_of_file(path, module):
                prompts.setdefault(completion, prompt)
    pairs = {prompt: completion for completion, prompt in prompts.items()}
    return [{"prompt": p, "completion": c} for p, c in sorted(pairs.items())]


def _pairs_of_file(path: Path, module: str):
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # the library ships deliberately broken files for lib2to3
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        sentence = _first_sentence(ast.get_docstring(node) or "")
        signature = _signature(node)
        if 10 <= len(sentence) <= 90 and len(signature) <= 100:
            yield f"{module}\n{signature}\nTL;DR:", " " + sentence


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0]


def _signature(node) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return f"def {node.name}({', '.join(names)})"


def corpus_hash(corpus: list[dict[str, str]]) -> str:
    """sha256 of the corpus, 64 hex digits.

    Example:
        >>> corpus_hash([{"prompt": "a", "completion": "b"}])[:16]
        'fa4a6c6483669bca'
    """
    return hashlib.sha256(json.dumps(corpus, sort_keys=True).encode()).hexdigest()


def build_tokenizer(corpus: list[dict[str, str]]):
    """Byte-level BPE trained on the corpus: at most `VOCAB_SIZE` entries, `<|im_end|>` as EOS, a pad token of its own.

    Example:
        >>> tokenizer = build_tokenizer([{"prompt": "a note", "completion": " a note"}] * 2)
        >>> tokenizer.encode("note<|im_end|>")
        [258, 259, 1]
        >>> tokenizer.pad_token_id, tokenizer.eos_token_id
        (0, 1)
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator((row["prompt"] + row["completion"] for row in corpus), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=EOS, pad_token=PAD, padding_side="left")


def build_model(tokenizer, architecture: str = "qwen2", seed: int = 0):
    """A randomly initialised starter model (about 0.65 M parameters, fp32).

    Args:
        tokenizer: gives vocabulary size, EOS and pad ids.
        architecture: `qwen2` (rotary positions) or `gpt2` (learned positions: sensitive to padding, article A2).
        seed: of the initial weights; the caller's random state is left as it was.
    """
    shape = _shape(architecture)
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **shape,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def _shape(architecture: str) -> dict:
    if architecture not in ARCHITECTURES:
        raise ParameterError(f"architecture={architecture!r}: expected one of {', '.join(ARCHITECTURES)}")
    return _SHAPES[architecture]


def starter_model(architecture: str = "qwen2", cache_dir: str | os.PathLike | None = None) -> Path:
    """Folder of the starter model, warm-started on `starter_corpus()`; see `warm_started`."""
    return warm_started("starter", starter_corpus(cache_dir), architecture, cache_dir)


def warm_started(
    name: str, corpus: list[dict[str, str]], architecture: str = "qwen2", cache_dir: str | os.PathLike | None = None
) -> Path:
    """Folder of a tiny model and its tokenizer, trained on `corpus` on first use (about 40 s on one core) and cached.

    Args:
        name: first part of the folder's name; the rest is a hash of everything that decides the weights.
        corpus: rows with `prompt` and `completion`.
        architecture: `qwen2` or `gpt2`.
        cache_dir: default `$WORKBENCH_CACHE`, else `~/.cache/workbench`.

    Raises:
        ParameterError: another architecture, or a folder that belongs to another user.
    """
    folder = cache_root(cache_dir) / f"{name}-{architecture}-{_cache_key(corpus, architecture)}"
    build = _build if int(os.environ.get("WORLD_SIZE", "1")) == 1 else _build_apart
    return made_once(folder, lambda made: build(made, corpus, architecture))


def starter_corpus(cache_dir: str | os.PathLike | None = None) -> list[dict[str, str]]:
    """`load_corpus()`, read from the cache when this Python's library was parsed before (4 s saved)."""
    this = hashlib.sha256(sys.version.encode() + Path(__file__).read_bytes()).hexdigest()[:16]
    path = cache_root(cache_dir) / f"corpus-{this}.json"
    try:
        if not only_mine(path):
            raise ValueError("somebody else may have written it")
        return json.loads(path.read_text())
    except (OSError, ValueError):
        corpus = load_corpus()
        write_text(path, json.dumps(corpus))
        path.chmod(path.stat().st_mode & ~0o022)
        return corpus


def _cache_key(corpus, architecture: str) -> str:
    # Version: of what is saved beside the weights; raise it when `_build` changes. `_build` trains on one thread.
    decides = {"version": 2, "corpus": corpus_hash(corpus), "vocab_size": VOCAB_SIZE, "shape": _shape(architecture)}
    return key_of(decides | {"sft": _SFT, "threads": 1})


def _build(made: Path, corpus, architecture: str) -> None:
    tokenizer = build_tokenizer(corpus)
    model = build_model(tokenizer, architecture, seed=_SFT["seed"])
    with tempfile.TemporaryDirectory() as scratch:
        _warm_start(model, tokenizer, corpus, scratch)
    model.generation_config.eos_token_id = tokenizer.eos_token_id  # transformers' Trainer makes it a list
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)


def _build_apart(made: Path, corpus, architecture: str) -> None:
    """`_build` in a process that knows of no others: a trainer would wait for those that wait here for the model."""
    code = """if True:
        import json, pathlib, sys
        from workbench.toys import starter
        given = json.load(sys.stdin)
        starter._SFT = given["sft"]
        starter._build(pathlib.Path(given["made"]), given["corpus"], given["architecture"])"""
    alone = {name: value for name, value in os.environ.items() if name not in _LAUNCHED and "TORCHELASTIC" not in name}
    given = json.dumps({"sft": _SFT, "made": str(made), "corpus": corpus, "architecture": architecture})
    subprocess.run([sys.executable, "-c", code], input=given, text=True, check=True, env=alone)


def _warm_start(model, tokenizer, corpus, scratch: str) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(
        output_dir=scratch,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=100,
        eos_token=EOS,
        dataloader_pin_memory=False,
        **_SFT,
    )
    with one_thread(), preserved_rng():
        trainer = SFTTrainer(model, args=args, train_dataset=Dataset.from_list(corpus), processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        print(f"building the embedded model, {args.max_steps} steps, once; cached afterwards", flush=True)
        trainer.train()


@contextlib.contextmanager
def one_thread():
    """Run torch on one thread: toy models are faster on one, and another count would change their weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def preserved_rng():
    """Leave Python's, numpy's and torch's random state as it was, whatever runs inside."""
    states = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            numpy.random.set_state(states[1])
