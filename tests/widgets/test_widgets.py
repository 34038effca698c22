import asyncio
import threading
import time
from functools import partial

import ipywidgets
import pytest
from conftest import until, write_run

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.errors import ParameterError, TrainingStopped
from workbench.generation.rollouts import TransformersSampler
from workbench.generation.stops import StopRule, StopSpec
from workbench.runs.files import load_metrics
from workbench.runs.run import Run, create_run
from workbench.runs.stop_request import stop_request
from workbench.widgets import padding_explorer, run_comparer, stop_explorer, train_live, watch
from workbench.widgets.controls import Choices, Explorer, control
from workbench.widgets.markup import visible
from workbench.widgets.padding_explorer import score_deltas, show_padding
from workbench.widgets.progress import TrainingProgress
from workbench.widgets.run_comparer import compare_runs
from workbench.widgets.stop_explorer import mark_row, show_stops

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\u202e\x1b[31m\ud800"
METRICS = [
    {"step": n, "elapsed_s": n / 2, "reward": n - 30.0, "step_time": 0.5}
    | {"completions/mean_length": 9.0, "completions/clipped_ratio": 0.25, "frac_reward_zero_std": 0.0}
    for n in range(1, 21)
]


def widgets_alive() -> set:
    return set(ipywidgets.widgets.widget._instances)


@pytest.fixture(scope="module")
def engine():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.training.recipes import resolve_model

    path = resolve_model("search")
    return TransformersSampler(AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path))


@pytest.fixture(scope="module")
def prompt():
    from workbench.training.recipes import load_prompts

    return load_prompts("search")[0]["prompt"]


# --- what all of them share ------------------------------------------------------------------------------------------


def test_a_static_twin_makes_no_widget_and_shows_what_the_widget_starts_with(engine, prompt, tmp_path):
    run = write_run(tmp_path, metrics=METRICS)
    documented = [load_baseline(name) for name in list_baselines()[:3]]
    about = {"tolerance": 5.0, "unit": "characters", "high": 0.0}
    explorers = [
        partial(stop_explorer, {"transformers": engine}, prompt=prompt, limit=12),
        partial(padding_explorer, family="llama"),
        partial(run_comparer, [run], documented, **about),
    ]
    for explorer in explorers:
        before = widgets_alive()
        static = explorer(interactive=False)
        assert widgets_alive() == before
        assert static._repr_html_() in explorer(interactive=True).result.value


def test_every_control_has_a_description_and_a_tooltip(engine, prompt, tmp_path):
    run = write_run(tmp_path, state="interrupted")
    explorers = [
        stop_explorer({"transformers": engine}, prompt=prompt, limit=4),
        padding_explorer(),
        run_comparer([run], [load_baseline(n) for n in list_baselines()], tolerance=1.0, unit="u", high=0.0),
    ]
    view = watch(run)
    controls = [c for explorer in explorers for c in explorer.controls.values() if not isinstance(c, Choices)]
    choices = [c for explorer in explorers for c in explorer.controls.values() if isinstance(c, Choices)]
    controls += [view.stop, view.go_on, *(box for c in choices for box in c.children[1].children)]
    assert len(controls) == 17 + 1 + len(list_baselines())
    assert all(c.children[0].value == c.description for c in choices)
    assert all(c.description.strip() and c.tooltip.strip() for c in controls)


def test_a_refusal_and_a_failure_are_told_in_words_and_the_last_good_result_stays():
    class Answer:
        def __init__(self, text):
            self.text = text

        def _repr_html_(self):
            return self.text

    def show(number):
        if number == 2:
            raise ParameterError("number=2: <b>not</b> that one")
        return Answer(f"answer {10 // (3 - number)}")

    explorer = Explorer(show, {"number": control(ipywidgets.IntText, "number", "any", 1)})
    assert "ready" in explorer.state.value and "answer 5" in explorer.result.value
    explorer.controls["number"].value = 2
    assert "refused: number=2: &lt;b&gt;not&lt;/b&gt; that one" in explorer.state.value
    explorer.controls["number"].value = 3
    assert "failed: ZeroDivisionError" in explorer.state.value
    assert "answer 5" in explorer.result.value
    explorer.controls["number"].value = 0
    assert "ready" in explorer.state.value and "answer 3" in explorer.result.value


def test_text_is_shown_inert_cut_and_with_its_unseen_characters_named():
    shown = visible(HOSTILE)
    assert "<" not in shown and "'" not in shown
    assert all(code in shown for code in ("U+202E", "U+001B", "U+D800"))
    assert visible("x" * 500, most=10) == "x" * 10 + " ... (500 characters)"
    assert visible("a b\n", spaces=True) == "a\u2423b\u23ce"


# --- stops -----------------------------------------------------------------------------------------------------------


def test_each_token_is_kept_or_spells_the_stop_or_is_wasted(engine):
    rule = StopRule(StopSpec(strings=("</search>",)), engine.tokenizer)
    ids = engine.tokenizer.encode("<search>opals</search> Then I")
    row = mark_row(rule, ids)
    texts = {role: "".join(t for t, r in zip(row.texts, row.roles, strict=True) if r == role) for role in row.roles}
    assert texts == {"kept": "<search>opals", "stop": "</search>", "wasted": " Then I"}
    assert row.completion == "<search>opals</search>"


def test_eos_and_a_token_id_are_stops_of_one_token_and_a_row_without_any_is_kept_whole(engine):
    tokenizer = engine.tokenizer
    words = tokenizer.encode("I think it is")
    eos = tokenizer.eos_token_id
    assert mark_row(StopRule(StopSpec(), tokenizer), [*words, eos, 5]).roles[-2:] == ("stop", "wasted")
    by_id = mark_row(StopRule(StopSpec(token_ids=(words[1],)), tokenizer), words)
    assert by_id.roles[:2] == ("kept", "stop") and set(by_id.roles[2:]) == {"wasted"}
    assert set(mark_row(StopRule(StopSpec(), tokenizer), words).roles) == {"kept"}


def test_every_role_is_written_out_beside_its_colour(engine):
    rule = StopRule(StopSpec(strings=("</search>",)), engine.tokenizer)
    page = mark_row(rule, engine.tokenizer.encode("<search>a</search> b"))._repr_html_()
    for role, mark in {"kept": "solid", "stop": "underline", "wasted": "line-through"}.items():
        assert f"<br>{role}</small>" in page and mark in page


def test_a_back_end_told_to_stop_keeps_what_the_rule_keeps_of_the_whole_row(engine, prompt):
    found = show_stops("transformers", engine, StopSpec(strings=("</search>",)), prompt=prompt, limit=24)
    assert len(found.rows) == 2
    assert all("the same tokens" in row.engine for row in found.rows)
    assert all("wasted" in row.roles and len(row.ids) == 24 for row in found.rows)


def test_editing_the_stops_changes_the_view_and_bad_stops_are_refused_in_the_library_s_words(engine):
    explorer = stop_explorer({"transformers": engine}, text="<search>opals</search> Then I")
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
    ids.value, strings.value, explorer.controls["eos"].value = "", "", False
    assert "refused: StopSpec has no stop" in explorer.state.value


def test_stops_survive_the_way_through_their_text_field(engine):
    stops = StopSpec(strings=("\n", " the", "it's", "'quoted'"))
    from workbench.widgets.stop_explorer import _strings

    explorer = stop_explorer({"transformers": engine}, text="a the\nb", stops=stops)
    assert _strings(explorer.controls["strings"].value) == stops.strings


def test_an_engine_is_made_when_it_is_chosen_and_once(engine, prompt):
    made = []
    explorer = stop_explorer({"one": engine, "two": lambda: made.append(1) or engine}, prompt=prompt, limit=4)
    assert made == []
    for backend in ("two", "one", "two"):
        explorer.controls["backend"].value = backend
        assert f"<p>{backend}, " in explorer.result.value
    assert made == [1]


def test_hostile_text_makes_no_element_in_the_stop_explorer(engine):
    explorer = stop_explorer(
        {"transformers": engine}, text=HOSTILE.replace("\ud800", ""), stops=StopSpec(strings=("<b>",))
    )
    assert (
        "<script" not in explorer.result.value
        and "<img" not in explorer.result.value
        and "<b>" not in explorer.result.value
    )


# --- padding ---------------------------------------------------------------------------------------------------------


def test_learned_positions_move_by_nats_behind_left_pads_and_by_rounding_with_position_ids():
    found = show_padding("gpt2", "left", "float32")
    assert "wrong without position ids" in found.verdict
    numbers = found.shown.table.set_index("positions").drop(columns="text")
    assert numbers.loc["without position ids"].max(axis=None) > 0.5
    assert numbers.loc["with them"].max(axis=None) < 1e-5
    assert numbers.shape == (6, 23)


def test_right_padding_moves_nothing_and_deltas_are_nan_beyond_a_text():
    from workbench.toys.families import family_model, random_texts

    deltas = score_deltas(family_model("gpt2"), random_texts(9, 5), side="right", pads=3)
    for values in deltas.values():
        assert values.shape == (2, 8)
        assert abs(values[0]).max() < 1e-5
        assert set(map(bool, values[1] != values[1])) == {False, True}


def test_choosing_another_family_and_side_changes_the_heat_map_and_its_alt_text():
    explorer = padding_explorer()
    before = explorer.result.value
    explorer.controls["family"].value = "llama"
    explorer.controls["side"].value = "right"
    assert explorer.result.value != before
    assert 'alt="llama, right padding, float32: without position ids at most' in explorer.result.value


@pytest.mark.parametrize("wrong", [{"family": "gpt5"}, {"dtype": "int8"}, {"side": "top"}])
def test_an_unknown_family_dtype_or_side_is_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong.values()))):
        show_padding(**{"family": "gpt2", "side": "left", "dtype": "float32"} | wrong)


# --- runs ------------------------------------------------------------------------------------------------------------


def test_the_comparer_draws_what_is_chosen_and_says_what_is_left_out(tmp_path):
    runs = [write_run(tmp_path, "a", metrics=METRICS), write_run(tmp_path, "b", state="failed")]
    documented = [load_baseline(name) for name in list_baselines()]
    explorer = run_comparer(runs, documented, tolerance=5.0, unit="characters", high=0.0)
    assert "05_grpo_docs_example/b: failed" in explorer.result.value
    explorer.controls["documented"].value = ()
    assert documented[0].title not in explorer.result.value
    explorer.controls["runs"].value = ()
    assert "refused: nothing to draw" in explorer.state.value
    boxes = explorer.controls["runs"].children[1].children
    assert boxes[1].description == "05_grpo_docs_example b (failed)" and not boxes[0].value
    boxes[0].value = True
    assert explorer.controls["runs"].value == (runs[0],)
    assert "ready" in explorer.state.value


def test_each_pair_of_group_and_documented_run_gets_a_verdict_with_its_reason(tmp_path):
    documented = [load_baseline(name) for name in list_baselines()]
    found = compare_runs([write_run(tmp_path, metrics=METRICS)], documented, tolerance=5.0, unit="characters", high=0.0)
    assert len(found.verdicts) == len(documented)
    assert found.verdicts["why"].str.len().min() > 0
    assert compare_runs([], documented, tolerance=5.0).verdicts.empty


# --- training --------------------------------------------------------------------------------------------------------


class FakeTraining:
    """Steps of a training that looks for the stop request after each, and goes on where it stopped."""

    def __init__(self, run: Run, steps: int):
        self.run, self.steps, self.step = run, steps, 0
        self.began = threading.Event()

    def __call__(self):
        while self.step < self.steps:
            self.step += 1
            self.began.set()
            time.sleep(0.01)
            if reason := stop_request(self.run.path):
                raise TrainingStopped(f"stopped after step {self.step} of {self.steps}: {reason}")
        return self


@pytest.fixture
def run(tmp_path):
    return create_run("by_hand", {"seed": 0}, tmp_path, state="running")


def test_stop_ends_the_training_after_its_step_and_continue_takes_it_to_the_end(run):
    training = FakeTraining(run, steps=10**9)
    view = watch(run, train=training, every=0.02)

    async def press_stop_while_it_trains():
        cell = asyncio.create_task(view.trained())
        while not training.began.is_set():
            await asyncio.sleep(0.01)
        assert "training" in view.state.value and view.go_on.disabled
        view.stop.click()
        assert view.stop.disabled
        await cell

    with pytest.raises(TrainingStopped, match="stopped by its button") as stopped:
        asyncio.run(press_stop_while_it_trains())
    assert stopped.value._render_traceback_()[0].startswith("TrainingStopped: stopped after step")
    assert "interrupted: can go on from its last checkpoint" in view.state.value
    stopped_at, training.steps = training.step, training.step + 3
    view.go_on.click()
    until(lambda: view.trainer is training)
    until(lambda: "trained" in view.state.value)
    assert training.step == stopped_at + 3
    assert view.stop.disabled and view.go_on.disabled


def test_stop_works_again_after_continue(run):
    training = FakeTraining(run, steps=10**9)
    view = watch(run, train=training, every=0.02)
    for _ in range(3):
        training.began.clear()
        view.start()
        until(training.began.is_set)
        view.stop.click()
        until(lambda: "interrupted" in view.state.value and not view.training)


def test_the_kernel_s_interrupt_stops_like_the_button(run):
    training = FakeTraining(run, steps=10**9)

    async def interrupt():
        cell = asyncio.create_task(train_live(run, training))
        while not training.began.is_set():
            await asyncio.sleep(0.01)
        cell.cancel()
        await cell

    with pytest.raises(TrainingStopped, match="the kernel's interrupt"):
        asyncio.run(interrupt())


def test_an_error_in_the_training_thread_reaches_the_cell_and_the_view(run):
    def broken():
        raise ValueError("<b>no</b> such reward")

    view = watch(run, train=broken, every=0.02)
    with pytest.raises(ValueError, match="such reward"):
        asyncio.run(view.trained())
    assert "failed: see the error. ValueError: &lt;b&gt;no&lt;/b&gt; such reward" in view.state.value
    assert not view.go_on.disabled


def test_without_controls_it_is_the_call_in_the_calling_thread_and_its_result(run, capsys):
    before, where = widgets_alive(), []
    trainer = asyncio.run(
        train_live(run, lambda: where.append(threading.current_thread()) or "trainer", interactive=False)
    )
    assert (trainer, where) == ("trainer", [threading.current_thread()])
    assert widgets_alive() == before
    assert "TrainingProgress" in capsys.readouterr().out  # what display() prints outside a notebook


def test_progress_says_step_pace_and_time_left_and_shows_completions_as_text(tmp_path):
    rows = [{"step": 20, "prompt": "p", "completion": text, "finish_reason": "stop", "reward": -1.25} for text in "ab"]
    rows[0]["completion"] = HOSTILE.replace("\ud800", "")
    run = write_run(tmp_path, metrics=METRICS, completions=rows)
    (run.path / "progress.json").write_text('{"step": 20, "max_steps": 40, "elapsed_s": 10}')
    progress = TrainingProgress(run)
    assert progress.words == "step 20 of 40; 0.5 s a step (median of the last 10 steps, 0.5 to 0.5); 10 s to go"
    page = progress._repr_html_()
    assert "<script" not in page and "&lt;script&gt;" in page and "-1.25" in page
    assert 'alt="reward rises from' in page


def test_an_empty_run_folder_has_a_view_too(run):
    assert "step 0 of ?" in TrainingProgress(run)._repr_html_()


def test_a_run_that_trains_elsewhere_is_followed_to_its_end_and_can_be_asked_to_stop(tmp_path):
    from workbench.runs.status import set_status

    run = write_run(tmp_path, state="running")
    view = watch(run, every=0.02)
    assert view.go_on.disabled and not view.stop.disabled
    view.stop.click()
    assert stop_request(run.path) == "stopped by its button"
    until(lambda: "stopping" in view.state.value)
    (run.path / "progress.json").write_text('{"step": 3, "max_steps": 4}')
    set_status(run.path, "done")
    until(lambda: "done" in view.state.value and "step 3 of 4" in view.result.value)
    until(lambda: not view._following.is_alive())


def test_a_damaged_folder_is_told_and_does_not_end_the_view(run):
    view = watch(run, train=FakeTraining(run, 1), every=0.02)
    (run.path / "metrics.jsonl").write_text("no json\n")
    view.refresh()
    assert "failed: RunError" in view.result.value
    (run.path / "metrics.jsonl").unlink()
    view.refresh()
    assert "step 0 of ?" in view.result.value


@pytest.mark.slow
def test_a_real_grpo_training_stops_by_its_button_and_goes_on_to_its_last_step(starter_folder, run):
    from workbench.training.grpo import train_grpo
    from workbench.training.recipes import make_recipe
    from workbench.training.rewards import length_reward

    fields = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8, "max_steps": 6}
    calls = []

    def reward(completions, **_):
        calls.append(1)
        if len(calls) == 2:
            view.stop.click()
        return length_reward(20)(completions)

    reward.__name__ = "length"
    recipe = make_recipe("starter", **fields)
    view = watch(run, train=partial(train_grpo, recipe, reward_funcs=reward, out_dir=run.path), every=0.1)
    with pytest.raises(TrainingStopped, match="stopped after step 2 of 6"):
        asyncio.run(view.trained())
    assert run.status["state"] == "interrupted"
    assert (run.path / "checkpoints/checkpoint-2/complete.json").is_file()
    view.go_on.click()
    until(lambda: view.trainer is not None or (view.error and not view.training))
    assert view.error is None
    assert load_metrics(run.path / "metrics.jsonl")["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.status["state"] == "running"
    until(lambda: "step 6 of 6" in view.result.value)
