"""Between the projections and attention: limits, qk-norm, rotary positions, and the new keys and values laid out.

One row of ``qkv`` holds a token's n_heads query heads, then its n_kv key heads and its n_kv value heads, HD
numbers each. Queries are normed and turned in place; keys are normed, turned and, with the values, copied to
``new_k`` and ``new_v``, where the tokens of one (row, kv head) lie together as in a cache.

RoPE turns the pair (u[i], u[i + half]), or interleaved (u[2 i], u[2 i + 1]), by the angle position * frequency[i]
(Su et al. 2021, arXiv:2104.09864; numerics page, section 4). The angles are computed here for each token: a table
would cost more to look after.
"""

import numpy as np
from numba import prange

from mojolearn._jit import LANES, helper, kernel, part
from mojolearn.kernels.norm import layer_norm_four, rms_norm_four
from mojolearn.kernels.simd import fma, get, load, put, splat, store
from mojolearn.kernels.vmath import ZERO, cos_sin

LARGE_ANGLE = np.float32(8192)  # from here on the float32 reduction of cos_sin is too coarse

# 2 / pi, and pi / 2 in three parts (negated) whose sum is exact to 159 bits.
TWO_OVER_PI = np.float64(float.fromhex("0x1.45f306dc9c883p-1"))
HALF_PI_1 = np.float64(-float.fromhex("0x1.921fb54442d18p+0"))
HALF_PI_2 = np.float64(-float.fromhex("0x1.1a62633145c07p-54"))
HALF_PI_3 = np.float64(float.fromhex("0x1.f1976b7ed8fbcp-110"))
# Taylor coefficients, 1 / n! with alternating signs: on [-pi/4, pi/4] the first term left out is below 2**-57.
SIN_TAYLOR_3, SIN_TAYLOR_5 = np.float64(-1 / 6), np.float64(1 / 120)
SIN_TAYLOR_7, SIN_TAYLOR_9 = np.float64(-1 / 5040), np.float64(1 / 362880)
SIN_TAYLOR_11, SIN_TAYLOR_13 = np.float64(-1 / 39916800), np.float64(1 / 6227020800)
SIN_TAYLOR_15 = np.float64(-1 / 1307674368000)
COS_TAYLOR_2, COS_TAYLOR_4 = np.float64(-1 / 2), np.float64(1 / 24)
COS_TAYLOR_6, COS_TAYLOR_8 = np.float64(-1 / 720), np.float64(1 / 40320)
COS_TAYLOR_10, COS_TAYLOR_12 = np.float64(-1 / 3628800), np.float64(1 / 479001600)
COS_TAYLOR_14, COS_TAYLOR_16 = np.float64(-1 / 87178291200), np.float64(1 / 20922789888000)
ONE_64 = np.float64(1)


@helper
def cos_sin_large(angle):
    """(cos, sin) of one float32 angle in [8192, 2**30], rounded from float64: within 1 unit in the last place."""
    x = np.float64(angle)
    n = np.rint(x * TWO_OVER_PI)
    r = fma(n, HALF_PI_1, x)
    r = fma(n, HALF_PI_2, r)
    r = fma(n, HALF_PI_3, r)
    z = r * r
    p = SIN_TAYLOR_15
    p = fma(p, z, SIN_TAYLOR_13)
    p = fma(p, z, SIN_TAYLOR_11)
    p = fma(p, z, SIN_TAYLOR_9)
    p = fma(p, z, SIN_TAYLOR_7)
    p = fma(p, z, SIN_TAYLOR_5)
    p = fma(p, z, SIN_TAYLOR_3)
    s = fma(r * z, p, r)
    p = COS_TAYLOR_16
    p = fma(p, z, COS_TAYLOR_14)
    p = fma(p, z, COS_TAYLOR_12)
    p = fma(p, z, COS_TAYLOR_10)
    p = fma(p, z, COS_TAYLOR_8)
    p = fma(p, z, COS_TAYLOR_6)
    p = fma(p, z, COS_TAYLOR_4)
    p = fma(p, z, COS_TAYLOR_2)
    c = fma(p, z, ONE_64)
    quadrant = np.int64(n) & 3
    if quadrant == 1:
        c, s = -s, c
    elif quadrant == 2:
        c, s = -c, -s
    elif quadrant == 3:
        c, s = s, -c
    return np.float32(c), np.float32(s)


@part
def cos_sin_of_position(position, frequency, frequency_at, half, amplitude, table, cos_at, sin_at):
    """amplitude * cos and sin of position * frequency[i] for i < half, into table, padded to whole registers."""
    p = np.float32(position)
    for i in range(0, half, LANES):
        c, s = cos_sin(splat(p) * load(frequency, frequency_at + i))
        store(table, cos_at + i, c * splat(amplitude))
        store(table, sin_at + i, s * splat(amplitude))
    for i in range(half):
        angle = p * get(frequency, frequency_at + i)
        if angle >= LARGE_ANGLE:
            c, s = cos_sin_large(angle)
            put(table, cos_at + i, c * amplitude)
            put(table, sin_at + i, s * amplitude)


@helper
def rotate(x, first, second, stride, table, cos_at, sin_at, half):
    """Turn pairs of one head in place: two rounded products and one sum for each number.

    Pair i are the numbers i * stride after the first and after the second.
    """
    for i in range(half):
        c = get(table, cos_at + i)
        s = get(table, sin_at + i)
        u = get(x, first + i * stride)
        v = get(x, second + i * stride)
        put(x, first + i * stride, u * c + (-v) * s)
        put(x, second + i * stride, v * c + u * s)


@part
def norm_q_and_k(x, q_at, k_at, v_at, head_dim, layer, q_gain, q_bias, k_gain, k_bias, eps):
    """Norm the heads of q and of k, which lie one after the other, in place, four vectors side by side.

    layer: LayerNorm of each head, with its own part of gain and bias (heads * HD,). Otherwise RMSNorm of vectors as
    long as the gain: heads, or all of q or k as one.
    """
    for which in range(2):  # one body for both: the norms are not compiled twice
        at, end, gain, bias = q_at, k_at, q_gain, q_bias
        if which == 1:
            at, end, gain, bias = k_at, v_at, k_gain, k_bias
        width = head_dim if layer else gain.size
        last = end - width
        for r0 in range(at, end, 4 * width):
            r1 = min(r0 + width, last)
            r2 = min(r1 + width, last)
            r3 = min(r2 + width, last)
            if layer:
                layer_norm_four(x, r0, r1, r2, r3, gain, r0 - at, width, bias, eps, x, width)
            else:
                rms_norm_four(x, r0, r1, r2, r3, gain, eps, x, width)


@helper
def limit(x, at, n, bound):
    """x into [-bound, bound]; a NaN stays one."""
    for i in range(at, at + n):
        value = get(x, i)
        if value > bound:
            put(x, i, bound)
        elif value < -bound:
            put(x, i, -bound)


@helper
def copy(source, at, target, to, n):
    for i in range(n):
        put(target, to + i, get(source, at + i))


@part
def arrange_share(index, n_workers, qkv, starts, positions, batch_size, n_heads, n_kv, head_dim, bound, layer, q_gain,
                  q_bias, k_gain, k_bias, eps, frequency, frequency_step, half, interleaved, amplitude, new_k, new_v,
                  table):  # fmt: skip
    """Worker ``index`` takes every n_workers-th token."""
    width = (n_heads + 2 * n_kv) * head_dim
    padded = (half + LANES - 1) // LANES * LANES
    cos_at = index * 2 * padded
    sin_at = cos_at + padded
    distance, stride = (1, 2) if interleaved else (half, 1)
    for b in range(batch_size):
        length = starts[b + 1] - starts[b]
        for t in range(starts[b] + index, starts[b + 1], n_workers):
            q_at = t * width
            k_at = q_at + n_heads * head_dim
            v_at = k_at + n_kv * head_dim
            if bound > ZERO:
                limit(qkv, q_at, width, bound)
            if q_gain.size > 0:
                norm_q_and_k(qkv, q_at, k_at, v_at, head_dim, layer, q_gain, q_bias, k_gain, k_bias, eps)
            cos_sin_of_position(
                positions[t], frequency, b * frequency_step, half, amplitude, table, cos_at, sin_at
            )
            for first in range(q_at, v_at, head_dim):
                rotate(qkv, first, first + distance, stride, table, cos_at, sin_at, half)
            for h in range(n_kv):
                to = (starts[b] * n_kv + h * length + t - starts[b]) * head_dim
                copy(qkv, k_at + h * head_dim, new_k, to, head_dim)
                copy(qkv, v_at + h * head_dim, new_v, to, head_dim)


@kernel
def arrange_serial(n_workers, qkv, starts, positions, batch_size, n_heads, n_kv, head_dim, bound, layer, q_gain,
                   q_bias, k_gain, k_bias, eps, frequency, frequency_step, half, interleaved, amplitude, new_k, new_v,
                   table):  # fmt: skip
    """All tokens on the calling thread: the twin of ``arrange_parallel``."""
    arrange_share(np.int64(0), np.int64(1), qkv, starts, positions, batch_size, n_heads, n_kv, head_dim, bound, layer,
                  q_gain, q_bias, k_gain, k_bias, eps, frequency, frequency_step, half, interleaved, amplitude,
                  new_k, new_v, table)  # fmt: skip


@kernel(parallel=True)
def arrange_parallel(n_workers, qkv, starts, positions, batch_size, n_heads, n_kv, head_dim, bound, layer, q_gain,
                     q_bias, k_gain, k_bias, eps, frequency, frequency_step, half, interleaved, amplitude, new_k,
                     new_v, table):  # fmt: skip
    """Limit, norm and turn q and k, lay k and v out.

    qkv: (tokens, n_heads + 2 n_kv, HD), its rows b from starts[b] to starts[b + 1]; positions: (tokens,);
    bound: limit of q, k and v, 0 = none; layer: kind of qk-norm, see `norm_q_and_k`; q_gain, k_gain: empty without it;
    frequency: (half,) padded to whole registers, for row b from b * frequency_step on;
    new_k, new_v: for row b its (n_kv, length, HD) from starts[b] * n_kv * HD on.
    """
    for index in prange(n_workers):
        arrange_share(np.int64(index), n_workers, qkv, starts, positions, batch_size, n_heads, n_kv, head_dim, bound,
                      layer, q_gain, q_bias, k_gain, k_bias, eps, frequency, frequency_step, half, interleaved,
                      amplitude, new_k, new_v, table)  # fmt: skip
