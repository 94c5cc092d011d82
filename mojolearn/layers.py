"""Weights made ready for the kernels: `Linear` packs a matrix once, `Norm` holds a gain.

Both are callables on float32 rows and never change after construction.
"""

import threading

import numpy as np

from mojolearn.kernels.activation import ACTIVATIONS, NO_ACTIVATION
from mojolearn.kernels.linear import PANEL, linear_parallel, linear_serial, scratch_size
from mojolearn.kernels.norm import norm_parallel, norm_serial
from mojolearn.options import OFFSET_NORMS
from mojolearn.rules import LAYER_NORMS
from mojolearn.threads import run, workers

NOTHING = np.empty(0, np.float32)  # stands for "no bias", "no residual", "no cache"
KEPT = 1 << 22  # float32 numbers of scratch that a thread keeps at the most (16 MiB)
CACHE_LINE = 64  # bytes; a register load that crosses two lines takes twice as long


def aligned_empty(size, dtype=np.float32, *, zeros=False):
    """A flat array that starts on a cache line."""
    item = np.dtype(dtype).itemsize
    raw = (np.zeros if zeros else np.empty)(size + CACHE_LINE // item, dtype)
    skip = -raw.__array_interface__["data"][0] % CACHE_LINE // item
    return raw[skip : skip + size]


def aligned_zeros(size):
    """The same, of zeros; takes memory only where it is written."""
    return aligned_empty(size, zeros=True)


class Arena:
    """Memory for several arrays in one piece, each on a cache line of its own.

    The kernel of Linux gives large pieces pages of 2 MB instead of 4 kB; a decode step then waits less for addresses to
    be looked up: measured, 5 to 9 % faster than with the weights of each layer in a piece of its own.

    Parameters
    ----------
    nbytes : int
        Room, with `CACHE_LINE` to spare for each array.
    """

    def __init__(self, nbytes):
        self._free = aligned_empty(nbytes, np.uint8)

    def __call__(self, size, dtype):
        nbytes = size * np.dtype(dtype).itemsize
        taken, self._free = self._free[:nbytes], self._free[-(-nbytes // CACHE_LINE) * CACHE_LINE :]
        return taken.view(dtype)


def packed_nbytes(out_features, in_features, itemsize):
    """Bytes of the packed weights of a `Linear`, with `CACHE_LINE` to spare."""
    return -(-out_features // PANEL) * PANEL * in_features * itemsize + CACHE_LINE


class _Scratch(threading.local):
    """One buffer for each Python thread."""

    buffer = aligned_empty(0)


_scratch = _Scratch()


def scratch(size):
    """A flat float32 array for one kernel call: the same memory at each call of this Python thread.

    New memory would cost a page fault for every 4 kB; large pieces are still made anew rather than kept.
    """
    if size > KEPT:
        return aligned_empty(size)
    if _scratch.buffer.size < size:
        _scratch.buffer = aligned_empty(size)
    return _scratch.buffer


def _bits(array):
    """float16 as the bits that Numba can take; the other storage formats as they are."""
    return array.view(np.int16) if array.dtype == np.float16 else array


class Linear:
    """``x @ weight.T + bias`` in the order of the numerics page, section 2, or a gated pair of them.

    Parameters
    ----------
    weight : ndarray of shape (out_features, in_features)
        float32, uint16 (bfloat16 bits) or float16; copied.
    bias : ndarray of float32, shape (out_features,), optional
        Added to the finished sums.
    gate, gate_bias : ndarray, optional
        With a gate the result is ``activation(x @ gate.T + gate_bias) * (x @ weight.T + bias)``.
    activation : {None, "silu", "gelu_erf", "gelu_tanh", "relu", "relu2"}
        Applied to the gate, or to the result where there is none.
    place : callable, optional
        ``place(size, dtype)`` gives the memory for the packed weights, see `Arena`.

    Examples
    --------
    >>> layer = Linear(np.eye(3, dtype=np.float32), np.ones(3, np.float32))
    >>> layer(np.array([[1, 2, 3]], np.float32))
    array([[2., 3., 4.]], dtype=float32)
    """

    def __init__(self, weight, bias=None, *, gate=None, gate_bias=None, activation=None, place=aligned_empty):
        self.out_features, self.in_features = weight.shape
        self.gated = gate is not None
        self._step = 2 if self.gated else 1
        self.activation = NO_ACTIVATION if activation is None else ACTIVATIONS[activation]
        self._n_panels = -(-self.out_features // PANEL) * self._step
        self._panels = place(self._n_panels * self.in_features * PANEL, _bits(weight).dtype)
        self._bias = NOTHING if bias is None else np.zeros(self._n_panels * PANEL, np.float32)
        for which, (matrix, vector) in enumerate([(gate, gate_bias), (weight, bias)][-self._step :]):
            self._pack(_bits(matrix), vector, which)

    def _pack(self, matrix, bias, place):
        """Lay a matrix out as [panel][in][PANEL], into every _step-th panel; the last one is padded with zeros."""
        panels = self._panels.reshape(self._n_panels, self.in_features, PANEL)[place :: self._step]
        for panel, rows in zip(panels, self._row_slices(), strict=True):
            part = matrix[rows]
            panel[:, : len(part)] = part.T
            panel[:, len(part) :] = 0
        if bias is not None:
            padded = self._bias.reshape(-1, self._step, PANEL)[:, place]
            for i, rows in enumerate(self._row_slices()):
                padded[i, : len(bias[rows])] = bias[rows]

    def _row_slices(self):
        return [slice(first, first + PANEL) for first in range(0, self.out_features, PANEL)]

    def matrix(self, *, gate=False):
        """The weight (or the gate) as it was given, unpacked: (out_features, in_features) in storage format.

        Returns
        -------
        ndarray
            float32, uint16 or float16; a copy.
        """
        place = 0 if gate or not self.gated else 1
        panels = self._panels.reshape(self._n_panels, self.in_features, PANEL)[place :: self._step]
        rows = np.ascontiguousarray(panels.transpose(0, 2, 1)).reshape(-1, self.in_features)
        rows = rows[: self.out_features].copy()
        return rows.view(np.float16) if rows.dtype == np.int16 else rows

    def rows(self, which):
        """Some rows of the weight, as `matrix` has them: a tied embedding needs no copy of its own.

        Parameters
        ----------
        which : ndarray of int
            Their numbers.

        Returns
        -------
        ndarray, shape (*which.shape, in_features)
            float32, uint16 or float16.
        """
        panels = self._panels.reshape(-1, self._step, self.in_features, PANEL)[:, -1]
        rows = panels[which // PANEL, :, which % PANEL]
        return rows.view(np.float16) if rows.dtype == np.int16 else rows

    def vector(self, *, gate=False):
        """The bias (or the bias of the gate) as it was given, or None."""
        if self._bias is NOTHING:
            return None
        place = 0 if gate or not self.gated else 1
        return self._bias.reshape(-1, self._step, PANEL)[:, place].reshape(-1)[: self.out_features].copy()

    @property
    def nbytes(self):
        """Bytes of the packed weights and the bias."""
        return self._panels.nbytes + self._bias.nbytes

    @property
    def packed(self):
        """What a kernel takes of this layer: weights, number of panels, panels per output, bias."""
        return self._panels, self._n_panels, self._step, self._bias

    def scratch_size(self, n_rows):
        """Float32 numbers of scratch that each worker needs."""
        return scratch_size(n_rows, self.in_features, self._step)

    def flat(self, x, n_rows, residual=NOTHING):
        """The product of flat rows: x (n_rows * in_features,) to (n_rows * out_features,), plus ``residual``."""
        work = n_rows * self._panels.size
        n_workers = workers(work)
        size = self.scratch_size(n_rows)
        out = np.empty(n_rows * self.out_features, np.float32)
        run(
            linear_serial, linear_parallel, n_workers, work,
            x, n_rows, self.in_features, self._panels, self._n_panels, self._step, self.out_features,
            self._bias, self.activation, residual, out, scratch(n_workers * size), size,
        )  # fmt: skip
        return out

    def __call__(self, x):
        """The product of rows.

        Parameters
        ----------
        x : ndarray of float32, C-contiguous, shape (n_rows, in_features)
            Rows.

        Returns
        -------
        ndarray of float32, shape (n_rows, out_features)
            One result for each row.
        """
        n_rows = x.shape[0]
        if x.shape != (n_rows, self.in_features):
            raise ValueError(f"Linear: x has shape {x.shape}; wanted is (n_rows, {self.in_features})")
        return self.flat(x.reshape(-1), n_rows).reshape(n_rows, self.out_features)


class Norm:
    """RMSNorm or LayerNorm of rows (numerics page, section 3).

    Parameters
    ----------
    kind : {"rmsnorm", "layernorm", "rmsnorm_offset", "layernorm_offset"}
        The last two scale by 1 + weight.
    weight : ndarray of float32, shape (d,)
        Gain.
    bias : ndarray of float32, shape (d,), optional
        With the two kinds of layer norm only.
    eps : float
        Added to the mean square, or to the variance.

    Examples
    --------
    >>> Norm("rmsnorm", np.ones(2, np.float32))(np.array([[3, 4]], np.float32))
    array([[0.8485281, 1.1313708]], dtype=float32)
    """

    def __init__(self, kind, weight, bias=None, eps=1e-6):
        self.kind, self.weight, self.bias = kind, weight, bias
        self.eps = np.float32(eps)
        self.layer = kind in LAYER_NORMS
        # np.ascontiguousarray: kernels take one type of array; the sum 1 + weight is rounded once.
        self.gain = np.ascontiguousarray(np.float32(1) + weight if kind in OFFSET_NORMS else weight)
        self._bias = NOTHING if bias is None else np.ascontiguousarray(bias)

    @property
    def arrays(self):
        """What a kernel takes of this layer: gain and bias."""
        return self.gain, self._bias

    def flat(self, x, n_rows):
        """The norm of flat rows: x (n_rows * d,) to (n_rows * d,)."""
        out = np.empty_like(x)
        work = 8 * x.size  # a number costs about as much as eight multiply-adds
        run(
            norm_serial, norm_parallel, workers(work), work,
            x, n_rows, self.gain.size, self.layer, self.gain, self._bias, self.eps, out,
        )  # fmt: skip
        return out

    def __call__(self, x):
        """The norm of rows.

        Parameters
        ----------
        x : ndarray of float32, C-contiguous, shape (n_rows, d)
            Rows.

        Returns
        -------
        ndarray of float32, shape (n_rows, d)
            One result for each row.
        """
        if x.shape != (x.shape[0], self.gain.size):
            raise ValueError(f"Norm: x has shape {x.shape}; wanted is (n_rows, {self.gain.size})")
        return self.flat(x.reshape(-1), x.shape[0]).reshape(x.shape)
