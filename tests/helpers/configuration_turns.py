"""The search model as one that calls tools: its calls are parsed, answered and continued, in TRL's own loop."""

from datasets import Dataset
from transformers import AutoTokenizer

from workbench.experiments.recipes import resolve_model
from workbench.experiments.toys.search_task import TOPICS, search_prompts

TWO_TURNS = {"max_completion_length": 40, "max_tool_calling_iterations": 1}
_CALL = "<search>{{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}</search>"
# A line of its own for the answer: the tokenizer would join the end of a call and a letter.
_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ '\n' }}{% endif %}{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}" + _CALL + "{% endfor %}"
    "{% if m['role'] != 'assistant' %}{{ '\n' }}{% endif %}{% endfor %}"
)
_FUNCTION = {"name": "search", "arguments": {"query": "{content}"}}
_PARSED = {
    "defaults": {"role": "assistant"},
    "start_anchor": "\n",
    "fields": {"tool_calls": {"open": "<search>", "close_pattern": "</search>", "repeats": True, "content": "text",
                              "transform": {"type": "function", "function": _FUNCTION}},
               "content": {"close_pattern": r"<\|im_end\|>", "content": "text"}},
}  # fmt: skip


def chat_tokenizer(calls: bool = True):
    """The search model's tokenizer with a chat template; with `calls` it parses them out of what the model writes."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("search"), padding_side="left")
    tokenizer.chat_template = _TEMPLATE
    if calls:
        tokenizer.response_template = _PARSED
    return tokenizer


def chats() -> Dataset:
    """The search prompts as conversations of one message."""
    return Dataset.from_list([{"prompt": [{"role": "user", "content": r["prompt"].strip()}]} for r in search_prompts()])


def topics() -> Dataset:
    """Rows for an environment that owns its prompts."""
    return Dataset.from_list([{"topic": topic, "environment": "library"} for topic in TOPICS])


def search(query: str) -> str:
    """Look something up.

    Args:
        query: what to look up.

    Returns:
        What is known.
    """
    return answer_to(query)


def answer_to(query: str) -> str:
    return f"Find facts on {query}?"


class Library:
    """An environment with a prompt, a tool and a reward of its own."""

    def reset(self, topic: str, **_) -> str:
        self.topic, self.asked = topic, []
        return f"What is {topic}?"

    def search(self, query: str) -> str:
        """Look something up.

        Args:
            query: what to look up.

        Returns:
            What is known.
        """
        self.asked.append(query)
        return answer_to(query)

    def get_reward(self) -> float:
        return float(self.topic in self.asked)
