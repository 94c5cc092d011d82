"""The boundary: admits the caller's arrays, without a copy where possible, or says in a sentence why not.

Every function takes the public name of the method that was called, so that messages can start with it.
A wrong kind of object is a ``TypeError``, a wrong value a ``ValueError``.
"""

import numpy as np

from mojolearn.scalars import admit_integer, counted, kind

__all__ = [
    "admit_array",
    "admit_cache",
    "admit_input",
    "admit_integer",
    "admit_lengths",
    "check_disjoint",
    "first_nonfinite",
    "first_where",
]

FLOAT32 = np.dtype(np.float32)
CHUNK = 1 << 16  # values looked at together: they stay in the processor's cache


def _reader(value):
    """Choose the function that turns `value` into an ndarray; None if it offers no array."""
    if isinstance(value, (type, str, bytes)):
        return None
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return np.asarray
    try:
        memoryview(value)
    except TypeError:
        return np.from_dlpack if hasattr(value, "__dlpack__") else None
    except ValueError:  # a memoryview that was released: the reader fails with Python's own words
        pass
    return lambda buffer: np.asarray(memoryview(buffer))


def admit_array(value, name, method):
    """Find the ndarray behind any object that offers one; copies only where the object insists on it.

    Parameters
    ----------
    value : array_like
        An ndarray, memoryview, ``array.array``, memory map, or anything with ``__array_interface__``,
        ``__array__`` or DLPack on the CPU.
    name, method : str
        Name of the argument and public name of the method, for messages.

    Returns
    -------
    ndarray
        Of any dtype, shape and strides.

    Raises
    ------
    TypeError
        If the object is no array (a list, None, a str, ...), has masked values, or cannot be read as an array
        in the memory of the CPU.
    """
    if type(value) is np.ndarray:  # what decoding brings, token after token
        return value
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TypeError(
            f"{method}: {name} is a masked array with masked values, and the mask would be ignored; "
            "fill them first, for example with .filled(0)"
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    read = _reader(value)
    if read is None:
        raise TypeError(
            f"{method}: {name} must be a float32 array, not {kind(value)}; "
            "np.asarray(..., dtype=np.float32) makes an array from nested lists of numbers"
        )
    try:
        return read(value)
    except Exception as error:  # foreign code: whatever it raises, the object is of a kind we cannot read
        raise TypeError(
            f"{method}: {name} (of type {kind(value)}) cannot be read as an array in the memory of the CPU: "
            f"{error}"
        ) from error


def dtype_in_words(dtype):
    """Name a dtype so that "float32 in the other byte order" is not taken for float32."""
    return str(dtype) if dtype.isnative else f"{dtype.newbyteorder('=')} in the other byte order"


def admit_input(x, d_model, method, *, step=False):
    """Turn the input of ``forward`` or ``step`` into one C-contiguous, aligned, writable float32 array.

    Parameters
    ----------
    x : array_like of float32, shape (B, L, d_model)
        For a step (B, d_model) or (B, 1, d_model). It is never modified.
    d_model : int
        Width of the block.
    method : str
        Public name of the method, for messages.
    step : bool, default False
        Admit one token per row.

    Returns
    -------
    ndarray of float32, shape (B, L, d_model)
        The memory of `x` where it can be used as it is, otherwise a copy (also of read-only memory: kernels
        then meet one type of array). NaN and infinities are left for the kernel that reads the values.

    Raises
    ------
    TypeError
        If `x` is no array, has masked values, or is not float32 in native byte order.
    ValueError
        For a wrong shape, no rows or no tokens.
    """
    x = admit_array(x, "x", method)
    if x.dtype != FLOAT32:
        raise TypeError(
            f"{method}: x must be float32, not {dtype_in_words(x.dtype)}; cast it with x.astype(np.float32)"
        )
    fault = _shape_fault(x.shape, d_model, step)
    if fault is not None:
        wanted = f"(B, {d_model}) or (B, 1, {d_model})" if step else f"(B, L, {d_model})"
        raise ValueError(f"{method}: x has shape {x.shape}; wanted is {wanted}{fault}")
    if x.ndim == 2:
        x = x.reshape(x.shape[0], 1, d_model)
    return x if x.flags.carray else np.require(x, requirements=["C", "A", "W"])


def _shape_fault(shape, d_model, step):
    """Say what is wrong with the shape of an input, beyond what is wanted; None for a good shape."""
    if len(shape) != 3 and not (step and len(shape) == 2):
        one_sequence = len(shape) == 2 and shape[1] == d_model
        return " (for a batch of one sequence: x[None])" if one_sequence else ""
    if shape[-1] != d_model:
        return f", where {d_model} is the d_model of the block"
    if shape[0] == 0:
        return " with at least one row, B >= 1"
    if step and len(shape) == 3 and shape[1] != 1:
        return f": a step takes one token per row; use forward for {shape[1]}"
    if shape[1] == 0:
        return " with at least one token, L >= 1"
    return None


def admit_cache(buffer, size, name, method):
    """Make a flat float32 array that shares the memory of the caller's cache buffer.

    Parameters
    ----------
    buffer : writable buffer of float32
        An ndarray, memory map, ``array.array('f')``, memoryview, DLPack tensor on the CPU, ...
    size : int
        Number of values wanted.
    name, method : str
        Name of the buffer and public name of the method, for messages.

    Returns
    -------
    ndarray of float32, shape (size,)
        Writable, C-contiguous, aligned. Writing to it writes to `buffer`.

    Raises
    ------
    TypeError
        If `buffer` is no array, is masked, is not native float32, or gives only copies of its memory.
    ValueError
        For a wrong length or rank, and for read-only, strided or misaligned memory.
    """
    wanted = f"wanted is a flat, writable, contiguous float32 buffer of {counted(size, 'value')}"
    if isinstance(buffer, np.ma.MaskedArray):
        raise TypeError(f"{method}: {name} is a masked array, whose mask would be ignored; {wanted}")
    if _reader(buffer) is None:
        raise TypeError(f"{method}: {name} is {kind(buffer)}; {wanted}")
    array = admit_array(buffer, name, method)
    if array.dtype != FLOAT32:
        raise TypeError(f"{method}: {name} holds {dtype_in_words(array.dtype)}; {wanted}")
    if array.ndim != 1:
        raise ValueError(f"{method}: {name} has shape {array.shape}; {wanted}")
    if array.size != size:
        raise ValueError(f"{method}: {name} holds {counted(array.size, 'value')}; {wanted}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{method}: {name} is strided, in steps of {array.strides[0]} bytes; {wanted}")
    if not array.flags.writeable:
        raise ValueError(f"{method}: {name} is read-only; {wanted}")
    if not array.flags.aligned:
        raise ValueError(f"{method}: {name} does not start at a multiple of 4 bytes in memory; {wanted}")
    if not isinstance(buffer, np.ndarray):
        again = admit_array(buffer, name, method)  # both arrays live now: a copy has another address
        if again.ctypes.data != array.ctypes.data:
            raise TypeError(f"{method}: {name} (of type {kind(buffer)}) gives only copies; {wanted}")
    return array


def check_disjoint(k, v, method):
    """Refuse two cache arrays (as `admit_cache` makes them) that share memory, with a ``ValueError``."""
    if np.may_share_memory(k, v):  # compares bounds, which is exact for contiguous arrays
        raise ValueError(f"{method}: k_cache and v_cache overlap in memory; each needs a buffer of its own")


def admit_lengths(lengths, B, L, method):
    """Read the number of real tokens in each row of a padded batch.

    Parameters
    ----------
    lengths : list, tuple, ndarray or range of int
        One integer in [1, L] per row.
    B, L : int
        Rows, and tokens per row, of the padded input.
    method : str
        Public name of the method, for messages.

    Returns
    -------
    ndarray of int64, shape (B,)
        The lengths, in a new array.

    Raises
    ------
    TypeError
        If `lengths` or one of its entries is of another kind.
    ValueError
        For a wrong count or an entry outside [1, L].
    """
    if not isinstance(lengths, (list, tuple, range, np.ndarray)):
        raise TypeError(
            f"{method}: lengths must be a list, tuple, range or array of integers, not {kind(lengths)}"
        )
    if isinstance(lengths, np.ndarray):
        lengths = admit_array(lengths, "lengths", method)
        if lengths.ndim != 1:
            raise ValueError(f"{method}: lengths has shape {lengths.shape}; wanted is ({B},), one per row")
        if lengths.dtype.kind not in "iuO":
            raise TypeError(f"{method}: lengths must be integers, not an array of {lengths.dtype}")
        lengths = lengths.tolist()
    if len(lengths) != B:
        raise ValueError(
            f"{method}: lengths has {counted(len(lengths), 'entry', 'entries')}, but x has {counted(B, 'row')}; "
            "give one per row"
        )
    numbers = [admit_integer(n, f"lengths[{i}]", method, 1, L) for i, n in enumerate(lengths)]
    return np.array(numbers, dtype=np.int64)


def first_where(array, test):
    """Flat index (C order) of the first value for which `test` is true, or None.

    The function `test` turns a flat piece of the array into bools; it sees one piece after the other.
    """
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        found = test(flat[start : start + CHUNK])
        if found.any():
            return start + int(found.argmax())
    return None


def first_nonfinite(array):
    """Flat index (C order) of the first NaN or infinity in a float array of any shape, or None.

    Examples
    --------
    >>> first_nonfinite(np.array([[1, 2], [np.inf, np.nan]], np.float32))
    2
    """
    return first_where(array, lambda piece: ~np.isfinite(piece))
