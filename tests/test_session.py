"""Decode sessions: the bits of the plain calls, and a state that never loses a token."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits, goes_by_length, make_block, random_options, uniform

from mojolearn import TransformerBlock, TransformerState, threads

SHAPE = {"d_model": 32, "intermediate": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8}


def prepared(window=0, max_tokens=12, held=4, **options):
    block = make_block(**SHAPE, window=window, **options)
    state = block.allocate_state(2, max_tokens)
    x = uniform(np.random.default_rng(3), (2, max_tokens, 32))
    if held:
        block.forward(x[:, :held], state)
    return block, state, x


@given(st.integers(0, 2**31), st.booleans())
def test_steps_and_buffers_have_the_bits_of_plain_calls(seed, parallel):
    """Random options; a cache that grows past its window and past several panels of keys."""
    rng = np.random.default_rng(seed)
    block = make_block(**random_options(rng))
    B, L, held = int(rng.integers(1, 4)), int(rng.integers(2, 60)), int(rng.integers(0, 40))
    x = uniform(rng, (B, held + L, block.d_model), 2.0)
    rooms = held + L + rng.integers(0, 9, 2)
    plain, state = (block.allocate_state(B, rooms[0 if goes_by_length(block) else i]) for i in range(2))
    if held:
        for each in (plain, state):
            block.forward(x[:, :held], each)
    small = threads.SMALL
    threads.SMALL = 0 if parallel else small
    try:
        with block.decode_session(state) as session:
            y = np.concatenate([session.step(x[:, t]) for t in range(held, held + L)], axis=1)
            assert state.cached_tokens == held + L
    finally:
        threads.SMALL = small
    wanted = np.concatenate([block.step(x[:, t], plain) for t in range(held, held + L)], axis=1)
    np.testing.assert_array_equal(bits(y), bits(wanted))
    used = state.keys().size if not block.window else state.k_cache.size
    np.testing.assert_array_equal(bits(state.k_cache[:used]), bits(plain.k_cache[:used]))
    np.testing.assert_array_equal(bits(state.v_cache[:used]), bits(plain.v_cache[:used]))
    assert state.cached_tokens == plain.cached_tokens


@pytest.mark.parametrize("head_dim", [2, 30, 32, 34, 64, 128, 130, 132, 260])
@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (5, 1), (8, 2)], ids=str)
def test_shapes_of_heads(rng, head_dim, heads):
    """Widths around the registers and the leaf of 128; groups of less, more and exactly ROWS query heads."""
    n_heads, n_kv_heads = heads
    block = make_block(d_model=24, intermediate=16, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)
    x = uniform(rng, (1, 40, 24))
    wanted = block(x)
    state = block.allocate_state(1, 40)
    with block.decode_session(state) as session:
        for t in range(40):
            np.testing.assert_array_equal(bits(session.step(x[:, t])), bits(wanted[:, t : t + 1]))


@pytest.mark.parametrize("window", [0, 3, 7])
def test_chunks_within_a_session(window):
    block, state, x = prepared(window)
    wanted = block(x)
    with block.decode_session(state) as session:
        for first, last in ((4, 5), (5, 8), (8, 9), (9, 10), (10, 12)):
            y = session.forward(x[:, first:last])
            np.testing.assert_array_equal(bits(y), bits(wanted[:, first:last]))
            assert state.cached_tokens == last


@pytest.mark.parametrize("window", [0, 3])
def test_the_state_shows_every_token_while_the_session_is_open(window):
    block, state, x = prepared(window)
    plain = state.copy()
    with block.decode_session(state) as session:
        for t in range(4, 7):
            session.step(x[:, t])
            block.step(x[:, t], plain)
            np.testing.assert_array_equal(bits(state.keys()), bits(plain.keys()))
            np.testing.assert_array_equal(bits(state.values()), bits(plain.values()))
        session.step(x[:, 7])
        block.step(x[:, 7], plain)
        for duplicate in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), state):
            assert duplicate == plain
        assert copy.copy(state).session is None and state.session is session


def test_spare_capacity_is_not_touched():
    block, state, x = prepared()
    state.k_cache[2 * 2 * 4 * 8 :] = state.v_cache[2 * 2 * 4 * 8 :] = np.nan
    with block.decode_session(state) as session:
        session.step(x[:, 4])
    used = 2 * 2 * 5 * 8
    assert np.isnan(state.k_cache[used:]).all() and np.isnan(state.v_cache[used:]).all()
    assert np.isfinite(state.k_cache[:used]).all()


def test_the_block_refuses_a_state_in_a_session():
    block, state, x = prepared()
    with block.decode_session(state) as session:
        for call in (lambda: block.forward(x[:, 4:6], state), lambda: block.step(x[:, 4], state),
                     lambda: block.decode_session(state)):  # fmt: skip
            with pytest.raises(ValueError, match="open decode session"):
                call()
        session.step(x[:, 4])
    block.step(x[:, 5], state)
    assert state.cached_tokens == 6


def test_an_exception_inside_with_loses_nothing():
    block, state, x = prepared()
    plain = state.copy()
    session = block.decode_session(state)

    def fails():
        with session:
            session.step(x[:, 4])
            raise KeyError("something of the user's")

    with pytest.raises(KeyError):
        fails()
    block.step(x[:, 4], plain)
    assert state == plain and not session.is_open and state.session is None


@pytest.mark.parametrize("window", [0, 3])
def test_refused_steps_leave_everything_as_it_was(window):
    block, state, x = prepared(window, max_tokens=6)
    bad = x[:, 4].copy()
    bad[1, 3] = np.nan
    plain = state.copy()
    with block.decode_session(state) as session:
        session.step(x[:, 4])
        for call, message in (
            (lambda: session.step(bad), r"TransformerDecodeSession.step: x\[1, 0, 3\] is nan"),
            (lambda: session.step(x[:1, 4]), "batch_size=2, but x has 1"),
            (lambda: session.forward(x[:, :2]), "holds 5 .* 2 more"),
            (lambda: session.step(x[:, :2]), "use forward"),
        ):
            with pytest.raises(ValueError, match=message):
                call()
        session.step(x[:, 5])
        with pytest.raises(ValueError, match=r"holds 6 .* 1 more"):
            session.step(x[:, 5])
    for t in (4, 5):
        block.step(x[:, t], plain)
    assert state == plain


@pytest.mark.parametrize("window", [0, 3])
def test_overflow_is_refused_before_the_ring_is_written(window):
    block, state, x = prepared(window)
    weights = block.weights()
    weights["down_proj.weight"] = np.full_like(weights["down_proj.weight"], 3e38)
    bad = TransformerBlock(weights, **block.options.as_dict())
    plain = state.copy()
    with bad.decode_session(state) as session, pytest.raises(ValueError, match="too large for float32"):
        session.step(x[:, 4])
    assert state == plain


def test_discard_goes_back_to_the_last_sync():
    block, state, x = prepared()
    session = block.decode_session(state)
    session.step(x[:, 4])
    session.sync_state()
    synced = state.copy()
    session.step(x[:, 5])
    assert state.cached_tokens == 6
    session.discard()
    assert state == synced and not session.is_open
    block.step(x[:, 5], state)


def test_loading_buffers_changed_by_hand():
    block, state, x = prepared()
    other = state.copy()
    with block.decode_session(state) as session:
        session.step(x[:, 4])
        state.k_cache[:], state.v_cache[:], state.cached_tokens = other.k_cache, other.v_cache, 4
        with pytest.raises(ValueError, match="was set to 4, but the session holds 5"):
            session.step(x[:, 5])
        session.load_state()
        y = session.step(x[:, 5])
    np.testing.assert_array_equal(bits(y), bits(block.step(x[:, 5], other)))
    assert state == other


def test_a_length_set_by_hand_right_after_a_sync_is_taken_over():
    block, state, x = prepared()
    fresh = block.allocate_state(2, 12)
    with block.decode_session(state) as session:
        state.cached_tokens = 0
        y = session.step(x[:, 0])
    np.testing.assert_array_equal(bits(y), bits(block.step(x[:, 0], fresh)))


def test_a_closed_session_says_so():
    block, state, x = prepared()
    session = block.decode_session(state)
    assert session.is_open and session.state is state and "open" in repr(session)
    session.close()
    session.close()
    session.discard()
    assert "closed" in repr(session)
    for call in (lambda: session.step(x[:, 4]), lambda: session.forward(x), session.sync_state, session.load_state,
                 session.__enter__):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_cache_with_nan_is_refused_at_the_door():
    block, state, _ = prepared()
    state.v_cache[3] = np.nan
    with pytest.raises(ValueError, match=r"TransformerBlock.decode_session: v_cache\[3\] is nan"):
        block.decode_session(state)
    assert state.session is None
    with pytest.raises(TypeError, match="TransformerState"):
        block.decode_session("state")


def test_states_of_another_geometry_are_refused():
    block = make_block(**SHAPE)
    n = 2 * 2 * 6 * 4
    state = TransformerState(2, 2, 4, 6, np.zeros(n, np.float32), np.zeros(n, np.float32))
    with pytest.raises(ValueError, match="head_dim=4, but the block has 8"):
        block.decode_session(state)
