"""`Linear` and `Norm`: the bits of the written contract, whatever the rows, threads and storage."""

import contract
import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits, uniform

from mojolearn.kernels.linear import BLOCK_ROWS, PANEL, TILE_ROWS
from mojolearn.kernels.residual import add_scaled
from mojolearn.layers import Linear, Norm
from mojolearn.weights import narrow, widen

# Sums of one term, around the leaf of 128, of several levels, and past 1024 leaves.
LENGTHS = [1, 2, 127, 128, 129, 256, 300, 385, 576, 1537]


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("n_rows", [1, 2, TILE_ROWS, TILE_ROWS + 1])
def test_matrix_product_has_the_bits_of_the_contract(rng, n_rows, k):
    x, weight = uniform(rng, (n_rows, k)), uniform(rng, (PANEL + 3, k))
    np.testing.assert_array_equal(bits(Linear(weight)(x)), bits(contract.matrix_product(x, weight)))


def test_leaves_grow_when_there_would_be_more_than_1024(rng):
    x, weight = uniform(rng, (2, 131073)), uniform(rng, (3, 131073))
    wanted = bits(contract.matrix_product(x, weight))
    np.testing.assert_array_equal(bits(Linear(weight)(x)), wanted)
    np.testing.assert_array_equal(bits(Linear(weight)(x[:1])), wanted[:1])


@given(st.integers(1, 400), st.integers(1, 150), st.integers(1, 40), st.integers(0, 2**31))
def test_rows_do_not_know_each_other(k, n_out, n_rows, seed):
    rng = np.random.default_rng(seed)
    layer, x = Linear(uniform(rng, (n_out, k)), uniform(rng, n_out)), uniform(rng, (n_rows, k))
    together = bits(layer(x))
    for i in range(n_rows):
        np.testing.assert_array_equal(bits(layer(x[i : i + 1])), together[i : i + 1])


@pytest.mark.parametrize("n_rows", [BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 5])
def test_rows_across_blocks(rng, n_rows):
    layer, x = Linear(uniform(rng, (70, 260))), uniform(rng, (n_rows, 260))
    together = bits(layer(x))
    alone = np.concatenate([bits(layer(x[i : i + 1])) for i in range(n_rows)])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("weight_format", ["bfloat16", "float16"])
@pytest.mark.parametrize("n_rows", [1, 9])
def test_narrow_storage_is_exact(rng, weight_format, n_rows):
    stored = narrow(uniform(rng, (75, 300)), weight_format)
    x = uniform(rng, (n_rows, 300))
    np.testing.assert_array_equal(bits(Linear(stored)(x)), bits(Linear(widen(stored))(x)))


@pytest.mark.parametrize("n_rows", [1, 3, 200])
@pytest.mark.parametrize("activation", ["silu", "gelu_erf", "gelu_tanh", "relu", "relu2"])
def test_gate_bias_and_residual(rng, n_rows, activation):
    """A gated pair is the two products, biases, activation and product, in this order."""
    up, gate = uniform(rng, (2, PANEL + 5, 140))
    up_bias, gate_bias = uniform(rng, (2, PANEL + 5))
    x, residual = uniform(rng, (n_rows, 140)), uniform(rng, (n_rows, PANEL + 5))
    alone = Linear(up, up_bias)(x)
    activated = Linear(gate, gate_bias, activation=activation)(x)
    pair = Linear(up, up_bias, gate=gate, gate_bias=gate_bias, activation=activation)
    np.testing.assert_array_equal(bits(pair(x)), bits(activated * alone))
    added = Linear(up, up_bias).flat(x.reshape(-1), n_rows, residual.reshape(-1))
    np.testing.assert_array_equal(bits(added.reshape(residual.shape)), bits(residual + alone))
    np.testing.assert_array_equal(bits(alone), bits(Linear(up)(x) + up_bias))


@pytest.mark.parametrize("n_rows", [1, 3])
def test_relu_of_every_kind_of_number(n_rows):
    """Negative numbers become +0, all others stay, NaN among them; relu2 is the square of that."""
    values = np.float32([-np.inf, -3, -1e-45, 0, 1e-45, 0.1, 3, np.inf, np.nan])
    wanted = np.float32([0, 0, 0, 0, 1e-45, 0.1, 3, np.inf, np.nan])
    x = np.ones((n_rows, 1), np.float32)
    for activation, result in (("relu", wanted), ("relu2", wanted * wanted)):
        layer = Linear(np.zeros((values.size, 1), np.float32), values, activation=activation)
        np.testing.assert_array_equal(bits(layer(x)), bits(np.tile(result, (n_rows, 1))))


@pytest.mark.parametrize("size", [1, 7, 8, 1000])
def test_scaled_sums_round_twice(rng, size):
    """The product, then the sum: never fused, and in place as well."""
    residual, t = uniform(rng, (2, size), 3.0)
    for multiplier in np.float32([1, 0.22, 1.7, 1e-30]):
        product = multiplier * t
        out = t.copy()
        add_scaled(residual, multiplier, out, out)
        np.testing.assert_array_equal(bits(out), bits(residual + product))


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n_out", [1, PANEL, PANEL + 1])
def test_the_matrix_comes_back_as_it_was_given(rng, storage, n_out):
    up, gate = narrow(uniform(rng, (2, n_out, 10)), storage)
    up_bias, gate_bias = uniform(rng, (2, n_out))
    pair = Linear(up, up_bias, gate=gate, gate_bias=gate_bias, activation="silu")
    for place, matrix, vector in ((False, up, up_bias), (True, gate, gate_bias)):
        assert pair.matrix(gate=place).dtype == matrix.dtype
        np.testing.assert_array_equal(pair.matrix(gate=place), matrix)
        np.testing.assert_array_equal(pair.vector(gate=place), vector)
    assert Linear(up).vector() is None
    which = rng.integers(0, n_out, (2, 3))
    assert pair.rows(which).dtype == up.dtype
    np.testing.assert_array_equal(pair.rows(which), up[which])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n_rows", [1, 7, 130])
def test_threads(rng, n_rows, threads):
    layer, x = Linear(uniform(rng, (1000, 600))), uniform(rng, (n_rows, 600))
    wanted = bits(layer(x))
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        np.testing.assert_array_equal(bits(layer(x)), wanted)
    finally:
        numba.set_num_threads(before)


@pytest.mark.parametrize("n_rows", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("d", [1, 7, 64, 300])
def test_norms_have_the_bits_of_the_contract(rng, n_rows, d):
    x, weight, bias = uniform(rng, (n_rows, d), 3.0), uniform(rng, d), uniform(rng, d)
    cases = [
        (Norm("rmsnorm", weight, eps=1e-5), contract.rms_norm(x, weight, 1e-5)),
        (Norm("rmsnorm_offset", weight, eps=1e-6), contract.rms_norm(x, np.float32(1) + weight, 1e-6)),
        (Norm("layernorm", weight, eps=1e-5), contract.layer_norm(x, weight, None, 1e-5)),
        (Norm("layernorm", weight, bias, eps=1e-5), contract.layer_norm(x, weight, bias, 1e-5)),
        (
            Norm("layernorm_offset", weight, bias, eps=1e-5),
            contract.layer_norm(x, np.float32(1) + weight, bias, 1e-5),
        ),
    ]
    for norm, wanted in cases:
        np.testing.assert_array_equal(bits(norm(x)), bits(wanted))


@pytest.mark.parametrize("layer", [Linear(np.eye(3, dtype="f4")), Norm("rmsnorm", np.ones(3, np.float32))])
def test_rows_of_the_wrong_width_are_refused(layer):
    with pytest.raises(ValueError, match=r"\(n_rows, 3\)"):
        layer(np.ones((2, 4), np.float32))
