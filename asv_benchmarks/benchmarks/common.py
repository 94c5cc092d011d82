"""What the benchmarks share: blocks at the shapes of real models, rivals, and reasons to skip a cell.

asv runs each cell in a process of its own and calls ``setup`` again before every timed call, so what is dear to make is
kept with ``functools.cache``.
"""

import functools
import os
import statistics
import time

import numba
import numpy as np
from rivals import SHAPES, matrices, random_input, random_matrix, random_weights, torch_block

from mojolearn import TransformerBlock, TransformerState
from mojolearn.options import BlockOptions
from mojolearn.weights import narrow

__all__ = ["SHAPES", "matrices", "random_input", "random_matrix", "random_weights"]

FAST_ONLY = os.environ.get("ASV_SKIP_SLOW", "0") != "0"  # for checks: leaves out what takes long


def fast(*values, slow=()):
    """Values of a parameter, the slow ones only in a whole run."""
    return [*values, *([] if FAST_ONLY else slow)]


NAMES = fast("SmolLM2-135M", "Qwen2.5-0.5B", slow=["Llama-3.2-1B"])  # of SHAPES
FORMATS = ["float32", "bfloat16"]
HEAD_DIM = 64  # of all shapes


class Timed:
    """How long to measure: at least 5 calls, then until 2 seconds have passed; everything is warm after ``setup``."""

    repeat = (5, 50, 2.0)
    warmup_time = 0


def skip_if(condition):
    """Skip the cell if something that it needs is missing."""
    if condition:
        raise NotImplementedError


@functools.cache
def torch():
    """The torch module with as many threads as Numba, where it is installed; otherwise skips the cell."""
    try:
        import torch
    except ImportError:
        raise NotImplementedError from None
    torch.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    return torch


@functools.cache
def random_block(shape, weight_format="float32"):
    """A `TransformerBlock` at the shape of a model."""
    _, _, n_heads, n_kv_heads = SHAPES[shape]
    weights = {
        name: narrow(w, weight_format) if w.ndim == 2 else w for name, w in random_weights(shape).items()
    }
    return TransformerBlock(weights, n_heads=n_heads, n_kv_heads=n_kv_heads, weight_format=weight_format)


@functools.cache
def thin_block(shape):
    """A block with the heads of a model and d_model 2: next to nothing but attention and cache."""
    _, _, n_heads, n_kv_heads = SHAPES[shape]
    options = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": HEAD_DIM}
    shapes = BlockOptions(d_model=2, intermediate_size=2, **options).weight_shapes()
    rng = np.random.default_rng(0)
    return TransformerBlock(
        {name: rng.standard_normal(s, np.float32) for name, s in shapes.items()}, **options
    )


@functools.cache
def _random_cache(size):
    return np.random.default_rng(2).standard_normal(size, np.float32)


def filled_state(block, cached, room=8):
    """A state that holds ``cached`` random tokens, and has room for some more."""
    capacity = cached + room
    buffers = [_random_cache(block.n_kv_heads * capacity * block.head_dim).copy() for _ in range(2)]
    return TransformerState(1, block.n_kv_heads, block.head_dim, capacity, *buffers, cached_tokens=cached)


@functools.cache
def forward_of(shape, library, length):
    """A call that runs a block over new tokens and gives its outputs.

    ``library``: "mojolearn", "mojolearn-bfloat16", "numpy" or "torch".

    numpy stands for the seven matrix products alone: a floor that no block on NumPy gets below.
    """
    x = random_input(shape, length)
    if library == "torch":
        tokens = torch().from_numpy(x)
        block = torch_block(random_weights(shape), *SHAPES[shape][2:])
        return lambda: block(tokens)
    if library == "numpy":
        products = [
            (random_matrix(length, n_in, 1), random_matrix(n_out, n_in))
            for n_out, n_in in matrices(shape).values()
        ]
        return lambda: [a @ w.T for a, w in products]
    block = random_block(shape, "bfloat16" if library.endswith("bfloat16") else "float32")
    return lambda: block.forward(x)


def median_seconds(call, repeat):
    """Median seconds of some calls: for ``track_`` benchmarks that print a rate."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
