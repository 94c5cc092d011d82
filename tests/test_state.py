"""TransformerState: plain buffers of the caller, packed at the used length, growing in place."""

import array
import copy
import pickle

import numpy as np
import pytest
from support import bits, make_block, uniform

from mojolearn import TransformerState
from mojolearn.models.model_state import CausalLMState

SIZE = 2 * 2 * 6 * 8  # B, KV, max_tokens, HD


def buffers():
    return np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)


def state_of(k, v, **more):
    return TransformerState(2, 2, 8, 6, k, v, **more)


@pytest.fixture
def block():
    return make_block(d_model=32, intermediate=48, n_heads=4, n_kv_heads=2, head_dim=8)


def memory_maps(tmp_path):
    return [np.memmap(tmp_path / name, np.float32, "w+", shape=SIZE) for name in "kv"]


@pytest.mark.parametrize(
    "kind",
    [
        lambda tmp_path: buffers(),
        lambda tmp_path: [array.array("f", bytes(4 * SIZE)) for _ in "kv"],
        lambda tmp_path: [memoryview(bytearray(4 * SIZE)).cast("f") for _ in "kv"],
        memory_maps,
        lambda tmp_path: np.zeros((2, SIZE), np.float32),
    ],
    ids=["ndarray", "array.array", "memoryview", "memmap", "rows of one array"],
)
def test_the_callers_memory_is_updated(block, rng, kind, tmp_path):
    k, v = kind(tmp_path)
    x = uniform(rng, (2, 4, 32))
    state = state_of(k, v)
    assert state.k_cache is k and state.v_cache is v
    ordinary = block.allocate_state(2, 6)
    for part in (x[:, :3], x[:, 3:]):
        np.testing.assert_array_equal(bits(block.forward(part, state)), bits(block.forward(part, ordinary)))
    np.testing.assert_array_equal(bits(np.asarray(k)), bits(ordinary.k_cache))
    np.testing.assert_array_equal(bits(np.asarray(v)), bits(ordinary.v_cache))


def test_packed_at_the_used_length(block, rng):
    """The first B KV S HD numbers are the cache; ``keys`` is a view of them; the spare part is not touched."""
    state = block.allocate_state(2, 6)
    marker = np.float32(-7.5)
    for total in (1, 3, 4, 6):
        used = 2 * 2 * total * 8
        state.k_cache[2 * 2 * state.cached_tokens * 8 :] = marker
        state.v_cache[2 * 2 * state.cached_tokens * 8 :] = marker
        block.forward(uniform(rng, (2, total - state.cached_tokens, 32)), state)
        assert state.keys().shape == state.values().shape == (2, 2, total, 8)
        assert np.shares_memory(state.keys(), state.k_cache) and np.shares_memory(
            state.values(), state.v_cache
        )
        np.testing.assert_array_equal(state.keys().reshape(-1), state.k_cache[:used])
        assert (state.k_cache[used:] == marker).all() and (state.v_cache[used:] == marker).all()
        assert not (state.k_cache[:used] == marker).any()


def test_growth_keeps_what_is_cached(block, rng):
    state = block.allocate_state(2, 6)
    block.forward(uniform(rng, (2, 2, 32)), state)
    keys, values = state.keys().copy(), state.values().copy()
    for _ in range(4):
        block.step(uniform(rng, (2, 32)), state)
        np.testing.assert_array_equal(bits(state.keys()[:, :, :2]), bits(keys))
        np.testing.assert_array_equal(bits(state.values()[:, :, :2]), bits(values))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s)),
                                       TransformerState.copy])  # fmt: skip
@pytest.mark.parametrize("window", [0, 3])
def test_copies_are_equal_and_independent(rng, duplicate, window):
    block = make_block(d_model=32, intermediate=48, n_heads=4, n_kv_heads=2, head_dim=8, window=window)
    state = block.allocate_state(2, 12)
    block.forward(uniform(rng, (2, 5, 32)), state)
    other = duplicate(state)
    assert other == state and other is not state
    assert not np.shares_memory(other.k_cache, state.k_cache)
    x = uniform(rng, (2, 32))
    y = block.step(x, other)
    assert other != state and state.cached_tokens == 5
    np.testing.assert_array_equal(bits(block.step(x, state)), bits(y))
    assert other == state


def test_equality_sees_every_part(block):
    state = block.allocate_state(2, 6)
    other = state.copy()
    other.cached_tokens = 1
    assert state != other
    other = state.copy()
    other.v_cache[-1] = 1
    assert state != other
    assert state != block.allocate_state(2, 7) and state != "state"
    with pytest.raises(TypeError):
        hash(state)


def test_round_trip_through_a_file(block, rng, tmp_path):
    """Save with np.savez, load in any way, continue: the bits of an unbroken run."""
    x = uniform(rng, (2, 5, 32))
    wanted = bits(block(x))
    state = block.allocate_state(2, 6)
    block.forward(x[:, :3], state)
    np.savez(tmp_path / "state.npz", k=state.k_cache, v=state.v_cache, n=state.cached_tokens)
    loaded = np.load(tmp_path / "state.npz")
    state = TransformerState(2, 2, 8, 6, loaded["k"], loaded["v"], cached_tokens=int(loaded["n"]))
    np.testing.assert_array_equal(bits(block.forward(x[:, 3:], state)), wanted[:, 3:])


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("held", [2, 5])
@pytest.mark.parametrize("order", [[1, 0], [2, 0, 0], [1]])
def test_rows_taken_in_another_order(rng, window, held, order):
    """As beam search does; with two rows of two key-value heads, where a wrong axis would have the same shape too."""
    block = make_block(d_model=32, intermediate=48, n_heads=4, n_kv_heads=2, head_dim=8, window=window)
    x = uniform(rng, (max(order) + 1, held + 1, 32))
    state = block.allocate_state(len(x), 8)
    block.forward(x[:, :held], state)
    taken = block.allocate_state(len(order), 8)
    taken.cached_tokens = held
    for mine, theirs in ((taken.k_cache, state.k_cache), (taken.v_cache, state.v_cache)):
        slots = window or held
        used = len(x) * 2 * slots * 8
        rows = theirs[:used].reshape(len(x), 2, slots, 8)[order]
        mine[: rows.size] = rows.reshape(-1)
    y = block.step(x[order, held], taken)
    for row, source in zip(y, order, strict=True):
        np.testing.assert_array_equal(bits(row), bits(block.forward(x[source : source + 1])[0, held:]))


@pytest.mark.parametrize("state_class", [TransformerState, CausalLMState])
def test_every_public_method_has_an_example(state_class):
    methods = [
        getattr(state_class, name)
        for name in vars(state_class)
        if not name.startswith("_") and callable(getattr(state_class, name))
    ]
    assert {method.__name__ for method in methods} >= {"copy", "save", "load"}
    assert not [method.__name__ for method in methods if "Examples" not in method.__doc__]


def test_sizes_and_repr(block):
    state = block.allocate_state(batch_size=2, max_tokens=6)
    assert (state.batch_size, state.n_kv_heads, state.head_dim, state.max_tokens) == (2, 2, 8, 6)
    assert (state.capacity, state.window, state.cached_tokens, state.nbytes) == (6, 0, 0, 2 * 4 * SIZE)
    assert repr(state) == (
        "TransformerState(batch_size=2, cached_tokens=0/6, n_kv_heads=2, head_dim=8, window=0, 1.5 KiB)"
    )
    state.cached_tokens = "three"
    assert "three" in repr(state)
    assert not state.k_cache.any() and not state.v_cache.any()


@pytest.mark.parametrize("value", [7, -1, 2**70, 2.0, "2", None, True])
def test_a_bad_length_is_refused_when_it_is_used(block, rng, value):
    state = block.allocate_state(2, 6)
    state.cached_tokens = value
    kind = ValueError if type(value) is int else TypeError
    for use in (state.keys, state.values, state.copy, lambda: block.step(uniform(rng, (2, 32)), state)):
        with pytest.raises(kind, match="cached_tokens"):
            use()
    state.cached_tokens = np.int32(2)
    assert state.cached_tokens == 2 and state.keys().shape == (2, 2, 2, 8)


def test_a_bad_length_is_refused_at_construction():
    with pytest.raises(ValueError, match=r"TransformerState: cached_tokens .* from 0 to 6"):
        state_of(*buffers(), cached_tokens=7)


k, v = buffers()
read_only = np.zeros(SIZE, np.float32)
read_only.flags.writeable = False
misaligned = np.zeros(4 * SIZE + 1, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (k[:-1], ValueError, "191 values"),
        (k.reshape(2, -1), ValueError, "shape"),
        (k.astype(np.float64), TypeError, "float64"),
        (np.zeros(2 * SIZE, np.float32)[::2], ValueError, "strided"),
        (read_only, ValueError, "read-only"),
        (misaligned, ValueError, "4 bytes"),
        (k.astype(">f4"), TypeError, "byte order"),
        ([0.0] * SIZE, TypeError, "list"),
        (None, TypeError, "None"),
        (bytes(4 * SIZE), TypeError, "bytes"),
        (v, ValueError, "overlap"),
    ],
    ids=[
        "length",
        "rank",
        "dtype",
        "strided",
        "read-only",
        "misaligned",
        "byte order",
        "list",
        "None",
        "bytes",
        "same",
    ],
)
def test_buffers_that_cannot_serve(bad, error, message):
    with pytest.raises(error, match=message):
        state_of(bad, v)
    with pytest.raises(error, match=message):
        state_of(v, bad)


def test_overlapping_buffers_are_refused():
    one = np.zeros(2 * SIZE - 1, np.float32)
    with pytest.raises(ValueError, match="overlap"):
        state_of(one[:SIZE], one[SIZE - 1 :])


@pytest.mark.parametrize("name", ["batch_size", "n_kv_heads", "head_dim", "max_tokens", "window"])
@pytest.mark.parametrize(
    ("value", "error"), [(-1, ValueError), (1.0, TypeError), ("2", TypeError), (True, TypeError)]
)
def test_sizes_that_are_none(name, value, error):
    sizes = {"batch_size": 2, "n_kv_heads": 2, "head_dim": 8, "max_tokens": 6, "window": 0} | {name: value}
    with pytest.raises(error, match=f"TransformerState: {name}"):
        TransformerState(k_cache=buffers()[0], v_cache=buffers()[1], **sizes)
