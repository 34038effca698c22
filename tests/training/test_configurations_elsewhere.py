"""Options in two processes (helpers/configurations_in_two_processes.py) and on vLLM in process (configurations_on_vllm.py)."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import conftest
import pandas as pd
import pytest
from configuration_models import TURN_END, llama2_like, saved, tokenizer
from configuration_runs import BATCH, LIMIT, POLICY, STEPS, STOP, G, assert_equal, assert_promises, assert_turns
from configuration_table import shows
from transformers import AutoTokenizer

from workbench.runs.files import read_json
from workbench.runs.run import Run

pytestmark = pytest.mark.slow

# --- two processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each process says of each trainer."""
    folder = tmp_path_factory.mktemp("two")
    conftest.in_two_processes("configurations_in_two_processes.py", folder)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.rare
@shows("two processes")
def test_without_custom_stops_both_processes_train_as_stock_does(kind, two):
    for said in two:
        assert len(said[kind]["stock"][0]) == STEPS
        assert_equal(said[kind])


@pytest.mark.rare
@shows("two processes", says="both processes end, and every step and row is recorded once")
def test_both_end_and_every_step_and_row_is_recorded_once(kind, two):
    assert [of[kind]["steps"] for of in two] == [STEPS, STEPS]
    run = Run(Path(two[0][kind]["folder"]))
    assert run.metrics["step"].tolist() == list(range(1, STEPS + 1))
    assert read_json(run.path / "progress.json", {})["finished"]
    rows = run.completions
    assert rows.groupby("step").size().tolist() == [(4 if kind == "PPO" else 2) * BATCH] * STEPS
    if kind != "PPO":
        seen = sorted(map(tuple, two[0][kind]["seen"] + two[1][kind]["seen"]))
        kept = sorted(zip(rows["completion"], rows["reward"], strict=True))
        assert [text for text, _ in kept] == [text for text, _ in seen]
        assert [score for _, score in kept] == pytest.approx([score for _, score in seen], abs=1e-4)
        assert (rows.groupby(["step", "prompt"]).size() % G == 0).all()


@pytest.mark.rare
@shows("two processes", says="the log covers the rows of both processes")
def test_the_log_is_of_the_rows_of_both(kind, two):
    run = Run(Path(two[0][kind]["folder"]))
    rows, metrics = run.completions, run.metrics.set_index("step")
    cut = rows["finish_reason"] == "length"
    assert (rows["completion_tokens"][cut] == LIMIT).all()
    assert not cut[rows["completion"].str.endswith(STOP)].any()
    means = rows.groupby("step")["reward"].mean().tolist()
    assert metrics["objective/scores" if kind == "PPO" else "reward"].tolist() == pytest.approx(means, rel=1e-4)
    share = cut.groupby(rows["step"]).mean().tolist()
    for name in ("stops/clipped_ratio", *([] if kind == "PPO" else ["completions/clipped_ratio"])):
        assert metrics[name].tolist() == pytest.approx(share)


# --- vLLM ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_vllm(tmp_path_factory):
    """Case -> what came of it, of those that are tried from day to day."""
    return conftest.on_vllm("configurations_on_vllm", str(tmp_path_factory.mktemp("vllm")), "lora", "correction")


@pytest.fixture(scope="module")
def rare_on_vllm(tmp_path_factory):
    return conftest.on_vllm("configurations_on_vllm", str(tmp_path_factory.mktemp("vllm")), "seeds", "tools", "tokens")


def of(outcome: dict) -> SimpleNamespace:
    return SimpleNamespace(**outcome | {name: pd.DataFrame(outcome[name]) for name in ("rows", "metrics")})


def assert_ended(kind: str, outcome: dict, tokenizer, strings=(), eos=None) -> None:
    got = of(outcome)
    assert_promises(kind, got, tokenizer, strings, eos)
    assert len(got.ids) == BATCH * STEPS and "stop" in set(got.rows["finish_reason"])
    assert got.rows["engine_finish_reason"].tolist() == got.rows["finish_reason"].tolist()


def assert_same_as_sampled(outcome: dict) -> None:
    """A row whose log-probs were shifted by a tool's answer, or sampled without the adapter, would be nats apart."""
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-3 for line in outcome["log"])


@pytest.mark.rare
@pytest.mark.parametrize("case", ["ours", "environment"])
@shows("tools on vLLM", says="both turns end at the stop; sampled and scored log-probs agree token by token")
def test_both_turns_end_at_the_stop_on_vllm(kind, case, rare_on_vllm):
    assert_turns(of(rare_on_vllm["tools"][case]))
    assert_same_as_sampled(rare_on_vllm["tools"][case])


@pytest.mark.rare
@shows("rollout", says="the rows of a rollout function that asks the engine itself stay as they are")
def test_a_rollout_function_that_asks_the_engine_is_not_touched(kind, rare_on_vllm):
    got = rare_on_vllm["tools"]["rollout"]
    assert_turns(of(got), several=False)
    assert len(set(map(tuple, got["ids"]))) > 1
    assert_same_as_sampled(got)


@shows("LoRA on vLLM", says="the engine samples from the policy with its adapter; the base weights stay as they were")
def test_the_engine_samples_from_the_policy_with_its_adapter(kind, on_vllm):
    got = on_vllm["lora"][kind]
    assert got["kept"]
    assert all(line["sampler/difference"] < 1e-4 and line["sampler/steps_behind"] == 0 for line in got["log"])
    if kind == "GRPO":
        assert_same_as_sampled(got)


@shows("LoRA on vLLM")
def test_its_rows_end_at_the_stop_and_are_recorded_once(kind, on_vllm):
    assert_ended(kind, on_vllm["lora"][kind], tokenizer(), (STOP,))


@pytest.mark.parametrize("mode", ["None", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@shows("correction", says="with the correction on and off it trains as stock TRL does on the same samples")
def test_with_the_correction_it_trains_as_stock_does(kind, mode, on_vllm):
    got = on_vllm["correction"][mode]
    assert_equal(got)
    lines = got["stock"][0]
    assert len(lines) == 2 and ("sampling/importance_sampling_ratio/mean" in lines[0]) == (mode != "None")


@shows("correction", says="masking in the correction changes what is learned")
def test_masking_in_the_correction_changes_what_is_learned(kind, on_vllm):
    learned = {mode: got["learned"] for mode, got in on_vllm["correction"].items()}
    assert len({learned["None"], learned["token_mask"], learned["sequence_mask"]}) == 3


@pytest.mark.rare
@pytest.mark.parametrize("kind", POLICY)
def test_one_seed_samples_the_same_and_another_one_other_rows(kind, rare_on_vllm):
    """TRL's engine seeds the process alike for every seed."""
    one, again, other = rare_on_vllm["seeds"][kind]
    assert one == again and len(set(one)) > 1
    assert sum(text != unlike for text, unlike in zip(one, other, strict=True)) > len(one) / 2


@pytest.mark.rare
@shows("SentencePiece on vLLM")
def test_with_byte_fallback_rows_end_where_the_engine_ended_them(kind, rare_on_vllm):
    got = rare_on_vllm["tokens"][f"llama2 {kind}"]
    assert_ended(kind, got, AutoTokenizer.from_pretrained(saved(llama2_like)), ("e", " s"))
    assert any("\ufffd" in text for text in got["texts"])


@pytest.mark.rare
@shows("several EOS on vLLM")
def test_rows_end_at_every_eos_on_vllm_too(kind, rare_on_vllm):
    own = copy.deepcopy(tokenizer())
    own.add_special_tokens({"additional_special_tokens": [TURN_END]})
    got, eos = rare_on_vllm["tokens"][f"llama3 {kind}"], [own.eos_token_id, own.convert_tokens_to_ids(TURN_END)]
    assert_ended(kind, got, own, eos=eos)
    assert {ids[-1] for ids in got["ids"]} > set(eos)
