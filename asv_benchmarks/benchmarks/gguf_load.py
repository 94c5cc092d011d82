"""How fast tensors in blocks, as GGUF files hold them, become float32; the package gguf at one go beside it."""

import numpy as np

from mojolearn.models.gguf_quants import PLAIN, TYPES, decode

from .common import Timed, fast, skip_if

ROWS, COLUMNS = 4096, 1024  # 4 M values, 16 MB


def whole(data, kind, shape, where):
    """All rows in one call."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return dequantize(data.reshape(shape[0], -1), GGMLQuantizationType[kind])


class Decode(Timed):
    """A matrix of 4096 times 1024 values."""

    param_names = ("type", "library")
    params = (
        fast("Q8_0", "Q4_K", slow=[k for k in TYPES if k not in (*PLAIN, "Q8_0", "Q4_K")]),
        ["mojolearn", "gguf"],
    )

    def setup(self, kind, library):
        try:
            import gguf  # noqa: F401
        except ImportError:
            skip_if(True)
        bytes_ = np.zeros(ROWS * COLUMNS // TYPES[kind].values * TYPES[kind].bytes, np.uint8)
        bytes_[:] = np.arange(bytes_.size) % 61  # scales that are ordinary numbers
        call = decode if library == "mojolearn" else whole
        self.call = lambda: call(bytes_, kind, (ROWS, COLUMNS), "x")
        self.call()

    def time_decode(self, kind, library):
        self.call()

    def peakmem_decode(self, kind, library):
        self.call()
