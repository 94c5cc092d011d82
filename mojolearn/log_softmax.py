"""Log-probabilities of rows of logits, in the order of the numerics page, section 8."""

import numpy as np

from mojolearn.float32 import log
from mojolearn.kernels.softmax import exp_sums_parallel, exp_sums_serial, scratch_size
from mojolearn.layers import scratch
from mojolearn.threads import run, workers


def normalizers(logits, method):
    """Return what turns a row's logits l into log-probabilities: (l - largest) - log_sum.

    Parameters
    ----------
    logits : ndarray of float32, C-contiguous, shape (n_rows, size)
        Finite numbers.
    method : str
        The public name that messages start with.

    Returns
    -------
    tuple of ndarray of float32, shape (n_rows,)
        The largest logit of each row, and the logarithm of the sum of exp(l - largest).

    Raises
    ------
    ValueError
        A logit is infinite or no number.

    Examples
    --------
    >>> largest, log_sum = normalizers(np.log(np.float32([[1, 2, 5]])), "normalizers")
    >>> np.exp(np.log(np.float32([1, 2, 5])) - largest - log_sum)
    array([0.125     , 0.25      , 0.62500006], dtype=float32)
    """
    n_rows, size = logits.shape
    largest = logits.max(axis=1)
    sums = np.empty(n_rows, np.float32)
    work = 8 * logits.size  # an exponential costs about as much as eight multiply-adds
    n_workers = workers(work)
    each = scratch_size(size)
    run(
        exp_sums_serial, exp_sums_parallel, n_workers, work,
        logits.reshape(-1), n_rows, size, largest, sums, scratch(n_workers * each), each,
    )  # fmt: skip
    if not np.isfinite(sums).all():  # of finite logits every sum lies between 1 and their number
        row, column = np.argwhere(~np.isfinite(logits))[0]
        raise ValueError(
            f"{method}: logit {column} of row {row} is {logits[row, column]}, not a finite number"
        )
    return largest, log(sums)


def log_probability(logits, largest, log_sum):
    """Turn logits into log-probabilities; one that lies further below the largest than float32 reaches gives -inf."""
    with np.errstate(over="ignore"):
        return (logits - largest) - log_sum


def log_softmax(logits, method):
    """Return the log-probabilities of all tokens, for rows of logits of shape (n_rows, size)."""
    largest, log_sums = normalizers(logits, method)
    return log_probability(logits, largest[:, None], log_sums[:, None])
