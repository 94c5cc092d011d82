"""reference.py: agrees with the golden cases, and has the properties that a block must have."""

import golden
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from support import make_weights, random_options, uniform

from mojolearn.options import BlockOptions
from mojolearn.reference import gelu_erf, gelu_tanh, reference_block, silu

PATHS = golden.case_paths("open") + golden.case_paths("subnormal")


def tolerance(last_position):
    """What float32 may differ from float64, relative to the largest number of an array.

    2e-6, unless the angles are large: a float32 angle p * f is known to p * 2**-24 only.
    """
    return 2e-6 if last_position < 1000 else last_position * 2**-24


def check(ours, stored, last_position):
    assert ours.shape == stored.shape
    assert np.abs(ours - stored).max() <= tolerance(last_position) * np.abs(stored).max()


def unrolled(ring, case):
    """Keys or values of a preset ring, in ascending order of position: (B, KV, W, HD)."""
    W, KV = case.options["window"], case.options["n_kv_heads"]
    slots = np.arange(case.init_cached_tokens - W, case.init_cached_tokens) % W
    return ring.reshape(case.batch, KV, W, -1)[:, :, slots]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden_case(path):
    case = golden.load_case(path)
    past, position = None, case.init_cached_tokens
    if position is not None:
        past = unrolled(case.init_k_cache, case), unrolled(case.init_v_cache, case)
    for call in case.calls:
        y, keys, values = reference_block(
            call.x, case.weights, case.options, past=past, position=position, lengths=call.lengths
        )
        last = (position or 0) + call.x.shape[1]
        check(y, call.y, last)
        if call.cached_tokens is not None:
            past, position = (keys, values), call.cached_tokens
            assert last == position
            held = call.keys.shape[2]  # the last W under a window
            check(keys[:, :, -held:], call.keys, last)
            check(values[:, :, -held:], call.values, last)


def random_case(seed, L=6, B=2):
    options = random_options(np.random.default_rng(seed))
    weights = make_weights(**options)
    d_model = options["d_model"]
    keep = {k: v for k, v in options.items() if k not in ("d_model", "intermediate", "seed")}
    return uniform(np.random.default_rng(seed + 1), (B, L, d_model), 2), weights, keep


SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_chunks_give_what_one_call_gives(seed, chunks):
    x, weights, options = random_case(seed, L=sum(chunks))
    whole, keys, values = reference_block(x, weights, options)
    past, parts = None, []
    for part in np.split(x, np.cumsum(chunks)[:-1], axis=1):
        y, *past = reference_block(part, weights, options, past=past, max_tokens=sum(chunks))
        parts.append(y)
    assert np.allclose(np.concatenate(parts, axis=1), whole, rtol=1e-10, atol=1e-12)
    assert np.allclose(past[0], keys, rtol=1e-10, atol=1e-12)
    assert np.allclose(past[1], values, rtol=1e-10, atol=1e-12)


@given(SEEDS)
def test_no_token_sees_a_later_one(seed):
    x, weights, options = random_case(seed)
    changed = x.copy()
    changed[:, 4:] += 1
    before, after = (reference_block(a, weights, options)[0] for a in (x, changed))
    assert np.array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


@given(SEEDS, st.integers(1, 4))
def test_a_window_hides_what_lies_further_back(seed, window):
    x, weights, options = random_case(seed)
    options["window"] = window
    changed = x.copy()
    changed[:, 0] += 1
    before, after = (reference_block(a, weights, options)[0] for a in (x, changed))
    assert np.array_equal(before[:, window:], after[:, window:])
    assert not np.allclose(before[:, :window], after[:, :window])


@given(SEEDS)
def test_scores_depend_on_distances_only(seed):
    x, weights, options = random_case(seed)
    here, there = (reference_block(x, weights, options, position=p, max_tokens=1010)[0] for p in (0, 1000))
    assert np.allclose(here, there, rtol=1e-8, atol=1e-10)


@given(SEEDS)
def test_rows_of_a_ragged_batch_are_those_alone(seed):
    x, weights, options = random_case(seed, B=3)
    lengths = [6, 1, 4]
    padded = x.copy()
    for row, length in enumerate(lengths):
        padded[row, length:] = np.nan
    y, _, _ = reference_block(padded, weights, options, lengths=lengths)
    for row, length in enumerate(lengths):
        alone, _, _ = reference_block(x[row : row + 1, :length], weights, options)
        assert np.allclose(y[row, :length], alone[0], rtol=1e-10, atol=1e-12)
        assert not y[row, length:].any()


@given(SEEDS)
def test_shared_heads_are_repeated_heads(seed):
    x, weights, options = random_case(seed)
    n_heads, n_kv_heads, head_dim = (options[k] for k in ("n_heads", "n_kv_heads", "head_dim"))
    full = dict(weights)
    names = ["k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias"]
    names += [] if options["qk_norm"] is True else ["k_norm.weight", "k_norm.bias"]
    for name in names:
        if name in full:
            heads = full[name].reshape(n_kv_heads, head_dim, *full[name].shape[1:])
            full[name] = np.repeat(heads, n_heads // n_kv_heads, axis=0).reshape(-1, *full[name].shape[1:])
    shared, _, _ = reference_block(x, weights, options)
    repeated, _, _ = reference_block(x, full, options | {"n_kv_heads": n_heads})
    assert np.allclose(shared, repeated, rtol=1e-10, atol=1e-12)


@given(SEEDS)
def test_float32_comes_close_to_float64(seed):
    x, weights, options = random_case(seed)
    wide, narrow = (
        reference_block(x, weights, options, dtype=dtype)[0] for dtype in (np.float64, np.float32)
    )
    assert (wide.dtype, narrow.dtype) == (np.float64, np.float32)
    assert np.abs(wide - narrow).max() <= 1e-5 * np.abs(wide).max()


# Every option matters: changed alone, it changes the output. (A width follows from the weights, so not here.)
CHANGES = {
    "window": 2,
    "rope_theta": 500.0,
    "rope_dim": 4,
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "norm": "layernorm",
    "norm_eps": 0.1,
    "mlp": "geglu",
    "attn_softcap": 0.5,
    "attn_scale": 1.5,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_option_counts(name, rng):
    weights = make_weights(n_heads=4)
    x = uniform(rng, (1, 5, 32), 2)
    base = {"n_heads": 4}
    before, after = (reference_block(x, weights, o)[0] for o in (base, base | {name: CHANGES[name]}))
    assert np.abs(before - after).max() > 1e-4


def test_positions_count_from_the_past(rng):
    weights = make_weights(n_heads=4)
    x, options = uniform(rng, (1, 5, 32), 2), {"n_heads": 4}
    _, *past = reference_block(x[:, :4], weights, options)
    counted, given_position = (
        reference_block(x[:, 4:], weights, options, past=past, position=p)[0] for p in (None, 4)
    )
    elsewhere = reference_block(x[:, 4:], weights, options, past=past, position=9)[0]
    assert np.array_equal(counted, given_position)
    assert np.allclose(reference_block(x, weights, options)[0][:, 4:], counted, rtol=1e-10, atol=1e-12)
    assert not np.allclose(counted, elsewhere)


def test_zero_weights_of_the_offset_norm_leave_the_normalised_input(rng):
    options = {"n_heads": 4, "norm": "rmsnorm_offset"}
    weights = make_weights(norm="rmsnorm_offset", n_heads=4)
    ones = {name: w * 0 for name, w in weights.items() if name.endswith("layernorm.weight")}
    x = uniform(rng, (1, 3, 32), 2)
    offset, _, _ = reference_block(x, weights | ones, options)
    plain, _, _ = reference_block(x, weights | {n: w + 1 for n, w in ones.items()}, {"n_heads": 4})
    assert np.array_equal(offset, plain)


def test_narrow_weights_are_read_exactly(rng):
    weights = {name: w.astype(np.float16) for name, w in make_weights(n_heads=4).items()}
    x = uniform(rng, (1, 3, 32), 2)
    narrow, _, _ = reference_block(x, weights, {"n_heads": 4, "weight_format": "float16"})
    wide, _, _ = reference_block(x, {n: w.astype(np.float32) for n, w in weights.items()}, {"n_heads": 4})
    assert np.array_equal(narrow, wide)


def test_options_may_be_checked_before(rng):
    weights = make_weights(n_heads=4)
    x = uniform(rng, (1, 3, 32), 2)
    options = BlockOptions(d_model=32, intermediate_size=48, n_heads=4)
    assert np.array_equal(
        reference_block(x, weights, options)[0], reference_block(x, weights, {"n_heads": 4})[0]
    )


def test_activations():
    x = np.linspace(-12, 12, 2001)
    assert np.allclose(silu(x), x * scipy.special.expit(x), rtol=1e-13, atol=0)
    assert np.allclose(gelu_erf(x), x * scipy.special.ndtr(x), rtol=1e-12, atol=1e-15)
    assert np.abs(gelu_tanh(x) - gelu_erf(x)).max() < 5e-4
    with np.errstate(over="ignore"):
        assert silu(np.array([-1000.0]))[0] == 0
