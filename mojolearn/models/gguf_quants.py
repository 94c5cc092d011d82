"""The types of tensors in GGUF files, and their values as float32.

Types in blocks are decoded by the package ``gguf``, which is imported when the first of them is met.
"""

from typing import NamedTuple

import numpy as np

CHUNK = 2**18  # values decoded at a time: what decoding needs beyond its result stays small


class Type(NamedTuple):
    """How a type of tensor is stored: its number, and the values and bytes of one block."""

    number: int
    values: int
    bytes: int


TYPES = {
    "F32": Type(0, 1, 4),
    "F16": Type(1, 1, 2),
    "BF16": Type(30, 1, 2),
    "Q4_0": Type(2, 32, 18),
    "Q4_1": Type(3, 32, 20),
    "Q5_0": Type(6, 32, 22),
    "Q5_1": Type(7, 32, 24),
    "Q8_0": Type(8, 32, 34),
    "Q2_K": Type(10, 256, 84),
    "Q3_K": Type(11, 256, 110),
    "Q4_K": Type(12, 256, 144),
    "Q5_K": Type(13, 256, 176),
    "Q6_K": Type(14, 256, 210),
    "IQ4_NL": Type(20, 32, 18),
    "IQ4_XS": Type(23, 256, 136),
}
PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}  # bfloat16 as its bits

# Names of types that are not read, by number, for messages.
OTHER_TYPES = dict(
    (
        *((9, "Q8_1"), (15, "Q8_K"), (16, "IQ2_XXS"), (17, "IQ2_XS"), (18, "IQ3_XXS"), (19, "IQ1_S")),
        *((21, "IQ3_S"), (22, "IQ2_S"), (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"), (28, "F64")),
        *((29, "IQ1_M"), (34, "TQ1_0"), (35, "TQ2_0"), (39, "MXFP4"), (40, "NVFP4")),
    )
)


def check_readable(kind, where):
    """Raise ``ImportError`` for a type that comes in blocks if the package gguf is not installed."""
    if kind in PLAIN:
        return
    try:
        import gguf.quants  # noqa: F401
    except ImportError:
        raise ImportError(
            f"{where} is of type {kind}, which takes the package gguf; `pip install mojolearn-numba[gguf]` does it"
        ) from None


def decode(data, kind, shape, where):
    """Turn the bytes of a tensor into its values.

    Parameters
    ----------
    data : ndarray of uint8
        Whole rows, in the memory of the file.
    kind : str
        A key of `TYPES`.
    shape : tuple of int
        The shape of the values.
    where : str
        What messages start with.

    Returns
    -------
    ndarray of float32, float16, or uint16 holding the bits of bfloat16
        Plain types as they are stored, in the memory of `data`; blocks as float32, in memory of its own.

    Raises
    ------
    ImportError
        The type comes in blocks, and the package gguf is not installed.
    """
    if kind in PLAIN:
        array = data.view(PLAIN[kind]) if data.ctypes.data % 4 == 0 else data.copy().view(PLAIN[kind])
        return array.reshape(shape)
    check_readable(kind, where)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    values = np.empty(shape, np.float32)
    rows = values.reshape(-1, shape[-1])
    data = data.reshape(len(rows), -1)
    step = max(1, CHUNK // shape[-1])
    with np.errstate(all="ignore"):  # infinite scales; a block of the model refuses what is not finite
        for first in range(0, len(rows), step):
            rows[first : first + step] = dequantize(data[first : first + step], GGMLQuantizationType[kind])
    return values
