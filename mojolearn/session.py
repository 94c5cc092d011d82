"""`TransformerDecodeSession`: a state's cache in a resident layout, for many single steps."""

from functools import partial

import numpy as np

from mojolearn.admission import (
    admit_length,
    admit_state,
    check_cache,
    check_finite,
    check_positions,
    settle,
)
from mojolearn.buffers import admit_input
from mojolearn.claims import Claim
from mojolearn.kernels import resident
from mojolearn.kernels.addresses import place_of
from mojolearn.layers import aligned_zeros
from mojolearn.scalars import counted
from mojolearn.stepping import Stepper

NAME = "TransformerDecodeSession"


class TransformerDecodeSession:
    """Decode with a block and a state without repacking the cache at each token.

    The state's buffers are packed at the used length, so a plain `TransformerBlock.step` moves and checks all of them.
    A session copies them once into a layout in which a new token moves nothing, and writes them back when asked or
    closed. Outputs and buffers are bit for bit those of the plain calls.

    While it is open, ``state.cached_tokens`` is current and ``state.keys()``, ``state.values()`` and copies see every
    token; only the raw buffers lag behind until `sync_state` or `close`. The block's own calls refuse the state.

    Parameters
    ----------
    block : TransformerBlock
        The block.
    state : TransformerState
        The state; must fit the block and be in no other session.

    Raises
    ------
    TypeError, ValueError
        For a state that does not fit, saying what is wanted.

    Examples
    --------
    See `TransformerBlock.decode_session`, which opens one.
    """

    def __init__(self, block, state):
        method = "TransformerBlock.decode_session"
        self._block, self._state = block, state
        self._counts = np.zeros(resident.N_COUNTS, np.int64)
        try:
            with Claim([state], method):
                self._begin(method)
        except BaseException:  # an interrupt may come when all is done: nobody would close the session
            self._counts[resident.OPEN] = 0
            raise

    def _begin(self, method):
        state, options = self._state, self._block.options
        cached = admit_state(state, options, getattr(state, "batch_size", 0), 0, method)
        check_cache(state, options, cached, method)
        n_blocks = state.batch_size * state.n_kv_heads
        self._slots, key_size, value_size = resident.sizes(n_blocks, state.capacity, state.head_dim)
        try:
            self._keys, self._values = aligned_zeros(key_size), aligned_zeros(value_size)
        except (MemoryError, ValueError):
            raise MemoryError(
                f"{method}: the session's copy of the cache needs {4 * (key_size + value_size)} bytes, which this "
                "machine does not have"
            ) from None
        self._record = self._describe()
        self._stepper = Stepper([self])
        self._take(cached)
        state._session = self
        self._counts[resident.OPEN] = 1

    @property
    def state(self):
        """The state of the session."""
        return self._state

    @property
    def is_open(self):
        """Whether the session can still be used."""
        return bool(self._counts[resident.OPEN])

    def step(self, x):
        """Process one token of each sequence, as `TransformerBlock.step`.

        Parameters
        ----------
        x : float32 array of shape (B, d_model) or (B, 1, d_model)
            Inputs.

        Returns
        -------
        ndarray of float32, shape (B, 1, d_model)
            C-contiguous.

        Raises
        ------
        TypeError, ValueError
            As `TransformerBlock.step`, and when the session is closed. Nothing has then changed.
        """
        return self._call(admit_input(x, self._block.d_model, f"{NAME}.step", step=True), f"{NAME}.step")

    def forward(self, x):
        """Process L tokens of each sequence, as `TransformerBlock.forward`.

        More than one token goes through the state's own buffers: they are written back, advanced and loaded again.

        Parameters
        ----------
        x : float32 array of shape (B, L, d_model)
            Inputs.

        Returns
        -------
        ndarray of float32, shape (B, L, d_model)
            C-contiguous.

        Raises
        ------
        TypeError, ValueError
            As `TransformerBlock.forward`, and when the session is closed. Nothing has then changed.
        """
        return self._call(admit_input(x, self._block.d_model, f"{NAME}.forward"), f"{NAME}.forward")

    def _call(self, x, method):
        tokens = x.reshape(-1)
        B, L, _ = x.shape
        with self._block._limit, Claim([self._state], method):
            self._check_open(method)  # another thread may have closed it since
            if L == 1:
                y, commit = self._advance(tokens, B, method)
                settle([commit])
            else:
                check_finite(tokens, f"{method}: x", x.shape)
                self._ready(B, method, L)  # before the buffers are written
                self.sync_state()
                y, commit = self._block._advance(tokens, B, L, self._state, method, session=self)
                settle([commit, partial(self._take, self._state.cached_tokens + L)])
        return y.reshape(x.shape)

    def _advance(self, tokens, B, method):
        """The outputs of one token per row, and what adds them to the cache: (y, commit)."""
        return self._stepper.step(tokens, self._ready(B, method), method)

    def _ready(self, B, method, L=1):
        """Check all that L more tokens of B rows need; returns the position of the first."""
        state = self._state
        if B != state.batch_size:
            raise ValueError(f"{method}: the state has batch_size={state.batch_size}, but x has {B}")
        cached = admit_length(state, L, method)
        taken = int(self._counts[resident.RESIDENT])
        if cached != taken:
            if self._is_ahead():
                raise ValueError(
                    f"{method}: cached_tokens of the state was set to {cached}, but the session holds "
                    f"{counted(taken, 'token')}; set it before opening a session, or after close or discard"
                )
            self.load_state()
        check_positions(cached + L, self._block.options.max_positions, self._block._positions, method)
        return cached

    def _describe(self):
        """The `mojolearn.kernels.step.LAYER` record of the block and this session."""
        pipeline = self._block._pipeline
        record = pipeline.record.copy()
        self._frequencies, _ = pipeline.frequencies(self._state.max_tokens)
        record["frequency"] = place_of(self._frequencies)
        record["slots"], record["capacity"] = self._slots, self._state.capacity
        for name, array in zip(("keys", "values", "held", "count"), self._arrays, strict=True):
            record[name] = place_of(array)
        return record

    @property
    def _arrays(self):
        return self._keys, self._values, self._state._held, self._counts

    def _room(self):
        """The number of tokens that neither the state nor the block's positions let a step go beyond."""
        most = self._block.options.max_positions or self._block._positions
        return min(self._state.max_tokens, most, self._block._positions)

    def _is_ahead(self):
        """Does the resident layout hold tokens that the state's buffers do not?"""
        return self._counts[resident.RESIDENT] != self._counts[resident.SYNCED]

    def _check_open(self, method):
        if not self.is_open:
            raise ValueError(
                f"{method}: the session is closed; open another with block.decode_session(state)"
            )

    def _layout(self, cached):
        """Blocks, slots from block to block in the state's buffers, slots used, head_dim, slots in the session."""
        state = self._state
        used = min(cached, state.capacity)
        return (state.batch_size * state.n_kv_heads, state.window or used, used, state.head_dim, self._slots)

    def sync_state(self):
        """Write all tokens into the state's buffers; the session stays open.

        Raises
        ------
        ValueError
            When the session is closed.
        """
        with Claim([self._state], f"{NAME}.sync_state"):
            self._check_open(f"{NAME}.sync_state")
            self._write(True)

    def _write(self, stays_open):
        """Write all tokens into the state's buffers: one kernel call, which also ends the session if it should."""
        layout = self._layout(int(self._counts[resident.RESIDENT]))
        resident.move_out(
            self._keys, self._values, *layout, self._state._k, self._state._v, self._counts, stays_open
        )

    def load_state(self):
        """Take over the state's buffers and ``cached_tokens``, dropping what was not synced.

        ``cached_tokens`` goes back to what the buffers hold, unless it was set by hand since.

        Raises
        ------
        TypeError, ValueError
            When the session is closed, and for ``cached_tokens`` or a cache that a block would refuse.
        """
        method = f"{NAME}.load_state"
        state = self._state
        with Claim([state], method):
            self._check_open(method)
            cached = admit_state(state, self._block.options, state.batch_size, 0, method, session=self)
            if self._is_ahead() and not state._held[1]:
                cached = int(self._counts[resident.SYNCED])
            check_cache(state, self._block.options, cached, method)
            self._take(cached)

    def _take(self, cached):
        """Copy ``cached`` tokens from the state's buffers, which then hold all that the session holds."""
        state = self._state
        resident.settle_in(state._k, state._v, *self._layout(cached), self._keys, self._values, cached, state._held,
                           self._counts)  # fmt: skip

    def close(self):
        """Write all tokens into the state's buffers and end the session; closing twice is harmless."""
        with Claim([self._state], f"{NAME}.close"):
            if self.is_open:
                self._write(False)
            self._release()

    def discard(self):
        """End the session without writing: the state is as it was at the last `sync_state`."""
        with Claim([self._state], f"{NAME}.discard"):
            if self.is_open:
                resident.give_up(self._state._held, self._counts)
            self._release()

    def _release(self):
        """Forget what a closed session has no use for."""
        if self._state._session is self:
            self._state._session = None
        self._keys = self._values = self._frequencies = self._record = self._stepper = None

    def __enter__(self):
        self._check_open(f"{NAME}.__enter__")
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return f"TransformerDecodeSession({'open' if self.is_open else 'closed'}, {self._state!r})"
