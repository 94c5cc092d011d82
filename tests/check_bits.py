"""Are the bits the same here?  Golden cases word by word, and hashes over random cases.

Run on another processor, another target of the compiler, other versions of NumPy and Numba, or another number of
threads, this must print the same lines: tests/test_targets.py, tests/arm64.sh and .ci/run do that. It needs only
NumPy and Numba, and few kinds of kernels, since an emulated processor takes long to compile each.
"""

import hashlib
import sys

import numpy as np
from golden import case_paths, load_case, replay
from support import bits, choose, first_options, make_block, random_options, uniform

from mojolearn import threads

RANDOM_CASES = 40  # of each mixture of options


def same(name, got, wanted):
    if got.shape != wanted.shape or not np.array_equal(bits(got), bits(wanted)):
        sys.exit(f"{name}: bits differ")


def check_golden(path):
    """Outputs, both buffers and the views of one golden case."""
    case = load_case(path)
    for i, (call, results) in enumerate(replay(case)):
        for name, result in results.items():
            same(f"{case.name}, call {i}, {name}", result, getattr(call, name))


def hash_random(mixture, seed, digest):
    """One random block, run in a few calls with a state; every output and both buffers go into the hash."""
    rng = np.random.default_rng(seed)
    options = mixture(rng)
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
    return block, rng


def hash_random_ragged(mixture, seed, digest):
    """The same, and then rows of different lengths without a state."""
    block, rng = hash_random(mixture, seed, digest)
    y = block.forward(uniform(rng, (3, 17, block.d_model), 2.0), lengths=rng.integers(1, 18, 3))
    digest.update(bits(y).astype("<u4").tobytes())


def main():
    threads.SMALL = 0  # with more than one thread, the smallest case takes the parallel twins too
    paths = case_paths("open")
    for path in paths:
        check_golden(path)
    print(f"golden cases: {len(paths)} equal in every bit")
    for name, run, mixture in (
        ("random cases", hash_random, first_options),
        ("random cases of all options", hash_random_ragged, random_options),
    ):
        digest = hashlib.sha256()
        for seed in range(RANDOM_CASES):
            run(mixture, seed, digest)
        print(f"{name}: {RANDOM_CASES}, {digest.hexdigest()}")


if __name__ == "__main__":
    main()
