"""PPO samples every completion to the limit: by default an EOS does not end it.

Cause: `stop_token` is None by default, and the trainer writes that None over the EOS of the policy's generation config
(trl/experimental/ppo/ppo_trainer.py:391-401 on 1.12.0, the last release with PPO).
Harm: every row costs `response_length` forward passes: on a small model 128 in place of the 23 that the longest row needs
(5.6 times), and 2.2 times the time of an update. The reward model scores the text after the EOS. The saved policy has lost
its EOS, so it does not stop in later use either.
Met by: no stop_token and no stop_token_id, the default (PPO).
Reported: huggingface/trl#2387 (deliberate, after OpenAI's first code). `stop_token="eos"` helps since #2528.
Patch (for 1.12.0): if the user gives no stop, EOS is the stop.
"""

import tempfile

import tiny

PPOConfig, PPOTrainer = tiny.ppo()
own, widths = tiny.tokenizer(), []
policy = tiny.model(own)
generate = policy.generate


def measured(input_ids, **kwargs):
    made = generate(input_ids=input_ids, **kwargs)
    for row in made.sequences[:, input_ids.shape[1] :].tolist():
        ends = [*(n + 1 for n, token in enumerate(row) if token == own.eos_token_id), len(row)]
        widths.append((ends[0], len(row)))
    return made


policy.generate = measured
args = PPOConfig(tempfile.mkdtemp(), **tiny.PPO, response_length=200)
trainer = PPOTrainer(args, own, policy, None, *tiny.ppo_parts(own))
trainer.train()
longest, width = max(end for end, _ in widths), widths[0][1]
if longest == 200:
    tiny.cannot_run("a completion has no EOS in 200 tokens")
saved = trainer.policy_model.generation_config.eos_token_id
tiny.verdict(
    width > longest,
    f"the longest completion has its EOS at token {longest}, all were sampled to {width}; the policy's EOS is now {saved}",
    f"generation ends at token {longest}, and the policy's EOS stays {own.eos_token_id}",
)
