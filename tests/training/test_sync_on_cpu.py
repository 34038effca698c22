"""Every training on vLLM shows that synced weights are sampled from (test_stopping.py, test_groups_on_vllm.py, notebooks)."""

import http.server
import threading
import warnings
from types import SimpleNamespace

import pytest
import requests
import torch
from conftest import result_of
from transformers import AutoModelForCausalLM, GPT2Config

from workbench.errors import RunError
from workbench.training.sync_on_cpu import TiedHeads, building_on_cpu, install_cpu_sync, reload_server

pytestmark = pytest.mark.slow

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA TRL's own sync is used")


def client(url):
    return SimpleNamespace(base_url=url, session=requests.Session())


def greedy_ids(url):
    body = {"prompt": "os\ndef getcwd()\nTL;DR:", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    return requests.post(f"{url}/v1/completions", json=body, timeout=600).json()["choices"][0]["token_ids"]


def test_a_server_that_cannot_reload_says_what_it_lacks(starter_folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(starter_folder)
    with pytest.raises(RunError, match=r"127\.0\.0\.1:9 did not reload the weights.*VLLM_SERVER_DEV_MODE=1"):
        reload_server(client("http://127.0.0.1:9"), model.named_parameters(), model.config, tmp_path)


@needs_no_gpu
def test_a_process_without_a_client_only_walks_the_weights(tmp_path):
    walked = []
    accelerator = SimpleNamespace(is_main_process=False)
    generation = SimpleNamespace(mode="server", accelerator=accelerator, sync_weights=lambda: None)
    generation._iter_named_params = lambda: iter(walked.append(n) or (str(n), None) for n in range(3))
    install_cpu_sync(generation, tmp_path)
    generation.sync_weights()
    assert walked == [0, 1, 2] and not (tmp_path / "vllm-weights").exists()


@needs_no_gpu
def test_a_server_samples_from_the_weights_it_was_given(vllm_server, starter_folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(starter_folder)
    before = greedy_ids(vllm_server)
    try:
        silent = ((name, torch.zeros_like(p)) for name, p in model.named_parameters() if name != "lm_head.weight")
        reload_server(client(vllm_server), silent, model.config, tmp_path)
        after = greedy_ids(vllm_server)
    finally:  # other tests share the server
        own = ((name, p) for name, p in model.named_parameters())
        reload_server(client(vllm_server), own, model.config, tmp_path)
    assert after != before and len(set(after)) == 1  # weights of zero prefer no token, and greedy takes the first
    assert greedy_ids(vllm_server) == before


@pytest.mark.rare
@needs_no_gpu
def test_a_head_tied_to_the_embedding_reloads_on_a_server_too():
    gpt2 = {"SAMPLER_FAULTS_MODEL": "starter-gpt2"}  # vLLM ties its head by another way than Qwen's, up to 0.30
    got = result_of("sampler_faults.py", "server", "2", "clean, stock", env=gpt2)["clean, stock"]
    assert [(cause, difference < 1e-5) for _, cause, _, _, difference, _ in got["verdicts"]] == [("in sync", True)] * 2


class Unextended(http.server.BaseHTTPRequestHandler):
    """A server whose workers know but vLLM's own methods."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(500 if b"repack" in body else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("tied", [True, False])
def test_a_server_that_reloads_no_tied_head_says_what_it_lacks(tied, tmp_path):
    config = GPT2Config(tie_word_embeddings=tied)
    with http.server.HTTPServer(("127.0.0.1", 0), Unextended) as server, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        weights = {"wte.weight": torch.ones(2, 2)}
        reload_server(client(f"http://127.0.0.1:{server.server_port}"), weights.items(), config, tmp_path)
        server.shutdown()
    found = [str(w.message) for w in said if "tied to the embedding" in str(w.message)]
    assert len(found) == tied and all(f"--worker-extension-cls {TiedHeads.__module__}.TiedHeads" in m for m in found)


@needs_no_gpu
def test_modules_are_patched_only_while_a_trainer_is_built(monkeypatch, starter_folder):
    from trl.generation import vllm_client, vllm_generation

    client, made = vllm_client.VLLMClient, []
    monkeypatch.setattr(vllm_generation, "LLM", lambda **options: made.append(options))
    own = client.init_communicator, vllm_generation.LLM
    with building_on_cpu(SimpleNamespace(use_vllm=False)):
        assert (client.init_communicator, vllm_generation.LLM) == own
    with building_on_cpu(SimpleNamespace(use_vllm=True)):
        assert client.init_communicator is not own[0]
        vllm_generation.LLM(model=str(starter_folder), num_gpu_blocks_override=7)
    assert (client.init_communicator, vllm_generation.LLM) == own
    assert made == [{"model": str(starter_folder), "num_gpu_blocks_override": 7, "enforce_eager": True}]


@needs_no_gpu
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_trl_s_sync_is_replaced_in_either_mode(mode, tmp_path):
    generation = SimpleNamespace(mode=mode, sync_weights="TRL's", _iter_named_params=list)
    install_cpu_sync(generation, tmp_path)
    assert callable(generation.sync_weights)
