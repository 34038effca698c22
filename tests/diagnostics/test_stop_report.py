"""The stop audit tells the truth about rollouts, recorded completions and the files of stock TRL."""

import pandas as pd
import pytest
import rollout_engine
from generation_cases import toy_tokenizer, transformers_sampler
from samples import until_seen

from workbench.diagnostics.stop_report import stop_report
from workbench.errors import ParameterError
from workbench.generation.sampling import Rollout, Sampling, generate
from workbench.generation.stops import StopSpec


def rollout(text, reason="stop", engine="stop", sampled=None):
    ids = tuple(toy_tokenizer().encode(text))
    return Rollout("ask", (5,), ids, text, reason, None, engine, sampled or len(ids))


def test_the_audit_of_rollouts_counts_what_stopped_what_trl_sees_and_what_was_wasted():
    eos = toy_tokenizer().eos_token
    rolled = [rollout("topic</search>", sampled=20), rollout(f"done.{eos}", sampled=20)]
    rolled += [rollout("topic", "length", engine=engine) for engine in ("length", "stop")]
    report = stop_report(rolled, tokenizer=toy_tokenizer())
    assert (report.rows, report.stopped, report.trl_stopped, report.engine_disagrees) == (4, 2, 1, 1)
    assert (report.clipped_ratio, report.trl_clipped_ratio) == (0.5, 0.75)
    useful = sum(len(r.completion_ids) for r in rolled)
    assert (report.useful_tokens, report.sampled_tokens) == (useful, 40 + 2 * len(rolled[2].completion_ids))
    assert report.wasted == pytest.approx(1 - useful / report.sampled_tokens)
    assert report.table().loc["wasted", "value"] == report.wasted
    assert "trl_clipped_ratio" in report._repr_html_()


def test_without_an_engine_finish_reason_nothing_disagrees():
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


@pytest.mark.parametrize(
    ("completions", "message"),
    [
        ([], "completions is empty"),
        (pd.DataFrame({"finish_reason": []}), "completions is empty"),
        ([Rollout("a", (5,), (6,), "b", "stop", None, None, 1)], "tokenizer"),
        (pd.DataFrame({"completion": ["a"]}), r"\['completion'\]: expected the columns of a recorded run"),
    ],
)
def test_completions_that_cannot_be_counted_are_refused(completions, message):
    with pytest.raises(ParameterError, match=message):
        stop_report(completions)


@pytest.mark.slow
def test_the_audit_of_live_rollouts_agrees_with_their_ends():
    sampler = transformers_sampler()
    spec = StopSpec(stop=("the ",))
    prompts, eos = rollout_engine.prompts(16), sampler.tokenizer.eos_token_id
    rolled = until_seen(
        lambda seed: generate(sampler, prompts, stops=spec, sampling=Sampling(12, seed=seed)),
        lambda rolled: {r.stop for r in rolled} == {"the ", eos, None},
    )
    report = stop_report(rolled, tokenizer=sampler.tokenizer)
    by_string, by_eos = (sum(r.stop == stop for r in rolled) for stop in ("the ", eos))
    assert (report.stopped, report.trl_stopped) == (by_string + by_eos, by_eos)
    assert 0 < report.wasted < 1


@pytest.mark.slow
def test_the_audit_of_a_run_agrees_with_what_it_logged(tmp_path):
    from workbench.recipes.recipes import make_recipe
    from workbench.recipes.train import train_grpo
    from workbench.runs.run import Run
    from workbench.training.rewards import exact_match_reward

    fields = {"max_steps": 2, "per_device_train_batch_size": 16, "max_completion_length": 7}
    stops = StopSpec(stop=("</search>",))

    def run_of(seed):
        recipe = make_recipe("search", dataset="search", seed=seed, **fields)
        train_grpo(recipe, reward_funcs=exact_match_reward(), record_dir=tmp_path, stops=stops)
        return Run(tmp_path)

    run = until_seen(run_of, lambda run: run.completions["finish_reason"].nunique() == 2)
    report = stop_report(run.completions)
    assert report.rows == 32
    assert report.clipped_ratio == pytest.approx(run.metrics["completions/clipped_ratio"].mean())
    assert 0 < report.clipped_ratio < report.trl_clipped_ratio  # for which only EOS ends a row
