"""Reports in a real Chromium with the network blocked: inert, self-contained, readable, printable, sortable."""

import base64
import functools
import json
import re

import nbformat.v4 as v4
import pytest
from conftest import daily, write_run
from report_browser import CONTRAST, Visit
from report_samples import HOSTILE, METRICS, RESULT, hostile_run, result_row, write_notebook_of

from workbench.lab.reports import build_comparison, build_index, build_report
from workbench.runs.files import write_json

pytestmark = pytest.mark.slow

# For each row of each table: cells follow each other from left to right, on a phone also downwards, within their table.
GEOMETRY = """() => [...document.querySelectorAll("tr")].filter((r) => r.checkVisibility()).every((r) => {
  const boxes = [...r.cells].filter((c) => c.checkVisibility()).map((c) => c.getBoundingClientRect());
  const all = r.closest("table").getBoundingClientRect(), after = (b, a) => b.left >= a.right - 1 || b.top >= a.bottom - 1;
  return boxes.every((b, n) => (!n || after(b, boxes[n - 1])) && b.right <= all.right + 1 && b.left >= all.left - 1);
})"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = hostile_run(tmp_path_factory.mktemp("runs"))
    build_report(run)
    return run


@functools.cache
def seen(browser, path, width=390, scheme="light") -> Visit:
    """A page that is looked at and not touched, loaded once."""
    return Visit(browser, path, width, color_scheme=scheme)


# --- a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", daily([390, 1200], 390))
def test_a_report_of_hostile_text_runs_and_asks_nothing_and_fits(browser, run, width):
    visit = seen(browser, run.path / "report.html", width)
    visit.check()
    shown = visit.page.inner_text("body")
    assert HOSTILE["script"] in shown
    assert HOSTILE["refresh"] in shown


def test_a_link_into_the_checkout_looks_like_text(browser, tmp_path):
    run = write_run(tmp_path, result=RESULT)
    text = v4.new_markdown_cell("see [this page](../docs/page.md) and [that](https://example.org)")
    (run.path / "executed.ipynb").write_text(json.dumps(v4.new_notebook(cells=[text])))
    page = seen(browser, build_report(run), 1200).page
    colour = "e => getComputedStyle(e).color"
    left_out = page.get_by_text("this page", exact=True)
    assert left_out.evaluate(colour) == left_out.locator("..").evaluate(colour)
    assert page.get_by_role("link", name="that").get_attribute("href") == "https://example.org"


@pytest.mark.parametrize("width", daily([390, 1200], 390))
def test_hostile_text_moves_none_of_its_neighbours(browser, run, width):
    visit = seen(browser, run.path / "report.html", width)
    assert visit.page.evaluate(GEOMETRY)
    table = visit.page.locator("#completions + p + p + div table")
    assert table.locator("tbody tr").count() == 10
    assert {tuple(row.split("\t")[-2:]) for row in table.locator("tbody tr").all_inner_texts()} == {("stop", "-1")}
    shown = visit.page.evaluate("document.body.textContent")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\x00\x1b]", shown)
    assert "U+202E" in shown
    covered = "document.elementFromPoint(innerWidth / 2, 5).closest('.foreign')"
    assert visit.page.evaluate(covered) is None  # nothing is laid over the page


def test_the_checks_see_requests_scripts_moved_cells_wide_pages(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<meta charset=utf-8><script>window.ran = 1</script><img src='https://example.org/x.png'>"
        "<p style='width:900px'>wide</p><table dir=rtl><tr><td>a<td>b</table>"
    )
    visit = Visit(browser, path)
    assert "https://example.org/x.png" in visit.asked
    assert visit.page.evaluate("window.ran") == 1
    assert not visit.page.evaluate(GEOMETRY)
    with pytest.raises(AssertionError):
        visit.check()
    path.write_text("<body style='color:#999;background:#fff'>faint")
    assert Visit(browser, path).page.evaluate(CONTRAST.replace("body *", "body"))[0] < 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(browser, run, scheme):
    visit = seen(browser, run.path / "report.html", scheme=scheme)
    worst = visit.page.evaluate(CONTRAST)
    assert worst[0] >= 4.5, worst
    paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_printed_report_has_verdicts_and_figures_and_no_code(browser, run, tmp_path):
    visit = Visit(browser, run.path / "report.html", 794, color_scheme="dark")
    visit.page.emulate_media(media="print", color_scheme="dark")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for name in ("failed", "skipped"):
        assert visit.page.get_by_text(name, exact=True).first.is_visible()
    seen = "[...document.querySelectorAll('SELECTOR')].map((e) => e.checkVisibility())"
    assert visit.page.evaluate(seen.replace("SELECTOR", "img")) == [True] * 3
    assert set(visit.page.evaluate(seen.replace("SELECTOR", "details.code, nav"))) == {False}
    clipped = "[...document.querySelectorAll('pre, .scroll, figure')].filter((e) => e.checkVisibility() && \
               e.scrollHeight > e.clientHeight + 2).length"
    assert visit.page.evaluate(clipped) == 0
    pdf = visit.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Subtype\s*/Image", pdf)) >= 2


FINDING = "With masking stock ends at 0.31 and ours at 0.75; stock without masking reaches 0.70. " * 2


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    claim = result_row("kept in 100% of the rows; " * 40, None, "its interval holds 1", "A1.1")
    result = RESULT | {"results": [result_row(FINDING, True), *RESULT["results"][:3], claim]}
    run = write_run(tmp_path_factory.mktemp("plain") / "runs", metrics=METRICS, result=result)
    write_notebook_of(run, ["a", "b"])
    build_report(run)
    return run


@pytest.mark.parametrize("scheme", daily(["light", "dark"], "light"))
def test_finding_and_verdicts_are_on_the_first_screen(browser, plain, scheme):
    visit = Visit(browser, plain.path / "report.html", 1280, color_scheme=scheme)
    visit.check()
    assert visit.page.locator("p.headline").inner_text() == FINDING.strip()
    verdicts = visit.page.get_by_role("link", name="checks: 2 passed, 1 failed, 1 skipped")
    for element in (visit.page.locator("p.headline"), verdicts):
        box = element.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 800, element
    verdicts.press("Enter")
    assert visit.page.evaluate("document.getElementById('verdicts').getBoundingClientRect().top") < 800


def test_on_a_phone_measured_column_and_whole_figure_are_visible(browser, plain):
    visit = Visit(browser, plain.path / "report.html")
    for element in (visit.page.locator("main img").first, visit.page.locator("td", has_text="kept in 100%")):
        box = element.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_on_a_phone_the_index_shows_curve_headline_and_value(browser, plain, tmp_path):
    visit = Visit(browser, build_index([plain], tmp_path))
    visit.check()
    row = visit.page.locator("#runs tbody tr")
    for element in (row.locator("svg"), row.get_by_text("reward, last 20 steps"), row.get_by_text("-4.012")):
        box = element.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert visit.page.get_by_text(FINDING.strip()).first.is_visible()


NAME = "06_curves_against_baselines"
BROKEN = """() => [...document.querySelectorAll("#runs td")].filter((e) => e.checkVisibility()).flatMap((e) => {
  const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), broken = [], range = document.createRange();
  for (let t; (t = texts.nextNode());) for (const word of t.data.matchAll(/[\\w=.]{2,20}/g)) {
    range.setStart(t, word.index); range.setEnd(t, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map((r) => r.top)).size > 1) broken.push(word[0]); }
  return broken; })"""


@pytest.mark.parametrize("width", daily([390, 800, 1280], 390))
def test_no_short_word_of_the_index_is_broken(browser, tmp_path, width):
    checks = [{"says": "a", "holds": True}, {"says": "b", "holds": None, "why": "the interval is wide"}]
    result = RESULT | {"results": checks}
    run = write_run(
        tmp_path / "runs", notebook="00_start_here", result=result, params={"seed": 1, "learning_rate": 0.0001}
    )
    visit = Visit(browser, build_index([run], tmp_path / "reports"), width)
    assert visit.page.evaluate(BROKEN) == []


@pytest.mark.parametrize("page", daily(["index", "comparison"], "index"))
@pytest.mark.parametrize("columns", daily([True, False], True), ids=["real runs", "few words"])
def test_the_table_of_runs_is_whole_at_1280_pixels(browser, tmp_path, columns, page):
    """Its last two columns were cut off."""
    params = {"seed": 1, "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "dataset": "number-words", "backend": "vllm"}
    params |= {"steps": 400, "learning_rate": 1e-05, "comparisons": False, "seeds": 3, "target": 20}
    says = (
        "The reward rises by +12.3 (95% interval +10.1 to +14.5) from the first 5 to the last 5 of 400 steps; seeds: 3"
    )
    results = [
        {"says": says, "holds": True},
        {"says": says, "holds": None, "why": "wide"},
        {"says": says, "holds": False},
    ]
    result = {"headline": {"name": "reward of the last 20 steps", "value": -12.345678}, "results": results}
    metrics = [{"step": n, "elapsed_s": n, "reward": -n % 7} for n in range(1, 40)]
    about = {"params": params, "result": result, "metrics": metrics} if columns else {}
    runs = [write_run(tmp_path / "runs", f"20261126-21275{n}", notebook=NAME, **about) for n in range(2)]
    for run in runs:
        finding = {
            "title": "zero-gradient (equal-rewards)",
            "severity": "problem",
            "because": "",
            "advice": "",
            "expected": False,
        }
        finding |= {"says": "100% of the steps change nothing, as in each group all rewards are equal."}
        training = {"name": "", "checked": 17, "rules": 28, "findings": [finding]}
        write_json(run.path / "audit.json", {"trainings": [training], "error": ""})
    if page == "index":
        path = build_index(runs, tmp_path / "reports")
    else:
        path = build_comparison(runs, tmp_path / "c.html", title="Sweep", outcome="2 runs: 2 done", sections={})
    visit = Visit(browser, path, 1280)
    visit.check()
    inside, outside = visit.page.evaluate(
        "(t => [t.scrollWidth, t.parentElement.clientWidth])(document.querySelector('#runs'))"
    )
    assert inside <= outside
    assert visit.page.evaluate(BROKEN) == []


def test_no_short_word_of_a_printed_table_is_broken(browser, plain):
    visit = Visit(browser, plain.path / "report.html", 700)
    visit.page.emulate_media(media="print")
    lines = """() => [...document.querySelectorAll("td, th, td span")].filter((e) => e.checkVisibility() && e.firstChild &&
      e.firstChild.nodeType === 3 && /^\\S{1,12}$/.test(e.textContent.trim())).map((e) => {
      const range = document.createRange(); range.selectNodeContents(e);
      return [e.textContent, new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size]; })"""
    found = visit.page.evaluate(lines)
    assert ["inconclusive", 1] in found
    assert [word for word, count in found if count > 1] == []


@pytest.mark.parametrize("state", daily(["queued", "running", "failed", "interrupted"], "failed"))
def test_reports_of_unfinished_runs_fit_a_phone_too(browser, tmp_path, state):
    run = write_run(tmp_path, state=state, metrics=METRICS)
    write_notebook_of(run, list(HOSTILE.values()), name="executing.ipynb")
    (run.path / "log.txt").write_text("x" * 10_000)
    visit = Visit(browser, build_report(run))
    visit.check()
    assert visit.page.locator("h2").first.inner_text() in ("How far it is", "How it ended")


@pytest.mark.rare
def test_the_report_of_a_real_run_shows_its_curve(browser, example_run):
    visit = Visit(browser, example_run[0].path / "report.html")
    visit.check()
    assert visit.page.evaluate("document.images.length") >= 1
    assert "reward, last 20 steps" in visit.page.inner_text("body")
    assert visit.page.evaluate(GEOMETRY)


# --- a stranger's notebook -------------------------------------------------------------------------------------------

FORGED = "<h1>Verdicts</h1><p class='good' role='status'>all 12 checks hold</p>"
COVERS = {
    "outline": "outline: 3000px solid white",
    "border image": "border: 1px solid; border-image: linear-gradient(white, white) 1; border-image-outset: 3000px",
    "shadow": "box-shadow: 0 0 0 3000px white",
    "position": "position: fixed; inset: 0; background: white; z-index: 99",
    "margin": "margin-top: -3000px; background: white; height: 3000px",
    "transform": "transform: translateY(-2000px) scale(50); background: white",
    "underline": "text-decoration: underline white 3000px; text-underline-offset: -1500px",
    "letters": "font-size: 3000px; color: white; line-height: 0; letter-spacing: -999px",
    "opacity": "opacity: 0.9; mix-blend-mode: difference; filter: drop-shadow(0 -900px 0 white)",
    "height": "height: 90000px; width: 90000px; padding: 9000px; background: white",
}


def report_with(root, outputs: list[str]):
    cells = [v4.new_code_cell("x", outputs=[v4.new_output("display_data", {"text/html": html}) for html in outputs])]
    run = write_run(root, result=RESULT)
    (run.path / "executed.ipynb").write_text(json.dumps(v4.new_notebook(cells=cells)))
    return build_report(run)


@pytest.mark.parametrize("cover", daily(COVERS, "position"))
def test_no_style_of_an_output_changes_how_our_verdicts_look(browser, tmp_path, cover):
    plain = report_with(tmp_path / "plain", ["<p>nothing</p>"])
    styled = "".join(f"<{tag} style='{COVERS[cover]}'>{FORGED}</{tag}>" for tag in ("div", "span", "td", "b", "img"))
    hostile = report_with(tmp_path / "hostile", [styled, f"<table>{styled}</table>"])
    seen = []
    for path in (plain, hostile):
        page = Visit(browser, path, 1000).page
        table = page.locator("#verdicts ~ div table").first
        seen.append(table.screenshot())
        page.emulate_media(media="print")
        seen.append(table.screenshot())
        assert page.get_by_text("failed", exact=True).first.is_visible()
    assert seen[:2] == seen[2:]


def test_a_notebooks_own_verdict_is_framed_unlike_one_of_ours(browser, tmp_path):
    page = Visit(browser, report_with(tmp_path, [FORGED]), 1000).page
    forged = page.get_by_text("all 12 checks hold")
    assert forged.count() == 1
    assert forged.evaluate("(e) => getComputedStyle(e.closest('.foreign')).borderLeftStyle") == "double"
    assert forged.evaluate("(e) => [e.className, e.role, getComputedStyle(e, '::before').content]") == [
        "",
        None,
        "none",
    ]
    assert page.locator("h1, h2").filter(has_text="Verdicts").count() == 1
    ours = page.locator("td .good").first
    assert ours.evaluate("(e) => getComputedStyle(e).color") != forged.evaluate("(e) => getComputedStyle(e).color")


@pytest.mark.rare
def test_accents_stacked_on_a_letter_cover_no_neighbour(browser, tmp_path):
    seen = []
    for name in ("z", "z" + "\u0301" * 900):
        results = [result_row(text, True) for text in ("above", name, "below")]
        run = write_run(tmp_path / str(len(name)), result=RESULT | {"results": results})
        page = Visit(browser, build_report(run), 1000).page
        rows = [page.locator("tr", has_text=text).first.bounding_box() for text in ("above", "below")]
        seen.append([page.screenshot(clip=box | {"height": 20, "y": box["y"] + 2}) for box in rows])
    assert seen[0] == seen[1]


def test_a_drawing_is_an_image_without_script_that_loads_nothing(browser, tmp_path):
    svg = """<svg xmlns='http://www.w3.org/2000/svg' width='40' height='40' onload='parent.ran = window.ran = 1'>
      <script>parent.ran = window.ran = 1</script><script href='https://example.org/x.js'/>
      <style>@import url(https://example.org/x.css); rect { fill: url(https://example.org/x.svg#a) }</style>
      <image href='https://example.org/x.png' width='9' height='9'/><use href='https://example.org/x.svg#a'/>
      <foreignObject width='9' height='9'><iframe xmlns='http://www.w3.org/1999/xhtml' src='https://example.org'/></foreignObject>
      <a href='https://example.org'><circle r='90' fill='#0072b2'/></a><rect width='9' height='9'/></svg>"""
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img alt="x" src="data:image/svg+xml;base64,{data}">'
    visit = Visit(browser, report_with(tmp_path, [image, f"<p><a href='https://example.org'>{image}</a></p>"]), 1000)
    images = visit.page.locator("img")
    assert images.count() == 2
    images.first.click()
    visit.page.wait_for_timeout(300)
    visit.check()
    drawn = "(i) => { const c = document.createElement('canvas'), x = c.getContext('2d'); x.drawImage(i, 0, 0); \
             return [...x.getImageData(20, 20, 1, 1).data]; }"
    assert images.first.evaluate(drawn) == [0, 0x72, 0xB2, 255]  # it is shown


# --- the index -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(run, tmp_path_factory):
    root = tmp_path_factory.mktemp("many") / "runs"
    runs = [run]
    for n, (state, value, took) in enumerate(
        [("done", 9.5, 100), ("failed", None, 5), ("done", -10.0, 30), ("done", 2, 7000)]
    ):
        made = write_run(root, f"2026-1{n}", notebook=f"book {n % 2}", state=state, params={"seed": n, "text": "Größe"})
        if value is not None:
            write_json(made.path / "result.json", RESULT | {"headline": {"name": "reward", "value": value}})
        status = json.loads((made.path / "status.json").read_text())
        times = {"running": 1e9 + n, state: 1e9 + n + took}
        write_json(made.path / "status.json", status | {"times": times, "ran_s": took})
        runs.append(made)
    return build_index(runs, root.parent / "reports")


def column(visit, name: str) -> list[str]:
    heads = visit.texts("#runs thead th")
    return visit.texts(f"#runs tbody tr:visible td:nth-child({heads.index(name) + 1})")


def test_the_index_leads_to_the_reports(browser, index):
    visit = Visit(browser, index)
    visit.check()
    visit.page.unroute("**/*")
    for notebook, title in (("05_grpo_docs_example", "A notebook"), ("book 1", "book 1")):
        visit.page.goto(index.as_uri())
        visit.page.locator("tbody tr", has_text=notebook).first.locator("a").click()
        visit.page.wait_for_load_state()
        assert visit.page.inner_text("h1") == title


def test_the_index_sorts_by_click_and_says_how(browser, index):
    visit = Visit(browser, index, 1200)
    head = visit.page.locator("th", has_text="value")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(visit, "value")[:3] == ["-10", "2", "9.5"]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert [v for v in column(visit, "value") if v][-3:] == ["9.5", "2", "-10"]
    assert column(visit, "value")[-1] == ""  # a run without a value is last either way
    other = visit.page.locator("th", has_text="took")
    other.get_by_role("button").click()
    assert column(visit, "took")[:4] == ["5 s", "30 s", "100 s", "117 min"]
    assert head.get_attribute("aria-sort") is None
    visit.check()


def test_the_index_is_used_with_the_keyboard_alone(browser, index):
    visit = Visit(browser, index, 1200)
    for _ in range(visit.page.locator(".deck a").count()):  # the cards come first
        visit.page.keyboard.press("Tab")
    for wanted in ("filter-text", "filter-state"):
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.id") == wanted
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "notebook"
    visit.page.keyboard.press("Enter")
    assert column(visit, "notebook")[0] == "05_grpo_docs_example"
    visit.page.keyboard.press("Space")
    assert column(visit, "notebook")[0] == "book 1"


def test_the_index_filters_by_words_and_state_and_says_the_count(browser, index):
    visit = Visit(browser, index, 1200)
    count = visit.page.locator("#filter-count")
    assert count.get_attribute("aria-live") == "polite"
    assert count.inner_text() == "5 of 5 runs shown"
    visit.page.get_by_label("State").select_option("done")
    assert count.inner_text() == "4 of 5 runs shown"
    visit.page.get_by_label("Filter by text").fill("größe  SEED=2")
    assert count.inner_text() == "1 of 5 runs shown"
    assert column(visit, "notebook") == ["book 0"]
    visit.page.get_by_label("Filter by text").fill("(no such)")
    assert (count.inner_text(), column(visit, "run")) == ("0 of 5 runs shown", [])


def test_without_script_the_index_has_every_run_no_dead_control(browser, index):
    visit = Visit(browser, index, java_script_enabled=False)
    assert visit.page.locator("#runs tbody tr").count() == 5
    assert all(row.is_visible() for row in visit.page.locator("#runs tbody tr").all())
    assert not visit.page.locator("input, select, button").first.is_visible()


def test_a_phone_shows_paths_and_commits_of_a_comparison_whole(browser, tmp_path):
    params = {"dataset": "/home/somebody/projects/a-long-name/train-of-the-second-try.jsonl"}
    runs = [write_run(tmp_path / "runs", f"2026-{n}", params=params) for n in range(2)]
    for run, commit in zip(runs, "ab", strict=True):
        write_json(run.path / "env.json", {"git_commit": commit * 40 + " with uncommitted changes"})
    path = build_comparison(runs, tmp_path / "c.html", title="Sweep", outcome="2 runs: 2 done", sections={})
    page = seen(browser, path).page
    assert page.get_by_text(params["dataset"], exact=True).is_visible() and page.get_by_text("a" * 40).is_visible()
    tables = page.locator(".scroll:has(th[scope=row])")
    widths = tables.evaluate_all("(all) => all.map((e) => [e.scrollWidth, e.clientWidth])")
    assert len(widths) >= 2 and all(inside <= outside for inside, outside in widths)


@pytest.mark.parametrize("scheme", daily(["light", "dark"], "light"))
def test_a_comparison_fits_a_phone_with_contrast_and_own_script(browser, run, tmp_path, scheme):
    hostile = HOSTILE["script"] + HOSTILE["closing tags"] + HOSTILE["right to left"]
    path = build_comparison([run], tmp_path / "c.html", title=hostile, outcome=hostile, sections={hostile: hostile})
    visit = Visit(browser, path, color_scheme=scheme)
    visit.check()
    assert visit.page.locator("#filter-count").inner_text() == "1 of 1 runs shown"
    texts = "#completions ~ .scroll:has(td.text)"
    assert visit.page.locator(texts).first.evaluate("(e) => e.scrollWidth <= e.clientWidth")  # read without scrolling
    assert visit.page.evaluate(CONTRAST)[0] >= 4.5
    assert visit.page.evaluate(GEOMETRY)
