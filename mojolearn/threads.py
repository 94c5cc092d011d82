"""Which twin of a kernel runs: serial, or parallel on how many threads. The bits are the same."""

import contextlib
import os
import threading
import time
import warnings

import numba

# Below this many multiply-adds a call is over sooner on one thread: a parallel region costs 3 to 15
# microseconds, in which one core reads about as many weights.
SMALL = 1 << 17

# One multiply-add of a decode step on one thread takes about so long: it reads four bytes from memory.
SECONDS_PER_WORK = 0.25e-9
STALL = 1e-3  # a parallel call that takes so much longer has waited for a thread that was not running
ENOUGH_STALLS = 4
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

_both_twins = threading.local()
_serial_only = False
_launched = False


def _keep_to_one_thread():
    global _serial_only
    _serial_only = True


def _in_child():
    """The threads of a pool do not survive a fork, and OpenMP kills a child that calls on them."""
    try:
        numba.threading_layer()
    except ValueError:  # not started yet: the child may start a pool of its own
        return
    _keep_to_one_thread()


os.register_at_fork(after_in_child=_in_child)


class _Pause:
    """Keeps to one thread while the machine is busy with something else.

    OpenMP threads wait for each other by spinning. Where other programs want the cores too, a thread can spin for
    a whole time slice while the one it waits for is not running: measured, 5 milliseconds for calls of 50
    microseconds, one after the other. A single stall means nothing (a thread that slept takes as long to wake), but
    several in short order are followed by a pause on one thread, twice as long each time it happens again.
    """

    def __init__(self):
        self.until = 0.0
        self.length = SHORTEST_PAUSE
        self.stalls = 0.0

    def note(self, seconds, work):
        """Judge a parallel call of this much work by its time."""
        if seconds <= STALL + 2 * SECONDS_PER_WORK * work:
            self.stalls = max(0.0, self.stalls - 0.1)
            self.length = max(SHORTEST_PAUSE, self.length * 0.999)
            return
        self.stalls += 1
        if self.stalls >= ENOUGH_STALLS:
            self.stalls = 0.0
            self.until = time.perf_counter() + self.length
            self.length = min(2 * self.length, LONGEST_PAUSE)


_pause = _Pause()


def workers(work):
    """Number of threads for a call of ``work`` multiply-adds: those of ``numba.get_num_threads()``, or one."""
    if work < SMALL or _serial_only or numba.config.DISABLE_JIT:
        return 1
    launch()
    return 1 if _serial_only else numba.get_num_threads()


def launch():
    """Start Numba's threading layer: a kernel that calls parallel ones cannot even be compiled without one.

    Where the layer that was asked for is not installed, kernels run on one thread, and the layer that comes with Numba
    serves for compiling.
    """
    global _launched
    if _launched or numba.config.DISABLE_JIT:
        return
    try:
        numba.get_num_threads()
    except ValueError as error:
        _keep_to_one_thread()
        warnings.warn(f"kernels run on one thread: {error}", RuntimeWarning, stacklevel=3)
        config = numba.config
        asked = config.THREADING_LAYER, config.THREADING_LAYER_PRIORITY
        config.THREADING_LAYER, config.THREADING_LAYER_PRIORITY = "workqueue", ["tbb", "omp", "workqueue"]
        try:
            numba.get_num_threads()
        finally:
            config.THREADING_LAYER, config.THREADING_LAYER_PRIORITY = asked
    _launched = True


class _NoLock:
    """Stands for the lock where the threading layer takes several Python threads at once."""

    def __enter__(self):
        pass

    def __exit__(self, *exception):
        pass


_guard = threading.Lock()  # until the layer is known, which is after the first parallel call


def _choose_guard():
    global _guard
    if numba.threading_layer() in ("omp", "tbb"):
        _guard = _NoLock()


@contextlib.contextmanager
def both_twins():
    """Inside, on this Python thread, every call runs the serial twin and then the parallel one: to compile both."""
    _both_twins.on = True
    try:
        yield
    finally:
        _both_twins.on = False


def run(serial, parallel, n_workers, work, *arguments):
    """Call one of two twins with the number of workers and the arguments; ``work`` as for `workers`.

    While parallel calls stall, and the serial twin is there already, that one is called.
    """
    if getattr(_both_twins, "on", False):
        serial(1, *arguments)
        return parallel(1, *arguments)
    start = time.perf_counter()
    if n_workers == 1 or (start < _pause.until and serial.signatures):
        return serial(1, *arguments)
    guard = _guard
    with guard:
        result = parallel(n_workers, *arguments)
    if type(guard) is not _NoLock:
        _choose_guard()
    _pause.note(time.perf_counter() - start, work)
    return result
