"""How far padding moves each log-prob of a small model, by family, side and dtype."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from ipywidgets import BoundedIntText, Dropdown
from matplotlib.figure import Figure

from ...curves.figures import DescribedFigure
from ...errors import ParameterError
from ...experiments.toys.families import FAMILIES, family_model, random_texts
from .controls import Explorer, control

DTYPES = ("float32", "bfloat16", "float16")
_NOISE = 1e-7  # nats; smaller differences are drawn as this one


def score_deltas(model, texts: Sequence[Sequence[int]], *, side: str, pads: int) -> dict[str, np.ndarray]:
    """|difference of each token's log-prob| in nats: in a padded batch against the text alone and unpadded.

    Returns `without position ids` and `with them` -> (B, T - 1), NaN where a text is shorter.
    """
    from ...consistency.padding import pad_batch, token_logprobs

    width = max(map(len, texts))
    alone = [token_logprobs(model, pad_batch([text], pad_id=0))[0] for text in texts]
    batch = pad_batch(texts, pad_id=0, side=side, width=width + pads)
    found = {}
    for name, positions in (("without position ids", "implicit"), ("with them", "explicit")):
        found[name] = deltas = np.full((len(texts), width - 1), np.nan)
        for row, (one, other) in enumerate(zip(alone, token_logprobs(model, batch, positions=positions), strict=True)):
            deltas[row, : len(one)] = (one - other).abs().double().numpy()
    return found


def plot_deltas(ax, deltas: np.ndarray):
    """A heat map on a logarithmic scale, each cell with its difference in nats; returns the image."""
    logs = np.log10(np.maximum(deltas, _NOISE))
    image = ax.imshow(logs, cmap="viridis", vmin=np.log10(_NOISE), vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(logs):
        if np.isfinite(value):
            color = "white" if value < -2 else "black"
            ax.text(column, row, _short(deltas[row, column]), ha="center", va="center", fontsize=8, color=color)
    ax.set(xlabel="token, counted from the second", ylabel="text")
    ax.set_yticks(range(len(deltas)), [str(n) for n in range(len(deltas))])
    return image


def _short(nats: float) -> str:
    """A difference in at most four characters.

    Example:
        >>> _short(2.46), _short(0.034), _short(1.9e-06), _short(0)
        ('2.5', '0.03', '2e-6', '0')
    """
    if nats < _NOISE:
        return "0"
    return f"{nats:.1f}" if nats >= 0.995 else f"{nats:.2f}" if nats >= 0.0095 else f"{nats:.0e}".replace("e-0", "e-")


def show_padding(
    family: str, side: str, dtype: str, *, pads: int = 6, lengths: Sequence[int] = (24, 17, 9)
) -> DescribedFigure:
    """A family's model (random weights) scored padded and alone: a heat map of each log-prob's difference.

    The caption starts with the kind that `padding_report` gives, of more layouts than the figure shows, so without its numbers.
    """
    from ...consistency.logits import cast_copy
    from ...consistency.padding_report import padding_report

    if dtype not in DTYPES:
        raise ParameterError(f"dtype={dtype!r}: expected one of {', '.join(DTYPES)}")
    texts, model = random_texts(*lengths), family_model(family, attn_implementation="eager")
    report = padding_report(model, None, texts, dtypes=[dtype], attentions=("eager",), extra_pads=pads)
    deltas = score_deltas(cast_copy(model, dtype), texts, side=side, pads=pads)
    figure = Figure(figsize=(10.5, 2 * (0.4 * len(texts) + 0.9)), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for ax, (name, values) in zip(axes, deltas.items(), strict=True):
        image = plot_deltas(ax, values)
        ax.set_title(f"{name}: at most {np.nanmax(values):.2g} nats", fontsize=11)
    axes[0].set_xlabel("")
    figure.colorbar(image, ax=axes, label="nats", ticks=range(-7, 2, 2), format=lambda power, _: f"1e{power:g}")
    figure.suptitle(f"{family}, {side} padding, {dtype}: |difference of each log-prob| in nats")
    most = "; ".join(f"{name} at most {np.nanmax(values):.2g} nats" for name, values in deltas.items())
    caption = (
        f"padding_report, over all layouts on both sides: {report.kind}. Each number is in nats; 0 is less than {_NOISE:g}. "
        f"{pads} pads beyond the longest text; the reference is each text alone, in the same dtype."
    )
    frames = {name: pd.DataFrame(values).rename(columns=lambda n: str(n + 1)) for name, values in deltas.items()}
    table = pd.concat(frames, names=["positions", "text"]).reset_index()
    alt = f"{family}, {side} padding, {dtype}: {most}"
    return DescribedFigure(figure, alt=alt, table=table, caption=caption)


def padding_explorer(
    *, family: str = "gpt2", side: str = "left", dtype: str = "float32", pads: int = 6, interactive: bool = True
):
    """Choose model family, padding side and dtype; see which log-probs move, and how far.

    Args:
        family: of `workbench.experiments.toys.families.FAMILIES`, with random weights.
        side: of the pads, `left` or `right`.
        dtype: `float32`, `bfloat16` or `float16`.
        pads: beyond the longest text, 0 to 64.
        interactive: False returns the result for these values and makes no widget.

    Returns:
        A widget, or a `DescribedFigure`.
    """
    if not interactive:
        return show_padding(family, side, dtype, pads=pads)
    controls = {
        "family": control(Dropdown, "model family", "small, random weights", value=family, options=list(FAMILIES)),
        "side": control(Dropdown, "padding side", "where the pads stand", value=side, options=["left", "right"]),
        "dtype": control(Dropdown, "dtype", "of weights and activations", value=dtype, options=list(DTYPES)),
        "pads": control(BoundedIntText, "pads", "beyond the longest text", value=pads, min=0, max=64),
    }
    return Explorer(show_padding, controls)
