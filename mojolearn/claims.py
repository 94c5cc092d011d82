"""One call at a time on a state: a second Python thread is refused, and nothing is corrupted."""


class Claim:
    """Holds states for the time of a call; the thread that holds one may claim it again.

    Parameters
    ----------
    states : sequence of TransformerState
        Of which none may be in use elsewhere. What is no state is passed over: others say what is wrong with it.
    method : str
        The public name that the message starts with.

    Raises
    ------
    RuntimeError
        At the beginning of the ``with`` statement, when another thread has a call running on one of them.

    Examples
    --------
    ``with Claim([state], "TransformerBlock.step"): ...``
    """

    __slots__ = ("_locks", "_method")

    def __init__(self, states, method):
        self._locks, self._method = [s._lock for s in states if hasattr(s, "_lock")], method

    def __enter__(self):
        for i, lock in enumerate(self._locks):
            if not lock.acquire(blocking=False):
                for held in self._locks[:i]:
                    held.release()
                raise RuntimeError(
                    f"{self._method}: another thread has a call running on this state; give each thread a state of "
                    "its own, or let them take turns"
                )

    def __exit__(self, *exception):
        for lock in self._locks:
            lock.release()
