"""Which twin of a kernel runs: serial, or parallel on how many threads. The bits are the same.

The number of threads is that of the innermost `Limit`, which a block or model sets for its calls; else that of
`set_num_threads`; else that of ``numba.set_num_threads`` in the Python thread that makes the call.
"""

import contextlib
import os
import threading
import time
import warnings

import numba
from numba.np.ufunc.parallel import NUM_THREADS

from mojolearn._pieces import reread_environment
from mojolearn.scalars import admit_integer

# Below this many multiply-adds a call is over sooner on one thread: a parallel region costs 3 to 15
# microseconds, in which one core reads about as many weights.
SMALL = 1 << 17

# One multiply-add of a decode step on one thread takes about so long: it reads four bytes from memory.
SECONDS_PER_WORK = 0.25e-9
STALL = 1e-3  # a parallel call that takes so much longer has waited for a thread that was not running
ENOUGH_STALLS = 4
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

_local = threading.local()  # of each Python thread: `limits`, `both_twins`
_chosen = None  # by set_num_threads
_serial_only = False
_unsaid = None  # why, until the first call that would have taken more threads has said so
_launched = False


def _keep_to_one_thread(reason):
    global _serial_only, _unsaid
    _serial_only, _unsaid = True, reason


def _say_why():
    """Warn once that there is one thread only."""
    global _unsaid
    reason, _unsaid = _unsaid, None
    if reason is not None:
        warnings.warn(f"kernels run on one thread: {reason}", RuntimeWarning, stacklevel=2)


def _in_child():
    """The threads of a pool do not survive a fork, and OpenMP kills a child that calls on them."""
    try:
        numba.threading_layer()
    except ValueError:  # not started yet: the child may start a pool of its own
        return
    _keep_to_one_thread(
        "this process was forked from one that had started threads, which do not survive that; start processes by "
        "spawn or forkserver, or fork before the first call, and each has threads of its own"
    )


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
    """Number of threads for a call of ``work`` multiply-adds: all that it may have, or one."""
    if work < SMALL or numba.config.DISABLE_JIT:
        return 1
    number = get_num_threads()
    if _serial_only:
        _say_why()
    return number


def admit_threads(threads, name, method):
    """A number of threads that the machine was started with room for, or None; other values are refused."""
    if threads is None:
        return None
    try:
        return admit_integer(threads, name, method, 1, NUM_THREADS)
    except ValueError as error:
        raise ValueError(f"{error}; NUMBA_NUM_THREADS, set before Python starts, is the ceiling") from None


def set_num_threads(n):
    """Set the number of threads of all kernels, in every Python thread of this process.

    Parameters
    ----------
    n : int or None
        From 1 to ``numba.config.NUMBA_NUM_THREADS``, by default the number of processors. None: go by
        ``numba.set_num_threads``, which Numba keeps for each Python thread. A block or model with ``threads`` of its
        own goes by that.

    Raises
    ------
    TypeError, ValueError
        For anything else.

    Notes
    -----
    No bit of a result depends on it. What other code of yours set for Numba is left as it is.

    Examples
    --------
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(None)
    """
    global _chosen
    _chosen = admit_threads(n, "n", "set_num_threads")


def get_num_threads():
    """Return the number of threads that a large call in this Python thread may use.

    Returns
    -------
    int
        Of `set_num_threads`, or else of ``numba.get_num_threads()``; 1 in a process that can have no more.
    """
    launch()
    if _serial_only:
        return 1
    limit = _limit()
    return numba.get_num_threads() if limit is None else limit


class Limit:
    """The number of threads of every call inside; None sets no limit. May be shared by Python threads, and nested.

    Parameters
    ----------
    threads : int or None
        Admitted.

    Examples
    --------
    >>> with Limit(1):
    ...     get_num_threads()
    1
    """

    __slots__ = ("threads",)

    def __init__(self, threads):
        self.threads = threads

    def __enter__(self):
        if self.threads is not None:
            _local.limits = (*getattr(_local, "limits", ()), self.threads)

    def __exit__(self, *exception):
        if self.threads is not None:
            _local.limits = _local.limits[:-1]


def _limit():
    """The number of threads that was set for calls of this Python thread, or None."""
    limits = getattr(_local, "limits", ())
    return limits[-1] if limits else _chosen


def launch():
    """Start Numba's threading layer: a kernel that calls parallel ones cannot even be compiled without one.

    Where the layer that was asked for is not installed, kernels run on one thread, and the layer that comes with Numba
    serves for compiling.
    """
    global _launched
    if _launched or numba.config.DISABLE_JIT:
        return
    reread_environment()  # what changed since the import is then no news when something is compiled
    try:
        numba.get_num_threads()
    except ValueError as error:
        _keep_to_one_thread(str(error))
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
    _local.both_twins = True
    try:
        yield
    finally:
        _local.both_twins = False


def run(serial, parallel, n_workers, work, *arguments):
    """Call one of two twins with the number of workers and the arguments; ``work`` as for `workers`.

    While parallel calls stall, and the serial twin is there already, that one is called.
    """
    if getattr(_local, "both_twins", False):
        serial(1, *arguments)
        return parallel(1, *arguments)
    start = time.perf_counter()
    if n_workers == 1 or (start < _pause.until and serial.signatures):
        return serial(1, *arguments)
    guard = _guard
    with guard:
        if _limit() is None:
            result = parallel(n_workers, *arguments)
        else:
            result = _with_threads(n_workers, parallel, *arguments)
    if type(guard) is not _NoLock:
        _choose_guard()
    _pause.note(time.perf_counter() - start, work)
    return result


def _with_threads(n_workers, parallel, *arguments):
    """Call a kernel with so many threads of Numba; the caller's number is then as it was."""
    before = numba.get_num_threads()
    numba.set_num_threads(n_workers)
    try:
        return parallel(n_workers, *arguments)
    finally:
        numba.set_num_threads(before)
