"""The first step of a model: from token ids to the input of its first layer."""

import numpy as np

from mojolearn.layers import Linear
from mojolearn.weights import widen


class Embedding:
    """Rows of a matrix, scaled, with learned positions added (numerics page, section 6).

    Parameters
    ----------
    matrix : ndarray of shape (vocab_size, d_model) or Linear
        One row per token, in storage format; packed where it is the output head as well.
    multiplier : float, default 1.0
        Factor of the rows.
    positions : ndarray of float32, shape (max_positions, d_model), optional
        A row for each absolute position.

    Examples
    --------
    >>> embedding = Embedding(np.eye(2, dtype=np.float32), 3.0, np.ones((4, 2), np.float32))
    >>> embedding(np.array([[1, 0]]), 2)
    array([[[1., 4.],
            [4., 1.]]], dtype=float32)
    """

    def __init__(self, matrix, multiplier=1.0, positions=None):
        self.matrix, self.multiplier, self.positions = matrix, multiplier, positions

    def __call__(self, ids, first):
        """The rows of tokens.

        Parameters
        ----------
        ids : ndarray of int64, shape (B, L)
            Token ids.
        first : int
            Absolute position of the first token of each row.

        Returns
        -------
        ndarray of float32, C-contiguous, shape (B, L, d_model)
            New memory.
        """
        x = widen(self.matrix.rows(ids) if isinstance(self.matrix, Linear) else self.matrix[ids])
        if self.multiplier != 1:
            with np.errstate(over="ignore", under="ignore"):  # the first layer refuses what is not finite
                x = x * np.float32(self.multiplier)
        if self.positions is not None:
            x = x + self.positions[first : first + ids.shape[1]]
        return np.ascontiguousarray(x)
