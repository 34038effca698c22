from functools import partial

import ipywidgets
from conftest import write_run
from widget_samples import METRICS, widgets_alive

from workbench.curves.documented import list_baselines, load_baseline
from workbench.errors import ParameterError
from workbench.lab.widgets import padding_explorer, run_comparer, stop_explorer, watch
from workbench.lab.widgets.controls import Choices, Explorer, as_jupyter_output, control, status_line
from workbench.runs.text import html_table


def test_a_static_twin_shows_the_widgets_start_without_a_widget(sampler, prompt, tmp_path):
    run = write_run(tmp_path, metrics=METRICS)
    documented = [load_baseline(name) for name in list_baselines()[:3]]
    about = {"tolerance": 5.0}
    explorers = [
        partial(stop_explorer, {"transformers": sampler}, prompt=prompt, limit=12),
        partial(padding_explorer, family="llama"),
        partial(run_comparer, [run], documented, **about),
    ]
    for explorer in explorers:
        before = widgets_alive()
        static = explorer(interactive=False)
        assert widgets_alive() == before
        assert static._repr_html_() in explorer(interactive=True).result.value


def test_every_control_has_a_description_and_a_tooltip(sampler, prompt, tmp_path):
    run = write_run(tmp_path, state="interrupted")
    explorers = [
        stop_explorer({"transformers": sampler}, prompt=prompt, limit=4),
        padding_explorer(),
        run_comparer([run], [load_baseline(n) for n in list_baselines()[:3]], tolerance=1.0),
    ]
    view = watch(run)
    controls = [c for explorer in explorers for c in explorer.controls.values() if not isinstance(c, Choices)]
    choices = [c for explorer in explorers for c in explorer.controls.values() if isinstance(c, Choices)]
    controls += [view.stop, view.go_on, *(box for c in choices for box in c.boxes)]
    assert len(controls) == 17 + 1 + 3
    controls += [part for c in choices for part in (c.search, c.all, c.none)]
    assert all(c.head.value.startswith(f"{c.description}: ") for c in choices)
    assert all(c.description.strip() and c.tooltip.strip() for c in controls)


def test_a_refusal_or_failure_is_words_and_the_last_result_stays():
    class Answer:
        def __init__(self, text):
            self.text = text

        def _repr_html_(self):
            return self.text

    def show(number):
        if number == 2:
            raise ParameterError("number=2: <b>not</b> that one")
        return Answer(f"answer {10 // (3 - number)}")

    explorer = Explorer(show, {"number": control(ipywidgets.IntText, "number", "any", value=1)})
    assert "ready" in explorer.state.value and "answer 5" in explorer.result.value
    explorer.controls["number"].value = 2
    assert "refused: number=2: &lt;b&gt;not&lt;/b&gt; that one" in explorer.state.value
    explorer.controls["number"].value = 3
    assert "failed: ZeroDivisionError" in explorer.state.value
    assert "answer 5" in explorer.result.value
    explorer.controls["number"].value = 0
    assert "ready" in explorer.state.value and "answer 3" in explorer.result.value


def test_of_several_choices_those_that_are_ticked_count():
    choices = Choices("runs", "shown when ticked", [("first", 1), ("second", 2), ("third", 3)])
    seen = []
    choices.observe(lambda change: seen.append(change["new"]), names="value")
    assert choices.value == (1, 2, 3)
    choices.boxes[1].value = False
    assert choices.value == (1, 3)
    assert seen == [(1, 3)]  # a result is computed once
    assert Choices("none", "", []).value == ()


def test_all_and_none_change_the_boxes_that_a_search_shows():
    choices = Choices("runs", "ticked", [("GRPO, Qwen2", 1), ("PPO, Qwen2", 2), ("GRPO, gemma", 3)], chosen=[2])
    seen = []
    choices.observe(lambda change: seen.append(change["new"]), names="value")
    assert choices.value == (2,) and choices.head.value == "runs: 1 of 3"
    choices.search.value = "qwen grpo"
    assert [box.layout.display for box in choices.boxes] == ["", "none", "none"]
    choices.all.click()
    assert choices.value == (1, 2) and choices.head.value == "runs: 2 of 3"
    choices.search.value = ""
    choices.none.click()
    assert choices.value == ()
    choices.all.click()
    assert seen == [(1, 2), (), (1, 2, 3)]  # a result is computed once for each button


def test_a_list_without_options_says_so():
    (label,) = Choices("runs", "ticked", [], empty="none are there").children
    assert label.value == "runs: none are there"


def test_a_list_names_its_key_and_text_counts_once_it_is_left():
    listed = control(ipywidgets.Dropdown, "dtype", "of weights", options=["a"])
    assert listed.tooltip == "of weights; Space opens the list"
    assert control(ipywidgets.Text, "ids", "numbers", value="7").continuous_update is False


def test_a_state_is_a_sign_and_a_word_read_out_with_inert_text():
    line = status_line("failed", "<b>no</b>")
    assert 'role="status"' in line and "\u2717 failed: &lt;b&gt;no&lt;/b&gt;" in line and "bold" in line
    assert "\u2022 queued: " in status_line("queued", "waits") and "bold" not in status_line("queued", "waits")


def test_a_table_has_a_caption_and_a_header_cell_a_column():
    page = as_jupyter_output(html_table([["1", "<i>2</i>"]], ["a", "b"], "Two"))
    assert page.startswith('<div class="jp-RenderedHTMLCommon"')
    assert page.count('<th scope="col"') == 2 and ">Two</caption>" in page
    assert page.count("<td") == 2 and "<i>2</i>" in page
