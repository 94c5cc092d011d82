"""One result: the bits do not depend on chunks, batch, threads, padding, storage or how a state came about."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits, goes_by_length, make_block, make_weights, random_options, uniform

from mojolearn import TransformerBlock, threads

seeds = st.integers(0, 2**31)


def random_case(seed, L=14, B=3):
    """A block with random options and an input (B, L, d_model)."""
    rng = np.random.default_rng(seed)
    block = make_block(**random_options(rng))
    return block, uniform(rng, (B, L, block.d_model), 2.0), rng


def cut(rng, L):
    """A random way to cut L tokens into chunks."""
    at = np.flatnonzero(rng.random(L - 1) < 0.4) + 1
    return np.split(np.arange(L), at)


def assert_same_state(one, other):
    assert one.cached_tokens == other.cached_tokens
    np.testing.assert_array_equal(bits(one.k_cache), bits(other.k_cache))
    np.testing.assert_array_equal(bits(one.v_cache), bits(other.v_cache))


@given(seeds)
def test_chunks_and_steps(seed):
    """One call = any chunking = all steps = no state at all; the buffers too."""
    block, x, rng = random_case(seed)
    B, L, _ = x.shape
    room = L if goes_by_length(block) else L + 3
    whole, chunked, stepped = (block.allocate_state(B, room) for _ in range(3))
    wanted = bits(block.forward(x, whole))
    np.testing.assert_array_equal(bits(block(x)), wanted)
    by_chunks = np.concatenate([block.forward(x[:, part], chunked) for part in cut(rng, L)], axis=1)
    np.testing.assert_array_equal(bits(by_chunks), wanted)
    by_steps = np.concatenate([block.step(x[:, t], stepped) for t in range(L)], axis=1)
    np.testing.assert_array_equal(bits(by_steps), wanted)
    assert_same_state(chunked, whole)
    assert_same_state(stepped, whole)


@given(seeds)
def test_a_row_in_any_batch(seed):
    """Alone, in batches of other sizes and at every place of them."""
    block, x, rng = random_case(seed, L=5, B=7)
    row = x[:1]
    alone = bits(block(row))
    for B in (2, 3, 7):
        for place in range(B):
            batch = x[rng.permutation(7)[:B]]
            batch[place] = row[0]
            np.testing.assert_array_equal(bits(block(batch)[place]), alone[0])


@pytest.mark.parametrize("B", [15, 16, 17, 31, 33, 43, 44, 45, 63, 64, 65, 97])
def test_steps_of_large_batches(rng, B):
    """Sizes at which registers, tiles and blocks of rows fill up."""
    block = make_block(d_model=48, intermediate=80, n_heads=6, n_kv_heads=2)
    x = uniform(rng, (B, 4, 48))
    state = block.allocate_state(B, 8)
    block.forward(x[:, :3], state)
    together = bits(block.step(x[:, 3], state))
    for row in (0, B // 2, B - 1):
        state = block.allocate_state(1, 8)
        block.forward(x[row : row + 1, :3], state)
        np.testing.assert_array_equal(bits(block.step(x[row : row + 1, 3], state)), together[row : row + 1])


@given(seeds)
def test_serial_and_parallel_twins(seed):
    """On one thread, on all, and with the parallel twins forced for the smallest work."""
    block, x, _ = random_case(seed)
    most = numba.get_num_threads()
    small = threads.SMALL
    results = []
    try:
        for n, least in ((1, small), (most, small), (most, 0)):
            numba.set_num_threads(n)
            threads.SMALL = least
            state = block.allocate_state(x.shape[0], x.shape[1])
            y = [block.forward(x[:, :-1], state), block.step(x[:, -1], state)]
            results.append([bits(a) for a in (*y, state.k_cache, state.v_cache)])
    finally:
        numba.set_num_threads(most)
        threads.SMALL = small
    for result in results[1:]:
        for got, wanted in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


@given(seeds)
def test_ragged_rows(seed):
    """lengths= gives each row as it is alone; the padding comes back as +0.0 whatever stands in it."""
    block, x, rng = random_case(seed, L=9, B=4)
    lengths = rng.integers(1, 10, 4)
    garbage = rng.choice([np.nan, np.inf, -np.inf, 3e38], size=x.shape).astype(np.float32)
    real = np.arange(9) < lengths[:, None]
    padded = np.where(real[:, :, None], x, garbage)
    y = block.forward(padded, lengths=lengths)
    assert np.all(bits(y)[~real] == 0)
    for row, n in enumerate(lengths):
        np.testing.assert_array_equal(bits(y[row, :n]), bits(block(x[row : row + 1, :n]))[0])


@given(seeds)
def test_a_state_made_by_hand(seed):
    """Buffers copied into a fresh state with ``cached_tokens`` set continue like the original."""
    block, x, _ = random_case(seed)
    B, L, _ = x.shape
    state = block.allocate_state(B, L)
    block.forward(x[:, :-2], state)
    by_hand = block.allocate_state(B, L)
    by_hand.k_cache[:], by_hand.v_cache[:] = state.k_cache, state.v_cache
    by_hand.cached_tokens = state.cached_tokens
    np.testing.assert_array_equal(
        bits(block.forward(x[:, -2:], by_hand)), bits(block.forward(x[:, -2:], state))
    )
    assert_same_state(by_hand, state)


@given(seeds)
def test_capacity_does_not_matter(seed):
    """Unless the rotation is chosen by it."""
    block, x, rng = random_case(seed)
    B, L, _ = x.shape
    if goes_by_length(block):
        options = block.options.as_dict() | {"rope_scaling": None}
        block = TransformerBlock(block.weights(), **options)
    roomy = block.allocate_state(B, L + int(rng.integers(1, 50)))
    tight = block.allocate_state(B, L)
    for part in cut(rng, L):
        np.testing.assert_array_equal(
            bits(block.forward(x[:, part], roomy)), bits(block.forward(x[:, part], tight))
        )
    np.testing.assert_array_equal(bits(roomy.keys()), bits(tight.keys()))
    np.testing.assert_array_equal(bits(roomy.values()), bits(tight.values()))


@given(seeds, st.sampled_from(["bfloat16", "float16"]))
def test_narrow_storage(seed, weight_format):
    """Narrow weights give the bits of the float32 weights with the same values."""
    options = random_options(np.random.default_rng(seed)) | {"weight_format": weight_format}
    weights = make_weights(**options)
    for name in ("d_model", "intermediate", "seed"):
        options.pop(name)
    narrow = TransformerBlock(weights, **options)
    wide = TransformerBlock(weights, **options | {"weight_format": "float32"})
    x = uniform(np.random.default_rng(seed), (2, 7, narrow.d_model), 2.0)
    assert narrow.nbytes < wide.nbytes
    np.testing.assert_array_equal(bits(narrow(x)), bits(wide(x)))
    one_row = x[:1, :1]
    np.testing.assert_array_equal(bits(narrow(one_row)), bits(wide(one_row)))


@given(seeds)
def test_the_future_does_not_reach_back(seed):
    """Changing token t leaves all earlier outputs as they are."""
    block, x, rng = random_case(seed)
    t = int(rng.integers(1, x.shape[1]))
    changed = x.copy()
    changed[:, t:] = uniform(rng, changed[:, t:].shape, 5.0)
    np.testing.assert_array_equal(bits(block(changed)[:, :t]), bits(block(x)[:, :t]))


def test_two_hundred_repeats_give_one_result(rng):
    block = make_block(d_model=64, intermediate=200, n_heads=8, n_kv_heads=2)
    x = uniform(rng, (3, 40, 64))
    wanted = bits(block(x)).tobytes()
    assert {bits(block(x)).tobytes() for _ in range(200)} == {wanted}
