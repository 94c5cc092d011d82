"""Are the bits the same here?  Golden cases word by word, and one hash over random cases.

Run on another processor, another target of the compiler, other versions of NumPy and Numba, or another number of
threads, this must print the same two lines: tests/test_targets.py, tests/arm64.sh and .ci/run do that. It needs only
NumPy and Numba, and few kinds of kernels, since an emulated processor takes long to compile each.
"""

import hashlib
import sys

import numpy as np
from golden import case_paths, load_case
from support import bits, choose, make_block, random_options, uniform

from mojolearn import TransformerBlock, threads

RANDOM_CASES = 40


def same(name, got, wanted):
    if got.shape != wanted.shape or not np.array_equal(bits(got), bits(wanted)):
        sys.exit(f"{name}: bits differ")


def check_golden(path):
    """Outputs, both buffers and the views of one golden case."""
    case = load_case(path)
    block = TransformerBlock(case.weights, **case.options)
    state = None
    if case.max_tokens is not None:
        state = block.allocate_state(case.batch, case.max_tokens)
        if case.init_cached_tokens is not None:
            state.k_cache[:], state.v_cache[:] = case.init_k_cache, case.init_v_cache
            state.cached_tokens = case.init_cached_tokens
    for i, call in enumerate(case.calls):
        name = f"{case.name}, call {i}"
        if call.kind == "lengths":
            y = block.forward(call.x, lengths=call.lengths)
        else:
            y = getattr(block, call.kind)(call.x, state)
        same(f"{name}, output", y, call.y)
        if state is not None:
            assert state.cached_tokens == call.cached_tokens, name
            same(f"{name}, k_cache", state.k_cache, call.k_cache)
            same(f"{name}, v_cache", state.v_cache, call.v_cache)
            same(f"{name}, keys", state.keys(), call.keys)
            same(f"{name}, values", state.values(), call.values)


def hash_random(seed, digest):
    """One random block, run in a few calls with a state; every output and both buffers go into the hash."""
    rng = np.random.default_rng(seed)
    options = random_options(rng)
    block = make_block(**options)
    batch = int(rng.integers(1, 4))
    state = block.allocate_state(batch, max_tokens=24 if block.window == 0 else 2**20)
    if block.window:  # a ring of zeros may begin anywhere: also where angles need the float64 recipe
        state.cached_tokens = choose(rng, 0, 8190, 10**6)
    for length in (int(rng.integers(1, 12)), 1, int(rng.integers(1, 8)), 1):
        y = block.forward(uniform(rng, (batch, length, options["d_model"]), 2.0), state)
        assert np.isfinite(y).all(), options
        digest.update(bits(y).astype("<u4").tobytes())
    for buffer in (state.k_cache, state.v_cache):
        digest.update(bits(buffer).astype("<u4").tobytes())


def main():
    threads.SMALL = 0  # with more than one thread, the smallest case takes the parallel twins too
    paths = case_paths("open")
    for path in paths:
        check_golden(path)
    print(f"golden cases: {len(paths)} equal in every bit")
    digest = hashlib.sha256()
    for seed in range(RANDOM_CASES):
        hash_random(seed, digest)
    print(f"random cases: {RANDOM_CASES}, {digest.hexdigest()}")


if __name__ == "__main__":
    main()
