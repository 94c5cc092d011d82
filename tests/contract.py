"""The arithmetic contract in plain NumPy, one rounding per operation: what the kernels must give bit for bit.

Written from the numerics page alone. The loops run over the terms of a sum, the arrays over independent outputs.
"""

import numpy as np

from mojolearn.float32 import fma


def matrix_product(a, w):
    """a (n, k) times w (m, k): leaves of a serial chain, folded in pairs (section 2)."""
    k = a.shape[1]
    leaf = k if k <= 128 else 128 if -(-k // 128) <= 1024 else -(-k // 1024)
    sums = []
    for first in range(0, k, leaf):
        total = np.zeros((len(a), len(w)), np.float32)
        for p in range(first, min(first + leaf, k)):
            total = fma(a[:, p, None], w[None, :, p], total)
        sums.append(total)
    while len(sums) > 1:
        pairs = [x + y for x, y in zip(sums[::2], sums[1::2], strict=False)]
        sums = pairs + sums[2 * len(pairs) :]
    return sums[0]


def reciprocal_root(a):
    return np.float32(1) / np.sqrt(a)


def rms_norm(x, gain, eps):
    total = np.zeros(len(x), np.float32)
    for column in x.T:
        total = fma(column, column, total)
    r = reciprocal_root(total / np.float32(x.shape[1]) + np.float32(eps))
    return gain * (x * r[:, None])


def layer_norm(x, gain, bias, eps):
    d = np.float32(x.shape[1])
    total = np.zeros(len(x), np.float32)
    for column in x.T:
        total = total + column
    t = x - (total / d)[:, None]
    total = np.zeros(len(x), np.float32)
    for column in t.T:
        total = fma(column, column, total)
    out = gain * (t * reciprocal_root(total / d + np.float32(eps))[:, None])
    return out if bias is None else out + bias
