"""Which twin of a kernel runs: serial, or parallel on how many threads. The bits are the same."""

import contextlib
import os
import threading

import numba

# Below this many multiply-adds a call is over sooner on one thread: a parallel region costs 3 to 15
# microseconds, in which one core reads about as many weights.
SMALL = 1 << 17

_both_twins = threading.local()
_parallel_lock = threading.Lock()
_after_fork = False


def _in_child():
    global _after_fork
    _after_fork = True


# The threads of a pool do not survive a fork, and OpenMP kills a child that calls on them.
os.register_at_fork(after_in_child=_in_child)


def workers(work):
    """Number of threads for a call of ``work`` multiply-adds: those of ``numba.get_num_threads()``, or one."""
    if work < SMALL or _after_fork or numba.config.DISABLE_JIT:
        return 1
    return numba.get_num_threads()


def _layer_is_thread_safe():
    """May two Python threads be inside parallel kernels at once? Known after the first parallel call."""
    try:
        return numba.threading_layer() in ("omp", "tbb")
    except ValueError:
        return False


@contextlib.contextmanager
def both_twins():
    """Inside, on this Python thread, every call runs the serial twin and then the parallel one: to compile both."""
    _both_twins.on = True
    try:
        yield
    finally:
        _both_twins.on = False


def run(serial, parallel, n_workers, *arguments):
    """Call one of two twins; both take the number of workers first."""
    if getattr(_both_twins, "on", False):
        serial(1, *arguments)
    elif n_workers == 1:
        return serial(1, *arguments)
    if _layer_is_thread_safe():
        return parallel(n_workers, *arguments)
    with _parallel_lock:
        return parallel(n_workers, *arguments)
