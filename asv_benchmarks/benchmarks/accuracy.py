"""How far results are from those of exact arithmetic: speed must not come from here."""

import numpy as np

from mojolearn.reference import reference_block

from .common import NAMES, SHAPES, Timed, fast, forward_of, random_input, random_weights
from .norm_and_vmath import mapped

PROMPT = 64
EXACT = {"exp": np.exp, "tanh": np.tanh, "silu": lambda x: x / (1 + np.exp(-x))}


def reference(shape, dtype):
    """Outputs of the block in plain NumPy."""
    options = {"n_heads": SHAPES[shape][2], "n_kv_heads": SHAPES[shape][3]}
    return reference_block(random_input(shape, PROMPT), random_weights(shape), options, dtype=dtype)[0]


class Forward(Timed):
    """A block over 64 tokens; the error is the largest, over the largest output. numpy: the reference in float32."""

    param_names = ("shape", "library")
    params = (NAMES, fast("mojolearn", "mojolearn-bfloat16", "numpy", slow=["torch"]))
    unit = "of the largest output"

    def setup(self, shape, library):
        if library == "numpy":
            self.call = lambda: reference(shape, np.float32)
        else:
            self.call = forward_of(shape, library, PROMPT)
        self.call()  # compile, touch

    def track_largest_error(self, shape, library):
        exact = reference(shape, np.float64)
        return float(np.abs(np.asarray(self.call()) - exact).max() / np.abs(exact).max())

    def time_forward(self, shape, library):
        self.call()


class Functions:
    """The largest error over the numbers in [-10, 10], in units in the last place of the result."""

    param_names = ("function", "library")
    params = (list(EXACT), ["mojolearn", "numpy"])
    unit = "units in the last place"

    def track_largest_error(self, function, library):
        x = np.linspace(-10, 10, 1 << 18, dtype=np.float32)
        exact = EXACT[function](x.astype(np.float64))
        if library == "numpy":
            y = EXACT[function](x)
        else:
            y = np.empty_like(x)
            mapped(function)(x, y)
        return float(np.max(np.abs(y - exact) / np.spacing(np.abs(exact).astype(np.float32))))
