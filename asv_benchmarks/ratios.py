"""Speed as ratios, measured in one run: the matrix product against OpenBLAS, decode against reading memory.

    python asv_benchmarks/ratios.py

Rivals take turns call by call and the median of many is compared, so a slow moment of the machine meets both. Each
line names what was measured, the ratio, and the figures behind it.
"""

import os
import time
from functools import partial

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported

import numba
import numpy as np
from numba import prange

from mojolearn import TransformerBlock, show_versions
from mojolearn._jit import LANES
from mojolearn.kernels.simd import load, splat, store
from mojolearn.layers import Linear, aligned_empty
from mojolearn.options import BlockOptions
from mojolearn.weights import narrow

PRODUCTS = [(96, 576, 576), (96, 1536, 576), (512, 2048, 2048)]  # rows, outputs, inputs
LLAMA_1B = {"d_model": 2048, "intermediate_size": 8192, "n_heads": 32, "n_kv_heads": 8}
CACHED = 128


@numba.njit(parallel=True, nogil=True)
def read(n_workers, a, out):
    """Read an array once, eight registers at a time: the speed of memory as a kernel sees it."""
    share = a.size // n_workers
    for worker in prange(n_workers):
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = splat(np.float32(0))
        for i in range(worker * share, (worker + 1) * share - 8 * LANES + 1, 8 * LANES):
            s0, s1 = s0 + load(a, i), s1 + load(a, i + LANES)
            s2, s3 = s2 + load(a, i + 2 * LANES), s3 + load(a, i + 3 * LANES)
            s4, s5 = s4 + load(a, i + 4 * LANES), s5 + load(a, i + 5 * LANES)
            s6, s7 = s6 + load(a, i + 6 * LANES), s7 + load(a, i + 7 * LANES)
        store(out, worker * LANES, ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(repeat, *calls):
    """Median seconds of each call; the calls take turns, after one call of each that does not count."""
    for call in calls:
        call()
    return np.median([[seconds(call) for call in calls] for _ in range(repeat)], axis=0)


def product(rng, m, n, k):
    """One thread: ``Linear`` against ``A @ W.T`` of OpenBLAS."""
    a, w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)
    layer = Linear(w)
    numba.set_num_threads(1)
    ours, blas = in_turns(31, lambda: layer(a), lambda: a @ w.T)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    flops = 2e-9 * m * n * k
    figures = f"{flops / ours:.0f} GFLOP/s, {flops / blas:.0f}"
    print(f"product {m} x {n} x {k}, 1 thread: {blas / ours:.2f} x OpenBLAS ({figures})")


def decode(rng, weight_format):
    """A step with 128 cached tokens at the shape of Llama-3.2-1B, against reading memory."""
    sizes = {
        "n_heads": LLAMA_1B["n_heads"],
        "n_kv_heads": LLAMA_1B["n_kv_heads"],
        "weight_format": weight_format,
    }
    shapes = BlockOptions(**LLAMA_1B).weight_shapes()
    weights = {
        name: rng.standard_normal(shape, np.float32) / np.float32(32) for name, shape in shapes.items()
    }
    weights = {name: narrow(w, weight_format) if w.ndim == 2 else w for name, w in weights.items()}
    block = TransformerBlock(weights, **sizes)
    state = block.allocate_state(1, 4096)
    block.forward(rng.standard_normal((1, CACHED, block.d_model), np.float32), state)
    keys, values, x = (
        state.k_cache.copy(),
        state.v_cache.copy(),
        rng.standard_normal((1, block.d_model), np.float32),
    )

    def step():
        block.step(x, state)

    def rewind():
        used = state.keys().size
        state.k_cache[:used], state.v_cache[:used] = keys[:used], values[:used]
        state.cached_tokens = CACHED

    big, out = aligned_empty(64 << 20), np.zeros(64 * LANES, np.float32)
    big[:] = 1
    nbytes = block.nbytes + 2 * 4 * CACHED * block.options.kv_width
    for threads in sorted({1, numba.config.NUMBA_NUM_THREADS}):
        numba.set_num_threads(threads)
        times = []
        for _ in range(41):
            rewind()
            times.append((seconds(step), seconds(partial(read, threads, big, out))))
        ours, reading = np.median(times[5:], axis=0)
        ours, reading = nbytes / ours * 1e-9, big.nbytes / reading * 1e-9
        print(
            f"step, {weight_format}, {threads} thread(s): {ours / reading:.2f} of the read bandwidth "
            f"({ours:.1f} GB/s, {reading:.1f})"
        )


def main():
    show_versions()
    rng = np.random.default_rng(0)
    for shape in PRODUCTS:
        product(rng, *shape)
    for weight_format in ("float32", "bfloat16"):
        decode(rng, weight_format)


if __name__ == "__main__":
    main()
