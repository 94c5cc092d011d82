"""One call at a time on a state: a second Python thread is refused, and nothing is corrupted."""

import sys
import threading

_replacing = threading.Lock()  # held while a claim that was left behind is taken away


class Claim:
    """Holds states for the time of a call; the thread that holds one may claim it again.

    An interrupt can come at any instruction, so also between the end of a call and letting go of its states. A claim
    therefore counts only while the function that made it is running: whoever finds another one in place looks for that
    function on the stack of its thread, and takes away what was left behind.

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

    __slots__ = ("_frame", "_holders", "_method", "_thread")

    def __init__(self, states, method):
        self._holders, self._method = [s._holder for s in states if hasattr(s, "_holder")], method

    def __enter__(self):
        self._thread, self._frame = threading.get_ident(), sys._getframe(1)
        try:
            for holder in self._holders:
                # One call into C: taken and noted at once.
                while (other := holder.setdefault("claim", self)) is not self:
                    if not other._is_running():
                        _take_away(holder, other)
                    elif other._thread == self._thread:
                        break
                    else:
                        raise RuntimeError(
                            f"{self._method}: another thread has a call running on this state; give each thread a "
                            "state of its own, or let them take turns"
                        )
        except BaseException:
            self._let_go()
            raise

    def __exit__(self, *exception):
        self._let_go()

    def _let_go(self):
        for holder in self._holders:
            if holder.get("claim") is self:
                del holder["claim"]
        self._frame = None

    def _is_running(self):
        """Is the function whose ``with`` statement this is still on the stack of its thread?"""
        if self._thread == threading.get_ident():
            frame = sys._getframe()
        else:
            frame = sys._current_frames().get(self._thread)
        wanted = self._frame
        while frame is not None and frame is not wanted:
            frame = frame.f_back
        return frame is not None


def _take_away(holder, claim):
    """Remove a claim that nobody lets go of any more, unless another thread has done so."""
    with _replacing:
        if holder.get("claim") is claim:
            del holder["claim"]
