"""The state of a whole model: one ``TransformerState`` per layer, which move together."""

from functools import partial

import numpy as np

from mojolearn.admission import settle
from mojolearn.claims import Claim
from mojolearn.scalars import admit_integer, counted, kind
from mojolearn.state import TransformerState


class CausalLMState:
    """What a model remembers of the tokens it has read.

    Parameters
    ----------
    blocks : list of TransformerState
        One per layer, all holding equally many tokens; `CausalLM.allocate_state` makes empty ones.

    Attributes
    ----------
    blocks : list of TransformerState
        The layers' states: plain buffers.

    Notes
    -----
    States compare equal when all their layers do. ``copy.copy``, ``copy.deepcopy`` and ``pickle`` give independent
    equal states, and so do `save` and `load`.
    """

    __hash__ = None

    def __init__(self, blocks):
        self.blocks = list(blocks)
        if not self.blocks:
            raise ValueError(
                "CausalLMState: blocks must be a list of at least one TransformerState, not empty"
            )

    @property
    def cached_tokens(self):
        """Number of tokens held; ``ValueError`` if the layers disagree."""
        counts = [block.cached_tokens for block in self.blocks]
        for layer, count in enumerate(counts):
            if count != counts[0]:
                raise ValueError(
                    f"CausalLMState: the layers must hold equally many tokens, but layer 0 holds {counts[0]} "
                    f"and layer {layer} holds {count}"
                )
        return counts[0]

    @property
    def position(self):
        """Position of the next token: `cached_tokens`, as positions count from 0."""
        return self.cached_tokens

    @property
    def positions(self):
        """Position of the next token of each row, shape (B,)."""
        return np.full(self.batch_size, self.cached_tokens)

    @property
    def batch_size(self):
        """Number of rows B."""
        return self.blocks[0].batch_size

    @property
    def max_tokens(self):
        """Room for tokens: the least of the layers'."""
        return min(block.max_tokens for block in self.blocks)

    @property
    def nbytes(self):
        """Bytes of all buffers."""
        return sum(block.nbytes for block in self.blocks)

    def copy(self):
        """Return an equal state that shares no memory with this one.

        Returns
        -------
        CausalLMState
            With a copy of each layer's state.

        Examples
        --------
        ``branch = state.copy()``, and each goes on for itself.
        """
        return CausalLMState([block.copy() for block in self.blocks])

    def save(self, path, model=None):
        """Write the state into one file, from which `load` makes it again; see `TransformerState.save`.

        Parameters
        ----------
        path : str or path
            The file, an ordinary ``.npz``, or in the safetensors format if its name ends in ``.safetensors``; replaced
            only when the new one is complete.
        model : CausalLM, optional
            The model that the state belongs to: its fingerprint is kept, so that `load` can compare it with another's.
            None keeps none.

        Raises
        ------
        OSError
            The file cannot be written. What stood there before is still there.
        TypeError, ValueError
            For a path or a model that does not fit, layers that disagree, and NaN or infinity in the slots in use.
        RuntimeError
            When another thread has a call running on this state.

        Examples
        --------
        >>> import os, tempfile
        >>> from mojolearn.models import BUILT_IN
        >>> from mojolearn.models.causal_lm import CausalLM
        >>> lm = CausalLM.load(BUILT_IN)
        >>> state = lm.allocate_state(1, 16)
        >>> first = lm.generate([[0, 1818, 305]], 5, state=state)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     state.save(os.path.join(folder, "state.safetensors"), lm)
        ...     loaded = CausalLMState.load(os.path.join(folder, "state.safetensors"), lm)
        >>> loaded == state, loaded.position
        (True, 8)
        """
        from mojolearn.models.saved_model_state import (
            save_model_state,  # which needs models, and these need states
        )

        save_model_state(self, path, model)

    @classmethod
    def load(cls, path, model=None):
        """Make the state that `save` has written: what follows has the bits that would have followed there.

        Parameters
        ----------
        path : str or path
            The file.
        model : CausalLM, optional
            The model that the state is for: refused unless it computes the same as the one that was given to `save`.
            None compares nothing.

        Returns
        -------
        CausalLMState
            As `TransformerState.load` makes each layer's.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        TypeError, ValueError
            A field is missing, changed or strange, or belongs to another model, another version of the numerics or
            another kind of file; the message names file and field.
        MemoryError
            If the buffers do not fit, naming the bytes.

        Examples
        --------
        ``state = CausalLMState.load("state.npz", lm)``
        """
        from mojolearn.models.saved_model_state import load_model_state  # as above

        return load_model_state(cls, path, model)

    __copy__ = copy

    def __deepcopy__(self, memo):
        return self.copy()

    def __eq__(self, other):
        return self.blocks == other.blocks if isinstance(other, CausalLMState) else NotImplemented

    def __repr__(self):
        return (
            f"CausalLMState(batch_size={self.batch_size}, cached_tokens={self.cached_tokens}/{self.max_tokens}, "
            f"layers={len(self.blocks)}, {self.nbytes / 2**20:.1f} MiB)"
        )


def allocate(blocks, batch_size, max_tokens):
    """Make an empty state for the layers of a model; see `CausalLM.allocate_state`."""
    method = "CausalLM.allocate_state"
    batch_size = admit_integer(batch_size, "batch_size", method, 1)
    max_tokens = admit_integer(max_tokens, "max_tokens", method, 1)
    try:
        return CausalLMState([block.allocate_state(batch_size, max_tokens) for block in blocks])
    except MemoryError:
        sizes = [batch_size * b.options.kv_width * (b.window or max_tokens) for b in blocks]
        raise MemoryError(
            f"{method}: batch_size={batch_size} and max_tokens={max_tokens} ask for {8 * sum(sizes)} bytes in "
            f"{counted(len(blocks), 'layer')}, which this machine does not have"
        ) from None


def claim_layers(state, method):
    """Hold all layers for the time of a ``with`` statement, in which they are checked and used.

    What is checked outside may be of another moment: in the midst of another thread's call layers disagree, and after
    it they hold more tokens.
    """
    return Claim(state.blocks if isinstance(state, CausalLMState) else (), method)


def admit_state(state, n_layers, B, L, method):
    """Check all layers before the first one runs; the caller holds them (`claim_layers`).

    Parameters
    ----------
    state : CausalLMState
        The state.
    n_layers, B, L : int
        Layers of the model, rows, and tokens to add to each.
    method : str
        The public name that messages start with.

    Returns
    -------
    int
        The number of tokens held.

    Raises
    ------
    TypeError, ValueError
        The state is another object, of another model or batch, or has no room; or its layers disagree.
    """
    if not isinstance(state, CausalLMState):
        raise TypeError(
            f"{method}: state must be a CausalLMState, not {kind(state)}; allocate_state makes one"
        )
    if len(state.blocks) != n_layers:
        raise ValueError(
            f"{method}: the state has {counted(len(state.blocks), 'layer')}, but the model has {n_layers}"
        )
    held = check_layers(state, method)
    for layer, block in enumerate(state.blocks):
        where = f"{method}: layer {layer} of the state"
        if block.batch_size != B:
            raise ValueError(f"{where} has {counted(block.batch_size, 'row')}, but ids has {B}")
        if held + L > block.max_tokens:
            raise ValueError(
                f"{where} holds {counted(held, 'token')} and has room for max_tokens={block.max_tokens}; "
                f"{L} more {'does' if L == 1 else 'do'} not fit. Allocate a state with a larger max_tokens"
            )
    return held


def check_layers(state, method):
    """Check that the layers of a state are states of their own which agree; returns the number of tokens they hold."""
    if not state.blocks:
        raise ValueError(f"{method}: the state has no layers")
    if len({id(block) for block in state.blocks}) < len(state.blocks):
        raise ValueError(f"{method}: two layers of the state are one object; each needs a state of its own")
    for layer, block in enumerate(state.blocks):
        where = f"{method}: layer {layer} of the state"
        if not isinstance(block, TransformerState):
            raise TypeError(f"{where} must be a TransformerState, not {kind(block)}")
        held = block._checked_length(f"{method}: layer {layer}")
        if layer == 0:
            first, rows = held, block.batch_size
        if block.batch_size != rows:
            raise ValueError(f"{where} has {counted(block.batch_size, 'row')}, but layer 0 has {rows}")
        if held != first:
            raise ValueError(
                f"{where} holds {counted(held, 'token')}, but layer 0 holds {first}; they must be equal"
            )
    return first


def begin_from(source, target, method):
    """Copy the tokens of one state into another of the same kind, and return that; from None, nothing."""
    if source is not None:
        with Claim(source.blocks, method):
            for mine, theirs in zip(target.blocks, source.blocks, strict=True):
                _copy_block(theirs, mine)
    return target


def replace_state(state, source, held, method, note):
    """Give a caller's state the contents of another, in all layers or in none.

    Parameters
    ----------
    state : CausalLMState
        To be written.
    source : CausalLMState
        Of the same kind.
    held : int
        Tokens that the state must hold still.
    method : str
        The public name that messages start with.
    note : callable
        Called when it is done, and never left out by an interrupt.
    """
    with Claim(state.blocks, method):
        for layer, block in enumerate(state.blocks):
            where = f"{method}: layer {layer} of the state"
            if block.session is not None:
                raise ValueError(f"{where} is in an open decode session; close it first")
            if block.cached_tokens != held:
                raise ValueError(
                    f"{where} has changed since the stream began, from {counted(held, 'token')} to "
                    f"{block.cached_tokens}; the stream's tokens are not added"
                )
        pairs = zip(source.blocks, state.blocks, strict=True)
        settle([*(partial(_copy_block, theirs, mine) for theirs, mine in pairs), note])


def _copy_block(source, target):
    held = source.cached_tokens
    used = source.batch_size * source.n_kv_heads * source.head_dim * (source.window or held)
    target._k[:used] = source._k[:used]
    target._v[:used] = source._v[:used]
    target.cached_tokens = held
