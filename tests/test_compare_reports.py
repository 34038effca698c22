"""Two executions of the notebooks are compared by their saved results."""

import pytest
from conftest import write_run

from tools.compare_reports import compare, main, values_in

NOTEBOOK = "03_position_ids_and_padding"
SAYS = "The reward ends 0.47 (0.14 to 0.84) higher in 5 of 5 seeds."


def result(says=SAYS, holds=True, claim="", **numbers):
    return {"results": [{"says": says, "holds": holds, "why": "" if holds is not None else "it holds 0", "claim": claim}],
            "numbers": numbers}  # fmt: skip


def kinds(first, second):
    return [one.kind for one in compare(NOTEBOOK, first, second)]


def test_numbers_of_a_sentence_come_with_their_intervals():
    assert values_in("-1,200 or 96% (92% to 99%) of TRL 1.16.0") == [
        (-1200, None, None),
        (96, 92, 99),
        (1.16, None, None),
    ]
    assert values_in("2.3e-03 (1.9e-03 to 2.7e-03) nats, gemma-3, x4") == [(0.0023, 0.0019, 0.0027)]


@pytest.mark.parametrize(
    ("other", "expected"),
    [(SAYS, []),
     (SAYS.replace("0.47", "0.40"), ["number"]),
     (SAYS.replace("5 of", "4 of"), ["number"]),  # a count has no interval
     (SAYS.replace("0.47 (0.14", "0.90 (0.60"), ["outside"]),  # 0.90 is above 0.84, and 0.47 below 0.60
     (SAYS.replace("higher", "lower"), ["only in one", "only in one"])],
)  # fmt: skip
def test_a_sentence_is_alike_within_or_outside(other, expected):
    assert kinds(result(), result(other)) == expected


def test_verdicts_are_compared_where_the_sentence_is_alike():
    assert kinds(result(), result(holds=False)) == ["verdict"]
    assert kinds(result(claim="A0.1"), result(claim="A0.1", holds=None)) == ["verdict"]
    assert kinds(result(), result(SAYS.replace("0.47", "0.46"), None)) == ["verdict", "number"]


def saved(folder, run_id, state="done", params=None, **options):
    params = params or {"seed": 1, "runs_dir": str(folder)}
    write_run(folder, run_id, notebook=NOTEBOOK, state=state, params=params, result=result(**options))


def test_the_newest_finished_runs_of_two_folders(tmp_path, capsys):
    one, two = tmp_path / "one", tmp_path / "two"
    saved(one, "20261120-000000", says="an older run")
    saved(one, "20261121-000000")
    saved(one, "20261122-000000", state="failed", says="a failed run")
    saved(two, "20261121-000000", says=SAYS.replace("0.47", "0.45"))
    with pytest.raises(SystemExit) as done:
        main([str(one), str(two)])
    out = capsys.readouterr().out
    assert done.value.code == 0 and "0.45 (0.14 to 0.84)" in out
    assert (
        out.splitlines()[-1]
        == "1 notebooks in both, 1 sentences: 1 number, 0 parameters, 0 only in one, 0 outside, 0 verdict"
    )
    saved(two, "20261122-000000", holds=False)
    with pytest.raises(SystemExit) as done:
        main([str(one), str(two)])
    assert done.value.code == 1 and "failed: The reward" in capsys.readouterr().out
    saved(two, "20261123-000000", params={"seed": 2})
    with pytest.raises(SystemExit) as done:
        main([str(one), str(two)])
    assert done.value.code == 1 and "parameters\n    seed=1\n    seed=2" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no notebook has a finished run in both"):
        main([str(one), str(tmp_path / "none")])
