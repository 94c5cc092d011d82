"""What all other numbers depend on: look here first when a whole graph moves."""

import numba
import numpy as np

from mojolearn._jit import LANES

from .common import median_seconds


def track_threads():
    return numba.config.NUMBA_NUM_THREADS


def track_lanes():
    return LANES


def track_read_bandwidth():
    """GB/s of a sum of squares over 256 MB, by OpenBLAS."""
    a = np.ones(64 << 20, np.float32)
    a @ a
    return a.nbytes / median_seconds(lambda: a @ a, 5) * 1e-9


track_threads.unit = "threads"
track_lanes.unit = "float32 lanes"
track_read_bandwidth.unit = "GB/s"
