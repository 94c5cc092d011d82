"""Memory that nobody has written yet is never read: whatever is found in it, the results have the same bits."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support import bits, make_block, random_options, uniform
from toy_models import write_model

from mojolearn import CausalLM, layers, threads
from mojolearn.models import BUILT_IN

HERE = Path(__file__).parent
POISONS = {"NaN": np.nan, "huge": 3e38, "zero": 0.0, "negative": -3e38}


class Poison:
    """Fills all new memory of the package, and the scratch that threads keep, with one value.

    The package asks NumPy for memory by the name ``np.empty``, and so do the kernels where they are not compiled. (A
    compiled kernel has memory of its own only for a few numbers that it writes first; the plain run covers these.)
    """

    def __init__(self, value):
        self.value, self.patch, self.count = value, pytest.MonkeyPatch(), 0

    def __enter__(self):
        self.patch.setattr(np, "empty", self._filled(np.empty))
        self.patch.setattr(np, "empty_like", self._filled(np.empty_like))
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("mojolearn") and hasattr(module, "scratch"):
                self.patch.setattr(module, "scratch", self._scratch)
        return self

    def __exit__(self, *exception):
        self.patch.undo()

    def _scratch(self, size):
        """Anew for each kernel call, poisoned, and with just the room that was asked for."""
        return layers.aligned_empty(size)

    def _filled(self, make):
        def poisoned(*arguments, **options):
            array = make(*arguments, **options)
            if array.dtype.kind == "f":
                array.fill(self.value)
            elif array.dtype.kind in "iu":
                array.view(np.uint8).fill(0xA5) if array.flags.c_contiguous else None
            self.count += 1
            return array

        return poisoned


def run_block(seed, digest):
    """One random block: prefill, steps, a session, a copy, rows of several lengths."""
    rng = np.random.default_rng(seed)
    block = make_block(**random_options(rng))
    B = int(rng.integers(1, 4))
    x = uniform(rng, (B, 40, block.d_model), 2.0)
    state, at = block.allocate_state(B, 40), 0
    for n in (int(rng.integers(1, 20)), 1, int(rng.integers(1, 6)), 1):
        digest.update(bits(block.forward(x[:, at : at + n], state)).tobytes())
        at += n
    with block.decode_session(state) as session:
        for n in (1, 1, int(rng.integers(2, 5)), 1):
            digest.update(bits(session.forward(x[:, at : at + n])).tobytes())
            at += n
    other = state.copy()
    digest.update(bits(block.step(x[:, at], other)).tobytes())
    digest.update(bits(block.forward(x[:, :9], lengths=rng.integers(1, 10, B))).tobytes())
    for each in (state, other):
        digest.update(bits(each.keys()).tobytes() + bits(each.values()).tobytes())


def run_model(lm, digest):
    """Logits, steps, sessions, text of rows of two lengths with log-probabilities, scores."""
    ids = [[1, 5, 9, 2, 6], [5, 3, 5, 8, 9]]
    state = lm.allocate_state(2, 16)
    digest.update(bits(lm.forward(ids, state)).tobytes())
    digest.update(bits(lm.step([3, 4], state)).tobytes())
    with lm.decode_session(state) as session:
        digest.update(bits(session.step([7, 8])).tobytes())
    rows, logprobs = lm.generate([[1, 5, 9], [2, 6]], 5, greedy=False, seed=3, top_k=12, top_p=0.95,
                                 repetition_penalty=1.2, logprobs=2)  # fmt: skip
    digest.update(np.concatenate(rows).astype("<i8").tobytes())
    for array in logprobs:
        digest.update(array.tobytes())
    digest.update(bits(np.concatenate(lm.score([[1, 5, 9, 2], [3, 1]]))).tobytes())


def mixture(seeds, models):
    digest = hashlib.sha256()
    for seed in seeds:
        run_block(seed, digest)
    for lm in models:
        run_model(lm, digest)
    return digest.hexdigest()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return CausalLM.load(BUILT_IN), CausalLM.load(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.long
@pytest.mark.parametrize("parallel", [False, True])
def test_whatever_is_in_new_memory(models, parallel, monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 0 if parallel else threads.SMALL)
    wanted = mixture(range(40), models)
    for value in POISONS.values():
        with Poison(value) as poison:
            assert mixture(range(40), models) == wanted
        assert poison.count > 1000


@pytest.mark.long
def test_weights_are_packed_over_whatever_is_in_memory(rng, monkeypatch):
    """Blocks and models are made while memory is poisoned, and run afterwards."""

    def made():
        return [make_block(**random_options(np.random.default_rng(seed))) for seed in range(30)]

    def run(blocks):
        return [bits(block(uniform(np.random.default_rng(1), (2, 5, block.d_model)))) for block in blocks]

    wanted = run(made())
    for value in POISONS.values():
        with Poison(value):
            blocks = made()
        for got, want in zip(run(blocks), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        for block, other in zip(blocks, made(), strict=True):
            for name, weight in block.weights().items():
                assert weight.tobytes() == other.weights()[name].tobytes()


def test_the_poison_works(monkeypatch):
    """A layer that leaves one number of its output unwritten is found out."""
    block = make_block()
    x = uniform(np.random.default_rng(0), (1, 3, 32))
    wanted = bits(block(x))
    original = layers.Linear.flat

    def leaky(self, x, n_rows, *residual):
        y = original(self, x, n_rows, *residual)
        y[-1] = np.empty(1, np.float32)[0]
        return y

    with Poison(1e3):
        np.testing.assert_array_equal(bits(block(x)), wanted)
        monkeypatch.setattr(layers.Linear, "flat", leaky)
        assert not np.array_equal(bits(block(x)), wanted)


@pytest.mark.long
def test_200_repeats_by_two_threads_give_one_hash(models):
    """Mixed calls from two Python threads, each on two threads of Numba where the machine has them."""
    lm, small = models
    blocks = [
        make_block(d_model=64, intermediate=96, n_heads=4, n_kv_heads=2, window=window) for window in (0, 5)
    ]
    x = uniform(np.random.default_rng(0), (2, 12, 64))

    def once(_):
        digest = hashlib.sha256()
        for block in blocks:
            state = block.allocate_state(2, 12)
            digest.update(bits(block.forward(x[:, :7], state)).tobytes())
            digest.update(bits(block.step(x[:, 7], state)).tobytes())
            with block.decode_session(state) as session:
                for t in range(8, 12):
                    digest.update(bits(session.step(x[:, t])).tobytes())
            digest.update(bits(block.forward(x, lengths=[12, 3])).tobytes())
            digest.update(state.keys().tobytes() + state.values().tobytes())
        run_model(small, digest)
        digest.update(bits(lm.forward([[0, 1818, 305]])).tobytes())
        return digest.hexdigest()

    threads_before, threads.SMALL = threads.SMALL, 0
    try:
        with ThreadPoolExecutor(2) as pool:
            assert len(set(pool.map(once, range(200)))) == 1
    finally:
        threads.SMALL = threads_before


@pytest.mark.long
def test_the_kernels_own_memory():
    """The same with kernels as plain Python, whose memory is poisoned too."""
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    }
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def main():
    from test_plain_python import outputs

    wanted = list(outputs())
    for value in POISONS.values():
        with Poison(value) as poison:
            got = list(outputs())
        if got != wanted or poison.count < 100:
            sys.exit(f"{value} in new memory: {got} instead of {wanted}, {poison.count} arrays")


if __name__ == "__main__":
    main()
