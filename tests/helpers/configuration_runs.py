"""A small training of each kind, stock and the workbench's, in any configuration, and all that can be compared of it."""

import copy
import functools
import gc
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch
import trl
from ppo_parts import PPOConfig
from samples import until_seen
from trainers import OURS, STOCK
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
    set_seed,
)
from trl.experimental.online_dpo import OnlineDPOConfig

from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.toys.search_task import CLOSE
from workbench.generation.stops import StopSpec
from workbench.runs.run import Run

CONFIGS = {"GRPO": trl.GRPOConfig, "RLOO": trl.RLOOConfig, "OnlineDPO": OnlineDPOConfig, "PPO": PPOConfig}
BATCH, STEPS, G, PENALTY = 8, 2, 4, 100.0
LIMIT = 10  # cuts some rows of the search model; most end in EOS before
STOP = f"s{CLOSE}"  # of several tokens; half of the topics end in an s
TIMES = re.compile("step_time|eps|(train|eval)_(runtime|samples_per_second|steps_per_second)")
COUNT_PADS = re.compile("objective/(kl|entropy|non_score_reward|rlhf_reward)")  # in stock's OnlineDPO, and not in ours
CPU = small_runs.CPU | {"learning_rate": 1e-3, "dataloader_pin_memory": False, "seed": 5}
SHAPES = {
    "GRPO": {"max_steps": STEPS, "per_device_train_batch_size": BATCH, "num_generations": G},
    "OnlineDPO": {"max_steps": STEPS, "per_device_train_batch_size": BATCH // 2, "max_length": 200},
    "PPO": {"total_episodes": STEPS * 2 * BATCH, "per_device_train_batch_size": 2 * BATCH, "num_mini_batches": 1},
}
SHAPES["RLOO"] = SHAPES["GRPO"]
SHAPES["GRPO"] |= {"beta": 0.05}
SHAPES["PPO"] |= {"local_rollout_forward_batch_size": BATCH, "num_sample_generations": 0, "num_ppo_epochs": 1}
LENGTH = {"GRPO": "max_completion_length", "OnlineDPO": "max_new_tokens", "PPO": "response_length"}
LENGTH["RLOO"] = LENGTH["GRPO"]
# What shows in a run whether a row counts as cut: it is masked, or its reward is lowered.
TELL = {"GRPO": {"mask_truncated_completions": True}, "PPO": {"missing_eos_penalty": PENALTY}}
TELL |= {"RLOO": TELL["GRPO"], "OnlineDPO": TELL["PPO"]}


def reward(completions, **_):
    """Depends on each row's place and text: half of each group is right, and rows that change places are seen."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [n % 2 + len(text) / 100 for n, text in enumerate(texts)]


@functools.cache
def tokenizer():
    """Of the search model; not to be changed."""
    return AutoTokenizer.from_pretrained(resolve_model("search"), padding_side="left")


def config(kind: str, **fields):
    folder = tempfile.mkdtemp()
    return CONFIGS[kind](**{"output_dir": folder, LENGTH[kind]: LIMIT} | CPU | SHAPES[kind] | fields)


def build(who: str, kind: str, fields=None, *, model="search", tokenizer=None, data=None, rewards=reward, **kwargs):
    """A trainer of any kind; `who` is `stock` or `ours`.

    Args:
        fields: of its config.
        model: a name or folder, or a function that makes one anew.
        tokenizer: default the model's.
        data: of TRL; for PPO its prompts are tokenized.
        rewards: of all but PPO, which has models of random weights.
        **kwargs: the trainer's own; ours scores as stock does unless `explicit_positions=True` is among them.
    """
    cls = (OURS if who == "ours" else STOCK)[kind]
    if who == "ours":
        kwargs = {"explicit_positions": False} | kwargs
    if who == "stock" and kind == "PPO":
        fields = {"stop_token": "eos"} | (fields or {})
    args = config(kind, **(fields or {}))
    data = data if data is not None else load_prompts("search")
    path = None if callable(model) else resolve_model(model)
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(path, padding_side="left")
    set_seed(11)
    policy = model() if callable(model) else AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if kind == "PPO":
        trainer = cls(args, tokenizer, policy, *_ppo_parts(policy, tokenizer, data, kwargs), **kwargs)
        np.random.seed(args.seed)  # ours does so before it trains; TRL permutes with what it finds
        return trainer
    rewards = list(rewards) if isinstance(rewards, list) else rewards  # a trainer keeps the list
    kwargs = {"reward_funcs": rewards, "args": args, "train_dataset": data, "processing_class": tokenizer} | kwargs
    return cls(policy, **kwargs)


def _ppo_parts(policy, tokenizer, data, kwargs):
    """Reference, reward model, data and value model of a PPO trainer; with LoRA the policy is its own reference."""
    prompts = data.map(lambda row: tokenizer(row["prompt"]), remove_columns=data.column_names)
    heads = []
    for _ in range(2):
        head = AutoModelForSequenceClassification.from_config(copy.deepcopy(policy.config), dtype=torch.float32)
        head.config.pad_token_id, head.config.num_labels = tokenizer.pad_token_id, 1
        head.score = torch.nn.Linear(policy.config.hidden_size, 1, bias=False)
        heads.append(head)
    reference = None if "peft_config" in kwargs else copy.deepcopy(policy)
    return reference, heads[0], prompts, heads[1]


class Watched(TrainerCallback):
    """What reward functions saw and the loss was told, batch by batch, of a trainer that is trained once."""

    def __init__(self, trainer):
        self.trainer, self.texts, self.ids, self.trained, self.scores = trainer, [], [], [], []
        self.history, self.before = [], self.weights()
        if functions := getattr(trainer, "reward_funcs", []):
            functions[0] = self._spying(functions[0])
        if hasattr(trainer, "_generate_and_score_completions"):
            self._score = trainer._generate_and_score_completions
            trainer._generate_and_score_completions = self._scoring
        trainer.add_callback(self)

    def on_log(self, args, state, control, logs=None, **_):
        other = COUNT_PADS if isinstance(self.trainer, STOCK["OnlineDPO"]) else TIMES
        self.history.append({k: v for k, v in logs.items() if not (TIMES.fullmatch(k) or other.fullmatch(k))})

    def _spying(self, function):
        def spy(completions, completion_ids, **rest):
            made = function(completions=completions, completion_ids=completion_ids, **rest)
            self.texts += copy.deepcopy(list(completions))
            self.ids += [list(ids) for ids in completion_ids]
            self.scores += made
            return made

        spy.__name__ = getattr(function, "__name__", "reward")
        return spy

    def _scoring(self, inputs):
        out = self._score(inputs)
        mask = (out["completion_mask"] * out.get("tool_mask", 1)).bool()
        self.trained += [row[m].tolist() for row, m in zip(out["completion_ids"], mask, strict=True)]
        return out

    def train(self) -> "Watched":
        self.trainer.train()
        return self

    @property
    def log(self) -> list[dict]:
        """A line a step, without the closing summary."""
        return [line for line in self.history if "train_loss" not in line]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.trainer.model.state_dict().items()}


def watched(who: str, kind: str, fields=None, *, until=None, **kwargs) -> Watched:
    """Build a trainer, train it, and say what came of it; with `until`, of the first seed of which `until(watched)` holds."""
    if until is None:
        return Watched(build(who, kind, fields, **kwargs)).train()

    def train(seed: int) -> Watched:
        if "record_dir" in kwargs:
            shutil.rmtree(kwargs["record_dir"], ignore_errors=True)
        return watched(who, kind, (fields or {}) | {"seed": seed}, **kwargs)

    return until_seen(train, until)


def assert_equal_runs(kind: str, fields=None, *, placed: bool = True, until=None, **kwargs) -> tuple[Watched, Watched]:
    """Ours without custom stops trains as stock does: the same numbers in every log line, the same weights at the end.

    With position ids, which rotary positions do not need, the first step is the same to rounding; `placed=False` leaves
    that out, where another test of the same trainer looks. `until` is `watched`'s, of stock's training.

    Returns:
        Stock's training and ours. `kwargs` are those of `build`; a function among them is called once for each.
    """
    stock = watched("stock", kind, fields, until=until, **kwargs)
    fields = (fields or {}) | {"seed": stock.trainer.args.seed}
    ours = watched("ours", kind, fields, **kwargs)
    assert len(stock.log) == len(ours.log) > 0
    for theirs, own in zip(stock.log, ours.log, strict=True):
        assert repr({name: own[name] for name in theirs}) == repr(theirs)  # NaN is NaN
    assert (stock.texts, stock.scores) == (ours.texts, ours.scores)
    theirs, own = stock.weights(), ours.weights()
    assert theirs.keys() == own.keys()
    assert [name for name in theirs if not torch.equal(theirs[name], own[name])] == []
    assert any(not torch.equal(theirs[name], stock.before[name]) for name in theirs)  # it has learned something
    if placed:
        line = watched("ours", kind, fields, explicit_positions=True, **kwargs).log[0]
        for name in ("loss", "grad_norm", "entropy", "logps/chosen", "loss/policy_avg", "loss/value_avg"):
            if name in stock.log[0]:
                assert line[name] == pytest.approx(stock.log[0][name], rel=1e-3, abs=1e-5)
    return stock, ours


def assert_promises(
    kind: str, got: Watched, record_dir: Path, tokenizer, strings=(STOP,), eos=None, limit: int = LIMIT
):
    """What ours promises with custom stops, judged from the ids alone: ends, masks, what rewards saw, what is recorded.

    PPO has no reward functions; of it the recorded rows are judged.
    """
    rows, eos = Run(record_dir).completions, eos or [tokenizer.eos_token_id]
    stopped = (rows["finish_reason"] == "stop").tolist()
    if kind != "PPO":
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in got.texts]
        assert rows["completion"].tolist() == texts
        assert rows["completion_tokens"].tolist() == [len(ids) for ids in got.ids]
        decode = _decoder(tokenizer)
        for ids, text, stop in zip(got.ids, texts, stopped, strict=True):
            assert stop == (any(s in decode(ids) for s in strings) or ids[-1] in eos)
            assert stop or len(ids) == limit
            assert not any(s in decode(ids[:-1]) for s in strings) and not set(eos) & set(ids[:-1])
            assert text == tokenizer.decode(ids, skip_special_tokens=True)
    penalty = 0.0 if kind in ("GRPO", "RLOO") else PENALTY
    if kind == "PPO":
        by_text = rows["completion"].str.endswith(strings)
        assert (rows["finish_reason"][by_text] == "stop").all()
        assert (rows["completion_tokens"][rows["finish_reason"] == "length"] == limit).all()
        assert ((rows["reward"] < -penalty / 2) == (rows["finish_reason"] == "length")).all()
        return
    expected = [score - penalty * (not stop) for score, stop in zip(got.scores, stopped, strict=True)]
    assert rows["reward"].tolist() == pytest.approx(expected, abs=1e-4)
    if kind in ("GRPO", "RLOO"):  # they mask what is cut, and nothing else
        assert got.trained == [ids if stop else [] for ids, stop in zip(got.ids, stopped, strict=True)]
    name = "val/contain_eos_token" if kind == "OnlineDPO" else "completions/clipped_ratio"
    for step, part in rows.groupby("step")["finish_reason"]:
        share = (part == ("stop" if kind == "OnlineDPO" else "length")).mean()
        assert Run(record_dir).metrics.set_index("step")[name][step] == pytest.approx(share)


def _decoder(tokenizer):
    """Decodes behind other text, where the blank that a SentencePiece row begins with is kept."""
    before = tokenizer.encode("a", add_special_tokens=False)
    hidden = len(tokenizer.decode(before))
    return lambda ids: tokenizer.decode([*before, *ids])[hidden:]


def has_every_end(record_dir: Path, strings=()) -> bool:
    """Whether the recorded rows have both finish reasons, and one of the strings at an end."""
    rows = Run(record_dir).completions
    by_string = rows["completion"].str.endswith(tuple(strings)).any()
    return set(rows["finish_reason"]) == {"stop", "length"} and by_string == bool(strings)


def assert_stops_hold(
    kind: str, record_dir: Path, fields=None, *, stops=None, eos=None, seen=None, **kwargs
) -> Watched:
    """Train ours as its users do, with a stop string and a run folder, and judge it by `assert_promises`.

    The seed is one of which some rows stopped, some were cut and a stop string ended some, so that each is judged.

    Args:
        stops: default the string `STOP`.
        eos: ids that end rows, default the tokenizer's.
        seen: what has to be among the rows besides, a function of the `Watched` training.
        **kwargs: of `build`.
    """
    stops = stops or StopSpec(stop=(STOP,))
    own = {"stops": stops, "record_dir": record_dir, "explicit_positions": True}

    def every_end(got: Watched) -> bool:
        return has_every_end(record_dir, stops.stop) and (seen is None or seen(got))

    got = watched("ours", kind, TELL[kind] | (fields or {}), until=every_end, **kwargs | own)
    limit = (fields or {}).get(LENGTH[kind], LIMIT)
    tokenizer = getattr(got.trainer.processing_class, "tokenizer", got.trainer.processing_class)
    assert_promises(kind, got, record_dir, tokenizer, stops.stop, eos=eos, limit=limit)
    return got


# TRL's PPO collects garbage twice a step, half a second each among all that these libraries have loaded.
gc.freeze()
