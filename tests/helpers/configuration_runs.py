"""A small training of each kind, stock and the workbench's, in any configuration, and the judges of what came of it."""

import copy
import gc
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import trl
from configuration_models import ended, tokenizer, turns
from ppo_parts import PPOConfig
from samples import until_seen
from trainers import OURS, STOCK
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed

from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.toys.search_task import CLOSE
from workbench.experiments.train import random_heads
from workbench.runs.run import Run
from workbench.training.groups import check_groups
from workbench.training.rows import tokenizer_of
from workbench.training.sync_on_cpu import install_cpu_sync

TRAINERS, POLICY = ("GRPO", "RLOO", "PPO"), ("GRPO", "RLOO")
CONFIGS = {"GRPO": trl.GRPOConfig, "RLOO": trl.RLOOConfig, "PPO": PPOConfig}
BATCH, STEPS, G, PENALTY = 8, 2, 4, 100.0
LIMIT = 10  # cuts some rows of the search model; most end in EOS before
STOP = f"s{CLOSE}"  # of several tokens; half of the topics end in an s
TO_ROUNDING = {"loss", "grad_norm", "entropy", "kl", "reward", "reward_std", "completions/mean_length"}
TO_ROUNDING |= {"loss/policy_avg", "loss/value_avg"}
TIMES = re.compile("step_time|eps|(train|eval)_(runtime|samples_per_second|steps_per_second)")
CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True}
CPU |= {"save_strategy": "no", "logging_steps": 1}
SMALL = CPU | {"learning_rate": 1e-3, "dataloader_pin_memory": False, "seed": 5}
RLOO = {"max_steps": STEPS, "per_device_train_batch_size": BATCH, "num_generations": G, "beta": 0.05}
RLOO |= {"max_completion_length": LIMIT}
PPO = {"total_episodes": STEPS * 2 * BATCH, "per_device_train_batch_size": 2 * BATCH, "num_mini_batches": 1}
PPO |= {"local_rollout_forward_batch_size": BATCH, "num_sample_generations": 0, "num_ppo_epochs": 1}
PPO |= {"response_length": LIMIT}
SHAPES = {"GRPO": RLOO, "RLOO": RLOO, "PPO": PPO}
# What shows in a run whether a row counts as cut: it is masked, or its reward is lowered.
TELL = {"GRPO": {"mask_truncated_completions": True}, "RLOO": {"mask_truncated_completions": True}}
TELL |= {"PPO": {"missing_eos_penalty": PENALTY}}


def reward(completions, **_):
    """Depends on each row's place and text: half of each group is right, and rows that change places are seen."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [n % 2 + len(text) / 100 for n, text in enumerate(texts)]


def build(
    who: str,
    kind: str,
    fields=None,
    *,
    model="search",
    tokenizer=None,
    data=None,
    rewards=reward,
    subclass=None,
    **kwargs,
):
    """Build a trainer of any kind; `who` is `stock` or `ours`, and `fields` are those of its config.

    Args:
        model: a name or folder, or (not for PPO) a function that loads one.
        data: of TRL; for PPO, which has reward models of random weights, its prompts are tokenized.
        subclass: makes a class of the user's from the trainer's.
        **kwargs: the trainer's own; ours scores as stock does unless `explicit_positions=True` is among them.
    """
    cls = (OURS if who == "ours" else STOCK)[kind]
    cls = subclass(cls) if subclass else cls
    if who == "ours":
        kwargs = {"explicit_positions": False} | kwargs
    elif kind == "PPO":
        fields = {"stop_token": "eos"} | (fields or {})
    if kind == "PPO":
        kwargs.pop("explicit_positions", None)  # TRL's passes them itself
    args = CONFIGS[kind](**{"output_dir": tempfile.mkdtemp()} | SMALL | SHAPES[kind] | (fields or {}))
    data = data if data is not None else load_prompts("search")
    path = None if callable(model) else resolve_model(model)
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(path, padding_side="left")
    set_seed(11)
    policy = model() if callable(model) else AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if kind == "PPO":
        trainer = cls(args, tokenizer, policy, *_ppo_parts(policy, path, tokenizer, data, kwargs), **kwargs)
        np.random.seed(args.seed)  # ours does so before it trains; TRL permutes with what it finds
        return trainer
    rewards = list(rewards) if isinstance(rewards, list) else rewards  # a trainer keeps the list
    kwargs = {"reward_funcs": rewards, "args": args, "train_dataset": data, "processing_class": tokenizer} | kwargs
    trainer = cls(policy, **kwargs)
    if who == "stock" and args.use_vllm:
        install_cpu_sync(trainer.vllm_generation, args.output_dir)  # without it stock cannot run on a CPU
    return trainer


def _ppo_parts(policy, path, tokenizer, data, kwargs):
    """Reference, reward model, data and value model of a PPO trainer; with LoRA the policy is its own reference."""
    prompts = data.map(lambda row: tokenizer(row["prompt"]), remove_columns=data.column_names)
    value, reward = random_heads(path, seed=0)
    return None if "peft_config" in kwargs else copy.deepcopy(policy), reward, prompts, value


class Watched(TrainerCallback):
    """What reward functions saw and the loss was outcome, batch by batch, of a trainer that is trained once."""

    def __init__(self, trainer, record_dir: Path | None = None):
        self.trainer, self.record_dir, self.tokenizer = trainer, record_dir, tokenizer_of(trainer)
        self.texts, self.ids, self.trained, self.scores, self.history = [], [], [], [], []
        self.before = self.weights()
        if functions := getattr(trainer, "reward_funcs", []):
            functions[0] = self._spying(functions[0])
        if hasattr(trainer, "_generate_and_score_completions"):
            self._score = trainer._generate_and_score_completions
            trainer._generate_and_score_completions = self._scoring
        trainer.add_callback(self)

    def on_log(self, args, state, control, logs=None, **_):
        self.history.append({k: v for k, v in logs.items() if not TIMES.fullmatch(k)})

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
        if self.record_dir is not None:
            self.rows, self.metrics = Run(self.record_dir).completions, Run(self.record_dir).metrics
        return self

    @property
    def log(self) -> list[dict]:
        """A line a step, without the closing summary."""
        return [line for line in self.history if "train_loss" not in line]

    @property
    def made(self) -> list:
        """What it saw, and how its model was run: compiled or not, with its layers computed again or not."""
        compiled = hasattr(getattr(self.trainer, "model_wrapped", None), "_orig_mod")
        return [self.texts, self.scores, compiled, getattr(self.trainer.model, "is_gradient_checkpointing", None)]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.trainer.model.state_dict().items()}


def watched(who: str, kind: str, fields=None, *, until=None, **kwargs) -> Watched:
    """Build a trainer and train it; with `until`, with the first seed for which `until(watched)` holds."""
    if until is None:
        return Watched(build(who, kind, fields, **kwargs), kwargs.get("record_dir")).train()

    def train(seed: int) -> Watched:
        if "record_dir" in kwargs:
            shutil.rmtree(kwargs["record_dir"], ignore_errors=True)
        return watched(who, kind, (fields or {}) | {"seed": seed}, **kwargs)

    return until_seen(train, until)


# --- judges ----------------------------------------------------------------------------------------------------------


def apart(stock: Watched, ours: Watched) -> dict:
    """What two trainings logged in stock's columns, and which weights differ; stock has to have learned something."""
    theirs, own = stock.weights(), ours.weights()
    assert theirs.keys() == own.keys() and len(stock.log) == len(ours.log) > 0
    assert any(not torch.equal(theirs[name], stock.before[name]) for name in theirs)
    log = [{name: line[name] for name in like} for line, like in zip(ours.log, stock.log, strict=True)]
    differ = [name for name in theirs if not torch.equal(theirs[name], own[name])]
    return {"stock": [stock.log, *stock.made], "ours": [log, *ours.made], "weights": differ}


def assert_equal(difference: dict) -> None:
    assert repr(difference["ours"]) == repr(difference["stock"])  # NaN is NaN
    assert difference["weights"] == []


def assert_trains_as_stock(case, kind: str) -> None:
    """Ours without custom stops trains as stock does: the same numbers in every log line, the same weights at the end.

    With position ids, which rotary positions do not need, the first step is the same to rounding.
    """
    fields, own = case.options()
    stock = watched("stock", kind, fields, until=case.until, **own)
    fields |= {"seed": stock.trainer.args.seed}
    assert_equal(apart(stock, watched("ours", kind, fields, **own)))
    if case.placed:
        line = watched("ours", kind, fields, explicit_positions=True, **own).log[0]
        for name in TO_ROUNDING & set(stock.log[0]):
            assert line[name] == pytest.approx(stock.log[0][name], rel=1e-3, abs=1e-5), name


def assert_stops_hold(case, kind: str, record_dir: Path) -> None:
    """Train ours as its users do, with stops and a run folder, and judge it by `assert_promises`.

    The seed is one for which some rows stopped, some were cut, and a stop string ended some, so that each is judged.
    """
    fields, own = case.options()

    def every_end(got: Watched) -> bool:
        ends = {ids[-1] for ids in got.ids} >= set(got.tokenizer.convert_tokens_to_ids(list(case.eos)))
        return has_every_end(got.rows, case.spec.stop) and (ends or kind == "PPO") and (not case.seen or case.seen(got))

    own |= {"stops": case.spec, "record_dir": record_dir, "explicit_positions": True}
    got = watched("ours", kind, TELL[kind] | fields, until=every_end, **own)
    eos = got.tokenizer.convert_tokens_to_ids(list(case.eos))
    assert_promises(kind, got, got.tokenizer, case.spec.stop, eos)
    sizes = got.rows.groupby("step").size().tolist()
    assert sizes == [n * (2 if kind == "PPO" else 1) for n in case.rows]


def assert_promises(kind: str, got, tokenizer, strings=(STOP,), eos=None) -> None:
    """What ours promises with custom stops, judged from the ids alone: ends, masks, what rewards saw, what is recorded.

    PPO has no reward functions; its recorded rows are judged.
    """
    rows, eos = got.rows, eos or [tokenizer.eos_token_id]
    stopped = (rows["finish_reason"] == "stop").tolist()
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    assert [token for token in special if rows["completion"].str.contains(token, regex=False).any()] == []
    if kind == "PPO":
        cut = rows["finish_reason"] == "length"
        assert not cut[rows["completion"].str.endswith(strings)].any()
        assert (rows["completion_tokens"][cut] == LIMIT).all()
        assert ((rows["reward"] < -PENALTY / 2) == cut).all()
        return
    assert rows["completion"].tolist() == [c if isinstance(c, str) else c[-1]["content"] for c in got.texts]
    assert {tuple(c[-1]) for c in got.texts if not isinstance(c, str)} <= {("role", "content")}
    assert rows["completion_tokens"].tolist() == [len(ids) for ids in got.ids]
    before = tokenizer.encode("a", add_special_tokens=False)  # keeps the blank that a SentencePiece row begins with
    for ids, text, stop in zip(got.ids, rows["completion"], stopped, strict=True):
        whole, short = (tokenizer.decode([*before, *i]).removeprefix(tokenizer.decode(before)) for i in (ids, ids[:-1]))
        assert stop == (any(s in whole for s in strings) or ids[-1] in eos)
        assert stop or len(ids) == LIMIT
        assert not any(s in short for s in strings) and not set(eos) & set(ids[:-1])
        assert text == tokenizer.decode(ids, skip_special_tokens=True)
    check_groups(rows["prompt"].tolist(), G)
    assert rows["prompt"].nunique() > 1
    assert rows["reward"].tolist() == pytest.approx(got.scores, abs=1e-4)
    assert got.trained == [ids if stop else [] for ids, stop in zip(got.ids, stopped, strict=True)]
    shares = rows["finish_reason"].eq("length").groupby(rows["step"]).mean()
    logged = got.metrics.set_index("step")["completions/clipped_ratio"][shares.index]
    assert logged.tolist() == pytest.approx(shares.tolist())


def assert_turns(got, several: bool = True) -> None:
    """Each row: a call up to the stop, the answer outside the loss, a second turn up to a stop; recorded whole.

    Without `several` the rows may have one turn each.
    """
    own, rows = tokenizer(), got.rows
    whole = [own.decode(ids) for ids in got.ids]
    stopped = [ended(ids) for ids in got.ids]
    assert rows["finish_reason"].tolist() == ["stop" if stop else "length" for stop in stopped]
    assert rows["completion"].tolist() == [own.decode(ids, skip_special_tokens=True) for ids in got.ids]
    assert rows["completion_tokens"].tolist() == [sum(len(own.encode(turn)) for turn in turns(text)) for text in whole]
    assert rows["reward"].tolist() == pytest.approx(got.scores)
    for text, stop, trained in zip(whole, stopped, got.trained, strict=True):
        assert len(turns(text)) == (2 if "Find facts on" in text else 1)
        # The token that completes the stop may hold more: a turn ends with it.
        assert all(CLOSE not in own.decode(own.encode(turn)[:-1]) for turn in turns(text))
        assert own.decode(trained) == ("".join(turns(text)) if stop else "")
    assert any(len(turns(text)) == 2 for text in whole) or not several
    steps = rows.assign(cut=rows["finish_reason"] == "length").groupby("step")
    logged = {"mean_length": steps["completion_tokens"].mean(), "clipped_ratio": steps["cut"].mean()}
    logged["distinct"] = steps["completion"].nunique() / steps.size()
    for name, values in logged.items():
        assert got.metrics[f"completions/{name}"].tolist() == pytest.approx(values.tolist())


def has_every_end(rows, strings=()) -> bool:
    """Whether the recorded rows have both finish reasons, and one of the strings at an end."""
    by_string = rows["completion"].str.endswith(tuple(strings)).any()
    return set(rows["finish_reason"]) == {"stop", "length"} and by_string == bool(strings)


# TRL's PPO collects garbage twice a step, half a second each among all that these libraries have loaded.
gc.freeze()
