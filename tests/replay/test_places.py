"""Places of tokens: uniform for draws from their own distributions, and for nothing else."""

import numpy as np
import pytest

from workbench.replay.places import (
    DIFFERENT,
    UNLIKELY,
    Drawn,
    chance_of_count,
    chance_of_distance,
    largest_distance,
    token_places,
    uniformity,
)


def drawn(rng, count, temperature=1.0, choices=1, equal=False):
    """Tokens of random distributions over 50 tokens, of which token 0 is a stop; `choices` draws, the likeliest is taken."""
    logits = np.zeros((count, 50)) if equal else rng.normal(0, 2, (count, 50))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    colder = probs ** (1 / temperature)
    colder /= colder.sum(1, keepdims=True)
    tokens = np.stack([[rng.choice(50, p=row) for row in colder] for _ in range(choices)])
    of_tokens = np.take_along_axis(probs, tokens.T, 1)
    token = np.take_along_axis(tokens.T, of_tokens.argmax(1)[:, None], 1)
    own = np.take_along_axis(probs, token, 1)
    likelier, level = (probs * (probs > own)).sum(1), (probs * (probs == own)).sum(1)
    return Drawn(likelier, level, probs[:, 0], (token[:, 0] == 0).astype(float))


@pytest.mark.parametrize("equal", [False, True])
def test_draws_from_their_distributions_are_uniform(equal):
    chances = np.array([uniformity(drawn(np.random.default_rng(seed), 100, equal=equal)).chance for seed in range(100)])
    assert chances.min() > UNLIKELY / 10 and (chances < 0.05).mean() < 0.05


@pytest.mark.parametrize("change", [{"temperature": 0.6}, {"temperature": 1.8}, {"choices": 2}])
def test_other_draws_are_not_uniform(change):
    for seed in range(20):
        assert uniformity(drawn(np.random.default_rng(seed), 400, **change)).chance < DIFFERENT


def test_draws_where_rows_end_at_a_stop_are_uniform():
    chances = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        stopping = rng.random((64, 30)) * 0.3
        stops = rng.random((64, 30)) < stopping
        kept = np.cumsum(stops, axis=1) - stops == 0  # up to the first stop of each row
        likelier = np.where(stops, 0.0, stopping)
        equal = np.where(stops, stopping, 1 - stopping)
        chances.append(uniformity(Drawn(likelier[kept], equal[kept], stopping[kept], stops[kept].astype(float))).chance)
    assert min(chances) > UNLIKELY / 10


def test_stops_that_are_never_drawn_are_missed():
    count = 300
    rng = np.random.default_rng(0)
    places = rng.random(count)
    judged = uniformity(Drawn(places, np.zeros(count), np.full(count, 0.1), np.zeros(count)))
    assert judged.chance < DIFFERENT and judged.said.startswith("0 stop tokens were sampled where")


def test_a_difference_within_rounding_is_no_cause():
    rng = np.random.default_rng(0)
    places = rng.random(20_000) * 0.98
    nothing = np.zeros(20_000)
    assert uniformity(Drawn(places, nothing, nothing, nothing)).chance < DIFFERENT
    assert uniformity(Drawn(places, nothing, nothing, nothing), blur=0.025).chance > UNLIKELY


def test_bounds_are_those_of_a_simulation():
    rng = np.random.default_rng(0)
    distances = [largest_distance(rng.random(100))[0] for _ in range(2000)]
    assert np.mean([chance_of_distance(d, 100) < 0.05 for d in distances]) <= 0.06
    counts = rng.binomial(100, 0.1, 5000)
    assert np.mean([chance_of_count(n, 10.0) < 0.05 for n in counts]) <= 0.05


def test_places_of_a_step_are_the_same_each_time():
    assert np.array_equal(token_places(np.zeros(9), np.ones(9)), token_places(np.zeros(9), np.ones(9)))
