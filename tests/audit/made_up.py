"""Made-up logs for the rules."""

import numpy as np
import pandas as pd

from workbench.logs.log import Log


def log(steps=60, *, completions=None, order=None, damage=(), facts=(), **metrics) -> Log:
    """A log of N steps; each metric is a number, or a function of the share of the run that is over, or N values."""
    share = np.linspace(0, 1, steps)
    noise = np.random.default_rng(0)
    columns = {"step": np.arange(1.0, steps + 1)}
    for name, value in metrics.items():
        value = value(share) + 0.02 * noise.normal(size=steps) if callable(value) else value
        columns[name] = np.broadcast_to(np.asarray(value, float), steps).copy()
    table = pd.DataFrame(columns)
    rows = None if completions is None else pd.DataFrame(completions)
    return Log("run", "table", table, tuple(order or table["step"]), rows, dict(facts), tuple(damage))


def rows(steps=60, groups=4, size=4, *, prompt=None, text=None, **columns) -> dict:
    """Completions; `prompt(step, group, row)`, `text(...)` and other columns as functions of the same."""
    prompt = prompt or (lambda s, g, r: f"prompt {s} {'x' * g}")
    text = text or (lambda s, g, r: f"text {s} {g} {r}")
    places = [(s, g, r) for s in range(1, steps + 1) for g in range(groups) for r in range(size)]
    found = {"step": [s for s, _, _ in places], "prompt": [prompt(*p) for p in places]}
    found |= {"completion": [text(*p) for p in places]}
    return found | {name: [value(*p) for p in places] for name, value in columns.items()}


def rising(share):
    return 0.2 + 0.6 * share


def falling(share):
    return 0.8 - 0.6 * share


def flat(share):
    return 0.5 + 0 * share


STOPPED = {"clipped_ratio": 1.0, "mean_length": 7.0, "max_length": 9.0}  # a stop string, read as a cut
CUT = {"clipped_ratio": 0.6, "mean_length": 50.0, "max_length": 64.0}
LIMIT = {"max_completion_length": 64}
MASKED = np.tile([0.0, 0.0, 0.0, 0.4], 15)  # gradients; a step has one where a row of it ended in EOS
EQUAL = {"grad_norm": 0.0, "zero_std_share": 1.0}
GPT2 = {"model_type": "gpt2"}
SIZE = {"num_generations": 4}
UNEQUAL = rows(prompt=lambda s, g, r: "a prompt " * (g + 1))
LONG = rows(prompt=lambda s, g, r: "one length", reward=lambda s, g, r: float(r % 2))
