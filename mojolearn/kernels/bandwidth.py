"""Reading memory and doing nothing else: what a kernel that streams weights is measured against."""

import numpy as np
from numba import prange

from mojolearn._jit import LANES, kernel, part
from mojolearn.kernels.simd import load, splat, store
from mojolearn.kernels.vmath import ZERO

TOGETHER = 8  # registers in flight


@part
def read_share(index, n_workers, x, out):
    """Worker ``index`` adds up its share of x, and keeps the sums so that nothing is left out."""
    share = x.size // (n_workers * TOGETHER * LANES) * TOGETHER * LANES
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = splat(ZERO)
    for i in range(index * share, (index + 1) * share, TOGETHER * LANES):
        s0, s1 = s0 + load(x, i), s1 + load(x, i + LANES)
        s2, s3 = s2 + load(x, i + 2 * LANES), s3 + load(x, i + 3 * LANES)
        s4, s5 = s4 + load(x, i + 4 * LANES), s5 + load(x, i + 5 * LANES)
        s6, s7 = s6 + load(x, i + 6 * LANES), s7 + load(x, i + 7 * LANES)
    store(out, index * LANES, ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))


@kernel
def read_serial(n_workers, x, out):
    """All of x on the calling thread: the twin of ``read_parallel``."""
    read_share(np.int64(0), np.int64(1), x, out)


@kernel(parallel=True)
def read_parallel(n_workers, x, out):
    """Read x once; out has LANES numbers for each worker."""
    for index in prange(n_workers):
        read_share(np.int64(index), n_workers, x, out)
