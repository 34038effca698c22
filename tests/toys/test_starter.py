import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from workbench.errors import ParameterError
from workbench.toys import cache as toy_cache
from workbench.toys import starter


@pytest.fixture(scope="module")
def corpus():
    return starter.load_corpus()


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return starter.build_tokenizer(corpus)


# --- text ----------------------------------------------------------------------------------------------------------


def test_the_corpus_has_about_5900_pairs(corpus):
    assert 4500 < len(corpus) < 8000  # other Python versions have somewhat other docstrings


def test_every_prompt_is_module_signature_and_tldr(corpus):
    for row in corpus:
        lines = row["prompt"].split("\n")
        assert len(lines) == 3
        assert lines[1].startswith(("def ", "class "))
        assert lines[2] == "TL;DR:"


def test_every_completion_is_one_sentence_of_10_to_90_characters(corpus):
    assert all(row["completion"].startswith(" ") and 10 <= len(row["completion"][1:]) <= 90 for row in corpus)
    assert not any("\n" in row["completion"] for row in corpus)


def test_no_prompt_and_no_completion_stands_twice(corpus):
    for column in ("prompt", "completion"):
        assert len({row[column] for row in corpus}) == len(corpus)


def test_a_known_function_is_there(corpus):
    prompts = [row["prompt"] for row in corpus]
    assert any(p == "textwrap\ndef dedent(text)\nTL;DR:" for p in prompts)


def test_the_corpus_is_read_from_the_cache_the_second_time_and_mended_when_half_written(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "load_corpus", lambda: corpus)  # saves 10 s; the real one is tested above
    assert starter.starter_corpus(tmp_path) == corpus
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps([{"prompt": "cached", "completion": "yes"}]))
    assert starter.starter_corpus(tmp_path)[0]["prompt"] == "cached"
    file.write_text('[{"prompt": "ca')
    assert starter.starter_corpus(tmp_path) == corpus


def test_one_changed_letter_changes_the_hash(corpus):
    other = [corpus[0] | {"completion": corpus[0]["completion"] + "."}, *corpus[1:]]
    assert starter.corpus_hash(other) != starter.corpus_hash(corpus) == starter.corpus_hash(list(corpus))


# --- tokenizer -----------------------------------------------------------------------------------------------------


def test_the_tokenizer_has_2048_entries_an_eos_and_a_pad_token_of_its_own(tokenizer):
    assert len(tokenizer) == 2048
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"


def test_text_comes_back_from_its_tokens(tokenizer, corpus):
    texts = [corpus[0]["prompt"], corpus[-1]["completion"], "naïve 日本 \t\n  x", ""]
    assert [tokenizer.decode(tokenizer(text).input_ids) for text in texts] == texts


def test_eos_is_one_token_wherever_it_stands(tokenizer):
    assert tokenizer("a" + tokenizer.eos_token).input_ids[-1] == tokenizer.eos_token_id


def test_search_tokens_are_text_at_first_and_one_token_each_once_added(corpus):
    tokenizer = starter.build_tokenizer(corpus)
    call = ["<search>", "</search>"]
    assert all(len(tokenizer(t).input_ids) > 1 for t in call)
    assert tokenizer.add_tokens(call) == 2
    assert [tokenizer(t).input_ids for t in call] == [[2048], [2049]]


def test_the_same_corpus_gives_the_same_tokenizer(tokenizer, corpus):
    assert starter.build_tokenizer(corpus).get_vocab() == tokenizer.get_vocab()


# --- model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", starter.ARCHITECTURES)
def test_a_model_has_about_650_thousand_parameters_heads_of_32_and_fp32(tokenizer, architecture):
    model = starter.build_model(tokenizer, architecture)
    assert 550_000 < model.num_parameters() < 800_000
    assert model.config.hidden_size // model.config.num_attention_heads == 32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


def test_only_the_gpt2_variant_has_learned_positions(tokenizer):
    names = {a: [n for n, _ in starter.build_model(tokenizer, a).named_parameters()] for a in starter.ARCHITECTURES}
    assert {a: any(".wpe." in n for n in names[a]) for a in names} == {"qwen2": False, "gpt2": True}


def test_the_seed_decides_the_weights_and_the_caller_s_random_state_stays(tokenizer):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (next(starter.build_model(tokenizer, seed=s).parameters()) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("make", [lambda: starter.build_model(None, "llama"), lambda: starter.starter_model("llama")])
def test_an_unknown_architecture_names_the_ones_there_are(make):
    with pytest.raises(ParameterError, match="architecture='llama': expected one of qwen2, gpt2"):
        make()


# --- cache ---------------------------------------------------------------------------------------------------------

SHORT = {"max_steps": 3, "warmup_steps": 1}  # the cache does not care how well the model was trained


@pytest.fixture
def cache(monkeypatch, tmp_path, corpus):
    """An empty cache but for the corpus, which takes seconds to parse."""
    monkeypatch.setattr(starter, "_SFT", starter._SFT | SHORT)
    monkeypatch.setattr(starter, "load_corpus", lambda: corpus)
    starter.starter_corpus(tmp_path)
    return tmp_path


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def break_a_byte(folder: Path) -> None:
    data = bytearray(weights(folder))
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


@pytest.mark.slow
def test_a_model_is_built_once_and_leaves_the_caller_s_random_state_and_threads(cache):
    states = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].copy(), torch.get_num_threads()
    folder = starter.starter_model(cache_dir=cache)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (numpy.random.get_state()[1] == states[2]).all()
    assert torch.get_num_threads() == states[3]

    made = (folder / "manifest.json").stat().st_mtime_ns
    assert starter.starter_model(cache_dir=cache) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == made
    left = {p.name for p in cache.iterdir()} - {folder.name, f"{folder.name}.lock"}
    assert [name for name in left if not name.startswith("corpus-")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [break_a_byte, lambda folder: (folder / "manifest.json").unlink(), lambda folder: (folder / "config.json").unlink(),
     lambda folder: [p.unlink() for p in folder.iterdir()]],
    ids=["a wrong byte", "no manifest: half written", "a file missing", "empty folder"],
)  # fmt: skip
def test_a_damaged_cache_is_built_again_with_the_same_weights(cache, damage):
    folder = starter.starter_model(cache_dir=cache)
    good = weights(folder)
    damage(folder)
    assert starter.starter_model(cache_dir=cache) == folder
    assert weights(folder) == good


@pytest.mark.slow
@pytest.mark.parametrize("open_to_others", [".", "manifest.json", "model.safetensors"])
def test_a_cached_model_that_others_could_have_rewritten_with_its_hashes_is_built_again(cache, open_to_others):
    folder = starter.starter_model(cache_dir=cache)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 1.0}))
    (folder / "manifest.json").write_text(json.dumps(toy_cache._file_hashes(folder)))
    (folder / open_to_others).chmod(0o777)
    assert starter.starter_model(cache_dir=cache) == folder
    assert json.loads((folder / "config.json").read_text()) == config
    assert not folder.stat().st_mode & 0o022


def test_a_cached_model_of_another_user_is_refused(cache, monkeypatch):
    folder = starter.starter_model(cache_dir=cache)
    real = type(folder).lstat

    def others(path):
        about = list(real(path))
        about[4] = os.getuid() + 1 if path == folder else about[4]
        return os.stat_result(about)

    monkeypatch.setattr(type(folder), "lstat", others)
    with pytest.raises(ParameterError, match=r"belongs to another user.*WORKBENCH_CACHE"):
        starter.starter_model(cache_dir=cache)


def test_two_processes_at_once_build_once_and_get_the_same_folder(cache):
    code = f"""
from workbench.toys import starter
starter._SFT |= {SHORT}
build = starter._build
starter._build = lambda *a: (print("built"), build(*a))
print("folder", starter.starter_model(cache_dir={str(cache)!r}))"""
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(2)]
    lines = [process.communicate()[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(line == "built" for output in lines for line in output) == 1
    assert len({line for output in lines for line in output if line.startswith("folder")}) == 1


@pytest.mark.slow
def test_processes_of_one_training_do_not_wait_for_each_other(cache):
    script = cache / "first_use.py"
    script.write_text(
        "from workbench.toys import starter\n"
        f"starter._SFT |= {SHORT}\n"
        f"print('folder', starter.starter_model(cache_dir={str(cache)!r}))\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    launch += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(script)]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = [Path(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("folder")]
    alone = starter.starter_model(cache_dir=cache / "alone")
    assert first == second and weights(first) == weights(alone)


def test_what_decides_the_weights_decides_the_folder(cache, monkeypatch, corpus):
    key = starter._cache_key(corpus, "qwen2")
    assert key == starter._cache_key(list(corpus), "qwen2")
    assert key != starter._cache_key(corpus[1:], "qwen2")
    assert key != starter._cache_key(corpus, "gpt2")
    monkeypatch.setitem(starter._SFT, "learning_rate", 1e-3)
    assert key != starter._cache_key(corpus, "qwen2")


@pytest.mark.slow
def test_the_warm_started_model_writes_short_text_and_ends_it(starter_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    model = AutoModelForCausalLM.from_pretrained(starter_folder)
    prompts = [row["prompt"] for row in starter.starter_corpus()[::200]]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    torch.manual_seed(0)
    ids = model.generate(**batch, do_sample=True, max_new_tokens=64)[:, batch.input_ids.shape[1] :]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    ended = (ids == tokenizer.eos_token_id).any(1).float().mean()
    lengths = [len(text) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert ended > 0.9
    assert 30 < sum(lengths) / len(lengths) < 75
