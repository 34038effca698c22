"""Breaks the code that runs rely on, one promise at a time, and says whether a test sees it.

    python -m tools.mutants              # all, in copies of the checkout; a minute each
    python -m tools.mutants flush lock   # those whose name has one of these words

Each mutant changes one place of the package. The tests of that area must fail; a mutant with which all of them pass has
survived, and the exit code is 1. Add one where a fault was found that no test had seen.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LEFT_OUT = (
    ".venv",
    ".git",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    "node_modules",
    "build",
)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one place: `before` is in `file`, below `workbench/`, once. `tests`: files or tests that are to fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def source(self) -> str:
        """The file with the change.

        Raises:
            ValueError: the place is no longer there, or is there more than once; the list has to follow the code.
        """
        text = (ROOT / "workbench" / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"{self.name}: workbench/{self.file} has {self.before!r} {count} times, expected once")
        return text.replace(self.before, self.after)


FILES, LOCK, RUN = ("tests/runs/test_files.py",), ("tests/runs/test_lock.py",), ("tests/runs/test_run.py",)
SECRETS, PAGE = ("tests/runs/test_secrets.py",), ("tests/lab/reports/test_run_page.py",)
STATE = ("tests/lab/batch/test_slurm_state.py",)
EXECUTE, PLAN = "tests/lab/batch/test_execute.py", "tests/lab/batch/test_plan.py"  # slow: one test of each
MUTANTS = [
    Mutant(
        "a file is written in its place, without a rename",
        "runs/files.py",
        'temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")',
        "temporary = path",
        FILES,
    ),
    Mutant(
        "a failed write leaves its temporary file",
        "runs/files.py",
        "            temporary.unlink(missing_ok=True)\n        raise",
        "            pass\n        raise",
        FILES,
    ),
    Mutant("rows are not flushed", "runs/files.py", "    file.flush()\n", "", FILES),
    Mutant(
        "a durable file is not synced", "runs/files.py", "            sync(temporary)\n", "            pass\n", FILES
    ),
    Mutant(
        "links are opened",
        "runs/files.py",
        "os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)",
        "os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)",
        FILES,
    ),
    Mutant(
        "any text is a job's number",
        "runs/files.py",
        'if job and not re.fullmatch(r"\\d+(_\\d+)?", job):',
        "if False:",
        FILES,
    ),
    Mutant(
        "a last line that is cut short is an error",
        "runs/files.py",
        '                if not line.endswith(b"\\n"):  # half written\n                    return\n',
        "",
        FILES,
    ),
    Mutant(
        "a lock is always free",
        "runs/lock.py",
        "        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        LOCK,
    ),
    Mutant(
        "a forked process keeps the lock",
        "runs/lock.py",
        "os.register_at_fork(after_in_child=_close_in_child)\n",
        "",
        LOCK,
    ),
    Mutant(
        "a run with a link in its folder is taken",
        "runs/run.py",
        "    check_links(folder)\n    mine",
        "    mine",
        RUN,
    ),
    Mutant(
        "a killed run reads as running",
        "runs/run.py",
        '                    return set_status(self.path, "interrupted", gone, owner=status["owner"], when=last)\n',
        "                    return recorded_status(self.path)\n",
        LOCK,
    ),
    Mutant(
        "a run that cannot be made leaves its folder",
        "runs/run.py",
        "        shutil.rmtree(path, ignore_errors=True)\n        raise\n",
        "        raise\n",
        RUN,
    ),
    Mutant(
        "a resumed run keeps later steps",
        "runs/completions.py",
        'if row["step"] <= step:',
        "if True:",
        ("tests/runs/test_completions.py",),
    ),
    Mutant(
        "credentials in an address are shown",
        "runs/secrets.py",
        '        text = _CREDENTIALS.sub(f"{TOKEN}@", text)\n',
        "        pass\n",
        SECRETS,
    ),
    Mutant(
        "a secret in two pieces is shown",
        "runs/secrets.py",
        "        text = before + piece\n",
        '        before = ""\n        text = piece\n',
        SECRETS,
    ),
    Mutant("templates do not escape", "lab/reports/page.py", "autoescape=True", "autoescape=False", PAGE),
    Mutant(
        "a page has no content security policy",
        "lab/reports/templates/page.html.j2",
        '<meta http-equiv="Content-Security-Policy"',
        "<meta",
        PAGE,
    ),
    Mutant(
        "any style of foreign markup is kept",
        "lab/reports/clean.py",
        "        filter_style_properties=_STYLES,\n",
        "",
        ("tests/lab/reports/test_clean.py",),
    ),
    Mutant(
        "a page of completions has them unpacked",
        "lab/reports/microscope.py",
        'base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)).decode()',
        'json.dumps(value, separators=(",", ":"))',
        ("tests/lab/reports/test_microscope.py",),
    ),
    Mutant(
        "what Slurm says replaces what the job wrote meanwhile",
        "lab/batch/slurm_state.py",
        "if change and run.status == status:",
        "if change:",
        STATE,
    ),
    Mutant(
        "any job of that number is cancelled",
        "lab/batch/slurm_state.py",
        'not log or f"StdErr={Path(log).parent}/" not in told',
        "False",
        STATE,
    ),
    Mutant(
        "other code than was planned is executed",
        "lab/batch/execute.py",
        "                    check_unchanged(code or {})  # now: it may have waited for hours\n",
        "",
        (f"{EXECUTE}::test_run_of_other_code_than_planned_fails_before_it_begins",),
    ),
    Mutant(
        "the stop of an earlier execution counts",
        "lab/batch/execute.py",
        "        clear_stop(run)\n        executing",
        "        executing",
        (f"{EXECUTE}::test_a_stop_asked_of_an_earlier_execution_ends_no_later_one",),
    ),
    Mutant(
        "the result of an earlier execution stays",
        "lab/batch/execute.py",
        'for name in ("result.json", AUDIT):',
        "for name in (AUDIT,):",
        (f"{EXECUTE}::test_a_notebook_without_a_result_is_done_without_a_headline",),
    ),
    Mutant(
        "two sweeps claim a point at once",
        "lab/batch/plan.py",
        "    with lock.alone_in(Path(first.root or runs_root()) / first.notebook.stem):",
        "    with contextlib.nullcontext():",
        (f"{PLAN}::test_a_sweep_takes_no_point_while_another_one_looks",),
    ),
    Mutant(
        "a GPU is given to two runs",
        "lab/batch/gpus.py",
        "                    if free:\n                        taken.append(name)",
        "                    taken.append(name)",
        ("tests/lab/batch/test_gpus.py",),
    ),
    Mutant(
        "a recorded step is unpacked without end",
        "replay/file.py",
        "            data = file.read(_LARGEST + 1)\n",
        "            data = file.read()\n",
        ("tests/replay/test_file.py::test_no_more_of_a_file_is_unpacked_than_a_step_has",),
    ),
]


def survives(mutant: Mutant, folder: Path) -> bool:
    """Whether all tests of a mutant's area pass with it, in a copy of the checkout."""
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=_left_out)
    (copy / "workbench" / mutant.file).write_text(mutant.source(), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not rare", *mutant.tests]
    done = subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True)
    shutil.rmtree(copy)
    if done.returncode not in (0, 1):  # no test ran: nothing is known of the mutant
        raise RuntimeError(
            f"{mutant.name}: pytest ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-500:]}"
        )
    return done.returncode == 0


def _left_out(folder: str, names: list[str]) -> Iterator[str]:
    """What no test of a copy reads; runs and reports of the checkout itself are no part of it."""
    yield from (name for name in names if name in _LEFT_OUT or (Path(folder) == ROOT and name in ("runs", "reports")))


def chosen(words: Sequence[str]) -> list[Mutant]:
    """The mutants whose name has one of these words, all where there is none."""
    return [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the names of the mutants to try; default: all")
    survivors = []
    mutants = chosen(parser.parse_args().words)
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            survived = survives(mutant, Path(folder))
        if survived:
            survivors.append(mutant.name)
        print(f"{'SURVIVED' if survived else 'killed  '} {mutant.name}", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} killed")
    if survivors:
        sys.exit(1)


if __name__ == "__main__":
    main()
