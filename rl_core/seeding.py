"""One integer seed, many named and independent random streams.

Every stream is `numpy.random.SeedSequence(seed, spawn_key=(number of the name, ...))`: streams of neighbouring
seeds or of different names share nothing, and adding a name changes no other stream.
"""

import numpy as np
import numpy.typing as npt

STREAMS = ("environment", "exploration", "network", "sampling", "evaluation")
_GENERATOR_WORDS = 6
_WORD = (1 << 64) - 1


def stream(seed: int, name: str, *key: int) -> np.random.SeedSequence:
    """Return the seed sequence of the stream `name` of run `seed`; `key` selects a child of it.

    Raises:
        ValueError: the seed is negative, or the name is not one of `STREAMS`.
    """
    if seed < 0:
        raise ValueError(f"a seed must be 0 or more, got {seed}")
    if name not in STREAMS:
        raise ValueError(f"unknown stream {name!r}; known: {', '.join(STREAMS)}")
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *key))


def generator(seed: int, name: str, *key: int) -> np.random.Generator:
    """Return a fresh numpy generator on the stream `name` of run `seed`."""
    return np.random.Generator(np.random.PCG64(stream(seed, name, *key)))


def torch_seed(seed: int, name: str, *key: int) -> int:
    """Return the non-negative 63-bit integer that seeds a `torch.Generator` on this stream."""
    return int(stream(seed, name, *key).generate_state(1, np.uint64)[0]) >> 1


def generator_state(rng: np.random.Generator) -> npt.NDArray[np.uint64]:
    """Return the whole state of a PCG64 generator as six 64-bit words."""
    raw = rng.bit_generator.state
    state, increment = raw["state"]["state"], raw["state"]["inc"]
    words = (
        state >> 64,
        state & _WORD,
        increment >> 64,
        increment & _WORD,
        raw["has_uint32"],
        raw["uinteger"],
    )
    return np.array(words, np.uint64)


def set_generator_state(rng: np.random.Generator, words: npt.NDArray[np.uint64]) -> None:
    """Restore what `generator_state` returned.

    Raises:
        ValueError: `words` is not six 64-bit words.
    """
    if words.shape != (_GENERATOR_WORDS,) or words.dtype != np.uint64:
        raise ValueError(f"a generator state is {_GENERATOR_WORDS} uint64 words, got {words.dtype} {words.shape}")
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
