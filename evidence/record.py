"""What the scripts of this folder share: the real model's place, memory asked for before it is used, results as JSON."""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

import psutil

from workbench.errors import ParameterError, RunError, WorkbenchError
from workbench.runs.environment import hardware
from workbench.runs.files import jsonable, read_json, write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "data" / "evidence"
GEMMA = Path(os.environ.get("WORKBENCH_CACHE") or Path.home() / ".cache" / "workbench") / "gemma-3-270m"


def gemma_folder(folder: Path = GEMMA) -> Path:
    """The folder that `fetch_gemma.py` made.

    Raises:
        RunError: it is not there, or was not finished.
    """
    if not (folder / "provenance.json").is_file():
        raise RunError(f"{folder}: no finished model there; run python evidence/fetch_gemma.py first")
    return folder


def need_memory(gib: float, what: str) -> None:
    """Refuse before the machine swaps.

    Raises:
        RunError: less memory is free than `what` takes.
    """
    free = psutil.virtual_memory().available / 2**30
    if free < gib:
        raise RunError(
            f"{what} takes {gib:.1f} GiB of memory, {free:.1f} GiB are free: end what else runs, or ask for less"
        )


def need_disk(gib: float, folder: Path, what: str) -> None:
    """Refuse before the disk is full.

    Raises:
        RunError: less disk is free under `folder` than `what` takes.
    """
    at = next(p for p in (folder, *folder.parents) if p.exists())
    free = psutil.disk_usage(str(at)).free / 2**30
    if free < gib:
        raise RunError(f"{what} takes {gib:.1f} GiB of disk, {free:.1f} GiB are free under {at}: make room there")


def peak_gib() -> float:
    """Peak memory of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def about() -> dict:
    """Where and when a result was made; nothing that names the machine's owner."""
    here = hardware()
    return here | {"date": time.strftime("%Y-%m-%d", time.gmtime())}


class Results:
    """A JSON file of `data/evidence/` that is filled part by part, so that an interrupted measurement goes on.

    Args:
        name: of the file, without its ending.
        command: that makes it.
        folder: of the file.
    """

    def __init__(self, name: str, command: str, folder: Path = RESULTS):
        self.path = Path(folder) / f"{name}.json"
        self.value = read_json(self.path, {}) | {"command": command}

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


def run_main(main) -> None:
    """Run a script's `main`; an error of the workbench is one line, an interruption says that it can go on."""
    try:
        main()
    except WorkbenchError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on with what is missing")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the option that every script has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FOLDER", help="of the results (default data/evidence)"
    )
    return made


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
    need_memory(weights * 1.5 + 0.5, f"loading {folder.name}")
    torch.set_num_threads(1)
    quiet_libraries()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        return model, AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # safetensors' and transformers' errors share no base class
        raise ParameterError(f"{folder}: cannot be read ({error}); delete the folder and fetch it again") from error
