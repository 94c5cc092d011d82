"""What a call on a block checks before it computes, and before it writes: one sentence for each refusal."""

import numpy as np

from mojolearn.kernels import cache
from mojolearn.scalars import kind
from mojolearn.state import TransformerState


def first_nonfinite(flat):
    """Index of the first infinity or NaN in a flat float32 array, or -1."""
    return cache.first_nonfinite(flat.view(np.int32), 1, flat.size, flat.size)


def check_finite(flat, n_blocks, block, used, name, shape):
    """Refuse an infinity or NaN in the first ``used`` of every ``block`` numbers; ``name`` starts the message."""
    at = cache.first_nonfinite(flat.view(np.int32), n_blocks, block, used)
    if at >= 0:
        index = ", ".join(str(i) for i in np.unravel_index(at, shape))
        raise ValueError(f"{name}[{index}] is {flat[at]}, which is not finite")


def admit_state(state, options, B, L, method):
    """Check a state against a block's options and L new tokens for B rows; returns its ``cached_tokens``."""
    if not isinstance(state, TransformerState):
        raise TypeError(f"{method}: state must be a TransformerState, not {kind(state)}")
    for name, wanted, whose in (
        ("n_kv_heads", options.n_kv_heads, "the block"),
        ("head_dim", options.head_dim, "the block"),
        ("window", options.window, "the block"),
        ("batch_size", B, "x"),
    ):
        if getattr(state, name) != wanted:
            raise ValueError(
                f"{method}: the state has {name}={getattr(state, name)}, but {whose} has {wanted}"
            )
    cached = state.checked_length(method)
    if cached + L > state.max_tokens:
        raise ValueError(
            f"{method}: the state holds {cached} tokens and has room for max_tokens={state.max_tokens}; "
            f"{L} more do not fit. Allocate a state with a larger max_tokens"
        )
    slots = (
        state.capacity if options.window else cached
    )  # without a window the blocks are packed at this length
    n_blocks, block, used = (
        B * options.n_kv_heads,
        slots * options.head_dim,
        min(cached, slots) * options.head_dim,
    )
    for name, flat in (("k_cache", state._k), ("v_cache", state._v)):
        check_finite(flat, n_blocks, block, used, f"{method}: {name}", flat.shape)
    return cached


def check_positions(end, max_positions, exact, method):
    """Refuse a call that reaches position ``end`` - 1 beyond the block's ceiling or the exact range of RoPE."""
    if max_positions is not None and end > max_positions:
        raise ValueError(f"{method}: the call reaches position {end - 1}, but max_positions={max_positions}")
    if end > exact:
        raise ValueError(
            f"{method}: the call reaches position {end - 1}, but with these RoPE options positions are exact only "
            f"below {exact}"
        )


def check_overflow(y, new_k, new_v, method):
    """Refuse infinities and NaN that finite inputs led to."""
    for name, flat in (("the output", y), ("a new key", new_k), ("a new value", new_v)):
        if first_nonfinite(flat) >= 0:
            raise ValueError(
                f"{method}: {name} is too large for float32; x or the weights are too large (a state is unchanged)"
            )
