"""Rows of different lengths in one call: only their real tokens are computed, packed together."""

import numpy as np

from mojolearn.admission import check_finite, check_positions
from mojolearn.layers import NOTHING


def forward_ragged(block, x, lengths, method, look):
    """Compute the outputs of a padded batch without a state.

    Parameters
    ----------
    block : TransformerBlock
        The block.
    x : ndarray of float32, shape (B, L, d_model)
        Inputs; what stands after a row's real tokens is not read.
    lengths : ndarray of int64, shape (B,)
        Real tokens of each row.
    method : str
        The public name that messages start with.
    look : Look or NoLook
        What is to be returned besides.

    Returns
    -------
    ndarray of float32, shape (B, L, d_model)
        +0.0 after the real tokens; with a `Look`, a tuple of this and what it has kept.
    """
    longest = int(lengths.max())
    check_positions(longest, block.options.max_positions, block._positions, method)
    real = np.arange(x.shape[1]) < lengths[:, None]
    tokens = x[real]
    check_finite(tokens.reshape(-1), f"{method}: x", x.shape, real)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.concatenate([np.arange(n) for n in lengths])
    frequencies = block._pipeline.frequencies(*lengths)
    look.begin(*x.shape[:2], real)
    with block._limit:
        y, _, _ = block._outputs(
            tokens.reshape(-1), starts, positions, frequencies, longest, 0, (NOTHING, NOTHING), method, look
        )
    out = np.zeros(x.shape, np.float32)
    out[real] = y.reshape(-1, x.shape[2])
    return look.answer(out)
