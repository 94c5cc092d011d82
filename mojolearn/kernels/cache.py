"""The cache buffers: growing them in place, and looking for numbers that are none.

Without a window the buffer holds [B, KV, S, HD] packed at the used length S, so each further token moves the
blocks of all (row, head) but the first. They are moved in place, last block first and each from its end, so
that nothing is overwritten before it has been read. Under a window W a block is a ring of W slots and position
p lies in slot p % W: nothing moves.
"""

import numpy as np
from numba import prange

from mojolearn._jit import LANES, helper, kernel, part, twins
from mojolearn.kernels.simd import get, load, put, splat, store
from mojolearn.kernels.vmath import ZERO


@helper
def move_up(buffer, source, target, n):
    """buffer[target : target + n] = buffer[source : source + n] for target >= source, from the end down."""
    i = n
    while i >= LANES:
        i -= LANES
        store(buffer, target + i, load(buffer, source + i))
    while i > 0:
        i -= 1
        put(buffer, target + i, get(buffer, source + i))


@helper
def copy_new(new, source, buffer, target, n):
    for i in range(n):
        put(buffer, target + i, get(new, source + i))


@part
def grow(buffer, new, n_blocks, cached, length, head_dim):
    """[n_blocks, cached, HD] becomes [n_blocks, cached + length, HD] with new (n_blocks, length, HD) at the ends."""
    held = cached * head_dim
    added = length * head_dim
    for block in range(n_blocks - 1, -1, -1):
        target = block * (held + added)
        if block > 0:
            move_up(buffer, block * held, target, held)
        copy_new(new, block * added, buffer, target + held, added)


@part
def turn(buffer, new, n_blocks, cached, length, head_dim, window):
    """Write the last min(length, window) new tokens of each block into its ring, at slot position % window."""
    for block in range(n_blocks):
        for t in range(max(0, length - window), length):
            slot = (cached + t) % window
            source = (block * length + t) * head_dim
            copy_new(new, source, buffer, (block * window + slot) * head_dim, head_dim)


@part
def commit_share(
    index, n_workers, k_cache, v_cache, new_k, new_v, n_blocks, cached, length, head_dim, window
):
    """Worker 0 takes the keys and worker 1 the values; a single one takes both."""
    for task in range(index, 2, n_workers):
        if window > 0 and task == 0:
            turn(k_cache, new_k, n_blocks, cached, length, head_dim, window)
        elif window > 0:
            turn(v_cache, new_v, n_blocks, cached, length, head_dim, window)
        elif task == 0:
            grow(k_cache, new_k, n_blocks, cached, length, head_dim)
        else:
            grow(v_cache, new_v, n_blocks, cached, length, head_dim)


@kernel
def commit_serial(
    n_workers, k_cache, v_cache, new_k, new_v, n_blocks, cached, length, head_dim, window, held
):
    """On the calling thread: the twin of ``commit_parallel``."""
    if held[0] == cached:
        commit_share(np.int64(0), np.int64(1), k_cache, v_cache, new_k, new_v, n_blocks, cached, length, head_dim,
                     window)  # fmt: skip
        held[0] = cached + length


@kernel(parallel=True)
def commit_parallel(
    n_workers, k_cache, v_cache, new_k, new_v, n_blocks, cached, length, head_dim, window, held
):
    """Everything a call changes in a state, in one go: both buffers and the token count held[0].

    n_blocks = B * KV; new_k, new_v: (B, KV, length, HD). Done once only: repeating it changes nothing.
    """
    if held[0] == cached:
        for index in prange(n_workers):
            commit_share(np.int64(index), n_workers, k_cache, v_cache, new_k, new_v, n_blocks, cached, length, head_dim,
                         window)  # fmt: skip
        held[0] = cached + length


@part
def is_finite(a, first, n, lanes):
    """Are n numbers from a[first] on finite? x - x is 0 for these and NaN for infinities and NaN. lanes: scratch."""
    s0 = s1 = s2 = s3 = splat(ZERO)
    wide = n // (4 * LANES) * (4 * LANES)
    for i in range(first, first + wide, 4 * LANES):
        x0, x1 = load(a, i), load(a, i + LANES)
        x2, x3 = load(a, i + 2 * LANES), load(a, i + 3 * LANES)
        s0, s1, s2, s3 = s0 + (x0 - x0), s1 + (x1 - x1), s2 + (x2 - x2), s3 + (x3 - x3)
    store(lanes, 0, (s0 + s1) + (s2 + s3))
    total = ZERO
    for lane in range(LANES):
        total = total + get(lanes, lane)
    for i in range(first + wide, first + n):
        total = total + (get(a, i) - get(a, i))
    return total == ZERO


@part
def scan_share(index, n_workers, k_cache, v_cache, n_blocks, block, used, broken):
    """Worker ``index`` looks at every n_workers-th block of keys or values."""
    lanes = np.empty(LANES, np.float32)
    broken[index] = 0
    for task in range(index, 2 * n_blocks, n_workers):
        first = task // 2 * block
        if task % 2 == 0:
            broken[index] += not is_finite(k_cache, first, used, lanes)
        else:
            broken[index] += not is_finite(v_cache, first, used, lanes)


@kernel
def scan_serial(n_workers, k_cache, v_cache, n_blocks, block, used, broken):
    """On the calling thread: the twin of ``scan_parallel``."""
    scan_share(np.int64(0), np.int64(1), k_cache, v_cache, n_blocks, block, used, broken)


@kernel(parallel=True)
def scan_parallel(n_workers, k_cache, v_cache, n_blocks, block, used, broken):
    """broken (n_workers,): in how many blocks each worker met infinities or NaN among the first ``used`` numbers."""
    for index in prange(n_workers):
        scan_share(np.int64(index), n_workers, k_cache, v_cache, n_blocks, block, used, broken)


scan = twins(scan_serial, scan_parallel)


@kernel
def all_finite(a, b, c):
    """Which of three flat arrays is the first with an infinity or NaN: 0, 1 or 2, or 3 if all are finite."""
    lanes = np.empty(LANES, np.float32)
    if not is_finite(a, 0, a.size, lanes):
        return 0
    if not is_finite(b, 0, b.size, lanes):
        return 1
    if not is_finite(c, 0, c.size, lanes):
        return 2
    return 3
