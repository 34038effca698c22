"""What a chat template does to earlier turns: by hand-made templates, and by those that TRL ships."""

from collections import Counter
from pathlib import Path

import pytest
import trl
from conftest import need
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from workbench.generation.stops import StopSpec
from workbench.generation.template import CLOSES, CLOSES_CALL, REWRITES, call_text, check_template, ends_with_eos

PLAIN_USER, THINKS_USER, PLAIN_TOOL, THINKS_TOOL = REWRITES
HEAD = "{% for m in messages %}[{{ m.role }}]"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}"
CLOSED = HEAD + "{{ m.content }}" + CALLS + "{{ eos_token }}\n{% endfor %}"
WITHOUT_THOUGHT = "{{ m.content if loop.last else m.content.split('</think>')[-1].strip() }}"
NO_TOOLS = (
    HEAD + "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{{ m.content }}{% endfor %}"
)


def tokenizer(template):
    core = Tokenizer(models.WordLevel({"<bos>": 0, "<eos>": 1, "<pad>": 2, "stop": 3}))
    own = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    own.chat_template = template
    return own


def verdicts(template, *questions):
    report = check_template(tokenizer(template))
    return [report[question].verdict for question in questions]


def test_a_template_that_keeps_turns_rewrites_none():
    report = check_template(tokenizer(CLOSED))
    assert [report[question].verdict for question in REWRITES] == ["no"] * 4
    assert report.harms() == report.open_turns() == []


@pytest.mark.parametrize(
    "content, expected",
    [
        (WITHOUT_THOUGHT, ["no", "yes", "no", "yes"]),
        (
            "{{ m.content[-2:] if messages[-1].role == 'user' and not loop.last else m.content }}",
            ["yes", "yes", "no", "no"],
        ),
        ("{{ m.content }}{% if m.role == 'assistant' and loop.last %} (last){% endif %}", ["yes"] * 4),
    ],
    ids=["drops thoughts", "at user turns", "marks the last turn"],
)
def test_a_template_that_rewrites_turns_is_seen(content, expected):
    assert verdicts(CLOSED.replace("{{ m.content }}", content), *REWRITES) == expected


def test_what_a_dropped_thought_harms_is_said():
    says = check_template(tokenizer(CLOSED.replace("{{ m.content }}", WITHOUT_THOUGHT)))[THINKS_USER].says
    assert "drops the earlier turn's thought" in says
    assert "the context in which turn 2 is sampled is not the context that the loss scores" in says


def test_a_refusal_is_no_verdict():
    report = check_template(tokenizer(NO_TOOLS))
    assert report[PLAIN_USER].verdict == "no"
    assert report[PLAIN_TOOL].verdict == report[THINKS_TOOL].verdict == "cannot tell"
    assert "'tool'" in report[PLAIN_TOOL].says and "no tools here" in report[PLAIN_TOOL].says
    assert "does not show calls" in report[CLOSES_CALL].says


def test_without_a_template_nothing_is_known():
    report = check_template(tokenizer(None), stops=["</call>"])
    assert {verdict.verdict for verdict in report.verdicts} == {"cannot tell"}
    assert "has no chat template" in str(report)


def test_a_turn_that_is_left_out_is_no_verdict():
    silent = CLOSED.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
    report = check_template(tokenizer(silent))
    assert report[PLAIN_TOOL].verdict == "cannot tell" and "leaves out the turn" in report[PLAIN_TOOL].says
    thoughtless = CLOSED.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    report = check_template(tokenizer(thoughtless))
    assert report[PLAIN_USER].verdict == "no"
    assert report[THINKS_USER].verdict == "cannot tell" and "of the last turn too" in report[THINKS_USER].says


@pytest.mark.parametrize(
    "end, verdict, says",
    [("{{ eos_token }}", "yes", "<eos>"), ("<|end|>", "no", "<|end|>"), ("", "no", "nothing stands")],
)
def test_what_closes_a_turn_is_named(end, verdict, says):
    report = check_template(tokenizer(CLOSED.replace("{{ eos_token }}", end)))
    assert report[CLOSES].verdict == report[CLOSES_CALL].verdict == verdict
    assert says in report[CLOSES].says and says in report[CLOSES_CALL].says


def test_a_call_that_closes_in_another_way_is_no_verdict():
    other = CLOSED.replace("{{ eos_token }}", "{{ '!' if m.tool_calls else '<|end|>' }}")
    assert verdicts(other, CLOSES, CLOSES_CALL) == ["no", "cannot tell"]


@pytest.mark.parametrize(
    "end, stop, verdict",
    [
        ("{{ eos_token }}", "</call>", "yes"),
        ("<|end|>", "</call>", "yes"),
        ("", "</call>", "no"),
        ("<|end|>", "<|end|>", "no"),
        ("{{ eos_token }}", 3, "yes"),
        ("{{ eos_token }}", 1, "no"),
        ("{{ eos_token }}", ">", "yes"),  # with which EOS ends too
        ("{{ '' if m.tool_calls else '<|end|>' }}", "</call>", "no"),
    ],
)
def test_a_stop_that_leaves_the_turn_open_is_seen(end, stop, verdict):
    report = check_template(tokenizer(CLOSED.replace("{{ eos_token }}", end)), stops=[stop])
    assert report[f"leaves a turn open that ends at {stop!r}"].verdict == verdict
    assert len(report.open_turns()) == (verdict == "yes")


def test_arguments_may_have_to_be_text():
    textual = CLOSED.replace("{{ c.function.name }}", "{{ c.function.name + c.function.arguments }}")
    assert verdicts(textual, PLAIN_TOOL, CLOSES_CALL) == ["no", "yes"]
    assert '{"line": 1}' in call_text(tokenizer(textual))


def test_options_of_the_template_are_passed_on():
    own = tokenizer("{% for m in messages %}{{ m.content }}{{ end }}{% endfor %}")
    assert check_template(own, end="<eos>")[CLOSES].verdict == "yes"
    assert check_template(own, chat_template=CLOSED)[CLOSES_CALL].verdict == "yes"
    assert ends_with_eos(own, "a<eos>\n") and not ends_with_eos(own, "a")


def test_a_report_shows_itself_and_escapes_what_a_template_says():
    report = check_template(tokenizer(CLOSED.replace("{{ eos_token }}", "<b>")), stops=StopSpec(stop=("</call>",)))
    assert "closes a turn with EOS" in str(report) and "<b>'" in str(report)
    assert "&lt;b&gt;" in report._repr_html_() and "'<b>'" not in report._repr_html_()


@pytest.mark.slow  # renders 72 templates
def test_templates_of_trl_that_rewrite_are_as_many_as_counted():
    """Of TRL 1.16: 41 templates of models and 31 variants for training, counted independently by rendering them alone."""
    need(trl.__version__.startswith("1.16."), "TRL 1.16, whose templates were counted")
    paths = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    counts = {False: Counter(), True: Counter()}
    for path in paths:
        report = check_template(tokenizer(path.read_text(encoding="utf-8")))
        rewritten = [question for question in REWRITES if report[question].verdict == "yes"]
        counts[path.stem.endswith("_training")].update(["templates", *rewritten])
    assert counts[False] == {"templates": 41, PLAIN_USER: 7, THINKS_USER: 15, PLAIN_TOOL: 1, THINKS_TOOL: 5}
    assert counts[True] == {"templates": 31, PLAIN_USER: 3, THINKS_USER: 8, THINKS_TOOL: 1}
