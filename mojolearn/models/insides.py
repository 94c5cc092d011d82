"""Looking inside a model, and walking through it by hand: from ids to the first layer, and from a layer to logits."""

import re

import numpy as np

from mojolearn import insides
from mojolearn.admission import check_finite
from mojolearn.buffers import admit_input, first_nonfinite
from mojolearn.models.ids import admit_ids
from mojolearn.scalars import admit_integer, admit_switch, brief, did_you_mean, shown

LAYER = re.compile(r"block_(\d{1,9})(?:\.(\w+))?")


class NoLook:
    """What a call looks with from which nothing but logits is wanted."""

    def at(self, layer):
        """Return what the block of a layer looks with."""
        return insides.DO_NOT_LOOK

    def final_norm(self, rows, B, L):
        """As of `Look`."""

    def answer(self, logits):
        """Return the logits."""
        return logits


DO_NOT_LOOK = NoLook()


class Look:
    """What one call on a model is to keep, and what it has kept.

    Parameters
    ----------
    names : dict of str to (int, str), optional
        Layer and name inside it of each hidden state; (-1, "") is that of the final norm. None: no hidden states are to
        be returned.
    layers : list of int, optional
        Whose weights of attention are to be returned. None: none are.
    method : str
        The public name that messages start with.
    """

    def __init__(self, names, layers, method):
        self._names, self._layers, self._normed = names, layers, None
        wanted = {layer: set() for layer in layers or ()}
        for layer, name in (names or {}).values():
            wanted.setdefault(layer, set()).add(name)
        self._looks = {
            layer: insides.Look(inner, layer in (layers or ()), f"{method}: layer {layer}")
            for layer, inner in wanted.items()
        }

    def at(self, layer):
        """Return what the block of a layer looks with."""
        return self._looks.get(layer, insides.DO_NOT_LOOK)

    def final_norm(self, rows, B, L):
        """Keep a copy of what the head reads, if it was asked for."""
        if -1 in self._looks:
            self._normed = rows.reshape(B, L, -1).copy()

    def answer(self, logits):
        """Return the logits, then hidden states and weights, each if they were asked for."""
        results = [logits]
        if self._names is not None:
            results.append({name: self._hidden(*place) for name, place in self._names.items()})
        if self._layers is not None:
            results.append({layer: self._looks[layer].attention for layer in self._layers})
        return tuple(results)

    def _hidden(self, layer, name):
        return self._normed if layer < 0 else self._looks[layer].hidden[name]


def admit_look(lm, return_hidden, return_attention, method):
    """Check what a call on a model is to return besides logits.

    Parameters
    ----------
    lm : CausalLM
        The model.
    return_hidden : bool or list of str or int
        True, or names; an integer is the number of a layer.
    return_attention : bool or list of int
        True, or numbers of layers.
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
    """
    places = hidden_places(lm, return_hidden, method)
    layers = None
    if not isinstance(return_attention, (bool, np.bool_)):
        given = admit_list(return_attention, "return_attention", "True, False or a list of layers", method)
        last = lm.n_layers - 1
        layers = sorted({admit_integer(n, "a layer in return_attention", method, 0, last) for n in given})
    elif admit_switch(return_attention, "return_attention", method):
        layers = list(range(lm.n_layers))
    return DO_NOT_LOOK if places is None and layers is None else Look(places, layers, method)


def hidden_places(lm, given, method):
    """Turn ``return_hidden`` into a dict from name to (layer, name inside it), in the order of the model, or None."""
    outer = {"embed": (0, "input")} | {f"block_{i}": (i, "output") for i in range(lm.n_layers)}
    if lm._norm is not None:
        outer["final_norm"] = (-1, "")
    if isinstance(given, (bool, np.bool_)):
        return outer if given else None
    given = admit_list(given, "return_hidden", "True, False or a list of names", method)
    places = {}
    for name in given:
        if not isinstance(name, str):
            name = f"block_{admit_integer(name, 'a layer in return_hidden', method, 0, lm.n_layers - 1)}"
        places[name] = outer[name] if name in outer else _inner_place(lm, name, outer, method)
    return dict(sorted(places.items(), key=lambda item: _order(lm, *item[1])))


def _order(lm, layer, name):
    """Where a hidden state stands in the model."""
    return (lm.n_layers, 0) if layer < 0 else (layer, insides.HIDDEN.index(name))


def _inner_place(lm, name, outer, method):
    """Layer and name of "block_2.context"."""
    found = LAYER.fullmatch(name)
    if found and int(found[1]) < lm.n_layers and found[2] in insides.HIDDEN:
        return int(found[1]), found[2]
    why = ""
    if found is None and name == "final_norm":
        why = "; this model has no final norm"
    elif found is None:
        why = did_you_mean(name, outer)
    raise ValueError(
        f"{method}: return_hidden holds {brief(name)}{why}; the names are {', '.join(list(outer)[:2])} to "
        f"{list(outer)[-1]}, and those inside a layer, block_0.{', block_0.'.join(insides.HIDDEN)}"
    )


def admit_list(given, name, wanted, method):
    """Check that an argument is a list, tuple, set, range or array."""
    if not isinstance(given, (list, tuple, set, frozenset, range, np.ndarray)):
        raise TypeError(f"{method}: {name} must be {wanted}, not {shown(given)}")
    return list(given)


def embed(self, ids, *, position=0):
    """Compute the input of the first layer.

    With `unembed` this makes a model a loop over its blocks, to be written by hand wherever something is to be changed
    between them; the loop as it stands here gives the bits of `forward`.

    Parameters
    ----------
    ids : array or nested list of int, shape (B, L)
        Token ids.
    position : int, default 0
        Of the first token of each row; it matters for models with learned positions only.

    Returns
    -------
    ndarray of float32, shape (B, L, d_model)
        New memory.

    Raises
    ------
    TypeError, ValueError
        For ids that do not fit, and for more positions than ``max_positions``.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> lm = CausalLM.load(BUILT_IN)
    >>> x = lm.embed([[0, 1818, 305]])
    >>> for block in lm.blocks:
    ...     x = block(x)
    >>> bool((lm.unembed(x) == lm.forward([[0, 1818, 305]])).all())
    True
    """
    method = "CausalLM.embed"
    ids = admit_ids(ids, self.vocab_size, method)
    position = admit_integer(position, "position", method, 0)
    self._check_positions(position + ids.shape[1], method)
    return self._embedding(ids, position)


def unembed(self, x, *, norm=True):
    """Compute logits from hidden states of any layer: the final norm and the head.

    Parameters
    ----------
    x : float32 array of shape (B, L, d_model)
        Hidden states after the last layer, or after an earlier one ("logit lens").
    norm : bool, default True
        Whether the final norm is still to come; False for what `forward` returns as "final_norm".

    Returns
    -------
    ndarray of float32, shape (B, L, vocab_size)
        ``[:, t]`` predicts the token after token t.

    Raises
    ------
    TypeError, ValueError
        For an array that does not fit or is not finite, and when a logit would not be finite in float32.

    Examples
    --------
    See `embed`.
    """
    method = "CausalLM.unembed"
    x = admit_input(x, self.d_model, method)
    norm = admit_switch(norm, "norm", method)
    check_finite(x.reshape(-1), f"{method}: x", x.shape)
    rows = x.reshape(-1, self.d_model)
    with self._limit:
        logits = self._head(self._norm(rows) if norm and self._norm is not None else rows)
    if first_nonfinite(logits) is not None:
        raise ValueError(f"{method}: a logit is too large for float32; x or the weights are too large")
    return logits.reshape(*x.shape[:2], self.vocab_size)
