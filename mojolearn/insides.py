"""Looking inside a block: what stands between its steps, and the weights of its attention, without changing a bit.

``return_hidden`` and ``return_attention`` of `TransformerBlock.forward` and `CausalLM.forward` end here. The arrays are
copies of what the call itself computes with; the weights of attention are computed once more, by the same code.
"""

import math
from functools import partial

import numpy as np

from mojolearn.kernels import attention
from mojolearn.kernels.attention_weights import weights_parallel, weights_serial
from mojolearn.layers import scratch
from mojolearn.scalars import admit_switch, brief, did_you_mean, shown
from mojolearn.threads import run, workers

# What stands inside a block, in the order of the computation; their widths are in the guide.
HIDDEN = ("input", "attention_input", "context", "middle", "mlp_input", "mlp_hidden", "output")


class NoLook:
    """What a call looks with from which nothing but its output is wanted."""

    def begin(self, B, L, real=None):
        """As of `Look`."""

    def __call__(self, name, flat):
        """As of `Look`."""

    def watched(self, pipeline, attend, starts, longest, cached, k_cache):
        """The same ``attend``."""
        return attend

    def answer(self, y):
        """The output."""
        return y


DO_NOT_LOOK = NoLook()


class Look:
    """What one call on a block is to keep, and what it has kept.

    Parameters
    ----------
    names : sequence of str, optional
        Out of `HIDDEN`; None: nothing hidden is to be returned.
    attention : bool
        Whether to keep the weights of attention.
    method : str
        The public name that messages start with.

    Attributes
    ----------
    hidden : dict of str to ndarray of float32, shape (B, L, width)
        What was asked for by name, filled by the call.
    attention : ndarray of float32, shape (B, n_heads, L, S + L), or None
        Weights, column j that of position j, filled by the call if asked for.
    """

    def __init__(self, names, attention, method):
        self.names, self.wants_attention, self.method = names, attention, method
        self.hidden, self.attention = {}, None
        self._shape = self._real = None

    def begin(self, B, L, real=None):
        """Say what shape the input has, and for rows of several lengths which tokens are real, (B, L) of bool."""
        self._shape, self._real = (B, L), real

    def __call__(self, name, flat):
        """Keep a copy of the flat rows of all real tokens, if they were asked for under this name."""
        if self.names is None or name not in self.names:
            return
        rows = flat.reshape(self._n_tokens, -1)
        if self._real is None:
            self.hidden[name] = rows.reshape(*self._shape, -1).copy()
        else:
            self.hidden[name] = np.zeros((*self._shape, rows.shape[1]), np.float32)
            self.hidden[name][self._real] = rows

    @property
    def _n_tokens(self):
        return self._shape[0] * self._shape[1] if self._real is None else int(self._real.sum())

    def watched(self, pipeline, attend, starts, longest, cached, k_cache):
        """The same ``attend`` for `Pipeline.run`, which also keeps the weights if they were asked for."""
        return partial(self._weigh, pipeline, attend, starts, longest, cached, k_cache)

    def _weigh(self, pipeline, attend, starts, longest, cached, k_cache, qkv, new_k, new_v):
        if self.wants_attention:
            o = pipeline.options
            B, L = self._shape
            n_keys = cached + L
            out = self._zeros(B, o.n_heads, L, n_keys)
            work = 2 * int(starts[-1]) * o.q_width * min(cached + longest, o.window or cached + longest)
            n_workers = workers(work)
            size = attention.scratch_size(longest, o.group, o.head_dim, cached, o.window)
            run(
                weights_serial, weights_parallel, n_workers, work,
                qkv, starts, longest, B, o.n_heads, o.n_kv_heads, o.head_dim, k_cache, cached, o.window, pipeline.scale,
                pipeline.softcap, new_k, out.reshape(-1), L, n_keys, scratch(n_workers * size), size,
            )  # fmt: skip
            self.attention = out
        return attend(qkv, new_k, new_v)

    def answer(self, y):
        """What the call returns: its output, then the hidden numbers and the weights, each if it was asked for."""
        hidden = {name: self.hidden[name] for name in HIDDEN if name in self.hidden}
        return (
            y,
            *([] if self.names is None else [hidden]),
            *([self.attention] if self.wants_attention else []),
        )

    def _zeros(self, *shape):
        try:
            return np.zeros(shape, np.float32)
        except (MemoryError, ValueError):  # NumPy answers in either way, by the size
            nbytes = 4 * math.prod(shape)
            raise MemoryError(
                f"{self.method}: return_attention asks for weights of shape {shape}, {nbytes} bytes, which this "
                "machine does not have"
            ) from None


def admit_look(return_hidden, return_attention, method):
    """Check what a call on a block is to return besides its output.

    Parameters
    ----------
    return_hidden : bool or sequence of str
        True, or names out of `HIDDEN`.
    return_attention : bool
        Whether to return the weights.
    method : str
        The public name that messages start with.

    Returns
    -------
    Look or NoLook
        `DO_NOT_LOOK` if nothing is asked for.

    Raises
    ------
    TypeError, ValueError
        For anything else.

    Examples
    --------
    >>> sorted(admit_look(["middle", "context"], False, "TransformerBlock.forward").names)
    ['context', 'middle']
    """
    attention = admit_switch(return_attention, "return_attention", method)
    names = admit_names(return_hidden, HIDDEN, method)
    return DO_NOT_LOOK if names is None and not attention else Look(names, attention, method)


def admit_names(given, choices, method):
    """Turn True or a sequence of names out of ``choices`` into a list of names, and False into None."""
    if isinstance(given, (bool, np.bool_)):
        return list(choices) if given else None
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise TypeError(f"{method}: return_hidden must be True, False or a list of names, not {shown(given)}")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"{method}: return_hidden must hold names, not {shown(name)}")
        if name not in choices:
            raise ValueError(
                f"{method}: return_hidden holds {brief(name)}{did_you_mean(name, choices)}; the names are "
                f"{', '.join(choices)}"
            )
    return list(given)
