"""Which release of TRL has which defect: every repro on every release, and docs/defects.md.

    python repros/matrix.py                        # what was not run yet; a new release is a column more
    python repros/matrix.py --trl 1.16.0 --again   # one release, all over
    python repros/matrix.py --repro engine_seed --again

TRL is pure Python: a release is a folder (`pip install --no-deps --target`) that comes first on the path, beside the torch,
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
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, PAGE, NOTES = HERE.parent / "data/defects.json", HERE.parent / "docs/defects.md", HERE / "notes.md"
LANES = Path(os.environ.get("WORKBENCH_CACHE") or Path.home() / ".cache/workbench") / "lanes"
STATES = {0: "mended", 1: "lives", 2: "cannot run"}
STACK = ["torch", "transformers", "vllm", "datasets", "accelerate"]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", nargs="+", metavar="RELEASE", help="releases; all from 1.0 on")
    parser.add_argument("--repro", nargs="+", choices=repros(), metavar="NAME", help="repros; all")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--page", action="store_true", help="write docs/defects.md from the results, run nothing")
    args = parser.parse_args()
    data = load()
    if not args.page:
        data["stack"] = {"python": sys.version.split()[0]} | {name: version(name) for name in STACK}
        names = args.repro or repros()
        cells = [("results", n, release) for release in (args.trl or releases()[::-1]) for n in names]
        for kind, name, release in cells + [("patched", n, base(n)) for n in names if not args.trl]:
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
    # PAGE


if __name__ == "__main__":
    main()
