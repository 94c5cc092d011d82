"""Registers: every intrinsic does what its NumPy twin says, on all its kinds of input."""

import operator

import numba
import numpy as np
import pytest
from support import bits

from mojolearn import float32
from mojolearn._jit import LANES
from mojolearn.kernels import simd
from mojolearn.weights import widen

BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
COMPARISONS = ["lt", "le", "gt", "ge", "eq"]

# Ordinary numbers, then every kind of special one.
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.5,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1e-38,
        3e38,
        -3e38,
        8388609.0,
        0.1,
        2.5,
        -7.0,
    ],
    np.float32,
)


def all_pairs():
    a, b = (grid.reshape(-1).astype(np.float32) for grid in np.meshgrid(SPECIAL, SPECIAL))
    return a, b


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_rounds_once_like_numpy(name):
    op = BINARY[name]

    @numba.njit(error_model="numpy")
    def run(a, b, out):
        for i in range(0, a.size, LANES):
            simd.store(out, i, op(simd.load(a, i), simd.load(b, i)))

    a, b = all_pairs()
    out = np.empty_like(a)
    run(a, b, out)
    with np.errstate(all="ignore"):
        wanted = op(a, b)
    both_nan = np.isnan(out) & np.isnan(wanted)
    np.testing.assert_array_equal(bits(out)[~both_nan], bits(wanted)[~both_nan])


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_and_select(name):
    op = getattr(operator, name)

    @numba.njit
    def run(a, b, out):
        for i in range(0, a.size, LANES):
            x, y = simd.load(a, i), simd.load(b, i)
            simd.store(out, i, simd.select(op(x, y), x, y))

    a, b = all_pairs()
    out = np.empty_like(a)
    run(a, b, out)
    np.testing.assert_array_equal(bits(out), bits(np.where(op(a, b), a, b)))


def test_fma_rounds_once(rng):
    @numba.njit
    def registers(a, b, c, out):
        for i in range(0, a.size, LANES):
            simd.store(out, i, simd.fma(simd.load(a, i), simd.load(b, i), simd.load(c, i)))

    @numba.njit
    def scalars(a, b, c, out):
        for i in range(a.size):
            simd.put(out, i, simd.fma(simd.get(a, i), simd.get(b, i), simd.get(c, i)))

    a = (rng.standard_normal(16000) * 10.0 ** rng.integers(-20, 20, 16000)).astype(np.float32)
    b = (rng.standard_normal(16000) * 10.0 ** rng.integers(-20, 18, 16000)).astype(np.float32)
    c = np.where(rng.random(16000) < 0.5, -(a * b), rng.standard_normal(16000)).astype(np.float32)
    wanted = float32.fma(a, b, c)
    for run in (registers, scalars):
        out = np.empty_like(a)
        run(a, b, c, out)
        np.testing.assert_array_equal(bits(out), bits(wanted))


@pytest.mark.parametrize("function", ["sqrt", "floor", "absolute"])
def test_functions_of_one_number(function):
    of_register = getattr(simd, function)

    @numba.njit
    def run(a, out):
        for i in range(0, a.size, LANES):
            simd.store(out, i, of_register(simd.load(a, i)))

    a = np.concatenate([np.abs(SPECIAL), SPECIAL]) if function != "sqrt" else np.abs(SPECIAL)
    a = a[~np.isnan(a)]
    a = np.resize(a, -(-a.size // LANES) * LANES).astype(np.float32)
    out = np.empty_like(a)
    run(a, out)
    np.testing.assert_array_equal(bits(out), bits(getattr(np, function)(a)))


@pytest.mark.parametrize("storage", [np.uint16, np.float16])
def test_narrow_loads_widen_every_value_exactly(storage):
    every = np.arange(2**16, dtype=np.uint16).view(storage)
    finite = np.isfinite(widen(every))

    @numba.njit
    def run(a, out):
        for i in range(0, a.size, LANES):
            simd.store(out, i, simd.load(a, i))

    out = np.empty(2**16, np.float32)
    run(every if storage == np.uint16 else every.view(np.int16), out)
    np.testing.assert_array_equal(bits(out)[finite], bits(widen(every))[finite])


def test_integers_and_conversions():
    @numba.njit
    def run(a, out):
        for i in range(0, a.size, LANES):
            k = simd.to_int(simd.load(a, i))
            k = ((k + simd.splat(np.int32(5))) << simd.splat(np.int32(2))) >> simd.splat(np.int32(1))
            simd.store(out, i, simd.to_float(k & simd.splat(np.int32(-3))))

    a = np.arange(-64, 64, dtype=np.float32)
    out = np.empty_like(a)
    run(a, out)
    np.testing.assert_array_equal(out, (((a.astype(int) + 5) << 2) >> 1) & -3)


def test_wrong_arrays_are_refused_at_compile_time():
    @numba.njit
    def run(a):
        return simd.get(a, 0)

    for wrong in (np.zeros(4), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2]):
        with pytest.raises(numba.TypingError):
            run(wrong)
