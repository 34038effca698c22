from widget_samples import HOSTILE

from workbench.generation.stops import StopRule, StopSpec
from workbench.lab.widgets import stop_explorer
from workbench.lab.widgets.stop_explorer import mark_row, show_stops
from workbench.runs.text import visible


def test_each_token_is_kept_or_spells_the_stop_or_is_wasted(sampler):
    rule = StopRule(StopSpec(stop=("</search>",)), sampler.tokenizer)
    ids = sampler.tokenizer.encode("<search>opals</search> Then I")
    row = mark_row(rule, ids)
    texts = {role: "".join(t for t, r in zip(row.texts, row.roles, strict=True) if r == role) for role in row.roles}
    assert texts == {"kept": "<search>opals", "stop": "</search>", "wasted": " Then I"}
    assert row.completion == "<search>opals</search>"


def test_eos_and_token_ids_end_a_row_and_one_without_stays_whole(sampler):
    tokenizer = sampler.tokenizer
    words = tokenizer.encode("I think it is")
    eos = tokenizer.eos_token_id
    assert mark_row(StopRule(StopSpec(), tokenizer), [*words, eos, 5]).roles[-2:] == ("stop", "wasted")
    by_id = mark_row(StopRule(StopSpec(stop_token_ids=(words[1],)), tokenizer), words)
    assert by_id.roles[:2] == ("kept", "stop") and set(by_id.roles[2:]) == {"wasted"}
    assert set(mark_row(StopRule(StopSpec(), tokenizer), words).roles) == {"kept"}


def test_every_role_is_written_out_beside_its_colour(sampler):
    rule = StopRule(StopSpec(stop=("</search>",)), sampler.tokenizer)
    page = mark_row(rule, sampler.tokenizer.encode("<search>a</search> b"))._repr_html_()
    for role, mark in {"kept": "solid", "stop": "underline", "wasted": "line-through"}.items():
        assert f"<br>{role}</small>" in page and mark in page


def test_a_back_end_with_stops_keeps_what_the_rule_keeps(sampler, prompt):
    found = show_stops("transformers", sampler, StopSpec(stop=("</search>",)), prompt=prompt, limit=24)
    assert len(found.rows) == 2
    assert all("the same tokens" in row.sampling for row in found.rows)
    assert all("wasted" in row.roles and len(row.ids) == 24 for row in found.rows)


def test_edited_stops_change_the_view_and_bad_ones_are_refused(sampler):
    explorer = stop_explorer({"transformers": sampler}, text="<search>opals</search> Then I")
    strings, ids = explorer.controls["strings"], explorer.controls["token_ids"]
    assert "no stop matched" in explorer.result.value
    strings.value = "</search>"
    assert "at &#x27;&lt;/search&gt;&#x27;" in explorer.result.value
    explorer.controls["keep"].value = False
    assert "A reward function sees: <code>&lt;search&gt;opals</code>" in explorer.result.value
    ids.value = "7, 999999"
    assert "refused: stop token id 999999: outside the vocabulary" in explorer.state.value
    ids.value = "seven"
    assert "refused: stop token ids &#x27;seven&#x27;: expected whole numbers" in explorer.state.value
    ids.value, strings.value = "", "a\na"
    assert "refused: StopSpec stop=(&#x27;a&#x27;, &#x27;a&#x27;): a stop is given twice" in explorer.state.value


def test_stops_survive_the_way_through_their_text_field(sampler):
    stops = StopSpec(stop=("\n", " the", "it's", "'quoted'"))
    explorer = stop_explorer({"transformers": sampler}, text="a the\nb", stops=stops)
    explorer.refresh()
    assert explorer.state.value.count("ready") == 1
    assert visible(str(stops)) in explorer.result.value


def test_a_sampler_is_made_when_it_is_chosen_and_once(sampler, prompt):
    made = []
    explorer = stop_explorer({"one": sampler, "two": lambda: made.append(1) or sampler}, prompt=prompt, limit=4)
    assert made == []
    for backend in ("two", "one", "two"):
        explorer.controls["backend"].value = backend
        assert f"<p>{backend}, " in explorer.result.value
    assert made == [1]


def test_hostile_text_makes_no_element_in_the_stop_explorer(sampler):
    text = HOSTILE.replace("\ud800", "")
    shown = stop_explorer({"transformers": sampler}, text=text, stops=StopSpec(stop=("<b>",))).result.value
    assert not [tag for tag in ("<script", "<img", "<b>") if tag in shown]
