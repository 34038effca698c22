"""What a stop keeps of a text, and what would have been computed for nothing without it."""

import ast
import contextlib
import dataclasses
import functools
from collections.abc import Mapping

from ipywidgets import BoundedIntText, Checkbox, Dropdown, Text, Textarea

from ...errors import ParameterError
from ...experiments.sampling import Sampling, generate
from ...generation.stops import StopRule, StopSpec
from ...runs.text import visible
from .controls import Explorer, control

_ROLES = {  # of the cell and of its text: a mark beside each colour
    "kept": ("border:1px solid #0072B2;background-color:rgba(0,114,178,0.12)", ""),
    "stop": (
        "border:2px solid #D55E00;background-color:rgba(213,94,0,0.22);font-weight:bold",
        "text-decoration:underline",
    ),
    "wasted": ("border:1px dashed #777777;background-color:rgba(119,119,119,0.12)", "text-decoration:line-through"),
}
_SIGNS = str.maketrans(" \n\t", "\u2423\u23ce\u21e5")  # blanks and line ends that a reader sees
_CELL = "display:inline-block;text-align:center;padding:2px 5px;border-radius:3px"


@dataclasses.dataclass(frozen=True)
class StoppedRow:
    """One row of ids under a stop rule, those after its end too; of each id its text and role, `kept`, `stop` or `wasted`.

    `completion` is what a reward function sees; `sampling` says what the back end did when it had the stops.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    roles: tuple[str, ...]
    completion: str
    ending: str
    sampling: str = ""

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<li style="{_CELL};{_ROLES[role][0]}">'
            f'<code style="{_ROLES[role][1]}">{visible(text.translate(_SIGNS), 40) or "&nbsp;"}</code><br>'
            f"<small>{number}<br>{role}</small></li>"
            for number, text, role in zip(self.ids, self.texts, self.roles, strict=True)
        )
        sampling = f"<br>{visible(self.sampling)}" if self.sampling else ""
        return (
            f'<ol aria-label="tokens: text, id, role" style="padding:0;display:flex;flex-wrap:wrap;gap:4px">{cells}</ol>'
            f"<p>{visible(self.ending)}{sampling}<br>A reward function sees: <code>{visible(self.completion, 400)}</code></p>"
        )


@dataclasses.dataclass(frozen=True)
class StoppedRows:
    """Rows of one back end under one stop rule, which show themselves token by token."""

    backend: str
    stops: StopSpec
    rows: tuple[StoppedRow, ...]

    def _repr_html_(self) -> str:
        head = f"<p>{visible(self.backend)}, <code>{visible(str(self.stops))}</code></p>"
        marks = "Each token: its text, its id, its role. kept: plain; stop: bold, underlined; wasted: dashed, struck through."
        return head + f"<p>{marks}</p>" + "".join(row._repr_html_() for row in self.rows)


def mark_row(rule: StopRule, ids, sampling: str = "") -> StoppedRow:
    """Each id of a completion, with what follows its end, as `kept`, `stop` or `wasted`."""
    end = rule.find_end(ids)
    marker = _marker_length(rule, ids, end)
    roles = ["kept"] * (end.index - marker) + ["stop"] * marker + ["wasted"] * (len(ids) - end.index)
    by = f"at {end.stop!r}" if end.stop is not None else "at the end of the tokens, no stop matched"
    return StoppedRow(
        ids=tuple(ids),
        texts=tuple(rule.tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in ids),
        roles=tuple(roles),
        completion=rule.text(ids, end),
        ending=f"ends after {end.index} of {len(ids)} tokens, {by}: {end.finish_reason}",
        sampling=sampling,
    )


def _marker_length(rule: StopRule, ids, end) -> int:
    """Tokens at the end of a row that spell its stop."""
    if not isinstance(end.stop, str):
        return int(end.stop is not None)
    lengths = range(1, end.index + 1)
    spelt = (n for n in lengths if end.stop in rule.tokenizer.decode(list(ids[end.index - n : end.index])))
    return next(spelt, end.index)


def show_stops(backend: str, sampler, stops: StopSpec, *, text: str = "", prompt: str = "", limit=32, rows=2, seed=0):
    """Return how rows end under `stops`: those of a typed text, or of completions that a back end samples.

    Sampling runs twice with one seed. Without stops, to the limit: this shows what no stop would have cost. With the
    stops: this shows whether the back end ends where the rule says.
    """
    config = getattr(getattr(sampler, "model", None), "generation_config", None)
    if text:
        rule = StopRule(stops, sampler.tokenizer, config)
        return StoppedRows(backend, stops, (mark_row(rule, sampler.tokenizer.encode(text, add_special_tokens=False)),))
    if not prompt:
        raise ParameterError("text and prompt are empty: type a text, or a prompt for the model to continue")
    rule = StopRule(stops, sampler.tokenizer, config, limit)
    how = Sampling(max_completion_length=limit, num_generations=rows, seed=seed)
    whole = generate(sampler, [prompt], stops=StopSpec.never(), sampling=how)
    stopped = generate(sampler, [prompt], stops=stops, sampling=how)
    marked = []
    for ids, found in zip((w.completion_ids for w in whole), stopped, strict=True):
        kept, same = found.completion_ids, "other tokens, because it sampled again"
        if kept == ids[: rule.find_end(ids).index]:
            same = "the same tokens"
        sampling = f"with the stops it computed {found.sampled_tokens} tokens and kept {len(kept)}, {same}"
        marked.append(mark_row(rule, ids, sampling))
    return StoppedRows(backend, stops, tuple(marked))


def stop_explorer(
    samplers: Mapping[str, object],
    *,
    prompt: str = "",
    text: str = "",
    stops: StopSpec | None = None,
    limit: int = 32,
    seed: int = 0,
    interactive: bool = True,
):
    """Type a text or sample from the model, edit the stops, and see what is kept, what stops, what is wasted.

    Args:
        samplers: back end -> sampler of `workbench.experiments.sampling`, or a function that makes one when it is first chosen.
        prompt: to be continued where no text is given.
        text: to be looked at in place of sampling.
        stops: to start with; default at EOS.
        limit: tokens sampled, 1 to 512.
        seed: of the sampling.
        interactive: False returns the result for these values, of the first sampler, and makes no widget.

    Returns:
        A widget, or `StoppedRows`.
    """
    stops = stops or StopSpec()

    @functools.cache
    def sampler_of(backend: str):
        given = samplers[backend]
        return given if hasattr(given, "sample") else given()

    def show(backend, text, prompt, strings, token_ids, eos, keep, min_tokens, limit, seed):
        lines = tuple(_string(line) for line in strings.split("\n") if line)
        spec = StopSpec(
            lines, _ids(token_ids), ignore_eos=not eos, include_stop_str_in_output=keep, min_tokens=min_tokens
        )
        return show_stops(backend, sampler_of(backend), spec, text=text, prompt=prompt, limit=limit, seed=seed)

    if not interactive:
        first = next(iter(samplers))
        return show_stops(first, sampler_of(first), stops, text=text, prompt=prompt, limit=limit, seed=seed)
    strings_help = "one stop string a line; quotes, as in '\\n', are read as Python"
    lines, ids = "\n".join(map(_written, stops.stop)), ", ".join(map(str, stops.stop_token_ids))
    controls = {
        "backend": control(Dropdown, "back end", "loaded when first chosen", options=list(samplers)),
        "text": control(Textarea, "text", "shown instead of a sample; leave empty to sample", value=text),
        "prompt": control(Textarea, "prompt", "continued by the model when no text is typed", value=prompt),
        "strings": control(Textarea, "stop strings", strings_help, value=lines),
        "token_ids": control(Text, "stop token ids", "numbers, separated by commas", value=ids),
        "min_tokens": control(
            BoundedIntText, "min_tokens", "a stop needs more tokens than this", value=stops.min_tokens
        ),
        "eos": control(
            Checkbox, "stop at EOS", "each EOS id of tokenizer and model ends a row", value=not stops.ignore_eos
        ),
        "keep": control(
            Checkbox, "keep the stop", "whether rewards see the stop", value=stops.include_stop_str_in_output
        ),
        "limit": control(BoundedIntText, "limit", "tokens sampled at most", value=limit, min=1, max=512),
        "seed": control(BoundedIntText, "seed", "of the sampling", value=seed, min=0, max=1_000_000),
    }
    return Explorer(show, controls)


def _written(string: str) -> str:
    return repr(string) if string.strip() != string or "\n" in string or string[:1] in "'\"" else string


def _string(line: str) -> str:
    with contextlib.suppress(ValueError, SyntaxError):
        if isinstance(quoted := ast.literal_eval(line), str):
            return quoted
    return line


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise ParameterError(f"stop token ids {text!r}: expected whole numbers and commas, such as 7, 12") from None
