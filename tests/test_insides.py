"""return_hidden and return_attention of a block: no bit changes, and what comes back is what the call computed with."""

import itertools

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits, choose, goes_by_length, make_block, random_options, uniform

from mojolearn import TransformerBlock, reference, threads
from mojolearn.float32 import fma
from mojolearn.insides import HIDDEN, Look
from mojolearn.reference import reference_block
from mojolearn.weights import widen

seeds = st.integers(0, 2**31)
EVERYTHING = {"return_hidden": True, "return_attention": True}


def random_case(seed, L=11, B=3):
    """A block with random options and an input (B, L, d_model)."""
    rng = np.random.default_rng(seed)
    block = make_block(**random_options(rng))
    return block, uniform(rng, (B, L, block.d_model), 2.0), rng


def weights_of(block):
    """The weights as float64, matrices widened."""
    return {name: widen(w).astype(np.float64) for name, w in block.weights().items()}


def all_values(block, x):
    """The values of all positions, (B, L, KV, HD), which a ring may have lost."""
    wide = TransformerBlock(block.weights(), **block.options.as_dict() | {"window": 0})
    state = wide.allocate_state(x.shape[0], x.shape[1])
    wide.forward(x, state)
    return state.values().swapaxes(1, 2)


@given(seeds)
def test_no_bit_changes(seed):
    """Outputs and states are the same with and without: whole, in chunks, by single tokens, in rows of any lengths."""
    block, x, rng = random_case(seed)
    B, L, _ = x.shape
    plain, watched = block.allocate_state(B, L), block.allocate_state(B, L)
    at = sorted({0, 1, int(rng.integers(2, L)), L - 1, L})
    for first, last in itertools.pairwise(at):
        part = x[:, first:last]
        y, hidden, attention = block.forward(part, watched, **EVERYTHING)
        np.testing.assert_array_equal(bits(y), bits(block.forward(part, plain)))
        assert plain == watched
        assert list(hidden) == list(HIDDEN)
        assert attention.shape == (B, block.n_heads, last - first, last)
        np.testing.assert_array_equal(bits(hidden["input"]), bits(part))
        np.testing.assert_array_equal(bits(hidden["output"]), bits(y))
    lengths = rng.integers(1, L + 1, B)
    y, hidden, attention = block.forward(x, lengths=lengths, **EVERYTHING)
    np.testing.assert_array_equal(bits(y), bits(block.forward(x, lengths=lengths)))
    for b, n in enumerate(lengths):
        _, alone, weights = block.forward(x[b : b + 1, :n], **EVERYTHING)
        np.testing.assert_array_equal(bits(attention[b, :, :n, :n]), bits(weights[0]))
        assert not bits(attention[b, :, n:]).any() and not bits(attention[b, :, :, n:]).any()
        for name in HIDDEN:
            np.testing.assert_array_equal(bits(hidden[name][b, :n]), bits(alone[name][0]))
            assert not bits(hidden[name][b, n:]).any()


@given(seeds)
def test_the_weights_are_those_that_values_are_multiplied_with(seed):
    """The context made of them, in the order of the numerics page, has the bits of the context of the call."""
    block, x, _ = random_case(seed)
    B, L, _ = x.shape
    _, hidden, attention = block.forward(x, **EVERYTHING)
    values = np.repeat(all_values(block, x), block.n_heads // block.n_kv_heads, axis=2)  # (B, L, H, HD)
    context = np.zeros((B, L, block.n_heads, block.head_dim), np.float32)
    for p in range(L):
        first = max(0, p - block.window + 1) if block.window else 0
        assert not bits(attention[:, :, p, :first]).any() and not bits(attention[:, :, p, p + 1 :]).any()
        for j in range(first, p + 1):
            context[:, p] = fma(attention[:, :, p, j, None], values[:, j], context[:, p])
    np.testing.assert_array_equal(bits(hidden["context"]), bits(context.reshape(B, L, -1)))


@given(seeds)
def test_the_weights_against_the_reference(seed):
    block, x, rng = random_case(seed)
    cut = int(rng.integers(1, x.shape[1]))
    options, room = block.options, x.shape[1]
    state = block.allocate_state(x.shape[0], room)
    # The mean of a head of two numbers takes most of their digits away.
    near = 1e-3 if block.qk_norm == "layernorm" else 2e-6
    _, keys, values, first = reference_block(
        x[:, :cut], block.weights(), options, max_tokens=room, return_attention=True
    )
    *_, rest = reference_block(
        x[:, cut:], block.weights(), options, past=(keys, values), max_tokens=room, return_attention=True
    )
    for part, wanted in ((x[:, :cut], first), (x[:, cut:], rest)):
        _, attention = block.forward(part, state, return_attention=True)
        assert attention.dtype == np.float32 and attention.shape == wanted.shape
        np.testing.assert_allclose(attention, wanted, rtol=0, atol=near)
        assert not bits(attention[wanted == 0]).any()
        np.testing.assert_allclose(attention.sum(axis=-1, dtype=np.float64), 1, rtol=0, atol=2e-6)


@given(seeds)
def test_the_weights_do_not_depend_on_chunks_and_batch(seed):
    """One call, any chunks, single tokens, each row alone: column j belongs to position j in all of them."""
    block, x, rng = random_case(seed)
    B, L, _ = x.shape
    _, whole = block.forward(x, return_attention=True)
    rows = choose(rng, range(B), [2, 0], [1])
    for row in rows:
        _, alone = block.forward(x[row : row + 1], return_attention=True)
        np.testing.assert_array_equal(bits(alone[0]), bits(whole[row]))
    for size in (1, int(rng.integers(2, L))):
        state = block.allocate_state(B, L)
        for first in range(0, L, size):
            _, part = block.forward(x[:, first : first + size], state, return_attention=True)
            end = min(first + size, L)
            np.testing.assert_array_equal(bits(part), bits(whole[:, :, first:end, :end]))
    if not goes_by_length(block):
        state = block.allocate_state(B, L + 5)
        _, roomy = block.forward(x, state, return_attention=True)
        np.testing.assert_array_equal(bits(roomy), bits(whole))


@given(seeds)
def test_the_weights_do_not_depend_on_threads(seed):
    """On one thread, on all, and with the parallel twins forced for the smallest work."""
    block, x, _ = random_case(seed)
    most, small = numba.get_num_threads(), threads.SMALL
    results = []
    try:
        for n, least in ((1, small), (most, small), (most, 0)):
            numba.set_num_threads(n)
            threads.SMALL = least
            results.append(bits(block.forward(x, return_attention=True)[1]))
    finally:
        numba.set_num_threads(most)
        threads.SMALL = small
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("window", [0, 3, 60, 200])
@pytest.mark.parametrize(("L", "group"), [(1, 1), (15, 1), (17, 3), (150, 2)])
def test_sizes_of_registers_and_runs(rng, window, L, group):
    """Rows that fill registers, wrap rings and cross from the cache to new keys; weights of long rows too."""
    block = make_block(n_heads=2 * group, n_kv_heads=2, head_dim=8, window=window, attn_softcap=4.0)
    x = uniform(rng, (1, L + 20, 32), 2.0)
    state = block.allocate_state(1, L + 20)
    block.forward(x[:, :20], state)
    _, attention = block.forward(x[:, 20:], state, return_attention=True)
    _, whole = block.forward(x, return_attention=True)
    np.testing.assert_array_equal(bits(attention), bits(whole[:, :, 20:]))
    *_, wanted = reference_block(x, block.weights(), block.options, return_attention=True)
    np.testing.assert_allclose(whole, wanted, rtol=0, atol=2e-6)


@given(seeds)
def test_every_name_is_what_it_says(seed):
    """Each hidden state follows from those before it by the formulas of the reference."""
    block, x, _ = random_case(seed)
    o, w = block.options, weights_of(block)
    _, hidden = block.forward(x, return_hidden=True)
    h = {name: a.astype(np.float64) for name, a in hidden.items()}
    linear, norm, m = reference.linear, reference.norm, o.residual_multiplier
    assert h["context"].shape[2] == o.q_width and h["mlp_hidden"].shape[2] == o.intermediate_size
    mixed = norm(linear(h["context"], w, "o_proj"), w, "attention_output_norm", o)
    source = h["middle"] if o.residual == "sequential" else h["input"]
    mlp_input = h["attention_input"]
    if o.second_norm:
        mlp_input = norm(source, w, "post_attention_layernorm", o)
    act, up = reference.ACTIVATIONS[o.activation], linear(h["mlp_input"], w, "up_proj")
    inner = act(linear(h["mlp_input"], w, "gate_proj")) * up if o.gated else act(up)
    added = norm(linear(h["mlp_hidden"], w, "down_proj"), w, "mlp_output_norm", o)
    for name, wanted in (
        ("input", x),
        ("attention_input", norm(h["input"], w, "input_layernorm", o)),
        ("middle", h["input"] + m * mixed),
        ("mlp_input", mlp_input),
        ("mlp_hidden", inner),
        ("output", h["middle"] + m * added),
    ):
        size = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(h[name], wanted, rtol=0, atol=4e-6 * size, err_msg=name)


def test_what_comes_back_is_a_copy(rng):
    block, x = make_block(norm_placement="post"), uniform(rng, (2, 5, 32))
    before = x.copy()
    state = block.allocate_state(2, 8)
    y, hidden, attention = block.forward(x, state, **EVERYTHING)
    held, wanted = state.copy(), y.copy()
    arrays = [y, *hidden.values(), attention]
    for i, array in enumerate(arrays):
        assert array.flags.c_contiguous and array.flags.writeable and array.dtype == np.float32
        assert not any(np.may_share_memory(array, other) for other in [x, *arrays[i + 1 :]])
    for array in [*hidden.values(), attention]:
        array[:] = np.nan
    np.testing.assert_array_equal(bits(y), bits(wanted))
    np.testing.assert_array_equal(bits(x), bits(before))
    assert state == held


def test_only_what_is_asked_for_comes_back(rng):
    """In this order: output, hidden states, weights; hidden states in the order of the computation."""
    block, x = make_block(), uniform(rng, (1, 4, 32))
    y = block.forward(x)
    assert isinstance(y, np.ndarray)
    assert isinstance(block.forward(x, return_hidden=np.False_, return_attention=np.False_), np.ndarray)
    one, hidden = block.forward(x, return_hidden=["output", "context", "context"])
    assert list(hidden) == ["context", "output"]
    two, attention = block(x, return_attention=np.True_)
    assert attention.shape == (1, 4, 4, 4)
    three, nothing = block.forward(x, return_hidden=[])
    assert nothing == {}
    for other in (one, two, three):
        np.testing.assert_array_equal(bits(other), bits(y))


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"return_attention": 1}, TypeError, r"return_attention must be True or False, not 1 \(int\)"),
        ({"return_attention": None}, TypeError, "return_attention must be True or False, not None"),
        ({"return_attention": [0]}, TypeError, "return_attention must be True or False"),
        ({"return_hidden": None}, TypeError, "return_hidden must be True, False or a list of names, not None"),
        ({"return_hidden": "middle"}, TypeError, "return_hidden must be True, False or a list of names"),
        ({"return_hidden": ["context_"]}, ValueError, r"holds 'context_' \(did you mean 'context'\?\); the names"),
        ({"return_hidden": [3]}, TypeError, r"return_hidden must hold names, not 3 \(int\)"),
    ],
)  # fmt: skip
def test_refusals(rng, asked, error, message):
    """Attention that is asked for is given, or the call is refused: never a silent None."""
    block, x = make_block(), uniform(rng, (1, 4, 32))
    state = block.allocate_state(1, 8)
    before = state.copy()
    with pytest.raises(error, match=rf"^TransformerBlock\.forward: .*{message}"):
        block.forward(x, state, **asked)
    assert state == before
    for call in (block.step, block.decode_session(state).step):
        with pytest.raises(TypeError, match="return_attention"):
            call(x[:, 0], return_attention=True)


def test_weights_that_do_not_fit_in_memory():
    look = Look(None, True, "TransformerBlock.forward")
    with pytest.raises(
        MemoryError, match=r"^TransformerBlock\.forward: return_attention asks .* 4\d{18} bytes"
    ):
        look._zeros(1, 10**6, 10**6, 10**6)


def test_a_refused_call_leaves_the_state_alone(rng):
    """Numbers that overflow inside are refused as without looking."""
    block, x = make_block(), uniform(rng, (1, 4, 32))
    weights = block.weights()
    weights["down_proj.weight"] = np.full_like(weights["down_proj.weight"], 3e38)
    broken = TransformerBlock(weights, n_heads=4)
    state = broken.allocate_state(1, 8)
    before = state.copy()
    for part in (x, x[:, :1]):
        with pytest.raises(ValueError, match=r"^TransformerBlock\.forward: the output is too large"):
            broken.forward(part, state, **EVERYTHING)
        assert state == before
