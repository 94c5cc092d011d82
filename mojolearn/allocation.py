"""Buffers and states of zeros, or a sentence that says how many bytes there are not."""

import numpy as np

from mojolearn.scalars import admit_integer
from mojolearn.state import TransformerState


def allocate(options, batch_size, max_tokens, method):
    """A state of zeros for a block with these options; ``method``, a public name, starts the messages."""
    batch_size = admit_integer(batch_size, "batch_size", method, 1)
    max_tokens = admit_integer(max_tokens, "max_tokens", method, 1)
    sizes = (options.n_kv_heads, options.head_dim, options.window)
    buffers = allocate_buffers(batch_size, *sizes, max_tokens, method)
    return TransformerState(batch_size, *sizes[:2], max_tokens, *buffers, 0, options.window)


def allocate_buffers(batch_size, n_kv_heads, head_dim, window, max_tokens, where):
    """Two buffers of zeros; a ``MemoryError`` that starts with ``where`` says how many bytes there are not."""
    size = batch_size * n_kv_heads * (window or max_tokens) * head_dim
    try:
        return np.zeros(size, np.float32), np.zeros(size, np.float32)
    except (MemoryError, ValueError, OverflowError):  # NumPy answers in either way, by the size
        raise MemoryError(
            f"{where}: batch_size={batch_size} and max_tokens={max_tokens} ask for two buffers of "
            f"{4 * size} bytes each, which this machine does not have"
        ) from None
