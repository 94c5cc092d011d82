"""``features``: the method of `CausalLM` that turns each text into one vector."""

import numpy as np

from mojolearn.models.ids import admit_prompts
from mojolearn.models.insides import hidden_places
from mojolearn.models.loading import retold
from mojolearn.scalars import admit_choice, admit_integer

POOLINGS = ("mean", "last")
TOKENS = 1024  # of one batch, padding included; matrices are then read once for many texts


def features(self, ids, *, layer=None, pooling="mean"):
    """Compute one vector for each text out of the hidden states of its tokens.

    Parameters
    ----------
    ids : array or nested list of int
        Texts: shape (B, L), or B sequences of any lengths.
    layer : int or str, optional
        Which hidden states: a layer's number or "block_2" for what comes out of this layer, "embed" or "final_norm", as
        in `forward`. None takes what the head reads: "final_norm" where the model has one. Layers after the one that is
        asked for are not computed.
    pooling : {"mean", "last"}
        The mean over all tokens of the text, or the state of its last token, the only one that has seen all others.

    Returns
    -------
    ndarray of float32, shape (B, d_model)
        A text's numbers do not depend on the other texts.

    Raises
    ------
    TypeError, ValueError
        For ids, a layer or a pooling that do not fit, for more positions than ``max_positions``, and when a number
        would not be finite in float32.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> lm = CausalLM.load(BUILT_IN)
    >>> both = lm.features([[0, 1818, 305, 267], [0, 774]], layer=2)
    >>> both.shape, bool((both[1:] == lm.features([[0, 774]], layer=2)).all())
    ((2, 192), True)
    """
    method = "CausalLM.features"
    n_blocks, normed = admit_layer(self, layer, method)
    admit_choice(pooling, "pooling", method, POOLINGS)
    rows = admit_prompts(ids, self.vocab_size, method)
    self._check_positions(max(len(row) for row in rows), method)
    vectors = np.empty((len(rows), self.d_model), np.float32)
    for batch in batches([len(row) for row in rows]):
        lengths = [len(rows[i]) for i in batch]
        padded = np.zeros((len(batch), max(lengths)), np.int64)
        for row, i in zip(padded, batch, strict=True):
            row[: len(rows[i])] = rows[i]
        with self._limit:
            x = self._embedding(padded, 0)
            for number, block in enumerate(self.blocks[:n_blocks]):
                x = _through(block, x, lengths, f"{method}: layer {number}")
            if normed:
                x = self._norm(x.reshape(-1, self.d_model)).reshape(x.shape)
        vectors[batch] = pooled(x, np.array(lengths), pooling)
    if not np.isfinite(vectors).all():
        raise ValueError(f"{method}: a feature is too large for float32; the weights are too large")
    return vectors


def admit_layer(lm, layer, method):
    """Check which hidden states are wanted: the number of blocks before them, and whether the final norm follows."""
    if layer is None:
        return lm.n_layers, lm._norm is not None
    if not isinstance(layer, str):
        return admit_integer(layer, "layer", method, 0, lm.n_layers - 1) + 1, False
    outer = hidden_places(lm, True, method)
    if layer not in outer:
        named = f"{', '.join(list(outer)[:2])} to {list(outer)[-1]}"
        raise ValueError(
            f"{method}: layer must be a number from 0 to {lm.n_layers - 1}, or {named}, not {layer!r}"
        )
    number, inner = outer[layer]
    if number < 0:
        return lm.n_layers, True
    return number + (inner == "output"), False


def batches(lengths):
    """Deal rows of these lengths out into batches of about equal lengths and not too many tokens."""
    batch = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[i] > TOKENS:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def pooled(x, lengths, pooling):
    """One vector of each row of x (B, L, d_model), of which lengths (B,) tokens count."""
    if pooling == "last":
        return x[np.arange(len(x)), lengths - 1]
    total = np.zeros((len(x), x.shape[2]), np.float32)
    with np.errstate(over="ignore"):  # what is not finite is refused
        for t in range(x.shape[1]):  # one after the other, by position: any other order would change bits
            total[t < lengths] += x[t < lengths, t]
    return total / lengths[:, None].astype(np.float32)


def _through(block, x, lengths, where):
    # A function of its own: Python 3.11 leaves the line of a nested `try` out of the handlers around it.
    try:
        return block.forward(x, lengths=lengths)
    except (TypeError, ValueError, MemoryError) as error:
        raise retold(error, where) from error
