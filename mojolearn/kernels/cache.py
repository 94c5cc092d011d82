"""The cache buffers: growing them in place, and looking for numbers that are none.

Without a window the buffer holds [B, KV, S, HD] packed at the used length S, so each further token moves the
blocks of all (row, head) but the first. They are moved in place, last block first and each from its end, so
that nothing is overwritten before it has been read. Under a window W a block is a ring of W slots and position
p lies in slot p % W: nothing moves.
"""

import numpy as np

from mojolearn._jit import LANES, helper, kernel, part
from mojolearn.kernels.simd import get, load, put, store

EXPONENT = np.int32(0x7F800000)  # all ones in a float32 that is infinite or no number
SCAN = 4096  # numbers looked at between two questions


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


@kernel
def commit(k_cache, v_cache, new_k, new_v, n_blocks, cached, length, head_dim, window, held):
    """Everything a call changes in a state, in one go: both buffers and the token count held[0].

    n_blocks = B * KV; new_k, new_v: (B, KV, length, HD).
    """
    if window > 0:
        turn(k_cache, new_k, n_blocks, cached, length, head_dim, window)
        turn(v_cache, new_v, n_blocks, cached, length, head_dim, window)
    else:
        grow(k_cache, new_k, n_blocks, cached, length, head_dim)
        grow(v_cache, new_v, n_blocks, cached, length, head_dim)
    held[0] = cached + length


@kernel
def first_nonfinite(bits, n_blocks, block, used):
    """Index of the first infinity or NaN in the first ``used`` of every ``block`` numbers, or -1.

    bits: float32 buffer seen as int32, (n_blocks, block).
    """
    for b in range(n_blocks):
        for first in range(b * block, b * block + used, SCAN):
            after = min(first + SCAN, b * block + used)
            found = 0
            for i in range(first, after):
                found += (bits[i] & EXPONENT) == EXPONENT
            if found > 0:
                for i in range(first, after):
                    if (bits[i] & EXPONENT) == EXPONENT:
                        return i
    return -1
