import numpy as np
import pytest
import torch
from padding_cases import TEXTS, by_hand, in_mixed_precision, some_texts, tiny

from workbench.consistency.logits import cast_copy
from workbench.consistency.mismatch import PARTS, mismatch_report
from workbench.consistency.padding import pad_batch
from workbench.consistency.positions import with_position_ids
from workbench.errors import ParameterError

PROMPTS = some_texts(3, 12, 7, 5)


def sampled_rollout(model, *, tokens: int = 12, seed: int = 0, **sampling) -> dict:
    """Prompts, completions and their log-probs as `generate` drew them, after temperature, top-k and top-p."""
    batch = pad_batch(PROMPTS, 0, "left")
    torch.manual_seed(seed)
    out = model.generate(**batch, max_new_tokens=tokens, do_sample=True, eos_token_id=None, pad_token_id=0,
                         output_scores=True, return_dict_in_generate=True, **{"top_k": 0} | sampling)  # fmt: skip
    completions = out.sequences[:, batch["input_ids"].shape[1] :]
    logprobs = torch.stack(out.scores, dim=1).log_softmax(-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)
    lengths = (12, 5, 9, 1)  # unequal, as rollouts are
    return {
        "prompt_ids": PROMPTS,
        "completion_ids": [row[:n].tolist() for row, n in zip(completions, lengths, strict=True)],
        "sampled_logprobs": [row[:n].tolist() for row, n in zip(logprobs, lengths, strict=True)],
    }


def sizes(report) -> dict[str, float]:
    """Cause -> largest |difference| of a token."""
    return {name: np.abs(tokens).max() for name, tokens in report.parts.items()}


def test_parts_add_up_to_the_whole():
    model = tiny("gpt2")
    rollout = sampled_rollout(model, temperature=0.8, top_k=40, top_p=0.9)
    rollout["sampled_logprobs"][0][2] = None
    report = mismatch_report(model, **rollout, temperature=0.8, top_k=40, top_p=0.9, sampler_dtype="bfloat16")
    assert tuple(report.parts) == PARTS
    assert report.parts.sum(axis=1).to_numpy() == pytest.approx(report.ratios.tokens, abs=1e-12)


def test_learned_positions_show_as_padding_without_position_ids():
    model = tiny("gpt2")
    rollout = sampled_rollout(model)
    report = mismatch_report(model, **rollout)
    found = sizes(report)
    assert found.pop("padding") > 0.5 and max(found.values()) < 1e-5
    assert report.largest == "padding" and "with_position_ids" in report.verdict
    assert report.ratios.outside > 0.2 and report.ratios.effective_sample_size() < 0.95
    with with_position_ids(model):
        hooked = mismatch_report(model, **rollout)
    for fixed in (mismatch_report(model, **rollout, positions="explicit"), hooked):
        assert max(sizes(fixed).values()) < 1e-5 and fixed.verdict.startswith("sampler and scorer agree")
        assert fixed.ratios.modes()["tokens"].max() == 0


def test_rotary_positions_agree_without_position_ids():
    model = tiny("qwen2")
    report = mismatch_report(model, **sampled_rollout(model))
    assert max(sizes(report).values()) < 1e-5


@pytest.mark.parametrize("support, cause", [({"top_k": 5}, "top-k"), ({"top_p": 0.6}, "top-p")], ids=["top-k", "top-p"])
def test_a_smaller_sampling_support_is_found_and_explains_all(support, cause):
    model = tiny("llama")
    rollout = sampled_rollout(model, **support)
    known = mismatch_report(model, **rollout, **support)
    found = sizes(known)
    assert found.pop(cause) > 0.1 and max(found.values()) < 1e-5 and known.outside_support == 0
    assert (known.parts[cause] <= 0).all()  # the scorer spreads mass over what was never sampled
    unknown = mismatch_report(model, **rollout)
    assert unknown.largest == "sampler" and sizes(unknown)["sampler"] == pytest.approx(sizes(known)[cause], rel=1e-3)
    if cause == "top-p":
        wrong = mismatch_report(model, **rollout, top_p=0.05)
        assert wrong.outside_support > 0 and np.isfinite(wrong.ratios.tokens).all()


def test_a_top_k_and_a_nucleus_within_it_are_told_apart():
    model = tiny("llama")
    both = {"temperature": 1.3, "top_k": 20, "top_p": 0.7}
    found = sizes(mismatch_report(model, **sampled_rollout(model, **both), **both))
    assert found["top-k"] > 0.01 and found["top-p"] > 0.01 and found["sampler"] < 1e-5 and found["temperature"] == 0


def test_a_mixed_precision_trainer_is_judged_in_its_own_dtype():
    model = in_mixed_precision(tiny("llama"))
    report = mismatch_report(model, **sampled_rollout(tiny("llama")))
    assert report.dtype == "bfloat16" and 1e-4 < np.abs(report.ratios.tokens).max() < 0.25
    assert report.verdict.startswith("sampler and scorer agree")
    in_fp32 = mismatch_report(model, **sampled_rollout(tiny("llama")), sampler_dtype="float32")
    assert sizes(in_fp32)["sampler"] < 1e-5 < 1e-4 < sizes(in_fp32)["dtype"]


def test_another_temperature_in_the_scorer_is_found():
    model = tiny("llama")
    rollout = sampled_rollout(model, temperature=0.7)
    found = sizes(mismatch_report(model, **rollout, temperature=0.7, scored_temperature=1.0))
    assert found.pop("temperature") > 0.1 and max(found.values()) < 1e-5


def test_the_samplers_dtype_is_found():
    model = tiny("qwen2")
    rollout = sampled_rollout(tiny("qwen2").to(torch.bfloat16))
    known, unknown = mismatch_report(model, **rollout, sampler_dtype="bfloat16"), mismatch_report(model, **rollout)
    assert sizes(known)["dtype"] > 1e-3 and sizes(unknown)["dtype"] == 0
    assert next(model.parameters()).dtype == torch.float32
    total = {name: np.abs(tokens).mean() for name, tokens in known.parts.items()}
    assert total["dtype"] > total["sampler"] / 2


@pytest.mark.parametrize("scorer, loaded", [("float32", "bfloat16"), ("bfloat16", "float32"), ("mixed", "float32")])
def test_a_checkpoint_in_another_dtype_has_no_other_weights(scorer, loaded):
    in_bf16 = cast_copy(tiny("qwen2"), "bfloat16")  # as it is loaded: its buffers stay
    model = in_mixed_precision(tiny("qwen2")) if scorer == "mixed" else cast_copy(tiny("qwen2"), scorer)
    given = in_bf16 if loaded == "bfloat16" else cast_copy(in_bf16, "float32")
    options = {} if loaded == "bfloat16" else {"sampler_dtype": "bfloat16"}
    found = sizes(mismatch_report(model, **sampled_rollout(in_bf16), sampler_model=given, **options))
    assert found["weights"] < 1e-5
    assert (found["dtype"] > 1e-3) == (scorer != "bfloat16")


def test_none_is_no_top_k_and_no_top_p():
    model = tiny("llama")
    assert max(sizes(mismatch_report(model, **sampled_rollout(model), top_k=None, top_p=None)).values()) < 1e-5


def test_a_sampler_that_shifts_every_log_prob_is_what_is_left():
    model = tiny("llama")
    rollout = sampled_rollout(model)
    rollout["sampled_logprobs"] = [[value - 0.02 for value in row] for row in rollout["sampled_logprobs"]]
    report = mismatch_report(model, **rollout)
    assert report.parts["sampler"].to_numpy() == pytest.approx(0.02, abs=1e-5)
    assert report.largest == "sampler" and "changed weights" in report.verdict


def test_batch_shape_is_found_where_neighbours_count():
    model = tiny("llama, dynamic NTK")
    prompts, completions = some_texts(30, 3), some_texts(10, 10)
    texts = [p + c for p, c in zip(prompts, completions, strict=True)]
    sampled = [by_hand(model, text)[-10:].tolist() for text in reversed(texts)][::-1]
    report = mismatch_report(model, prompts, completions, sampled, positions="explicit")
    found = sizes(report)
    assert found.pop("batch shape") > 1e-2 and max(found.values()) < 1e-5
    alone = mismatch_report(model, prompts, completions, sampled, positions="explicit", batch_size=1)
    assert max(sizes(alone).values()) < 1e-5


def test_the_report_shows_causes_and_ratios():
    model = tiny("gpt2")
    report = mismatch_report(model, **sampled_rollout(model))
    assert report.table()["cause"].tolist() == [*PARTS, "all"]
    page = report._repr_html_()
    assert page.count("<table") == 4 and "sequence_mask" in page and "clip_max=3.0" in page


def test_scores_are_those_of_the_plain_forward_pass():
    model = tiny("opt")
    completions = TEXTS[1:]
    prompts = PROMPTS[:2]
    texts = [p + c for p, c in zip(prompts, completions, strict=True)]
    sampled = [by_hand(model, text)[-len(c) :].tolist() for text, c in zip(texts, completions, strict=True)]
    assert np.abs(mismatch_report(model, prompts, completions, sampled).ratios.tokens).max() < 1e-5


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"prompt_ids": PROMPTS[:1]}, "prompt_ids has 1 sequences and sampled_logprobs has 2"),
        ({"prompt_ids": [[1], []]}, r"prompt_ids: 2 sequences, empty: \[1\]"),
        ({"sampled_logprobs": [[-1.0], [-1.0, -1.0]]}, "sequence 0: 2 completion_ids, 1 sampled_logprobs"),
        ({"temperature": 0}, "temperature=0"),
        ({"top_p": 0}, "top_p=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"sampler_dtype": "float8"}, "sampler_dtype='float8'"),
        ({"sampled_logprobs": [[None, None]] * 2}, "sampled_logprobs: none of them is a number"),
        ({"sampled_logprobs": [[[-1.0], [-1.0]]] * 2}, "sampled_logprobs: .* one number a token"),
    ],
)
def test_a_rollout_that_cannot_be_scored_says_why(changes, message):
    rollout = {"prompt_ids": [[3], [4]], "completion_ids": [[5, 6], [7, 8]], "sampled_logprobs": [[-1.0, -1.0]] * 2}
    with pytest.raises(ParameterError, match=message):
        mismatch_report(tiny("llama"), **rollout | changes)


def test_a_model_that_gives_nan_is_refused_with_where_it_does():
    good, broken = tiny("llama"), tiny("llama")
    broken.lm_head.weight.data.fill_(float("nan"))
    rollout = [[3], [4]], [[5, 6], [7, 8]], [[-1.0, -1.0]] * 2
    with pytest.raises(ParameterError, match="gives NaN for 4 of 4 tokens as the trainer scores"):
        mismatch_report(broken, *rollout)
    with pytest.raises(ParameterError, match="gives NaN for 4 of 4 tokens once weights is as in the sampler"):
        mismatch_report(good, *rollout, sampler_model=broken)


@pytest.mark.slow
def test_the_scorer_is_that_of_trls_own_trainer(tmp_path):
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.experiments.toys.starter import starter_corpus, starter_model

    folder = starter_model("gpt2")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = starter_corpus()[::700]
    prompts = [tokenizer(row["prompt"])["input_ids"] for row in rows]
    completions = [tokenizer(row["completion"])["input_ids"] for row in rows]
    args = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", temperature=0.9)
    trainer = trl.GRPOTrainer(
        model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=args,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8), processing_class=tokenizer,
    )  # fmt: skip
    left, right = pad_batch(prompts, 0, "left"), pad_batch(completions, 0, "right")
    joined = [torch.cat([left[name], right[name]], dim=1) for name in ("input_ids", "attention_mask")]
    with torch.no_grad():
        stock = trainer._get_per_token_logps_and_entropies(model.eval(), *joined, right["input_ids"].shape[1])[0]
    stock = [row[: len(c)].tolist() for row, c in zip(stock, completions, strict=True)]
    # TRL's own scores given as the sampled ones: no difference where this scores as TRL does
    report = mismatch_report(model, prompts, completions, stock, temperature=0.9)
    assert np.abs(report.ratios.tokens).max() < 1e-5
    alone = [by_hand(model, p + c, 0.9)[-len(c) :].tolist() for p, c in zip(prompts, completions, strict=True)]
    report = mismatch_report(model, prompts, completions, alone, temperature=0.9)
    assert sizes(report)["padding"] > 0.1 and sizes(report)["sampler"] < 1e-5
    report = mismatch_report(model, prompts, completions, alone, temperature=0.9, positions="explicit")
    assert np.abs(report.ratios.tokens).max() < 1e-5


def test_a_scorer_in_float64_gets_a_verdict():
    model = tiny("qwen2").double()
    report = mismatch_report(model, **sampled_rollout(model))
    assert report.dtype == "float64" and report.verdict.startswith("sampler and scorer agree")


def test_a_verdict_says_how_many_tokens_it_does_not_know():
    model = tiny("qwen2")
    rollout = sampled_rollout(model)
    assert "no sampled log-prob" not in mismatch_report(model, **rollout).verdict
    rollout["sampled_logprobs"] = [rollout["sampled_logprobs"][0][:1] + [None] * 11, [None] * 5, [None] * 9, [None]]
    verdict = mismatch_report(model, **rollout).verdict
    assert (
        verdict.startswith("sampler and scorer agree") and "where 26 of 27 tokens have no sampled log-prob" in verdict
    )


@pytest.mark.parametrize("name", ["temperature", "scored_temperature"])
@pytest.mark.parametrize("value", [-1.0, 0.0, float("inf")])
def test_a_temperature_out_of_range_is_refused(name, value):
    with pytest.raises(ParameterError, match=f"^{name}={value}: expected a positive number"):
        mismatch_report(None, [[1]], [[2]], [[-1.0]], **{name: value})
