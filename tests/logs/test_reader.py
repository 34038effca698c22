"""Readers of a user: the example of the page, what they may return, which files they get, and readers that fail."""

import gzip
import json
import re

import pandas as pd
import pytest
from conftest import ROOT, call

from workbench.audit import audit_run
from workbench.audit.follow import follow
from workbench.logs import read_logs, reader
from workbench.logs.formats import READERS

PAGE = (
    (ROOT / "docs/how-to/audit_a_log.md")
    .read_text(encoding="utf-8")
    .partition("\n## Read a format")[2]
    .partition("\n## ")[0]
)
DEAD = "".join(f"{step} 0.5 0.0\n" for step in range(1, 31))
HEAD = "from workbench.logs import reader\n"


@reader(files="*.roll")
def roll(source):
    for line in source.path.read_text().splitlines():
        step, reward, norm = map(float, line.split())
        yield {"step": step, "reward": reward, "grad_norm": norm, "loss": 0.0}


def test_example_of_page_reads_what_page_shows(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "my_readers.py").write_text(example)
    (tmp_path / "run.roll").write_text(DEAD)
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "audit", "run.roll", "--readers", "my_readers.py", "--brief")
    assert (code, err) == (1, "") and "zero-gradient" in out
    code, _, err = call(capsys, "audit", "run.roll")
    assert code == 2 and err


def test_a_folder_is_searched_for_the_files_of_a_reader(tmp_path):
    for name in ("a.roll", "below/b.roll"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(DEAD)
    names = [log.name.removeprefix(f"{tmp_path}/") for log in read_logs(tmp_path, readers=[roll])]
    assert names == ["a.roll", "below/b.roll"]


def test_a_folder_is_searched_for_the_files_of_a_built_in_reader(tmp_path, monkeypatch):
    (tmp_path / "a.roll").write_text(DEAD)
    monkeypatch.setattr(roll.function, "__module__", "workbench.logs.stores")
    monkeypatch.setattr("workbench.logs.read.READERS", (roll, *READERS))
    assert [len(log.steps) for log in read_logs(tmp_path)] == [30]


def test_a_packed_file_is_unpacked_for_a_reader(tmp_path):
    (tmp_path / "a.roll.gz").write_bytes(gzip.compress(DEAD.encode()))
    (log,) = read_logs(tmp_path / "a.roll.gz", readers=[roll])
    assert len(log.steps) == 30 and log.kind == "roll"


RETURNED = {
    "rows": ([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.6}], [""]),
    "a table": (pd.DataFrame({"step": [1, 2], "reward": [0.5, 0.6]}), [""]),
    "two runs": ({name: [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.6}] for name in "ab"}, ["run a", "run b"]),
}


@pytest.mark.parametrize("about", RETURNED)
def test_a_reader_may_return_rows_tables_or_several_runs(about, tmp_path):
    value, labels = RETURNED[about]
    (tmp_path / "a.own").write_text("anything")
    logs = read_logs(tmp_path / "a.own", readers=[reader(files="*.own")(lambda source: value)])
    assert [log.name.removeprefix(str(tmp_path / "a.own")).removeprefix(": ") for log in logs] == labels
    assert [list(log.steps["reward"]) for log in logs] == [[0.5, 0.6]] * len(labels)


def test_a_users_reader_is_asked_before_those_of_the_workbench(tmp_path):
    (tmp_path / "a.csv").write_text("step,reward\n1,5\n2,6\n3,7\n")

    @reader(sniff=lambda source: source.suffix == ".csv" and source.start.startswith(b"step"))
    def halved(source):
        return pd.read_csv(source.path).assign(reward=lambda table: table["reward"] / 2)

    (log,) = read_logs(tmp_path / "a.csv", readers=[halved])
    assert list(log.steps["reward"]) == [2.5, 3.0, 3.5]


def test_a_reader_may_take_a_folder_as_one_run(tmp_path):
    place = tmp_path / "runs" / "one"
    place.mkdir(parents=True)
    (place / "rewards.txt").write_text("0.1\n0.2\n")
    (place / "notes.csv").write_text("step,reward\n1,5\n2,6\n")

    @reader(sniff=lambda source: (source.path / "rewards.txt").is_file())
    def lines(source):
        for step, line in enumerate((source.path / "rewards.txt").read_text().split(), 1):
            yield {"step": step, "reward": float(line)}

    for path in (tmp_path, place):
        (log,) = read_logs(path, readers=[lines])
        assert (log.name, list(log.steps["reward"])) == (str(place), [0.1, 0.2])


FAILS = {
    "return 1 / 0": "raised ZeroDivisionError: division by zero; repair",
    "return 3": "it returned 3; expected rows (a dict a step)",
    "yield 3": "a row is 3; expected rows (a dict a step)",
    "yield {'step': 1, 'note': 'a'}": "no reward, completion length or group metric in it",
}


@pytest.mark.parametrize("body", FAILS)
def test_a_reader_that_fails_is_named_with_its_line(body, tmp_path, capsys):
    (tmp_path / "own.py").write_text(f"{HEAD}\n\n@reader(files='*.own')\ndef mine(source):\n    {body}\n")
    (tmp_path / "a.own").write_text("text")
    code, out, err = call(capsys, "audit", tmp_path / "a.own", "--readers", tmp_path / "own.py")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert FAILS[body] in err and str(tmp_path / "a.own") in err
    if "repair" in FAILS[body]:
        assert f"{tmp_path}/own.py:6" in err


REFUSED = {
    "no file": (None, "no such file"),
    "an error": ("1 / 0", "own.py:2: ZeroDivisionError"),
    "nothing that says which files": ("@reader()\ndef mine(source):\n    pass", "neither sniff nor files is given"),
    "no reader": ("from workbench.logs.formats import table", "the file defines no reader"),
}


@pytest.mark.parametrize("about", REFUSED)
def test_a_file_of_readers_is_refused_before_logs_are_read(about, tmp_path, capsys):
    text, says = REFUSED[about]
    if text:
        (tmp_path / "own.py").write_text(HEAD + text)
    code, out, err = call(capsys, "audit", tmp_path / "no log", "--readers", tmp_path / "own.py")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err and "no log" not in err


def test_an_error_of_a_sniff_is_no_silence(tmp_path):
    (tmp_path / "a.csv").write_text("step,reward\n1,5\n2,6\n")
    broken = reader(sniff=lambda source: source.nothing)(lambda source: [])
    with pytest.raises(ValueError, match="raised AttributeError"):
        audit_run(tmp_path, readers=[broken])
    with pytest.raises(ValueError, match="is no reader"):
        audit_run(tmp_path, readers=[print])


def test_watch_follows_a_file_of_an_own_format(tmp_path, capsys):
    log = tmp_path / "a.roll"

    steps = iter((10, 25, 30))

    def growing(seconds):
        log.write_text("".join(DEAD.splitlines(keepends=True)[: next(steps)]))

    assert follow(log, until="problem", sleep=growing, readers=[roll]) == 1
    assert "problem zero-gradient" in capsys.readouterr().out


def test_every_file_is_taken_by_a_reader_of_the_workbench(tmp_path):
    (tmp_path / "a.own").write_text(json.dumps({"a": 1}))
    from workbench.logs.reader import Source

    for path in (tmp_path / "a.own", ROOT / "data" / "audit" / "masked_stops" / "trainer_state.json"):
        assert any(each.takes(Source.of(path, path.name)) for each in READERS)
    assert not any(each.takes(Source.of(tmp_path, "folder")) for each in READERS)
