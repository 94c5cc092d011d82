"""The output head of a model: from the last hidden states to logits."""

import numpy as np

from mojolearn._jit import LANES
from mojolearn.kernels.softcap import softcap_parallel, softcap_serial
from mojolearn.layers import Linear
from mojolearn.threads import run, workers

WORK_PER_NUMBER = 32  # a soft ceiling costs about as much as so many multiply-adds


class Head:
    """``x @ weight.T + bias``, scaled and capped (numerics page, section 6).

    Parameters
    ----------
    weight : ndarray of shape (vocab_size, d_model)
        In storage format; copied.
    bias : ndarray of float32, shape (vocab_size,), optional
        Added to the finished sums.
    multiplier, divisor : float, optional
        What the logits are multiplied with, and then divided by.
    softcap : float, optional
        Their soft ceiling: ``tanh(logit / softcap) * softcap``, at the end.

    Examples
    --------
    >>> head = Head(np.eye(2, dtype=np.float32), multiplier=8, softcap=4)
    >>> head(np.array([[0, 1]], np.float32))
    array([[0.       , 3.8561103]], dtype=float32)
    """

    def __init__(self, weight, bias=None, *, multiplier=None, divisor=None, softcap=None):
        self.linear = Linear(weight, bias)
        self.multiplier, self.divisor, self.softcap = multiplier, divisor, softcap

    def __call__(self, rows):
        """The logits of rows.

        Parameters
        ----------
        rows : ndarray of float32, C-contiguous, shape (n_rows, d_model)
            Hidden states after the final norm.

        Returns
        -------
        ndarray of float32, shape (n_rows, vocab_size)
            One result for each row.
        """
        logits = self.linear(rows)
        if self.multiplier is not None or self.divisor is not None:
            self._scale(logits)
        return logits if self.softcap is None else self._capped(logits)

    @np.errstate(over="ignore", under="ignore")
    def _scale(self, logits):
        if self.multiplier is not None:
            logits *= np.float32(self.multiplier)
        if self.divisor is not None:
            logits /= np.float32(self.divisor)

    def _capped(self, logits):
        padded = np.zeros(-(-logits.size // LANES) * LANES, np.float32)
        padded[: logits.size] = logits.reshape(-1)
        work = WORK_PER_NUMBER * padded.size
        run(softcap_serial, softcap_parallel, workers(work), work, padded, np.float32(self.softcap))
        return padded[: logits.size].reshape(logits.shape)
