"""The state of a whole model: one ``TransformerState`` per layer, which move together."""

import numpy as np

from mojolearn.scalars import kind
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
        The layers' states: plain buffers, which are all there is to save.
    """

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
        """Return an equal state that shares no memory with this one."""
        return CausalLMState([block.copy() for block in self.blocks])

    __copy__ = copy

    def __deepcopy__(self, memo):
        return self.copy()

    def __repr__(self):
        return (
            f"CausalLMState(batch_size={self.batch_size}, cached_tokens={self.cached_tokens}/{self.max_tokens}, "
            f"layers={len(self.blocks)}, {self.nbytes / 2**20:.1f} MiB)"
        )


def admit_state(state, n_layers, B, L, method):
    """Check all layers before the first one runs.

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
        raise ValueError(f"{method}: the state has {len(state.blocks)} layers, but the model has {n_layers}")
    if len({id(block) for block in state.blocks}) < n_layers:
        raise ValueError(f"{method}: two layers of the state are one object; each needs a state of its own")
    for layer, block in enumerate(state.blocks):
        where = f"{method}: layer {layer} of the state"
        if not isinstance(block, TransformerState):
            raise TypeError(f"{where} must be a TransformerState, not {kind(block)}")
        held = block.checked_length(f"{method}: layer {layer}")
        if layer == 0:
            first = held
        if block.batch_size != B:
            raise ValueError(f"{where} has {block.batch_size} rows, but ids has {B}")
        if held != first:
            raise ValueError(f"{where} holds {held} tokens, but layer 0 holds {first}; they must be equal")
        if held + L > block.max_tokens:
            raise ValueError(
                f"{where} holds {held} tokens and has room for max_tokens={block.max_tokens}; {L} more do not fit. "
                "Allocate a state with a larger max_tokens"
            )
    return first


class Undo:
    """Takes one layer's state back to where it was before ``new`` tokens were added.

    A model call must change all layers or none, but layer 0 has moved on long before layer 5 can fail. Copying
    every cache beforehand would cost as much as a decode step. Adding tokens only *moves* what a packed cache
    holds and overwrites the spare room behind it (in a ring: the slots of the oldest tokens); so those few
    values are remembered, and the rest can be moved back.
    """

    def __init__(self, state, new):
        self.state, self.held, self.buffers = state, state.cached_tokens, (state._k, state._v)
        heads, window, head_dim = state.batch_size * state.n_kv_heads, state.window, state.head_dim
        self.packed = None if window else (heads, self.held + new, head_dim)
        if window:
            slots = np.arange(self.held + max(0, new - window), self.held + new) % window
            rows = (np.arange(heads)[:, None] * window + slots)[:, :, None]
            self.place = (rows * head_dim + np.arange(head_dim)).reshape(-1)
        else:
            self.place = slice(heads * self.held * head_dim, heads * (self.held + new) * head_dim)
        self.overwritten = [buffer[self.place].copy() for buffer in self.buffers]

    def back(self):
        """Restore every byte, unless the layer was never reached or refused: then it has not changed."""
        if self.state.cached_tokens == self.held:
            return
        for buffer, values in zip(self.buffers, self.overwritten):
            if self.packed:
                start, stop = self.place.start, self.place.stop
                buffer[:start] = buffer[:stop].reshape(self.packed)[:, : self.held].reshape(-1)
            buffer[self.place] = values
        self.state.cached_tokens = self.held
