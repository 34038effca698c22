import errno
import inspect
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import NOTEBOOKS, ROOT, call, daily, need, workbench, write_notebook, write_run

from workbench import cli
from workbench.audit import report
from workbench.lab.batch.notebooks import find_notebook, list_notebooks
from workbench.lab.batch.plan import Entry
from workbench.lab.reports.sweep import build_sweep_report, remember_sweep
from workbench.runs.run import list_runs


def test_list_names_the_notebooks_and_of_one_the_parameters(capsys):
    code, out, _ = call(capsys, "list")
    assert (code, out.splitlines()) == (0, [path.stem for path in NOTEBOOKS])
    code, out, _ = call(capsys, "list", "05_grpo_docs_example")
    assert code == 0
    assert "backend = 'transformers'  (one of transformers, vllm)  who samples" in out
    assert "seed = 0  (int in 0..1000000)" in out


def test_report_builds_every_report_and_an_index_beside_the_runs(capsys, tmp_path):
    runs = [write_run(tmp_path / "runs", f"2026-{n}") for n in (1, 2)]
    code, out, _ = call(capsys, "report", "--runs-dir", tmp_path / "runs")
    assert (code, out.strip()) == (0, str(tmp_path / "reports" / "index.html"))
    assert all((run.path / "report.html").is_file() for run in runs)
    code, out, _ = call(capsys, "report", runs[0].path, "--out", tmp_path / "one")
    assert "1 run," in (tmp_path / "one" / "index.html").read_text()


def test_report_writes_nothing_where_a_linked_run_lies(capsys, tmp_path):
    """Whoever may put a link into the runs folder would choose where pages are written."""
    write_run(tmp_path / "runs")
    linked = write_run(tmp_path / "elsewhere", "2026-9")
    (tmp_path / "runs" / linked.notebook / "2026-9").symlink_to(linked.path)
    before = sorted(path.name for path in linked.path.iterdir())
    assert call(capsys, "report", "--runs-dir", tmp_path / "runs")[0] == 0
    assert sorted(path.name for path in linked.path.iterdir()) == before
    assert (tmp_path / "reports" / linked.notebook / "2026-9.html").is_file()
    assert call(capsys, "report", linked.path, "--out", tmp_path / "one")[0] == 0  # it is named
    assert (linked.path / "report.html").is_file()


def test_redacted_reports_have_their_own_folder_and_name_no_host(capsys, tmp_path):
    write_run(tmp_path / "runs", result={"headline": {"name": "saved in", "value": str(tmp_path / "secret")}})
    code, out, _ = call(capsys, "report", "--redact", "--runs-dir", tmp_path / "runs")
    assert (code, out.strip()) == (0, str(tmp_path / "reports-redacted" / "index.html"))
    pages = [p.read_text() for p in (tmp_path / "reports-redacted").rglob("*.html")]
    assert len(pages) == 2
    assert not any(str(tmp_path) in page for page in pages)
    assert not list((tmp_path / "runs").rglob("report*.html"))


def test_report_redacts_the_pages_of_sweeps(capsys, tmp_path):
    """The page of a sweep has an absolute path, a host and a command; `report --redact` left it out."""
    data = tmp_path / "data" / "train.jsonl"
    entries = []
    for seed in (0, 1):
        params = {"seed": seed, "dataset": str(data)}
        metrics = [{"step": n, "elapsed_s": n, "reward": n / 9} for n in range(1, 9)]
        run = write_run(tmp_path / "runs", f"2026-{seed}", notebook="mine", params=params, metrics=metrics)
        entries.append(Entry({"seed": seed}, params, "run", run))
    fixed = {"dataset": str(data)}
    remember_sweep("mine", {"seed": "0..1"}, entries, fixed=fixed)
    page = build_sweep_report("mine", {"seed": "0..1"}, entries, tmp_path / "reports", fixed=fixed)
    assert str(tmp_path) in page.read_text()
    assert call(capsys, "report", "--redact", "--runs-dir", tmp_path / "runs")[0] == 0
    redacted = tmp_path / "reports-redacted" / page.name
    text = redacted.read_text()
    assert "2 runs: 2 done" in text and "[path]" in text
    assert str(tmp_path) not in text and not re.search(rf"\b{socket.gethostname()}\b", text)
    assert f">{page.stem}</a>" in (redacted.parent / "index.html").read_text()


def test_report_names_a_sweep_that_it_cannot_read(capsys, tmp_path):
    run = write_run(tmp_path / "runs", notebook="mine")
    (run.path.parent / "sweep-12345678.json").write_text('{"points": 5}')
    code, _, err = call(capsys, "report", "--runs-dir", tmp_path / "runs")
    assert code == 0 and "sweep-12345678.json: no page of this sweep" in err


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("run 05_grpo_docs_example -p learning_rate=nan", "parameter learning_rate=nan: expected float"),
        ("run 05_grpo_docs_example -p steps", "expected -p NAME=VALUE"),
        ("run 05_grpo_docs_example -p steps 5", "expected -p NAME=VALUE"),
        ("run 05_grpo_docs_example -p steps=1 -p steps=2", "steps is given twice"),
        ("run 05_grpo_docs_example --resume no-such-run", "not a run folder"),
        ("run 00_start_here 05_grpo_docs_example -p steps=1", "-p and --resume need a single notebook"),
        ("run 05_grpo_docs_example --force", "--force needs --resume RUN, with the run to take over"),
        ("run 00_start_here 05_grpo_docs_example --detach", "--detach need --executor slurm"),
        ("sweep 00_start_here --seed", "written `-p seed=VALUE`"),
        ("run 00_start_here -q 01_ppo_eos_stop", "unrecognized arguments: 01_ppo_eos_stop\n"),
        ("run 00_start_here --executor slurm --time long", "--time long: expected minutes"),
        ("run 00_start_here --executor slurm --mem much", "--mem much: expected GB"),
        ("list 99_none", "not found"),
        ("report", "make one with `workbench run NOTEBOOK`"),
    ],
)
def test_a_mistake_gives_one_line_and_code_2_and_starts_nothing(capsys, tmp_path, arguments, says):
    of_runs = ["--runs-dir", tmp_path / "runs"] if not arguments.startswith("list") else []
    code, out, err = call(capsys, *arguments.split(), *of_runs)
    assert (code, out) == (2, "")
    assert err.startswith("workbench: ")
    assert err.count("\n") == 1
    assert says in err
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_run_gives_one_line_and_exit_code_2(capsys, tmp_path):
    code, _, err = call(capsys, "report", tmp_path)
    why = "no completions are recorded in it; TRL records them with log_completions=True"
    assert (code, err) == (2, f"workbench: {tmp_path}: not a run folder (it has no params.json), and {why}\n")


def test_an_error_of_our_own_ends_with_3_and_says_what_to_do(capsys, monkeypatch, tmp_path):
    def broken(*_, **__):
        raise ValueError("too many values\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz12345678")

    monkeypatch.setattr(report, "audit_run", broken)
    code, out, err = call(capsys, "audit", tmp_path)
    assert (code, out) == (3, "")
    assert "Traceback (most recent call last)" in err and "hf_abc" not in err
    last = err.splitlines()[-1]
    assert last.startswith("workbench: an error of the workbench itself (ValueError: too many values")
    assert last.endswith("Report it with the lines above and what `workbench doctor` prints")


def test_memory_that_runs_out_is_no_error_of_our_own(capsys, monkeypatch, tmp_path):
    def broken(*_, **__):
        raise MemoryError

    monkeypatch.setattr(report, "audit_run", broken)
    code, out, err = call(capsys, "audit", tmp_path)
    assert (code, out) == (3, "")
    assert err.startswith("workbench: no memory is left; end other programs") and err.count("\n") == 1


COMMANDS = re.findall(r" = command\(_(\w+)", inspect.getsource(cli._parser))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_says_its_use_with_an_example_to_type(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")
    purpose = inspect.getdoc(getattr(cli, f"_{name}")).splitlines()[0]
    assert purpose in " ".join(call(capsys, "--help")[1].split())
    code, out, _ = call(capsys, name.replace("_", "-"), "--help")
    assert code == 0 and purpose in " ".join(out.split())
    (example,) = re.findall("^Example: workbench (.*)$", out, re.M)
    args = cli._parser().parse_args(shlex.split(example))
    assert args.command is getattr(cli, f"_{name}")


@pytest.mark.parametrize("arguments", ["", "fly", "run", "run 00_start_here --jobs two", "list --fly"])
def test_a_senseless_command_line_ends_2_with_the_usage(capsys, arguments):
    code, _, err = call(capsys, *arguments.split())
    assert code == 2
    assert err.startswith("usage: workbench")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [("audti outputs", "audit"), ("reward_report x", "reward-report"), ("run 00 --fail-on problems", "problem")],
)
def test_a_mistyped_command_or_choice_gets_the_closest_one(capsys, arguments, meant):
    code, _, err = call(capsys, *arguments.split())
    assert code == 2 and f"; did you mean '{meant}'? choose from '" in err


COMPLETE = """. {script}
COMP_WORDS=(workbench {words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_workbench
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script_for_bash(tmp_path_factory):
    need(find_spec("shtab"), "shtab")
    path = tmp_path_factory.mktemp("completion") / "workbench.bash"
    path.write_text(workbench("completion", "bash").stdout)
    return path


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("aud", "audit"),
        ("run 05_g", "05_grpo_docs_example"),
        ("run 05_grpo_docs_example --dr", "--dry-run"),
        ("sweep 05_grpo_docs_example --fail-on ''", "problem nothing"),
        ("audit data/aud", "data/audit"),
    ],
)
def test_bash_completes_commands_options_notebooks_and_files(script_for_bash, words, completed):
    text = COMPLETE.format(script=script_for_bash, words=words)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PATH": path}
    )
    assert process.stdout.split() == completed.split(), process.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_for_another_shell_names_each_command(capsys, shell):
    need(find_spec("shtab"), "shtab")
    code, out, _ = call(capsys, "completion", shell)
    assert code == 0 and all(name.replace("_", "-") in out for name in COMMANDS)


def test_without_shtab_a_line_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, _, err = call(capsys, "completion", "bash")
    assert (code, err) == (2, "workbench: workbench completion needs shtab: pip install shtab\n")


def test_only_the_command_completion_loads_shtab():
    code = "import sys; from workbench.cli import main; main(['list']); print('shtab' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert process.stdout.splitlines()[-1] == "False", process.stderr


def test_the_module_and_the_console_script_are_the_same_command():
    from importlib.metadata import entry_points

    (script,) = [e for e in entry_points(group="console_scripts") if e.name == "workbench"]
    assert script.load() is cli.main
    process = workbench("run", "99_none")
    assert process.returncode == 2
    assert "Traceback" not in process.stderr


@pytest.mark.slow
def test_run_says_how_it_ended_and_where_run_and_report_are(tmp_path):
    path = write_notebook(tmp_path / "hand_made.ipynb", "print('from the notebook')")
    process = workbench("run", path, "-p", "steps=7", "--runs-dir", tmp_path / "runs")
    (run,) = list_runs(tmp_path / "runs")
    assert process.returncode == 0
    assert f"run folder {run.path}" in process.stderr
    assert "starting the kernel; the imports of the first cell take a while\n" in process.stderr
    assert "from the notebook" in process.stderr
    assert f"hand_made {run.id}: done, steps 7" in process.stdout
    assert f"report {run.path / 'report.html'}" in process.stdout


def test_notebooks_are_copied_into_a_new_folder_and_named(capsys, tmp_path):
    folder = tmp_path / "my" / "notebooks"
    code, out, _ = call(capsys, "notebooks", folder)
    assert (code, out.splitlines()) == (0, [str(folder / path.name) for path in NOTEBOOKS])
    assert [(folder / path.name).read_text() for path in NOTEBOOKS] == [path.read_text() for path in NOTEBOOKS]
    assert "00_start_here.ipynb, " in call(capsys, "notebooks", folder)[2]  # there already: nothing is overwritten
    other = tmp_path / "mine"  # in whose place JupyterLab would not find the runs of this folder
    assert f"writes their runs to {other / 'runs'}; pass it as --runs-dir" in call(capsys, "notebooks", other)[2]


def test_local_notebooks_come_first_and_all_are_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = [write_notebook(tmp_path / "notebooks" / f"{name}.ipynb") for name in ("00_start_here", "zz_mine")]
    assert [find_notebook(path.stem) for path in own] == own
    assert find_notebook("01_ppo_eos_stop") == NOTEBOOKS[1]
    assert find_notebook("01") == NOTEBOOKS[1]
    assert list(list_notebooks()) == [*(path.stem for path in NOTEBOOKS), "zz_mine"]


def test_a_variable_without_a_notebook_folder_is_refused_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_NOTEBOOKS", str(tmp_path / "none"))
    code, _, err = call(capsys, "list", "00_start_here")
    assert (code, err.startswith("workbench: WORKBENCH_NOTEBOOKS=")) == (2, True)


@pytest.fixture(scope="module")
def much(tmp_path_factory):
    """A folder of runs whose table is longer than a pipe holds, and a notebook that prints as much."""
    folder = tmp_path_factory.mktemp("much")
    for n in range(300):
        write_run(folder / "runs", f"2026-{n}", result={"headline": {"name": "Ġ é" * 100, "value": 1}})
    write_run(folder / "few", result={"headline": {"name": "Ġ é" * 100, "value": 1}})
    write_notebook(folder / "é.ipynb", "print('Ġ é' * 100_000)")
    return folder


def in_shell(line: str) -> subprocess.CompletedProcess:
    command = f"{sys.executable} -m workbench {line}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True)


def test_closed_pipe_ends_a_command_quietly(much):
    process = in_shell(f"status --runs-dir {much / 'runs'} | head -c 1")
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.parametrize("command", daily(["run {0}/é.ipynb", "sweep {0}/é.ipynb -p seed=0..1"], "run {0}/é.ipynb"))
def test_runs_go_on_to_their_end_after_a_closed_pipe(much, tmp_path, command):
    process = in_shell(f"{command.format(much)} --runs-dir {tmp_path} 2>&1 | head -c 1")
    assert (process.returncode, process.stderr) == (141, "")
    assert {run.status["state"] for run in list_runs(tmp_path)} == {"done"}


@pytest.mark.parametrize(
    ("rest", "code", "says"), [("> /dev/full", 3, "workbench: [Errno 28] No space left on device; "), (">&-", 0, "")]
)
def test_output_to_a_full_disk_is_an_error_and_a_closed_one_none(much, rest, code, says):
    for runs in ("runs", "few"):  # more than a buffer holds, and less
        process = in_shell(f"status --runs-dir {much / runs} {rest}")
        assert (process.returncode, process.stderr.partition("free")[0]) == (code, says)


def test_a_latin_1_terminal_gets_other_characters_as_escapes(much):
    line = [sys.executable, "-m", "workbench", "status", "--runs-dir", str(much / "few")]
    process = subprocess.run(line, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "latin-1"})
    assert (process.returncode, process.stderr) == (0, b"")
    assert b"\\u0120 \xe9" in process.stdout


@pytest.mark.parametrize("name", ["python3", "ir"])  # one that is installed, one that is not
def test_notebook_of_another_language_is_refused(capsys, tmp_path, name):
    path = write_notebook(tmp_path / "mine.ipynb")
    path.write_text(path.read_text().replace('"python"', '"R"').replace('"python3"', f'"{name}"'))
    code, _, err = call(capsys, "run", path, "--runs-dir", tmp_path / "runs")
    assert code == 2 and f"the kernel {name} is of R; only Python notebooks run here" in err


def test_a_kernel_without_a_language_is_refused_unless_python(capsys, tmp_path):
    path = write_notebook(tmp_path / "mine.ipynb")
    text = path.read_text().replace(', "language": "python"', "")
    assert text != path.read_text()
    for name, code in [("julia-1.9", 2), ("myenv", 2), ("python3", 0)]:
        path.write_text(text.replace('"python3"', f'"{name}"'))
        got, _, err = call(capsys, "run", path, "--dry-run", "--runs-dir", tmp_path / "runs")
        assert got == code
        assert code == 0 or f"its kernel is {name}, of which the file does not say the language" in err


@pytest.mark.parametrize("metadata", [None, [], {"kernelspec": None}, {"workbench": None}])
def test_odd_metadata_of_a_notebook_is_refused_by_name(capsys, tmp_path, metadata):
    path = write_notebook(tmp_path / "mine.ipynb")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metadata": metadata}))
    code, _, err = call(capsys, "run", path, "--dry-run", "--runs-dir", tmp_path / "runs")
    assert code == 2 and re.match(r"workbench: .*mine.ipynb: metadata (None|\[\]|{.*): expected an object", err)


def test_the_name_of_a_kernel_commands_no_terminal(capsys, tmp_path):
    path = write_notebook(tmp_path / "mine.ipynb")
    path.write_text(path.read_text().replace('"python3"', '"x\\u001b[2J"'))
    err = call(capsys, "run", path, "--dry-run", "--runs-dir", tmp_path / "runs")[2]
    assert r"-k x\x1b[2J takes its own kernel" in err


@pytest.mark.parametrize("value", ["[1.0, .nan]", "{a: [-.inf]}", "{1: 2}"])
def test_a_value_that_a_run_would_record_as_another_is_refused(capsys, tmp_path, value):
    """Of a list with `.nan` the notebook got None."""
    path = write_notebook(tmp_path / "mine.ipynb", parameters="sizes = [1.0]")
    (tmp_path / "given.yaml").write_text(f"sizes: {value}")
    code, _, err = call(
        capsys, "run", path, "-f", tmp_path / "given.yaml", "--dry-run", "--runs-dir", tmp_path / "runs"
    )
    assert code == 2 and re.search(r"-f .*given.yaml: sizes: .*: expected finite numbers, and texts as the names", err)


def test_a_parameters_file_that_unfolds_without_end_is_refused(capsys, tmp_path):
    path = write_notebook(tmp_path / "mine.ipynb")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "p.yaml").write_text("\n".join(lines))
    code, _, err = call(capsys, "run", path, "-f", tmp_path / "p.yaml", "--runs-dir", tmp_path / "runs")
    assert code == 2 and "its aliases stand for more than 1,000,000 values" in err


# Another user, who has a number that no file knows, and reads what root may read: Python may lie in root's home.
NOBODY = ["setpriv", "--reuid=54321", "--clear-groups"]
NOBODY += [f"--{caps}-caps=+dac_override,+dac_read_search" for caps in ("inh", "ambient")]


@pytest.mark.rare
@pytest.mark.slow
def test_a_user_without_a_name_or_a_home_runs_and_reports(tmp_path):
    """As in a container that is started with a number for its user."""
    may = shutil.which("setpriv") and subprocess.run([*NOBODY, "true"], capture_output=True).returncode == 0
    need(may, "setpriv and the right to be another user")
    path = write_notebook(tmp_path / "hand_made.ipynb")
    env = {k: v for k, v in os.environ.items() if k not in ("USER", "LOGNAME")} | {"HOME": "/dev/null/home"}
    env["CUDA_VISIBLE_DEVICES"] = ""
    for arguments in (f"run {path}", f"sweep {path} -p seed=1", "status", "report", "report --redact"):
        command = [sys.executable, "-m", "workbench", *arguments.split(), "--runs-dir", str(tmp_path / "runs")]
        process = subprocess.run([*NOBODY, *command], capture_output=True, text=True, env=env, cwd=ROOT)
        assert (process.returncode, "Traceback" in process.stderr) == (0, False), (arguments, process.stderr)


def test_options_of_a_run_that_cannot_be_are_refused(capsys, tmp_path):
    path = write_notebook(tmp_path / "n.ipynb")
    run = ["run", path, "--dry-run", "--runs-dir", tmp_path / "runs"]
    for name, text in (("list", "[1]"), ("tag", "a: !!x b"), ("good", "steps: 5")):
        (tmp_path / name).write_text(text)
    assert "steps=5" in call(capsys, *run, "-f", tmp_path / "good")[1]
    for wrong, says in (
        (["-f", tmp_path / "list"], "list: expected a mapping, NAME: VALUE"),
        (["-f", tmp_path / "tag"], "expected YAML with values that a parameter can have"),
        (["--cwd", "/no/where"], "--cwd /no/where: no such folder"),
        (["-k", "nope"], "Jupyter has no such kernel"),
        (["--execution-timeout", "0"], "expected seconds above 0"),
        (["--execution-timeout", "inf"], "expected seconds above 0; leave it out for no limit"),
        (["--gpus", "a100:1"], "--gpus a100:1: expected"),
        *[([option, "1"], "--mem, --requeues, --setup") for option in ("--time", "--cpus", "--mem")],
        (["--requeues", "0"], "--print-template and --detach need --executor slurm"),
    ):
        code, _, err = call(capsys, *run, *wrong)
        assert code == 2 and says in err


def test_help_shows_a_runs_folder_with_a_percent_sign(capsys, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", "/data/50% off/runs")
    code, out, _ = call(capsys, "run", "--help")
    assert code == 0 and "/data/50% off/runs)" in " ".join(out.split())


def test_a_folder_that_is_gone_gives_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("WORKBENCH_RUNS", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, out, err = call(capsys, "status")
    assert (code, out) == (2, "") and err.startswith("workbench: the current folder is gone") and err.count("\n") == 1


def test_a_full_quota_says_what_to_do_and_shows_no_token(capsys, monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "/scratch/hf_abcdefghijklmnopqrstuvwxyz12345678/x")

    monkeypatch.setattr(cli, "list_runs", full)
    code, _, err = call(capsys, "status", "--runs-dir", tmp_path)
    assert code == 3 and "Disk quota exceeded: '/scratch/[token]/x'; free some space" in err


def test_rows_as_json_show_no_secret_and_are_strict_json(capsys, tmp_path):
    runs = [write_run(tmp_path, f"2026-{n}") for n in (1, 2)]
    (runs[0].path / "status.json").write_text('{"state": "HF_TOKEN=S3cretS3cret"}')
    (runs[1].path / "result.json").write_text('{"numbers": {"rise": NaN}}')
    out = call(capsys, "status", "--json", "--runs-dir", tmp_path)[1]
    rows = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert "state='HF_TOKEN=[token]'" in rows[0]["error"] and rows[1]["result"]["numbers"] == {"rise": None}


@pytest.mark.parametrize("name", ["two words", "-dash", "it's"])
def test_the_command_that_new_prints_can_be_pasted(capsys, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    out = call(capsys, "new", "--", name)[1]
    _, command, notebook = shlex.split(re.search("run it with `(.*)`", out)[1])
    assert call(capsys, command, notebook, "--dry-run", "--runs-dir", tmp_path / "runs")[1].startswith(
        f"run    {name}\n"
    )
