"""`examples/several_nodes.sbatch` by hand, with commands in place of vLLM, Slurm and accelerate: no GPU is here.

On a real Slurm, without a server, it is tested in test_slurm.py.
"""

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest
from conftest import ROOT

SCRIPT = ROOT / "examples" / "several_nodes.sbatch"
# Serves `/v1/models` as vLLM does; a port that is taken ends it.
VLLM = """#!PYTHON
import http.server, json, sys
given = dict(zip(sys.argv, sys.argv[1:]))
open("vllm.txt", "w").write(json.dumps(sys.argv[1:]))
class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": given["--served-model-name"]}]}).encode())
http.server.HTTPServer((given["--host"], int(given["--port"])), Models).serve_forever()
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=0 exec "$@"
"""
ACCELERATE = """#!PYTHON
import json, os, sys
open("training.txt", "w").write(json.dumps(sys.argv[1:]))
sys.exit(int(os.environ.get("TRAINING_ENDS", "0")))
"""
SCONTROL = """#!/bin/bash
echo "$@" >> scontrol.txt
echo "PreemptTime=123"
"""


@pytest.fixture
def submit(tmp_path):
    """Runs the script as Slurm would on one node with two GPUs; returns the process."""
    for name, text in {"vllm": VLLM, "srun": SRUN, "accelerate": ACCELERATE, "scontrol": SCONTROL}.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("PYTHON", sys.executable))
        path.chmod(0o755)
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    path = f"{tmp_path / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    def run(**variables):
        env = {**os.environ, **slurm, "PATH": path, "OUT": str(tmp_path / "a run"), **variables}
        return subprocess.run(["bash", str(SCRIPT)], cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60)

    return run


def asked(tmp_path, name: str) -> list[str]:
    return json.loads((tmp_path / f"{name}.txt").read_text())


def test_a_models_path_with_spaces_and_quotes_arrives_whole(submit, tmp_path):
    model = 'models/it\'s $HOME and "more"'
    done = submit(MODEL=model, FIELDS="-p beta=0.04")
    assert done.returncode == 0, done.stderr
    assert asked(tmp_path, "vllm")[:2] == ["serve", model]
    training = asked(tmp_path, "training")
    assert f"model={model}" in training and str(tmp_path / "a run") in training and "beta=0.04" in training
    assert training[training.index("--machine_rank") + 1] == "0"


def test_on_one_node_a_server_has_loopback_and_the_jobs_ports(submit, tmp_path):
    assert submit().returncode == 0
    server, training = asked(tmp_path, "vllm"), asked(tmp_path, "training")
    port = str(20000 + os.getpid() % 10000)
    assert server[server.index("--host") + 1] == "127.0.0.1"
    assert server[server.index("--port") + 1] == port
    assert training[training.index("--vllm-server") + 1] == f"http://127.0.0.1:{port}"
    assert training[training.index("--main_process_port") + 1] == str(10000 + os.getpid() % 10000)


class Stranger(http.server.BaseHTTPRequestHandler):
    """A server of somebody else, healthy and with a model."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "job-1"}]}')

    def log_message(self, *_):
        pass


def test_nothing_is_trained_against_somebody_elses_server(submit, tmp_path):
    stranger = http.server.HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    done = submit(SERVER_PORT=str(stranger.server_port))
    stranger.shutdown()
    assert done.returncode == 1 and "the vLLM server ended before it answered" in done.stderr
    assert not (tmp_path / "training.txt").exists()


@pytest.mark.parametrize(("restarts", "requeued"), [("0", True), ("9", True), ("10", False)])
def test_a_preempted_job_queues_itself_again_at_most_ten_times(submit, tmp_path, restarts, requeued):
    done = submit(TRAINING_ENDS="3", SLURM_RESTART_COUNT=restarts)
    assert done.returncode == 3
    assert (f"requeue {os.getpid()}" in (tmp_path / "scontrol.txt").read_text()) == requeued
    assert ("REQUEUES allows no more" in done.stderr) != requeued
