"""Each write, rename, lock, sync and call of Slurm fails once, at its own place, and the run, sweep or resume goes on.

    python -m benchmarks.every_place --out data/measured/every_place.json
    python -m benchmarks.every_place --every 20       # every twentieth place
    python -m benchmarks.every_place --minutes 25     # until the time is over, in an order that leaves no part out
    python -m benchmarks.every_place --spread         # each fault once in each scenario, and at each kind of call

A training without a fault is recorded first, with the calls that write below its folder: these are the places. For each place
and each fault the same command is executed once more and the fault happens there. Then every page is built, the command is
given again without a fault, and the record is compared with the first one, byte for byte. The notebook is executed in the
process of its runner, and its training is a stub (`stub_training`); recorder, runner, plan, locks and pages are the real ones.
A sweep on Slurm has its commands from `stub_slurm`. `kill` is what the kernel does to a process when memory runs out, `memory`
is Python's own `MemoryError`; a call of Slurm is `refused`, or done with its answer `lost`.
"""

import builtins
import collections
import contextlib
import dataclasses
import errno
import fcntl
import functools
import gc
import hashlib
import io
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat

from benchmarks.stub_slurm import LOST, REFUSED, StubSlurm
from tools.record import ROOT, made_with, measured, parser, publish, run_main
from workbench import cli
from workbench.audit import rules_data
from workbench.curves import figures
from workbench.errors import TrainingStopped
from workbench.lab.batch import execute, gpus, run
from workbench.lab.late_vllm import import_vllm_late
from workbench.lab.reports import build_index, build_report, sweep
from workbench.runs import environment, lock
from workbench.runs.files import is_temporary
from workbench.runs.run import GOING, Run, list_runs
from workbench.runs.summary import RunSummary

FAULTS = {
    "open": ("ENOSPC", "EIO", "ESTALE", "kill", "memory"),
    "write": ("ENOSPC", "EIO", "ESTALE", "kill", "torn", "memory"),
    "rename": ("EIO", "ESTALE", "kill"),
    "sync": ("EIO", "ESTALE", "kill"),
    "lock": ("EIO", "ESTALE", "kill"),
    "slurm": ("refused", "lost", "kill"),
}
_SAID = {
    "refused": REFUSED,
    "lost": LOST,
    "memory": "memory",
}  # what a fault is named by; of errors what the system says
_GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole parts, are spread evenly
_NAMES = re.compile(r"/\S*/|\b[0-9a-f]{32}\b")  # of folders and temporary files, which are others each time
_package_versions = functools.cache(environment.package_versions)
_PATIENCE_S = 120  # of a command, whose training takes no time
_COMPARED = (
    "params.json",
    "recipe.json",
    "metrics.jsonl",
    "completions.jsonl",
    "progress.json",
    "result.json",
    "audit.json",
)
NOTEBOOK = [
    "seed: int = 0  # of the training; 0..1000\nout_dir: str = ''  # run folder",
    "from stub_training import train_stub\n"
    "from workbench import Result, open_run, save_result\n"
    "run = open_run('every_place', out_dir, {'seed': seed})",
    "weight = train_stub(seed, run.path)",
    "save_result(run, [Result('it trained', True)], {'weight': weight})",
]


# --- faults ---------------------------------------------------------------------------------------------------------


class Faults:
    """Counts the calls that write below a folder, in all processes forked from this one, and lets one of them fail.

    Args:
        folder: calls that concern other folders are left alone.
        place: number of the call, from 1; 0 for none.
        fault: an errno's name, `kill` (of the process, before the call), `torn` (after half of the bytes), `memory`, or what
            happens to a call of Slurm: `refused`, `lost`. A full disk (ENOSPC) stays full: later writes fail too.
    """

    def __init__(self, folder: Path, place: int = 0, fault: str = ""):
        self._folder, self._place, self._fault = os.path.realpath(folder), place, fault
        self._count = multiprocessing.get_context("fork").Value("i", 0)
        self.calls = Path(f"{self._folder}.calls")  # a line each: kind and file
        self._calls = os.open(self.calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def install(self) -> None:
        """Put the counting calls in the place of Python's, for the life of this process."""
        functions = {"open": (os.open, 0), "rename": (os.replace, 1), "sync": (os.fsync, 0)}
        for kind, (function, at) in functions.items():
            setattr(os, function.__name__, self._counting(function, kind, at))
        fcntl.flock = self._counting(fcntl.flock, "lock", 0)
        self._open_file = io.open
        builtins.open = io.open = self._open

    def _counting(self, function: Callable, kind: str, at: int) -> Callable:
        def call(*arguments, **named):
            makes = kind != "open" or arguments[1] & os.O_CREAT
            if makes and (path := self._concerned(arguments[at])):
                self.happens(kind, path)
            return function(*arguments, **named)

        return call

    def _open(self, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        path = self._concerned(file) if set(mode) & set("wax") else ""
        if not path:
            return self._open_file(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            self.happens("open", path)
        raw = _File(self, path, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if "b" in mode:
            return raw if buffering == 0 else io.BufferedWriter(raw)
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, newline, buffering == 1)

    def _concerned(self, file) -> str:
        """The path of a file, by name or number, below the folder; empty of any other."""
        try:
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.path.abspath(os.fsdecode(file))
        except OSError:
            return ""
        return path if f"{path}/".startswith(f"{self._folder}/") else ""

    def asks_slurm(self, name: str) -> str:
        """Count a call of one of Slurm's commands, and say how it fails where it is its turn."""
        return self.happens("slurm", name)

    def happens(self, kind: str, path: str, write_half: Callable[[], object] | None = None) -> str:
        """Count a call, and fail it where it is its turn; returns the fault where the caller has to do that."""
        with self._count.get_lock():
            self._count.value += 1
            number = self._count.value
        os.write(self._calls, f"{kind} {Path(path).name}\n".encode())
        stays_full = self._fault == "ENOSPC" and kind == "write" and number > self._place > 0
        if number != self._place and not stays_full:
            return ""
        if self._fault in ("refused", "lost"):
            return self._fault
        if self._fault == "memory":
            raise MemoryError
        if self._fault == "torn" and write_half:
            write_half()
        if self._fault in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, self._fault)
        raise OSError(code, os.strerror(code), path)


class _File(io.FileIO):
    """A file opened for writing, whose every write to the system is counted."""

    def __init__(self, faults: Faults, path: str, *how):
        super().__init__(*how)
        self._faults, self._path = faults, path

    def write(self, data) -> int:
        whole = bytes(data)
        self._faults.happens("write", self._path, lambda: super(_File, self).write(whole[: len(whole) // 2]))
        return super().write(whole)


# --- a command in a process of its own that is forked from this one ---------------------------------------------------


def forked(call: Callable[[], int], said: Path) -> int:
    """The exit code of a call in a forked process, negative where a signal ended it; what it prints goes into a file."""
    child = os.fork()
    if child:
        end = time.monotonic() + _PATIENCE_S
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
    code = 99
    try:
        with said.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        warnings.simplefilter("ignore")
        code = call()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def command(words: Sequence[str], faults: Faults | None = None, cluster: Path | None = None) -> int:
    """`workbench WORDS` in this process, whose kernels and runs are forked from it; `cluster`: the jobs of a stub Slurm."""
    from workbench.training import recording  # `warm_up` has seen to it that no vLLM comes with it

    execute._execute_notebook = in_this_process
    run._fork_server = lambda: types.SimpleNamespace(Process=_Forked)
    environment._output = lambda words: ""  # nothing about the machine is compared, and asking takes longest
    gpus.visible_gpus = list
    environment.package_versions = _package_versions
    rules_data._published = dict  # documented runs are no part of a record, and reading them takes longest
    sweep.list_baselines = list
    figures.DescribedFigure.png = lambda figure: b""  # a figure is part of a page, and no file of its own
    recording.time = types.SimpleNamespace(monotonic=lambda: 0.0)  # else no two records are the same
    if cluster:
        stub_slurm(cluster, faults).install()
    if faults:
        faults.install()
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)


def stub_slurm(cluster: Path, faults: Faults | None = None) -> StubSlurm:
    return StubSlurm(cluster, faults.asks_slurm if faults else lambda name: "", forked)


class _Forked(multiprocessing.get_context("fork").Process):
    """The process of a run in a sweep. A forked process closes the locks that it inherits: it gets this one as a copy."""

    def __init__(self, target, args):
        self._copies = [os.dup(argument) for argument in args if isinstance(argument, run._OpenFile)]
        copies = iter(self._copies)
        super().__init__(target=target, args=[next(copies) if isinstance(a, run._OpenFile) else a for a in args])

    def start(self) -> None:
        super().start()
        for number in self._copies:
            os.close(number)


def in_this_process(source: Path, output: Path, params: dict, start: Mapping, display, **_) -> tuple[str, str | None]:
    """In the place of papermill: the cells of a notebook, one after another, saved after each."""
    os.environ |= start["env"]
    held = dict(lock._held)
    lock._held.clear()  # a kernel has the open lock of its runner, and does not hold it itself
    try:
        return _execute(nbformat.read(source, 4), output, params, display)
    finally:
        lock._held.update(held)


def _execute(notebook, output: Path, params: dict, display) -> tuple[str, str | None]:
    names: dict = {}
    for number, cell in enumerate(notebook.cells):
        cell.metadata["papermill"] = {"status": "running"}
        _save(notebook, output)
        try:
            with contextlib.redirect_stdout(display):
                exec(compile(cell.source, f"cell {number}", "exec"), names)
        except TrainingStopped as stopped:
            return "interrupted", str(stopped)
        except Exception as error:
            cell.metadata["papermill"]["status"] = "failed"
            _save(notebook, output)
            return "failed", f"cell {number}: {type(error).__name__}: {error}"
        cell.metadata["papermill"]["status"] = "completed"
        if number == 0:
            names |= params
    _save(notebook, output)
    return "done", None


def _save(notebook, output: Path) -> None:
    with output.open("w", encoding="utf-8") as file:
        nbformat.write(notebook, file)


# --- what is compared -----------------------------------------------------------------------------------------------


def record_of(one: Run) -> dict[str, bytes]:
    """The bytes of all that a run has recorded, by its file; of the executed notebook only how its cells ended."""
    files = [one.path / name for name in _COMPARED]
    files += [path for path in sorted(one.path.glob("checkpoints/**/*")) if path.is_file()]
    record = {str(path.relative_to(one.path)): path.read_bytes() for path in files if path.is_file()}
    with contextlib.suppress(OSError, ValueError):  # none, or one that a full disk cut short
        cells = json.loads((one.path / "executed.ipynb").read_text())["cells"]
        ends = [cell["metadata"].get("papermill", {}).get("status", "not begun") for cell in cells]
        record["cells"] = json.dumps(ends).encode()
    return record


def by_seed(runs: Sequence[Run]) -> dict[int, dict[str, bytes]]:
    return {one.params["seed"]: record_of(one) for one in runs}


def rows_and_state(record: Mapping[str, bytes]) -> list:
    """What must be right where bytes may differ: steps, rows, and how the cells ended."""
    names = ("metrics.jsonl", "completions.jsonl", "cells")
    return [record.get(name, b"").splitlines() for name in names]


def shape_of(runs: Sequence[Run]) -> str:
    """A digest of what the pages of these runs depend on: states, errors without the names of folders, bytes of records."""
    digest = hashlib.sha256()
    for one in runs:
        error = _NAMES.sub("", str(one.status["error"]))
        digest.update(json.dumps([one.status["state"], error]).encode())
        for name, content in sorted(record_of(one).items()):
            digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def pages(runs_dir: Path, folder: Path, built: set[str]) -> Iterator[str]:
    """Build every page of the runs as they are, once for each shape; a sentence for what is wrong with one."""
    runs = list_runs(runs_dir)
    yield from (
        f"{one.id} reads as {one.status['state']}, and nobody executes it"
        for one in runs
        if one.status["state"] in GOING
    )
    if (shape := shape_of(runs)) in built:
        return
    built.add(shape)
    if runs and "cannot be read" in build_index(runs, folder).read_text():
        yield "the index cannot read a run"
    for one in runs:
        state = one.status["state"]
        _ = RunSummary.of(one).line
        for path in (one.path / "report.html", build_report(one, redact=True)):
            if state not in path.read_text():
                yield f"{path.name} of {one.id} does not say {state}"


def left_over(runs_dir: Path) -> Iterator[str]:
    """What nobody removes: files under temporary names, and locks that are held."""
    for path in runs_dir.rglob("*"):
        being_made = path.parent.parent.parent == runs_dir and not (path.parent / "params.json").exists()
        if is_temporary(path.name) and not being_made:  # what is left of a run that was being made goes after an hour
            yield f"temporary file {path.relative_to(runs_dir)}"
        if path.name == lock.LOCK:
            with lock.looked_at(path.parent) as free:
                if not free:
                    yield f"lock held: {path.relative_to(runs_dir)}"


# --- places ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A command, given in a folder with these runs."""

    name: str
    words: Callable[[Path], list]
    before: Path | None = None
    on_slurm: bool = False

    def cluster(self, folder: Path) -> Path | None:
        """The jobs of its Slurm: next to the folder, where no call is counted."""
        return Path(f"{folder}.jobs") if self.on_slurm else None


def _run_again(runs_dir: Path, words: list) -> list | None:
    runs = list_runs(runs_dir)
    if not runs:
        return [word for word in words if word != "--resume"]
    if runs[-1].status["state"] == "done":
        return None
    return [*(word for word in words if word != "--resume"), "--resume"]


def after_a_fault(
    scenario: Scenario, folder: Path, undisturbed: Mapping, rc: int, fault: str, built: set[str]
) -> list[str]:
    """Build the pages, give the command again, build the pages again, and say what is wrong; in a process of its own."""
    runs_dir, cluster = folder / "runs", scenario.cluster(folder)
    if cluster:  # the jobs of a submitter that is gone run, and somebody asks for their state
        slurm = stub_slurm(cluster)
        slurm.install()  # else a job waits a minute for its submitter
        slurm.run_pending()
        command(["status", "--runs-dir", runs_dir], cluster=cluster)
    wait_for(runs_dir)
    problems = list(pages(runs_dir, folder / "reports", built))
    said = (folder / "said").read_text(errors="replace")
    if fault not in ("kill", "torn"):
        errors = "".join(str(one.status["error"]) for one in list_runs(runs_dir))
        if "Traceback (most recent call last)" in said:
            problems.append(f"a traceback: {said[-600:]}")
        words = _SAID.get(fault) or os.strerror(getattr(errno, fault))
        if rc and words not in said + errors:
            problems.append(f"ended with {rc}, and nothing says why: {said[-600:]}")
    words = scenario.words(folder)
    words = words if words[0] == "sweep" else _run_again(runs_dir, words)
    if words and (code := command(words, cluster=cluster)):
        problems.append(
            f"given again, the command ends with {code}: {(folder / 'said').read_text(errors='replace')[-600:]}"
        )
    problems += pages(runs_dir, folder / "reports", built)
    problems += left_over(runs_dir)
    runs = list_runs(runs_dir)
    problems += [
        f"{one.id} is {one.status['state']}: {one.status['error']}" for one in runs if one.status["state"] != "done"
    ]
    found = by_seed(runs)
    if len(runs) != len(undisturbed) or found.keys() != undisturbed.keys():
        return [*problems, f"{len(runs)} runs of seeds {sorted(found)}, expected {sorted(undisturbed)}"]
    for seed, record in undisturbed.items():
        if rows_and_state(found[seed]) != rows_and_state(record):
            problems.append(f"seed {seed}: other rows or cells")
        ours = found[seed]
        if "audit.json" not in ours:  # where it could not be written, a run that is done reads as not audited
            ours["audit.json"] = record["audit.json"]
        names = sorted(name for name in {*record, *ours} if record.get(name) != ours.get(name))
        problems += [f"seed {seed}: other bytes in {', '.join(names)}"] if names else []
    return problems


def wait_for(runs_dir: Path) -> None:
    """Until no run of a killed sweep goes on."""
    end = time.monotonic() + _PATIENCE_S
    while any(one.status["state"] in GOING for one in list_runs(runs_dir)) and time.monotonic() < end:
        time.sleep(0.05)


def try_place(
    scenario: Scenario, place: int, fault: str, undisturbed: Mapping, scratch: Path, built: set[str]
) -> list[str]:
    """Let one call fail once; what is wrong afterwards. `built`: the shapes whose pages were built, to which it adds."""
    folder = scratch / f"{scenario.name}-{place}-{fault}"
    prepare(scenario, folder)
    faults = Faults(folder, place, fault)
    cluster = scenario.cluster(folder)
    rc = forked(lambda: command(scenario.words(folder), faults, cluster), folder / "said")
    answer = folder / "problems.json"

    def then() -> int:
        problems = after_a_fault(scenario, folder, undisturbed, rc, fault, built)
        answer.write_text(json.dumps([problems, sorted(built)]))
        return 0

    code = forked(then, folder / "said")
    shown = (folder / "said").read_text(errors="replace")
    problems = [f"what follows ended with {code}: {shown[-1500:]}"]
    if code == 0:
        problems, shapes = json.loads(answer.read_text())
        built |= set(shapes)
    for path in (folder, faults.calls, Path(f"{folder}.jobs"), Path(f"{folder}.log")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return problems


def prepare(scenario: Scenario, folder: Path) -> None:
    if scenario.before:
        shutil.copytree(scenario.before, folder)
    else:
        folder.mkdir()


def undisturbed_record(scenario: Scenario, scratch: Path) -> tuple[dict[int, dict[str, bytes]], list[str]]:
    """What a command records without a fault, by seed, and the kind of each of its calls that write."""
    folder = scratch / f"{scenario.name}-undisturbed"
    prepare(scenario, folder)
    faults = Faults(folder)
    cluster = scenario.cluster(folder)
    if code := forked(lambda: command(scenario.words(folder), faults, cluster), folder / "said"):
        raise RuntimeError(
            f"{scenario.name}: ended with {code} without a fault: {(folder / 'said').read_text()[-2000:]}"
        )
    return by_seed(list_runs(folder / "runs")), faults.calls.read_text().splitlines()


def scenarios(scratch: Path) -> Iterator[Scenario]:
    """A run, a sweep of two here and on Slurm, and a run that is resumed behind its first checkpoint."""
    notebook = scratch / "every_place.ipynb"
    shutil.copy(ROOT / "benchmarks" / "stub_training.py", scratch)  # alone: all code next to it would be read, too
    sys.path[:0] = [str(scratch)]
    cells = [nbformat.v4.new_code_cell(source) for source in NOTEBOOK]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=kernel)))

    def words(name: str, *more: str) -> Callable[[Path], list]:
        return lambda folder: [name, notebook, *more, "--runs-dir", folder / "runs"]

    yield Scenario("run", words("run", "-q", "-p", "seed=3"))
    yield Scenario("sweep", words("sweep", "-p", "seed=3,4"))
    yield Scenario("sweep on Slurm", words("sweep", "-p", "seed=3,4", "--executor", "slurm"), on_slurm=True)
    stopped = scratch / "stopped"
    first = Scenario("stopped", words("run", "-q", "-p", "seed=3"))
    calls = undisturbed_record(first, scratch)[1]
    rows = [n for n, call in enumerate(calls, 1) if call == "write metrics.jsonl"]
    if len(rows) < 3:
        raise RuntimeError(f"metrics.jsonl was written {len(rows)} times, expected once at the end of each step")
    stopped.mkdir()
    forked(lambda: command(first.words(stopped), Faults(stopped, rows[2], "kill")), stopped / "said")
    yield Scenario("resume", words("run", "-q", "-p", "seed=3", "--resume"), stopped)


class Case(NamedTuple):
    """A fault at a place: `number` is the call's, from 1, and `call` its kind and file."""

    scenario: Scenario
    number: int
    call: str
    fault: str

    @property
    def kind(self) -> str:
        return self.call.partition(" ")[0]


def cases_of(scenario: Scenario, calls: Sequence[str]) -> list[Case]:
    """Each fault that each of a scenario's calls may have."""
    return [
        Case(scenario, number, call, fault)
        for number, call in enumerate(calls, 1)
        for fault in FAULTS[call.partition(" ")[0]]
    ]


def spread(cases: Sequence[Case]) -> list[Case]:
    """The fewest cases with each fault in each scenario and at each kind of call, at places all over the commands."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.scenario.name, case.kind, case.fault), []).append(case)
    adds = {key: {(key[0], key[2]), (key[1], key[2])} for key in groups}
    missing = set().union(*adds.values())
    chosen: list[Case] = []
    while missing:
        best = max(groups, key=lambda key: len(adds[key] & missing))
        missing -= adds[best]
        group = groups[best]
        chosen.append(group[int(len(group) * (_GOLDEN * len(chosen) % 1))])
    return chosen


def all_over(cases: Sequence[Case]) -> list[Case]:
    """The cases in an order of which every beginning is spread over all of them."""
    order = sorted(range(len(cases)), key=lambda n: _GOLDEN * n % 1)
    ranks = sorted(range(len(cases)), key=lambda n: order[n])
    return [cases[n] for n in ranks]


def measure(
    choose: Callable[[Sequence[Case]], Sequence[Case]],
    scratch: Path,
    say: Callable[[str], object] = print,
    minutes: float = 0,
) -> dict:
    """Try the chosen cases; the result has a row for each scenario, kind of call and fault, and the problems.

    `minutes`: after as many no case begins; 0 for no limit.
    """
    end = time.monotonic() + 60 * (minutes or math.inf)
    tried: collections.Counter = collections.Counter()
    undisturbed_ends: collections.Counter = collections.Counter()
    problems: list[str] = []
    built: set[str] = set()
    records: dict[str, dict] = {}
    cases: list[Case] = []
    each = scenarios(scratch)
    listed = [next(each), next(each)]
    warm_up(listed, scratch)
    for scenario in (*listed, *each):
        records[scenario.name], calls = undisturbed_record(scenario, scratch)
        cases += cases_of(scenario, calls)
    chosen = choose(cases)
    say(f"{len(chosen)} of {len(cases)} places")
    for number, case in enumerate(chosen, 1):
        if time.monotonic() > end:
            break
        name = case.scenario.name
        wrong = try_place(case.scenario, case.number, case.fault, records[name], scratch, built)
        key = (name, case.kind, case.fault)
        tried[key] += 1
        undisturbed_ends[key] += not wrong
        problems += [f"{name}, call {case.number} ({case.call}), {case.fault}: {each}" for each in wrong]
        if wrong:
            say(problems[-1])
        if number % 20 == 0:
            say(f"{number} tried")
    counts = [
        {"scenario": key[0], "call": key[1], "fault": key[2], "tried": n, "as undisturbed": undisturbed_ends[key]}
        for key, n in tried.items()
    ]
    return {"places": len(cases), "shapes": len(built), "counts": counts, "problems": problems}


def warm_up(given: Sequence[Scenario], scratch: Path) -> None:
    """Import and compile in this process what the forked ones need: it takes longer than all they do."""
    import_vllm_late()
    folder, asks = scratch / "warm", environment._output
    folder.mkdir()
    with (scratch / "said").open("w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        for scenario in given:
            command(scenario.words(folder))
        list(pages(folder / "runs", folder / "reports", set()))
    environment._output = asks  # the result says on which machine it was made
    gc.freeze()  # else a forked process copies what its collector looks at


# --- the page -------------------------------------------------------------------------------------------------------


def page() -> list[str]:
    """The line of each kind of call: how many places were tried, and how many ended as undisturbed."""
    result = measured("every_place")
    parts = []
    for call in FAULTS:
        rows = [row for row in result["counts"] if row["call"] == call]
        if not rows:  # none of its places was tried
            continue
        parts.append(f"{call} {sum(row['as undisturbed'] for row in rows)} of {sum(row['tried'] for row in rows)}")
    tried = sum(row["tried"] for row in result["counts"])
    return [f"{', '.join(parts)}; {tried:,} of {result['places']:,} places were tried ({made_with(result)})."]


def main() -> None:
    options = parser(__doc__, every=1, minutes=0.0)
    options.add_argument("--spread", action="store_true", help="each fault once in each scenario, at each kind of call")
    args = options.parse_args()
    choose = spread if args.spread else lambda cases: all_over(cases[:: max(1, args.every)])
    os.environ |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
    with tempfile.TemporaryDirectory(prefix="every-place-") as scratch:
        os.environ["WORKBENCH_CACHE"] = scratch
        result = measure(
            choose, Path(scratch).resolve(), lambda text: print(text, file=sys.stderr, flush=True), args.minutes
        )
    publish(result, args.out)
    if result["problems"]:
        sys.exit(f"{len(result['problems'])} problems")


if __name__ == "__main__":
    run_main(main)
