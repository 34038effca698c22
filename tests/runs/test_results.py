"""What a result decides, and what is kept of it."""

import numpy as np
import pytest
from conftest import write_run

from workbench.curves.stats import Interval
from workbench.errors import ParameterError, RunError
from workbench.lab.reports.run_page import build_report
from workbench.runs.files import write_json
from workbench.runs.results import Result, results_of, save_result, show_results
from workbench.runs.run import list_runs
from workbench.runs.summary import RunSummary


def interval(low, high) -> Interval:
    return Interval((low + high) / 2, low, high, 0.95, 5, "t", "")


@pytest.mark.parametrize("holds", [1, "passed", "not run", 0.0])
def test_a_verdict_is_a_truth_value_or_none_with_a_reason(holds):
    with pytest.raises(ParameterError, match="expected True, False or None"):
        Result("it rises", holds)
    with pytest.raises(ParameterError, match="expected the reason"):
        Result("it rises", None)


def test_a_result_comes_back_as_it_was_saved(tmp_path):
    run = write_run(tmp_path, params={"model": "smollm2"})
    results = [Result("it ends at 3", np.bool_(True)), Result("at most 0", False, "of 9", "A4.3")]
    results.append(Result("a server", None, "not run: no GPU"))
    save_result(run, results, {"n": np.int64(3), "m": 2.5})
    assert results_of(run.result) == results
    assert (run.result["headline"], run.result["numbers"]) == ({"name": "n", "value": 3}, {"n": 3, "m": 2.5})
    assert run.result["results"][0]["holds"] is True


@pytest.mark.parametrize("why", ["not run: no GPU", "not comparable: a toy"])
def test_what_was_not_decided_neither_holds_nor_fails(why):
    with pytest.raises(ParameterError, match="needs holds=None"):
        Result("it rises", True, why, "A4.2")


def test_results_stand_next_to_the_words_of_their_claim():
    shown = show_results([Result("at most 0", False, "of 9 seeds", "A4.3"), Result("it ends at <3>", True)])
    page = shown._repr_html_()
    assert page.count("<td") == page.count('<td style="text-align:left">') == 6  # JupyterLab aligns the others right
    assert (
        "<q>The docs&#x27; curve lies in 0..1; the example&#x27;s reward function returns zero or negative values</q>"
        in page
    )
    assert '<a href="https://github.com/huggingface/trl/issues/3406">trl#3406</a>' in page
    assert "it ends at &lt;3&gt;" in page
    for text in (page, repr(shown)):
        assert "A4.3" not in text and "at most 0" in text and "of 9 seeds" in text


def test_a_claim_is_quoted_once_and_named_only_if_there_is_one():
    own = Result("it rises by 3", True)
    assert "published claim" not in show_results([own])._repr_html_()
    page = show_results([Result("a", True, claim="A0.2"), Result("b", True, claim="A0.2"), own])._repr_html_()
    assert page.count("published claim") == 1 and page.count("<q>") == 1 and page.count("(a check of this run)") == 1


def test_a_result_is_made_of_words_numbers_and_its_criterion():
    ratio = interval(0.8, 1.7)
    found = Result.of("{} times the passes", ratio, ratio.above(1), claim="A0.2", digits=".2g")
    assert found == Result("1.2 (0.8 to 1.7) times the passes", *ratio.above(1), "A0.2")
    assert Result.of("{} of {} end", (np.int64(14), 16), True) == Result("14 of 16 end", True)
    assert Result.of("{} end", 0.123456, False, digits=".0%").says == "12% end"
    assert Result.of("{} of {} end at '}' or {a: 1}", (3, 4), True).says == "3 of 4 end at '}' or {a: 1}"
    with pytest.raises(ParameterError, match="for each number"):
        Result.of("{} of {} end", 14, True)


def test_claim_of_unknown_id_shows_its_id():
    shown = show_results([Result("it rises", True, claim="my <claim>")])
    assert ">my &lt;claim&gt;</td>" in shown._repr_html_()
    assert "my <claim>" in repr(shown)


@pytest.mark.parametrize("results", [[], [("it rises", True)], [{"says": "it rises", "holds": True}]])
def test_results_and_nothing_else_are_saved(tmp_path, results):
    with pytest.raises(ParameterError, match="save_result"):
        save_result(write_run(tmp_path), results)
    if results:
        with pytest.raises(ParameterError, match=r"show_results: .*: expected a Result"):
            show_results(results)


def test_a_refuted_claim_fails_no_run_and_a_failed_check_does(tmp_path):
    save_result(write_run(tmp_path / "a"), [Result("it hurts", False, claim="A0.2")])
    save_result(write_run(tmp_path / "b"), [Result("it hurts", False)])
    kept, failed = (RunSummary.of(list_runs(tmp_path / name)[0]) for name in "ab")
    assert (kept.succeeded, kept.failed) == (True, [])
    assert (failed.succeeded, failed.failed) == (False, ["it hurts"])


@pytest.mark.parametrize(
    "result", [{"says": "x"}, {"says": "x", "holds": None, "why": "", "claim": ""}, {"holds": True}, "x", None]
)
def test_a_damaged_result_is_named_with_its_file(tmp_path, result):
    run = write_run(tmp_path)
    write_json(run.path / "result.json", {"results": [result]})
    with pytest.raises(RunError, match=r"result\.json.*`says`, `holds`, `why` and `claim`"):
        _ = run.result


@pytest.mark.parametrize("claim", ["", "A0.2"])
def test_an_interval_that_holds_no_effect_is_shown_inconclusive(tmp_path, claim):
    """No other word about it, in the table of the notebook, the report and the index of runs."""
    ratio = interval(0.8, 1.7)
    result = Result(f"it takes {ratio.in_brief()} x the seconds", *ratio.above(1), claim=claim)
    run = write_run(tmp_path)
    save_result(run, [result])
    report = build_report(run).read_text()
    for text in (show_results([result])._repr_html_(), report, repr(show_results([result]))):
        assert "inconclusive" in text
        others = ("confirmed", "refuted", "passed", ">failed", "holds in")
        assert not [word for word in others if word in text]


def test_a_number_without_an_interval_decides_nothing():
    assert Interval(3.0, 3.0, 3.0, 0.95, 1, "", "").above(1) == (None, "one seed: its scatter is unknown")
    verdicts = [interval(*ends).above(1)[0] for ends in ((1.1, 2), (0.1, 0.9), (1, 2))]
    assert verdicts == [True, False, None]


def test_a_toy_decides_no_claim(tmp_path):
    results = [Result("3 times the passes", True, claim="A0.2"), Result("it ends", True)]
    toy, real = (write_run(tmp_path, name, params={"model": name}, state="running") for name in ("starter", "smollm2"))
    assert [each.verdict for each in show_results(results, toy)] == ["seen on a toy", "passed"]
    assert [each.verdict for each in show_results(results, real)] == ["confirmed", "passed"]
    save_result(toy, results)
    assert [each.verdict for each in results_of(toy.result)] == ["seen on a toy", "passed"]


def test_results_of_a_generator_are_kept(tmp_path):
    run = write_run(tmp_path, params={"model": "smollm2"})
    save_result(run, (Result(says, True) for says in ("a", "b")))
    assert [one.says for one in results_of(run.result)] == ["a", "b"]


def test_numbers_of_numpy_have_the_digits_that_were_asked():
    assert Result.of("{}", np.float32(0.123456789), True, digits=".2f").says == "0.12"
    assert Result.of("{}", np.int64(12), True, digits=".2f").says == "12"
