"""The output head: scaled and capped as the numerics page says, in both twins, whatever the size."""

import numpy as np
import pytest
from support import bits

from mojolearn._jit import LANES
from mojolearn.kernels.softcap import TILE, softcap_parallel, softcap_serial
from mojolearn.models.head import Head


def tanh(x):
    """tanh of the numerics page in float64, to be compared within its error."""
    return np.tanh(x.astype(np.float64))


@pytest.mark.parametrize("size", [LANES, TILE, 3 * TILE + LANES])
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_twins(rng, size, n_workers):
    x = rng.standard_normal(size, np.float32) * 50
    serial, parallel = x.copy(), x.copy()
    softcap_serial(1, serial, np.float32(30))
    softcap_parallel(n_workers, parallel, np.float32(30))
    np.testing.assert_array_equal(bits(serial), bits(parallel))
    np.testing.assert_allclose(serial, tanh(x / np.float32(30)) * 30, rtol=1e-6)


@pytest.mark.parametrize("vocab_size", [1, LANES - 1, LANES, 1000])
def test_rows_do_not_depend_on_each_other(rng, vocab_size):
    weight = rng.standard_normal((vocab_size, 6), np.float32)
    head = Head(weight, rng.standard_normal(vocab_size, np.float32), multiplier=3.0, softcap=2.0)
    rows = rng.standard_normal((5, 6), np.float32)
    together = head(rows)
    for row, logits in zip(rows, together):
        np.testing.assert_array_equal(bits(head(row[None])[0]), bits(logits))


def test_order_of_operations(rng):
    """Product and bias, then the multiplier, then the divisor, then the ceiling: each rounds once."""
    weight, bias = rng.standard_normal((40, 8), np.float32), rng.standard_normal(40, np.float32)
    rows = rng.standard_normal((3, 8), np.float32)
    plain = Head(weight, bias)(rows)
    scaled = Head(weight, bias, multiplier=0.3, divisor=1.7)(rows)
    np.testing.assert_array_equal(bits(scaled), bits(plain * np.float32(0.3) / np.float32(1.7)))
    capped = Head(weight, bias, multiplier=0.3, divisor=1.7, softcap=0.9)(rows)
    np.testing.assert_allclose(capped, tanh(scaled / np.float32(0.9)) * 0.9, rtol=1e-6)


def test_far_above_the_ceiling():
    head = Head(np.array([[1.0], [-1.0]], np.float32), softcap=30.0)
    np.testing.assert_array_equal(
        head(np.array([[1e3], [1e30], [0.0]], np.float32)), [[30, -30], [30, -30], [0, 0]]
    )
