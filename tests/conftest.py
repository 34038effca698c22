"""What the tests share: an offline, one-thread environment, the starter model, hand-made notebooks and runs."""

import getpass
import os
import tempfile

# Set before any library reads them.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What the tests and their processes leave in the temporary folder goes when they end. pytest's own folders stay, to be looked
# at, and so does what torch compiled.
if "PYTEST_XDIST_WORKER" not in os.environ:
    usual = tempfile.gettempdir()
    SCRATCH = tempfile.TemporaryDirectory(prefix="wb-", ignore_cleanup_errors=True)  # short: sockets lie in it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(usual, f"torchinductor_{getpass.getuser()}"))
    os.environ["TMPDIR"] = tempfile.tempdir = SCRATCH.name

import contextlib
import json
import pickle
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import whole_run
from filelock import FileLock
from hypothesis import settings
from trl_version import HAS_PPO
from whole_run import (  # noqa: F401  # hooks of pytest
    pytest_addoption,
    pytest_runtest_logreport,
    pytest_runtest_setup,
    pytest_terminal_summary,
    pytest_xdist_make_scheduler,
)

from workbench.lab.late_vllm import import_vllm_late

import_vllm_late()  # before anything imports TRL

# Where the tests run in the background of a shell's script, Ctrl-C is ignored, and their processes would inherit that.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("workbench", deadline=None)  # no test is about time, least of all on a busy machine
settings.load_profile("workbench")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
HELPERS = Path(__file__).parent / "helpers"  # scripts that need a process of their own, and what several tests share
# The one release with PPO packs no rows, and its AsyncGRPO cannot be imported next to this vLLM.
collect_ignore = (
    [f"watch/test_{name}.py" for name in ("async", "named_faults", "planted_faults", "sceptics_trainers")]
    if HAS_PPO
    else ["training/test_ppo.py"]
)
# What is tested in which configuration is one table, of which vLLM is a part.
OF_THE_TABLE = ["training/test_configurations*.py", "training/test_what_is_tested.py"]
collect_ignore_glob = [] if find_spec("vllm") else OF_THE_TABLE


def pytest_configure(config) -> None:
    config.pluginmanager.register(whole_run.DocstringsWithoutPPO())


# Options that are left to the rare tests: compiling takes as long as ten others, and of the rest a neighbour is tried daily.
SELDOM = {"compile", "vision, text", "accumulation < generation", "eval groups", "control tokens"}


def stands_for_others(item, params: dict, options: set[tuple[str, str]]) -> bool:
    """Whether a configuration is tried from day to day: of each option GRPO's first case, but of none in `SELDOM`.

    `options`: the options of a test that were met, to which this one's is added.
    """
    if params.get("kind", "GRPO") != "GRPO":
        return False
    if "case" not in params:
        return True
    option = item.originalname, item.callspec.id.partition("-")[0]
    first = option not in options
    options.add(option)
    return first and option[1] not in SELDOM


def pytest_collection_modifyitems(items) -> None:
    """Of tests for each trainer, those of PPO are skipped where the installed TRL has none: from 1.13 on."""
    whole_run.order(items)
    options: set[tuple[str, str]] = set()
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.stem.startswith("test_configurations") and not stands_for_others(item, params, options):
            item.add_marker("rare")
        if not HAS_PPO and any(isinstance(value, str) and value == "PPO" for value in params.values()):
            item.add_marker(pytest.mark.skip(reason="this TRL has no PPOTrainer"))


def daily(cases, *chosen) -> list:
    """Cases of one behaviour as the parameters of a test: those chosen are tried from day to day, the others are rare.

    A case of several values is a tuple, and its first value stands for it.
    """
    names = [case[0] if isinstance(case, tuple) else case for case in cases]
    assert [name for name in chosen if name not in names] == [], "chosen, but no case"
    rows = []
    for name, case in zip(names, cases, strict=True):
        values = case if isinstance(case, tuple) else (case,)
        rows.append(pytest.param(*values, marks=[] if name in chosen else pytest.mark.rare))
    return rows


def need(present, reason: str) -> None:
    """Skip the test when a part of the machine is absent; where everything is to be present (CI), fail."""
    if not present:
        if os.environ.get("CI") == "true":
            pytest.fail(f"needs {reason}, and with CI=true nothing may be missing")
        pytest.skip(f"needs {reason}")


def workbench(*arguments, cwd=None, env=None, timeout=300) -> subprocess.CompletedProcess:
    """`python -m workbench ...` in a process of its own."""
    command = [sys.executable, "-m", "workbench", *map(str, arguments)]
    env = os.environ | (env or {})
    env.pop("PYTEST_CURRENT_TEST", None)  # else ipykernel captures output otherwise than for users; vLLM cannot start
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd or ROOT, env=env, timeout=timeout)


def call(capsys, *arguments) -> tuple[int, str, str]:
    """`workbench ...` in this process: exit code, stdout, stderr."""
    from workbench import cli

    try:
        code = cli.main([str(a) for a in arguments])
    except SystemExit as end:  # argparse
        code = end.code
    return code, *capsys.readouterr()


@pytest.fixture
def here(capsys):
    """`workbench ...` in this process, with the outcome of a process: the imports of one take longer than most of its work."""

    def command(*arguments) -> subprocess.CompletedProcess:
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # as in `workbench`
        code, out, err = call(capsys, *arguments)
        return subprocess.CompletedProcess(arguments, code, out, err)

    return command


def result_of(script: str, *arguments: str, env=None):
    """What a script of `helpers/` prints as JSON behind `RESULT `: an engine of vLLM stays for the life of its process."""
    command = [sys.executable, "-W", "ignore", str(HELPERS / script), *arguments]
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"} | (env or {})
    here = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # for `tools`
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | quiet | {"PYTHONPATH": here}, timeout=600
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, f"{script} {arguments} died:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(lines[0].removeprefix("RESULT "))


def in_two_processes(script: str, folder: Path, *arguments: str) -> None:
    """Run a script of `helpers/` twice, under torchrun; what it prints goes to `folder/out`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(HELPERS / script), str(folder), *arguments]
    path = [ROOT / "tests", HELPERS, *filter(None, [os.environ.get("PYTHONPATH")])]  # of the TRL that this runs on
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    with (folder / "out").open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as torchrun:
        try:
            code = torchrun.wait(900)  # for one that hangs: on a busy machine the longest takes 340 s
        finally:
            torchrun.terminate()  # it then ends its processes, as it does not when it is killed
    assert code == 0, (folder / "out").read_text()[-4000:]


_engines: subprocess.Popen | None = None


def on_vllm(module: str, *arguments: str):
    """`result(*arguments)` of a module of `helpers/`, from the one process in which vLLM's engines live."""
    global _engines
    from workbench.lab.batch.execute import kernel_environment

    need(find_spec("vllm"), "vLLM")
    need(find_spec("peft") or "from peft" not in (HELPERS / f"{module}.py").read_text(), "PEFT")
    log = Path(tempfile.gettempdir()) / f"on_vllm-{os.getpid()}.log"
    if _engines is None or _engines.poll() is not None:
        here = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # the package of this checkout
        quiet = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": here}
        quiet.pop("PYTEST_CURRENT_TEST", None)
        # A free one: TRL takes 29500, which two runs of the tests at a time both find free.
        quiet["MASTER_PORT"] = kernel_environment()["MASTER_PORT"]
        command = [sys.executable, "-W", "ignore", str(HELPERS / "on_vllm.py")]
        with log.open("w") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            _engines = subprocess.Popen(command, text=True, env=quiet, **pipes)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps([module, *arguments]), file=_engines.stdin, flush=True)
    watchdog = threading.Timer(900, _engines.kill)  # only keeps a broken engine from hanging
    watchdog.start()
    line = _engines.stdout.readline()
    watchdog.cancel()
    answer = json.loads(line or json.dumps({"error": f"died:\n{log.read_text()[-4000:]}"}))
    assert "error" not in answer, f"{module} {arguments}: {answer['error']}"
    return answer["result"]


@pytest.fixture(scope="session", autouse=True)
def _end_of_the_engines():
    yield
    if _engines:
        _engines.stdin.close()  # the end of its work
        try:
            _engines.wait(60)
        except subprocess.TimeoutExpired:
            _engines.kill()
            _engines.wait()


def until(condition, what: str = "it", seconds: float = 300):
    """The condition's value once it is true; the limit only keeps a broken test from hanging."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)
    return value


@pytest.fixture(scope="session")
def starter_folder() -> Path:
    """The starter model that the package ships."""
    from workbench.experiments.toys.starter import starter_model

    return starter_model()


@pytest.fixture(scope="session")
def example_run(starter_folder, tmp_path_factory):
    """The documented example on the starter, 8 steps through the command line: `(run, finished process)`.

    The workers of a run of the tests share it; nobody changes it.
    """
    from workbench.runs.run import list_runs

    shared = tmp_path_factory.getbasetemp()
    shared = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "example"
    with FileLock(f"{shared}.lock"):
        if not (shared / "process").is_file():
            arguments = ("-p", "steps=8", "-p", "seeds=1", "--runs-dir", shared / "runs")
            process = workbench("run", "05_grpo_docs_example", *arguments)
            (shared / "process").write_bytes(pickle.dumps(process))
    return list_runs(shared / "runs")[0], pickle.loads((shared / "process").read_bytes())


PARAMETERS = """\
seed: int = 0  # of everything; 0..1000
out_dir: str = ""  # run folder
interactive: bool = True  # widgets or static twins
steps: int = 3  # optimizer steps; 1..100"""
SETUP = 'from workbench import Result, open_run, save_result\nrun = open_run("hand_made", out_dir, {"steps": steps})'
SAVE = 'save_result(run, [Result("it ran", True)], {"steps": steps})'


# A cell that trains for 16 steps, to be interrupted: an import, and no experiment around it.
TRAINS = """\
from workbench import length_reward, make_recipe
from workbench.experiments import train
recipe = make_recipe("starter", max_steps=16, per_device_train_batch_size=8, num_generations=4)
train(recipe, reward_funcs=length_reward(), record_dir=run.path)"""


def write_notebook(path: Path, *cells: str, parameters: str = PARAMETERS, setup: str = SETUP, save: str = SAVE) -> Path:
    """A notebook whose middle cells are `cells`; an empty `save` leaves the last one out."""
    import nbformat.v4 as v4

    first = v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    rest = [v4.new_code_cell(source) for source in (setup, *cells, save) if source]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(v4.new_notebook(cells=[first, *rest], metadata=kernel)))
    return path


def append_table(folder: Path, table) -> None:
    """Add rows of completions, a DataFrame with `step`, to a record, as the recorder writes them."""
    from workbench.runs.completions import FILE
    from workbench.runs.files import append_rows, open_lines

    with open_lines(folder / FILE) as file:
        append_rows(file, table.to_dict("records"))


def write_run(root: Path, name: str = "2026-1", *, notebook="05_grpo_docs_example", state="done", **files):
    """A run folder by hand. `params`, `result`: dictionaries; `metrics`, `completions`: lists of rows."""
    import pandas as pd

    from workbench.lab.batch.code import code_of
    from workbench.runs import load_run, lock
    from workbench.runs.files import write_json
    from workbench.runs.run import GOING, record_execution, set_status

    path = root / notebook / name
    path.mkdir(parents=True)
    write_json(path / "params.json", files.get("params", {"seed": 1, "model": "starter"}))
    write_json(path / "env.json", {"python": "3.11", "packages": {"trl": "1.12.0"}})
    if state in GOING:
        lock.hold(path)
    set_status(path, state)
    if "executed" in files:  # the notebook's path
        record_execution(load_run(path), {"code": code_of(Path(files["executed"]))})
    if "result" in files:
        write_json(path / "result.json", files["result"])
    if "metrics" in files:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in files["metrics"]))
    if "completions" in files:
        append_table(path, pd.DataFrame(files["completions"]))
    return load_run(path)


@pytest.fixture(scope="session")
def vllm_server(starter_folder):
    """URL of a real vLLM server (CPU build) on the loopback interface that serves the starter model."""
    need(find_spec("vllm"), "vLLM")
    from workbench.experiments.vllm_server import serve

    with serve(str(starter_folder)) as url:
        yield url
