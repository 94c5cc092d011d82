"""Token ids as users write them: arrays of any integer type, or lists."""

import numpy as np

from mojolearn.buffers import admit_array
from mojolearn.scalars import admit_integer, kind, shown

SEQUENCES = (list, tuple, np.ndarray)


def admit_ids(ids, vocab_size, method, *, step=False):
    """Turn token ids into one int64 array.

    Parameters
    ----------
    ids : array or nested list of int, shape (B, L)
        For a step (B,) or (B, 1).
    vocab_size : int
        Ids lie below it.
    method : str
        Public name of the method, for messages.
    step : bool, default False
        Admit one token per row.

    Returns
    -------
    ndarray of int64, shape (B, L)
        A new array; for a step (B, 1).

    Raises
    ------
    TypeError
        For anything but integers.
    ValueError
        For a wrong shape, rows of different lengths, no rows or tokens, or an id outside the vocabulary.

    Examples
    --------
    >>> admit_ids([[3, 1, 4], [1, 5, 9]], 10, "CausalLM.forward").shape
    (2, 3)
    """
    array = (
        _from_lists(ids, vocab_size, method) if isinstance(ids, (list, tuple)) else _from_array(ids, method)
    )
    wanted = "(B,) or (B, 1)" if step else "(B, L)"
    if step and array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or 0 in array.shape or (step and array.shape[1] != 1):
        hint = "; for one sequence give [ids]" if array.ndim == 1 and not step else ""
        raise ValueError(
            f"{method}: ids has shape {np.shape(ids)}; wanted is {wanted} with at least one row and token{hint}"
        )
    outside = (array < 0) | (array >= vocab_size)
    if outside.any():
        row, column = (int(i) for i in np.argwhere(outside)[0])
        place = f"ids[{row}]" if step and np.ndim(ids) == 1 else f"ids[{row}, {column}]"
        raise ValueError(f"{method}: {place} must be from 0 to {vocab_size - 1}, not {array[row, column]}")
    return array.astype(np.int64)


def admit_prompts(ids, vocab_size, method):
    """Turn prompts, of one length or of several, into a list of arrays.

    Parameters
    ----------
    ids : array or nested list of int
        Shape (B, L), or a list of B sequences of any lengths.
    vocab_size : int
        Ids lie below it.
    method : str
        Public name of the method, for messages.

    Returns
    -------
    list of ndarray of int64
        New arrays, one per row.

    Raises
    ------
    TypeError, ValueError
        As `admit_ids`, except that lengths may differ.

    Examples
    --------
    >>> admit_prompts([[3, 1, 4], [1, 5]], 10, "CausalLM.generate")
    [array([3, 1, 4]), array([1, 5])]
    """
    if not isinstance(ids, (list, tuple)) or not ids or not all(isinstance(row, SEQUENCES) for row in ids):
        return list(admit_ids(ids, vocab_size, method))
    rows = []
    for r, row in enumerate(ids):
        if len(row) == 0 or (isinstance(row, np.ndarray) and row.ndim > 1):
            raise ValueError(f"{method}: ids[{r}] must be a sequence of at least one token, not {shown(row)}")
        most = vocab_size - 1
        rows.append(
            np.array(
                [admit_integer(i, f"ids[{r}, {n}]", method, 0, most) for n, i in enumerate(row)], np.int64
            )
        )
    return rows


def _from_array(ids, method):
    if ids is None or isinstance(ids, (str, bytes, dict, set, range)) or not hasattr(ids, "__array__"):
        raise TypeError(f"{method}: ids must be an array or list of integers, not {kind(ids)}")
    array = admit_array(ids, "ids", method)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{method}: ids must be integers, not {array.dtype}; cast them with ids.astype(np.int64)"
        )
    return array


def _from_lists(ids, vocab_size, method):
    """One or two levels of lists; inner ones may be arrays."""
    most = vocab_size - 1
    nested = [isinstance(row, (list, tuple, np.ndarray)) for row in ids]
    if not any(nested):
        return np.array([admit_integer(i, f"ids[{n}]", method, 0, most) for n, i in enumerate(ids)], np.int64)
    rows = [row if is_row else [row] for row, is_row in zip(ids, nested)]
    lengths = [len(row) for row in rows]
    if not all(nested) or len(set(lengths)) > 1:
        shown = ", ".join(map(str, lengths[:8])) + (", …" if len(lengths) > 8 else "")
        raise ValueError(f"{method}: the rows of ids must have one length, but they have {shown}")
    return np.array(
        [
            [admit_integer(i, f"ids[{r}, {n}]", method, 0, most) for n, i in enumerate(row)]
            for r, row in enumerate(rows)
        ],
        dtype=np.int64,
    )
