"""float32.py: one rounding per operation, and the formulas of the numerics page to the last bit."""

import itertools

import exact
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits

from mojolearn.float32 import PIECE, exp, fma, log, power

INF, NAN = np.float32(np.inf), np.float32(np.nan)


def patterns(low=0, high=0x7F7FFFFF):
    """float32 numbers of both signs with magnitude bits in a range; by default all finite ones."""
    magnitude = st.integers(low, high)
    return st.builds(lambda m, sign: exact.from_bits(m | sign << 31), magnitude, st.integers(0, 1))


FINITE = patterns()
TINY = patterns(0, 0x01000000)  # around the smallest normal number, zeros included
MODERATE = patterns(0x30000000, 0x50000000)
ONE_SIZED = patterns(0x3F000000, 0x40000000)


def same(a, b):
    return bits(a).tolist() == bits(b).tolist()


@given(FINITE, FINITE, FINITE)
def test_fma_of_any_numbers(a, b, c):
    assert same(fma(a, b, c), exact.fma(a, b, c))


@given(MODERATE, MODERATE, MODERATE)
def test_fma_of_moderate_numbers(a, b, c):
    assert same(fma(a, b, c), exact.fma(a, b, c))


@given(ONE_SIZED, TINY, TINY)
def test_fma_with_subnormal_results(a, b, c):
    assert same(fma(a, b, c), exact.fma(a, b, c))


@given(patterns(0x00800000, 0x20000000), patterns(0x1F000000, 0x20000000), TINY)
def test_fma_with_subnormal_products(a, b, c):
    assert same(fma(a, b, c), exact.fma(a, b, c))


@given(patterns(0x5F000000, 0x60000000), patterns(0x5E000000, 0x60000000), patterns(0x7F000000))
def test_fma_near_overflow(a, b, c):
    assert same(fma(a, b, c), exact.fma(a, b, c))


def near_ties():
    """Cases just beside the middle of two neighbours, closer than float64 can tell; some subnormal."""
    # The product is half a unit of c times (1 + s)(1 - s): it misses the middle by s**2 of half a unit.
    misses = [i * 2.0**-23 for i in range(1, 9)] + [i * 2.0**-20 for i in range(32, 46)]
    cases = []
    for miss, exponent in itertools.product(misses, (-128, -127, -126, -125, -60, 0, 77)):
        unit = 2.0 ** max(exponent - 23, -149)
        for odd, sign in itertools.product((0, 1), (-1, 1)):
            cases.append(
                ((1 + miss) * 2.0**-60, sign * unit / 2 * (1 - miss) * 2.0**60, 2.0**exponent + odd * unit)
            )
    return np.array(cases, np.float32).T


def test_fma_beside_a_tie():
    a, b, c = near_ties()
    wanted = np.array([exact.fma(*case) for case in zip(a, b, c)])
    assert same(fma(a, b, c), wanted)
    in_float64 = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (bits(in_float64) != bits(wanted)).any()  # these cases do need the second look


def test_fma_of_exact_ties_goes_to_even():
    c = np.float32([1, 1 + 2**-23, -1])
    assert same(fma(np.float32(2**-12), np.float32(2**-12), c), np.float32([1, 1 + 2**-22, -1 + 2**-24]))


@pytest.mark.parametrize(
    ("a", "b", "c", "wanted"),
    [
        (0.0, 1.0, 0.0, 0.0),
        (-0.0, 1.0, -0.0, -0.0),
        (-0.0, 1.0, 0.0, 0.0),
        (0.0, -3.0, -0.0, -0.0),
        (1.0, 2.0, -2.0, 0.0),
        (-1.0, 2.0, 2.0, 0.0),
        (-1e-30, 1e-30, 0.0, -0.0),  # a product too small for float32 keeps its sign
        (3e38, 10.0, 0.0, INF),
        (3e38, -10.0, 0.0, -INF),
        (3e38, 2.0, -3e38, 3e38),  # the product alone would overflow
        (INF, 2.0, 1.0, INF),
        (INF, -2.0, 1.0, -INF),
        (1.0, 1.0, -INF, -INF),
        (1e38, 1e38, -INF, -INF),
        (INF, 0.0, 1.0, NAN),
        (INF, 1.0, -INF, NAN),
        (NAN, 1.0, 1.0, NAN),
        (1.0, 1.0, NAN, NAN),
    ],
)
def test_fma_of_special_values(a, b, c, wanted):
    result, wanted = fma(a, b, c), np.float32(wanted)
    assert result.dtype == np.float32
    assert np.array_equal(result, wanted, equal_nan=True)
    assert np.isnan(wanted) or np.signbit(result) == np.signbit(wanted)


def test_fma_broadcasts():
    a, b = np.arange(3, dtype=np.float32), np.arange(2, dtype=np.float32)[:, None]
    assert same(fma(a, b, 1), a * b + 1)
    assert fma(a, b, 1).shape == (2, 3)


@given(st.floats(-88, 89, width=32))
def test_exp_is_the_formula_of_the_page(x):
    assert same(exp(x), exact.exp(np.float32(x)))


@pytest.mark.parametrize(
    "pattern", [0x42B17217, 0x42B17218, 0xC2AEAC50, 0xC2AEAC51, 0, 0x80000000, 1, 0x80000001]
)
def test_exp_at_its_edges(pattern):
    x = exact.from_bits(pattern)
    assert same(exp(x), exact.exp(x))


def test_exp_of_special_values():
    result = exp(np.float32([np.nan, np.inf, -np.inf, 89, -88, 0]))
    assert np.array_equal(result, np.float32([np.nan, np.inf, 0, np.inf, 0, 1]), equal_nan=True)
    assert not np.signbit(result[1:]).any()


def test_exp_gives_no_subnormal():
    y = exp(np.linspace(-87.5, -87.2, 10001, dtype=np.float32))
    assert ((y == 0) | (y >= np.finfo(np.float32).tiny)).all()
    assert (y == 0).any()
    assert (y > 0).any()


def test_exp_is_close():
    x = np.linspace(-87.3, 88.7, 40001, dtype=np.float32)
    wanted = np.exp(x.astype(np.float64))
    assert (np.abs(exp(x) - wanted) / wanted).max() < 2**-23


@given(patterns(0x00800000).filter(lambda x: x > 0))
def test_log_is_the_formula_of_the_page(x):
    assert same(log(x), exact.log(x))


@given(patterns(1).filter(lambda x: x > 0))
def test_log_is_close(x):
    wanted = float(mpmath.log(float(x)))
    assert abs(float(log(x)) - wanted) <= 2**-23 * max(abs(wanted), 2**-2 * abs(float(x) - 1))


def test_log_of_special_values():
    result = log(np.float32([0, -0.0, -1, np.nan, np.inf, -np.inf, 1]))
    assert np.array_equal(
        result, np.float32([-np.inf, -np.inf, np.nan, np.nan, np.inf, np.nan, 0]), equal_nan=True
    )


@given(st.floats(2, 1e7, width=32), st.floats(0, 1, width=32))
def test_power_is_the_formula_of_the_page(theta, e):
    assert same(power(theta, e), exact.power(np.float32(theta), np.float32(e)))


def test_power_zero_is_exactly_one():
    assert same(power(np.float32([1e-38, 3e38, 7]), np.float32([0, -0.0, 0])), np.float32([1, 1, 1]))


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3])
def test_pieces_join_without_a_seam(size):
    x = np.linspace(-90, 90, size, dtype=np.float32)
    parts = [exp(x[i : i + 5000]) for i in range(0, size, 5000)]
    assert same(exp(x), np.concatenate([np.zeros(0, np.float32), *parts]))


def test_shape_and_arguments_are_kept():
    x = np.linspace(0.5, 3, 24, dtype=np.float32).reshape(2, 3, 4)[:, ::-1]
    before = x.copy()
    for function in (exp, log):
        assert function(x).shape == x.shape
        assert same(function(x)[1, 2, 3], function(x[1, 2, 3]))
        assert same(x, before)
