"""Hashes that tell whether two blocks compute the same: over their arithmetic and every weight."""

import hashlib
import json

import numpy as np

from mojolearn._version import NUMERICS_VERSION
from mojolearn.weights import widen

# Options that change no output: a ceiling, and how weights are stored.
ASIDE = {"max_positions", "weight_format"}
PIECE = 4096  # rows widened at a time


def new_digest():
    """A SHA-256 that knows the version of the numerics."""
    return hashlib.sha256(NUMERICS_VERSION.encode())


def block_fingerprint(block):
    """Compute the fingerprint of a block.

    Parameters
    ----------
    block : TransformerBlock
        The block; every weight is read.

    Returns
    -------
    str
        64 hexadecimal digits: SHA-256 over the version of the numerics, the options that enter the arithmetic, and the
        float32 values of every weight. A block stored narrow and the same values stored wide agree.
    """
    digest = new_digest()
    add_block(digest, block)
    return digest.hexdigest()


def add_block(digest, block):
    """Add a block's options and weights."""
    options = block.options.as_dict()
    add_json(digest, {key: options[key] for key in options if key not in ASIDE})
    for name, weight in sorted(block.weights().items()):
        add_array(digest, name, weight)


def add_array(digest, name, array):
    """Add an array: its name, its shape, and its values as float32."""
    add_json(digest, [name, array.shape])
    for first in range(0, len(array), PIECE):
        values = np.ascontiguousarray(widen(array[first : first + PIECE]))
        digest.update(values.astype("<f4", copy=False))


def add_json(digest, value):
    """Add anything that can be written as JSON."""
    digest.update(json.dumps(value, sort_keys=True, default=_plain).encode())


def _plain(value):
    """NumPy numbers, and mappings that are no dict, in words of JSON."""
    return value.item() if isinstance(value, np.generic) else dict(value)
