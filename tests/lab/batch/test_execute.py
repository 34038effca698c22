import errno
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, daily, until, workbench, write_notebook, write_run
from jupyter_client.connect import LocalPortCache

from workbench.errors import ParameterError
from workbench.lab.batch import execute as execute_module
from workbench.lab.batch.execute import execute_run, kernel_environment
from workbench.lab.batch.notebooks import find_notebook
from workbench.lab.batch.plan import plan_run
from workbench.runs import lock
from workbench.runs.files import read_json, write_json
from workbench.runs.run import list_runs, load_run, set_status
from workbench.runs.stop_request import request_stop, stop_request

WAIT = "import time\n(run.path / 'started').touch()\nfor _ in range(600): time.sleep(0.1)"


INJECTED = "fail = 0\nopen('PWNED', 'w').close()\nfail"


@pytest.fixture
def notebook(tmp_path):
    """Writes `hand_made.ipynb` from cells and returns its path as text."""
    return lambda *cells, **parts: str(write_notebook(tmp_path / "hand_made.ipynb", *cells, **parts))


def execute(path: str, root: Path, **params):
    run = plan_run(path, params, root=root).prepare()
    execute_run(run, notebook=path, quiet=True)
    return run


def descendants_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def started(path: str, root: Path) -> subprocess.Popen:
    """`workbench run` of a notebook that says when it has started, in a process of its own, from that moment on."""
    command, quiet = [sys.executable, "-m", "workbench", "run", path, "--runs-dir", str(root)], subprocess.DEVNULL
    runner = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    until(lambda: list(root.glob("*/*/started")))
    return runner


@pytest.mark.slow
def test_what_children_of_a_kernel_print_is_hidden_and_once(notebook, tmp_path):
    """Their lines stood in log.txt as they were, and once more without the secret."""
    token = "HF_TOKEN=hf_abcdefghijklmnopqrst2"
    echo = f"subprocess.run('echo child {token}; echo err {token} >&2', shell=True)"
    path = notebook(
        f"import os, subprocess, time\n{echo}\nos.write(1, b'raw HF_TOKEN=hf_abcdefghijklmnopqrst4\\n')\ntime.sleep(3)"
    )
    process = workbench("sweep", path, "-p", "seed=1,2", "--runs-dir", tmp_path / "runs")
    for run in list_runs(tmp_path / "runs"):
        log = (run.path / "log.txt").read_text()
        assert "abcdefgh" not in log + process.stdout + process.stderr
        assert [log.count(f"{word} HF_TOKEN=[token]") for word in ("child", "err", "raw")] == [1, 1, 1], log


@pytest.mark.slow
def test_a_dying_kernels_last_words_are_in_the_log(notebook, tmp_path):
    path = notebook(
        "import os, time\nos.write(2, b'HF_TOKEN=hf_abcdefghijklmnopqrst2 bad luck\\n')\ntime.sleep(3)\nos._exit(3)"
    )
    workbench("sweep", path, "-p", "seed=1,2", "--runs-dir", tmp_path / "runs")
    (run, _) = list_runs(tmp_path / "runs")
    assert run.status["state"] == "interrupted"
    assert "the kernel's last lines:\nHF_TOKEN=[token] bad luck\n" in (run.path / "log.txt").read_text()


@pytest.mark.parametrize(("taken", "state"), daily([(2, "done"), (3, "failed")], 2))
def test_a_kernel_whose_port_is_taken_starts_again(notebook, tmp_path, monkeypatch, taken, state):
    """Another kernel may take a port between Jupyter's choice and the kernel's bind."""
    original, starts = LocalPortCache.find_available_port, iter(range(100))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def find(cache, ip):  # five ports a start; the first of some starts is not free
            number = next(starts)
            return other.getsockname()[1] if number % 5 == 0 and number // 5 < taken else original(cache, ip)

        monkeypatch.setattr(LocalPortCache, "find_available_port", find)
        if state == "failed":
            with pytest.raises(RuntimeError, match="Kernel died before replying"):
                execute(notebook("1"), tmp_path / "runs")
        else:
            execute(notebook("1"), tmp_path / "runs")
    (run,) = list_runs(tmp_path / "runs")
    assert run.status["state"] == state and next(starts) == 15


def test_a_notebook_is_found_by_name_or_path_else_all_are_named(notebook, tmp_path):
    for name in ("00_start_here", "00_start_here.ipynb"):
        assert find_notebook(name) == ROOT / "notebooks" / "00_start_here.ipynb"
    assert find_notebook(notebook()) == tmp_path / "hand_made.ipynb"


@pytest.mark.parametrize("params", [{INJECTED: 1}, {"steps": "many"}, {"steps": [1]}, {"nothing": 1}, {"steps": 101}])
def test_unknown_parameters_are_not_written_and_the_run_stays(notebook, tmp_path, params):
    run = write_run(tmp_path / "runs", notebook="hand_made", state="interrupted", params=params)
    before = {p.name: p.read_bytes() for p in run.path.iterdir()}
    with pytest.raises(ParameterError, match="parameter"):
        execute_run(run, notebook=notebook(), quiet=True)
    assert {p.name: p.read_bytes() for p in run.path.iterdir()} == before


def test_a_runs_output_is_not_written_through_a_link_in_it(notebook, tmp_path):
    (tmp_path / "private").write_text("mine")
    for name in ("log.txt", "executing.ipynb"):
        run = plan_run(notebook("print('theirs')"), {}, root=tmp_path / "runs").prepare()
        (run.path / name).symlink_to(tmp_path / "private")
        execute_run(run, notebook=notebook("print('theirs')"), quiet=True)
        assert (tmp_path / "private").read_text() == "mine"
        assert run.status["state"] == ("failed" if name == "log.txt" else "done")


def test_kernels_get_own_ports_and_one_thread_if_nothing_is_set(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    one, other = kernel_environment(7), kernel_environment(-1)
    assert one["MASTER_PORT"] != other["MASTER_PORT"]
    assert (one["PYTHONHASHSEED"], other["PYTHONHASHSEED"]) == ("7", str(2**32 - 1))
    assert one["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert kernel_environment(0)["OMP_NUM_THREADS"] == "8"


def test_a_stop_asked_of_an_earlier_execution_ends_no_later_one(notebook, tmp_path, monkeypatch):
    path = notebook()
    run = plan_run(path, {}, root=tmp_path / "runs").prepare()
    request_stop(run, "cancelled")
    asked = []

    def executes(*_, **__):
        asked.append(stop_request(run.path))
        return "done", None

    monkeypatch.setattr(execute_module, "_execute_notebook", executes)
    assert execute_run(run, notebook=path, quiet=True) == "done"
    assert asked == [None]


def test_a_notebook_that_cannot_be_put_in_place_fails_the_run(notebook, tmp_path, monkeypatch):
    path = notebook()
    run = plan_run(path, {}, root=tmp_path / "runs").prepare()
    plain = os.replace

    def stale(source, target):
        if Path(target).name == "executed.ipynb":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        plain(source, target)

    def executes(source, output, *_, **__):
        output.write_text("{}")
        return "done", None

    monkeypatch.setattr(os, "replace", stale)
    monkeypatch.setattr(execute_module, "_execute_notebook", executes)
    assert execute_run(run, notebook=path, quiet=True) == "failed"
    assert "Stale file handle" in run.status["error"]


def test_memory_that_runs_out_in_the_runner_fails_the_run(notebook, tmp_path, monkeypatch):
    def executes(*_, **__):
        raise MemoryError

    monkeypatch.setattr(execute_module, "_execute_notebook", executes)
    path = notebook()
    run = plan_run(path, {}, root=tmp_path / "runs").prepare()
    assert execute_run(run, notebook=path, quiet=True) == "failed"
    assert run.status["error"] == "MemoryError: no memory is left"


def test_run_of_other_code_than_planned_fails_before_it_begins(notebook, tmp_path):
    entry = plan_run(notebook(), {}, root=tmp_path / "runs")
    run = entry.prepare()
    path = notebook("print('edited while it waited for a GPU')")
    assert execute_run(run, notebook=path, quiet=True, **entry.how) == "failed"
    assert "has changed since the run was planned" in run.status["error"] and run.executions == []


def test_a_run_with_an_unreadable_notebook_fails_with_the_reason(notebook, tmp_path):
    path = notebook()
    run = plan_run(path, {}, root=tmp_path / "runs").prepare()
    Path(path).write_text('{"cells": [')
    with pytest.raises(ParameterError):
        execute_run(run, notebook=path, quiet=True)
    assert run.status["state"] == "failed" and "not a notebook of format 4" in run.status["error"]


# --- how a run ends ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_good_notebook_ends_done_and_is_itself_unchanged(notebook, tmp_path):
    path = notebook(
        "import os, sys\nprint('héllo')\nopen('here', 'w').close()\nnumbers = {'steps': steps}\n"
        "numbers |= {'seed': int(os.environ['PYTHONHASHSEED']), 'widgets': interactive, 'torch': 'torch' in sys.modules}",
        save='save_result(run, [Result("it ran", True)], numbers | {"out": out_dir})',
    )
    before = Path(path).read_bytes()
    run = execute(path, tmp_path / "runs", steps=5, seed=9)
    assert run.status["state"] == "done"
    assert run.result["numbers"] == {"steps": 5, "seed": 9, "widgets": False, "torch": False, "out": str(run.path)}
    assert (tmp_path / "here").is_file()  # as in JupyterLab
    assert "héllo" in (run.path / "log.txt").read_text()
    assert Path(path).read_bytes() == before
    assert not (run.path / "executing.ipynb").exists()


@pytest.mark.slow
def test_a_kernel_takes_modules_next_to_the_notebook_not_the_run(notebook, tmp_path, monkeypatch):
    """Whoever made the run's folder may be anyone; and it is a kernel of this Python, whatever Jupyter calls `python3`."""
    kernels = tmp_path / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text('{"argv": ["/bin/false"], "language": "python", "display_name": "another"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    (tmp_path / "mine.py").write_text("value = 7")
    path = notebook("import os\nos.chdir(run.path)\nimport mine, sys, colorsys\nassert mine.value == 7")
    run = plan_run(path, {}, root=tmp_path / "runs").prepare()
    for name in ("colorsys", "workbench", "ipykernel_launcher"):
        (run.path / f"{name}.py").write_text("import pathlib; pathlib.Path('PWNED').touch()")
    execute_run(run, notebook=path, quiet=True)
    assert (run.status["state"], run.status["error"]) == ("done", None)
    assert not (run.path / "PWNED").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", daily(["import sys\nsys.exit(0)", "import sys\nsys.exit(3)"], "import sys\nsys.exit(0)")
)
def test_leaving_midway_is_a_failure_whatever_the_exit_code(notebook, tmp_path, code):
    run = execute(notebook(code), tmp_path / "runs")
    assert run.status["state"] == "failed"
    assert run.status["error"]


@pytest.mark.slow
def test_a_notebook_without_a_result_is_done_without_a_headline(notebook, tmp_path):
    path, root = notebook(save=""), tmp_path / "runs"
    run = plan_run(path, {}, root=root).prepare()
    (run.path / "result.json").write_text('{"headline": null}')
    execute_run(run, notebook=path, quiet=True)
    assert (run.status["state"], run.result) == ("done", {})


LEAVES = """\
import os, time
os.system("setsid sleep 600 > /dev/null 2>&1 & echo $! > pid-1")
if not (pid := os.fork()):
    os.setsid()  # the kernel's own session is ended with it
    time.sleep(600)
open("pid-2", "w").write(str(pid))"""


@pytest.mark.slow
def test_what_a_notebook_leaves_behind_does_not_keep_its_run(tmp_path):
    """A notebook that opens no run, in a folder whose name has braces, which papermill would fill in."""
    here = tmp_path / "proj {seed} {x}"
    run = execute(str(write_notebook(here / "n {y}.ipynb", LEAVES, setup="", save="")), tmp_path / "runs")
    left = [psutil.Process(int((here / f"pid-{n}").read_text())) for n in (1, 2)]
    try:
        assert run.status["state"] == "done", run.status
        assert all(process.status() != psutil.STATUS_ZOMBIE for process in left)
        assert lock.hold(run.path, wait=0)
    finally:
        lock.let_go(run.path)
        for process in left:
            process.kill()


OWN = """\
\"\"\"What papermill takes.\"\"\"
import os
%matplotlib inline
steps = 3
lr: float = 1 / 4
names = None
layers = [0, 1]"""


@pytest.mark.slow
def test_notebook_of_ones_own_runs_and_is_swept(here, tmp_path):
    folder = tmp_path / "theirs"
    path = write_notebook(folder / "own.ipynb", parameters=OWN, setup="import helper\nprint(open('data.csv').read())",
                          save="print((steps, lr, names, layers, helper.value, os.getcwd()))")  # fmt: skip
    (folder / "data.csv").write_text("a,b")
    (folder / "helper.py").write_text("value = 7")
    (tmp_path / "more.yaml").write_text("{names: [a, b], layers: [2], lr: 0.5}")
    own = ["run", path, "--runs-dir", tmp_path / "runs"]
    given = ["-p", "steps=0.5", "-p", "lr=0.25", "-f", tmp_path / "more.yaml", "-k", "python3"]
    process = here(*own, *given, "--cwd", folder)
    assert process.returncode == 0, process.stderr
    assert f"a,b\n(0.5, 0.25, ['a', 'b'], [2], 7, '{folder}')" in process.stderr
    assert list_runs(tmp_path / "runs")[0].params == {"names": ["a", "b"], "layers": [2], "lr": 0.25, "steps": 0.5}
    sweep = ["sweep", path, "-p", "steps=1,2", "-f", tmp_path / "more.yaml"]
    sweep += ["--runs-dir", tmp_path / "runs", "--out", tmp_path / "out"]
    first, second = workbench(*sweep), here(*sweep)
    assert first.returncode == 0 and "2 of 2 runs are done, with no failed check" in first.stdout, first.stderr
    assert "skip   steps=1" in second.stdout  # done with this code, so the second time nothing is left to do
    (folder / "helper.py").write_text("value = 8")
    plan = here(*sweep, "--dry-run").stdout
    assert re.findall(r"run    (steps=\d)  \(\S+ is done, with other code\)\n", plan) == ["steps=1", "steps=2"]
    report = next((tmp_path / "runs").glob("*/*/report.html")).read_text()
    assert f"workbench run {path}" in report


@pytest.mark.slow
def test_notebook_without_parameters_cell_takes_any(here, tmp_path):
    path = write_notebook(
        tmp_path / "bare.ipynb", parameters="pass", setup="", save="print(seed)\nimport time; time.sleep(99)"
    )
    path.write_text(path.read_text().replace('"parameters"', '"other"'))
    process = here("run", path, "-p", "seed=7", "--execution-timeout", "2", "--runs-dir", tmp_path / "runs")
    (run,) = list_runs(tmp_path / "runs")
    assert (process.returncode, run.status["state"], run.params) == (1, "failed", {"seed": 7})
    assert "timed out" in run.status["error"] and "7\n" in (run.path / "log.txt").read_text()


@pytest.mark.slow
def test_each_execution_is_kept_and_other_code_is_said(here, notebook, tmp_path):
    root = tmp_path / "runs"
    assert here("run", notebook("1 / 0"), "--runs-dir", root).returncode == 1
    process = here("run", notebook("pass"), "--resume", "--runs-dir", root)
    (run,) = list_runs(root)
    assert f"{run.id} goes on with other code than it began with" in process.stderr
    first, second = run.executions
    assert first["notebook"]["code"] != second["notebook"]["code"] and first["time"] < second["time"]
    assert second["notebook"]["path"] == notebook() and second["environment"]["packages"]["papermill"]
    assert "was executed 2 times, with different code" in (run.path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "save, code, says",
    [({}, 0, "hand_made .*: done, steps 3"),
     ({"save": 'save_result(run, [Result("it rises", False), Result("it did", False, claim="A0.1")])'}, 1,
      "1 checks failed: it rises")]
)  # fmt: skip
def test_the_exit_code_is_0_only_for_a_run_whose_checks_hold(here, notebook, tmp_path, save, code, says):
    process = here("run", notebook("pass", **save), "--runs-dir", tmp_path / "runs", "-q")
    assert process.returncode == code
    assert re.search(says, process.stdout)
    assert (list_runs(tmp_path / "runs")[0].path / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("how", daily([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], signal.SIGTERM))
def test_a_stopped_runner_leaves_a_run_interrupted_and_no_kernel(notebook, tmp_path, how):
    runner = started(notebook(WAIT), tmp_path / "runs")
    try:
        (run,) = list_runs(tmp_path / "runs")
        assert run.status["state"] == "running"
        kernels = descendants_of(runner.pid)
        assert kernels
        runner.send_signal(how)
        code = runner.wait(60)
    finally:
        runner.kill()
    until(lambda: run.status["state"] == "interrupted", "the kernel of a killed runner to notice")
    assert code == (-how if how == signal.SIGKILL else 130)
    until(lambda: not any(k.is_running() and k.status() != psutil.STATUS_ZOMBIE for k in kernels))


@pytest.mark.rare
@pytest.mark.slow
def test_plain_papermill_runs_a_notebook_too(starter_folder, tmp_path):
    command = [sys.executable, "-m", "papermill", str(find_notebook("05_grpo_docs_example")), "out.ipynb"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WORKBENCH_RUNS")}
    process = subprocess.run([*command, "-p", "steps", "3"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    (run,) = list_runs(tmp_path / "runs")
    assert run.status["state"] == "done"
    assert run.metrics["step"].tolist() == [1, 2, 3]
    assert load_run(run.path).params["steps"] == 3


@pytest.mark.rare
@pytest.mark.slow
def test_of_two_resumes_at_once_one_runs_the_other_is_refused(notebook, tmp_path):
    steps = "import time\nfor n in range(3): open(run.path / 'steps.txt', 'a').write(f'{n}\\n'); time.sleep(0.5)"
    path, root = notebook(steps), tmp_path / "runs"
    run = plan_run(path, {}, root=root).prepare()
    set_status(run.path, "interrupted", "for the test")
    lock.let_go(run.path)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda _: workbench("run", path, "-q", "--resume", "--runs-dir", root), range(2)))
    assert sorted(process.returncode for process in ended) == [0, 2]
    (refused,) = [process.stderr for process in ended if process.returncode == 2]
    assert re.search(r"process \d+ on host .* holds its lock|is (queued|running|done)|nothing to resume", refused)
    assert (run.path / "steps.txt").read_text().split() == ["0", "1", "2"]
    assert run.status["state"] == "done"


@pytest.mark.slow
def test_force_takes_what_cannot_be_checked_but_nothing_alive(here, notebook, tmp_path):
    path, root = notebook(), tmp_path / "runs"
    run = plan_run(path, {}, root=root).prepare()
    resume = ["run", path, "-q", "--resume", run.id, "--runs-dir", root]
    process = here(*resume, "--force")
    assert (
        process.returncode == 2
        and f"(process {os.getpid()} on host {os.uname().nodename}: cancel it first)" in process.stderr
    )
    lock.let_go(run.path)
    status = read_json(run.path / "status.json", {})
    write_json(run.path / "status.json", status | {"state": "running", "owner": {"pid": 1, "host": "far"}})
    process = here(*resume)
    assert process.returncode == 2
    assert "running on far, as its status says; cannot be checked from here" in process.stderr
    assert "if that has ended, `--force` takes the run" in process.stderr
    process = here(*resume, "--force")
    assert process.returncode == 0, process.stderr
    assert "--force: takes the run although it is running on far, as its status says; cannot be" in process.stderr
    assert run.status["state"] == "done"


@pytest.mark.slow
def test_a_kernel_of_a_killed_runner_keeps_its_run_until_its_end(here, notebook, tmp_path):
    runner = started(notebook(WAIT), tmp_path / "runs")
    (run,) = list_runs(tmp_path / "runs")
    (kernel,) = [p for p in descendants_of(runner.pid) if "ipykernel" in " ".join(p.cmdline())]
    kernel.suspend()  # it cannot notice that its runner is gone
    runner.kill()
    runner.wait()
    assert run.status["state"] == "running"
    assert here("run", notebook(WAIT), "--resume", run.id, "--runs-dir", tmp_path / "runs").returncode == 2
    kernel.resume()
    until(lambda: run.status["state"] == "interrupted", "the kernel to end")


@pytest.mark.slow
def test_long_output_is_cut_in_the_notebook_and_whole_in_the_log(notebook, tmp_path):
    cells = "for n in range(3): print('x' * 700_000, flush=True)", "print('short')"
    run = execute(notebook(*cells), tmp_path / "runs")
    assert (run.path / "log.txt").read_text().count("x") == 2_100_000
    executed = (run.path / "executed.ipynb").read_text()
    assert 1_000_000 <= executed.count("x") < 1_001_000
    assert "after 1,000,000 characters is in log.txt" in executed and "short" in executed


@pytest.mark.slow
def test_files_of_the_notebook_s_own_form_leave_a_page(here, notebook, tmp_path):
    cell = "import json, pathlib\nhere = pathlib.Path(out_dir)\n(here / 'executed.ipynb').mkdir()\n"
    cell += "(here / 'result.json').write_text(json.dumps({'headline': 'best', 'numbers': [1]}))"
    process = here("run", notebook(cell, save=""), "--runs-dir", tmp_path / "runs")
    (run,) = list_runs(tmp_path / "runs")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert "headline='best': expected an object" in run.status["error"] and run.status["state"] == "failed"
    assert "headline=" in (run.path / "report.html").read_text() and (run.path / "executed.ipynb").is_file()
