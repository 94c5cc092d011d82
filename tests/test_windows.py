"""Sliding windows and their rings: against a masked float64 reference, and against each other bit for bit."""

import numpy as np
import pytest
from support import bits, make_block, make_weights, uniform

from mojolearn import TransformerBlock
from mojolearn.reference import reference_block

OPTIONS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8}
SIZES = {"d_model": 32, "intermediate": 48}
W = 4

# Ways to reach totals on, before and after W, 2 W and 2 W + 1; chunks longer than the ring on an empty, a part-full
# and a wrapped one.
CHUNKS = [
    [3, 1, 1], [4], [4, 1], [5, 4], [8, 1], [9], [2, 1, 3, 1], [11], [3, 9], [2, 6, 1], [6, 7, 2], [7, 4, 4],
    [1] * 20, [13, 1], [12, 2, 9],
]  # fmt: skip


def windowed(window):
    return TransformerBlock(make_weights(**SIZES, **OPTIONS), **OPTIONS, window=window)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("window", [1, 2, 3, W, 5, 9, 14, 100])
@pytest.mark.parametrize("max_tokens", ["tight", "roomy"])
def test_chunks_equal_the_whole_and_the_reference(rng, window, chunks, max_tokens):
    block = windowed(window)
    L = sum(chunks)
    x = uniform(rng, (2, L, 32))
    wanted = block(x)
    reference, keys, values = reference_block(
        x, make_weights(**SIZES, **OPTIONS), OPTIONS | {"window": window}
    )
    assert np.abs(wanted - reference).max() < 2e-6 * np.abs(reference).max()
    state = block.allocate_state(2, L if max_tokens == "tight" else 3 * L)
    done = 0
    for n in chunks:
        y = block.forward(x[:, done : done + n], state)
        np.testing.assert_array_equal(bits(y), bits(wanted[:, done : done + n]))
        done += n
        assert state.cached_tokens == done
        first = max(0, done - window)
        np.testing.assert_allclose(state.keys(), keys[:, :, first:done], rtol=0, atol=1e-5)
        np.testing.assert_allclose(state.values(), values[:, :, first:done], rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [14, 15, 40])
def test_a_window_that_never_closes_changes_nothing(rng, window):
    x = uniform(rng, (1, 14, 32))
    np.testing.assert_array_equal(bits(windowed(window)(x)), bits(windowed(0)(x)))


def test_a_window_of_one_sees_itself_only(rng):
    x, other = uniform(rng, (2, 1, 9, 32))
    other[:, -1] = x[:, -1]
    np.testing.assert_array_equal(bits(windowed(1)(x)[:, -1]), bits(windowed(1)(other)[:, -1]))


@pytest.mark.parametrize("chunks", [[10], [3, 3, 4], [1] * 10], ids=str)
def test_what_left_the_window_is_forgotten(rng, chunks):
    """Another token 0 reaches rows 0 to W - 1 and no further, in one call and in chunks."""
    block = windowed(W)
    x = uniform(rng, (1, 10, 32))
    other = x.copy()
    other[:, 0] = uniform(rng, 32, 5.0)  # not a multiple, which a norm would undo
    results = []
    for tokens in (x, other):
        state = block.allocate_state(1, 10)
        parts = np.split(tokens, np.cumsum(chunks)[:-1], axis=1)
        results.append(bits(np.concatenate([block.forward(part, state) for part in parts], axis=1)))
    plain, disturbed = results
    assert (disturbed[:, :W] != plain[:, :W]).any(axis=-1).all()
    np.testing.assert_array_equal(disturbed[:, W:], plain[:, W:])


@pytest.mark.parametrize("window", [1, 3, W])
def test_never_written_slots_may_hold_anything(rng, window):
    block = windowed(window)
    x = uniform(rng, (2, window + 3, 32))
    state = block.allocate_state(2, 50)
    state.k_cache[:] = state.v_cache[:] = np.nan
    y = np.concatenate([block.step(x[:, t], state) for t in range(window + 3)], axis=1)
    np.testing.assert_array_equal(bits(y), bits(block(x)))


def test_the_ring_does_not_grow(rng):
    block = windowed(W)
    state = block.allocate_state(1, 1000)
    assert state.capacity == W and state.k_cache.size == 2 * W * 8
    for _ in range(50):
        block.step(uniform(rng, (1, 32)), state)
    assert state.cached_tokens == 50 and state.keys().shape == (1, 2, W, 8)


def test_copies_of_a_wrapped_ring_continue_on_their_own(rng):
    block = windowed(W)
    x = uniform(rng, (1, 9, 32))
    state = block.allocate_state(1, 20)
    block.forward(x[:, :6], state)
    other = state.copy()
    one = block.forward(x[:, 6:], state)
    before = bits(other.k_cache).copy()
    np.testing.assert_array_equal(bits(block.forward(x[:, 6:], other)), bits(one))
    assert not np.array_equal(before, bits(other.k_cache)) and other == state


def test_long_windows_and_many_rows(rng):
    """Blocks of rows whose keys come partly from a wrapped ring, partly from this call."""
    block = make_block(d_model=32, intermediate=48, n_heads=6, n_kv_heads=2, head_dim=8, window=37)
    x = uniform(rng, (2, 200, 32))
    wanted = bits(block(x))
    state = block.allocate_state(2, 200)
    for first, last in ((0, 50), (50, 51), (51, 130), (130, 131), (131, 200)):
        np.testing.assert_array_equal(bits(block.forward(x[:, first:last], state)), wanted[:, first:last])
