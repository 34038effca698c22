"""Prompt groups: GRPO compares the G completions of one prompt, so they must belong to one prompt and really differ.

Article A3: for three weeks of 2025 TRL's main branch took the *set* of a batch's prompts where it needed every G-th, and
equal prompts broke the shapes. Today's TRL takes every G-th, as the article proposed, but nothing checks that each group of
G is one prompt; here it is checked.
"""

from collections.abc import Sequence

from ..errors import ParameterError


class GroupError(ParameterError):
    """A batch whose groups are not G completions of one prompt, or are G copies of one sample."""


def check_groups(prompts: Sequence, completions: Sequence | None, num_generations: int) -> None:
    """Refuse a batch that is not made of groups of `num_generations` rows with one prompt each.

    Args:
        prompts: B prompts (texts, messages or ids), each G times in a row.
        completions: B completions, or None.
        num_generations: G, at least 1.

    Raises:
        GroupError: names the group and its first odd row.

    Example:
        >>> check_groups(["a", "a", "b", "b"], None, 2)
        >>> check_groups(["a", "b", "a", "b"], None, 2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        workbench.training.groups.GroupError: group 0 (rows 0 to 1) holds more than one prompt: row 0 is 'a', row 1 is 'b'...
    """
    if num_generations < 1:
        raise ParameterError(f"num_generations={num_generations}: expected at least 1")
    if len(prompts) % num_generations:
        raise GroupError(f"{len(prompts)} prompts are no multiple of num_generations={num_generations}")
    if completions is not None and len(completions) != len(prompts):
        raise GroupError(f"{len(prompts)} prompts but {len(completions)} completions: each row needs one of both")
    for start in range(0, len(prompts), num_generations):
        group = prompts[start : start + num_generations]
        odd = next((n for n, prompt in enumerate(group) if prompt != group[0]), None)
        if odd is not None:
            raise GroupError(
                f"group {start // num_generations} (rows {start} to {start + num_generations - 1}) holds more than one "
                f"prompt: row {start} is {short(group[0])}, row {start + odd} is {short(group[odd])}. The sampler has "
                f"to repeat each prompt num_generations={num_generations} times in a row"
            )


def identical_groups(completions: Sequence, num_generations: int) -> list[int]:
    """Numbers of the groups whose G >= 2 completions are all the same: their advantages are zero.

    Example:
        >>> identical_groups(["x", "x", "y", "z"], 2)
        [0]
    """
    starts = range(0, len(completions), num_generations)
    groups = [list(completions[s : s + num_generations]) for s in starts]
    return [n for n, group in enumerate(groups) if len(group) > 1 and all(c == group[0] for c in group)]


def group_advantages(rewards, num_generations: int, scale: str = "group"):
    """Advantages as TRL 1.12.0's GRPO computes them from the summed rewards.

    Args:
        rewards: (B,), G rows a group; NaN marks an unscorable row, whose advantage is 0.
        num_generations: G, at least 2.
        scale: `group`, `batch` or `none`, TRL's `scale_rewards`.

    Returns:
        (B,)

    Raises:
        GroupError: B is no multiple of G.
        ParameterError: another `scale`.

    Example:
        >>> import torch
        >>> group_advantages(torch.tensor([0.0, 1.0, 5.0, 5.0]), 2, scale="none").tolist()
        [-0.5, 0.5, 0.0, 0.0]
        >>> [round(a, 3) for a in group_advantages(torch.tensor([0.0, 1.0, 5.0, 5.0]), 2).tolist()]
        [-0.707, 0.707, 0.0, 0.0]
    """
    import torch

    if scale not in ("group", "batch", "none"):
        raise ParameterError(f"scale={scale!r}: expected group, batch or none")
    if num_generations < 2 or rewards.numel() % num_generations:
        raise GroupError(f"{rewards.numel()} rewards, num_generations={num_generations}: expected groups of 2 or more")
    groups = rewards.view(-1, num_generations)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    if scale == "group":
        centred = centred / (_nanstd(groups) + 1e-4)
    elif scale == "batch":
        centred = centred / (_nanstd(rewards.view(1, -1)) + 1e-4)
    return torch.nan_to_num(centred, nan=0.0).view(-1)


def _nanstd(rows):
    """Sample standard deviation of each row, (N, 1), over the entries that are not NaN."""
    count = (~rows.isnan()).sum(dim=1, keepdim=True)
    squares = (rows - rows.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - 1)).sqrt()


def short(prompt) -> str:
    """A prompt as an error or a table shows it, 60 characters at most."""
    text = repr(prompt)
    return text if len(text) <= 60 else f"{text[:57]}..."
