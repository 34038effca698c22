"""The completions microscope in a real Chromium with the network blocked: filter, keyboard, inert text, light, dark, print."""

import re

import pandas as pd
import pytest
from conftest import daily, write_run
from report_browser import CONTRAST, Visit
from report_samples import HOSTILE, UNSEEN

from workbench.lab.reports import build_report
from workbench.lab.reports.microscope import write_microscope
from workbench.lab.reports.trainings import Tokens, training_of
from workbench.runs.files import write_json

pytestmark = pytest.mark.slow


def page_of(folder, table: pd.DataFrame):
    run = write_run(folder, completions=table.to_dict("records"))
    return write_microscope(run.path, folder / "microscope.html", "Completions <b>x</b>", str)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """20 steps of 3 groups of 4; what a completion says, its reward and its end tell where it stands."""
    count = 240
    group, step = [n // 4 % 3 for n in range(count)], [1 + n // 12 for n in range(count)]
    table = pd.DataFrame({"step": step, "prompt": [f"question {g}" for g in group]})
    table["completion"] = [
        f"Step {s} group {g} number {n % 4}." for n, (s, g) in enumerate(zip(step, group, strict=True))
    ]
    table["reward"] = [n % 4 + s / 100 for n, s in enumerate(step)]
    table["advantage"] = [n % 4 - 1.5 for n in range(count)]
    table["finish_reason"] = ["length" if s == 15 and g == 1 else "stop" for s, g in zip(step, group, strict=True)]
    table["completion_tokens"], table["sampled_tokens"] = (
        7,
        [9 if s == 15 and g == 1 else 7 for s, g in zip(step, group, strict=True)],
    )
    return page_of(tmp_path_factory.mktemp("plain"), table)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    texts = [*HOSTILE.values()] * 2
    table = pd.DataFrame({"step": 1, "prompt": texts, "completion": texts, "reward": 0.5, "finish_reason": texts})
    return page_of(tmp_path_factory.mktemp("hostile"), table)


def opened(browser, path, width=1200, **context) -> Visit:
    visit = Visit(browser, path, width, **context)
    visit.page.locator(".card").first.wait_for()
    return visit


def here(visit) -> str:
    return visit.page.inner_text("#here")


def press(visit, *keys: str) -> str:
    """Where one is after these keys."""
    for key in keys:
        visit.page.keyboard.press(key)
        visit.page.wait_for_timeout(50)
    return here(visit)


def find(visit, **values) -> str:
    """What is counted once these fields of the filter are filled."""
    for name, value in values.items():
        field = visit.page.locator(f"#{name.replace('_', '-')}")
        field.select_option(value) if name in ("filter_sign", "filter_finish") else field.fill(value)
    visit.page.wait_for_timeout(200)
    return visit.page.inner_text("#count")


def test_it_opens_at_the_worst_group_and_shows_it_side_by_side(browser, plain):
    visit = opened(browser, plain)
    visit.check()
    assert here(visit) == "Step 15 of 20, group 1 of 3"
    press(visit, "ArrowDown")
    cards = visit.page.locator(".card")
    boxes = [cards.nth(n).bounding_box() for n in range(4)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] < boxes[1]["x"]
    first = cards.first.inner_text()
    for said in (
        "reward 0.15",
        "advantage -1.5",
        "length",
        "7 tokens",
        "+ 2 tokens after the end",
        "Step 15 group 1 number 0.",
    ):
        assert said in first
    assert visit.page.inner_text("#prompt div") == "question 1"
    assert "2% truncated by the length limit" in visit.page.inner_text("#strips")
    assert "33% truncated" in visit.page.inner_text("#readout")
    assert visit.page.locator("#lacks").inner_text().startswith("Not recorded here")


def test_the_keyboard_alone_reaches_steps_groups_and_the_search(browser, plain):
    visit = opened(browser, plain)
    assert press(visit, "Home") == "Step 1 of 20, group 1 of 3"
    assert press(visit, "ArrowDown", "ArrowDown") == "Step 1 of 20, group 3 of 3"
    assert press(visit, "ArrowDown") == "Step 2 of 20, group 1 of 3"
    assert press(visit, "ArrowRight", "ArrowRight") == "Step 4 of 20, group 1 of 3"
    assert press(visit, "ArrowUp", "ArrowLeft") == "Step 2 of 20, group 1 of 3"
    assert press(visit, "End") == "Step 20 of 20, group 3 of 3"
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("step 7 GROUP 2")
    visit.page.wait_for_timeout(300)
    assert here(visit) == "Step 7 of 20, group 3 of 3"
    assert visit.page.inner_text("#count") == "4 completions in 1 group of 240 completions"
    assert visit.page.locator(".card mark").all_inner_texts() == ["Step 7 group 2"] * 4
    assert press(visit, "Escape") == "Step 7 of 20, group 3 of 3"
    visit.page.wait_for_timeout(200)
    assert visit.page.inner_text("#count") == ""
    assert press(visit, "ArrowRight") == "Step 8 of 20, group 1 of 3"
    assert "#training=0&step=8&group=1" in visit.page.url
    visit.check()


def test_a_link_with_a_step_and_a_group_opens_there(browser, plain, tmp_path):
    page = opened(browser, plain).page
    page.unroute("**/*")
    page.goto(f"{plain.as_uri()}#training=0&step=9&group=2")
    page.reload()
    page.locator(".card").first.wait_for()
    page.wait_for_timeout(200)
    assert page.inner_text("#here") == "Step 9 of 20, group 2 of 3"


def test_each_filter_narrows_what_is_shown_and_what_keys_reach(browser, plain):
    visit = opened(browser, plain)
    assert find(visit, filter_finish="length").startswith("4 completions in 1 group")
    assert here(visit) == "Step 15 of 20, group 2 of 3"
    assert find(visit, filter_finish="").startswith("")
    assert find(visit, filter_sign="wasted").startswith("4 completions in 1 group")
    assert find(visit, filter_sign="", reward_from="2.5", reward_to="3.1").startswith("30 completions in 30 groups")
    assert visit.page.locator(".card.other").count() == 3
    assert find(visit, step_from="5", step_to="6").startswith("6 completions in 6 groups")
    visit.page.locator("#here").focus()
    assert press(visit, "End") == "Step 6 of 20, group 3 of 3"
    assert press(visit, "ArrowRight") == "Step 6 of 20, group 3 of 3"  # there is no later one
    assert find(visit, filter_text="no such text").startswith("0 completions in 0 groups")
    assert not visit.page.locator("#group").is_visible()
    visit.page.get_by_role("button", name="Clear").click()
    visit.page.wait_for_timeout(200)
    assert visit.page.locator("#group").is_visible()
    visit.page.get_by_role("button", name=re.compile("truncated by the length limit")).click()
    visit.page.wait_for_timeout(200)
    assert visit.page.inner_text("#count").startswith("4 completions in 1 group")


def test_a_click_on_the_chart_leads_to_that_step(browser, plain):
    visit = opened(browser, plain)
    box = visit.page.locator("#strips svg").first.bounding_box()
    visit.page.mouse.click(box["x"] + box["width"] * 0.475, box["y"] + 20)
    visit.page.wait_for_timeout(100)
    assert here(visit) == "Step 10 of 20, group 1 of 3"


@pytest.mark.parametrize("width", daily([390, 1200], 390))
def test_hostile_text_runs_asks_and_hides_nothing(browser, hostile_page, width):
    visit = opened(browser, hostile_page, width)
    press(visit, "ArrowDown", "ArrowDown", "ArrowUp")
    visit.check()
    press(visit, "Home")
    seen = []
    for _ in range(3):
        seen += visit.page.locator(".card .text").all_text_contents()
        assert visit.page.locator("main").locator("iframe, script, img, form:not(#filters), meta, math").count() == 0
        press(visit, "ArrowDown")
    assert HOSTILE["script"] in seen
    assert HOSTILE["entity"] in seen
    assert not any(UNSEEN.search(text) for text in seen)
    assert any("U+202Eabc" in text for text in seen)
    assert any("U+001B[31mred" in text for text in seen)
    find(visit, filter_text="<script>")
    assert visit.page.locator(".card mark").first.text_content() == "<script>"
    visit.check()


@pytest.mark.parametrize("scheme", daily(["light", "dark"], "dark"))
def test_it_has_contrast_and_fits_a_phone(browser, plain, scheme):
    visit = opened(browser, plain, 390, color_scheme=scheme)
    visit.check()
    assert visit.page.evaluate(CONTRAST)[0] >= 4.5


def test_a_printed_page_has_the_chart_and_the_whole_group(browser, plain, tmp_path):
    visit = opened(browser, plain, 794)
    visit.page.emulate_media(media="print")
    assert visit.page.locator("#strips svg").first.is_visible()
    assert visit.page.locator(".card").last.is_visible()
    assert not visit.page.locator("#filters").is_visible()
    assert visit.page.pdf(path=tmp_path / "m.pdf").startswith(b"%PDF")


def test_tokens_are_marked_by_their_use_and_by_the_log_ratio(browser, tmp_path, monkeypatch):
    table = pd.DataFrame({"step": 1, "prompt": "p", "completion": ["a b", "a c"], "reward": [0.0, 1.0]})
    tokens = [Tokens(["a", " b", "\x1b</b>"], "ksw", [0.0, -0.7, 0.1]), Tokens(["a", " c"], "mm", [0.2, 0.0])]
    training, _ = training_of(table, find_tokens=lambda table: (tokens, []))
    monkeypatch.setattr("workbench.lab.reports.microscope.read_trainings", lambda folder: ([training], []))
    visit = opened(browser, write_microscope(tmp_path, tmp_path / "m.html", "x", str))
    spans = visit.page.locator(".card .text > span")
    assert spans.all_inner_texts() == ["a", " b", "U+001B</b>", "a", " c"]
    assert [spans.nth(n).get_attribute("data-use") for n in range(5)] == ["k", "s", "w", "m", "m"]
    assert spans.nth(1).get_attribute("title") == "token 2: the stop, log-ratio -0.7"
    assert "left out of the loss" in visit.page.inner_text("#legend")
    visit.page.locator("#marks").select_option("ratio")
    visit.page.wait_for_timeout(100)
    colours = "(e) => getComputedStyle(e).backgroundColor"
    assert len({visit.page.locator(f"#legend .{name}").evaluate(colours) for name in ("ratio-low", "ratio-high")}) == 2
    classes = [spans.nth(n).get_attribute("class") or "" for n in range(5)]
    assert classes == ["", "ratio-low", "", "ratio-high", ""]
    visit.check()


def test_numbers_that_are_missing_for_some_rows_are_left_out(browser, tmp_path, monkeypatch):
    table = pd.DataFrame({"step": [n // 2 + 1 for n in range(40)], "prompt": "p", "completion": list("ab") * 20})
    table["reward"], table["completion_tokens"], table["sampled_tokens"] = (
        [None] * 2 + [4.0] * 38,
        [None, 3.0] * 20,
        5.0,
    )
    found = [training_of(rows, name)[0] for name, rows in (("all", table), ("start", table[:2]))]
    monkeypatch.setattr("workbench.lab.reports.microscope.read_trainings", lambda folder: (found, []))
    visit = opened(browser, write_microscope(tmp_path, tmp_path / "m.html", "x", str))
    first, second = visit.page.locator(".card").all_inner_texts()
    assert "token" not in first and "3 tokens" in second and "+ 2 tokens after the end" in second
    means = "(rows) => rows.map((row) => [row.cells[2].textContent, row.cells[3].textContent])"
    assert visit.page.locator("#trainings tbody tr").evaluate_all(means) == [["4", "4"], ["", ""]]
    visit.check()


def test_stop_in_the_text_is_marked_without_tokens(browser, tmp_path):
    table = pd.DataFrame({"step": 1, "prompt": "p", "completion": ["a</s>", "b</s>"], "finish_reason": "stop",
                          "trl_finish_reason": "length"})  # fmt: skip
    recipe = {
        "trainer": "ObservedGRPOTrainer",
        "stops": {"stop": ["</s>"]},
        "overrides": {"mask_truncated_completions": True},
    }
    run = write_run(tmp_path, completions=table.to_dict("records"))
    write_json(run.path / "recipe.json", recipe)
    visit = opened(browser, write_microscope(run.path, tmp_path / "m.html", "x", str))
    assert visit.page.locator(".card .text.masked [data-use=s]").all_text_contents() == ["</s>"] * 2
    assert visit.page.locator(".card .chip.fault").count() == 0
    assert visit.page.inner_text("#shared").startswith("All 2 completions: masked as truncated")
    assert visit.page.inner_text("#course").startswith("Of all completions: 100% masked as truncated")
    visit.check()


def test_the_report_leads_to_it(browser, tmp_path):
    rows = {"step": [1, 1], "prompt": ["p", "p"], "completion": ["a", "b"]}
    run = write_run(tmp_path, completions=pd.DataFrame(rows).to_dict("records"))
    visit = Visit(browser, build_report(run))
    visit.page.unroute("**/*")
    visit.page.get_by_role("link", name="All completions").click()
    visit.page.locator(".card").first.wait_for()
    assert visit.page.inner_text("h1") == f"Completions of {run.notebook}, run {run.id}"


def test_without_script_the_page_says_what_it_needs(browser, plain):
    visit = Visit(browser, plain, java_script_enabled=False)
    assert "needs JavaScript" in visit.page.inner_text("body")
    assert not visit.page.locator("#filters").is_visible()
