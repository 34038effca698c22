import json
import re
from html.parser import HTMLParser

import nbformat.v4 as v4
import numpy as np
import pytest
from conftest import write_run
from report_samples import HOSTILE, METRICS, RESULT, hostile_run, picture, without_images, write_notebook_of

from workbench.reports import build_comparison, build_index, build_report, default_folder
from workbench.reports.clean import clean_html, shortened, visible
from workbench.reports.notebook import PAGE_LIMIT
from workbench.runs.files import write_json
from workbench.runs.status import set_status
from workbench.runs.tokens import hide_tokens

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0041]"
)
TAGS = re.compile(r"<(script|iframe|object|embed|link|base|form|svg|math|input)\b", re.I)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(run) -> str:
    return build_report(run).read_text(encoding="utf-8")


class Elements(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data):
        self.text.append(data)


def order(page: str, *texts: str) -> bool:
    places = [page.index(text) for text in texts]
    return places == sorted(places)


# --- what a report shows -------------------------------------------------------------------------------------------


def test_a_report_shows_state_headline_checks_numbers_claims_parameters_and_environment(tmp_path):
    run = write_run(tmp_path, metrics=METRICS, result=RESULT)
    page = build_report(run).read_text()
    for text in ("done", "-4.012", "holds", "fails", "not run: needs 8 GPUs", "lowest", "at most 0", "trl 1.12.0"):
        assert text in page, text
    assert "Checks: 1 hold, 1 fail, 1 not run." in page


def test_verdicts_come_first_then_figures_results_completions_method_environment_limits(page):
    names = ("verdicts", "figures", "results", "completions", "method", "environment", "limits")
    assert order(page, *(f'<h2 id="{name}"' for name in names))
    assert order(page, '<section id="figure-1">', '<h2 id="results"')


def test_a_figure_stands_at_the_head_and_is_linked_where_it_belongs(page):
    assert page.count("<img ") == 3
    for n in (1, 2, 3):
        assert f'<a href="#figure-{n}">' in page[page.index('<h2 id="results"') :]


def test_a_toy_run_is_called_one(page, tmp_path):
    assert "Toy scale" in page
    real = write_run(tmp_path, params={"model": "Qwen/Qwen2-0.5B-Instruct"})
    assert "Toy scale" not in build_report(real).read_text()


def test_the_method_says_how_to_repeat_the_run_and_what_each_parameter_means(tmp_path):
    run = write_run(tmp_path, params={"seed": 7, "stop": "a b"})
    write_notebook_of(run, ["x", "y"])
    page = build_report(run).read_text()
    assert "workbench run 05_grpo_docs_example -p seed=7 -p &#x27;stop=a b&#x27;" in page
    assert "of everything; 0..9" in page
    assert "<strong>7</strong></td><td>0</td>" in page


def limits(page: str) -> str:
    return page[page.index('<h2 id="limits"') :]


def test_limits_name_what_fails_what_was_not_run_and_what_the_environment_lacks(tmp_path):
    run = write_run(tmp_path, result=RESULT | {"claims": {"A1": {"verdict": "not run: needs 8 GPUs"}}})
    told = limits(build_report(run).read_text())
    for text in ("Does not hold: fails.", "Not run (needs 8 GPUs): check “not tried”, claim A1.", "one run with one seed",
                 "No git commit was recorded"):  # fmt: skip
        assert text in told, text
    write_json(run.path / "env.json", {"git_commit": "abc with uncommitted changes"})
    assert "the commit alone does not repeat the run" in limits(build_report(run).read_text())


@pytest.mark.parametrize("state", ["queued", "running", "failed", "interrupted"])
def test_a_run_in_any_state_has_a_report_that_starts_with_the_state(tmp_path, state):
    run = write_run(tmp_path, state=state)
    page = build_report(run).read_text()
    assert re.search(rf'State: <span class="(bad|odd)">{state}</span>', page)
    assert "No checks were recorded" in page
    assert "left no log, no metrics and no executed notebook" in page
    assert order(page, "State:", 'id="ended"', 'id="verdicts"')


def test_a_failed_run_shows_error_failing_cell_traceback_and_the_end_of_its_log_before_anything_else(tmp_path):
    run = write_run(tmp_path, metrics=METRICS)
    (run.path / "log.txt").write_text("first line\n" + "noise\n" * 5000 + "last words\n")
    write_json(run.path / "progress.json", {"step": 20, "max_steps": 80})
    write_notebook_of(run, ["harmless", "text"], name="executing.ipynb")
    set_status(run.path, "failed", "cell 4: ValueError: too hot")
    page = build_report(run).read_text()
    assert order(page, "cell 4: ValueError: too hot", "20 of 80", "The cell that failed", "last words", 'id="verdicts"')
    assert "last logged reward" in page
    assert "first line" not in page
    assert "1 of 3 code cells were executed." in limits(page)


def test_a_run_without_any_notebook_or_result_says_so(tmp_path):
    page = build_report(write_run(tmp_path)).read_text()
    assert "The runner executed no notebook in this folder" in page


def test_a_damaged_notebook_does_not_stop_the_report(tmp_path):
    run = write_run(tmp_path)
    (run.path / "executed.ipynb").write_text('{"cells": [{"cell_ty')
    assert "The runner executed no notebook" in build_report(run).read_text()


def test_numbers_in_a_report_are_short(tmp_path):
    run = write_run(tmp_path, result={"headline": {"name": "n", "value": np.pi}, "checks": {}, "numbers": {"n": 3}})
    assert "3.142" in build_report(run).read_text()


def test_an_overwritten_line_of_a_terminal_is_shown_as_it_ended(tmp_path):
    run = write_run(tmp_path)
    text = "\x1b[1m10%\x1b[0m\r50%\r100%\ndone\r\n"
    cell = v4.new_code_cell("x", outputs=[v4.new_output("stream", name="stderr", text=text)])
    (run.path / "executed.ipynb").write_text(json.dumps(v4.new_notebook(cells=[cell])))
    assert '<pre class="stderr" dir="ltr">100%\ndone</pre>' in build_report(run).read_text()


# --- whatever a model writes ---------------------------------------------------------------------------------------


def test_hostile_text_makes_no_element(page):
    assert not TAGS.search(page)
    elements = Elements(page)
    assert not [a for a in elements.attributes if any(name.startswith("on") for name in a)]
    assert [a.get("http-equiv") for a in elements.attributes if "http-equiv" in a] == ["Content-Security-Policy"]
    assert not [a for a in elements.attributes if "fixed" in (a.get("style") or "")]


@pytest.mark.parametrize("text", ["<script>window.ran = 1</script>", "{{ 7 * 7 }}", "&amp;lt;b&amp;gt;"])
def test_hostile_text_is_shown_as_written(page, text):
    assert text.replace("<", "&lt;").replace(">", "&gt;") in page


def test_no_character_that_hides_or_reorders_text_is_left_and_each_has_its_label(page):
    assert not UNSEEN.search(page)
    for label in ("U+202E", "U+2067", "U+200F", "U+001B", "U+0000", "U+D800", "U+2028", "U+E0041", "U+000D"):
        assert f">{label}</span>" in page, label
    assert 'title="right-to-left override"' in page


def test_text_in_other_scripts_stays_as_it_is():
    text = "שלום 你好 नमस्ते ‌ می‌خواهم 👩‍🔬 é"
    assert visible(text) == text
    assert visible("a\x00\x00\x00b\r\n") == 'a<span class="unseen" title="control character">U+0000 &times;3</span>b\n'
    assert "+996 accents" in visible("z" + "\u0301" * 1000)


def test_a_long_line_is_cut_and_its_length_told(page):
    assert "998,000 of 1,000,000 characters left out" in page
    assert shortened("abcdefgh", 4) == "abc\n[... 4 of 8 characters left out ...]\nh"
    assert shortened("abcd", 4) == "abcd"


def test_a_secret_on_the_cut_is_not_shown_in_part():
    for place in range(700, 900, 7):
        text = "x " * (place // 2) + "hf_" + "S3cret" * 6 + " y" * 50_000
        assert "S3cret" not in shortened(text, 1000, change=hide_tokens)
        assert "S3cret" not in shortened(
            text[::-1].replace("terc3S", "S3cret"), 1000, change=lambda t: t.replace("S3cret" * 6, "")
        )


def test_a_report_refers_to_nothing_outside_itself(page):
    for attributes in Elements(page).attributes:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#")), attributes
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    "source, cleaned",
    [('<b class="x" onclick="y">t</b>', '<b class="x">t</b>'), ("a</td></main>b", "ab"), ("<p><b>t", "<p><b>t</b></p>"),
     ("<script>x</script>t<style>y</style>", "t"), ('<a href="javascript:x">t</a>', "<a>t</a>"),
     ('<a href="#x">t</a>', '<a href="#x" rel="noreferrer">t</a>'), ("1 < 2 &amp; &lt;b&gt;", "1 &lt; 2 &amp; &lt;b&gt;"),
     ('<i style="color: red; position: fixed; background: url(x)">t</i>', '<i style="color: red">t</i>'),
     ('<img src="https://example.org/x.png" alt="a">', '<span class="note">[image that is not embedded: a]</span>'),
     ("<svg><path/></svg>t", "t"), ("<b title='\"><script>'>t</b>", '<b title="&quot;&gt;&lt;script&gt;">t</b>'),
     ("<table><tr><td>1</table>t", '<div class="scroll"><table><tr><td>1</td></tr></table></div>t')]
)  # fmt: skip
def test_html_of_an_output_is_rebuilt_from_harmless_parts(source, cleaned):
    assert clean_html(source) == cleaned


def test_every_figure_has_alt_text_and_its_data_as_a_table(page):
    elements = Elements(page)
    images = [a for tag, a in zip(elements.tags, elements.attributes, strict=True) if tag == "img"]
    assert len(images) == 3
    assert all(image["alt"].strip() for image in images)
    assert "reward rises from" in images[0]["alt"]
    assert "Data of this figure" in page


# --- size ----------------------------------------------------------------------------------------------------------


def cells_of(outputs: list) -> str:
    return json.dumps(v4.new_notebook(cells=[v4.new_code_cell("x", outputs=outputs)]))


def test_twenty_figures_and_long_outputs_stay_below_5_mb_and_all_figures_are_there(tmp_path):
    run = write_run(tmp_path, metrics=METRICS)
    import base64

    data = base64.b64encode(picture() + bytes(50_000)).decode()
    figures = [v4.new_output("display_data", {"image/png": data}) for _ in range(20)]
    texts = [v4.new_output("stream", name=f"s{n}", text="<&>" * 400_000) for n in range(20)]
    tables = [v4.new_output("display_data", {"text/html": f"<table>{'<tr><td>1<td>2</tr>' * 30_000}</table>"})] * 5
    (run.path / "executed.ipynb").write_text(cells_of(figures + texts + tables))
    page = build_report(run).read_text()
    assert len(page.encode()) < PAGE_LIMIT
    assert page.count("<img ") == 20
    assert "1,180,000 of 1,200,000 characters left out; all of it is in executed.ipynb" in page
    assert "29,800 of 30,000 rows left out." in page


def test_figures_beyond_the_limit_are_left_out_and_counted(tmp_path):
    run = write_run(tmp_path)
    data = "A" * 1_500_000
    (run.path / "executed.ipynb").write_text(cells_of([v4.new_output("display_data", {"image/png": data})] * 5))
    page = build_report(run).read_text()
    assert page.count("<img ") == 2
    assert len(page) < PAGE_LIMIT
    assert "3 outputs had no room in this page; they are in executed.ipynb." in limits(page)


# --- many runs -----------------------------------------------------------------------------------------------------


def test_the_index_lists_runs_newest_first_with_status_parameters_and_headline(run, tmp_path):
    later = write_run(tmp_path / "runs", "2026-2", notebook="an odd #name 100%", state="failed", result={})
    index = build_index([run, later], tmp_path / "reports")
    page = index.read_text()
    assert order(page, "2026-2", "2026-1")
    for text in ("2 runs", "failed", "done", "23 hold, 2 fail, 1 not run", "seed=1", "U+D800"):
        assert text in page, text
    links = [a["href"] for a in Elements(page).attributes if "href" in a]
    assert links == ["an%20odd%20%23name%20100%25/2026-2.html", "05_grpo_docs_example/2026-1.html"]
    assert (tmp_path / "reports/an odd #name 100%/2026-2.html").is_file()


def test_the_index_has_one_script_and_allows_it_by_its_hash(run, tmp_path):
    import base64
    import hashlib

    page = build_index([run], tmp_path).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "script-src" not in build_report(run).read_text()


def test_the_index_takes_a_report_anew_when_the_run_has_moved_on(tmp_path):
    run = write_run(tmp_path / "runs", state="running")
    build_index([run], tmp_path / "reports")
    copy = tmp_path / "reports" / run.notebook / f"{run.id}.html"
    assert ">running<" in copy.read_text()
    set_status(run.path, "failed", "out of memory")
    build_index([run], tmp_path / "reports")
    assert "out of memory" in copy.read_text()


def test_the_index_leads_to_the_comparisons_beside_it(run, tmp_path):
    build_comparison([run], tmp_path / "grid-seed=0..4.html", title="Sweep", outcome="1 run", sections={})
    assert '<a href="grid-seed%3D0..4.html">grid-seed=0..4</a>' in build_index([run], tmp_path).read_text()


def test_a_comparison_counts_verdicts_over_its_runs_and_separates_what_differs(tmp_path):
    runs = [
        write_run(tmp_path / "runs", f"2026-{n}", params={"seed": n, "model": "m"}, result=RESULT, metrics=METRICS)
        for n in (1, 2, 3)
    ]
    write_json(runs[2].path / "result.json", RESULT | {"checks": RESULT["checks"] | {"fails": True}})
    path = build_comparison(
        runs,
        tmp_path / "c.html",
        title="T",
        outcome="3 runs",
        sections={"Curves": "<p>x</p>"},
        command="again",
        limits=["L"],
    )
    page = path.read_text()
    assert order(page, "3 runs", 'id="verdicts"', ">Curves</h2>", 'id="runs-of-it"', 'id="completions"', 'id="method"',
                 'id="environment"', 'id="limits"')  # fmt: skip
    assert "fails in 2: 2026-1, 2026-2" in page
    assert "agrees (3)" in page
    assert '<tr><th scope="row">seed</th><td>1, 2, 3</td></tr>' in page
    assert '<tr><th scope="row">model</th><td>m</td></tr>' in page
    assert "<li>L</li>" in page


def test_a_comparison_of_no_runs_or_hostile_ones_is_a_page(run, tmp_path):
    empty = build_comparison([], tmp_path / "e.html", title="T", outcome="0 runs", sections={}).read_text()
    assert "No checks were recorded" in empty
    hostile = HOSTILE["closing tags"] + HOSTILE["right to left"]
    path = build_comparison([run], tmp_path / "h.html", title=hostile, outcome=hostile, sections={hostile: hostile})
    page = path.read_text()
    assert page.count("<script") == 1
    assert not re.search(r"<(iframe|form|svg|math)", page)
    assert not UNSEEN.search(without_images(page))


def test_reports_go_beside_the_runs_and_redacted_ones_to_a_folder_of_their_own(tmp_path):
    assert default_folder(tmp_path / "runs") == tmp_path / "reports"
    assert default_folder(tmp_path / "runs", redact=True) == tmp_path / "reports-redacted"
