"""Rollouts are the same on every back end, and the stop audit tells the truth about them."""

import functools
from pathlib import Path

import pandas as pd
import pytest
import rollout_engine
import torch
from conftest import result_of
from rollout_engine import LIMIT
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench.errors import ParameterError
from workbench.generation.rollouts import Rollout, Sampling, ServerSampler, TransformersSampler, generate
from workbench.generation.stop_audit import stop_report
from workbench.generation.stops import StopSpec
from workbench.toys import starter

LABELS = ("eos", "id", "string", "two of each", "no eos", "minimum")
ALIKE = ("ids", "text", "reason", "stop")


# --- one engine against the other ----------------------------------------------------------------------------------


@functools.cache
def vllm_rollouts():
    return result_of("rollout_engine.py")


@functools.cache
def transformers_engine():
    folder = starter.starter_model()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return TransformersSampler(model, AutoTokenizer.from_pretrained(folder))


@functools.cache
def transformers_rollouts():
    return rollout_engine.greedy(transformers_engine())


def alike(rows) -> list[dict]:
    return [{name: row[name] for name in ALIKE} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_greedy_decoding_gives_the_same_ids_and_ends_on_transformers_and_vllm(label):
    ours, theirs = transformers_rollouts()[label], vllm_rollouts()["greedy"][label]
    assert len(ours) == 64
    assert alike(theirs) == alike(ours)
    for row, other in zip(ours, theirs, strict=True):
        assert len(row["logprobs"]) == len(row["ids"])
        assert other["logprobs"] == pytest.approx(row["logprobs"], abs=1e-4)


@pytest.mark.slow
def test_the_specs_part_the_rows_so_that_equal_rows_mean_something():
    rows = transformers_rollouts()
    together = {label: [r["ids"] for r in rows[label]] for label in LABELS}
    assert all(together[a] != together[b] for a in LABELS for b in LABELS if a < b)
    assert len({tuple(ids) for ids in together["eos"]}) > 16
    for label in LABELS:
        assert sum(r["reason"] == "stop" for r in rows[label]) > 16
    kinds = {type(r["stop"]) for r in rows["two of each"]}
    assert {int, str} <= kinds
    assert any(r["reason"] == "length" for label in LABELS for r in rows[label])


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_vllm_reports_the_finish_reason_that_we_find_in_every_row(label):
    rows = vllm_rollouts()["greedy"][label]
    assert [r["engine"] for r in rows] == [r["reason"] for r in rows]


@pytest.mark.slow
def test_greedy_decoding_gives_the_same_ids_and_ends_on_a_vllm_server(vllm_server):
    engine = ServerSampler(vllm_server, transformers_engine().tokenizer)
    for label, rows in rollout_engine.greedy(engine, 8).items():
        assert alike(rows) == alike(transformers_rollouts()[label][:8])
        assert [r["engine"] for r in rows] == [r["reason"] for r in rows]


def check_seeds(rolled) -> None:
    first, again, other = rolled
    assert alike(first) == alike(again)
    for row, repeated in zip(first, again, strict=True):  # a cached prefix may round otherwise
        assert repeated["logprobs"] == pytest.approx(row["logprobs"], abs=1e-4)
    assert [r["ids"] for r in first] != [r["ids"] for r in other]
    pairs = zip(first[::2], first[1::2], strict=True)
    assert any(a["ids"] != b["ids"] for a, b in pairs)  # a seed is of the call, not of each row


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["transformers", "vllm"])
def test_the_same_seed_repeats_the_rollouts_and_another_gives_others(backend):
    check_seeds(vllm_rollouts()["seeded"] if backend == "vllm" else rollout_engine.seeded(transformers_engine()))


@pytest.mark.slow
def test_on_a_server_too(vllm_server):
    check_seeds(rollout_engine.seeded(ServerSampler(vllm_server, transformers_engine().tokenizer)))


@pytest.mark.slow
def test_generate_leaves_the_models_generation_config_as_it_was():
    engine = transformers_engine()
    before = engine.model.generation_config.to_dict()
    generate(engine, ["x"], stops=StopSpec(token_ids=(40,)), sampling=Sampling(4))
    assert engine.model.generation_config.to_dict() == before


@pytest.mark.slow
def test_transformers_computes_as_many_steps_as_the_longest_row_needs():
    rolled = generate(transformers_engine(), rollout_engine.prompts(8), sampling=rollout_engine.GREEDY)
    longest = max(len(r.completion_ids) for r in rolled)
    assert longest < LIMIT
    assert {r.sampled_tokens for r in rolled} == {longest}


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_completion_length": 0}, "max_completion_length=0"),
        ({"num_generations": 0}, "num_generations=0"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"top_p": 0}, "top_p=0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_k": -1}, "top_k=-1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": float("nan")}, "top_p=nan"),
    ],
)
def test_sampling_that_means_nothing_is_refused(fields, message):
    with pytest.raises(ParameterError, match=message):
        Sampling(**fields)


@functools.cache
def toy_tokenizer():
    return starter.build_tokenizer([{"prompt": "ask", "completion": " <search>topic</search> done."}] * 2)


class NeverAsked:
    """An engine that no refused call may reach."""

    tokenizer = property(lambda self: toy_tokenizer())

    def sample(self, *_):
        raise AssertionError("sampled")


@pytest.mark.parametrize(
    ("prompts", "stops", "message"),
    [
        ([], None, "prompts is empty"),
        (["ask"], StopSpec(token_ids=(99_999,)), "outside the vocabulary"),
        (["ask"], StopSpec(min_tokens=64), "within 64 tokens"),
        (["ask", ""], None, "prompt 1 is empty"),
    ],
)
def test_calls_that_cannot_work_are_refused_before_the_engine_is_asked(prompts, stops, message):
    with pytest.raises(ParameterError, match=message):
        generate(NeverAsked(), prompts, stops=stops)


# --- stop audit ----------------------------------------------------------------------------------------------------


def rollout(text, reason="stop", engine="stop", sampled=None):
    ids = tuple(toy_tokenizer().encode(text))
    return Rollout("ask", (5,), ids, text, reason, None, engine, sampled or len(ids))


def test_the_audit_of_rollouts_counts_what_stopped_what_trl_sees_and_what_was_wasted():
    eos = toy_tokenizer().eos_token
    rolled = [rollout("topic</search>", sampled=20), rollout(f"done.{eos}", sampled=20)]
    rolled += [rollout("topic", "length", engine=engine) for engine in ("length", "stop")]
    report = stop_report(rolled, tokenizer=toy_tokenizer(), seconds=2.0)
    assert (report.rows, report.stopped, report.trl_stopped, report.engine_disagrees) == (4, 2, 1, 1)
    assert (report.clipped_ratio, report.trl_clipped_ratio) == (0.5, 0.75)
    useful = sum(len(r.completion_ids) for r in rolled)
    assert (report.useful_tokens, report.sampled_tokens) == (useful, 40 + 2 * len(rolled[2].completion_ids))
    assert report.wasted == pytest.approx(1 - useful / report.sampled_tokens)
    assert report.table().loc["seconds", "value"] == 2.0
    assert "trl_clipped_ratio" in report._repr_html_()


def test_without_an_engines_word_nothing_is_said_about_it():
    report = stop_report([rollout("topic", engine=None)], tokenizer=toy_tokenizer())
    assert report.engine_disagrees is None


def test_the_audit_of_a_recorded_table_reads_its_columns():
    table = pd.DataFrame(
        {
            "finish_reason": ["stop", "stop", "length"],
            "trl_finish_reason": ["length", "stop", "length"],
            "engine_finish_reason": ["stop", "length", ""],
            "completion_tokens": [3, 4, 8],
            "sampled_tokens": [8, 8, 8],
        }
    )
    report = stop_report(table)
    assert (report.rows, report.stopped, report.trl_stopped, report.engine_disagrees) == (3, 2, 1, 1)
    assert (report.useful_tokens, report.sampled_tokens) == (15, 24)
    old = stop_report(table[["finish_reason", "completion_tokens"]])
    assert (old.trl_stopped, old.trl_clipped_ratio, old.engine_disagrees, old.wasted) == (None, None, None, 0.0)


def test_the_audit_of_stocks_table_tells_custom_stops_from_eos_and_from_cuts():
    texts = ["topic</search>", "done.", "topic topic topic topic topic"]
    limit = len(toy_tokenizer().encode(texts[2]))
    stops = StopSpec(strings=("</search>",))
    report = stop_report(pd.DataFrame({"completion": texts}), tokenizer=toy_tokenizer(), stops=stops, limit=limit)
    assert (report.rows, report.stopped, report.trl_stopped) == (3, 2, 1)
    assert report.trl_clipped_ratio == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("completions", "fields", "message"),
    [
        ([], {}, "completions is empty"),
        (pd.DataFrame({"completion": []}), {}, "completions is empty"),
        ([Rollout("a", (5,), (6,), "b", "stop", None, None, 1)], {}, "tokenizer"),
        (pd.DataFrame({"completion": ["a"]}), {}, "tokenizer and limit"),
        (pd.DataFrame({"completion": ["a"]}), {"tokenizer": None, "limit": 4}, "tokenizer and limit"),
        (pd.DataFrame({"text": ["a"]}), {"limit": 4}, "text"),
    ],
)
def test_completions_that_cannot_be_audited_are_refused(completions, fields, message):
    with pytest.raises(ParameterError, match=message):
        stop_report(completions, **fields)


@pytest.mark.slow
def test_the_audit_of_live_rollouts_agrees_with_their_ends():
    engine = transformers_engine()
    spec = StopSpec(strings=("the ",))
    rolled = generate(engine, rollout_engine.prompts(16), stops=spec, sampling=Sampling(12, seed=1))
    report = stop_report(rolled, tokenizer=engine.tokenizer)
    by_string = sum(r.stop == "the " for r in rolled)
    by_eos = sum(r.stop == engine.tokenizer.eos_token_id for r in rolled)
    assert by_string and by_eos and by_string + by_eos < 16
    assert (report.stopped, report.trl_stopped) == (by_string + by_eos, by_eos)
    assert 0 < report.wasted < 1


@pytest.mark.slow
def test_the_audit_of_a_run_agrees_with_what_it_logged(tmp_path):
    from workbench.runs.run import Run
    from workbench.training.grpo import train_grpo
    from workbench.training.recipes import make_recipe
    from workbench.training.rewards import exact_match_reward

    recipe = make_recipe(
        "search", dataset="search", max_steps=2, per_device_train_batch_size=16, max_completion_length=7
    )
    stops = StopSpec(strings=("</search>",))
    train_grpo(recipe, reward_funcs=exact_match_reward(), out_dir=tmp_path, stops=stops)
    run = Run(tmp_path)
    report = stop_report(run.completions)
    assert report.rows == 32
    assert report.clipped_ratio == pytest.approx(run.metrics["completions/clipped_ratio"].mean())
    assert 0 < report.clipped_ratio < 0.5
    assert report.trl_clipped_ratio == 1  # nothing reaches EOS within seven tokens


@pytest.mark.slow
def test_the_audit_of_the_file_stock_wrote_agrees_with_what_stock_logged(tmp_path):
    import trl
    from small_runs import policy_trainer

    fields = {"output_dir": str(tmp_path), "log_completions": True, "max_steps": 2, "max_completion_length": 8}
    trainer = policy_trainer(trl.GRPOTrainer, fields)
    trainer.train()
    logged = [line["completions/clipped_ratio"] for line in trainer.state.log_history[:-1]]
    files = sorted(Path(tmp_path).glob("completions/*.parquet"))
    assert len(files) == 2
    for path, ratio in zip(files, logged, strict=True):
        report = stop_report(pd.read_parquet(path), tokenizer=trainer.processing_class, limit=8)
        assert report.rows == 32
        assert 0 < report.clipped_ratio < 1
        assert report.clipped_ratio == report.trl_clipped_ratio == pytest.approx(ratio)
