"""The verdict on arrays; on real trainings and engines it is judged in tests/watch/test_sampler_probe.py."""

import copy
import itertools

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from workbench.consistency.padding import pad_batch, token_logprobs
from workbench.experiments.recipes import resolve_model
from workbench.watch.sampler_verdict import (
    CACHE,
    CANNOT_TELL,
    IN_SYNC,
    LATE,
    LORA,
    NOT_SYNCED,
    PRECISION,
    UNKNOWN,
    Probe,
    sampler_verdict,
    token_difference,
)

TOKENS = 135


def policy(steps: int, update: float, seed: int = 0) -> list[np.ndarray]:
    """Log-probs of a text at each step of a training whose updates move them by about `update` nats."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(size=(steps, TOKENS)) * update
    moves[0] = 0
    return list(-3 + rng.normal(size=TOKENS) + moves.cumsum(axis=0))


def verdicts(trainer: list, engine: list, *, noise: float = 3e-7, base=None, dtype="float32", rounding=None, seed=1):
    """The verdicts of all steps, with what an engine in sync showed as reference, as a training asks for them."""
    rng = np.random.default_rng(seed)
    probes, found, reference = [], [], None
    for step, (own, other) in enumerate(zip(trainer, engine, strict=True)):
        probes.append(Probe(step, own, other + noise * rng.normal(size=TOKENS)))
        found.append(
            sampler_verdict(
                probes[-16:], start=probes[0], base=base, reference=reference, dtype=dtype, rounding=rounding
            )
        )
        if found[-1].cause in (IN_SYNC, PRECISION):
            reference = probes[-1]
    return found


def trained(model: str, rate: float, *, bf16: bool = True, engine=torch.bfloat16, lag: int = 0, left_out=()) -> list:
    """The verdicts of a real training of a toy next to a copy of it in another dtype, which is the engine.

    The trainer computes in bf16 by autocast, or in fp32. The engine gets weights of `lag` steps ago, none of `left_out`.
    """
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_pretrained(resolve_model(model)).eval()
    sampler, optimizer = copy.deepcopy(policy).to(engine), torch.optim.AdamW(policy.parameters(), lr=rate)
    ids = torch.randint(10, 400, (5, TOKENS + 1)).tolist()
    probes, found, reference, sent = [], [], None, []

    def logprobs(of, bf16: bool) -> np.ndarray:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return token_logprobs(of, pad_batch([ids[0]], 0), positions="implicit")[0].double().numpy()

    for step in range(8):
        sent.append({name: value.clone() for name, value in policy.state_dict().items()})
        weights = sent[max(0, step - lag)]
        kept = {name: value for name, value in weights.items() if not any(part in name for part in left_out)}
        sampler.load_state_dict(kept, strict=False)
        probes.append(Probe(step, logprobs(policy, bf16), logprobs(sampler, False)))
        rounding = None if bf16 else float(np.abs(logprobs(policy, True) - probes[-1].trainer).mean())
        options = {"start": probes[0], "reference": reference, "rounding": rounding}
        found.append(sampler_verdict(probes, dtype="bfloat16" if bf16 else "float32", **options))
        if found[-1].cause in (IN_SYNC, PRECISION):
            reference = probes[-1]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            batch = torch.tensor(ids[1:])
            policy(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-6, 1e-3])
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("model", ["starter", "starter-gpt2"])
def test_bf16_engine_in_sync_is_no_fault_at_any_rate(model, bf16, rate):
    found = trained(model, rate, bf16=bf16)
    allowed = {IN_SYNC, CANNOT_TELL} if bf16 else {PRECISION, CANNOT_TELL}
    assert {v.cause for v in found} <= allowed and found[0].cause == (IN_SYNC if bf16 else PRECISION)
    assert rate < 1e-3 or CANNOT_TELL not in {v.cause for v in found}


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("bf16", [True, False])
def test_bf16_engine_one_sync_late_is_named_or_open(bf16):
    found = trained("starter-gpt2", 3e-4, bf16=bf16, lag=1)
    assert {(v.cause, v.steps_behind) for v in found[2:]} == {(LATE, 1)}
    found = trained("starter-gpt2", 1e-6, bf16=bf16, lag=1)
    assert {v.cause for v in found[1:]} == {CANNOT_TELL} and not found[-1].fault
    assert "too little compared with a noise of 0.0" in found[-1].text and "from rounding" in found[-1].text


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["ln_", "h.1."])
def test_weights_that_do_not_arrive_are_not_lost_precision(left_out):
    found = trained("starter-gpt2", 1e-5, bf16=False, engine=torch.float32, left_out=[left_out])
    assert found[0].cause == IN_SYNC and found[-1].cause == UNKNOWN and PRECISION not in {v.cause for v in found}
    assert "At step" in found[-1].text and "some weights did not arrive" in found[-1].text


def late(trainer: list, n: int) -> list:
    return [trainer[max(0, step - n)] for step in range(len(trainer))]


@pytest.mark.parametrize("update", [1e-5, 1e-3, 0.1])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_late_by_n_steps_is_separated_from_never_once_it_differs(n, update):
    trainer = policy(9, update)
    found = verdicts(trainer, late(trainer, n))
    assert found[0].cause == IN_SYNC and not found[1].decided and found[1].fault
    for step, verdict in enumerate(found[2:], 2):
        assert (verdict.cause, verdict.steps_behind) == ((NOT_SYNCED, step) if step <= n else (LATE, n)), step
        assert verdict.decided


@pytest.mark.parametrize("base", [False, True])
def test_updates_of_a_warm_up_that_change_nothing_do_not_count(base):
    """The first update of a linear warm-up has a learning rate of 0."""
    trainer = policy(4, 0.01)
    trainer.insert(0, trainer[0])
    found = verdicts(trainer, late(trainer, 1), base=trainer[0] if base else None)
    assert [v.decided for v in found] == [True, True, False, True, True]
    assert [v.cause for v in found[3:]] == [LATE, LATE]


def test_a_sync_that_stops_midway_is_late_by_more_and_more():
    trainer = policy(8, 0.01)
    found = verdicts(trainer, trainer[:5] + [trainer[4]] * 3)
    assert [v.cause for v in found] == [IN_SYNC] * 5 + [LATE] * 3 and [v.steps_behind for v in found][5:] == [1, 2, 3]


def test_one_late_sync_of_every_four_steps_is_open_till_the_next():
    trainer = policy(3, 0.01)
    probes = [Probe(4 * n, trainer[n], trainer[max(0, n - 1)]) for n in range(3)]
    found = [sampler_verdict(probes[: n + 1], start=probes[0]) for n in range(3)]
    assert [v.decided for v in found] == [True, False, True] and found[2].cause == LATE and found[2].steps_behind == 4


def test_an_engine_without_adapters_is_not_called_unsynced():
    trainer = policy(4, 0.01)
    engine = late(trainer, 99)
    assert [v.cause for v in verdicts(trainer, engine, base=trainer[0])][2:] == [LORA, LORA]
    assert [v.cause for v in verdicts(trainer, engine)][2:] == [NOT_SYNCED, NOT_SYNCED]


def test_missing_adapters_of_a_resumed_training_show_at_once():
    trainer = policy(2, 0.3)
    verdict = sampler_verdict(
        [Probe(40, trainer[1], trainer[0])], start=Probe(0, trainer[0], trainer[0]), base=trainer[0]
    )
    assert verdict.cause == LORA and verdict.decided
    verdict = sampler_verdict([Probe(40, trainer[1], trainer[0])], start=Probe(0, trainer[0], trainer[0]))
    assert verdict.cause == NOT_SYNCED and verdict.steps_behind == 40


@pytest.mark.parametrize("update", [0.01, 1e-6])
def test_a_constant_bf16_error_is_lost_precision_not_staleness(update):
    trainer = policy(5, update)
    rough = 0.002 * np.random.default_rng(5).normal(size=TOKENS)
    engine = [row + rough for row in trainer]
    found = [v.cause for v in verdicts(trainer, engine, rounding=0.003)]
    assert found == [PRECISION] + [PRECISION if update == 0.01 else CANNOT_TELL] * 4
    assert {v.cause for v in verdicts(trainer, engine)} == {UNKNOWN}  # its size is not known
    for more in (5, 50):  # a head that stayed as it was had 3.2 times what bfloat16 makes after its first update
        assert {v.cause for v in verdicts(trainer, [row + more * rough for row in trainer], rounding=0.003)} == {
            UNKNOWN
        }


def test_staleness_is_seen_through_a_lower_precisions_rounding():
    trainer, rough = policy(5, 0.06), 0.02 * np.random.default_rng(5).normal(size=TOKENS)
    engine = [row + rough for row in late(trainer, 1)]
    found = verdicts(trainer, engine, rounding=0.02)
    assert [v.cause for v in found] == [PRECISION, NOT_SYNCED, LATE, LATE, LATE]


def test_updates_below_the_noise_are_open_until_they_add_up():
    trainer = policy(90, 5e-4)
    found = verdicts(trainer, late(trainer, 99), noise=2e-3, dtype="bfloat16")
    causes = [v.cause for v in found]
    assert causes[:3] == [IN_SYNC, CANNOT_TELL, CANNOT_TELL] and not found[2].decided and not found[2].fault
    assert causes[-1] == NOT_SYNCED
    in_step = verdicts(trainer, trainer, noise=2e-3, dtype="bfloat16")
    assert not any(v.fault for v in in_step)


def test_no_update_leaves_nothing_to_see_and_is_no_fault():
    trainer = policy(1, 0) * 5
    assert {v.cause for v in verdicts(trainer, trainer)} == {IN_SYNC}


@pytest.mark.parametrize("dtype, noise", [("float32", 1e-6), ("float32", 5e-5), ("bfloat16", 0.01), ("bfloat16", 0.04)])
@pytest.mark.parametrize("update", [0, 1e-6, 1e-4, 1e-2])
def test_an_engine_in_sync_is_never_called_a_fault(dtype, noise, update):
    for seed in range(2):
        trainer = policy(60, update, seed)
        found = verdicts(trainer, trainer, noise=noise, dtype=dtype, seed=seed + 10)
        assert not any(v.fault for v in found)


def test_what_only_part_of_an_update_reached_is_another_policy():
    trainer = policy(3, 0.1)
    half = [trainer[0], *[(a + b) / 2 for a, b in itertools.pairwise(trainer)]]
    assert verdicts(trainer, half)[2].cause == UNKNOWN


def cached(engine_moves: bool, apart: float, tokens: int | None, rounding: float = 0.0) -> str:
    trainer = policy(2, 0.1)
    top = np.linspace(-3, -1, 5)
    engine = trainer if engine_moves else [trainer[0]] * 2
    first = Probe(0, trainer[0], engine[0], top, top, 0)
    now = Probe(1, trainer[1], engine[1] + rounding * (-1) ** np.arange(TOKENS), top + apart, top, tokens)
    return sampler_verdict([first, now], start=first).cause


def test_a_stale_prefix_cache_is_found_by_its_effect_or_reads():
    assert cached(True, 0.05, None) == CACHE and cached(True, 0.05, 128) == CACHE and cached(True, 1e-7, 128) == CACHE
    assert cached(True, 1e-6, 0) == IN_SYNC and cached(True, 1e-6, None) == IN_SYNC
    assert cached(False, 0.0, 128) == NOT_SYNCED  # what is cached is what the engine would compute
    assert cached(False, 1e-7, 128, rounding=3e-7) == NOT_SYNCED  # in another batch it rounds otherwise
    assert cached(True, 1e-7, 128, rounding=3e-7) == CACHE


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "trainer, engine, cause", [(np.nan, np.nan, CANNOT_TELL), (np.nan, -1, CANNOT_TELL), (-1, np.nan, UNKNOWN)]
)
def test_a_policy_of_nan_is_not_taken_for_a_stale_one(trainer, engine, cause, cached):
    first, top = Probe(0, *[np.full(TOKENS, -2.0)] * 2), np.full(5, engine, float)
    now = Probe(1, np.full(TOKENS, trainer, float), np.full(TOKENS, engine, float), *([top, top, 0] if cached else []))
    verdict = sampler_verdict([first, now], start=first)
    assert verdict.cause == cause and f"of {TOKENS} log-probs, " in verdict.text


def test_token_ids_are_compared_where_both_have_them():
    assert token_difference({"text": [1, 2]}, {"text": [1, 2], "conversation": [3]}) == ""
    assert "conversation is 1 tokens" in token_difference({"conversation": [4]}, {"conversation": [3, 4]})
    assert "token 2 is none to the one and 9" in token_difference({"text": [1, 2]}, {"text": [1, 2, 9]})
