"""What is done to tensors of GGUF files so that they are those of a Hugging Face checkpoint, bit for bit."""

import numpy as np

from mojolearn.weights import widen


def unpermute(array, heads):
    """Put the rows of each head in order: rotary pairs stand side by side, and should be half a head apart.

    Parameters
    ----------
    array : ndarray, shape (heads * head_dim, ...)
        A matrix or bias of queries or keys.
    heads : int
        Number of heads in it.

    Returns
    -------
    ndarray
        A copy.

    Examples
    --------
    >>> unpermute(np.arange(8), 2)
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    pairs = len(array) // heads // 2
    return array.reshape(heads, pairs, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def by_head(array, heads):
    """Turn queries, then keys, then values into those of head 0, then those of head 1, and so on."""
    width = len(array) // heads // 3
    return array.reshape(3, heads, width, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)


def minus_one(array, where):
    """Return the gains w of a norm that is stored as 1 + w.

    Parameters
    ----------
    array : ndarray
        The stored gains.
    where : str
        What the message starts with.

    Returns
    -------
    ndarray of float32
        Of which 1 + w gives the stored bits again.

    Raises
    ------
    ValueError
        For a gain that is not 1 + w for any float32 w; sums of that kind always are.
    """
    stored = widen(array)
    with np.errstate(all="ignore"):
        gains = stored - np.float32(1)
        lost = np.flatnonzero(gains + np.float32(1) != stored)
    if lost.size and np.isfinite(stored).all():
        raise ValueError(
            f"{where}[{lost[0]}] is {stored[lost[0]]!r}, which is not 1 + w for a float32 number w"
        )
    return gains
