"""One seed gives named streams that share nothing, with each other or with a neighbouring seed's."""

import numpy as np
import pytest

from rl_core.seeding import STREAMS, generator, generator_state, set_generator_state, stream, torch_seed


def test_no_two_streams_of_neighbouring_seeds_share_a_state() -> None:
    states = [
        tuple(stream(seed, name, *key).generate_state(4))
        for seed in range(20)
        for name in STREAMS
        for key in ((), (0,), (1,))
    ]
    assert len(set(states)) == len(states)
    assert len({torch_seed(seed, name) for seed in range(20) for name in STREAMS}) == 20 * len(STREAMS)


def test_a_stream_is_the_same_every_time() -> None:
    assert np.array_equal(generator(3, "environment").random(5), generator(3, "environment").random(5))


def test_a_restored_generator_continues_where_it_was() -> None:
    rng = generator(0, "exploration")
    rng.standard_normal(7, np.float32)
    words = generator_state(rng)
    expected = rng.random(10)
    other = generator(1, "exploration")
    set_generator_state(other, words)
    assert np.array_equal(other.random(10), expected)


def test_wrong_seeds_names_and_states_are_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        stream(-1, "environment")
    with pytest.raises(ValueError, match="nonsense"):
        stream(0, "nonsense")
    with pytest.raises(ValueError, match="6 uint64 words"):
        set_generator_state(generator(0, "sampling"), np.zeros(5, np.uint64))
