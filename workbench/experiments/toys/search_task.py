"""A toy tool-call task: write `<search>TOPIC</search>` and stop. Small enough for a CPU.

The warm start is on a mixture in which just over half of the targets call for the right topic, and many go on after the
call; so stopping at `</search>` matters, and GRPO has something to improve. Toy scale: it shows a mechanism.
"""

import random
from pathlib import Path

from .starter import toy

CLOSE = "</search>"
LEADS = ("What is", "Tell me about", "Find facts on", "Who discovered", "Look up", "I need to know about")
TOPICS = (
    *("amber", "basalt", "cobalt", "diodes", "enzymes", "ferns", "glaciers", "hydrogen", "insulin", "jade"),
    *("krypton", "lichens", "magnets", "neutrons", "opals", "pulsars", "quartz", "radium", "sulphur", "tides"),
)
_TAILS = (" Let me read what I find.", " Then I will answer.", " Waiting for results.")


def search_prompts() -> list[dict[str, str]]:
    """Every lead with every topic, 120 rows `{"prompt", "answer"}`; the answer is the one call that earns a reward.

    Example:
        >>> search_prompts()[0]
        {'prompt': 'What is amber?\\n', 'answer': '<search>amber</search>'}
    """
    return [{"prompt": f"{lead} {topic}?\n", "answer": f"<search>{topic}{CLOSE}"} for lead in LEADS for topic in TOPICS]


def search_corpus(rows: int = 4800, seed: int = 0) -> list[dict[str, str]]:
    """Warm-start targets: 30% the right call, 25% the right call with text after it, 30% a call for another topic (half
    of them with text after it), 15% no call at all.
    """
    rng = random.Random(seed)
    prompts = search_prompts()
    return [_target(rng, prompts[n % len(prompts)]) for n in range(rows)]


def _target(rng: random.Random, row: dict[str, str]) -> dict[str, str]:
    kind = rng.random()
    wrong = f"<search>{rng.choice(TOPICS)}{CLOSE}"
    if kind < 0.30:
        completion = row["answer"]
    elif kind < 0.55:
        completion = row["answer"] + rng.choice(_TAILS)
    elif kind < 0.70:
        completion = wrong
    elif kind < 0.85:
        completion = wrong + rng.choice(_TAILS)
    else:
        completion = f"I think it is about {rng.choice(TOPICS)}."
    return {"prompt": row["prompt"], "completion": completion}


def search_model() -> Path:
    """Folder of the model warm-started on `search_corpus()`: the starter's shape, shipped with the package."""
    return toy("search-qwen2")
