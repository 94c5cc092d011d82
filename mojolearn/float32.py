"""float32 arithmetic in NumPy with one rounding per operation, on any machine.

NumPy has no fused multiply-add. Here it is built from float64 operations that are exact or whose error is
known, and with it the elementary functions of the numerics page. They give the same bits as the compiled ones
of the kernels, and serve where no kernel runs: for the rotation frequencies of a block and for sampling.
"""

import numpy as np

MIN_NORMAL = np.float32(2.0**-126)
PIECE = 8192


def _constant(bits):
    return np.uint32(bits).view(np.float32)


ONE, HALF = np.float32(1), np.float32(0.5)
LOG2_E, EXP_MAX, EXP_MIN = _constant(0x3FB8AA3B), _constant(0x42B17217), _constant(0xC2AEAC50)
LN2_HIGH, LN2_LOW = _constant(0x3F318000), _constant(0xB95E8083)  # their sum is the logarithm of 2
SQRT_HALF = _constant(0x3F3504F3)
EXP = [_constant(c) for c in (0x39506967, 0x3AB743CE, 0x3C088908, 0x3D2AA9C1, 0x3E2AAAAA, 0x3F000000)]
LOG = [
    _constant(c)
    for c in (
        *(0x3D9021BB, 0xBDEBD1B8, 0x3DEF251A, 0xBDFE5D4F, 0x3E11E9BF),
        *(0xBE2AAE50, 0x3E4CCEAC, 0xBE7FFFFC, 0x3EAAAAAA),
    )
]


def fma(a, b, c):
    """Fused multiply-add: a * b + c, rounded once to float32.

    Parameters
    ----------
    a, b, c : array_like of float32
        Arrays that broadcast together.

    Returns
    -------
    ndarray of float32
        The float32 nearest to the exact value, ties to even; subnormal results, signed zeros, infinities and
        NaN as IEEE 754 asks.

    Notes
    -----
    The product of two float32 is exact in float64. Adding c may round, and rounding that to float32 is wrong
    only when the first rounding has hit the middle between two neighbouring float32. These rare results, and
    all below the smallest normal number, are done again with a sum that is rounded to odd [1]_.

    References
    ----------
    .. [1] S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
       rounding to odd", IEEE Transactions on Computers 57 (2008).

    Examples
    --------
    >>> x = np.float32(1 + 2**-20)
    >>> float(x * x - (2 * x - 1)), float(fma(x, x, 1 - 2 * x))  # exactly 2**-40
    (0.0, 9.094947017729282e-13)
    """
    a, b, c = (np.asarray(value, dtype=np.float32).astype(np.float64) for value in (a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        total = np.asarray(product + c)
        result = total.astype(np.float32)
        doubtful = _near_a_tie(total) | (np.abs(total) < MIN_NORMAL)
        if doubtful.any():
            product, c = (np.broadcast_to(value, total.shape)[doubtful] for value in (product, c))
            result[doubtful] = _sum_to_odd(product, c).astype(np.float32)
    return result[()]


def _near_a_tie(total):
    """Where a float64 lies in the middle between two float32: its lower 29 bits are 1000...0."""
    return (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000


def _sum_to_odd(p, c):
    """p + c in float64, with an inexact sum rounded to that neighbour whose last bit is 1.

    Such a sum is never in the middle between two float32 unless it is exact, so it may be rounded once more.
    """
    total = p + c
    c_part = total - p
    error = (p - (total - c_part)) + (c - c_part)  # exact (Knuth's TwoSum)
    even = total.view(np.int64) & 1 == 0
    return np.where(
        even & (error != 0) & np.isfinite(total), np.nextafter(total, np.copysign(np.inf, error)), total
    )


def _horner(coefficients, x):
    """Evaluate the polynomial with these coefficients, highest power first, by fused multiply-adds."""
    p = coefficients[0]
    for coefficient in coefficients[1:]:
        p = fma(p, x, coefficient)
    return p


def _in_pieces(function, x):
    """Apply an elementwise function to pieces of x that, with all temporaries, fit in the cache."""
    x = np.asarray(x, dtype=np.float32)
    flat, result = x.reshape(-1), np.empty(x.size, dtype=np.float32)
    for start in range(0, x.size, PIECE):
        result[start : start + PIECE] = function(flat[start : start + PIECE])
    return result.reshape(x.shape)[()]


def exp(x):
    """Exponential, exp_ of the docs numerics, section 7.

    Parameters
    ----------
    x : array_like of float32
        Any values.

    Returns
    -------
    ndarray of float32
        Infinite above 88.72283, 0 below -87.33655 and wherever the result would be subnormal; NaN for NaN.

    Examples
    --------
    >>> exp(np.float32([0, 1, -90]))
    array([1.       , 2.7182817, 0.       ], dtype=float32)
    """
    return _in_pieces(_exp, x)


def _exp(x):
    inside = (x >= EXP_MIN) & (x <= EXP_MAX)
    r = np.where(inside, x, np.float32(0))
    n = np.floor(fma(r, LOG2_E, HALF))
    r = fma(n, -LN2_HIGH, r)
    r = fma(n, -LN2_LOW, r)
    y = fma(_horner(EXP, r), r * r, r) + ONE
    n = n.astype(np.int32)
    first = n >> 1  # 2**n alone may lie outside float32
    y = (y * _power_of_two(first)) * _power_of_two(n - first)
    y[y < MIN_NORMAL] = 0
    if not inside.all():
        y[x > EXP_MAX] = np.inf
        y[x < EXP_MIN] = 0
        y[np.isnan(x)] = np.nan
    return y


def _power_of_two(n):
    return ((n + 127) << 23).view(np.float32)


def log(x):
    """Natural logarithm, log_ of the docs numerics, section 7.

    Parameters
    ----------
    x : array_like of float32
        Positive values. (The page defines normal ones; subnormal ones follow the same formula.)

    Returns
    -------
    ndarray of float32
        -inf for 0, NaN for negative values and NaN, infinity for infinity.

    Examples
    --------
    >>> log(np.float32([1, 10000, 0]))
    array([0.       , 9.2103405,      -inf], dtype=float32)
    """
    return _in_pieces(_log, x)


def _log(x):
    inside = (x > 0) & (x < np.inf)
    m, e = np.frexp(np.where(inside, x, ONE))  # x = m * 2**e with m in [1/2, 1)
    small = m < SQRT_HALF
    e = (e - small).astype(np.float32)
    t = np.where(small, m + m, m) - ONE
    z = t * t
    y = (t * z) * _horner(LOG, t)
    y = fma(e, LN2_LOW, y)
    y = fma(-HALF, z, y)
    y = fma(e, LN2_HIGH, t + y)
    if not inside.all():
        y[x == 0] = -np.inf
        y[x == np.inf] = np.inf
        y[(x < 0) | np.isnan(x)] = np.nan
    return y


def power(theta, e):
    """theta to the power e, as exp(e * log(theta)): pow of the docs numerics, section 4.

    Parameters
    ----------
    theta : array_like of float32
        Positive bases.
    e : array_like of float32
        Exponents; 0 gives exactly 1.

    Returns
    -------
    ndarray of float32
        The powers. The error grows with e * log(theta), which is rounded once before the exponential.

    Examples
    --------
    >>> power(10000, np.float32([0, 0.25, 0.5]))
    array([  1.     ,  10.     , 100.00001], dtype=float32)
    """
    e = np.asarray(e, dtype=np.float32)
    with np.errstate(all="ignore"):
        result = exp(e * log(theta))
    return np.where(e == 0, ONE, result)[()]
