import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, TrainerCallback

from workbench.errors import ParameterError
from workbench.generation.stops import StopRule, StopSpec
from workbench.runs.run import Run
from workbench.training.recipes import make_recipe

pytestmark = pytest.mark.slow

LIMIT, BATCH, UPDATES = 40, 16, 2
RECIPE = make_recipe("starter", max_steps=UPDATES, per_device_train_batch_size=BATCH, learning_rate=1e-5, beta=0.05)
RECIPE = make_recipe(**{**RECIPE.__dict__, "max_completion_length": LIMIT})


class Reseed(TrainerCallback):
    """Gives every update its own random state: longer runs draw more numbers and would part after the first."""

    def on_train_begin(self, args, state, control, **_):
        torch.manual_seed(1000)

    def on_step_end(self, args, state, control, **_):
        torch.manual_seed(1000 + state.global_step)


@pytest.fixture
def train(tmp_path, starter_folder):
    from workbench.training.ppo import train_ppo

    def run(name, stops, **overrides):
        out = tmp_path / name
        trainer = train_ppo(RECIPE, out_dir=out, stops=stops, callbacks=[Reseed()], **overrides)
        return trainer, Run(out)

    return run


def specs(tokenizer):
    of, to = tokenizer.encode(" of")[0], tokenizer.encode(" to")[0]
    return {
        "eos": StopSpec(),
        "id": StopSpec(token_ids=(of,)),
        "string": StopSpec(strings=("the ",)),
        "two of each": StopSpec(strings=("ing", " a "), token_ids=(of, to)),
    }


@pytest.mark.parametrize("label", ["eos", "id", "string", "two of each"])
def test_generation_ends_with_the_longest_row_and_every_row_at_its_stop(label, train, starter_folder):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    spec = specs(tokenizer)[label]
    trainer, run = train("run", spec)
    table = run.completions
    assert len(table) == BATCH * UPDATES
    longest = table.groupby("step")["completion_tokens"].max().tolist()
    assert trainer.forwards == longest
    ended = table[table["finish_reason"] == "stop"]
    assert len(ended) > BATCH
    cut = table[table["finish_reason"] == "length"]
    assert (cut["completion_tokens"] == LIMIT).all()


def test_legacy_mode_runs_to_the_limit_and_gives_the_same_truncated_tokens(train, starter_folder):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    rule = StopRule(StopSpec(), tokenizer)
    rows = {}
    for name, stops in {"legacy": StopSpec.legacy_mode(), "stop": StopSpec()}.items():
        trainer, _ = train(name, stops)
        rows[name] = (trainer, sampled_rows(trainer, rule))
    assert rows["legacy"][0].forwards[:UPDATES] == [LIMIT] * UPDATES
    assert max(rows["stop"][0].forwards) < LIMIT
    assert rows["legacy"][1] == rows["stop"][1]


def sampled_rows(trainer, rule):
    """What the policy samples for eight fixed prompts with a fixed seed, cut at the rule."""
    tokenizer = trainer.processing_class
    prompts = [{"input_ids": trainer.train_dataset[i]["input_ids"]} for i in range(8)]
    queries = tokenizer.pad(prompts, return_tensors="pt")["input_ids"]
    config = GenerationConfig(max_new_tokens=LIMIT, do_sample=True, temperature=1.0, top_k=0)
    torch.manual_seed(7)
    both, _ = trainer._batch_generation(trainer.model.policy, queries, 8, tokenizer.pad_token_id, config)
    rows = both[:, queries.shape[1] :].tolist()
    return [row[: rule.find(row).index] for row in rows]


def test_the_saved_policy_keeps_its_eos_where_stock_erases_it(train, tmp_path, starter_folder):
    trainer, _ = train("run", StopSpec.legacy_mode())
    trainer.save_model(str(tmp_path / "saved"))
    before = AutoModelForCausalLM.from_pretrained(starter_folder).generation_config.eos_token_id
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").generation_config.eos_token_id
    assert before is not None and after == before


def stock_trainer(tmp_path, starter_folder, **fields):
    """TRL's own PPOTrainer on the same parts."""
    import copy

    from transformers import AutoModelForSequenceClassification
    from trl.experimental.ppo import PPOTrainer

    from workbench.training.ppo import ppo_config
    from workbench.training.recipes import load_prompts

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


def test_the_missing_eos_penalty_falls_on_rows_that_no_configured_stop_ended(train, starter_folder):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    spec = StopSpec(token_ids=(tokenizer.encode(" of")[0],), eos=False)
    _, run = train("run", spec, missing_eos_penalty=1000.0)
    table = run.completions
    assert set(table["finish_reason"]) == {"stop", "length"}
    assert ((table["reward"] < -500) == (table["finish_reason"] == "length")).all()


def test_stock_penalises_every_row_that_ended_at_a_custom_stop_id(tmp_path, starter_folder):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    period = tokenizer.encode(".")[0]
    trainer = stock_trainer(tmp_path, starter_folder, stop_token_id=period, missing_eos_penalty=1000.0)
    history = []
    trainer.log = lambda metrics, *_: history.append(metrics["objective/scores"])
    trainer.train()
    assert max(history) < -500  # most rows: they stopped where they were told to, before any EOS


def test_rewards_land_at_the_same_index_as_in_a_run_padded_to_the_limit(train, starter_folder, monkeypatch):
    from workbench.training.ppo import PPOTrainer

    losses = {}
    _, run = train("short", StopSpec())
    losses["short"] = run.metrics["loss/value_avg"].tolist()
    original = PPOTrainer._batch_generation

    def padded_to_the_limit(self, model, queries, chunk_size, pad_token_id, generation_config):
        both, logits = original(self, model, queries, chunk_size, pad_token_id, generation_config)
        missing = queries.shape[1] + generation_config.max_new_tokens - both.shape[1]
        both = torch.nn.functional.pad(both, (0, missing), value=pad_token_id)
        return both, torch.nn.functional.pad(logits, (0, 0, 0, missing))

    monkeypatch.setattr(PPOTrainer, "_batch_generation", padded_to_the_limit)
    _, run = train("padded", StopSpec())
    losses["padded"] = run.metrics["loss/value_avg"].tolist()
    assert losses["short"] == pytest.approx(losses["padded"], rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"), [({"stop_token": "eos"}, "stop_token"), ({"stop_token_id": 5}, "stop_token_id")]
)
def test_trls_own_stop_fields_are_refused(train, fields, message):
    with pytest.raises(ParameterError, match=message):
        train("run", StopSpec(), **fields)


def test_a_pad_that_ends_a_response_is_refused_whichever_of_the_eos_ids_it_is(starter_folder, tmp_path):
    from workbench.training.ppo import train_ppo

    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(starter_folder),
        AutoTokenizer.from_pretrained(starter_folder),
    )
    model.generation_config.eos_token_id = [
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    ]  # as Qwen2.5-Instruct has it
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    recipe = make_recipe(str(tmp_path / "model"), dataset="starter", max_steps=1)
    with pytest.raises(ParameterError, match=r"pad token id 0: PPO masks by it, so it must .* none of the EOS ids"):
        train_ppo(recipe, out_dir=tmp_path / "run")
