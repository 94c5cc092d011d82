"""Elementary functions: within the stated error, at their edges, and in the bits of their plain NumPy twins."""

import mpmath
import numba
import numpy as np
import pytest
import scipy.special
from support import bits

from mojolearn import float32
from mojolearn._jit import LANES
from mojolearn.kernels import simd, vmath
from mojolearn.kernels.rotary import cos_sin_large


def mapped(function):
    """A function of arrays that applies a register function to each number."""

    @numba.njit(error_model="numpy")
    def run(a, out):
        for i in range(0, a.size, LANES):
            simd.store(out, i, function(simd.load(a, i)))

    def call(values):
        values = np.asarray(values, np.float32)
        padded = np.resize(values, -(-values.size // LANES) * LANES)
        out = np.empty_like(padded)
        run(padded, out)
        return out[: values.size]

    return call


def dense(low, high, n=400_000):
    """n float32 numbers spread evenly over the bit patterns between low and high (same sign), ends included."""
    a, b = np.array([low, high], np.float32).view(np.int32)
    return np.linspace(a, b, n).astype(np.int64).astype(np.int32).view(np.float32)


def both_signs(low, high):
    positive = dense(low, high)
    return np.concatenate([-positive, positive])


def units_in_last_place(got, exact):
    """Largest error of float32 results, in units in the last place of the exact float64 result."""
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return np.max(np.abs(got.astype(np.float64) - exact) / spacing)


@pytest.mark.parametrize(
    ("name", "exact", "x", "bound"),
    [
        ("exp", np.exp, np.concatenate([-dense(1e-30, 87.3), dense(1e-30, 88.0)]), 1.0),
        ("exp", np.exp, dense(88.0, 88.72), 2.0),
        ("tanh", np.tanh, both_signs(1e-30, 30.0), 2.0),
        ("erf", scipy.special.erf, both_signs(1e-30, 6.0), 3.0),
    ],
    ids=["exp", "exp_near_overflow", "tanh", "erf"],
)
def test_error_over_dense_sweeps(name, exact, x, bound):
    assert units_in_last_place(mapped(getattr(vmath, name))(x), exact(x.astype(np.float64))) <= bound


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("silu", lambda x: x * scipy.special.expit(x)),
        ("gelu_erf", lambda x: x * scipy.special.ndtr(x)),
        ("gelu_tanh", lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_activations(name, exact):
    x = np.concatenate([both_signs(1e-20, 30.0), [0.0, -0.0]]).astype(np.float32)
    error = np.abs(mapped(getattr(vmath, name))(x).astype(np.float64) - exact(x.astype(np.float64)))
    assert np.max(error / np.maximum(1, np.abs(x))) < 4e-7


def test_edges_of_exp():
    x = np.array(
        [0, -0.0, 88.72283, 88.72284, -87.33654, -87.33655, -104, np.inf, -np.inf, np.nan], np.float32
    )
    y = mapped(vmath.exp)(x)
    assert y[0] == y[1] == 1
    assert np.isfinite(y[2]) and y[3] == np.inf
    assert y[4] >= np.float32(2**-126)
    np.testing.assert_array_equal(bits(y[5:7]), 0)
    assert y[7] == np.inf and bits(y[8:9])[0] == 0 and np.isnan(y[9])


def test_exp_never_gives_a_subnormal():
    y = mapped(vmath.exp)(-dense(80.0, 110.0))
    assert np.all((y == 0) | (y >= np.float32(2**-126)))


def test_edges_of_tanh_and_erf():
    x = np.array([0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, 50.0, -50.0], np.float32)
    np.testing.assert_array_equal(
        bits(mapped(vmath.tanh)(x)), bits(np.array([*x[:4], 1, -1, 1, -1], np.float32))
    )
    np.testing.assert_array_equal(mapped(vmath.erf)(x)[4:], [1, -1, 1, -1])
    assert np.isnan(mapped(vmath.tanh)([np.nan])[0]) and np.isnan(mapped(vmath.erf)([np.nan])[0])


def test_tanh_is_odd_to_the_bit():
    x = dense(1e-40, 60.0)
    np.testing.assert_array_equal(bits(mapped(vmath.tanh)(-x)), bits(-mapped(vmath.tanh)(x)))


def test_exp_has_the_bits_of_its_numpy_twin():
    x = np.concatenate([both_signs(1e-40, 110.0), [0.0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    np.testing.assert_array_equal(bits(mapped(vmath.exp)(x)), bits(float32.exp(x)))


def test_cos_and_sin_of_small_angles():
    @numba.njit
    def run(a, cos, sin):
        for i in range(0, a.size, LANES):
            c, s = vmath.cos_sin(simd.load(a, i))
            simd.store(cos, i, c)
            simd.store(sin, i, s)

    x = np.concatenate([[0.0], dense(1e-10, 8191.9995, 800_015)]).astype(np.float32)
    cos, sin = np.empty_like(x), np.empty_like(x)
    run(x, cos, sin)
    assert cos[0] == 1 and bits(sin[:1])[0] == 0
    assert np.max(np.abs(cos - np.cos(x.astype(np.float64)))) < 2e-7
    assert np.max(np.abs(sin - np.sin(x.astype(np.float64)))) < 2e-7


def test_cos_and_sin_of_large_angles_within_one_unit(rng):
    @numba.njit
    def run(a, cos, sin):
        for i in range(a.size):
            c, s = cos_sin_large(simd.get(a, i))
            simd.put(cos, i, c)
            simd.put(sin, i, s)

    # Whole positions, random angles, and those nearest to multiples of pi/2, where the reduction cancels most.
    near = [np.float32(k * np.pi / 2) for k in rng.integers(5216, 683_565_275, 300)]
    x = np.concatenate([[8192, 15962, 131071, 2**24 - 1, 2**30], rng.uniform(8192, 2**30, 300), near])
    x = x.astype(np.float32)
    cos, sin = np.empty_like(x), np.empty_like(x)
    run(x, cos, sin)
    with mpmath.workdps(60):
        for got, function in ((cos, mpmath.cos), (sin, mpmath.sin)):
            for angle, value in zip(x, got, strict=True):
                exact = function(mpmath.mpf(float(angle)))
                assert abs(mpmath.mpf(float(value)) - exact) <= float(np.spacing(np.abs(value)))
