"""PPO's missing_eos_penalty falls on completions that ended as asked, at `stop_token_id`.

Cause: the filter looks for the tokenizer's EOS and not for `self.stop_token_id` (trl/experimental/ppo/ppo_trainer.py:757 on
1.12.0, the last release with PPO), though its comment says "Ensure that the sample contains stop_token_id".
Harm: with a stop id of your own completions without EOS are punished, stopped or not. The penalty should teach the policy
to stop. It teaches nothing, and drowns the reward.
Met by: missing_eos_penalty with stop_token_id (PPO).
Reported: huggingface/trl#3750, #5338.
Patch (for 1.12.0): look for the stop id if there is one.
"""

import tempfile

import tiny

PPOConfig, PPOTrainer = tiny.ppo()
own, punished = tiny.tokenizer(), []
policy = tiny.model(own)
period = own.convert_tokens_to_ids(".")
policy.generation_config.suppress_tokens = [own.eos_token_id, own.pad_token_id]  # so that only the stop id ends a row
generate, ended = policy.generate, []


def measured(input_ids, **kwargs):
    made = generate(input_ids=input_ids, **kwargs)
    ended.extend(period in row for row in made.sequences[:, input_ids.shape[1] :].tolist())
    return made


policy.generate = measured
options = {"response_length": 200, "stop_token_id": period, "missing_eos_penalty": 1000.0}
args = PPOConfig(tempfile.mkdtemp(), **tiny.PPO, **options)
trainer = PPOTrainer(args, own, policy, None, *tiny.ppo_parts(own))
trainer.log = lambda metrics, *_: punished.append(round(-metrics["objective/scores"] / 1000 * tiny.PPO_ROWS))
trainer.train()
if not any(ended):
    tiny.cannot_run("no completion ended at the stop id")
stopped = sum(ended[: tiny.PPO_ROWS])
tiny.verdict(
    punished[0] > tiny.PPO_ROWS - stopped,
    f"{stopped} of {tiny.PPO_ROWS} completions ended at stop_token_id, {punished[0]} of {tiny.PPO_ROWS} were punished",
    f"{tiny.PPO_ROWS - stopped} are punished",
)
