"""A soft ceiling on numbers: tanh(x / cap) * cap (numerics page, sections 5 and 6)."""

import numpy as np
from numba import prange

from mojolearn._jit import LANES, kernel, part
from mojolearn.kernels.simd import load, splat, store
from mojolearn.kernels.vmath import tanh

TILE = 4096  # numbers of one task, a whole number of registers


@part
def softcap_share(index, n_workers, x, cap):
    """Worker ``index`` takes every n_workers-th tile of x, in place; x holds whole registers."""
    for first in range(index * TILE, x.size, n_workers * TILE):
        for i in range(first, min(first + TILE, x.size), LANES):
            store(x, i, tanh(load(x, i) / splat(cap)) * splat(cap))


@kernel
def softcap_serial(n_workers, x, cap):
    """All tiles on the calling thread: the twin of ``softcap_parallel``."""
    softcap_share(np.int64(0), np.int64(1), x, cap)


@kernel(parallel=True)
def softcap_parallel(n_workers, x, cap):
    """x = tanh(x / cap) * cap, flat and padded to whole registers."""
    for index in prange(n_workers):
        softcap_share(np.int64(index), n_workers, x, cap)
