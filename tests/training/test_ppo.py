import dataclasses

import psutil
import pytest
import torch
from conftest import daily
from generation_cases import specs
from ppo_parts import PPOTrainer, ppo_config, ppo_trainer, train_ppo
from samples import text_logprob, until_seen
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    TrainerCallback,
)

from workbench.errors import ParameterError
from workbench.experiments.recipes import load_prompts, make_recipe, resolve_model
from workbench.generation.stops import StopRule, StopSpec
from workbench.runs.run import Run
from workbench.training.rewards import length_reward
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow

LIMIT, BATCH, UPDATES = 40, 16, 2
LABELS = ("eos", "id", "string", "two of each")
RECIPE = make_recipe("starter", max_steps=UPDATES, per_device_train_batch_size=BATCH, learning_rate=1e-5, beta=0.05)
RECIPE = make_recipe(**{**RECIPE.__dict__, "max_completion_length": LIMIT})


class Reseed(TrainerCallback):
    """Gives every update its own random state: longer runs draw more numbers and would part after the first."""

    def __init__(self, seed):
        self.seed = 1000 * (seed + 1)

    def on_train_begin(self, args, state, control, **_):
        torch.manual_seed(self.seed)

    def on_step_end(self, args, state, control, **_):
        torch.manual_seed(self.seed + state.global_step)


@pytest.fixture
def train(tmp_path, starter_folder):
    from ppo_parts import train_ppo

    def run(name, stops, seed=0, **overrides):
        out = tmp_path / name
        recipe = dataclasses.replace(RECIPE, seed=seed)
        trainer = train_ppo(recipe, record_dir=out, stops=stops, callbacks=[Reseed(seed)], **overrides)
        return trainer, Run(out)

    return run


@pytest.mark.parametrize("label", daily(LABELS, "eos", "two of each"))
def test_generation_ends_with_the_longest_row_each_at_its_stop(label, train, starter_folder):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    spec = specs(tokenizer)[label]

    def longest(run):
        return run.completions.groupby("step")["completion_tokens"].max().tolist()

    trainer, run = until_seen(lambda seed: train("run", spec, seed), lambda made: min(longest(made[1])) < LIMIT)
    table = run.completions
    assert len(table) == BATCH * UPDATES
    assert trainer.forwards == longest(run)
    cut = table[table["finish_reason"] == "length"]
    assert (cut["completion_tokens"] == LIMIT).all()


def test_short_rows_train_up_to_their_end_and_score_as_if_alone(tmp_path, monkeypatch):
    from workbench.experiments.train import train
    from workbench.training.ppo import PPOTrainer

    masks, alone, original = [], [], ppo_trainer.masked_whiten

    class Watched(PPOTrainer):
        def _get_reward(self, model, query_responses, pad_token_id, context_length):
            if model is self.reward_model:
                split = [(row[:context_length], row[context_length:]) for row in query_responses]
                for parts in ([part[part != pad_token_id] for part in parts] for parts in split):
                    one = self._original_get_reward(model, torch.cat(parts)[None], pad_token_id, len(parts[0]))
                    alone.append(one[1].item())
            return super()._get_reward(model, query_responses, pad_token_id, context_length)

    def whiten(values, mask, **kwargs):
        masks.append(mask)
        return original(values, mask, **kwargs)

    monkeypatch.setattr(ppo_trainer, "masked_whiten", whiten)
    one_step = dataclasses.replace(RECIPE, max_steps=1)
    train(one_step, trainer=Watched, reward_funcs="random weights", record_dir=tmp_path)
    rows = Run(tmp_path).completions
    assert rows["completion_tokens"].nunique() > 1 and rows["reward"].nunique() > 4
    assert masks[-1].sum(1).tolist() == rows["completion_tokens"].tolist()
    assert rows["reward"].tolist() == pytest.approx(alone, abs=1e-5)


@pytest.mark.rare
def test_legacy_mode_runs_to_the_limit_and_keeps_the_same_tokens(train, starter_folder):
    rule = StopRule(StopSpec(), AutoTokenizer.from_pretrained(starter_folder))
    named = {"legacy": StopSpec.never(), "stop": StopSpec()}
    trainers = {name: train(name, stops)[0] for name, stops in named.items()}
    assert trainers["legacy"].forwards == [LIMIT] * UPDATES
    trainers["legacy"].model.policy.load_state_dict(trainers["stop"].model.policy.state_dict())  # they learned apart

    def sample(seed):
        return {name: sampled_rows(trainer, rule, seed) for name, trainer in trainers.items()}

    rows = until_seen(sample, lambda made: trainers["stop"].forwards[-1] < LIMIT)
    assert rows["legacy"] == rows["stop"]
    assert trainers["stop"].forwards[-1] == max(map(len, rows["stop"]))
    assert set(trainers["legacy"].forwards) == {LIMIT}


def sampled_rows(trainer, rule, seed):
    """What the policy samples for eight fixed prompts, cut at the rule."""
    tokenizer = trainer.processing_class
    prompts = [{"input_ids": trainer.train_dataset[i]["input_ids"]} for i in range(8)]
    queries = tokenizer.pad(prompts, return_tensors="pt")["input_ids"]
    config = GenerationConfig(max_new_tokens=LIMIT, do_sample=True, temperature=1.0, top_k=0)
    torch.manual_seed(seed)
    both, _ = trainer._batch_generation(trainer.model.policy, queries, 8, tokenizer.pad_token_id, config)
    rows = both[:, queries.shape[1] :].tolist()
    return [row[: rule.find_end(row).index] for row in rows]


def test_the_saved_policy_keeps_its_eos_where_stock_erases_it(train, tmp_path, starter_folder):
    trainer, _ = train("run", StopSpec.never())
    trainer.save_model(str(tmp_path / "saved"))
    before = AutoModelForCausalLM.from_pretrained(starter_folder).generation_config.eos_token_id
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").generation_config.eos_token_id
    assert before is not None and after == before


def stock_trainer(tmp_path, starter_folder, **fields):
    """TRL's own PPOTrainer on the same parts."""
    import copy

    from transformers import AutoModelForSequenceClassification
    from trl.experimental.ppo import PPOTrainer

    from workbench.experiments.recipes import load_prompts
    from workbench.experiments.train import ppo_config

    tokenizer = AutoTokenizer.from_pretrained(starter_folder, padding_side="left")
    prompts = load_prompts("starter").select(range(64))
    dataset = prompts.map(lambda row: tokenizer(row["prompt"]), remove_columns=prompts.column_names)
    policy = AutoModelForCausalLM.from_pretrained(starter_folder)
    torch.manual_seed(0)
    classifiers = [AutoModelForSequenceClassification.from_pretrained(starter_folder, num_labels=1) for _ in range(2)]
    args = ppo_config(RECIPE, tmp_path / "stock", **fields)
    return PPOTrainer(args, tokenizer, policy, copy.deepcopy(policy), classifiers[0], dataset, classifiers[1])


def test_stock_writes_none_over_the_eos_of_the_policy(tmp_path, starter_folder):
    trainer = stock_trainer(tmp_path, starter_folder)
    assert trainer.policy_model.generation_config.eos_token_id is None


def test_the_missing_eos_penalty_falls_on_rows_without_any_stop(train, starter_folder):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    spec = StopSpec(stop_token_ids=(tokenizer.encode(" of")[0],), ignore_eos=True)

    def rows(seed):
        return train("run", spec, seed, missing_eos_penalty=1000.0)[1].completions

    table = until_seen(rows, lambda table: set(table["finish_reason"]) == {"stop", "length"})
    assert ((table["reward"] < -500) == (table["finish_reason"] == "length")).all()


def test_stock_penalises_rows_that_ended_at_a_custom_stop_id(tmp_path, starter_folder, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    period = tokenizer.encode(".")[0]
    trainer = stock_trainer(tmp_path, starter_folder, stop_token_id=period, missing_eos_penalty=1000.0)
    rows, scores, original = [], [], ppo_trainer.truncate_response

    def truncate(*args):
        rows.append(original(*args))
        return rows[-1]

    monkeypatch.setattr(ppo_trainer, "truncate_response", truncate)
    trainer.log = lambda metrics, *_: scores.append(metrics["objective/scores"])
    trainer.train()
    at_the_stop = [(batch == period).any(1) & ~(batch == tokenizer.eos_token_id).any(1) for batch in rows]
    assert sum(int(batch.sum()) for batch in at_the_stop) > 0
    for batch, score in zip(rows, scores, strict=True):
        without_eos = (batch != tokenizer.eos_token_id).all(1).float().mean().item()
        assert score == pytest.approx(-1000 * without_eos, abs=30)  # a row is 62 of it, the reward model a few


class Stricter(TrainerCallback):
    """Notes the penalty that callbacks see, and doubles it after each update."""

    def __init__(self):
        self.seen = []

    def on_train_begin(self, args, state, control, **_):
        self.seen.append(args.missing_eos_penalty)

    on_log = on_save = on_train_begin

    def on_step_end(self, args, state, control, **_):
        args.missing_eos_penalty *= 2


def test_callbacks_and_checkpoints_have_the_users_penalty(tmp_path):
    callback = Stricter()
    options = {"missing_eos_penalty": 100.0, "save_steps": 1, "save_strategy": "steps", "callbacks": [callback]}
    trainer, run = train_on_search(tmp_path, characters, **options)
    assert callback.seen == [100.0, 100.0, 200.0, 200.0, 400.0] and trainer.args.missing_eos_penalty == 400.0
    saved = [torch.load(path, weights_only=False) for path in sorted(tmp_path.rglob("checkpoint-*/training_args.bin"))]
    assert [args.missing_eos_penalty for args in saved] == [200.0, 400.0]
    rows = run.completions
    penalty = (rows["finish_reason"] == "length") * rows["step"].map({1: 100.0, 2: 200.0})
    assert rows["reward"].tolist() == (rows["completion"].str.len() - penalty).tolist()


@pytest.mark.rare
def test_rewards_land_at_the_index_of_a_run_padded_to_the_limit(train, starter_folder, monkeypatch):
    from workbench.training.ppo import PPOTrainer

    def short_rows(seed):
        return (seed, *train("short", StopSpec(), seed))

    seed, _, run = until_seen(short_rows, lambda made: made[1].forwards[0] < LIMIT)
    short = run.metrics["loss/value_avg"][0]  # of the first update: the next is of policies that learned apart
    original = PPOTrainer._batch_generation

    def padded_to_the_limit(self, model, queries, chunk_size, pad_token_id, generation_config):
        both, logits = original(self, model, queries, chunk_size, pad_token_id, generation_config)
        missing = queries.shape[1] + generation_config.max_new_tokens - both.shape[1]
        both = torch.nn.functional.pad(both, (0, missing), value=pad_token_id)
        return both, torch.nn.functional.pad(logits, (0, 0, 0, missing))

    monkeypatch.setattr(PPOTrainer, "_batch_generation", padded_to_the_limit)
    _, run = train("padded", StopSpec(), seed)
    assert short == pytest.approx(run.metrics["loss/value_avg"][0], rel=1e-5)


def test_before_updates_a_minimum_length_moves_no_ratio_or_kl(train):
    """TRL takes its old log-probs from scores, in which stops are banned up to the minimum."""
    _, run = train("run", StopSpec(min_tokens=8), learning_rate=0.0, num_ppo_epochs=1)
    assert run.completions["completion_tokens"].min() > 8
    assert run.metrics["val/ratio"].tolist() == pytest.approx([1.0] * UPDATES, abs=1e-4)
    assert run.metrics["objective/kl"].tolist() == pytest.approx([0.0] * UPDATES, abs=1e-3)


@pytest.mark.parametrize(
    ("fields", "message"), [({"stop_token": "eos"}, "stop_token"), ({"stop_token_id": 5}, "stop_token_id")]
)
def test_trls_own_stop_fields_are_refused(train, fields, message):
    with pytest.raises(ParameterError, match=message):
        train("run", StopSpec(), **fields)


def test_a_stop_of_pads_and_texts_for_prompts_are_refused(tmp_path):
    """Rows that a pad's text had stopped counted as never stopped, each with the penalty."""
    path = resolve_model("search")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    policy, values = (
        AutoModelForCausalLM.from_pretrained(path),
        AutoModelForSequenceClassification.from_pretrained(path),
    )
    args = ppo_config(dataclasses.replace(RECIPE, max_steps=1), tmp_path)
    texts = load_prompts("search").select(range(8))
    ids = texts.map(lambda row: tokenizer(row["prompt"]), remove_columns=texts.column_names)
    for stops, data, message in (
        (tokenizer.pad_token, ids, r"stop string '.*': the pad token completes it"),
        (None, texts, r"columns \['prompt.*\]; PPO takes tokenised prompts, so expected a column input_ids"),
    ):
        with pytest.raises(ParameterError, match=message):
            PPOTrainer(args, tokenizer, policy, None, None, data, values, reward_funcs=length_reward(), stops=stops)


def test_reward_functions_with_deepspeed_are_refused(tmp_path):
    args = ppo_config(dataclasses.replace(RECIPE, max_steps=1), tmp_path)
    args.deepspeed = {"zero_optimization": {"stage": 2}}
    with pytest.raises(ParameterError, match="reward_funcs with DeepSpeed"):
        PPOTrainer(args, None, None, None, None, None, None, reward_funcs=length_reward())


def test_fewer_prompts_than_an_update_takes_are_refused(tmp_path):
    """TRL's PPO looked for a full batch for ever."""
    few = tmp_path / "few.jsonl"
    few.write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(7)))
    recipe = make_recipe("search", dataset=str(few), max_steps=1, per_device_train_batch_size=4, num_generations=2)
    recipe = dataclasses.replace(recipe, gradient_accumulation_steps=2)
    with pytest.raises(ParameterError, match=r"^train_dataset: 7 prompts, and an update takes 8 "):
        train_ppo(recipe, record_dir=tmp_path / "run")


# --- reward functions ------------------------------------------------------------------------------------------------


def characters(completions, **_):
    return [float(len(text)) for text in completions]


def train_on_search(record_dir, reward_funcs, steps=UPDATES, **options):
    from ppo_parts import train_ppo

    recipe = make_recipe("search", dataset="search", max_steps=steps, per_device_train_batch_size=BATCH)
    recipe = make_recipe(**{**recipe.__dict__, "max_completion_length": 16})
    return train_ppo(recipe, record_dir=record_dir, reward_funcs=reward_funcs, **options), Run(record_dir)


def test_reward_functions_get_the_scored_rows_with_their_columns(tmp_path):
    seen = []

    def matching(prompts, completions, completion_ids, answer, trainer_state, **_):
        seen.append((prompts, completions, completion_ids, answer, trainer_state.global_step))
        return [0.0] * len(prompts)

    # Two pieces an update, and as many updates as one epoch and a half has: the order of rows changes in between.
    fields = {"local_rollout_forward_batch_size": 8}
    trainer, run = train_on_search(tmp_path, matching, steps=11, num_ppo_epochs=1, **fields)
    assert [len(prompts) for prompts, *_ in seen] == [8] * 22
    assert [step for *_, step in seen] == [n // 2 for n in range(22)]
    pairs = [pair for prompts, _, _, answer, _ in seen for pair in zip(prompts, answer, strict=True)]
    assert all(call.removeprefix("<search>").removesuffix("</search>") in prompt for prompt, call in pairs)
    assert len(set(pairs)) > 100
    assert run.completions["prompt"].tolist() == [prompt for prompt, _ in pairs]
    assert run.completions["completion"].tolist() == [text for _, texts, *_ in seen for text in texts]
    ids = [row for _, _, rows, *_ in seen for row in rows]
    assert run.completions["completion_tokens"].tolist() == [len(row) for row in ids]
    assert all(trainer.processing_class.pad_token_id not in row for row in ids)


def test_the_reward_is_weighted_and_each_function_has_its_metric(tmp_path):
    from workbench import exact_match_reward

    exact = exact_match_reward("answer")
    _, run = train_on_search(tmp_path, [characters, exact], reward_weights=[0.1, 2.0])
    rows, metrics = run.completions, run.metrics
    assert rows["characters"].tolist() == rows["completion"].str.len().tolist()
    weighted = 0.1 * rows["characters"] + 2.0 * rows["reward_exact_match"]
    assert rows["reward"].tolist() == pytest.approx(weighted.tolist())
    for name, column in {"reward": "reward", "rewards/characters/mean": "characters"}.items():
        assert metrics[name].tolist() == pytest.approx(rows.groupby("step")[column].mean().tolist(), rel=1e-5)
    spread = rows.groupby("step")["reward_exact_match"].std().tolist()
    assert metrics["rewards/reward_exact_match/std"].tolist() == pytest.approx(spread)
    assert metrics["reward"].tolist() == metrics["objective/scores"].tolist()


def test_rows_scored_in_pieces_are_counted_as_one_batch(tmp_path):
    """The mean over pieces called every text distinct, whatever the policy wrote."""
    fields = {"local_rollout_forward_batch_size": 5, "temperature": 1e-3, "response_length": 7}
    _, run = train_on_search(tmp_path, characters, steps=1, **fields)
    texts, cut = run.completions["completion"], run.completions["finish_reason"] != "stop"
    assert texts.nunique() < len(texts) == BATCH
    (logged,) = run.metrics[["completions/distinct", "stops/clipped_ratio"]].to_numpy().tolist()
    assert logged == [texts.nunique() / BATCH, cut.mean()]


def test_an_update_makes_rewarded_completions_likelier(tmp_path, starter_folder):
    from ppo_parts import train_ppo

    rows = []

    def every_other(prompts, completion_ids, **_):
        rows.extend(zip(prompts, completion_ids, strict=True))
        # Far from the value model's first guesses, which are near 0.
        return [100.0 * (n % 2) for n in range(len(prompts))]

    fields = {"max_steps": 1, "per_device_train_batch_size": BATCH, "learning_rate": 1e-4}
    recipe = make_recipe("starter", **fields)
    trainer = train_ppo(recipe, record_dir=tmp_path, reward_funcs=every_other, num_ppo_epochs=1)
    encode, before = trainer.processing_class.encode, AutoModelForCausalLM.from_pretrained(starter_folder)
    models = (trainer.model.policy, before)
    change = [text_logprob(models[0], encode(p), ids) - text_logprob(models[1], encode(p), ids) for p, ids in rows]
    rewarded, others = sum(change[1::2]), sum(change[::2])
    assert len(rows) == BATCH and rewarded > 0 > others


def test_the_penalty_for_a_missing_stop_falls_on_the_sum(tmp_path):
    def completions(seed):
        own = {"missing_eos_penalty": 1000.0, "response_length": 8, "seed": seed}
        return train_on_search(tmp_path, characters, **own)[1].completions

    rows = until_seen(completions, lambda rows: set(rows["finish_reason"]) == {"stop", "length"})
    expected = rows["characters"] - 1000.0 * (rows["finish_reason"] == "length")
    assert rows["reward"].tolist() == pytest.approx(expected.tolist())


def test_evaluation_rows_have_their_columns_and_are_not_recorded(tmp_path):
    seen = []

    def matching(prompts, completions, answer, **_):
        seen.append(list(zip(prompts, answer, strict=True)))
        return [1.0] * len(prompts)

    trainer, run = train_on_search(tmp_path, matching, steps=1)
    before = len(run.completions)
    rows = trainer.train_dataset.select(range(100, 108))
    loader = torch.utils.data.DataLoader(rows, batch_size=4, collate_fn=trainer.data_collator)
    trainer.eval_dataset, trainer.eval_dataloader._loader = rows, loader
    trainer.generate_completions()
    assert [prompt for part in seen[-2:] for prompt, _ in part] == rows["prompt"]
    assert len(run.completions) == before


def test_samples_for_evaluation_leave_the_training_as_it_was(tmp_path):
    """TRL's default: ten times in a training, from within `train`."""
    options = {"eval_strategy": "no", "missing_eos_penalty": 1.0, "steps": 3}
    plain = train_on_search(tmp_path / "plain", characters, **options)
    sampled = train_on_search(tmp_path / "sampled", characters, **options, num_sample_generations=3)
    trainer, run = sampled
    assert trainer.args.missing_eos_penalty == 1.0 and trainer._original_get_reward == plain[0]._original_get_reward
    assert len(trainer.forwards) == len(run.metrics) == 3 and len(run.completions) == len(plain[1].completions)
    assert run.metrics["reward"].iloc[0] == plain[1].metrics["reward"].iloc[0]


def test_tensors_and_arrays_are_rewards_async_functions_are_not(tmp_path):
    def as_tensor(completions, **_):
        return torch.tensor([float(len(text)) for text in completions])

    async def later(completions, **_):
        return [1.0] * len(completions)

    _, run = train_on_search(tmp_path / "run", as_tensor, steps=1)
    assert run.completions["reward"].tolist() == run.completions["completion"].str.len().tolist()
    with pytest.raises(ParameterError, match="reward function later: it is asynchronous"):
        train_on_search(tmp_path / "later", later, steps=1)


class Weighted:
    weight = 1.0

    def __call__(self, completions, **_):
        return [self.weight * value for value in characters(completions)]


class Curriculum(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        self.reward.weight = 100.0


def test_reward_objects_stay_the_users_and_are_numbered(tmp_path):
    rewards, curriculum = [Weighted(), Weighted()], Curriculum()
    curriculum.reward = rewards[0]
    trainer, run = train_on_search(tmp_path, rewards, callbacks=[curriculum])
    assert trainer.reward_funcs[0] is rewards[0]
    means = run.metrics.set_index("step")
    assert means["rewards/Weighted/mean"][1] == pytest.approx(means["rewards/Weighted_2/mean"][1])
    assert means["rewards/Weighted/mean"][2] == pytest.approx(100 * means["rewards/Weighted_2/mean"][2])
    assert run.completions.columns.isin(["Weighted", "Weighted_2"]).sum() == 2


def test_an_error_of_a_reward_keeps_its_type_and_closes_files(tmp_path):
    def breaks(completions, **_):
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError) as caught:
        train_on_search(tmp_path, breaks, stops=["</search>", 1])  # 1 is the EOS
    assert caught.value.__notes__ == ["raised by the reward function breaks"]
    opened = [one.path for one in psutil.Process().open_files()]
    assert (tmp_path / "metrics.jsonl").exists() and not [path for path in opened if path.startswith(str(tmp_path))]


def test_the_rate_is_scheduled_as_the_recipe_says(train):
    _, run = train("constant", StopSpec())
    assert run.metrics["lr"].tolist() == [RECIPE.learning_rate] * UPDATES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward_funcs": None}, "reward_model and reward_funcs: give one of the two"),
        ({"reward_weights": [1.0, 2.0]}, r"reward_weights=\[1.0, 2.0\]: expected 1"),
        ({"reward_funcs": []}, "reward_funcs: NoneType: expected functions"),
        ({"reward_funcs": ["a/model"]}, "reward_funcs: str: expected functions; give a model as reward_model"),
    ],
)
def test_rewards_that_ppo_cannot_take_are_refused(tmp_path, options, message):
    with pytest.raises(ParameterError, match=message):
        train_on_search(tmp_path / "run", **{"reward_funcs": characters} | options)
    assert not (tmp_path / "run").exists()


def test_weights_without_functions_are_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"reward_weights=.*expected None, since reward_model is given"):
        train_on_search(tmp_path / "run", "random weights", reward_weights=[1.0])


def test_an_odd_reward_ends_the_training_and_keeps_the_record(tmp_path):
    def odd(completions, trainer_state, **_):
        return [float("nan") if trainer_state.global_step and n == 3 else 1.0 for n in range(len(completions))]

    with pytest.raises(ParameterError, match=r"reward function odd, row 3 \(.*\): returned nan"):
        train_on_search(tmp_path, odd)
    assert Run(tmp_path).metrics["step"].tolist() == [1]


@pytest.mark.slow
def test_the_warning_of_lost_updates_points_to_its_line(tmp_path):
    path = resolve_model("starter")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    policy, reference = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16) for _ in range(2))
    values = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.bfloat16)
    data = (
        load_prompts("starter").select(range(16)).map(lambda row: tokenizer(row["prompt"]), remove_columns=["prompt"])
    )
    args = ppo_config(dataclasses.replace(RECIPE, learning_rate=1e-6), tmp_path)
    rest = {"reward_funcs": length_reward(), "train_dataset": data, "value_model": values}
    with pytest.warns(UserWarning, match="by rounding") as caught:
        PPOTrainer(args, tokenizer, policy, reference, **rest)
    assert [one.filename for one in caught if "by rounding" in str(one.message)] == [__file__]


def test_check_step_refuses_ppo_in_one_sentence():
    with pytest.raises(ParameterError, match="PPOTrainer: expected TRL's GRPOTrainer, RLOOTrainer"):
        check_step(object.__new__(PPOTrainer))
