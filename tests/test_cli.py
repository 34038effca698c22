import json
import re
import shlex

import pytest
from conftest import NOTEBOOKS, call, workbench, write_notebook, write_run

from workbench import cli
from workbench.batch.plan import find_notebook, list_notebooks
from workbench.help_texts import COMMANDS
from workbench.runs.run import list_runs


def test_list_names_the_notebooks_and_the_runs_with_their_outcome(capsys, tmp_path):
    result = {"headline": {"name": "reward", "value": -4.0123}, "results": []}
    result["results"] += [{"says": says, "holds": says == "a", "why": "", "claim": ""} for says in "ab"]
    write_run(tmp_path, result=result)
    write_run(tmp_path, "2026-2", state="failed")
    code, out, _ = call(capsys, "list", "--runs-dir", tmp_path)
    assert code == 0
    assert "  00_start_here\n" in out
    assert "05_grpo_docs_example 2026-1: done, reward -4.012, 1 checks failed: b\n" in out
    assert "05_grpo_docs_example 2026-2: failed\n" in out


def test_list_of_a_notebook_shows_its_parameters(capsys):
    code, out, _ = call(capsys, "list", "05_grpo_docs_example")
    assert code == 0
    assert "backend = 'transformers'  (one of transformers, vllm)  who samples" in out
    assert "seed = 0  (int in 0..1000000)" in out


def test_list_as_json_is_one_object_a_run(capsys, tmp_path):
    run = write_run(tmp_path, result={"headline": None})
    _, out, _ = call(capsys, "list", "--json", "--runs-dir", tmp_path)
    (row,) = map(json.loads, out.splitlines())
    assert (row["run"], row["status"]["state"], row["params"]["seed"]) == (str(run.path), "done", 1)


def test_report_builds_every_report_and_an_index_beside_the_runs(capsys, tmp_path):
    runs = [write_run(tmp_path / "runs", f"2026-{n}") for n in (1, 2)]
    code, out, _ = call(capsys, "report", "--runs-dir", tmp_path / "runs")
    assert (code, out.strip()) == (0, str(tmp_path / "reports" / "index.html"))
    assert all((run.path / "report.html").is_file() for run in runs)
    code, out, _ = call(capsys, "report", runs[0].path, "--out", tmp_path / "one")
    assert "1 run," in (tmp_path / "one" / "index.html").read_text()


def test_redacted_reports_go_to_a_folder_of_their_own_and_name_no_host_or_path(capsys, tmp_path):
    write_run(tmp_path / "runs", result={"headline": {"name": "saved in", "value": str(tmp_path / "secret")}})
    code, out, _ = call(capsys, "report", "--redact", "--runs-dir", tmp_path / "runs")
    assert (code, out.strip()) == (0, str(tmp_path / "reports-redacted" / "index.html"))
    pages = [p.read_text() for p in (tmp_path / "reports-redacted").rglob("*.html")]
    assert len(pages) == 2
    assert not any(str(tmp_path) in page for page in pages)
    assert not list((tmp_path / "runs").rglob("report*.html"))


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["run", "05_grpo_docs_example", "-p", "learning_rate=nan"], "parameter learning_rate=nan: expected float"),
        (["run", "05_grpo_docs_example", "-p", "steps"], "expected -p NAME=VALUE"),
        (["run", "05_grpo_docs_example", "-p", "steps=1", "-p", "steps=2"], "steps was given before"),
        (["run", "05_grpo_docs_example", "--resume", "no-such-run"], "not a run folder"),
        (["run", "00_start_here", "05_grpo_docs_example", "-p", "steps=1"], "-p and --resume go with one notebook"),
        (["run", "00_start_here", "99_none"], "notebook '99_none': not found"),
        (["run", "00_start_here", "05_grpo_docs_example", "--detach"], "--detach go with --executor slurm"),
        (["sweep", "00_start_here", "--seed"], "written `-p seed=VALUE`"),
        (["run", "00_start_here", "-q", "01_ppo_eos_stop"], "unrecognized arguments: 01_ppo_eos_stop\n"),
        (["run", "00_start_here", "--executor", "slurm", "--time", "long"], "--time long: expected minutes"),
        (["run", "00_start_here", "--executor", "slurm", "--mem", "much"], "--mem much: expected GB"),
        (["list", "99_none"], "not found"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2_and_starts_nothing(capsys, tmp_path, arguments, says):
    code, out, err = call(capsys, *arguments, "--runs-dir", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert err.startswith("workbench: ")
    assert err.count("\n") == 1
    assert says in err
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_run_gives_one_line_and_exit_code_2(capsys, tmp_path):
    code, _, err = call(capsys, "report", tmp_path)
    why = "no completions are recorded in it; TRL records them with log_completions=True"
    assert (code, err) == (2, f"workbench: {tmp_path}: not a run folder (it has no params.json), and {why}\n")


def test_an_access_token_in_an_option_that_is_not_there_is_not_repeated(capsys):
    secret = "hf_" + "aB3dE5" * 6
    for command in ("run", "list"):
        code, _, err = call(capsys, command, "00_start_here", f"--token={secret}")
        assert code == 2
        assert "unrecognized arguments: --token=" in err
        assert secret not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_says_what_it_is_for_and_has_an_example_that_can_be_typed(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(capsys, name, "--help")
    assert code == 0
    assert COMMANDS[name].purpose in " ".join(out.split())
    (example,) = re.findall("^Example: workbench (.*)$", out, re.M)
    args = cli._parser().parse_args(shlex.split(example))
    assert args.command is getattr(cli, f"_{name}")


def test_every_command_is_in_the_help_with_a_few_words(capsys):
    _, out, _ = call(capsys, "--help")
    assert all(help.short in " ".join(out.split()) for help in COMMANDS.values())


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["run"], ["run", "00_start_here", "--jobs", "two"], ["list", "--fly"]]
)
def test_a_command_line_that_makes_no_sense_ends_2_with_the_usage(capsys, arguments):
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.startswith("usage: workbench")


def test_the_module_and_the_console_script_are_the_same_command():
    from importlib.metadata import entry_points

    (script,) = [e for e in entry_points(group="console_scripts") if e.name == "workbench"]
    assert script.load() is cli.main
    process = workbench("run", "99_none")
    assert process.returncode == 2
    assert "Traceback" not in process.stderr


@pytest.mark.slow
def test_run_says_where_the_run_is_how_it_ended_and_where_its_report_is(tmp_path):
    path = write_notebook(tmp_path / "hand_made.ipynb", "print('from the notebook')")
    process = workbench("run", path, "-p", "steps=7", "--runs-dir", tmp_path / "runs")
    (run,) = list_runs(tmp_path / "runs")
    assert process.returncode == 0
    assert f"run folder {run.path}" in process.stderr
    assert "from the notebook" in process.stderr
    assert f"hand_made {run.id}: done, steps 7" in process.stdout
    assert f"report {run.path / 'report.html'}" in process.stdout


def test_notebooks_are_copied_into_a_new_folder_and_named(capsys, tmp_path):
    folder = tmp_path / "my" / "notebooks"
    code, out, _ = call(capsys, "notebooks", folder)
    assert (code, out.splitlines()) == (0, [str(folder / path.name) for path in NOTEBOOKS])
    assert [(folder / path.name).read_text() for path in NOTEBOOKS] == [path.read_text() for path in NOTEBOOKS]


def test_a_notebook_of_the_folder_here_comes_before_one_of_the_library_and_all_are_listed(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    own = [write_notebook(tmp_path / "notebooks" / f"{name}.ipynb") for name in ("00_start_here", "zz_mine")]
    assert [find_notebook(path.stem) for path in own] == own
    assert find_notebook("01_ppo_eos_stop") == NOTEBOOKS[1]
    assert list(list_notebooks()) == [*(path.stem for path in NOTEBOOKS), "zz_mine"]


def test_a_variable_that_names_no_folder_of_notebooks_is_refused_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_NOTEBOOKS", str(tmp_path / "none"))
    code, _, err = call(capsys, "list", "00_start_here")
    assert (code, err.startswith("workbench: WORKBENCH_NOTEBOOKS=")) == (2, True)
