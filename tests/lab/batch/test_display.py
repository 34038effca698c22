from conftest import write_run

from workbench.lab.batch.display import Display, SweepProgress
from workbench.lab.batch.plan import Entry


def test_output_goes_to_the_log_and_to_stderr(tmp_path, capsys):
    run = write_run(tmp_path)
    with Display(run) as display:
        display.cell_start(0, 2)
        display.write("\x1b[31mred\x1b[0m \x07\n")
        display.flush()
        assert (run.path / "log.txt").read_text() == "\x1b[31mred\x1b[0m \x07\n"
        display.cell_done(0)
    assert capsys.readouterr().err == "red \\x07\n"
    with Display(run, quiet=True) as display:
        display.write("more\n")
    assert capsys.readouterr() == ("", "")
    assert (run.path / "log.txt").read_text().endswith("\x07\nmore\n")


def test_without_a_terminal_each_run_ends_with_a_counted_line(tmp_path, capsys):
    result = {"headline": {"name": "reward", "value": -4.0}}
    runs = [write_run(tmp_path, str(n), result=result) for n in range(2)]
    entries = [Entry({"seed": n}, {}, action, runs[n]) for n, action in enumerate(("skip", "run"))]
    with SweepProgress(entries) as progress:
        progress.show(entries[1:])
        progress.finished(entries[1])
    assert capsys.readouterr().err == "[2/2] seed=1: done, reward -4; not audited\n"


def test_a_reader_that_is_gone_ends_no_run(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("workbench.lab.batch.display.tqdm.write", broken)
    run = write_run(tmp_path)
    with Display(run) as display:
        display.write("first\n")
        display.write("second\n")
    assert (run.path / "log.txt").read_text() == "first\nsecond\n"
