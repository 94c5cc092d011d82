"""RMSNorm and LayerNorm of rows (numerics page, section 3).

The sums are serial chains by contract. One chain waits 4 cycles for each addition, so four rows walk side by
side: the sums stay serial, the processor stays busy. A group that reaches past the last row repeats that row.

Shapes: x, out (n_rows, d) flat; gain, bias (d,); bias empty when there is none.
"""

import numpy as np
from numba import prange

from mojolearn._jit import helper, kernel, part
from mojolearn.kernels.simd import fma, get, put, sqrt
from mojolearn.kernels.vmath import ONE, ZERO

TOGETHER = 4  # rows whose chains run side by side


@helper
def reciprocal_root(a):
    """1 / sqrt(a): a correctly rounded root, then one division."""
    return ONE / sqrt(a)


@helper
def root_mean_square_scales(x, r0, r1, r2, r3, d, eps):
    """1 / sqrt(mean of squares + eps) of the four rows that start at x[r0], x[r1], x[r2], x[r3]."""
    s0 = s1 = s2 = s3 = ZERO
    for j in range(d):
        a = get(x, r0 + j)
        s0 = fma(a, a, s0)
        a = get(x, r1 + j)
        s1 = fma(a, a, s1)
        a = get(x, r2 + j)
        s2 = fma(a, a, s2)
        a = get(x, r3 + j)
        s3 = fma(a, a, s3)
    n = np.float32(d)
    return (reciprocal_root(s0 / n + eps), reciprocal_root(s1 / n + eps),
            reciprocal_root(s2 / n + eps), reciprocal_root(s3 / n + eps))  # fmt: skip


@helper
def means(x, r0, r1, r2, r3, d):
    """The means of four rows."""
    s0 = s1 = s2 = s3 = ZERO
    for j in range(d):
        s0 = s0 + get(x, r0 + j)
        s1 = s1 + get(x, r1 + j)
        s2 = s2 + get(x, r2 + j)
        s3 = s3 + get(x, r3 + j)
    n = np.float32(d)
    return s0 / n, s1 / n, s2 / n, s3 / n


@helper
def deviation_scales(x, r0, r1, r2, r3, m0, m1, m2, m3, d, eps):
    """1 / sqrt(variance + eps) of four rows with these means (biased variance, second pass)."""
    s0 = s1 = s2 = s3 = ZERO
    for j in range(d):
        t = get(x, r0 + j) - m0
        s0 = fma(t, t, s0)
        t = get(x, r1 + j) - m1
        s1 = fma(t, t, s1)
        t = get(x, r2 + j) - m2
        s2 = fma(t, t, s2)
        t = get(x, r3 + j) - m3
        s3 = fma(t, t, s3)
    n = np.float32(d)
    return (reciprocal_root(s0 / n + eps), reciprocal_root(s1 / n + eps),
            reciprocal_root(s2 / n + eps), reciprocal_root(s3 / n + eps))  # fmt: skip


@helper
def scale_row(x, at, gain, scale, out, d):
    """out = gain * (x * scale), two products in this order; out where x is."""
    for j in range(d):
        put(out, at + j, get(gain, j) * (get(x, at + j) * scale))


@helper
def centre_and_scale_row(x, at, mean, gain, gain_at, scale, bias, out, d):
    """out = gain * ((x - mean) * scale), then + bias; gain and bias from gain_at on, out where x is."""
    for j in range(d):
        put(out, at + j, get(gain, gain_at + j) * ((get(x, at + j) - mean) * scale))
    if bias.size > 0:
        for j in range(d):
            put(out, at + j, get(out, at + j) + get(bias, gain_at + j))


@helper
def pick(i, a0, a1, a2, a3):
    """The i-th of four. Loops over four rows with it are compiled once instead of four times."""
    a = a0
    if i == 1:
        a = a1
    if i == 2:
        a = a2
    if i == 3:
        a = a3
    return a


@part
def rms_norm_four(x, r0, r1, r2, r3, gain, eps, out, d):
    """RMSNorm of four rows, to the same places of out; x and out may be the same memory."""
    s0, s1, s2, s3 = root_mean_square_scales(x, r0, r1, r2, r3, d, eps)
    before = np.int64(-1)
    for i in range(TOGETHER):
        row = pick(i, r0, r1, r2, r3)
        if row != before:  # in place, a repeated row must not be scaled twice
            scale_row(x, row, gain, pick(i, s0, s1, s2, s3), out, d)
        before = row


@part
def layer_norm_four(x, r0, r1, r2, r3, gain, gain_at, gain_step, bias, eps, out, d):
    """LayerNorm of four rows likewise. Row i takes gain and bias from gain_at + i * gain_step on."""
    m0, m1, m2, m3 = means(x, r0, r1, r2, r3, d)
    s0, s1, s2, s3 = deviation_scales(x, r0, r1, r2, r3, m0, m1, m2, m3, d, eps)
    before = np.int64(-1)
    for i in range(TOGETHER):
        row = pick(i, r0, r1, r2, r3)
        if row != before:
            centre_and_scale_row(x, row, pick(i, m0, m1, m2, m3), gain, gain_at + i * gain_step,
                                 pick(i, s0, s1, s2, s3), bias, out, d)  # fmt: skip
        before = row


@part
def norm_share(index, n_workers, x, n_rows, d, layer, gain, bias, eps, out):
    """Worker ``index`` takes every n_workers-th group of four rows. layer: LayerNorm, otherwise RMSNorm."""
    last = n_rows - 1
    for group in range(index, (n_rows + TOGETHER - 1) // TOGETHER, n_workers):
        r = group * TOGETHER
        r0 = r * d
        r1 = min(r + 1, last) * d
        r2 = min(r + 2, last) * d
        r3 = min(r + 3, last) * d
        if layer:
            layer_norm_four(x, r0, r1, r2, r3, gain, np.int64(0), np.int64(0), bias, eps, out, d)
        else:
            rms_norm_four(x, r0, r1, r2, r3, gain, eps, out, d)


@kernel
def norm_serial(n_workers, x, n_rows, d, layer, gain, bias, eps, out):
    """All rows on the calling thread: the twin of ``norm_parallel``."""
    norm_share(np.int64(0), np.int64(1), x, n_rows, d, layer, gain, bias, eps, out)


@kernel(parallel=True)
def norm_parallel(n_workers, x, n_rows, d, layer, gain, bias, eps, out):
    """out (n_rows, d) = norm of x (n_rows, d)."""
    for index in prange(n_workers):
        norm_share(np.int64(index), n_workers, x, n_rows, d, layer, gain, bias, eps, out)
