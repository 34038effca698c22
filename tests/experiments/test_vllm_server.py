import http.server
import subprocess
import sys
import threading
from importlib.util import find_spec
from types import SimpleNamespace

import psutil
import pytest
import requests
from conftest import need, on_vllm

from workbench.errors import RunError
from workbench.experiments import vllm_server as vllm_server_module
from workbench.experiments.vllm_server import serve

pytestmark = pytest.mark.slow


def test_a_server_answers_at_its_address_with_its_model(vllm_server, starter_folder):
    models = requests.get(f"{vllm_server}/v1/models", timeout=30).json()["data"]
    assert [model["id"] for model in models] == [str(starter_folder)]
    assert vllm_server.startswith("http://127.0.0.1:")


@pytest.mark.rare
def test_a_failed_server_shows_its_log_and_finds_local_folders(tmp_path, monkeypatch):
    (tmp_path / "policy").mkdir()
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(RunError, match=r"the vLLM server ended with exit code \d+:(.|\n)*config") as ended,
        serve("policy"),
    ):
        pass
    assert str(tmp_path / "policy") in str(ended.value)


class Stranger(http.server.BaseHTTPRequestHandler):
    """Answers that it is healthy, whoever asks."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_healthy_stranger_on_the_port_is_not_taken_for_ours(tmp_path):
    stranger = http.server.HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{stranger.server_port}"
    assert requests.get(f"{url}/health", timeout=5).ok
    (tmp_path / "log").write_text("address in use")
    ours = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(2); raise SystemExit(1)"])
    try:
        with pytest.raises(RunError, match="the vLLM server ended with exit code 1:\naddress in use"):
            vllm_server_module._wait_until_ready(ours, url, tmp_path / "log")
    finally:
        stranger.shutdown()
        ours.kill()
        ours.wait()


def test_a_server_that_is_ended_leaves_no_engine_behind():
    engine = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']).pid)"
    )
    server = subprocess.Popen(
        [sys.executable, "-uc", f"{engine}; import time; time.sleep(99)"], stdout=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(server.stdout.readline()))
    vllm_server_module._end(server)
    server.stdout.close()
    child.wait(10)
    assert server.returncode and not child.is_running()


def test_shared_engine_freezes_nothing_and_outlives_another():
    # From vLLM 0.31 on the end of one engine takes the process groups of all. Each freezes what the process holds by then.
    assert on_vllm("collected_engine") == {"frozen": 0, "tokens": 3}


def test_a_shared_engine_keeps_no_trainer_and_no_model(tmp_path):
    """Its hook kept the last trainer, so that two models were in memory while the next one loaded."""
    assert on_vllm("released_trainers", str(tmp_path)) == [False, False]


def test_an_engine_of_a_long_window_gets_a_cache_for_it(monkeypatch):
    """SmolLM2 takes 8192 tokens: vLLM refuses a cache of 64 blocks for them."""
    need(find_spec("vllm"), "vLLM")
    asked = []
    monkeypatch.setattr("vllm.LLM", lambda **options: asked.append(options) or SimpleNamespace(generate=None))
    monkeypatch.setattr(vllm_server_module, "_engines", {})
    for name, length in (("long", None), ("longer", 8192), ("short", 1024)):
        vllm_server_module.shared_engine(name, max_model_len=length)
    assert ["num_gpu_blocks_override" in options for options in asked] == [False, False, True]


def test_an_engine_is_shared_only_by_those_who_ask_for_the_same(monkeypatch):
    """Who asked for a longer window, or another dtype, got the first engine of the path all the same."""
    need(find_spec("vllm"), "vLLM")
    monkeypatch.setattr("vllm.LLM", lambda **options: SimpleNamespace(generate=None, asked=options))
    monkeypatch.setattr(vllm_server_module, "_engines", {})
    shared = vllm_server_module.shared_engine
    first = shared("model", max_model_len=256, logprobs_mode="processed_logprobs")
    # As TRL asks, with batches of other sizes; and who asks for nothing.
    of_trl = {"max_model_len": 256, "logprobs_mode": "processed_logprobs", "tensor_parallel_size": 1, "seed": 0}
    of_trl |= {"quantization": None, "trust_remote_code": False, "enable_sleep_mode": False, "model_impl": "vllm"}
    of_trl |= {"distributed_executor_backend": "external_launcher", "max_num_batched_tokens": 4096}
    for size in (4, 8):
        assert shared(model="model", gpu_memory_utilization=0.3, max_num_seqs=size, **of_trl) is first
    assert shared("model") is first and shared("other", max_model_len=256) is not first
    others = [{"max_model_len": 512}, {"max_model_len": None}, {"dtype": "bfloat16"}, {"logprobs_mode": "raw_logprobs"}]
    others += [{"model_impl": "transformers"}, {"hf_overrides": {"num_hidden_layers": 1}}]
    for other in others:
        made = shared("model", **of_trl | other)
        assert made is not first and made.asked.items() >= other.items()
        assert shared("model", **of_trl | other) is made
    coarse = shared("coarse", dtype="bfloat16")
    assert shared("coarse", **of_trl) is not coarse, "who asks for no dtype gets no coarser weights"


def test_an_interrupt_drops_the_shared_engines(monkeypatch):
    """In the middle of a weight sync it leaves an engine that no later trainer can sync."""
    need(find_spec("vllm"), "vLLM, whose engine trainers of one path share")
    for error, left in ((ValueError, {"model": "engine"}), (KeyboardInterrupt, {})):
        engines = {"model": "engine"}
        monkeypatch.setattr(vllm_server_module, "_engines", engines)
        with pytest.raises(error), vllm_server_module.sharing_engines():
            raise error
        assert engines == left
