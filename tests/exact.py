"""float32 arithmetic by exact fractions: slow, obvious, and independent of the library that it judges."""

import math
from fractions import Fraction

import numpy as np


def from_bits(pattern):
    return np.uint32(pattern).view(np.float32)


def nearest(exact, zero_sign=0.0):
    """The float32 nearest to a Fraction, ties to even; `zero_sign` gives the sign of an exact zero."""
    if exact == 0:
        return np.float32(math.copysign(0.0, zero_sign))
    exponent = exact_exponent(abs(exact))
    quantum = Fraction(2) ** (max(exponent, -126) - 23)  # distance of neighbours, also below the normal range
    rounded = round(exact / quantum) * quantum  # Fraction rounds ties to even
    if abs(rounded) >= Fraction(2) ** 128:
        return np.float32(math.copysign(math.inf, exact))
    return np.float32(math.copysign(float(rounded), exact))


def exact_exponent(positive):
    """The e with 2**e <= positive < 2**(e + 1)."""
    e = positive.numerator.bit_length() - positive.denominator.bit_length()
    return e if positive >= Fraction(2) ** e else e - 1


def fma(a, b, c):
    """a * b + c of finite float32, rounded once."""
    product, addend = Fraction(float(a)) * Fraction(float(b)), Fraction(float(c))
    product_sign = math.copysign(1, a) * math.copysign(1, b)
    both_negative = product_sign < 0 and math.copysign(1, c) < 0
    return nearest(product + addend, -1.0 if both_negative and product == 0 and addend == 0 else 1.0)


def horner(patterns, x):
    p = from_bits(patterns[0])
    for pattern in patterns[1:]:
        p = fma(p, x, from_bits(pattern))
    return p


def exp(x):
    """exp_ of one float32, step by step as on the numerics page, section 7."""
    if np.isnan(x):
        return x
    if x > from_bits(0x42B17217):
        return np.float32(np.inf)
    if x < from_bits(0xC2AEAC50):
        return np.float32(0)
    n = math.floor(fma(x, from_bits(0x3FB8AA3B), 0.5))
    r = fma(n, from_bits(0xBF318000), x)
    r = fma(n, from_bits(0x395E8083), r)
    p = horner([0x39506967, 0x3AB743CE, 0x3C088908, 0x3D2AA9C1, 0x3E2AAAAA, 0x3F000000], r)
    y = Fraction(float(fma(p, np.float32(r * r), r) + np.float32(1)))
    y = nearest(Fraction(float(nearest(y * Fraction(2) ** (n >> 1)))) * Fraction(2) ** (n - (n >> 1)))
    return y if y >= from_bits(0x00800000) else np.float32(0)


def log(x):
    """log_ of one positive normal float32, step by step as on the numerics page, section 7."""
    pattern = int(np.float32(x).view(np.uint32))
    e = (pattern >> 23) - 126
    m = from_bits((pattern & 0x007FFFFF) | 0x3F000000)
    if m < from_bits(0x3F3504F3):
        e, m = e - 1, m + m
    t = m - np.float32(1)
    z = t * t
    p = horner(
        [0x3D9021BB, 0xBDEBD1B8, 0x3DEF251A, 0xBDFE5D4F, 0x3E11E9BF, 0xBE2AAE50, 0x3E4CCEAC, 0xBE7FFFFC,
         0x3EAAAAAA],
        t,
    )  # fmt: skip
    y = (t * z) * p
    y = fma(e, from_bits(0xB95E8083), y)
    y = fma(-0.5, z, y)
    return fma(e, from_bits(0x3F318000), t + y)


def power(theta, e):
    """pow of the numerics page, section 4."""
    return np.float32(1) if e == 0 else exp(np.float32(e) * log(theta))
