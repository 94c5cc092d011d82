"""The matrix product of rows: for one row it reads memory, for many it computes."""

import numpy as np

from mojolearn.layers import Linear
from mojolearn.weights import narrow

from .common import FORMATS, NAMES, Timed, fast, matrices, random_matrix, torch

MATRICES = {
    f"{shape} {name}": matrices(shape)[name] for shape in NAMES for name in ("gate_proj", "down_proj")
}


class Product(Timed):
    """``x @ weight.T`` in float32."""

    param_names = ("matrix", "rows", "library")
    params = (list(MATRICES), [1, 24, 512], fast("mojolearn", "numpy", slow=["torch"]))

    def setup(self, matrix, rows, library):
        n_out, n_in = MATRICES[matrix]
        x, w = random_matrix(rows, n_in, seed=1), random_matrix(n_out, n_in)
        if library == "torch":
            x, w = torch().from_numpy(x), torch().from_numpy(w)
            self.call = lambda: torch().nn.functional.linear(x, w)
        elif library == "numpy":
            self.call = lambda: x @ w.T
        else:
            layer = Linear(w)
            self.call = lambda: layer(x)
        self.call()  # compile, touch

    def time_product(self, matrix, rows, library):
        self.call()


class Pack(Timed):
    """Making a layer of a matrix: most of the time that loading a model takes."""

    param_names = ("weight_format",)
    params = (FORMATS,)

    def setup(self, weight_format):
        self.weight = narrow(random_matrix(*matrices("SmolLM2-135M")["gate_proj"]), weight_format)
        Linear(self.weight)(np.ones((1, self.weight.shape[1]), np.float32))

    def time_pack(self, weight_format):
        Linear(self.weight)
