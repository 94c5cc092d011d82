"""The norm of rows, and elementary functions over registers."""

import functools

import numba
import numpy as np

from mojolearn._jit import LANES
from mojolearn.kernels import simd, vmath
from mojolearn.layers import Norm

from .common import NAMES, SHAPES, Timed, fast, skip_if, torch

NUMPY = {"exp": np.exp, "tanh": np.tanh, "silu": lambda x: x / (1 + np.exp(-x)), "gelu_erf": None}


@functools.cache
def mapped(name):
    """A kernel that applies a function of `mojolearn.kernels.vmath` to whole registers: (a, out)."""
    function = getattr(vmath, name)

    @numba.njit(error_model="numpy")
    def run(a, out):
        for i in range(0, a.size, LANES):
            simd.store(out, i, function(simd.load(a, i)))

    return run


class RMSNorm(Timed):
    param_names = ("shape", "rows", "library")
    params = (NAMES, [1, 512], fast("mojolearn", "numpy", slow=["torch"]))

    def setup(self, shape, rows, library):
        width = SHAPES[shape][0]
        x, gain = (
            np.random.default_rng(0).standard_normal((rows, width), np.float32),
            np.ones(width, np.float32),
        )
        if library == "torch":
            rms_norm, tokens, weight = torch().rms_norm, torch().from_numpy(x), torch().from_numpy(gain)
            self.call = lambda: rms_norm(tokens, (width,), weight, 1e-6)
        elif library == "numpy":
            self.call = lambda: gain * (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-6)))
        else:
            layer = Norm("rmsnorm", gain)
            self.call = lambda: layer(x)
        self.call()  # compile, touch

    def time_norm(self, shape, rows, library):
        self.call()


class Functions(Timed):
    """65536 numbers, which stay in the second cache; on one thread."""

    param_names = ("function", "library")
    params = (list(NUMPY), ["mojolearn", "numpy"])

    def setup(self, function, library):
        skip_if(library == "numpy" and NUMPY[function] is None)
        self.x = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
        if library == "numpy":
            self.call = NUMPY[function]
        else:
            out, kernel = np.empty_like(self.x), mapped(function)
            self.call = lambda x: kernel(x, out)
        self.call(self.x)  # compile, touch

    def time_function(self, function, library):
        self.call(self.x)
