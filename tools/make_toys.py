"""Make the toys again and say how far they differ from those that the package ships: `python -m tools.make_toys`.

Text and tokenizers come out equal wherever the corpus is; weights depend on the processor and on the libraries, so the shipped
files are the ones that count. Trained on the shipped corpus unless `--docstrings` is given; nothing that is shipped is changed
unless `--out` names its folder. About 2 minutes on one core. Text comes from docstrings, and models are trained on one thread.
"""

import argparse
import ast
import contextlib
import gzip
import hashlib
import io
import json
import platform
import random
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback

from workbench.errors import ParameterError
from workbench.experiments.toys.preferences import HELD_OUT, preference_pairs
from workbench.experiments.toys.search_task import search_corpus
from workbench.experiments.toys.starter import ARCHITECTURES, CORPUS, EOS, PAD, SHIPPED, corpus

VOCAB_SIZE = 2048
# Qwen2's own rule for words. transformers 5 gives every tokenizer beside a Qwen2 model this rule, NFC and the pad token's name,
# whatever its file says; so the file says the same, and the tokens are equal in training, in every release and after each save.
_WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LIBRARIES = ("torch", "transformers", "trl", "accelerate", "tokenizers", "datasets")
_SFT: dict[str, Any] = {
    "max_steps": 400,
    "per_device_train_batch_size": 16,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 20,
    "max_length": 256,
}
_REWARD: dict[str, Any] = {
    "max_steps": 200,
    "per_device_train_batch_size": 16,
    "learning_rate": 1e-3,
    "max_length": 256,
}
_ON_CPU: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "eos_token": EOS,
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


def make_toys(folder: Path, corpus: list[dict[str, str]], seed: int = 0) -> None:
    """Make everything that the package ships, in about 2 minutes on one core; `corpus` is all but the search model's text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CORPUS).write_bytes(gzip.compress(json.dumps(corpus, ensure_ascii=False).encode(), 9, mtime=0))
    licence = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
    if licence.is_file():
        (folder / "PYTHON-LICENSE.txt").write_bytes(licence.read_bytes())
    for architecture in ARCHITECTURES:
        make_model(corpus, folder / f"starter-{architecture}", architecture, seed)
    make_model(search_corpus(), folder / "search-qwen2", seed=seed)
    make_preference_model(corpus, folder / "preferences", folder / "starter-qwen2", seed)
    write_manifest(folder, seed)


def write_manifest(folder: Path, seed: int) -> None:
    """The sha256 of each file of the toys, and what made them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    manifest = {
        "corpus": "first sentences of docstrings in Python's standard library, under Python's licence (PSF License Version 2)",
        "seed": seed,
        "settings": {"models": _SFT, "preferences": _REWARD, "shapes": _SHAPES, "vocab_size": VOCAB_SIZE, "threads": 1},
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "cpu": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        "files": {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


# --- text --------------------------------------------------------------------------------------------------------------


def docstring_corpus(root: Path | None = None) -> list[dict[str, str]]:
    """Prompt and completion pairs from the docstrings of a folder's Python files, default the standard library; sorted,
    without duplicates, completions of 10 to 90 characters.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
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


def _pairs_of_file(path: Path, module: str) -> Iterator[tuple[str, str]]:
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


# --- tokenizer and models ----------------------------------------------------------------------------------------------


def build_tokenizer(corpus: list[dict[str, str]]):
    """Byte-level BPE trained on the corpus: at most `VOCAB_SIZE` entries, `<|im_end|>` as EOS, a pad token of its own."""
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(_WORDS, behavior="isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
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
    """A starter model of random weights of that seed (0.65 M parameters, fp32); the caller's random state is left alone."""
    if architecture not in ARCHITECTURES:
        raise ParameterError(f"architecture={architecture!r}: expected one of {', '.join(ARCHITECTURES)}")
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **_SHAPES[architecture],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def make_model(corpus: list[dict[str, str]], folder: Path, architecture: str = "qwen2", seed: int = 0) -> Path:
    """Train a tiny model and its tokenizer on `corpus` by TRL's SFTTrainer and save them, about 30 s on one core."""
    from trl import SFTConfig, SFTTrainer

    tokenizer = build_tokenizer(corpus)
    model = build_model(tokenizer, architecture, seed)
    with _quietly():
        _train(SFTTrainer, SFTConfig, _SFT, model, tokenizer, corpus, seed)
    model.generation_config.eos_token_id = tokenizer.eos_token_id  # transformers' Trainer makes it a list
    return _save(model, tokenizer, folder)


def make_preference_model(corpus: list[dict[str, str]], folder: Path, base: Path, seed: int = 0) -> Path:
    """Train the preference model, which starts from `base`, by TRL's RewardTrainer on all but about `HELD_OUT` pairs."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl import RewardConfig, RewardTrainer

    pairs = preference_pairs(corpus)
    pairs = [pair for n, pair in enumerate(pairs) if n % (len(pairs) // HELD_OUT)]
    with _quietly():
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        tokenizer = AutoTokenizer.from_pretrained(base)
        model = _train(RewardTrainer, RewardConfig, _REWARD, model, tokenizer, pairs, seed)
    return _save(model, tokenizer, folder)


def _train(
    trainer_class: Any, config_class: Any, fields: dict, model: Any, tokenizer: Any, rows: list[dict], seed: int
):
    """The model, trained by one of TRL's trainers."""
    from datasets import Dataset

    with tempfile.TemporaryDirectory() as scratch:
        args = config_class(output_dir=scratch, logging_steps=100, seed=seed, **fields, **_ON_CPU)
        trainer = trainer_class(model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer.model


def _save(model, tokenizer, folder: Path) -> Path:
    """Weights in half the bytes, rounded to fp16, of a model whose config says fp32: every library computes in fp32."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = folder / "tokenizer_config.json"
    known = json.loads(about.read_text()) | {
        "tokenizer_class": "PreTrainedTokenizerFast"
    }  # transformers 4 knows no other
    about.write_text(json.dumps({k: v for k, v in known.items() if k != "backend"}, indent=2) + "\n")
    path = folder / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    return folder


@contextlib.contextmanager
def _quietly():
    """One thread, the caller's random state kept, and nothing of the trainer's on the screen."""
    with one_thread(), _preserved_rng(), contextlib.redirect_stdout(io.StringIO()):
        yield


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
def _preserved_rng():
    """Leave Python's, numpy's and torch's random state as it was, whatever runs inside."""
    states = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            numpy.random.set_state(states[1])


MODELS = ("starter-qwen2", "starter-gpt2", "search-qwen2", "preferences")


def difference(made: Path) -> list[str]:
    """How far the toys in a folder that `make_toys` filled differ from the shipped ones, a line a thing."""
    return [
        f"corpus: {rows(corpus(made), corpus(SHIPPED))}",
        *(f"{name}: {_of_model(made / name, SHIPPED / name)}" for name in MODELS),
    ]


def rows(made: list[dict[str, str]], shipped: list[dict[str, str]]) -> str:
    """What is equal of two corpora."""
    if made == shipped:
        return f"identical, {len(made)} rows"
    ours, theirs = ({tuple(row.values()) for row in each} for each in (made, shipped))
    return (
        f"{len(ours & theirs)} rows as shipped, {len(theirs - ours)} shipped rows missing, {len(ours - theirs)} other"
    )


def _of_model(made: Path, shipped: Path) -> str:
    from safetensors.torch import load_file

    texts = [(folder / "tokenizer.json").read_bytes() for folder in (made, shipped)]
    tokenizer = "tokenizer identical" if texts[0] == texts[1] else "tokenizer differs"
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (made, shipped))
    if {name: w.shape for name, w in ours.items()} != {name: w.shape for name, w in theirs.items()}:
        return f"{tokenizer}, weights of other shapes"
    furthest = max(float((ours[name].float() - theirs[name].float()).abs().max()) for name in ours)
    return f"{tokenizer}, weights differ by up to {furthest:.2g}" if furthest else f"{tokenizer}, weights identical"


def main(argv: list[str] | None = None) -> int:
    """Make the toys, print how far they differ, and keep them where `--out` says."""
    about = __doc__.splitlines()[0].rpartition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m tools.make_toys", description=about)
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights and of the order of rows; 0 made the shipped toys"
    )
    parser.add_argument("--out", type=Path, help="new folder to keep them in, for WORKBENCH_TOYS; default: not kept")
    parser.add_argument("--docstrings", action="store_true", help="train on this Python's docstrings instead")
    args = parser.parse_args(argv)
    if args.out and args.out.exists() and any(args.out.iterdir()) and not (args.out / "manifest.json").is_file():
        raise ParameterError(f"--out {args.out}: holds other files; expected a new folder or one of earlier toys")

    from datasets import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    own, shipped = docstring_corpus(), corpus(SHIPPED)
    print(f"docstrings of Python {platform.python_version()}: {rows(own, shipped)}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "toys"
        print(f"training {', '.join(MODELS)}: about 2 minutes", flush=True)
        make_toys(made, own if args.docstrings else shipped, args.seed)
        print(*difference(made), sep="\n", flush=True)
        if args.out:
            shutil.copytree(made, args.out, dirs_exist_ok=True)
            print(f"kept in {args.out}; WORKBENCH_TOYS={args.out.resolve()} makes the package use them")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ParameterError as error:
        sys.exit(f"error: {error}")
