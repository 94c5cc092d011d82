"""What a call on a block checks before it computes, and before it writes: one sentence for each refusal."""

import numpy as np

from mojolearn.buffers import first_nonfinite
from mojolearn.kernels import cache
from mojolearn.layers import NOTHING
from mojolearn.scalars import counted, kind
from mojolearn.state import TransformerState
from mojolearn.threads import run, workers

ALL = 3  # what cache.all_finite answers when it finds nothing


def check_finite(flat, name, shape, real=None):
    """Refuse an infinity or NaN in flat numbers of this shape; ``name``, with the method, starts the message.

    real: (B, L) of bool, where only the tokens marked in it are among the numbers.
    """
    if cache.all_finite(flat, NOTHING, NOTHING) != ALL:
        at = first_nonfinite(flat)
        index = np.unravel_index(at, shape)
        if real is not None:
            token, column = divmod(at, shape[-1])
            index = (*np.argwhere(real)[token], column)
        place = ", ".join(str(i) for i in index)
        raise ValueError(f"{name}[{place}] is {flat[at]}, which is not finite")


def check_cache(state, options, cached, method):
    """Refuse an infinity or NaN among the numbers of ``cached`` tokens in a state's buffers."""
    slots = (
        state.capacity if options.window else cached
    )  # without a window the blocks are packed at this length
    block, used = slots * options.head_dim, min(cached, slots) * options.head_dim
    n_blocks = state.batch_size * state.n_kv_heads
    n_workers = workers(n_blocks * used)
    broken = np.zeros(n_workers, np.int64)
    run(
        cache.scan_serial, cache.scan_parallel, n_workers, n_blocks * used,
        state._k, state._v, n_blocks, block, used, broken,
    )  # fmt: skip
    if broken.any():
        for name, flat in (("k_cache", state._k), ("v_cache", state._v)):
            for first in range(0, n_blocks * block, block):
                at = first_nonfinite(flat[first : first + used])
                if at is not None:
                    raise ValueError(
                        f"{method}: {name}[{first + at}] is {flat[first + at]}, which is not finite"
                    )


def admit_state(state, options, B, L, method, session=None):
    """Check a state against a block's options and L new tokens for B rows; returns its ``cached_tokens``.

    session: the decode session that makes the call, if one does. The numbers in its buffers are for `check_cache`.
    """
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
    if state.session is not session:
        raise ValueError(
            f"{method}: the state is in an open decode session; call the session's step or forward, or close it first"
        )
    return admit_length(state, L, method)


def admit_length(state, L, method):
    """Check a state's ``cached_tokens``, and that L more tokens fit; returns it."""
    cached = state._checked_length(method)
    if cached + L > state.max_tokens:
        raise ValueError(
            f"{method}: the state holds {counted(cached, 'token')} and has room for max_tokens={state.max_tokens}; "
            f"{L} more do not fit. Allocate a state with a larger max_tokens"
        )
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
    refuse_overflow(cache.all_finite(y, new_k, new_v), method)


def refuse_overflow(which, method):
    """Put into a sentence what ``cache.all_finite`` found in an output, new keys and new values."""
    if which != ALL:
        what = ("the output", "a new key", "a new value")[which]
        raise ValueError(
            f"{method}: {what} is too large for float32; x or the weights are too large (a state is unchanged)"
        )


def do_nothing():
    """What there is to commit without a state."""


def settle(commits):
    """Call what writes the states after everything has succeeded: all of it, even if an interrupt comes between.

    Each commit does nothing when it was done before, and changes a state in one kernel call.
    """
    try:
        for commit in commits:
            commit()
    except BaseException:
        for commit in commits:
            commit()
        raise
