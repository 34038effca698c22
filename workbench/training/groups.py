"""Prompt groups: GRPO compares the G completions of one prompt, so they must belong to one prompt and really differ."""

from collections.abc import Sequence

from ..errors import ParameterError


class GroupError(ParameterError):
    """A batch whose groups are not G completions of one prompt, or are G copies of one sample."""


def check_groups(prompts: Sequence, num_generations: int) -> None:
    """Raise for a batch that is not made of groups of `num_generations` rows with one prompt each; TRL does not check.

    Example:
        >>> check_groups(["a", "a", "b", "b"], 2)
        >>> check_groups(["a", "b", "a", "b"], 2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        workbench.training.groups.GroupError: group 0 (rows 0 to 1) holds more than one prompt: row 0 is 'a', row 1 is 'b'...
    """
    if num_generations < 1:
        raise ParameterError(f"num_generations={num_generations}: expected at least 1")
    if len(prompts) % num_generations:
        raise GroupError(f"{len(prompts)} prompts: expected a multiple of num_generations={num_generations}")
    for start in range(0, len(prompts), num_generations):
        group = prompts[start : start + num_generations]
        odd = next((n for n, prompt in enumerate(group) if not _same(prompt, group[0])), None)
        if odd is not None:
            raise GroupError(
                f"group {start // num_generations} (rows {start} to {start + num_generations - 1}) holds more than one "
                f"prompt: row {start} is {shorten(group[0])}, row {start + odd} is {shorten(group[odd])}. The sampler has "
                f"to repeat each prompt num_generations={num_generations} times in a row"
            )


def _same(prompt: object, other: object) -> bool:
    try:
        if prompt == other:
            return True
        rows = isinstance(prompt, dict) and isinstance(other, dict)  # without a prompt; a NaN in them is not itself
        return rows and repr(prompt) == repr(other)
    except (ValueError, RuntimeError):  # of arrays and tensors, such as images
        return repr(prompt) == repr(other)


def identical_groups(completions: Sequence, num_generations: int) -> list[int]:
    """Numbers of the groups whose G >= 2 completions are all the same: their advantages are zero."""
    groups = [completions[s : s + num_generations] for s in range(0, len(completions), num_generations)]
    return [n for n, group in enumerate(groups) if len(group) > 1 and all(c == group[0] for c in group)]


def shorten(prompt: object) -> str:
    """A prompt as an error or a table shows it, 60 characters at most."""
    text = repr(prompt)
    return text if len(text) <= 60 else f"{text[:57]}..."
