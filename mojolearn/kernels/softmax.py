"""Sums of exponentials of long rows: what the logarithm of a softmax needs (numerics page, section 8).

The numbers of a row are dealt out to ``PARTIALS`` sums, number i to sum i mod 16, so that registers of any width give
the same result. Each of them runs in the order of section 2, with additions in place of multiply-adds; at the end the
sixteen are folded in pairs.
"""

import numpy as np
from numba import prange

from mojolearn._jit import LANES, helper, kernel, part, plain
from mojolearn.kernels.simd import get, load, put, splat, store
from mojolearn.kernels.sums import fold_after, fold_rest, leaf_length, levels_of
from mojolearn.kernels.vmath import INFINITY, ZERO, exp

PARTIALS = 16


@helper
def leaf_of_partials(x, at, n, largest, out, out_at):
    """One leaf of the sixteen sums: n times sixteen numbers from x[at] on."""
    m = splat(largest)
    for half in range(0, PARTIALS, LANES):
        total = splat(ZERO)
        for p in range(n):
            total = total + exp(load(x, at + p * PARTIALS + half) - m)
        store(out, out_at + half, total)


@helper
def add_rest(x, at, n, largest, scratch, rest_at, out_at):
    """Add the last n < 16 numbers of a row to the first n of the sixteen sums of its last leaf."""
    for i in range(PARTIALS):
        put(scratch, rest_at + i, get(x, at + i) if i < n else -INFINITY)
    m = splat(largest)
    for half in range(0, PARTIALS, LANES):
        store(scratch, out_at + half,
              load(scratch, out_at + half) + exp(load(scratch, rest_at + half) - m))  # fmt: skip


@part
def exp_sum_row(x, at, size, largest, scratch, rest_at):
    """The sum of exp(x - largest) over x[at : at + size]. scratch: 16 numbers, then 16 for each level of the tree."""
    sums_at = rest_at + PARTIALS
    k = (size + PARTIALS - 1) // PARTIALS
    whole = size // PARTIALS
    leaf = leaf_length(k)
    level = 0
    for t in range((k + leaf - 1) // leaf):
        first, out_at = t * leaf, sums_at + level * PARTIALS
        leaf_of_partials(x, at + first * PARTIALS, min(leaf, whole - first), largest, scratch, out_at)
        if whole < min(first + leaf, k):
            add_rest(x, at + whole * PARTIALS, size - whole * PARTIALS, largest, scratch, rest_at, out_at)
        level = fold_after(t, level + 1, scratch, sums_at, PARTIALS)
    fold_rest(level, scratch, sums_at, PARTIALS)
    width = PARTIALS
    while width > 1:
        width //= 2
        for q in range(width):
            put(scratch, sums_at + q, get(scratch, sums_at + 2 * q) + get(scratch, sums_at + 2 * q + 1))
    return get(scratch, sums_at)


@part
def exp_sums_share(index, n_workers, x, n_rows, size, largest, out, scratch, scratch_size):
    """Worker ``index`` takes every n_workers-th row."""
    for row in range(index, n_rows, n_workers):
        put(out, row, exp_sum_row(x, row * size, size, get(largest, row), scratch, index * scratch_size))


@kernel
def exp_sums_serial(n_workers, x, n_rows, size, largest, out, scratch, scratch_size):
    """All rows on the calling thread: the twin of ``exp_sums_parallel``."""
    exp_sums_share(np.int64(0), np.int64(1), x, n_rows, size, largest, out, scratch, scratch_size)


@kernel(parallel=True)
def exp_sums_parallel(n_workers, x, n_rows, size, largest, out, scratch, scratch_size):
    """out[r] = sum of exp(x[r] - largest[r]) for the rows of x (n_rows, size)."""
    for index in prange(n_workers):
        exp_sums_share(np.int64(index), n_workers, x, n_rows, size, largest, out, scratch, scratch_size)


def scratch_size(size):
    """Float32 numbers of scratch that one worker needs (plain Python: called before the kernel)."""
    k = -(-size // PARTIALS)
    leaf = plain(leaf_length)(k)
    return PARTIALS * (1 + plain(levels_of)(-(-k // leaf)))
