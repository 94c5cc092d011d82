"""Rotary position embedding: how fast each pair of columns turns, plain or scaled (docs numerics, section 4).

A head's column i is paired with column i + R/2, where R is ``rope_dim``. At position p the pair is rotated by
the angle p * f[i]. This file computes the frequencies f once per block; the kernels multiply and rotate.
"""

from collections.abc import Mapping

import numpy as np

from mojolearn.float32 import power
from mojolearn.scalars import admit_integer, admit_positive, did_you_mean, shown

# The types of rope_scaling and, in the order in which we keep them, their keys besides "type".
SCALINGS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
TWO_PI = np.uint32(0x40C90FDB).view(np.float32)


def admit_rope_scaling(given, name, method):
    """Check the option `rope_scaling` and bring it into one form.

    Parameters
    ----------
    given : dict or None
        As users write it: with "type" or "rope_type", numbers of Python or NumPy.
    name, method : str
        Name of the option and public name of the class, for messages.

    Returns
    -------
    dict or None
        A new dict with "type" first, then its keys in a fixed order; None when the type is "default".

    Raises
    ------
    TypeError
        If `given` is neither None nor a mapping.
    ValueError
        For an unknown type, and for a missing, unknown or unusable entry.

    Examples
    --------
    >>> admit_rope_scaling({"factor": 2, "rope_type": "linear"}, "rope_scaling", "TransformerBlock")
    {'type': 'linear', 'factor': 2.0}
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"{method}: {name} must be None or a dict, not {shown(given)}")
    entries = dict(given)
    spelt = [key for key in ("type", "rope_type") if key in entries]
    spellings = [entries.pop(key) for key in spelt]
    allowed = ", ".join(map(repr, SCALINGS))
    if not spellings:
        raise ValueError(f'{method}: {name}={shown(given)} lacks the key "type", one of {allowed}')
    rope_type = spellings[0]
    if rope_type != spellings[-1]:
        raise ValueError(
            f'{method}: {name} has "type" {rope_type!r} but "rope_type" {spellings[-1]!r}; these are two '
            "spellings of one key, give one of them"
        )
    if not isinstance(rope_type, str) or rope_type not in SCALINGS:
        raise ValueError(f'{method}: {name}["{spelt[0]}"] must be one of {allowed}, not {shown(rope_type)}')
    keys = SCALINGS[rope_type]
    for key, value in entries.items():
        if key not in keys:
            known = ", ".join(map(repr, keys)) or "none"
            raise ValueError(
                f"{method}: {name} has the unknown key {key!r} = {shown(value)}{did_you_mean(key, keys)}; "
                f"keys of the type {rope_type!r} besides the type: {known}"
            )
    admitted = {"type": str(rope_type)}
    for key in keys:
        if key not in entries:
            raise ValueError(f"{method}: {name} of type {rope_type!r} lacks the key {key!r}")
        try:
            value = admit_positive(entries[key], f'{name}["{key}"]', method)
            if key == "original_max_position_embeddings":
                value = admit_integer(entries[key], f'{name}["{key}"]', method, 1)
        except TypeError as error:  # of the option, the dict, this is a wrong value
            raise ValueError(str(error)) from None
        admitted[key] = value
    if rope_type == "llama3":
        low, high = admitted["low_freq_factor"], admitted["high_freq_factor"]
        if np.float32(high) <= np.float32(low):
            raise ValueError(
                f'{method}: {name}["high_freq_factor"]={high} must be above {name}["low_freq_factor"]={low}, '
                "also when both are rounded to float32"
            )
    return admitted if keys else None


def inverse_frequencies(options):
    """Compute the angle per position of every rotated pair of columns, in float32 with fixed bits.

    Parameters
    ----------
    options : BlockOptions
        Of which ``rope_theta``, ``rope_dim`` and ``rope_scaling`` count.

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
    Docs numerics, section 4: every operation is one of float32 and rounds once.

    Examples
    --------
    >>> from mojolearn.options import BlockOptions
    >>> inverse_frequencies(BlockOptions(d_model=8, intermediate_size=16, n_heads=2))
    array([1.  , 0.01], dtype=float32)
    """
    exponent = np.arange(0, options.rope_dim, 2, dtype=np.float32) / np.float32(options.rope_dim)
    with np.errstate(all="ignore"):
        f = np.float32(1) / power(np.float32(options.rope_theta), exponent)
        f = _scaled(f, options.rope_scaling)
        largest_angles = f * np.float32(2**24)  # positions stay below this
    if not np.isfinite(largest_angles).all():
        raise ValueError(
            f"TransformerBlock: rope_theta={options.rope_theta} with rope_scaling={options.rope_scaling} "
            "gives angles of rotation that float32 cannot hold"
        )
    return f


def _scaled(f, scaling):
    """The frequencies `f` after `scaling`, a dict in the form of `admit_rope_scaling`."""
    if scaling is None:
        return f
    factor = np.float32(scaling["factor"])
    if scaling["type"] == "linear":
        return f / factor
    low = np.float32(scaling["low_freq_factor"])
    high = np.float32(scaling["high_freq_factor"])
    original = np.float32(scaling["original_max_position_embeddings"])
    wavelength = TWO_PI / f
    smooth = (original / wavelength - low) / (high - low)
    between = ((np.float32(1) - smooth) * f) / factor + smooth * f
    unslowed = np.where(wavelength < original / high, f, between)
    return np.where(wavelength > original / low, f / factor, unslowed)
