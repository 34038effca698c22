import base64
import json
import re
import shutil
from html.parser import HTMLParser
from importlib.util import find_spec

import nbformat.v4 as v4
import numpy as np
import pandas as pd
import pytest
from conftest import need, write_run

from workbench.plots import show_training
from workbench.reports import build_index, build_report, default_folder

HOSTILE = {
    "script": "<script>window.ran = 1</script>",
    "broken attribute": '"><img src=x onerror="window.ran = 1">',
    "closing tags": "</td></table></main></body><iframe src='https://example.org'></iframe>",
    "style": "<style>@import url(https://example.org/x.css)</style>",
    "refresh": "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "template": "{{ 7 * 7 }} {% include 'x' %}",
    "entity": "&lt;b&gt;",
    "ansi": "\x1b[31mred\x1b[0m \x1b]8;;https://example.org\x07link",
    "right to left": "\u202eabc\u202c \u2067x\u2069",
    "nul": "a\x00b",
    "one long line": "x" * 1_000_000,
    "no text": "",
}
METRICS = [
    {"step": n, "reward": -30 + n, "completions/mean_length": 9.0, "completions/clipped_ratio": 0.0, "loss": 0.1}
    for n in range(1, 21)
]
RESULT = {
    "headline": {"name": "reward, last 20 steps", "value": -4.0123},
    "checks": {"<b>bold</b> holds": True, "fails": False, "not tried": "not run: needs 8 GPUs"},
    "numbers": {"lowest": -30.0, "steps": 20},
    "claims": {"A4.3": {"documented": "at most 0", "measured": "<i>-4</i>", "verdict": "agrees"}},
}
TAGS = re.compile(r"<(script|iframe|object|embed|link|base|form)\b", re.I)


def executed_notebook(metrics: pd.DataFrame, texts: list[str]):
    """A notebook with every kind of output a model's text can come through, as a kernel would have saved it."""
    table = pd.DataFrame({"completion": texts})
    picture = show_training(metrics, title="hand-made").png()
    outputs = [
        v4.new_output("stream", name="stdout", text="\n".join(texts[:-2]) + "\ud800"),
        v4.new_output("execute_result", {"text/plain": repr(table), "text/html": table._repr_html_()}),
        v4.new_output("display_data", {"text/html": show_training(metrics, title="hand-made")._repr_html_()}),
        v4.new_output("display_data", {"image/png": base64.b64encode(picture).decode()}),
        v4.new_output("error", ename="ValueError", evalue=texts[0], traceback=["\x1b[31m" + t for t in texts[:3]]),
    ]
    cells = [v4.new_markdown_cell("# A notebook\n## Question"), v4.new_code_cell("x = '<b>'", outputs=outputs)]
    return v4.new_notebook(cells=cells)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    texts = list(HOSTILE.values())
    table = [{"step": 1, "prompt": t, "completion": t, "finish_reason": "stop", "reward": -1.0} for t in texts[-10:]]
    first = [{"step": 0, "prompt": t, "completion": t, "finish_reason": "length", "reward": -2.5} for t in texts]
    params = {"seed": 1, "model": "starter", "odd": HOSTILE["script"], "surrogate": "a\ud800b"}
    root = tmp_path_factory.mktemp("runs")
    run = write_run(root, metrics=METRICS, result=RESULT, params=params, completions=first + table)
    (run.path / "executed.ipynb").write_text(json.dumps(executed_notebook(run.metrics, texts)))
    return run


@pytest.fixture(scope="module")
def page(run) -> str:
    return build_report(run).read_text(encoding="utf-8")


class Elements(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append(dict(attrs))


def test_a_report_shows_state_headline_checks_numbers_claims_parameters_and_environment(page):
    for text in ("done", "-4.012", "holds", "fails", "not run: needs 8 GPUs", "lowest", "at most 0", "trl 1.12.0"):
        assert text in page, text


def test_a_toy_run_is_called_one(page, tmp_path):
    assert "Toy scale" in page
    real = write_run(tmp_path, params={"model": "Qwen/Qwen2-0.5B-Instruct"})
    assert "Toy scale" not in build_report(real).read_text()


def test_hostile_text_makes_no_element(page):
    assert not TAGS.search(page)
    elements = Elements(page)
    assert not [a for a in elements.attributes if any(name.startswith("on") for name in a)]
    assert [a.get("http-equiv") for a in elements.attributes if "http-equiv" in a] == ["Content-Security-Policy"]


@pytest.mark.parametrize("text", ["<script>window.ran = 1</script>", "{{ 7 * 7 }}", "&amp;lt;b&amp;gt;"])
def test_hostile_text_is_shown_as_written(page, text):
    assert text.replace("<", "&lt;").replace(">", "&gt;") in page


def test_a_long_line_is_cut_and_its_length_told(page):
    assert "(1000000 characters)" in page
    assert len(page) < 6_000_000


def test_a_lone_surrogate_is_replaced(page):
    assert "a?b" in page


def test_a_report_refers_to_nothing_outside_itself(page):
    for attributes in Elements(page).attributes:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "data:").startswith(("data:", "#")), attributes
    assert "default-src 'none'" in page


def test_every_figure_has_alt_text_and_its_data_as_a_table(page):
    elements = Elements(page)
    images = [a for tag, a in zip(elements.tags, elements.attributes, strict=True) if tag == "img"]
    assert len(images) == 2
    assert all(image["alt"].strip() for image in images)
    assert "reward rises from" in images[0]["alt"]
    assert "Data of this figure" in page


@pytest.mark.parametrize("state", ["queued", "running", "failed", "interrupted"])
def test_a_run_in_any_state_has_a_report(tmp_path, state):
    page = build_report(write_run(tmp_path, state=state)).read_text()
    assert f'<span class="bad">{state}</span>' in page
    assert "No checks were recorded" in page


def test_the_index_lists_runs_newest_first_with_status_parameters_and_headline(run, tmp_path):
    later = write_run(tmp_path / "runs", "2026-2", notebook="an odd #name 100%", state="failed", result={})
    index = build_index([run, later], tmp_path / "reports")
    page = index.read_text()
    assert page.index(later.id) < page.index(run.id)
    for text in ("2 runs", "failed", "done", "1 of 2 hold", "seed=1", "-4.012"):
        assert text in page, text
    assert not TAGS.search(page)
    links = [a["href"] for a in Elements(page).attributes if "href" in a]
    assert links == ["an%20odd%20%23name%20100%25/2026-2.html", "05_grpo_docs_example/2026-1.html"]
    assert (tmp_path / "reports/an odd #name 100%/2026-2.html").is_file()


def test_reports_go_beside_the_runs(tmp_path):
    assert default_folder(tmp_path / "runs") == tmp_path / "reports"


# --- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    need(find_spec("playwright"), "playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    need(path, "Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page opened from disk at a phone's width, with everything it asked for and complained about."""

    def __init__(self, browser, path):
        self.requests, self.complaints = [], []
        self.page = browser.new_page(viewport={"width": 390, "height": 800})
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: (self.complaints.append(d.message), d.dismiss()))
        self.page.goto(path.as_uri())
        self.page.wait_for_timeout(500)  # what a script or refresh would do, it would do by now

    def check(self, path):
        asked = [url for url in self.requests if not url.startswith("data:")]
        assert asked == [path.as_uri()]
        assert self.complaints == []
        assert self.page.evaluate("window.ran") is None
        assert self.page.evaluate("[...document.images].every(i => i.alt.trim() && i.naturalWidth > 0)")
        width = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]


@pytest.mark.slow
def test_a_report_of_hostile_text_runs_nothing_asks_nothing_and_fits_a_phone(browser, run, page):
    path = run.path / "report.html"
    visit = Visit(browser, path)
    visit.check(path)
    assert HOSTILE["script"] in visit.page.inner_text("body")


@pytest.mark.slow
def test_the_report_of_a_real_run_shows_its_curve(browser, example_run):
    path = example_run[0].path / "report.html"
    visit = Visit(browser, path)
    visit.check(path)
    assert visit.page.evaluate("document.images.length") >= 1
    assert "reward, last 20 steps" in visit.page.inner_text("body")


@pytest.mark.slow
def test_the_index_leads_to_the_reports(browser, run, tmp_path):
    odd = write_run(tmp_path / "runs", notebook="an odd #name 100%")
    index = build_index([run, odd], tmp_path / "reports")
    visit = Visit(browser, index)
    visit.check(index)
    for notebook in ("05_grpo_docs_example", odd.notebook):
        visit.page.goto(index.as_uri())
        visit.page.locator("tr", has_text=notebook).locator("a").click()
        visit.page.wait_for_load_state()
        assert visit.page.inner_text("h1") == notebook


@pytest.mark.slow
def test_the_check_itself_sees_a_request_and_a_script(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<script>window.ran = 1</script><img src='other.png'><p style='width: 900px'>wide</p>")
    visit = Visit(browser, path)
    assert len(visit.requests) == 2
    assert visit.page.evaluate("window.ran") == 1
    with pytest.raises(AssertionError):
        visit.check(path)


def test_numbers_in_a_report_are_short(tmp_path):
    run = write_run(tmp_path, result={"headline": {"name": "n", "value": np.pi}, "checks": {}, "numbers": {"n": 3}})
    assert "3.142" in build_report(run).read_text()
