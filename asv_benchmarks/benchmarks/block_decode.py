"""One token through one block: mostly a reading of the weights."""

import numpy as np

from mojolearn import TransformerBlock
from mojolearn.options import BlockOptions

from .common import FORMATS, NAMES, Timed, filled_state, forward_of, random_block, random_input


class Step(Timed):
    """A single ``step`` behind ``cached`` tokens. Long caches are for sessions: see session.py."""

    param_names = ("shape", "weight_format", "cached")
    params = (NAMES, FORMATS, [128, 2048])

    def setup(self, shape, weight_format, cached):
        self.block = random_block(shape, weight_format)
        self.x, self.state = random_input(shape, 1), filled_state(self.block, cached)
        self.block.step(self.x, self.state)  # compile, touch

    def time_step(self, shape, weight_format, cached):
        self.block.step(self.x, self.state)


class Products(Timed):
    """The same block's seven matrix products of one row in NumPy."""

    param_names = ("shape",)
    params = (NAMES,)

    def setup(self, shape):
        self.call = forward_of(shape, "numpy", 1)
        self.call()

    def time_products(self, shape):
        self.call()


class Overhead(Timed):
    """A step of a tiny block: what Python, checks and launching cost."""

    param_names = ("d_model",)
    params = ([64],)

    def setup(self, d_model):
        options = {"n_heads": 4, "n_kv_heads": 2}
        shapes = BlockOptions(d_model=d_model, intermediate_size=2 * d_model, **options).weight_shapes()
        self.block = TransformerBlock({name: np.ones(s, np.float32) for name, s in shapes.items()}, **options)
        self.x, self.state = np.ones((1, 1, d_model), np.float32), self.block.allocate_state(1, 1000)
        self.hundred_steps()

    def hundred_steps(self):
        for _ in range(100):
            self.block.step(self.x, self.state)

    def time_hundred_steps(self, d_model):
        self.hundred_steps()
