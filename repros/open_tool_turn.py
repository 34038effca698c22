"""A turn that a stop ended is left open before the tool's answer.

Cause: the ids behind a call are those that the chat template has behind its last EOS (`_get_tool_suffix_ids`,
trl/trainer/grpo_trainer.py:1893 and 2039 on 1.16.0). That counts on the policy to have written this EOS. A call that
ended at another stop has none, and nothing checks it.
Harm: where the template closes a turn with EOS (Qwen, ChatML), all later turns are sampled, scored and trained in a
conversation that the template never renders, and that no server shows the model afterwards.
Met by: tools or environments (GRPO) with a stop in generation_kwargs that ends a call, such as "</tool_call>" on vLLM.
Patch: put EOS in front of the suffix where the template has one there and the turn ended without.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

own, contexts = tiny.tokenizer("<call>"), []
call = own.convert_tokens_to_ids("<call>")
own.chat_template = (
    "{% for m in messages %}{{ m['content'] }}{% for c in m['tool_calls'] or [] %}"
    "<call>{{ c['function']['name'] }} {{ c['function']['arguments'] | tojson }}{% endfor %}"
    "{{ '<eos>' if m['role'] == 'assistant' else ' ' }}{% endfor %}"
)
own.response_template = own.response_schema = {"type": "object"}  # TRL parses calls only where there is one
ASKED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}],
}
grpo_trainer.parse_response = lambda tokenizer, ids, *_, **__: (
    ASKED if call in ids else {"role": "assistant", "content": ""}
)


def look() -> str:
    """Look around."""
    return "we see the sea."


class Watched(GRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        contexts.extend(list(ids) for ids in prompt_ids if call in ids)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)


only_calls = [token for token in range(len(own)) if token != call]
stops = {"eos_token_id": [own.eos_token_id, call], "suppress_tokens": only_calls}
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, generation_kwargs=stops, max_tool_calling_iterations=1)
rows = [{"prompt": [{"role": "user", "content": text}]} for text in tiny.WORDS]
data = tiny.datasets.Dataset.from_list(rows)
trainer = Watched(tiny.model(own), tiny.parity, args, data, processing_class=own, tools=[look])
trainer.train()
if not contexts:
    tiny.cannot_run("no completion called the tool")
still_open = [ids for ids in contexts if own.eos_token_id not in ids[ids.index(call) :]]
tiny.verdict(
    len(still_open) > 0,
    f"in {len(still_open)} of {len(contexts)} contexts of a second turn no EOS closes the turn with the call: "
    f"{own.decode((still_open or contexts)[0])!r}",
    "EOS stands between the call and the tool's answer, as in the chat template",
)
