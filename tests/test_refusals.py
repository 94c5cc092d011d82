"""Nothing lost: every refused call says why and leaves every byte of the state as it was."""

import numpy as np
import pytest
from support import bits, make_block, make_weights, uniform

from mojolearn import TransformerBlock, TransformerState

D = 32
SHAPE = {"d_model": D, "intermediate": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8}


def x_of(*shape):
    return uniform(np.random.default_rng(1), shape or (2, 3, D))


def with_value(value):
    x = x_of()
    x[1, 2, 5] = value
    return x


def prepared(window, **options):
    """A block, and a state that holds 4 of 8 tokens."""
    block = make_block(**SHAPE, window=window, **options)
    state = block.allocate_state(2, 8)
    block.forward(x_of(2, 4, D), state)
    return block, state


def snapshot(state):
    return bits(state.k_cache).tobytes(), bits(state.v_cache).tobytes(), state.cached_tokens


BAD_INPUTS = {
    "list": ([[[0.0] * D]], TypeError, "list"),
    "None": (None, TypeError, "None"),
    "str": ("x", TypeError, "str"),
    "float64": (x_of().astype(np.float64), TypeError, r"float64.*astype\(np.float32\)"),
    "float16": (x_of().astype(np.float16), TypeError, r"float16.*astype\(np.float32\)"),
    "integers": (np.ones((2, 3, D), int), TypeError, "int64"),
    "bool": (np.ones((2, 3, D), bool), TypeError, "bool"),
    "byte order": (x_of().astype(">f4"), TypeError, "byte order"),
    "masked": (np.ma.masked_greater(x_of(), 0), TypeError, "masked"),
    "rank": (x_of(2, D), ValueError, r"\(B, L, 32\)"),
    "d_model": (x_of(2, 3, D + 1), ValueError, "32"),
    "no tokens": (x_of(2, 0, D), ValueError, "L >= 1"),
    "no rows": (x_of(0, 3, D), ValueError, "B >= 1"),
    "NaN": (with_value(np.nan), ValueError, r"x\[1, 2, 5\] is nan"),
    "infinity": (with_value(-np.inf), ValueError, r"x\[1, 2, 5\] is -inf"),
    "batch": (x_of(3, 3, D), ValueError, "batch_size=2.* 3"),
    "no room": (x_of(2, 5, D), ValueError, "holds 4 .*max_tokens=8.* 5 more"),
}


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("name", BAD_INPUTS)
def test_inputs(name, window):
    block, state = prepared(window)
    x, error, message = BAD_INPUTS[name]
    before = snapshot(state)
    with pytest.raises(error, match=f"^TransformerBlock.forward: .*{message}"):
        block.forward(x, state)
    assert snapshot(state) == before


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (x_of(2, 2, D), ValueError, "use forward"),
        (x_of(2, 1, 1, D), ValueError, "shape"),
        (x_of(D), ValueError, "shape"),
        (x_of(3, D), ValueError, "batch_size"),
        (x_of(2, D).astype(np.float64), TypeError, "float64"),
    ],
    ids=["two tokens", "rank 4", "rank 1", "batch", "float64"],
)
def test_step_inputs(x, error, message):
    block, state = prepared(0)
    before = snapshot(state)
    with pytest.raises(error, match=f"^TransformerBlock.step: .*{message}"):
        block.step(x, state)
    assert snapshot(state) == before


def foreign(**changes):
    sizes = {"batch_size": 2, "n_kv_heads": 2, "head_dim": 8, "max_tokens": 8, "window": 0} | changes
    n = (
        sizes["batch_size"]
        * sizes["n_kv_heads"]
        * sizes["head_dim"]
        * (sizes["window"] or sizes["max_tokens"])
    )
    return TransformerState(k_cache=np.ones(n, np.float32), v_cache=np.ones(n, np.float32), **sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 1}, "batch_size=1, but x has 2"),
        ({"n_kv_heads": 1}, "n_kv_heads=1, but the block has 2"),
        ({"head_dim": 4}, "head_dim=4, but the block has 8"),
        ({"window": 5}, "window=5, but the block has 0"),
    ],
)
def test_states_of_another_geometry(changes, message):
    block = make_block(**SHAPE)
    state = foreign(**changes)
    before = snapshot(state)
    with pytest.raises(ValueError, match=message):
        block.forward(x_of(), state)
    assert snapshot(state) == before


def test_a_state_of_another_block_with_the_same_geometry_is_plain_data():
    state = foreign()
    make_block(**SHAPE, seed=1).forward(x_of(), state)
    make_block(**SHAPE, seed=2).forward(x_of(), state)
    assert state.cached_tokens == 6


@pytest.mark.parametrize("state", ["state", 3, np.zeros(4), {}], ids=str)
def test_what_is_no_state(state):
    with pytest.raises(TypeError, match="TransformerState"):
        make_block(**SHAPE).forward(x_of(), state)


def test_step_needs_a_state():
    with pytest.raises(TypeError, match="use forward"):
        make_block(**SHAPE).step(x_of(2, D), None)


@pytest.mark.parametrize("value", [9, -1, 2.0, "4", None, False])
def test_lengths_of_a_state_set_by_hand(value):
    block, state = prepared(0)
    state.cached_tokens = value
    before = snapshot(state)
    with pytest.raises(
        (TypeError, ValueError), match=r"TransformerBlock\.forward: cached_tokens of the state"
    ):
        block.forward(x_of(), state)
    assert snapshot(state) == before


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_used_cache_must_be_finite(window, name, value):
    block, state = prepared(window)
    buffer = getattr(state, name)
    for at in (0, 7, 2 * 2 * min(4, window or 4) * 8 - 1):
        kept = buffer[at]
        buffer[at] = value
        before = snapshot(state)
        with pytest.raises(ValueError, match=rf"{name}\[{at}\] is {value}"):
            block.forward(x_of(), state)
        assert snapshot(state) == before
        buffer[at] = kept
    block.forward(x_of(), state)


def test_spare_capacity_may_hold_anything():
    block, state = prepared(0)
    other = state.copy()
    state.k_cache[2 * 2 * 4 * 8 :] = state.v_cache[2 * 2 * 4 * 8 :] = np.nan
    np.testing.assert_array_equal(bits(block.forward(x_of(), state)), bits(block.forward(x_of(), other)))


@pytest.mark.parametrize("window", [0, 3])
def test_overflow_is_refused_before_anything_is_written(window):
    """Finite inputs whose arithmetic leaves float32: a sentence, no silent NaN, no poisoned cache."""
    block, state = prepared(window, qkv_bias=True)
    weights = block.weights()
    for name, value in (("k_proj.bias", 3e38), ("down_proj.weight", 3e38)):
        loud = {**weights, name: np.full_like(weights[name], value)}
        if name == "k_proj.bias":
            loud["k_proj.weight"] = np.full_like(weights["k_proj.weight"], 3e37)
        bad = TransformerBlock(loud, **block.options.as_dict())
        before = snapshot(state)
        with pytest.raises(ValueError, match="too large for float32"):
            bad.forward(x_of() + np.float32(1), state)
        assert snapshot(state) == before


@pytest.mark.parametrize(
    "options",
    [
        {"norm_placement": "post"},
        {"norm_placement": "both", "norm": "layernorm"},
        {"residual": "parallel"},
        {"residual": "parallel_shared", "residual_multiplier": 1e-30},
        {"mlp": "relu"},
        {"mlp": "relu2"},
    ],
    ids=str,
)
def test_no_option_hides_an_overflow(options):
    """An infinity turns into a NaN in a norm, and a NaN passes an activation: the call is refused all the same."""
    block, state = prepared(0, **options)
    weights = block.weights()
    for name in ("up_proj.weight", "down_proj.weight"):
        loud = {**weights, name: np.full_like(weights[name], 3e38)}
        loud[name][1::2] *= -1
        bad = TransformerBlock(loud, **block.options.as_dict())
        before = snapshot(state)
        with pytest.raises(ValueError, match="too large for float32"):
            bad.forward(x_of() + np.float32(1), state)
        assert snapshot(state) == before
        with bad.decode_session(state) as session:
            with pytest.raises(ValueError, match="too large for float32"):
                session.step(x_of()[:, 0] + np.float32(1))
        assert snapshot(state) == before


def test_a_limit_makes_numbers_that_are_too_large_finite():
    """What q, k and v are limited to is the written result, also of an infinity."""
    block = make_block(**SHAPE, qkv_clip=2.0)
    weights = block.weights()
    loud = {**weights, "v_proj.weight": np.full_like(weights["v_proj.weight"], 3e38)}
    state = block.allocate_state(1, 4)
    TransformerBlock(loud, **block.options.as_dict()).forward(np.ones((1, 2, D), np.float32), state)
    assert np.all(np.abs(state.values()) == 2)


def test_a_huge_input_gives_the_written_result():
    """The sum of squares overflows, so the norm gives zeros, and with them attention and MLP: y = x."""
    block = make_block(**SHAPE)
    x = np.full((1, 2, D), 3e38, np.float32)
    np.testing.assert_array_equal(block(x), x)


def test_max_positions_counts_when_it_is_reached():
    block = make_block(**SHAPE, max_positions=6)
    state = block.allocate_state(2, 50)
    block.forward(x_of(2, 6, D), state)
    before = snapshot(state)
    with pytest.raises(ValueError, match="position 6, but max_positions=6"):
        block.step(x_of(2, D), state)
    assert snapshot(state) == before
    with pytest.raises(ValueError, match="max_positions=6"):
        block.forward(x_of(2, 7, D))
    with pytest.raises(ValueError, match="max_positions=6"):
        block.forward(x_of(2, 7, D), lengths=[7, 1])


def test_positions_end_where_float32_does():
    block = make_block(**SHAPE, window=2)
    state = block.allocate_state(2, 2**25)
    state.cached_tokens = 2**24 - 1
    block.step(x_of(2, D), state)
    with pytest.raises(ValueError, match="16777216"):
        block.step(x_of(2, D), state)
    fast = make_block(**SHAPE, window=2, rope_theta=1e-30)
    state = fast.allocate_state(2, 2**25)
    state.cached_tokens = 2**20
    with pytest.raises(ValueError, match="RoPE"):
        fast.step(x_of(2, D), state)
    longrope = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1e-6] * 4, "attention_factor": 1.0,
                "original_max_position_embeddings": 8}  # fmt: skip
    fast = make_block(**SHAPE, window=2, rope_scaling=longrope)
    state = fast.allocate_state(2, 2**25)
    state.cached_tokens = 2**20
    with pytest.raises(ValueError, match="RoPE"):
        fast.step(x_of(2, D), state)
    still = make_block(**SHAPE, window=2, rope_dim=0, rope_theta=1e-30)
    still.step(x_of(2, D), state)


@pytest.mark.parametrize(
    ("lengths", "error"),
    [
        ([3], ValueError), ([3, 3, 3], ValueError), ([0, 3], ValueError), ([4, 3], ValueError), ([-1, 3], ValueError),
        ([1.0, 2.0], TypeError), ([True, 2], TypeError), ("12", TypeError), (iter([1, 2]), TypeError), (3, TypeError),
        (np.array([1.0, 2.0]), TypeError),
    ],
    ids=str,
)  # fmt: skip
def test_lengths(lengths, error):
    with pytest.raises(error, match=r"TransformerBlock\.forward: lengths"):
        make_block(**SHAPE).forward(x_of(), lengths=lengths)


def test_lengths_go_without_a_state():
    block, state = prepared(0)
    before = snapshot(state)
    with pytest.raises(ValueError, match="lengths goes without a state"):
        block.forward(x_of(), state, lengths=[1, 2])
    assert snapshot(state) == before


def test_a_number_in_the_real_part_of_a_ragged_row_must_be_finite():
    with pytest.raises(ValueError, match=r"x\[1, 2, 5\] is nan"):
        make_block(**SHAPE).forward(with_value(np.nan), lengths=[1, 3])
    make_block(**SHAPE).forward(with_value(np.nan), lengths=[1, 2])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 8), ValueError), ((2, 0), ValueError), ((-1, 8), ValueError), ((None, 8), TypeError),
        ((2, 8.0), TypeError), (("2", 8), TypeError), ((True, 8), TypeError), ((2**20, 2**40), MemoryError),
        ((2**30, 2**60), MemoryError),
    ],
)  # fmt: skip
def test_states_that_cannot_be_allocated(arguments, error):
    with pytest.raises(error, match=r"TransformerBlock\.allocate_state"):
        make_block(**SHAPE).allocate_state(*arguments)


@pytest.mark.parametrize(
    "form",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
        lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
        lambda x: np.broadcast_to(x, x.shape),
        memoryview,
    ],
    ids=["Fortran", "strided", "negative strides", "read-only", "memoryview"],
)
def test_inputs_in_any_form_give_the_same_bits(form):
    block, x = make_block(**SHAPE), x_of()
    kept = x.copy()
    given = form(x)
    np.testing.assert_array_equal(bits(block(given)), bits(block(kept)))
    np.testing.assert_array_equal(bits(np.asarray(given)), bits(kept))


def test_a_block_never_changes():
    weights = make_weights(**SHAPE)
    block = TransformerBlock(weights, n_heads=4, n_kv_heads=2, head_dim=8)
    wanted = bits(block(x_of()))
    for weight in weights.values():
        weight[:] = np.nan
    np.testing.assert_array_equal(bits(block(x_of())), wanted)
    with pytest.raises(AttributeError, match="never changes"):
        block.window = 3
    with pytest.raises(AttributeError, match="no attribute 'windw'"):
        _ = block.windw
