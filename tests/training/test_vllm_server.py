import pytest
import requests

from workbench.errors import RunError
from workbench.training.vllm_server import serve

pytestmark = pytest.mark.slow


def test_a_server_answers_at_its_address_with_its_model(vllm_server, starter_folder):
    models = requests.get(f"{vllm_server}/v1/models", timeout=30).json()["data"]
    assert [model["id"] for model in models] == [str(starter_folder)]
    assert vllm_server.startswith("http://127.0.0.1:")


def test_a_server_that_ends_before_it_answers_shows_the_end_of_its_log(tmp_path):
    with pytest.raises(RunError, match=r"the vLLM server ended with \d+:(.|\n)*config"), serve(str(tmp_path)):
        pass
