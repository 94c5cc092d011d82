"""Processes that share a model: forked, spawned, of joblib, of a server. The bits are the same in each of them."""

import os
import subprocess
import sys
import textwrap

import pytest

# A model in the parent that has run parallel kernels; `work(row)` gives the bytes of one row's outputs.
PRELUDE = """
import multiprocessing, os, sys, warnings
import numpy as np
from support import bits, make_block, uniform
from mojolearn import threads
threads.SMALL = 0
block = make_block(d_model=64, intermediate=96, n_heads=4, n_kv_heads=2)
x = uniform(np.random.default_rng(0), (4, 9, 64))

def work(row):
    state = block.allocate_state(1, 9)
    y = [block.forward(x[row : row + 1, :6], state)]
    with block.decode_session(state) as session:
        y += [session.step(x[row : row + 1, t]) for t in range(6, 9)]
    return bits(np.concatenate(y, axis=1)).tobytes()

def work_and_warnings(row):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, again = work(row), work(row)
    assert first == again
    return first, [str(w.message) for w in caught if "mojolearn" in w.filename]

if __name__ == "__main__":
    wanted = [work(row) for row in range(4)]
"""


@pytest.fixture
def run(tmp_path):
    """``run(body)``: what a script prints that goes on after the prelude, as the main module of a process."""

    def run(body):
        path = tmp_path / "script.py"
        path.write_text(PRELUDE + textwrap.indent(textwrap.dedent(body), "    "))
        done = subprocess.run(
            [sys.executable, str(path)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_multiprocessing(run, method):
    body = f"""
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        print(pool.map(work, range(4)) == wanted)
    """
    assert run(body) == "True"


@pytest.mark.long
@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_workers_of_joblib(run, backend):
    body = f"""
    import joblib
    print(joblib.Parallel(2, backend="{backend}")(joblib.delayed(work)(row) for row in range(4)) == wanted)
    """
    assert run(body) == "True"


@pytest.mark.long
def test_a_forked_child_says_once_that_it_has_one_thread(run):
    body = """
    with multiprocessing.get_context("fork").Pool(1) as pool:
        results = pool.map(work_and_warnings, range(4), chunksize=4)
    print([output for output, _ in results] == wanted)
    print([len(said) for _, said in results])
    print(results[0][1][0])
    print(work_and_warnings(0) == (wanted[0], []))  # the parent goes on as before
    """
    same, counts, message, parent = run(body).splitlines()
    assert (same, counts, parent) == ("True", "[1, 0, 0, 0]", "True")
    assert "forked" in message and "spawn or forkserver" in message


@pytest.mark.long
def test_a_server_that_forks_for_each_request(run):
    """The parent keeps computing, in two threads, while children that it forked at any moment answer."""
    body = """
    import threading
    warnings.simplefilter("ignore")
    stop, failed = threading.Event(), []

    def keep_busy(row):
        while not stop.is_set():
            if work(row) != wanted[row]:
                failed.append(row)

    busy = [threading.Thread(target=keep_busy, args=(row,)) for row in range(2)]
    for thread in busy:
        thread.start()
    codes = []
    for request in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0 if work(request % 4) == wanted[request % 4] else 1)
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    for thread in busy:
        thread.join()
    print(codes == [0] * 20, failed)
    """
    assert run(body) == "True []"


@pytest.mark.long
def test_a_child_of_a_child(run):
    body = """
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if work(1) == wanted[1] else 1)
        os._exit(0 if os.waitpid(grandchild, 0)[1] == 0 and work(2) == wanted[2] else 1)
    print(os.waitpid(child, 0)[1] == 0)
    """
    assert run(body) == "True"
