import json
import re

import pytest
from conftest import write_run
from report_samples import METRICS, RESULT, UNSEEN, Elements, order, result_row, write_notebook_of

from workbench.lab.reports import build_report, default_folder, page
from workbench.lab.reports.page import hider, render, write_page
from workbench.runs.files import write_json
from workbench.runs.results import load_claims
from workbench.runs.run import set_status

TAGS = re.compile(r"<(script|iframe|object|embed|link|base|form|svg|math|input)\b", re.I)


def limits(page: str) -> str:
    return page[page.index('<h2 id="limits"') :]


# --- what a report shows ---------------------------------------------------------------------------------------------


def test_a_report_has_every_part_from_state_to_environment(tmp_path):
    run = write_run(tmp_path, metrics=METRICS, result=RESULT)
    page = build_report(run).read_text()
    for text in ("done", "passed", "failed", "skipped", "needs 8 GPUs", "lowest", "trl 1.12.0",
                 "The docs&#x27; curve lies in 0..1", 'href="https://github.com/huggingface/trl/issues/3406"'):  # fmt: skip
        assert text in page, text
    assert "checks: 1 passed, 1 failed, 1 skipped" in page


def test_verdicts_come_first_then_notebook_method_and_limits(hostile_page):
    names = ("verdicts", "notebook", "completions", "method", "environment", "limits")
    assert order(hostile_page, *(f'<h2 id="{name}"' for name in names))


def test_a_report_opens_with_first_result_and_verdict_counts(tmp_path):
    first = result_row("Stock ends at <0.31>, ours at 0.75.", True)
    page = build_report(write_run(tmp_path, result=RESULT | {"results": [first, *RESULT["results"]]})).read_text()
    head = page[page.index("<header>") : page.index("</header>")]
    verdicts = "checks: 2 passed, 1 failed, 1 skipped", "claims: 1 confirmed"
    assert order(head, "Stock ends at &lt;0.31&gt;, ours at 0.75.", *verdicts)


def test_a_report_has_published_claims_only_if_one_is_quoted(tmp_path):
    own = RESULT | {"results": [result_row("It ends at 3.", True)]}
    heads = [
        build_report(write_run(tmp_path / name, result=result)).read_text()
        for name, result in (("a", own), ("b", RESULT))
    ]
    assert ["<th>published claim, and result</th>" in page for page in heads] == [False, True]
    assert "<th>result</th>" in heads[0]


def test_a_toy_run_is_called_one(hostile_page, tmp_path):
    assert "Toy scale" in hostile_page
    real = write_run(tmp_path, params={"model": "Qwen/Qwen2-0.5B-Instruct"})
    assert "Toy scale" not in build_report(real).read_text()


def test_the_method_explains_parameters_and_repeating_the_run(tmp_path):
    run = write_run(tmp_path, params={"seed": 7, "stop": "a b", "before": " the"})
    write_notebook_of(run, ["x", "y"])
    page = build_report(run).read_text()
    assert "workbench run 05_grpo_docs_example -p seed=7 -p &#x27;stop=a b&#x27;" in page
    assert "of everything; int in 0..9" in page
    assert "<td>&quot; the&quot;</td>" in page  # its space is seen
    assert '<strong>7</strong></td><td data-name="default: ">0</td>' in page


def test_limits_name_what_failed_was_not_run_or_is_not_installed(tmp_path):
    left_out = result_row("steps are faster", None, "not run: needs 8 GPUs", "A1")
    run = write_run(tmp_path, result=RESULT | {"results": [*RESULT["results"], left_out]}, metrics=METRICS)
    told = limits(build_report(run).read_text())
    for text in ("Failed: it fell.", "Not run (needs 8 GPUs): “not tried”, “steps are faster”.", "one run with one seed",
                 "No git commit was recorded"):  # fmt: skip
        assert text in told, text
    write_json(run.path / "env.json", {"git_commit": "abc with uncommitted changes"})
    assert "the commit alone does not repeat the run" in limits(build_report(run).read_text())


@pytest.mark.parametrize("state", ["queued", "running", "failed", "interrupted"])
def test_the_report_of_a_run_in_any_state_starts_with_the_state(tmp_path, state):
    run = write_run(tmp_path, state=state)
    page = build_report(run).read_text()
    assert re.search(rf'State: <span class="(bad|odd)">{state}</span>', page)
    assert "No results were recorded" in page
    assert "has no log, no metrics and no executed notebook of its own" in page
    assert "The runner executed no notebook in this folder" in page
    (run.path / "executed.ipynb").write_text('{"cells": [{"cell_ty')
    assert "executed.ipynb was left out: not JSON (Unterminated string" in build_report(run).read_text()
    assert order(page, "State:", 'id="ended"', 'id="verdicts"')


def test_a_failed_run_shows_error_cell_traceback_and_log_first(tmp_path):
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


# --- whatever a model writes -----------------------------------------------------------------------------------------


def test_hostile_text_makes_no_element(hostile_page):
    assert not TAGS.search(hostile_page)
    elements = Elements(hostile_page)
    assert not [a for a in elements.attributes if any(name.startswith("on") for name in a)]
    assert [a.get("http-equiv") for a in elements.attributes if "http-equiv" in a] == ["Content-Security-Policy"]
    assert not [a for a in elements.attributes if "fixed" in (a.get("style") or "")]


@pytest.mark.parametrize("text", ["<script>window.ran = 1</script>", "{{ 7 * 7 }}", "&amp;lt;b&amp;gt;"])
def test_hostile_text_is_shown_as_written(hostile_page, text):
    assert text.replace("<", "&lt;").replace(">", "&gt;") in hostile_page


def test_characters_that_hide_or_reorder_text_become_labels(hostile_page):
    assert not UNSEEN.search(hostile_page)
    for label in ("U+202E", "U+2067", "U+200F", "U+001B", "U+0000", "U+D800", "U+2028", "U+E0041", "U+000D"):
        assert f">{label}</mark>" in hostile_page, label
    assert 'title="right-to-left override"' in hostile_page


def test_a_long_line_is_cut_and_its_length_told(hostile_page):
    assert "998,000 of 1,000,000 characters left out" in hostile_page


def test_links_within_a_report_lead_to_its_own_parts(tmp_path):
    page = build_report(write_run(tmp_path, metrics=METRICS, result=RESULT)).read_text()
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert "verdicts" in targets and targets <= set(re.findall(r'id="([^"]+)"', page))


def test_a_report_loads_nothing_and_leads_only_to_claim_threads(hostile_page):
    threads = {to for claim in load_claims().values() for to in claim.links.values()}
    for attributes in Elements(hostile_page).attributes:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or "data:"
            beside = value.endswith("-microscope.html") or (name == "href" and value in threads)
            assert beside or value.startswith(("data:", "#")), attributes
    assert "default-src 'none'" in hostile_page


# --- pages -----------------------------------------------------------------------------------------------------------


def test_only_redacted_reports_go_to_a_folder_of_their_own(tmp_path):
    assert default_folder(tmp_path / "runs") == tmp_path / "reports"
    assert default_folder(tmp_path / "runs", redact=True) == tmp_path / "reports-redacted"


def test_a_page_escapes_every_value_and_has_only_given_scripts(tmp_path):
    page = render(
        "index.html.j2", title="<b>\u202e", rows=[], comparisons={}, redacted=False, audits={"text": "", "mark": ""}
    )
    assert '<h1>&lt;b&gt;<mark class="unseen"' in page
    assert "<script" not in page
    path = write_page(tmp_path / "new" / "page.html", page + "\ud800")
    assert path.read_text().endswith("?")


def test_a_user_who_has_a_number_and_no_name_can_redact(tmp_path, monkeypatch):
    """As in a container that is started with a number for its user."""

    def nobody():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert hider([write_run(tmp_path)], redact=True)("HF_TOKEN=S3cretS3cret") == "HF_TOKEN=[token]"


def test_folder_in_the_place_of_a_page_is_moved_aside(tmp_path, capsys):
    run = write_run(tmp_path)
    (run.path / "report.html" / "mine").mkdir(parents=True)
    assert build_report(run).is_file()
    assert "report.html is a folder, and a page goes there; it is now in replaced-" in capsys.readouterr().err
    assert list(run.path.glob("replaced-*/report.html/mine"))


def test_page_says_why_a_notebook_is_left_out(tmp_path):
    run = write_run(tmp_path)
    with (run.path / "executed.ipynb").open("wb") as file:
        file.truncate(10**12)  # sparse
    page = build_report(run).read_text()
    assert page.count("executed.ipynb was left out: larger than 100 MB") == 2  # in its place, and among the limits
    assert "The runner executed no notebook" not in page


ROW = {"step": 1, "prompt": "p", "completion": "c", "finish_reason": "stop", "reward": 1.0, "advantage": 0.0}
ODD = (5, "8", [5], {"a": 1}, None, True, "", 10**400)


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("name", [*ROW, "completion_tokens", "masked", "of_its_own"])
def test_odd_completions_leave_a_page(tmp_path, name, value):
    run = write_run(tmp_path)
    rows = [ROW, ROW | {name: value}]
    (run.path / "completions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    page = build_report(run).read_text()
    assert (run.path / f"{run.id}-microscope.html").is_file() or "page of all completions was left out" in page


RECIPES = [{"recipe": {"num_generations": value}} for value in (*ODD, 0, -1, 0.5)]
RECIPES += [{"stops": {"stop": value}} for value in ODD] + [{"trainer": value} for value in ODD]
RECIPES += [{"overrides": value} for value in ODD] + [{"source": value} for value in ODD]


@pytest.mark.parametrize("recipe", RECIPES)
def test_odd_recipe_leaves_both_pages(tmp_path, recipe):
    run = write_run(tmp_path, completions=[ROW] * 4)
    write_json(run.path / "recipe.json", recipe)
    assert "All completions" in build_report(run).read_text()


def test_a_short_text_of_many_runs_is_looked_at_once(monkeypatch):
    looked = []
    monkeypatch.setattr(page, "hide_tokens", lambda text: looked.append(text) or text)
    hide = hider([], redact=False)
    assert [hide(text) for text in ("a", "a", "x" * 300, "x" * 300)] == ["a", "a", "x" * 300, "x" * 300]
    assert looked == ["a", "x" * 300, "x" * 300]
