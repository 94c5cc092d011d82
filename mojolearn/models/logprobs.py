"""Log-probabilities of tokens: of those chosen, and of the best."""

from typing import NamedTuple

import numpy as np

from mojolearn.log_softmax import log_probability, normalizers
from mojolearn.models.sampling import sort_keys


class Logprobs(NamedTuple):
    """What `CausalLM.generate` tells of the new tokens; T of them in each of B rows, and the best n at each place.

    They are the model's own: of its logits as they are, before penalty, bias, temperature and cuts. Where a row has
    ended, the numbers are NaN and the ids -1.

    Attributes
    ----------
    chosen : ndarray of float32, shape (B, T)
        Of the tokens that were chosen.
    top_ids : ndarray of int64, shape (B, T, n)
        The most probable tokens, best first, the lowest id of equals.
    top : ndarray of float32, shape (B, T, n)
        Of these.
    """

    chosen: np.ndarray
    top_ids: np.ndarray
    top: np.ndarray


def empty_logprobs(batch_size, length, n):
    """Return Logprobs in which every row has ended, to be filled."""
    shape = (batch_size, length)
    return Logprobs(
        np.full(shape, np.nan, np.float32),
        np.full((*shape, n), -1, np.int64),
        np.full((*shape, n), np.nan, np.float32),
    )


def logprobs_of(logits, ids, method):
    """Return the log-probability of one token per row.

    Parameters
    ----------
    logits : ndarray of float32, C-contiguous, shape (n_rows, vocab_size)
        Those of the model.
    ids : ndarray of int64, shape (n_rows,)
        The tokens.
    method : str
        The public name that messages start with.

    Returns
    -------
    ndarray of float32, shape (n_rows,)
        (logit - largest) - log_sum, in this order.
    """
    largest, log_sums = normalizers(logits, method)
    return log_probability(logits[np.arange(len(ids)), ids], largest, log_sums)


def fill_logprobs(out, at, rows, logits, ids, method):
    """Write what belongs to new tokens of some rows into place `at` of `out`, a Logprobs."""
    n = out.top.shape[2]
    largest, log_sums = normalizers(logits, method)
    out.chosen[rows, at] = log_probability(logits[np.arange(len(rows)), ids], largest, log_sums)
    if n:
        for row, own, high, log_sum in zip(rows, logits, largest, log_sums, strict=True):
            best = (np.sort(np.partition(sort_keys(own), n - 1)[:n]) & np.uint64(0xFFFFFFFF)).astype(np.int64)
            out.top_ids[row, at] = best
            out.top[row, at] = log_probability(own[best], high, log_sum)
