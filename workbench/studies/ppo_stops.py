"""PPO under several ways to stop: what each costs, and what text after EOS does to a reward model (notebook 01, article A0)."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from trl.experimental.ppo import ppo_trainer

from ..consistency.padding import pad_batch
from ..errors import ParameterError
from ..generation.rollouts import Sampling, TransformersSampler, generate
from ..generation.stops import StopRule, StopSpec
from ..runs.files import read_json
from ..runs.run import Run
from ..training.ppo import PPOTrainer, random_heads
from ..training.recipes import Recipe, load_prompts, resolve_model
from .seeds import Arm, share_cut


def ppo_stop_arms(recipe: Recipe, modes: Mapping[str, StopSpec], **options) -> dict[str, Arm]:
    """An arm per way of stopping, on a reward model of random weights (claims A0.1 to A0.5).

    Args:
        recipe: what to train.
        modes: name -> stops.
        **options: further `PPOConfig` fields.
    """
    return {name: Arm(recipe, "random weights", PPOTrainer, stops, options) for name, stops in modes.items()}


def stop_costs(runs: Mapping[str, Sequence[Run]]) -> pd.DataFrame:
    """What each way of stopping cost, a row each, over its seeds.

    Columns: forward passes and seconds per update, share of row-steps after a row's end, share of rows that the limit cut,
    rows that stock's missing-EOS rule would punish, EOS id in the saved policy.
    """
    rows = {}
    for name, members in runs.items():
        completions = pd.concat([run.completions for run in members])
        metrics = pd.concat([run.metrics for run in members])
        forwards = metrics["generation/forwards"]
        useful = completions[["completion_tokens", "tokens_to_eos"]].min(axis=1).sum()
        saved = read_json(members[0].path / "policy" / "generation_config.json", {})
        rows[name] = {
            "forwards per update": forwards.mean(),
            "seconds per update": pd.concat([run.metrics["elapsed_s"].diff() for run in members]).median(),
            "wasted row-steps": 1 - useful / (len(completions) / len(metrics) * forwards.sum()),
            "cut by the limit": share_cut(completions["finish_reason"]),
            "stock would punish": share_cut(completions["trl_finish_reason"]),
            "EOS of the saved policy": str(saved.get("eos_token_id")),
        }
    return pd.DataFrame(rows).T


@torch.no_grad()
def score_tails(run: Run, rows: int = 32, seed: int = 0) -> pd.DataFrame:
    """What text after EOS does to the reward model: each response scored whole and cut at its EOS (claim A0.2).

    Args:
        run: a finished PPO training in legacy mode on a reward model of random weights; its policy writes the responses.
        rows: prompts, from the start of the training set.
        seed: of sampling.

    Returns:
        `whole, cut, tokens, tokens_to_eos`, one row a response: its two scores, its tokens, and those up to its first EOS.

    Raises:
        ParameterError: the run stopped early, so there is no text after EOS.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    record = read_json(run.path / "recipe.json", {})
    if not record["stops"]["legacy"]:
        raise ParameterError(f"{run.path}: its rows stop early, so no text follows EOS; use StopSpec.legacy_mode()")
    recipe = Recipe(**record["recipe"])
    tokenizer = AutoTokenizer.from_pretrained(run.path / "policy", padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(run.path / "policy")
    reward_model = random_heads(resolve_model(recipe.model), recipe.seed)[1].eval()
    how = Sampling(recipe.max_completion_length, recipe.temperature, seed=seed)
    prompts = load_prompts(recipe.dataset).select(range(rows))["prompt"]
    sampled = generate(TransformersSampler(policy, tokenizer), prompts, stops=StopSpec.legacy_mode(), sampling=how)
    queries = pad_batch([rollout.prompt_ids for rollout in sampled], tokenizer.pad_token_id, "left")["input_ids"]
    whole = torch.tensor([rollout.completion_ids for rollout in sampled])
    rule, cut = StopRule(StopSpec(), tokenizer, policy.generation_config), whole.clone()
    ends = [rule.find(row).index for row in whole.tolist()]
    for row, end in zip(cut, ends, strict=True):
        row[end:] = tokenizer.pad_token_id
    texts = {name: torch.cat([queries, responses], dim=1) for name, responses in (("whole", whole), ("cut", cut))}
    width, pad_id = queries.shape[1], tokenizer.pad_token_id
    scores = {name: ppo_trainer.get_reward(reward_model, x, pad_id, width)[1].tolist() for name, x in texts.items()}
    return pd.DataFrame(scores | {"tokens": whole.shape[1], "tokens_to_eos": ends})
