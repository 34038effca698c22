"""The tap by hand; on real vLLM, in process and on a server, it is judged in test_groups_on_vllm.py."""

from types import SimpleNamespace

import pytest

from workbench.training.engine import EngineRequests
from workbench.training.groups import GroupError


class Params:
    """Of vLLM's SamplingParams what the tap uses."""

    def __init__(self, n=1, seed=None):
        self.n, self.seed = n, seed

    def clone(self):
        return Params(self.n, self.seed)


class Engine:
    """An engine in process that answers with the prompt's length, and remembers how it was asked."""

    def __init__(self):
        self.calls = []

    def generate(self, prompts, sampling_params=None, **kwargs):
        self.calls.append((prompts, sampling_params))
        if isinstance(prompts, str) or not all("prompt_token_ids" in p for p in prompts):
            return "answered"
        made = [SimpleNamespace(token_ids=[len(p["prompt_token_ids"])], finish_reason="stop") for p in prompts]
        return [SimpleNamespace(outputs=[m] * s.n) for m, s in zip(made, sampling_params, strict=True)]


def tapped(rank=0, tensor_parallel_size=1, now=lambda: (3, True), **options):
    """A tap on a generation that asks the engine for what it is given, as TRL does in process: `(generation, engine)`."""
    engine = Engine()
    accelerator = SimpleNamespace(process_index=rank, is_main_process=rank == 0)

    def generate(prompts, images=None, num_generations=1):
        rows = [{"prompt_token_ids": p} for p in prompts]
        if images:
            rows = [r | {"multi_modal_data": {"image": i}} for r, i in zip(rows, images, strict=True)]
        outputs = generation.llm.generate(rows, Params())
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        return prompts, ids, [[[-0.5]] for _ in ids], None

    generation = SimpleNamespace(mode="colocate", llm=engine, accelerator=accelerator, generate=generate)
    generation.tensor_parallel_size = tensor_parallel_size
    tap = EngineRequests(generation, now, **options)
    return generation, engine, tap


def seeds_of(rank, tensor_parallel_size):
    generation, engine, _ = tapped(rank, tensor_parallel_size, seed=7)
    generation.generate([[1, 2], [1, 2], [3]])
    return [params.seed for params in engine.calls[0][1]]


def test_only_ranks_of_one_tensor_parallel_group_share_seeds():
    assert len(set(seeds_of(0, 2))) == 3
    assert seeds_of(0, 2) == seeds_of(1, 2) != seeds_of(2, 2) == seeds_of(3, 2)
    assert seeds_of(0, 1) != seeds_of(1, 1)


def test_rows_of_equal_text_and_other_images_are_not_one_request():
    generation, engine, _ = tapped(share=True)
    generation.generate([[1, 2], [1, 2], [3]], images=["a cat", "a dog", None])
    assert len(engine.calls[0][0]) == 3
    generation.generate([[1, 2], [1, 2], [3]])
    assert len(engine.calls[1][0]) == 2


@pytest.mark.parametrize("share", [False, True])
def test_calls_of_the_engine_from_elsewhere_are_left_as_they_are(share):
    generation, engine, tap = tapped(seed=7, share=share)
    own = Params(n=8)
    for arguments in (("a text", own), ([{"prompt": "a text"}], own), (["a", "b"], [own, own]), ("no params",)):
        assert generation.llm.generate(*arguments) is not None
        prompts, params = engine.calls[-1]
        assert prompts == arguments[0] and params is (arguments[1] if len(arguments) > 1 else None)
    assert own.n == 8 and own.seed is None and tap.requests == 0


def test_requests_of_a_server_from_elsewhere_stay_as_they_are():
    asked = []
    client = SimpleNamespace(_post=lambda url, *args, **kwargs: asked.append((url, args, kwargs)) or {"choices": []})
    accelerator = SimpleNamespace(process_index=0, is_main_process=True)
    generation = SimpleNamespace(mode="server", vllm_client=client, accelerator=accelerator, generate=None)
    EngineRequests(generation, lambda: (0, True), seed=1, share=True)
    client._post("http://x/v1/completions", {"prompt": "a text", "prompt_logprobs": 0})
    client._post("http://x/v1/completions", json={"prompt": "a text"})
    assert [kwargs.get("json", args[0] if args else None) for _, args, kwargs in asked] == [
        {"prompt": "a text", "prompt_logprobs": 0},
        {"prompt": "a text"},
    ]


def test_a_shared_request_gives_each_copy_of_a_prompt_a_sample():
    def answer(url, json):
        ids = json["prompt"][0]
        return {"choices": [{"token_ids": [*ids, n], "finish_reason": "stop"} for n in range(json["n"])]}

    client = SimpleNamespace(_post=answer)

    def generate(prompts, images=None, num_generations=1):
        body = {"prompt": prompts, "n": 2}
        rows = [choice["token_ids"] for choice in client._post("http://x/v1/completions", json=body)["choices"]]
        return prompts, rows, None, None

    accelerator = SimpleNamespace(process_index=0, is_main_process=True)
    generation = SimpleNamespace(mode="server", vllm_client=client, accelerator=accelerator, generate=generate)
    EngineRequests(generation, lambda: (0, True), share=True)
    rows = generation.generate([[1, 2], [3], [1, 2]])[1]
    assert rows == [[1, 2, 0], [1, 2, 1], [3, 0], [3, 1], [1, 2, 2], [1, 2, 3]]


def served(step=0, **options):
    """Seeds of the requests that a server gets of one generation of three prompts, and the tap."""
    asked, now = [], lambda: (step, True)

    def post(url, json):
        asked.append((tuple(json["prompt"][0]), json.get("seed")))
        return {"choices": [{"finish_reason": "stop"}] * json["n"]}

    def generate(prompts):
        generation.vllm_client._post("http://x/v1/completions", json={"prompt": prompts, "n": 2})
        return prompts, [[5] for _ in prompts], [[[-20.0]] for _ in prompts], None

    generation = SimpleNamespace(mode="server", accelerator=SimpleNamespace(is_main_process=True), generate=generate)
    generation.vllm_client = SimpleNamespace(_post=post)
    tap = EngineRequests(generation, now, **options)
    generation.generate([[1, 2], [1, 2], [3]])
    return sorted(asked, key=str), tap


def test_a_server_gets_a_seed_a_prompt_of_run_or_generation_seed():
    asked, _ = served(run_seed=1)
    assert len({seed for _, seed in asked}) == 3 and None not in dict(asked).values()
    assert served(run_seed=1)[0] == asked
    assert not {seed for _, seed in served(run_seed=2)[0]} & {seed for _, seed in asked}
    assert not {seed for _, seed in served(step=1, run_seed=1)[0]} & {seed for _, seed in asked}
    assert served(run_seed=2, seed=1)[0] == asked
    generation, engine, _ = tapped(run_seed=1)  # in process the whole process is seeded
    generation.generate([[1, 2]])
    assert engine.calls[0][1][0].seed is None


def test_a_server_s_log_probs_judge_no_copies():
    """They may be from before the temperature, and copies of a sharp distribution would look impossible."""
    assert served()[1].logprobs == []


ANSWERS = [
    ("server", None, "every process must send equally many prompts"),
    ("colocate", None, "in process the engine"),
    ("colocate", ["a cat", None], "trl #6294"),
]


@pytest.mark.parametrize(("mode", "images", "hint"), ANSWERS)
def test_an_answer_to_another_prompt_is_refused_with_a_cause(mode, images, hint):
    generation, _, _ = tapped()
    generation.mode = mode
    inner = generation.generate.original
    generation.generate.original = lambda *a: ([[9, 9], [3]], *inner(*a)[1:])
    with pytest.raises(GroupError, match=f"row 0: the engine completed the prompt .*{hint}"):
        generation.generate([[1, 2], [3]], images)


@pytest.mark.parametrize("options", [{"seed": 7}, {"share": True}])
def test_images_on_a_server_that_takes_no_seed_are_refused(options):
    def generate(prompts, images=None):
        return prompts, [[5] for _ in prompts], None, None

    client = SimpleNamespace(_post=lambda url, **_: {})
    accelerator = SimpleNamespace(is_main_process=True)
    generation = SimpleNamespace(mode="server", vllm_client=client, accelerator=accelerator, generate=generate)
    EngineRequests(generation, lambda: (0, True), **options)
    generation.generate([[1, 2], [3]], None)
    with pytest.raises(GroupError, match="sends prompts with images to a server in another kind of request"):
        generation.generate([[1, 2], [3]], ["a cat", None])


def training_seeds(*modes):
    """Seeds of the training generations among generations of one step; each mode is True for training."""
    coming = iter(modes)
    generation, engine, _ = tapped(now=lambda: (3, next(coming)), seed=7)
    for _ in modes:
        generation.generate([[1, 2], [3]])
    return [[p.seed for p in params] for (_, params), training in zip(engine.calls, modes, strict=True) if training]


def test_an_evaluation_moves_no_random_number_of_the_training():
    alone = training_seeds(True, True)
    assert alone[0] != alone[1]
    assert training_seeds(False, True, False, True) == alone
