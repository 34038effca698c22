"""Instruments of the notebook that recomputes one step: the divisor of TRL 1.8, and a drawing of tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import trl

_LONGEST = 10  # characters of a token that a cell has room for


class OldDivisorGRPOTrainer(trl.GRPOTrainer):
    """Stock GRPO with the divisor that `dapo`, `cispo` and `vespo` had up to TRL 1.8.0.

    It is the number of all sampled tokens of a generation batch: those that `mask_truncated_completions` leaves out too, and
    whether or not an update sums over as many batches. TRL counts what is in the loss since 1.9.0. Since 1.9.1 it multiplies
    that by `gradient_accumulation_steps / steps_per_generation`; here the factor is taken out again.
    """

    def _generate(self, prompts: list):
        generated = super()._generate(prompts)
        self._sampled = float(sum(len(row) for row in generated[1]))
        return generated

    def _generate_and_score_completions(self, inputs: list):
        output = super()._generate_and_score_completions(inputs)
        windows = self.args.steps_per_generation / self.args.gradient_accumulation_steps
        kept = output["num_items_in_batch"]
        output["num_items_in_batch"] = torch.full_like(kept, self._sampled * windows, dtype=torch.float)
        return output


def draw_tokens(
    ax: Any, texts: Sequence[Sequence[str]], values: Sequence[np.ndarray], labels: Sequence[str], **colours: Any
) -> Any:
    """Draw completions as lines of tokens, each token on a cell whose colour is its value.

    Args:
        ax: of matplotlib.
        texts: of each completion its T tokens.
        values: of each completion (T,); NaN leaves a cell white.
        labels: of the lines.
        **colours: `cmap`, `vmin` and `vmax`, as `imshow` takes them.

    Returns:
        The image, for a colour bar.
    """
    width = max(map(len, texts))
    table = np.full((len(texts), width), np.nan)
    for line, own in enumerate(values):
        table[line, : len(own)] = own
    image = ax.imshow(table, aspect="auto", **colours)
    for line, tokens in enumerate(texts):
        for place, token in enumerate(tokens):
            red, green, blue, shown = image.cmap(image.norm(table[line, place]))
            dark = shown and 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            text = (token.strip() or repr(token)[1:-1])[:_LONGEST]
            size, colour = 7 if len(text) < 9 else 6, "white" if dark else "#222222"
            ax.text(place, line, text, ha="center", va="center", fontsize=size, color=colour)
    ax.set(xlabel="token of the completion", xticks=range(0, width, 5), yticks=range(len(texts)), yticklabels=labels)
    ax.tick_params(left=False)
    ax.spines[:].set_visible(False)
    return image
