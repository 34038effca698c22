"""Its stops on every back end are in test_stopping.py, its defects in stock TRL in test_trl_defects.py."""

from types import SimpleNamespace

import pytest
import torch
from configuration_runs import build, config
from trl.experimental.online_dpo import OnlineDPOTrainer as StockOnlineDPOTrainer

from workbench import OnlineDPOTrainer, StopSpec
from workbench.errors import ParameterError
from workbench.experiments.recipes import Recipe
from workbench.experiments.train import online_dpo_config, train_online_dpo
from workbench.runs.run import Run
from workbench.training.rewards import length_reward

pytestmark = pytest.mark.slow

SMALL = Recipe(max_steps=2, num_generations=2, per_device_train_batch_size=8, max_completion_length=12, save_steps=1)


def test_online_dpo_compares_two_completions():
    with pytest.raises(ParameterError, match="num_generations=8: OnlineDPO compares 2 completions"):
        train_online_dpo(Recipe(), reward_funcs=length_reward(20), record_dir="unused")


def test_completions_without_a_pair_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="per_device_train_batch_size=3: counts completions"):
        online_dpo_config(
            Recipe(num_generations=2, per_device_train_batch_size=3, gradient_accumulation_steps=2), tmp_path
        )


def test_a_recipe_counts_completions_and_trl_prompts(tmp_path):
    config = online_dpo_config(SMALL, tmp_path)
    assert (config.per_device_train_batch_size, config.max_new_tokens, config.beta) == (4, 12, 0.1)
    assert online_dpo_config(Recipe(num_generations=2, beta=0.3), tmp_path).beta == 0.3
    assert online_dpo_config(Recipe(num_generations=2, seed=7), tmp_path).seed == 7


def test_each_row_is_recorded_with_its_end_and_the_reward_that_it_trained_on(tmp_path):
    stops = StopSpec(stop=(" the",))
    train_online_dpo(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path, stops=stops, missing_eos_penalty=100.0)
    rows = Run(tmp_path).completions
    assert rows.groupby("step").size().to_dict() == {1: 8, 2: 8}
    raw = length_reward(20)(rows["completion"])
    cut = rows["finish_reason"] == "length"
    assert rows["reward"].tolist() == pytest.approx([r - 100.0 * c for r, c in zip(raw, cut, strict=True)], abs=1e-4)
    by_string = rows["completion"].str.endswith(" the")
    assert (rows["finish_reason"][by_string] == "stop").all()
    assert (rows["sampled_tokens"] >= rows["completion_tokens"]).all()


def test_an_interrupted_training_goes_on(tmp_path):
    from workbench.errors import TrainingStopped
    from workbench.runs.stop_request import request_stop

    calls = []

    def reward(completions, **_):
        calls.append(len(completions))
        if len(calls) == 1:
            request_stop(Run(tmp_path), "by the test")
        return [float(len(text)) for text in completions]

    with pytest.raises(TrainingStopped, match="stopped after step 1 of 2"):
        train_online_dpo(SMALL, reward_funcs=reward, record_dir=tmp_path)
    train_online_dpo(SMALL, reward_funcs=reward, record_dir=tmp_path)
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2] and calls == [8, 8]


def test_entropy_and_kl_count_no_pads(monkeypatch):
    """TRL's loss leaves the pads behind a row's end out; its metrics sum over them."""
    stock, scored = StockOnlineDPOTrainer._forward, []
    trainer = build("ours", "OnlineDPO", {"max_new_tokens": 9})
    eos = trainer._tokenizer.eos_token_id

    def generate(input_ids, **_):
        rows = torch.randint(20, 40, (len(input_ids), 9))
        for n, row in enumerate(rows):
            row[n + 1] = eos
        return torch.cat([input_ids, rows], 1)

    def forward(self, model, *inputs):
        scored.append((stock(self, model, *inputs), inputs[3]))
        return scored[-1][0]

    monkeypatch.setattr(trainer.model, "generate", generate)
    monkeypatch.setattr(StockOnlineDPOTrainer, "_forward", forward)
    trainer.training_step(trainer.model, next(iter(trainer.get_train_dataloader())))
    logprobs, mask = scored[0]
    assert mask.sum(1).tolist() == [n + 2 for n in range(len(mask))]
    assert trainer.stats["objective/entropy"] == pytest.approx([-(logprobs * mask).sum(1).mean().item()])
    assert -logprobs.sum(1).mean().item() > trainer.stats["objective/entropy"][0] + 1


def test_on_a_server_a_prompt_keeps_the_pad_token_that_it_begins_with(monkeypatch):
    """As with a pad token that is the BOS, which a chat template writes; TRL returns the prompts padded."""
    trainer = build("ours", "OnlineDPO")
    pad = trainer._tokenizer.pad_token
    prompts = [f"{pad}What is jade?", "What is jade?\n"]
    padded = trainer._tokenizer(prompts, padding=True, padding_side="left")["input_ids"]
    monkeypatch.setattr(StockOnlineDPOTrainer, "_generate_vllm_server", lambda *_: ([[5]] * 4, 2 * padded))
    rows, ids = trainer._generate_vllm_server(prompts)
    assert rows == [[5]] * 4 and ids == 2 * [trainer._tokenizer.encode(prompt) for prompt in prompts]


def test_a_config_serves_a_second_trainer():
    """TRL reads the options of each request from the config."""
    args = config("OnlineDPO", generation_kwargs={"top_k": 5})
    trainer = build("ours", "OnlineDPO")
    own = {"reward_funcs": length_reward(20), "args": args, "train_dataset": trainer.train_dataset}
    for _ in range(2):
        made = OnlineDPOTrainer(trainer.model, processing_class=trainer._tokenizer, stops=["the"], **own)
        made.args.use_vllm, made.vllm_mode = True, "server"
        made.set_stops(StopSpec(stop=("the",)))
        assert made.args.generation_kwargs["stop"] == ["the"] and args.generation_kwargs == {"top_k": 5}


def test_generation_kwargs_take_the_place_of_trl_s_own_options_on_vllm():
    from vllm.sampling_params import StructuredOutputsParams

    made = StructuredOutputsParams(regex="a|b")  # by TRL, of the dictionary
    own = {"repetition_penalty": 1.0, "temperature": 0.9, "top_p": 1.0, "top_k": 0, "min_p": None}
    own |= {"args": SimpleNamespace(max_new_tokens=8), "generation_config": SimpleNamespace(structured_outputs=made)}
    trainer = SimpleNamespace(**own, stop_rule=SimpleNamespace(spec=StopSpec(stop=(" the",))))
    given = {"top_k": 5, "stop": [" the"], "structured_outputs": {"regex": "a|b"}}
    params = OnlineDPOTrainer._sampling_params(trainer, given)
    assert params.structured_outputs == made
    assert (params.top_k, params.stop, params.detokenize, params.n) == (5, [" the"], True, 2)
