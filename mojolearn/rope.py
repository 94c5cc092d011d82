"""Rotary position embedding: how fast each pair of columns turns, plain or scaled (docs numerics, section 4).

Of a head's first R columns, where R is ``rope_dim``, pair i is rotated by the angle p * f[i] at position p. This file
computes the frequencies f; the kernels multiply and rotate.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext

import numpy as np

from mojolearn.float32 import power
from mojolearn.rope_scaling import BY_LENGTH, ORIGINAL

ZERO, ONE = np.float32(0), np.float32(1)
TWO_PI = np.uint32(0x40C90FDB).view(np.float32)
DIGITS = Context(prec=50)  # decimal logarithms are rounded correctly, on every machine
TWO_PI_DIGITS = 2 * Decimal("3.14159265358979323846264338327950288419716939937511")


def chosen_length(options, length):
    """The length for which `inverse_frequencies` of a sequence of ``length`` tokens are computed.

    Parameters
    ----------
    options : BlockOptions
        Of which ``rope_dim`` and ``rope_scaling`` count.
    length : int
        Number of tokens: of the row in a call without a state, otherwise the state's ``max_tokens``.

    Returns
    -------
    int
        0 where ``length`` makes no difference or is within the original context; sequences of equal chosen lengths
        have equal frequencies.
    """
    scaling = options.rope_scaling
    if (
        options.rope_dim == 0
        or scaling is None
        or scaling["type"] not in BY_LENGTH
        or length <= scaling[ORIGINAL]
    ):
        return 0
    return length if scaling["type"] == "dynamic" else scaling[ORIGINAL] + 1


def inverse_frequencies(options, length=0):
    """Compute the angle per position of every rotated pair of columns, in float32 with fixed bits.

    Parameters
    ----------
    options : BlockOptions
        Of which ``rope_theta``, ``rope_dim`` and ``rope_scaling`` count.
    length : int, default 0
        Number of tokens, by which the scalings "dynamic" and "longrope" choose.

    Returns
    -------
    ndarray of float32, shape (rope_dim // 2,)
        The frequencies, ``theta ** (-2 i / rope_dim)`` before scaling.

    Raises
    ------
    ValueError
        If extreme options give angles that float32 cannot hold.

    Notes
    -----
    Docs numerics, section 4: every operation is one of float32 and rounds once, but for the ends of the ramp of "yarn".

    Examples
    --------
    >>> from mojolearn.options import BlockOptions
    >>> inverse_frequencies(BlockOptions(d_model=8, intermediate_size=16, n_heads=2))
    array([1.  , 0.01], dtype=float32)
    """
    exponent = np.arange(0, options.rope_dim, 2, dtype=np.float32) / np.float32(options.rope_dim)
    scaling = options.rope_scaling
    with np.errstate(all="ignore"):
        theta = np.float32(options.rope_theta)
        if scaling is not None and scaling["type"] == "dynamic" and chosen_length(options, length):
            theta = _stretched(theta, options.rope_dim, scaling, length)
        f = ONE / power(theta, exponent)
        if scaling is not None and f.size:
            f = SCALED[scaling["type"]](f, options, length)
        largest_angles = f * np.float32(2**24)  # positions stay below this
    if not (np.isfinite(theta) and np.isfinite(largest_angles).all()):
        raise ValueError(
            f"TransformerBlock: rope_theta={options.rope_theta} with rope_scaling={scaling} gives angles of rotation "
            "that float32 cannot hold"
        )
    return f


def attention_factor(options):
    """Factor of the cosines and sines of the rotation, and so of q and k: 1 but for "yarn" and "longrope".

    Parameters
    ----------
    options : BlockOptions
        Of which ``rope_scaling`` counts.

    Returns
    -------
    float32
        That given, or the published function of ``factor``, rounded to float64 and then to float32.

    Examples
    --------
    >>> from mojolearn.options import BlockOptions
    >>> yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    >>> float(attention_factor(BlockOptions(d_model=8, intermediate_size=16, n_heads=2, rope_scaling=yarn)))
    1.13862943649292
    """
    scaling = options.rope_scaling or {"type": "default"}
    if "attention_factor" in scaling:
        return np.float32(scaling["attention_factor"])
    if scaling["type"] not in ("yarn", "longrope") or np.float32(scaling["factor"]) <= 1:
        return ONE
    with localcontext(DIGITS):
        logarithm = _exactly(scaling["factor"]).ln()
        if scaling["type"] == "longrope":
            value = (1 + logarithm / Decimal(scaling[ORIGINAL]).ln()).sqrt()
        elif "mscale" in scaling and "mscale_all_dim" in scaling:
            above, below = (_exactly(scaling[key]) for key in ("mscale", "mscale_all_dim"))
            value = (1 + above * logarithm / 10) / (1 + below * logarithm / 10)
        else:
            value = 1 + logarithm / 10
        return np.float32(float(value))


def _exactly(number):
    """The float32 nearest to a number, as a decimal."""
    return Decimal(float(np.float32(number)))


def _stretched(theta, rope_dim, scaling, length):
    """The base of "dynamic" for sequences longer than the original context."""
    original = np.float32(scaling[ORIGINAL])
    growth = ONE + np.float32(scaling["factor"]) * (np.float32(length - scaling[ORIGINAL]) / original)
    return theta * power(growth, np.float32(rope_dim) / np.float32(rope_dim - 2))


def _slowed(f, options, length):
    return f / np.float32(options.rope_scaling["factor"])


def _unchanged(f, options, length):
    return f


def _three_bands(f, options, length):
    """llama3: fast pairs stay, slow ones are slowed down, and there is a smooth way from the ones to the others."""
    scaling = options.rope_scaling
    factor = np.float32(scaling["factor"])
    low = np.float32(scaling["low_freq_factor"])
    high = np.float32(scaling["high_freq_factor"])
    original = np.float32(scaling[ORIGINAL])
    wavelength = TWO_PI / f
    smooth = (original / wavelength - low) / (high - low)
    between = ((ONE - smooth) * f) / factor + smooth * f
    unslowed = np.where(wavelength < original / high, f, between)
    return np.where(wavelength > original / low, f / factor, unslowed)


def _ramp(f, options, length):
    """yarn: pairs that turn often within the original context stay, others are slowed down, with a ramp between."""
    scaling = options.rope_scaling
    with localcontext(DIGITS):
        # The pair (a real number) that turns so often: R ln(original / (2 pi turns)) / (2 ln theta).
        scale = options.rope_dim / (2 * _exactly(options.rope_theta).ln())
        low, high = (
            scale * (scaling[ORIGINAL] / (TWO_PI_DIGITS * _exactly(scaling[key]))).ln()
            for key in ("beta_fast", "beta_slow")
        )
        if scaling["truncate"]:
            low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
        low, high = max(low, Decimal(0)), min(high, Decimal(options.rope_dim - 1))
    low, high = np.float32(float(low)), np.float32(float(high))
    if low == high:
        high = low + np.float32(0.001)
    pair = np.arange(f.size, dtype=np.float32)
    ramp = np.clip((pair - low) / (high - low), ZERO, ONE)
    return ramp * (f / np.float32(scaling["factor"])) + (ONE - ramp) * f


def _long_or_short(f, options, length):
    """longrope: a divisor for every pair, of two lists."""
    key = "long_factor" if chosen_length(options, length) else "short_factor"
    return f / np.array(options.rope_scaling[key], np.float32)


SCALED = {
    "linear": _slowed,
    "llama3": _three_bands,
    "dynamic": _unchanged,
    "yarn": _ramp,
    "longrope": _long_or_short,
}
