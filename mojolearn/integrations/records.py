"""What is found out about the texts of a corpus, and a hash over it."""

import hashlib
import struct
from typing import NamedTuple

import numpy as np

from mojolearn.scalars import kind


class Score(NamedTuple):
    """How probable a text is.

    Attributes
    ----------
    ids : ndarray of int64, shape (L,)
        Its tokens.
    logprobs : ndarray of float32, shape (L - 1,)
        The log-probability of each token but the first, which nothing comes before.
    sum : float
        Their sum, rounded once.
    count : int
        How many they are.
    perplexity : float
        exp(-sum / count); NaN where there are none.
    error : str or None
        Why the text could not be scored, where errors are kept; the arrays are then empty.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    sum: float
    count: int
    perplexity: float
    error: str | None = None


class Continuation(NamedTuple):
    """What follows a prompt.

    Attributes
    ----------
    prompt_ids, ids : ndarray of int64
        The tokens of the prompt, and the new ones.
    text : str or None
        The new text, which ends before a string of ``stop``; None for a prompt that was given as ids.
    finish_reason : {"eos", "stop", "length"} or None
        Why it ended; None with an error, or where nothing was to be added.
    seed : int or None
        What gives the tokens again through ``lm.generate(..., seed=[seed])``; None if greedy.
    error : str or None
        Why the prompt could not be continued, where errors are kept.
    """

    prompt_ids: np.ndarray
    ids: np.ndarray
    text: str | None
    finish_reason: str | None
    seed: int | None
    error: str | None = None


class Prompt(NamedTuple):
    """A prompt with a seed of its own.

    Attributes
    ----------
    prompt : str or sequence of int
        Text or token ids.
    seed : int
        From 0 to 2**64 - 1.
    """

    prompt: str
    seed: int


def digest(records):
    """Compute a hash over records, which tells whether two runs had the same results in the same order.

    Parameters
    ----------
    records : iterable of Score or Continuation
        What `score_texts` or `generate_texts` gave, of all pieces one after the other.

    Returns
    -------
    str
        64 hexadecimal digits: SHA-256 over all fields, bit by bit, but the perplexity, which follows from the sum.

    Raises
    ------
    TypeError
        For other things.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.integrations.corpus import score_texts
    >>> digest(score_texts(["Emma was the first."], BUILT_IN))[:16]
    '11fbc304c35339f8'
    """
    whole = hashlib.sha256()
    for record in records:
        if not isinstance(record, (Score, Continuation)):
            raise TypeError(f"digest: records must hold Score or Continuation, not {kind(record)}")
        for name, value in record._asdict().items():
            if name != "perplexity":
                data = _data(value)
                whole.update(f"{name} {type(value).__name__} {len(data)} ".encode() + data)
    return whole.hexdigest()


def _data(value):
    """A field as bytes, the same on every machine."""
    if isinstance(value, np.ndarray):
        return value.astype("<f4" if value.dtype == np.float32 else "<i8").tobytes()
    return (
        struct.pack("<d", value)
        if isinstance(value, float)
        else repr(value).encode("ascii", "backslashreplace")
    )
