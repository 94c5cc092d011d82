"""Causal attention with grouped queries, in the blocks of real models but without their matrices.

mojolearn's time holds the whole of a block with d_model 2, rotary positions and checks included; the rivals get
queries, keys and values ready made.
"""

import functools

import numpy as np

from mojolearn import reference
from mojolearn.options import BlockOptions

from .common import HEAD_DIM, NAMES, SHAPES, Timed, fast, filled_state, thin_block, torch

LIBRARIES = fast("mojolearn", "numpy", slow=["torch"])
ONE_TOKEN = np.ones((1, 1, 2), np.float32)


@functools.cache
def ready_made(shape, queries, keys):
    """Queries, keys and values (1, heads, tokens, HEAD_DIM)."""
    _, _, n_heads, n_kv_heads = SHAPES[shape]
    rng = np.random.default_rng(0)
    sizes = ((n_heads, queries), (n_kv_heads, keys), (n_kv_heads, keys))
    return [rng.standard_normal((1, *size, HEAD_DIM), np.float32) for size in sizes]


def rival(shape, queries, keys, library):
    """A call of the rival's attention for the last ``queries`` of ``keys`` positions."""
    arrays = ready_made(shape, queries, keys)
    if library == "torch":
        q, k, v = map(torch().from_numpy, arrays)
        attention = torch().nn.functional.scaled_dot_product_attention
        return lambda: attention(q, k, v, is_causal=queries > 1, enable_gqa=True)
    d_model, intermediate_size, n_heads, n_kv_heads = SHAPES[shape]
    options = BlockOptions(
        d_model=d_model, intermediate_size=intermediate_size, n_heads=n_heads, n_kv_heads=n_kv_heads
    )
    positions = np.arange(keys - queries, keys)
    return lambda: reference.attend(*arrays, positions, options)


class Prefill(Timed):
    """All tokens of a prompt at once."""

    param_names = ("shape", "prompt", "library")
    params = (NAMES, fast(128, slow=[1024]), LIBRARIES)

    def setup(self, shape, prompt, library):
        if library == "mojolearn":
            block, x = thin_block(shape), np.ones((1, prompt, 2), np.float32)
            self.call = lambda: block.forward(x)
        else:
            self.call = rival(shape, prompt, prompt, library)
        self.call()  # compile, touch

    def time_attention(self, shape, prompt, library):
        self.call()


class Decode(Timed):
    """One token behind a cache, in a session."""

    param_names = ("shape", "cached", "library")
    params = (NAMES, fast(128, 2048, slow=[8192]), LIBRARIES)
    number = 1

    def setup(self, shape, cached, library):
        if library == "mojolearn":
            session = thin_block(shape).decode_session(filled_state(thin_block(shape), cached))
            self.call = lambda: session.step(ONE_TOKEN)
        else:
            self.call = rival(shape, 1, cached, library)
        self.call()  # compile, touch

    def time_attention(self, shape, cached, library):
        self.call()
