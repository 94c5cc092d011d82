"""Elementary functions with fixed bits, on vector registers.

Each follows the numerics page of the documentation, section 7, step by step: the order of the operations,
which are fused, and every constant as a bit pattern. Branches become ``select``: all are computed, one is
taken, so a lane's result never depends on its neighbours.
"""

import numpy as np

from mojolearn._jit import helper
from mojolearn.kernels.simd import absolute, floor, fma, from_bits, select, splat, to_float, to_int


def _float(bits):
    """The float32 number with this bit pattern."""
    return np.uint32(bits).view(np.float32)


ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
INFINITY = np.float32(np.inf)
SMALLEST_NORMAL = _float(0x00800000)

EXP_HIGHEST, EXP_LOWEST = _float(0x42B17217), _float(0xC2AEAC50)
LOG2_E, LN2_HIGH, LN2_LOW = _float(0x3FB8AA3B), _float(0xBF318000), _float(0x395E8083)  # both parts negated
EXP_0, EXP_1, EXP_2 = _float(0x39506967), _float(0x3AB743CE), _float(0x3C088908)
EXP_3, EXP_4 = _float(0x3D2AA9C1), _float(0x3E2AAAAA)
INT_1, INT_2, INT_3, INT_4, INT_7 = np.int32(1), np.int32(2), np.int32(3), np.int32(4), np.int32(7)
EXPONENT_BIAS, MANTISSA_BITS = np.int32(127), np.int32(23)


@helper
def power_of_two(k):
    """2**k for int32 lanes in [-126, 127]: the exponent field written directly."""
    return from_bits((k + splat(EXPONENT_BIAS)) << splat(MANTISSA_BITS))


@helper
def exp(x):
    """e**x within 1 unit in the last place (2 near overflow); subnormal results become +0.

    x = n ln 2 + r with |r| <= ln 2 / 2; e**r by a polynomial, 2**n in two steps since n may be 128.
    """
    inside = select(x > splat(EXP_LOWEST), x, splat(EXP_LOWEST))
    inside = select(inside < splat(EXP_HIGHEST), inside, splat(EXP_HIGHEST))
    n = floor(fma(inside, splat(LOG2_E), splat(HALF)))
    r = fma(n, splat(LN2_HIGH), inside)
    r = fma(n, splat(LN2_LOW), r)
    p = splat(EXP_0)
    p = fma(p, r, splat(EXP_1))
    p = fma(p, r, splat(EXP_2))
    p = fma(p, r, splat(EXP_3))
    p = fma(p, r, splat(EXP_4))
    p = fma(p, r, splat(HALF))
    y = fma(p, r * r, r) + splat(ONE)
    k = to_int(n)
    k1 = k >> splat(INT_1)
    y = (y * power_of_two(k1)) * power_of_two(k - k1)
    y = select(y < splat(SMALLEST_NORMAL), splat(ZERO), y)
    y = select(x > splat(EXP_HIGHEST), splat(INFINITY), y)
    y = select(x < splat(EXP_LOWEST), splat(ZERO), y)
    return select(x == x, y, x)


TANH_ONE, TANH_SMALL = _float(0x42317218), np.float32(0.625)
TANH_0, TANH_1, TANH_2 = _float(0xBBBAF0EA), _float(0x3CA9134E), _float(0xBD5C1E2D)
TANH_3, TANH_4 = _float(0x3E088393), _float(0xBEAAAA99)


@helper
def tanh(x):
    """Hyperbolic tangent within 2 units in the last place; an odd function, +-0 and NaN give themselves."""
    a = absolute(x)
    large = splat(ONE) - splat(TWO) / (exp(a + a) + splat(ONE))
    large = select(a > splat(TANH_ONE), splat(ONE), large)
    large = select(x < splat(ZERO), -large, large)
    q = a * a
    p = splat(TANH_0)
    p = fma(p, q, splat(TANH_1))
    p = fma(p, q, splat(TANH_2))
    p = fma(p, q, splat(TANH_3))
    p = fma(p, q, splat(TANH_4))
    small = fma(p * q, x, x)
    y = select(a < splat(TANH_SMALL), small, large)
    return select((x == x) & (a > splat(ZERO)), y, x)


ERF_0, ERF_1, ERF_2 = _float(0x38A4B519), _float(0xBA51FB80), _float(0x3BAA02D9)
ERF_3, ERF_4, ERF_5, ERF_6 = _float(0xBCDBFC87), _float(0x3DE7167C), _float(0xBEC0939F), _float(0x3F906EBA)
ERFC_LOWEST = _float(0xC2B17218)
NEAR_0, NEAR_1, NEAR_2 = _float(0x3CBE9CF4), _float(0xBE0E0868), _float(0x3EBCCBD0)
NEAR_3, NEAR_4, NEAR_5 = _float(0xBF151CF8), _float(0x3F1EF9E3), _float(0xBEFD28C0)
NEAR_6, NEAR_7, NEAR_8 = _float(0x3EAE5471), _float(0xBE8C5880), _float(0x3F1056E6)
FAR_0, FAR_1, FAR_2 = _float(0xC127A483), _float(0x414FA29C), _float(0xC0EFDB4A)
FAR_3, FAR_4, FAR_5 = _float(0x403AF1FA), _float(0xBF81F436), _float(0x3ED7FC3E)
FAR_6, FAR_7 = _float(0xBE906C5D), _float(0x3F106EB9)


@helper
def erfc(a):
    """1 - erf(a) for |a| > 1 (the only range in which it is used)."""
    x = absolute(a)
    z = -(x * x)
    q = splat(ONE) / x
    y = q * q
    near = splat(NEAR_0)
    near = fma(near, y, splat(NEAR_1))
    near = fma(near, y, splat(NEAR_2))
    near = fma(near, y, splat(NEAR_3))
    near = fma(near, y, splat(NEAR_4))
    near = fma(near, y, splat(NEAR_5))
    near = fma(near, y, splat(NEAR_6))
    near = fma(near, y, splat(NEAR_7))
    near = fma(near, y, splat(NEAR_8))
    far = splat(FAR_0)
    far = fma(far, y, splat(FAR_1))
    far = fma(far, y, splat(FAR_2))
    far = fma(far, y, splat(FAR_3))
    far = fma(far, y, splat(FAR_4))
    far = fma(far, y, splat(FAR_5))
    far = fma(far, y, splat(FAR_6))
    far = fma(far, y, splat(FAR_7))
    r = (exp(z) * q) * select(x < splat(TWO), near, far)
    r = select(z < splat(ERFC_LOWEST), splat(ZERO), r)
    return select(a < splat(ZERO), splat(TWO) - r, r)


@helper
def erf(x):
    """Error function within 3 units in the last place."""
    z = x * x
    p = splat(ERF_0)
    p = fma(p, z, splat(ERF_1))
    p = fma(p, z, splat(ERF_2))
    p = fma(p, z, splat(ERF_3))
    p = fma(p, z, splat(ERF_4))
    p = fma(p, z, splat(ERF_5))
    p = fma(p, z, splat(ERF_6))
    return select(absolute(x) <= splat(ONE), x * p, splat(ONE) - erfc(x))


FOUR_OVER_PI = _float(0x3FA2F983)
QUARTER_PI_1, QUARTER_PI_2, QUARTER_PI_3 = (
    _float(0xBF490000),
    _float(0xB97DA000),
    _float(0xB3222169),
)  # negated
SIN_0, SIN_1, SIN_2 = _float(0xB94CA1F9), _float(0x3C08839E), _float(0xBE2AAAA3)
COS_0, COS_1, COS_2 = _float(0x37CCF5CE), _float(0xBAB6061A), _float(0x3D2AAAA5)


@helper
def cos_sin(x):
    """(cos x, sin x) for 0 <= x < 8192, each within 2e-7 absolute.

    x = j pi/4 + r with j even; which of two polynomials in r serves, and with which sign, follows from j mod 8.
    """
    j = to_int(floor(x * splat(FOUR_OVER_PI)))
    j = j + (j & splat(INT_1))
    f = to_float(j)
    j = j & splat(INT_7)
    r = fma(f, splat(QUARTER_PI_1), x)
    r = fma(f, splat(QUARTER_PI_2), r)
    r = fma(f, splat(QUARTER_PI_3), r)
    z = r * r
    p = splat(SIN_0)
    p = fma(p, z, splat(SIN_1))
    p = fma(p, z, splat(SIN_2))
    of_sine = fma(r * z, p, r)
    p = splat(COS_0)
    p = fma(p, z, splat(COS_1))
    p = fma(p, z, splat(COS_2))
    of_cosine = fma(z * z, p, fma(splat(-HALF), z, splat(ONE)))

    second_half = j > splat(INT_3)  # the upper half turn: both change sign
    j = select(second_half, j - splat(INT_4), j)
    swap = j == splat(INT_2)  # j is 0 or 2 here
    c = select(swap, of_sine, of_cosine)
    s = select(swap, of_cosine, of_sine)
    c = select(second_half ^ swap, -c, c)
    s = select(second_half, -s, s)
    return c, s


SQRT_2 = _float(0x3FB504F3)
GELU_CUBIC, GELU_SCALE = _float(0x3D372713), _float(0x3F4C422A)


@helper
def silu(x):
    """x / (1 + e**-x)."""
    return x / (exp(-x) + splat(ONE))


@helper
def gelu_erf(x):
    """x times the normal distribution function of x."""
    return (x * splat(HALF)) * (splat(ONE) + erf(x / splat(SQRT_2)))


@helper
def gelu_tanh(x):
    """The tanh approximation of ``gelu_erf``."""
    u = x + splat(GELU_CUBIC) * ((x * x) * x)
    return (x * splat(HALF)) * (splat(ONE) + tanh(splat(GELU_SCALE) * u))
