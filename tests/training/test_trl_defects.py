"""What stock TRL 1.12.0 gets wrong about stops, each shown on the stock trainer and shown to be gone here, in pairs.

In test_ppo.py: PPO erases EOS from the saved policy, and punishes rows that ended at a custom stop.
"""

import functools
import json
import shutil
import sys
from importlib.util import find_spec

import conftest
import pytest
import torch
import trl
from configuration_runs import CPU
from conftest import need
from ppo_parts import needs_ppo
from samples import until_seen
from small_runs import EVERY_END, VLLM, one_step
from trainers import OURS
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench.errors import MissingDependencyError, ParameterError
from workbench.experiments.recipes import make_recipe, resolve_model
from workbench.experiments.toys.search_task import CLOSE
from workbench.experiments.toys.starter import EOS
from workbench.generation.preflight import check_before_compute, save_policy
from workbench.generation.stops import StopSpec
from workbench.training.rewards import length_reward

pytestmark = pytest.mark.slow

GRPO_AND_RLOO = pytest.mark.parametrize("kind", ["GRPO", "RLOO"])


@functools.cache
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("search"))


@pytest.fixture(scope="module")
def on_vllm():
    """The cases of small_runs.py that need vLLM: case -> what came of its batch."""
    return conftest.on_vllm("small_runs")


def completion_metrics(got) -> dict[str, float]:
    return {k.partition("/")[2]: v for k, v in got["log"].items() if k.startswith("completions/")}


# --- 1 and 2: whatever stopped at anything but EOS counts as cut, and is masked ------------------------------------


def ended(got, at=EVERY_END) -> list[bool]:
    """Of each row whether it ends in one of the stop strings; nearly all do before the length limit, and some have to."""
    ends = [tokenizer().decode(ids).endswith(at) for ids in got["ids"]]
    assert any(ends) and all(end or len(ids) == 24 for end, ids in zip(ends, got["ids"], strict=True))
    return ends


def cut(got, at=EVERY_END) -> float:
    """Share of the rows that the limit cut."""
    return ended(got, at).count(False) / len(got["ids"])


def kept(got, at=EVERY_END) -> list[list[int]]:
    """The rows to train on where those that the limit cut are masked."""
    return [ids if end else [] for ids, end in zip(got["ids"], ended(got, at), strict=True)]


@GRPO_AND_RLOO
def test_stock_counts_a_stopped_vllm_completion_as_clipped(kind, on_vllm):
    got = on_vllm[f"stock {kind}"]
    assert cut(got) < 1
    assert completion_metrics(got)["clipped_ratio"] == 1
    assert completion_metrics(got)["mean_terminated_length"] == 0


@GRPO_AND_RLOO
def test_the_workbench_counts_it_as_stopped(kind, on_vllm):
    got = on_vllm[f"ours {kind}"]
    lengths = [len(ids) for ids in kept(got) if ids]
    assert completion_metrics(got)["clipped_ratio"] == pytest.approx(cut(got))
    assert completion_metrics(got)["mean_terminated_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert completion_metrics(got)["max_terminated_length"] == max(lengths)


@GRPO_AND_RLOO
def test_stock_masks_a_whole_stopped_batch_without_a_word(kind, on_vllm):
    got = on_vllm[f"stock {kind}"]
    assert [len(row) for row in got["trained"]] == [0] * len(got["ids"])
    assert got["log"]["grad_norm"] == 0
    assert got["log"]["loss"] == pytest.approx(0, abs=1e-6)  # a number, not NaN: nothing shows


@GRPO_AND_RLOO
def test_the_workbench_trains_on_every_stopped_row(kind, on_vllm):
    got = on_vllm[f"ours {kind}"]
    assert got["trained"] == kept(got)
    assert got["log"]["grad_norm"] > 0


# --- 3, 4, 5: stops among transformers' generation_kwargs ----------------------------------------------------------


def stop_ids() -> tuple[int, int]:
    """Of `</`, the third token of a call, and of the period, which ends everything else."""
    call, period = tokenizer().encode(f"<search>amber{CLOSE}"), tokenizer().encode(".")
    assert tokenizer().decode(call[2]) == "</" and len(period) == 1
    return call[2], period[0]


@functools.cache
def stopped_by_id(who, masked=False, pad_is_eos=False):
    """A batch on transformers whose rows all end at `stop_ids()`, not all at the same length: else nothing is padded."""

    def lengths(got):
        return [next((n for n, i in enumerate(ids, 1) if i in stop_ids()), 0) for ids in got["ids"]]

    got = until_seen(
        lambda seed: batch_by_id(who, masked, pad_is_eos, seed),
        lambda got: 0 not in lengths(got) and len(set(lengths(got))) > 1,
    )
    return got | {"lengths": lengths(got)}


def batch_by_id(who, masked, pad_is_eos, seed):
    own = AutoTokenizer.from_pretrained(resolve_model("search"))
    if pad_is_eos:
        own.pad_token = own.eos_token
    fields, kwargs = {"mask_truncated_completions": masked, "seed": seed}, {"tokenizer": own}
    fields["generation_kwargs"] = {"suppress_tokens": [own.eos_token_id]}
    if who == "stock":
        fields["generation_kwargs"]["eos_token_id"] = [own.eos_token_id, *stop_ids()]
    else:
        kwargs["stops"] = StopSpec(stop_token_ids=stop_ids())
    return one_step(who, "GRPO", fields, **kwargs)


def test_stock_trains_on_the_pads_behind_a_stop_id():
    got, pad = stopped_by_id("stock"), tokenizer().pad_token_id
    width = max(got["lengths"])
    assert [len(row) for row in got["trained"]] == [width] * len(got["ids"])
    pads = sum(row.count(pad) for row in got["trained"])
    assert pads == sum(width - length for length in got["lengths"]) > 0
    assert completion_metrics(got)["mean_length"] == width


def test_the_workbench_trains_on_no_pad():
    got = stopped_by_id("ours")
    assert [len(row) for row in got["trained"]] == got["lengths"]
    assert not any(tokenizer().pad_token_id in row for row in got["trained"])
    assert completion_metrics(got)["mean_length"] == pytest.approx(sum(got["lengths"]) / len(got["lengths"]))


def test_stock_takes_padded_rows_as_ended_and_masks_the_longest():
    got = stopped_by_id("stock", masked=True)
    longest = [length == max(got["lengths"]) for length in got["lengths"]]
    assert completion_metrics(got)["clipped_ratio"] == pytest.approx(sum(longest) / len(longest))
    assert [not row for row in got["trained"]] == longest


def test_the_workbench_finds_and_keeps_the_end_of_every_row():
    got = stopped_by_id("ours", masked=True)
    assert completion_metrics(got)["clipped_ratio"] == 0
    assert [len(row) for row in got["trained"]] == got["lengths"]


def test_if_pad_is_eos_stock_trains_on_one_eos_never_sampled():
    got, eos = stopped_by_id("stock", pad_is_eos=True), tokenizer().eos_token_id
    shorter = [length < max(got["lengths"]) for length in got["lengths"]]
    assert any(shorter)
    assert [row.count(eos) for row in got["trained"]] == [int(s) for s in shorter]


def test_if_pad_is_eos_the_workbench_trains_on_sampled_tokens():
    got, eos = stopped_by_id("ours", pad_is_eos=True), tokenizer().eos_token_id
    assert [len(row) for row in got["trained"]] == got["lengths"]
    assert not any(eos in row for row in got["trained"])


# --- 6: stop strings on transformers -------------------------------------------------------------------------------


def test_stock_has_no_stop_strings_on_transformers():
    with pytest.raises(ValueError, match="tokenizer"):
        one_step("stock", "GRPO", {"generation_kwargs": {"stop_strings": [CLOSE]}})


@GRPO_AND_RLOO
def test_the_workbench_stops_at_strings_on_transformers(kind):
    got = one_step("ours", kind, stops=StopSpec(stop=EVERY_END))
    assert got["trained"] == got["ids"]
    assert completion_metrics(got)["clipped_ratio"] == pytest.approx(cut(got, (*EVERY_END, EOS)))


# --- 7: reward functions and the stop marker -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def special_stop(tmp_path_factory):
    """A model that closes every other call with the special token `<|call|>`: `(folder, its id)`."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("search"))
    grown = AutoTokenizer.from_pretrained(resolve_model("search"))
    grown.add_special_tokens({"additional_special_tokens": ["<|call|>"]})
    folder = save_policy(model, grown, tmp_path_factory.mktemp("special"))
    new = grown.convert_tokens_to_ids("<|call|>")
    with torch.no_grad():  # embeddings are tied: what has the vector of `</` is as likely as it
        model.get_input_embeddings().weight[new] = model.get_input_embeddings().weight[stop_ids()[0]]
    model.save_pretrained(folder)
    return folder, new


def test_stock_hides_a_special_stop_token_from_reward_functions(special_stop):
    folder, new = special_stop
    options = {"generation_kwargs": {"eos_token_id": [tokenizer().eos_token_id, new]}}
    got = one_step("stock", "GRPO", options, model=str(folder))
    assert any(new in ids for ids in got["ids"])
    assert not any("<|call|>" in text for text in got["text"])


@GRPO_AND_RLOO
def test_the_workbench_shows_it_to_them(kind, special_stop):
    folder, new = special_stop
    got = one_step("ours", kind, stops=StopSpec(stop_token_ids=(new,)), model=str(folder))
    assert any(new in ids for ids in got["ids"])
    for text, ids in zip(got["text"], got["ids"], strict=True):
        assert text.endswith("<|call|>") == (ids[-1] == new)
        assert tokenizer().eos_token not in text


# --- 8: empty completions ------------------------------------------------------------------------------------------


def one_empty(prompts, trainer):
    """A rollout function whose second row is empty and whose others are calls that end in EOS."""
    encode = functools.partial(tokenizer().encode, add_special_tokens=False)
    call = [*encode(f"<search>amber{CLOSE}"), tokenizer().eos_token_id]
    return {
        "prompt_ids": [encode(p) for p in prompts],
        "completion_ids": [[] if n == 1 else list(call) for n in range(len(prompts))],
        "logprobs": None,
    }


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_stock_falls_over_an_empty_completion():
    with pytest.raises(IndexError):
        one_step("stock", "GRPO", rollout_func=one_empty)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
@pytest.mark.parametrize("masked", [False, True])
def test_in_the_workbench_an_empty_completion_trains_nothing(masked):
    fields = {"mask_truncated_completions": masked}
    got = one_step("ours", "GRPO", fields, rollout_func=one_empty)
    full = len(one_empty(["?"] * 32, None)["completion_ids"][0])
    assert [len(row) for row in got["trained"]] == [full, 0] + [full] * 30
    assert got["text"][1] == ""
    assert got["log"]["reward"] == 0.5


# --- PPO with pad == EOS -------------------------------------------------------------------------------------------


@pytest.fixture
def ppo_masks(monkeypatch):
    """The mask of each PPO update's policy loss, `[B, T]`, as they come."""
    from trl.experimental.ppo import ppo_trainer

    masks, original = [], ppo_trainer.masked_whiten
    watching = lambda values, mask, **k: masks.append(mask) or original(values, mask, **k)  # noqa: E731
    monkeypatch.setattr(ppo_trainer, "masked_whiten", watching)
    return masks


@needs_ppo
@pytest.mark.parametrize("pad_is_eos", [True, False])
def test_if_pad_is_eos_stock_ppo_keeps_eos_out_of_the_loss(
    pad_is_eos, ppo_masks, tmp_path, starter_folder, monkeypatch
):
    from trl.experimental.ppo import ppo_trainer

    from .test_ppo import stock_trainer

    trainer = stock_trainer(tmp_path, starter_folder, stop_token="eos")
    own = trainer.processing_class
    if pad_is_eos:
        own.pad_token = own.eos_token
    responses, original = [], ppo_trainer.truncate_response
    monkeypatch.setattr(
        ppo_trainer, "truncate_response", lambda stop, pad, r: responses.append(r) or original(stop, pad, r)
    )
    trainer.train()
    is_eos = [r == own.eos_token_id for r in responses]
    ended = sum(int(rows.any(1).sum()) for rows in is_eos)
    in_loss = sum(int((rows & mask).sum()) for rows, mask in zip(is_eos, ppo_masks, strict=True))
    assert ended > 0
    assert in_loss == (0 if pad_is_eos else ended)


@needs_ppo
def test_ppo_of_the_workbench_refuses_pad_equal_to_eos(tmp_path, starter_folder):
    from ppo_parts import train_ppo

    own = AutoTokenizer.from_pretrained(starter_folder)
    own.pad_token = own.eos_token
    AutoModelForCausalLM.from_pretrained(starter_folder).save_pretrained(tmp_path / "model")
    own.save_pretrained(tmp_path / "model")
    recipe = make_recipe(str(tmp_path / "model"), dataset="starter", max_steps=1)
    with pytest.raises(ParameterError, match="PPO leaves every pad out of the loss"):
        train_ppo(recipe, record_dir=tmp_path / "run")
    assert not (tmp_path / "run/metrics.jsonl").exists()


# --- options that are refused before anything starts ---------------------------------------------------------------


CONFIGS = {
    kind: functools.partial(config, output_dir="unused", **CPU)
    for kind, config in {"GRPO": trl.GRPOConfig, "RLOO": trl.RLOOConfig}.items()
}
SERVER = {"use_vllm": True, "vllm_mode": "server"}


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [*((fields, options, "give stops as stops=StopSpec") for fields, options in (
        ({}, {"eos_token_id": [1, 5]}), ({}, {"stop_strings": ["a"]}), ({}, {"stop": ["a"]}), (VLLM, {"stop": ["a"]}),
        (SERVER, {"stop_token_ids": [5]}))),
     ({}, {"temprature": 0.5}, "did you mean 'temperature'"),
     ({}, {"max_tokens": 5}, "did you mean 'max_new_tokens'"),
     (VLLM, {"max_new_tokens": 5}, "did you mean 'max_tokens'"),
     (VLLM, {"skip_special_token": False}, "did you mean 'skip_special_tokens'"),
     (SERVER, {"frequency_penlty": 0.1}, "did you mean 'frequency_penalty'"),
     (VLLM, {"logprobs": 2}, "'logprobs': TRL may read another token")]
)  # fmt: skip
@pytest.mark.parametrize("kind", CONFIGS)
def test_bad_options_are_refused_before_anything_starts(kind, fields, options, message):
    if fields and "did you mean" in message:
        need(find_spec("vllm"), "vLLM, whose options it reads")
    cls = OURS[kind]
    args = CONFIGS[kind](generation_kwargs=options, **fields)
    with pytest.raises(ParameterError, match=message):
        cls("no/such-model", reward_funcs=length_reward(), args=args)


STRING, MINIMUM = (
    (StopSpec(stop=("a",)), r"stop=\('a',\), min_tokens=0"),
    (StopSpec(min_tokens=8), r"stop=\(\), min_tokens=8"),
)


@pytest.mark.parametrize(("stops", "told"), [STRING, MINIMUM])
@GRPO_AND_RLOO
def test_what_continuous_batching_cannot_pass_is_refused(kind, stops, told):
    args = CONFIGS[kind](use_transformers_continuous_batching=True)
    check_before_compute(resolve_model("search"), args, StopSpec(stop_token_ids=(5,)), None)
    with pytest.raises(ParameterError, match=f"^{told}: transformers' continuous batching has neither"):
        OURS[kind]("no/such-model", reward_funcs=length_reward(), args=args, stops=stops)


@GRPO_AND_RLOO
@pytest.mark.parametrize("fields", [VLLM, SERVER], ids=["colocate", "server"])
def test_a_trainer_on_vllm_without_vllm_names_the_extra(kind, fields, monkeypatch):
    args = CONFIGS[kind](**fields)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match="use_vllm=True needs vllm: pip install"):
        OURS[kind]("no/such-model", reward_funcs=length_reward(), args=args)


@pytest.mark.parametrize("given", [{"generation_seed": 7}, {"share_generation": True}])
@GRPO_AND_RLOO
def test_options_of_requests_to_vllm_are_refused_without_it(kind, given):
    with pytest.raises(ParameterError, match=r"generation_seed=.*, share_generation=.*: need vLLM"):
        OURS[kind]("no/such-model", reward_funcs=length_reward(), args=CONFIGS[kind](), **given)


TOKENIZER_CODE = """
from transformers import PreTrainedTokenizerFast

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_tokenizer_with_its_own_code_is_read_only_if_trusted(kind, starter_folder, tmp_path):
    need(find_spec("vllm"), "vLLM, for which it is read")
    shutil.copytree(starter_folder, tmp_path / "own")
    (tmp_path / "own" / "own_tokenizer.py").write_text(TOKENIZER_CODE)
    own = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own_tokenizer.OwnTokenizer"]}}
    for name, fields in (("tokenizer_config.json", own), ("config.json", {"model_type": "own"})):
        path = tmp_path / "own" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    model = str(tmp_path / "own")
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=True)
    check_before_compute(model, CONFIGS[kind](trust_remote_code=True, **VLLM), StopSpec(), tokenizer)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        check_before_compute(model, CONFIGS[kind](**VLLM), StopSpec(), tokenizer)


# --- conversations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
@GRPO_AND_RLOO
def test_conversational_reward_functions_see_the_marker_if_kept(kind, keep):
    from datasets import Dataset

    from workbench.experiments.toys.search_task import search_prompts

    own = AutoTokenizer.from_pretrained(resolve_model("search"))
    own.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    chats = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in search_prompts()]
    given = {"stops": StopSpec(stop=(CLOSE,), include_stop_str_in_output=keep), "tokenizer": own}
    got = one_step("ours", kind, data=Dataset.from_list(chats), **given)
    seen = 0
    for text, ids in zip(got["text"], got["ids"], strict=True):
        (message,) = text
        assert message["role"] == "assistant"
        if CLOSE in own.decode(ids):
            seen += 1
            assert message["content"] == own.decode(ids).removesuffix("" if keep else CLOSE)
    assert seen > 0
    assert completion_metrics(got)["clipped_ratio"] == pytest.approx(cut(got, (CLOSE, EOS)))
