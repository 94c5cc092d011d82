"""What each operation of ``simd`` means, in plain NumPy: a register is an array of ``LANES`` values.

``simd`` takes these in place of its intrinsics under ``NUMBA_DISABLE_JIT=1``, when kernels run as ordinary Python:
slow, but open to a debugger and to coverage, and with the same bits.
"""

import numpy as np

from mojolearn._jit import LANES
from mojolearn.float32 import fma
from mojolearn.weights import widen

__all__ = [
    "absolute", "broadcast", "floor", "fma", "from_bits", "get", "load", "prefetch", "put", "select",
    "splat", "sqrt", "store", "to_float", "to_int",
]  # fmt: skip

np.seterr(all="ignore")  # lanes that a select drops may overflow or divide by zero

sqrt, floor, absolute, select = np.sqrt, np.floor, np.abs, np.where


def load(array, index):
    lanes = array[index : index + LANES]
    return widen(lanes.view(np.float16) if lanes.dtype == np.int16 else lanes).copy()


def store(array, index, value):
    array[index : index + LANES] = value


def broadcast(array, index):
    return np.full(LANES, array[index])


def get(array, index):
    return array[index]


def put(array, index, value):
    array[index] = value


def prefetch(array, index):
    pass


def splat(value):
    return np.full(LANES, value)


def to_int(a):
    return a.astype(np.int32)


def to_float(a):
    return a.astype(np.float32)


def from_bits(a):
    return a.view(np.float32)
