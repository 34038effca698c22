import json
import shutil
import subprocess
import sys

import pytest
import torch

from tools.make_toys import MODELS, difference, main, rows
from workbench.errors import ParameterError
from workbench.experiments.toys.preferences import preference_model
from workbench.experiments.toys.search_task import search_model
from workbench.experiments.toys.starter import ARCHITECTURES, SHIPPED, starter_corpus, starter_model, toy, toy_hash

EVERY = [*(lambda a=a: starter_model(a) for a in ARCHITECTURES), search_model, preference_model]
each_model = pytest.mark.parametrize("folder", EVERY, ids=MODELS)


@pytest.fixture(scope="module")
def corpus():
    return starter_corpus()


# --- what is shipped --------------------------------------------------------------------------------------------------


def test_the_manifest_names_every_file_and_all_are_under_8_mb():
    files = {path.relative_to(SHIPPED).as_posix() for path in SHIPPED.rglob("*") if path.is_file()} - {"manifest.json"}
    manifest = json.loads((SHIPPED / "manifest.json").read_text())
    assert manifest["files"].keys() == files
    assert {"seed", "settings", "python", "libraries", "cpu"} <= manifest.keys()
    assert "PSF" in manifest["corpus"] and "PYTHON SOFTWARE FOUNDATION" in (SHIPPED / "PYTHON-LICENSE.txt").read_text()
    assert sum((SHIPPED / name).stat().st_size for name in files) < 8e6
    assert (SHIPPED / "corpus.json.gz").stat().st_size < 200_000


def test_every_shipped_file_is_what_the_manifest_says(monkeypatch):
    monkeypatch.delenv("WORKBENCH_TOYS", raising=False)
    for name in (*MODELS, "corpus.json.gz", "PYTHON-LICENSE.txt"):
        assert toy(name).is_relative_to(SHIPPED)


def test_the_toys_are_there_at_once_without_a_training_library():
    code = """
import sys
from workbench.experiments.toys.preferences import preference_model
from workbench.experiments.toys.search_task import search_model
from workbench.experiments.toys.starter import starter_corpus, starter_model
folders = [starter_model(), starter_model("gpt2"), search_model(), preference_model()]
assert all((folder / "model.safetensors").is_file() for folder in folders) and len(starter_corpus()) > 5000
print(*sys.modules)"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "trl", "datasets", "numpy"} & set(loaded)


@each_model
def test_models_compute_in_fp32_and_are_stored_in_half_the_bytes(folder):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    auto = AutoModelForSequenceClassification if folder is preference_model else AutoModelForCausalLM
    model = auto.from_pretrained(folder())
    assert model.dtype == torch.float32 == model.config.dtype
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    stored = load_file(folder() / "model.safetensors")
    assert {w.dtype for w in stored.values()} == {torch.float16}
    assert sum(w.numel() for w in stored.values()) == model.num_parameters()  # no tied head stands twice


def test_an_unknown_architecture_names_the_ones_there_are():
    with pytest.raises(ParameterError, match="architecture='llama': expected one of qwen2, gpt2"):
        starter_model("llama")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The shipped toys in a folder of their own, which the package uses."""
    monkeypatch.setenv("WORKBENCH_TOYS", str(shutil.copytree(SHIPPED, tmp_path / "toys")))
    return tmp_path / "toys"


def test_toys_of_another_folder_are_used_if_the_environment_asks(copied):
    assert starter_model() == copied / "starter-qwen2" and preference_model() == copied / "preferences"
    assert starter_corpus()[0]["prompt"].endswith("TL;DR:")


@pytest.mark.parametrize("damage, found", [
    (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"), r"found [0-9a-f]{64}"),
    (lambda path: path.unlink(), "found no such file"),
], ids=["a wrong byte", "a file missing"])  # fmt: skip
def test_a_damaged_file_is_named_with_its_hash_and_what_to_do(copied, damage, found):
    expected = toy_hash("search-qwen2/model.safetensors")
    damage(copied / "search-qwen2" / "model.safetensors")
    with pytest.raises(ParameterError) as caught:
        search_model()
    assert caught.match(rf"search-qwen2/model.safetensors: expected sha256 {expected}, {found}; WORKBENCH_TOYS")
    assert starter_model().is_dir()  # the others are as they were


def test_a_folder_without_toys_says_how_they_are_made(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_TOYS", str(tmp_path))
    with pytest.raises(ParameterError, match=r"manifest.json: cannot be read .*python -m tools.make_toys --out FOLDER"):
        starter_corpus()


# --- text ----------------------------------------------------------------------------------------------------------


def test_rows_are_distinct_with_a_signature_and_a_short_sentence(corpus):
    for row in corpus:
        _, signature, tldr = row["prompt"].split("\n")
        assert signature.startswith(("def ", "class ")) and tldr == "TL;DR:"
        assert row["completion"].startswith(" ") and 10 <= len(row["completion"][1:]) <= 90
        assert "\n" not in row["completion"]
    for column in ("prompt", "completion"):
        assert len({row[column] for row in corpus}) == len(corpus)


def test_the_docstrings_of_a_folder_become_rows(tmp_path):
    from tools.make_toys import docstring_corpus

    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text(
        'class Note:\n    """A note to keep. With more."""\ndef f(a, *, b):\n    """Too short"""\n'
        'def copy(a, *, b):\n    """A note\n    to keep."""\ndef add(x):\n    """Add one to x.\n\n    More."""\n'
    )
    (tmp_path / "broken.py").write_text("print 'python 2'")
    assert docstring_corpus(tmp_path) == [
        {"prompt": "lib\nclass Note\nTL;DR:", "completion": " A note to keep."},
        {"prompt": "lib\ndef add(x)\nTL;DR:", "completion": " Add one to x."},
    ]


# --- tokenizer -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(starter_model())


def test_the_2048_tokens_have_eos_and_pad_apart_and_lose_no_text(tokenizer, corpus):
    assert len(tokenizer) == 2048
    texts = [corpus[0]["prompt"], corpus[-1]["completion"], "naïve 日本 \t\n  x", ""]
    assert [tokenizer.decode(tokenizer(text).input_ids) for text in texts] == texts
    assert tokenizer("a" + tokenizer.eos_token).input_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"


def test_search_tokens_are_text_until_added_then_one_token_each():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(starter_model())
    call = ["<search>", "</search>"]
    assert all(len(tokenizer(t).input_ids) > 1 for t in call)
    assert tokenizer.add_tokens(call) == 2
    assert [tokenizer(t).input_ids for t in call] == [[2048], [2049]]


@each_model
def test_a_tokenizer_loaded_or_saved_again_has_its_models_tokens(folder, corpus, tmp_path):
    from transformers import AutoConfig, AutoTokenizer

    from tools.make_toys import build_tokenizer
    from workbench.experiments.toys.search_task import search_corpus

    rows = search_corpus() if folder is search_model else corpus
    trained, loaded = build_tokenizer(rows), AutoTokenizer.from_pretrained(folder())
    loaded.save_pretrained(tmp_path)
    AutoConfig.from_pretrained(folder()).save_pretrained(tmp_path)
    texts = [row["prompt"] + row["completion"] + trained.eos_token for row in rows[::20]] + [
        "naïve 日本 it's 1234\t\n  x"
    ]
    for tokenizer in (loaded, AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer.get_vocab() == trained.get_vocab()
        assert [tokenizer(text).input_ids for text in texts] == [trained(text).input_ids for text in texts]
        assert len(tokenizer) == AutoConfig.from_pretrained(folder()).vocab_size  # each id has its row of embeddings
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)


# --- model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_has_650_thousand_fp32_parameters_in_heads_of_32(tokenizer, architecture):
    from tools.make_toys import build_model

    model = build_model(tokenizer, architecture)
    assert 550_000 < model.num_parameters() < 800_000
    assert model.config.hidden_size // model.config.num_attention_heads == 32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


def test_only_the_gpt2_variant_has_learned_positions():
    from safetensors.torch import load_file

    names = {a: load_file(starter_model(a) / "model.safetensors").keys() for a in ARCHITECTURES}
    assert {a: any("wpe" in n for n in names[a]) for a in names} == {"qwen2": False, "gpt2": True}


def test_the_seed_decides_the_weights_and_no_random_state_moves(tokenizer):
    from tools.make_toys import build_model

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (next(build_model(tokenizer, seed=s).parameters()) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_starter_writes_short_text_and_ends_it(architecture, corpus):
    ids, tokenizer, model = sampled(starter_model(architecture), [row["prompt"] for row in corpus[::200]])
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    ended = (ids == tokenizer.eos_token_id).any(1).float().mean()
    lengths = [len(text) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert ended > 0.9
    assert 30 < sum(lengths) / len(lengths) < 75


def sampled(folder, prompts):
    """Token ids after the prompts, with tokenizer and model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    batch = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ids = model.generate(**batch, do_sample=True, max_new_tokens=64)[:, batch.input_ids.shape[1] :]
    return ids, tokenizer, model


# --- made again ----------------------------------------------------------------------------------------------------


def test_shipped_toys_beside_themselves_are_identical():
    corpus, *models = difference(SHIPPED)
    assert corpus == "corpus: identical, 5897 rows"
    assert models == [f"{name}: tokenizer identical, weights identical" for name in MODELS]


def test_a_changed_weight_and_a_missing_row_are_told(copied):
    from safetensors.torch import load_file, save_file

    path = copied / "search-qwen2" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] += 0.5
    save_file(weights, path, metadata={"format": "pt"})
    changed = next(line for line in difference(copied) if line.startswith("search"))
    assert changed == "search-qwen2: tokenizer identical, weights differ by up to 0.5"
    row = {"prompt": "a", "completion": "b"}
    assert rows([row], [row, row | {"prompt": "c"}]) == "1 rows as shipped, 1 shipped rows missing, 0 other"


def test_the_command_does_not_write_among_other_files(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ParameterError, match="holds other files; expected a new folder"):
        main(["--out", str(tmp_path)])


@pytest.mark.slow
def test_model_made_again_is_saved_as_shipped(monkeypatch, corpus, tmp_path):
    import random

    import numpy
    from transformers import AutoModelForCausalLM

    from tools import make_toys as make

    monkeypatch.setattr(make, "_SFT", make._SFT | {"max_steps": 2, "warmup_steps": 1})
    states = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].copy(), torch.get_num_threads()
    first, again, other = (make.make_model(corpus[:64], tmp_path / str(n), seed=s) for n, s in enumerate((0, 0, 1)))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (numpy.random.get_state()[1] == states[2]).all()
    assert torch.get_num_threads() == states[3]

    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert {path.name for path in first.iterdir()} == {path.name for path in starter_model().iterdir()}
    assert AutoModelForCausalLM.from_pretrained(first).dtype == torch.float32
