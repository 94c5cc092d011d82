"""Threads of Numba and of Python, forks, and a machine that is busy: no crash, and the same bits."""

import contextlib
import os
import pickle
import platform
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
from support import bits, make_block, make_weights, uniform

import mojolearn
from mojolearn import CausalLM, TransformerBlock, threads
from mojolearn.models import BUILT_IN

# What every script below begins with: a block whose calls take the parallel twins, and what they should give.
PRELUDE = """
import os, sys
import numpy as np
from support import bits, make_block, uniform
import mojolearn
from mojolearn import CausalLM, threads
from mojolearn.models import BUILT_IN
threads.SMALL = 0
block = make_block(d_model=64, intermediate=96, n_heads=4, n_kv_heads=2)
x = uniform(np.random.default_rng(0), (1, 9, 64))

def run():
    state = block.allocate_state(1, 9)
    y = [block.forward(x[:, :6], state)] + [block.step(x[:, t], state) for t in range(6, 9)]
    return bits(np.concatenate(y, axis=1)).tobytes()

wanted = run()
"""


def script(body, **environment):
    """Run a script in a process of its own; returns its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + textwrap.dedent(body)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


MANY_THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    results = set(pool.map(lambda _: run(), range(40)))
import numba
print(results == {wanted}, numba.threading_layer())
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "layer",
    [
        "workqueue",
        "omp",
        pytest.param(
            "tbb",
            marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="TBB has wheels for x86-64 only"),
        ),
    ],
)
def test_python_threads_share_a_block_on_every_layer(layer):
    environment = {"NUMBA_THREADING_LAYER": layer}
    if layer == "tbb":  # pip puts its library where the loader does not look by itself
        environment["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")
    assert script(MANY_THREADS, **environment) == f"True {layer}"


@pytest.mark.long
def test_a_child_forked_before_the_first_parallel_call_has_threads_of_its_own():
    body = """
    import os
    from mojolearn import threads
    child = os.fork()
    if child == 0:
        os._exit(0 if threads.workers(10**9) == 2 else 1)
    print(os.waitpid(child, 0)[1] == 0)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(body)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.long
def test_a_forked_child_goes_on_with_the_same_bits():
    assert (
        script("""
        child = os.fork()
        if child == 0:
            os._exit(0 if run() == wanted else 1)
        print(os.waitpid(child, 0)[1] == 0 and run() == wanted)
        """)
        == "True"
    )


@pytest.mark.long
def test_a_threading_layer_that_is_not_there_means_one_thread():
    body = "print(run() == wanted and threads.workers(10**9) == 1)"
    assert (
        script(body, NUMBA_THREADING_LAYER="tbb", NUMBA_THREADING_LAYER_PRIORITY="tbb omp workqueue")
        == "True"
    )


def test_python_threads_with_states_of_their_own(rng):
    block = make_block(d_model=64, intermediate=96, n_heads=4, n_kv_heads=2)
    x = uniform(rng, (8, 9, 64))
    wanted = bits(block(x))

    def decode(row):
        state = block.allocate_state(1, 9)
        with block.decode_session(state) as session:
            return bits(np.concatenate([session.step(x[row : row + 1, t]) for t in range(9)], axis=1))

    with ThreadPoolExecutor(4) as pool:
        for row, y in enumerate(pool.map(decode, range(8))):
            np.testing.assert_array_equal(y, wanted[row : row + 1])


def test_the_setting_of_the_callers_thread_counts():
    most = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        assert threads.workers(10**9) == 1
        numba.set_num_threads(most)
        assert threads.workers(10**9) == most
        assert threads.workers(threads.SMALL - 1) == 1
    finally:
        numba.set_num_threads(most)


def test_a_stalled_call_is_followed_by_a_pause_that_grows_and_heals(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    pause = threads._Pause()
    monkeypatch.setattr(threads, "_pause", pause)

    class Twin:
        """Of a kernel: says which one was called."""

        def __init__(self, name, signatures=("compiled",)):
            self.name, self.signatures = name, signatures

        def __call__(self, n_workers):
            return self.name

    parallel = Twin("parallel")

    def called(serial=Twin("serial")):  # noqa: B008
        return threads.run(serial, parallel, 2, 10**9)

    def stall(times):
        for _ in range(times):
            pause.note(seconds=5e-3, work=200_000)  # waited for a time slice

    pause.note(seconds=50e-6, work=200_000)  # an ordinary call
    stall(threads.ENOUGH_STALLS - 1)
    assert called() == "parallel"
    stall(2)  # an ordinary call came between
    assert called() == "serial"
    assert (
        called(Twin("serial", signatures=())) == "parallel"
    )  # compiling it would take longer than the stalls
    now[0] += threads.SHORTEST_PAUSE
    assert called() == "parallel"
    stall(20 * threads.ENOUGH_STALLS)
    now[0] += threads.LONGEST_PAUSE / 2
    assert called() == "serial"
    now[0] += threads.LONGEST_PAUSE
    assert called() == "parallel"
    for _ in range(10_000):
        pause.note(seconds=50e-6, work=200_000)
    assert pause.length == threads.SHORTEST_PAUSE
    for _ in range(threads.ENOUGH_STALLS):
        pause.note(seconds=0.5, work=10**10)  # a large prefill takes its time
    assert called() == "parallel"


@pytest.fixture
def seen(monkeypatch):
    """What Numba's number of threads is inside parallel kernels, whatever their size."""
    monkeypatch.setattr(threads, "SMALL", 0)
    monkeypatch.setattr(threads, "_pause", threads._Pause())
    monkeypatch.setattr(threads._pause, "note", lambda seconds, work: None)  # however busy the machine is
    found = []
    run = threads.run

    def spy(serial, parallel, n_workers, *rest):
        def watched(*arguments):
            found.append(numba.get_num_threads())
            return parallel(*arguments)

        return run(serial, watched, n_workers, *rest)

    for name, module in list(sys.modules.items()):
        if name.startswith("mojolearn.") and getattr(module, "run", None) is run:
            monkeypatch.setattr(module, "run", spy)
    return found


@pytest.fixture
def most():
    """The ceiling of the number of threads; what tests set is undone."""
    yield numba.config.NUMBA_NUM_THREADS
    mojolearn.set_num_threads(None)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="there is one thread only")
def test_the_number_of_threads_is_honoured_and_restored(seen, most, rng):
    block, x = make_block(d_model=64, intermediate=96), uniform(rng, (1, 5, 64))
    assert mojolearn.get_num_threads() == most
    wanted = bits(block(x))
    assert set(seen) == {most}

    seen.clear()
    numba.set_num_threads(1)  # the caller's own setting counts where ours is not set
    assert mojolearn.get_num_threads() == 1
    np.testing.assert_array_equal(bits(block(x)), wanted)
    assert seen == []
    mojolearn.set_num_threads(2)
    np.testing.assert_array_equal(bits(block(x)), wanted)
    assert set(seen) == {2} and numba.get_num_threads() == 1

    seen.clear()
    numba.set_num_threads(most)
    mojolearn.set_num_threads(1)
    with ThreadPoolExecutor(1) as pool:  # Numba's own setting would not reach another Python thread
        assert pool.submit(mojolearn.get_num_threads).result() == 1
        np.testing.assert_array_equal(bits(pool.submit(block, x).result()), wanted)
    assert seen == [] and numba.get_num_threads() == most


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="there is one thread only")
def test_threads_of_a_model(seen, most):
    lm, alone = (CausalLM.load(BUILT_IN, threads=n) for n in (2, 1))
    assert (lm.threads, alone.threads, CausalLM.load(BUILT_IN).threads) == (2, 1, None)
    ids = [[0, 1818, 305]]
    mojolearn.set_num_threads(1)
    wanted = lm.generate(ids, 3)
    assert set(seen) == {2}
    seen.clear()
    mojolearn.set_num_threads(None)
    np.testing.assert_array_equal(alone.generate(ids, 3), wanted)
    assert seen == [] and lm.fingerprint == alone.fingerprint


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="there is one thread only")
def test_threads_of_a_block(seen, most, rng):
    weights, x = make_weights(64, 96, n_heads=4), uniform(rng, (2, 5, 64))
    many, alone = (TransformerBlock(weights, n_heads=4, threads=n) for n in (2, 1))
    assert (many.threads, alone.threads, pickle.loads(pickle.dumps(alone)).threads) == (2, 1, 1)
    assert many.fingerprint == alone.fingerprint and "threads" not in many.options.as_dict()
    mojolearn.set_num_threads(1)

    def run(block):
        state = block.allocate_state(2, 8)
        y = [block(x), block.forward(x, lengths=[3, 5]), block.forward(x, state), block.step(x[:, 0], state)]
        with block.decode_session(state) as session:
            y += [session.step(x[:, 1]), session.forward(x[:, 2:3])]
        return bits(np.concatenate(y, axis=1))

    wanted = run(many)
    assert set(seen) == {2}
    seen.clear()
    mojolearn.set_num_threads(None)
    np.testing.assert_array_equal(run(alone), wanted)
    assert seen == []


@pytest.mark.parametrize("wrong", [0, -1, 10**6, 1.0, "2", True])
def test_numbers_of_threads_that_are_refused(wrong):
    with pytest.raises((TypeError, ValueError), match=r"set_num_threads: n must be "):
        mojolearn.set_num_threads(wrong)
    with pytest.raises((TypeError, ValueError), match=r"CausalLM.load: threads must be "):
        CausalLM.load(BUILT_IN, threads=wrong)
    with pytest.raises((TypeError, ValueError), match=r"TransformerBlock: threads must be "):
        make_block(threads=wrong)
    assert threads._chosen is None


def test_limits_nest_and_are_left_after_an_exception(most):
    outer, none = threads.Limit(most), threads.Limit(None)
    with outer, none:
        assert mojolearn.get_num_threads() == most
        with contextlib.suppress(KeyError), threads.Limit(1):
            assert mojolearn.get_num_threads() == 1
            raise KeyError
        assert mojolearn.get_num_threads() == most
    assert threads._limit() is None
