import base64
import hashlib
import os
import re

from conftest import write_run
from report_samples import HOSTILE, METRICS, RESULT, UNSEEN, Elements, order, without_images, write_notebook_of

from workbench.lab.reports import build_comparison, build_index, build_report
from workbench.runs.files import write_json
from workbench.runs.run import set_status

# --- the index -------------------------------------------------------------------------------------------------------


def test_the_index_lists_newest_runs_first_with_their_headline(hostile, tmp_path):
    later = write_run(tmp_path / "runs", "2026-2", notebook="an odd #name 100%", state="failed", result={})
    index = build_index([hostile, later], tmp_path / "reports")
    page = index.read_text()
    table = page[page.index('id="runs"') :]
    assert order(table, "2026-2", "2026-1")
    for text in ("2 runs", "failed", "done", "23 passed, 2 failed, 1 inconclusive, 1 skipped", "seed=1", "U+D800"):
        assert text in page, text
    links = [a["href"] for a in Elements(page).attributes if "href" in a]
    first, second = "an%20odd%20%23name%20100%25/2026-2.html", "05_grpo_docs_example/2026-1.html"
    assert links == [second, first, first, second]  # cards by name, rows by age
    assert (tmp_path / "reports/an odd #name 100%/2026-2.html").is_file()


def test_the_index_has_one_script_and_allows_it_by_its_hash(hostile, tmp_path):
    page = build_index([hostile], tmp_path).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "script-src" not in build_report(hostile).read_text()


def test_the_index_leads_to_the_comparisons_beside_it(hostile, tmp_path):
    build_comparison([hostile], tmp_path / "grid-seed=0..4.html", title="Sweep", outcome="1 hostile", sections={})
    assert '<a href="grid-seed%3D0..4.html">grid-seed=0..4</a>' in build_index([hostile], tmp_path).read_text()


def test_each_notebooks_newest_done_run_is_a_card_with_picture(tmp_path):
    runs = [write_run(tmp_path / "runs", f"2026-{n}", result=RESULT) for n in (1, 2)]
    runs.append(write_run(tmp_path / "runs", "2026-3", state="failed"))
    runs.append(write_run(tmp_path / "runs", "2026-4", notebook="01_first", state="interrupted"))
    write_notebook_of(runs[1], ["x", "y"])
    page = build_index(runs, tmp_path / "reports").read_text()
    cards = page[page.index('<section class="deck"') : page.index("</section>")]
    first, second = (
        ("01_first", "interrupted"),
        ("A notebook", "data:image/png", "&lt;b&gt;bold&lt;/b&gt; rises", "done"),
    )
    assert order(cards, *first, *second)
    assert cards.count("<article>") == 2 and "2026-2.html" in cards


def test_a_failed_run_shows_its_error_on_its_card_and_is_counted(tmp_path):
    run = write_run(tmp_path / "runs", "2026-1", result={})
    set_status(run.path, "failed", "cell 4: KeyError: 'rewrad'")
    page = build_index([run], tmp_path / "reports").read_text()
    cards, table = page.split("<h2>All runs</h2>")
    assert "cell 4: KeyError: &#x27;rewrad&#x27;" in cards
    assert '1 run, newest first. <span class="bad">1 failed</span>' in table


def test_an_inconclusive_check_has_no_tick(tmp_path):
    checks = [{"says": "a", "holds": True}, {"says": "b", "holds": None, "why": "the interval is wide"}]
    run = write_run(tmp_path / "runs", "2026-1", result={"results": checks})
    page = build_index([run], tmp_path / "reports").read_text()
    assert '<span class="odd">1 passed, 1 inconclusive</span>' in page
    assert '<span class="odd">checks: 1 passed, 1 inconclusive</span>' in build_report(run).read_text()


# --- the comparison --------------------------------------------------------------------------------------------------


def test_a_comparison_counts_verdicts_and_separates_differences(tmp_path):
    files = {"result": RESULT, "metrics": METRICS}
    runs = [write_run(tmp_path / "runs", f"2026-{n}", params={"seed": n, "model": "m"}, **files) for n in (1, 2, 3)]
    rises = [row | {"holds": True} if row["says"] == "it fell" else row for row in RESULT["results"]]
    write_json(runs[2].path / "result.json", RESULT | {"results": rises})
    path = build_comparison(runs, tmp_path / "c.html", title="T", outcome="3 runs", sections={"Curves": "<p>x</p>"},
                            command="again", limits=["L"])  # fmt: skip
    page = path.read_text()
    assert order(page, "3 runs", ">Curves</h2>", 'id="verdicts"', 'id="runs-of-it"', 'id="completions"', 'id="method"',
                 'id="environment"', 'id="limits"')  # fmt: skip
    assert "failed in 2, passed in 1: 2026-1, 2026-2" in page
    assert "confirmed in 3" in page
    assert '<tr><th scope="row">seed</th><td>1, 2, 3</td></tr>' in page
    assert '<tr><th scope="row">model</th><td>m</td></tr>' in page
    assert "<li>L</li>" in page


def test_a_comparison_of_no_runs_or_hostile_ones_is_a_page(hostile, tmp_path):
    empty = build_comparison([], tmp_path / "e.html", title="T", outcome="0 runs", sections={}).read_text()
    assert "No results were recorded" in empty
    text = HOSTILE["closing tags"] + HOSTILE["right to left"]
    path = build_comparison([hostile], tmp_path / "h.html", title=text, outcome=text, sections={text: text})
    page = path.read_text()
    assert page.count("<script") == 1
    assert not re.search(r"<(iframe|form|svg(?! class=.spark)|math)", page)
    assert not UNSEEN.search(without_images(page))


# --- pages of others -------------------------------------------------------------------------------------------------


def test_a_page_that_lies_in_a_run_is_never_shown_at_any_age(tmp_path):
    """Whoever made the folder made its times too."""
    run = write_run(tmp_path / "runs", result=RESULT)
    forged = run.path / "report.html"
    forged.write_text("<script>window.ran = 1</script>all 12 checks hold")
    os.utime(forged, (4e9, 4e9))
    build_index([run], tmp_path / "reports")
    page = (tmp_path / "reports" / run.notebook / f"{run.id}.html").read_text()
    assert "window.ran" not in page
    assert "checks: 1 passed, 1 failed, 1 skipped" in page
    copy = tmp_path / "reports" / run.notebook / f"{run.id}.html"  # nor is one among the reports
    copy.write_text("forged")
    set_status(run.path, "failed", "out of memory")
    build_index([run], tmp_path / "reports")
    assert "forged" not in copy.read_text() and "out of memory" in copy.read_text()


def test_a_run_that_cannot_be_shown_is_a_row_that_says_why(tmp_path):
    runs = [write_run(tmp_path / "runs", f"2026-{n}", result=RESULT) for n in (1, 2)]
    (runs[0].path / "result.json").write_text("[1")
    page = build_index(runs, tmp_path / "reports").read_text()
    assert order(page, "2026-2", "2026-1", "result.json: not JSON")
    assert not (tmp_path / "reports" / runs[0].notebook / "2026-1.html").exists()
    assert "checks: 1 passed" in (tmp_path / "reports" / runs[1].notebook / "2026-2.html").read_text()


def test_two_runs_of_one_notebook_and_id_are_both_shown(tmp_path):
    """As a copy of a run, or a link to it, has them."""
    runs = [write_run(tmp_path / root, result=RESULT) for root in ("runs", "copies")]
    set_status(runs[1].path, "failed")
    page = build_index([*runs, runs[0]], tmp_path / "reports").read_text()
    assert "3 runs" in page and page.count("<article>") == 1
    for name in ("2026-1.html", "2026-1-1.html", "2026-1-2.html"):
        assert (tmp_path / "reports" / runs[0].notebook / name).is_file() and name in page


def test_notebook_called_like_a_page_leaves_the_index(tmp_path, capsys):
    odd = write_run(tmp_path / "runs", "2026-2", notebook="index.html")
    (tmp_path / "reports" / "index.html").mkdir(parents=True)  # as an older version made it
    index = build_index([write_run(tmp_path / "runs"), odd], tmp_path / "reports")
    page = index.read_text()
    assert "2026-2" in page and "must not start with a dot, end in .html" in page and "2026-1.html" in page
    assert "index.html is a folder, and a page goes there; it is now in replaced-" in capsys.readouterr().err
    build_index([odd], tmp_path / "reports")
    assert index.is_file() and not capsys.readouterr().err


def test_run_called_like_a_page_of_completions_has_its_own(tmp_path):
    rows = [{"step": 1, "prompt": "p", "completion": f"text {n}", "reward": 1.0} for n in range(4)]
    names = ("2026-1", "2026-1-microscope", "2026-1-microscope-microscope")
    runs = [write_run(tmp_path / "runs", name, completions=rows) for name in names]
    build_index(runs, tmp_path / "reports")
    links = {a["href"] for a in Elements((tmp_path / "reports" / "index.html").read_text()).attributes if "href" in a}
    pages = [(tmp_path / "reports" / link).read_text() for link in links]
    assert sorted(re.findall(r"<span>run ([^<]*)</span>", "".join(pages))) == sorted(names)


def test_redacted_page_hides_the_hosts_of_the_other_runs(tmp_path):
    runs = [write_run(tmp_path / "runs", f"2026-{n}", notebook=name) for n, name in enumerate(("one", "two"))]
    for run, host in zip(runs, ("gpu17.example.org", "gpu18.example.org"), strict=True):
        write_json(run.path / "env.json", {"host": host})
    set_status(runs[0].path, "failed", "no answer from gpu18.example.org")
    build_index(runs, tmp_path / "out", redact=True)
    assert "no answer from [host]" in (tmp_path / "out" / "one" / "2026-0.html").read_text()
