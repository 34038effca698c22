"""A check of a chat template: does it rewrite an earlier turn, and does it close a turn with EOS?"""

import contextlib
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ParameterError
from .stops import Stops, StopSpec, tokenizer_in

REWRITES = {  # question -> whether the earlier turn thinks, and the role of the turn that follows
    "rewrites a turn when a user turn follows": (False, "user"),
    "rewrites a thinking turn when a user turn follows": (True, "user"),
    "rewrites a turn when a tool answers": (False, "tool"),
    "rewrites a thinking turn when a tool answers": (True, "tool"),
}
CLOSES, CLOSES_CALL = "closes a turn with EOS", "closes a turn that calls a tool with EOS"
_THOUGHT, _ANSWER, _LATER = "The sum is small.", "It is one.", "The next line is two."
_NAME = "look_up"
_SCHEMA = {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "Look up a line.", "parameters": _SCHEMA}}
_CLASH = (
    "if a rollout renders the conversation again for each turn, the context in which turn 2 is sampled is not the context that "
    "the loss scores"
)


class TemplateError(ParameterError):
    """A question about a chat template has no answer; the message has the reason."""


@dataclass(frozen=True)
class TemplateVerdict:
    """One question about a chat template, with its answer."""

    question: str
    verdict: str  # yes, no, or cannot tell
    says: str  # a sentence, in `cannot tell` with the reason


@dataclass(frozen=True)
class TemplateReport:
    """The answers of `check_template`. The value shows itself as a table."""

    verdicts: Sequence[TemplateVerdict]

    def __getitem__(self, question: str) -> TemplateVerdict:
        return {verdict.question: verdict for verdict in self.verdicts}[question]

    def harms(self, roles: Sequence[str] = ("user", "tool")) -> list[TemplateVerdict]:
        """The verdicts that say that an earlier turn is rewritten when a turn of one of these roles follows."""
        return [v for v in self.verdicts if v.verdict == "yes" and REWRITES.get(v.question, (False, ""))[1] in roles]

    def open_turns(self) -> list[TemplateVerdict]:
        """The verdicts that say that a stop leaves the turn open."""
        return [v for v in self.verdicts if v.verdict == "yes" and v.question.startswith("leaves a turn open")]

    def __str__(self) -> str:
        width = max(len(v.question) for v in self.verdicts)
        return "\n".join(f"{v.question:<{width}}  {v.verdict:<11}  {v.says}" for v in self.verdicts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = []
        for v in self.verdicts:
            cells = (html.escape(v.question), f"<b>{v.verdict}</b>", html.escape(v.says))
            lines.append("<tr>" + "".join(f'<td style="text-align: left">{cell}</td>' for cell in cells) + "</tr>")
        return f"<table>{''.join(lines)}</table>"


def conversation(
    thinks: bool = False, calls: str | None = None, blocks: bool = False, as_text: bool = False
) -> list[dict]:
    """A question and the assistant's turn, as messages.

    Args:
        thinks: the turn begins with a thought between `<think>` and `</think>`.
        calls: name of the tool that the turn calls.
        blocks: content is a list of blocks, as the templates of processors expect it.
        as_text: the call's arguments are JSON text.
    """
    thought = f"<think>\n{_THOUGHT}\n</think>\n\n" if thinks else ""
    turn: dict[str, Any] = {"role": "assistant", "content": thought + ("" if calls else _ANSWER)}
    if calls:
        arguments = '{"line": 1}' if as_text else {"line": 1}
        turn["tool_calls"] = [{"type": "function", "function": {"name": calls, "arguments": arguments}}]
    messages = [{"role": "user", "content": "What is one?"}, turn]
    return _in_blocks(messages) if blocks else messages


def _takes_blocks(tokenizer: Any) -> bool:
    """True for a processor, which takes content as a list of blocks."""
    return tokenizer_in(tokenizer) is not tokenizer


def _in_blocks(messages: list[dict]) -> list[dict]:
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


def call_text(tokenizer: Any, tool: str = _NAME, **options: Any) -> str:
    """Render a conversation whose last turn calls a tool; arguments are JSON text where the template takes no mapping.

    Args:
        tokenizer: or a processor.
        tool: name of the tool; some templates name it in what follows.
        options: of `apply_chat_template`, e.g. `chat_template`.

    Raises:
        TemplateError: the template refuses the call.
    """

    def text_of(as_text: bool) -> str:
        return _render(tokenizer, conversation(calls=tool, blocks=_takes_blocks(tokenizer), as_text=as_text), options)

    return _mapping_or_text(text_of)


def ends_with_eos(tokenizer: Any, text: str) -> bool:
    """True where a rendered conversation ends with EOS, apart from white space."""
    eos = tokenizer_in(tokenizer).eos_token
    return bool(eos) and text.rstrip().endswith(eos)


def check_template(tokenizer: Any, stops: Stops = None, **options: Any) -> TemplateReport:
    """Say what a chat template does to the turns of a conversation, in seconds and without a training.

    An earlier turn is rewritten if the rendered conversation up to its end is no prefix of the conversation with one turn
    more; line breaks at its end do not count. Thoughts stand between `<think>` and `</think>` in the content. The check
    compares texts, not token ids.

    Args:
        tokenizer: or a processor, with its chat template.
        stops: as for a trainer. For each string and id the report says whether a turn that ends there is left open.
        options: further ones of `apply_chat_template`, e.g. `chat_template` or `enable_thinking`.

    Returns:
        A verdict for each question: yes, no, or cannot tell with the reason, e.g. that the template refuses a tool's answer.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> core = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1}))
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")
        >>> tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }}{{ eos_token }}{% endfor %}"
        >>> check_template(tokenizer)["closes a turn with EOS"].verdict
        'yes'
    """
    spec = StopSpec.of(stops)
    verdicts = [_rewrite(tokenizer, question, thinks, role, options) for question, (thinks, role) in REWRITES.items()]
    closing, plain = _closing(tokenizer, partial(_plain_end, tokenizer, options))
    verdicts.append(TemplateVerdict(CLOSES, *plain))
    call_closing, call = _closing(tokenizer, partial(_call_end, tokenizer, options, closing))
    verdicts.append(TemplateVerdict(CLOSES_CALL, *call))
    closings = [one for one in (closing, call_closing) if one is not None]
    own_stops: tuple[str | int, ...] = (*spec.stop, *spec.stop_token_ids)
    for stop in own_stops:
        verdicts.append(_left_open(tokenizer, stop, closings, options))
    return TemplateReport(tuple(verdicts))


def _render(tokenizer: Any, messages: list[dict], options: dict) -> str:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # a template is anybody's, and so is what it raises
        if not (options.get("chat_template") or getattr(tokenizer, "chat_template", None)):
            raise TemplateError("the tokenizer has no chat template") from error
        last = messages[-1]["role"]
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"
        raise TemplateError(
            f"the template refuses a conversation that ends with the role {last!r} ({reason})"
        ) from error


def _mapping_or_text(of: Callable[[bool], Any]) -> Any:
    """The answer for a call whose arguments are a mapping; where the template refuses these, as JSON text."""
    try:
        return of(False)
    except TemplateError as refusal:
        try:
            return of(True)
        except TemplateError:
            raise refusal from None


def _pair(tokenizer: Any, thinks: bool, role: str, options: dict, as_text: bool) -> tuple[str, str]:
    """The text of a conversation, and of the same one with a turn more."""
    calls = _NAME if role == "tool" else None
    blocks = _takes_blocks(tokenizer)
    messages = conversation(thinks, calls, blocks, as_text)
    later = [{"role": role, "content": _LATER} | ({"name": _NAME} if calls else {})]
    options = {"tools": [_TOOL]} | options if calls else options
    before = _render(tokenizer, messages, options)
    return before, _render(tokenizer, messages + (_in_blocks(later) if blocks else later), options)


def _rewrite(tokenizer: Any, question: str, thinks: bool, role: str, options: dict) -> TemplateVerdict:
    try:
        before, after = _mapping_or_text(partial(_pair, tokenizer, thinks, role, options))
    except TemplateError as refusal:
        return TemplateVerdict(question, "cannot tell", str(refusal))
    if not after.startswith(before.rstrip("\n")):
        shorter = thinks and _THOUGHT in before and _THOUGHT not in after
        change = "drops the earlier turn's thought" if shorter else "renders the earlier turn in another way"
        return TemplateVerdict(question, "yes", f"it {change}: {_CLASH}")
    if _LATER not in after:
        return TemplateVerdict(question, "cannot tell", f"the template leaves out the turn of the role {role!r}")
    if thinks and _THOUGHT not in before:
        return TemplateVerdict(question, "cannot tell", "the template leaves the thought out of the last turn too")
    return TemplateVerdict(question, "no", "the earlier turn stays as it was")


def _plain_end(tokenizer: Any, options: dict) -> str:
    """The text that the template puts behind the assistant's last words."""
    blocks = _takes_blocks(tokenizer)
    _, shown, end = _render(tokenizer, conversation(blocks=blocks), options).rpartition(_ANSWER)
    if not shown:
        raise TemplateError("the template does not show the assistant's turn")
    return end.strip()


def _call_end(tokenizer: Any, options: dict, closing: str | None) -> str:
    """The text that the template puts behind a call: a special token, or the end of other turns."""
    text = call_text(tokenizer, **{"tools": [_TOOL]} | options).rstrip()
    if _NAME not in text.rpartition("What is one?")[2]:
        raise TemplateError("the template does not show calls of tools")
    if ends_with_eos(tokenizer, text):
        return tokenizer_in(tokenizer).eos_token
    tokens = [closing or "", *tokenizer_in(tokenizer).all_special_tokens]
    end = max((token for token in tokens if token and text.endswith(token)), key=len, default="")
    if not end and closing:
        raise TemplateError(f"it closes other turns with {closing!r}, and a call with something else")
    return end


def _closing(tokenizer: Any, end_of: Callable[[], str]) -> tuple[str | None, tuple[str, str]]:
    """The text that closes a turn, None if it is not known, and the verdict on whether it is EOS, with its sentence."""
    try:
        end = end_of()
    except TemplateError as refusal:
        return None, ("cannot tell", str(refusal))
    eos = tokenizer_in(tokenizer).eos_token
    if eos and end.startswith(eos):
        return eos, ("yes", f"the turn ends with {eos!r}")
    if end:
        return end, ("no", f"the turn ends with {end!r}, and EOS is {eos!r}")
    return end, ("no", "nothing stands behind the turn")


def stop_text(tokenizer: Any, stop: str | int) -> str:
    """The text of a stop string or a stop id."""
    return stop if isinstance(stop, str) else tokenizer_in(tokenizer).decode([stop], skip_special_tokens=False)


def _left_open(tokenizer: Any, stop: str | int, closings: Sequence[str], options: dict) -> TemplateVerdict:
    question = f"leaves a turn open that ends at {stop!r}"
    if not closings:
        return TemplateVerdict(question, "cannot tell", "it is not known how the template closes a turn")
    text = stop_text(tokenizer, stop)
    if not any(closings):
        return TemplateVerdict(question, "no", "the template puts nothing behind a turn")
    marks = [closing for closing in dict.fromkeys(closings) if closing]
    if any(closing in text for closing in marks):
        return TemplateVerdict(question, "no", "the stop closes the turn itself")
    with contextlib.suppress(TemplateError):
        call = call_text(tokenizer, **{"tools": [_TOOL]} | options).rstrip()
        if call.endswith(text) and not call.endswith(tuple(marks)):
            return TemplateVerdict(question, "no", "the template puts nothing behind a call that ends with the stop")
    shown = " or ".join(map(repr, marks))
    says = f"the template puts {shown} there: turn 2 is sampled and scored in a context that the template never renders"
    return TemplateVerdict(question, "yes", says)
