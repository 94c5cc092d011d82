"""`TransformerState`: everything that changes while a sequence is processed, as plain data.

    k_cache, v_cache    flat float32 buffers of B * KV * capacity * HD numbers
    cached_tokens       S, how many tokens they hold

Without a window the first B * KV * S * HD numbers are the [B, KV, S, HD] cache, packed at the used length, and the
rest is spare. Under a window W each (row, kv head) has a ring of W slots and position p lies in slot p % W.
"""

import numpy as np

from mojolearn.buffers import admit_cache, admit_integer, check_disjoint
from mojolearn.claims import Claim

METHOD = "TransformerState"


class TransformerState:
    """The key-value cache of one block for a batch of sequences.

    Parameters
    ----------
    batch_size : int
        B, the number of sequences.
    n_kv_heads, head_dim : int
        KV and HD of the block.
    max_tokens : int
        Room: positions 0 to max_tokens - 1 can be cached.
    k_cache, v_cache : writable float32 buffers of B * KV * capacity * HD values
        ndarray, memory map, ``array.array('f')``, memoryview, ...; their memory is read and updated, so whoever
        holds them sees the new contents. ``capacity`` is ``window`` if that is above 0, otherwise ``max_tokens``.
    cached_tokens : int, default 0
        S, tokens held in [0, max_tokens]; the next call continues at this position.
    window : int, default 0
        W of the block, 0 without a window.

    Raises
    ------
    TypeError, ValueError
        For a size that is no integer or too small, and for buffers that cannot serve, with what is wanted.

    Notes
    -----
    ``cached_tokens`` may be set by hand, for example after copying saved contents into the buffers; the next call
    and `keys` refuse a value out of range. Since the cache is packed at the used length, setting another value on
    a filled state does not cut it: the same numbers are then read as another shape.

    States compare equal when their sizes, ``cached_tokens`` and every byte of both buffers are equal, those of the
    spare room too. ``copy.copy``, ``copy.deepcopy`` and ``pickle`` give independent equal states with buffers of their
    own; `save` and `load` do the same through a file, but for the spare room, which is then zero.

    Examples
    --------
    >>> buffers = np.zeros((2, 1 * 2 * 16 * 8), np.float32)
    >>> state = TransformerState(1, 2, 8, 16, buffers[0], buffers[1])
    >>> state
    TransformerState(batch_size=1, cached_tokens=0/16, n_kv_heads=2, head_dim=8, window=0, 2.0 KiB)
    >>> state.keys().shape
    (1, 2, 0, 8)
    """

    __hash__ = None

    def __init__(
        self, batch_size, n_kv_heads, head_dim, max_tokens, k_cache, v_cache, cached_tokens=0, window=0
    ):
        self._batch_size = admit_integer(batch_size, "batch_size", METHOD, 1)
        self._n_kv_heads = admit_integer(n_kv_heads, "n_kv_heads", METHOD, 1)
        self._head_dim = admit_integer(head_dim, "head_dim", METHOD, 1)
        self._max_tokens = admit_integer(max_tokens, "max_tokens", METHOD, 1)
        self._window = admit_integer(window, "window", METHOD, 0)
        size = self._batch_size * self._n_kv_heads * self.capacity * self._head_dim
        self._k_buffer, self._v_buffer = k_cache, v_cache
        self._k = admit_cache(k_cache, size, "k_cache", METHOD)
        self._v = admit_cache(v_cache, size, "v_cache", METHOD)
        check_disjoint(self._k, self._v, METHOD)
        # An array, so that a kernel can update it together with the buffers: the count, and whether it was set by hand.
        self._held = np.zeros(2, np.int64)
        self._refused = None  # what cached_tokens was set to, where that cannot be; the count is then -1
        self._session = None
        self._holder = {}  # of the call that runs on this state, see Claim
        self.cached_tokens = cached_tokens
        self._checked_length(METHOD)

    @property
    def batch_size(self):
        """B, the number of sequences."""
        return self._batch_size

    @property
    def n_kv_heads(self):
        """KV, the number of key-value heads."""
        return self._n_kv_heads

    @property
    def head_dim(self):
        """HD, numbers in one key or value."""
        return self._head_dim

    @property
    def max_tokens(self):
        """Room for tokens, as given."""
        return self._max_tokens

    @property
    def window(self):
        """W, or 0 without a window."""
        return self._window

    @property
    def capacity(self):
        """Slots of each (row, kv head): ``window`` under a window, otherwise ``max_tokens``."""
        return self._window or self._max_tokens

    @property
    def k_cache(self):
        """The buffer of the keys: the object that was given."""
        return self._k_buffer

    @property
    def v_cache(self):
        """The buffer of the values: the object that was given."""
        return self._v_buffer

    @property
    def nbytes(self):
        """Bytes of both buffers."""
        return self._k.nbytes + self._v.nbytes

    @property
    def cached_tokens(self):
        """S, tokens held; also the position of the next token. May be set by hand within [0, max_tokens]."""
        count = int(self._held[0])
        return self._refused if count < 0 else count

    @cached_tokens.setter
    def cached_tokens(self, value):
        try:
            self._held[:] = admit_integer(value, "cached_tokens", METHOD, 0, self._max_tokens), 1
        except (TypeError, ValueError):
            self._refused = value  # the next call says what is wrong with it
            self._held[:] = -1, 1

    @property
    def session(self):
        """The open `TransformerDecodeSession` that advances this state, or None."""
        session = self._session
        return session if session is not None and session.is_open else None

    def _bring_up_to_date(self):
        """Let an open session write what it has decoded into the buffers."""
        session = self.session
        if session is not None:
            session.sync_state()

    def _checked_length(self, method):
        """``cached_tokens``, or the exception that a call by the public name ``method`` raises for it."""
        return admit_integer(self.cached_tokens, "cached_tokens of the state", method, 0, self._max_tokens)

    @property
    def used_slots(self):
        """Slots of each (row, kv head) that hold a token."""
        return min(self._checked_length(f"{METHOD}.used_slots"), self.capacity)

    def _held_tokens(self, flat, name):
        """The held [B, KV, S, HD] of a buffer: a view, or under a window a copy in ascending position order."""
        length = self._checked_length(f"{METHOD}.{name}")
        self._bring_up_to_date()
        shape = (self._batch_size, self._n_kv_heads, -1, self._head_dim)
        if not self._window:
            used = self._batch_size * self._n_kv_heads * length * self._head_dim
            return flat[:used].reshape(*shape[:2], length, self._head_dim)
        positions = np.arange(max(0, length - self._window), length)
        return flat.reshape(shape)[:, :, positions % self._window]

    def keys(self):
        """The keys held.

        Returns
        -------
        ndarray of float32, shape (B, KV, S, HD)
            Without a window a view into ``k_cache``, valid until the next call updates the state; under a window a
            copy of the min(S, W) most recent positions, ascending.

        Raises
        ------
        TypeError, ValueError
            If ``cached_tokens`` was set to something else than an integer in [0, max_tokens].

        Examples
        --------
        >>> TransformerState(1, 1, 2, 4, np.arange(8, dtype="f4"), np.zeros(8, "f4"), cached_tokens=2).keys()
        array([[[[0., 1.],
                 [2., 3.]]]], dtype=float32)
        """
        return self._held_tokens(self._k, "keys")

    def values(self):
        """The values held, as `keys` gives the keys.

        Returns
        -------
        ndarray of float32, shape (B, KV, S, HD)
            View or copy as for `keys`.

        Examples
        --------
        >>> TransformerState(1, 1, 2, 4, np.zeros(8, "f4"), np.ones(8, "f4"), cached_tokens=1).values()
        array([[[[1., 1.]]]], dtype=float32)
        """
        return self._held_tokens(self._v, "values")

    def copy(self):
        """An independent equal state with buffers of its own.

        Returns
        -------
        TransformerState
            Its buffers are ndarrays, whatever those of the original are.

        Examples
        --------
        ``branch = state.copy()``, and each goes on for itself.
        """
        return TransformerState(*self._arguments())

    def _arguments(self):
        """What rebuilds this state: the arguments of the class, with copies of the buffers."""
        with Claim([self], f"{METHOD}.copy"):
            length = self._checked_length(f"{METHOD}.copy")
            self._bring_up_to_date()
            return (self._batch_size, self._n_kv_heads, self._head_dim, self._max_tokens,
                    self._k.copy(), self._v.copy(), length, self._window)  # fmt: skip

    def save(self, path, model=None):
        """Write the state into one file, from which `load` makes it again, in this process or another.

        Parameters
        ----------
        path : str or path
            The file; replaced only when the new one is complete. It is an ordinary ``.npz`` without pickled objects, or
            in the safetensors format if its name ends in ``.safetensors``. It holds the sizes, ``cached_tokens``, the
            version of the numerics, and of the buffers the slots in use: it grows with the tokens, not with the room.
        model : TransformerBlock, optional
            The block that the state belongs to: its fingerprint is kept, so that `load` can compare it with another's.
            None keeps none.

        Raises
        ------
        OSError
            The file cannot be written. What stood there before is still there.
        TypeError, ValueError
            For a path or a model that does not fit, ``cached_tokens`` out of range, and NaN or infinity in the slots in
            use.
        RuntimeError
            When another thread has a call running on this state.

        Notes
        -----
        In an open decode session all its tokens are saved, and it stays open.

        Examples
        --------
        >>> import os, tempfile
        >>> state = TransformerState(1, 1, 2, 4, np.arange(8, dtype="f4"), np.zeros(8, "f4"), cached_tokens=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     state.save(os.path.join(folder, "state.npz"))
        ...     loaded = TransformerState.load(os.path.join(folder, "state.npz"))
        >>> loaded
        TransformerState(batch_size=1, cached_tokens=2/4, n_kv_heads=1, head_dim=2, window=0, 0.1 KiB)
        >>> loaded.k_cache
        array([0., 1., 2., 3., 0., 0., 0., 0.], dtype=float32)
        """
        from mojolearn.saved_state import save_state  # which needs blocks, and these need states

        save_state(self, path, model)

    @classmethod
    def load(cls, path, model=None):
        """Make the state that `save` has written: what follows has the bits that would have followed there.

        Parameters
        ----------
        path : str or path
            The file.
        model : TransformerBlock, optional
            The block that the state is for: refused unless it computes the same as the one that was given to `save`.
            None compares nothing.

        Returns
        -------
        TransformerState
            With buffers of its own for ``max_tokens`` tokens, zero in the spare room. It equals the saved state if
            the spare room of that was zero too, as it is when only calls of blocks have written it.

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
        ``state = TransformerState.load("state.npz", block)``
        """
        from mojolearn.saved_state import load_state  # as above

        return load_state(cls, path, model)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __reduce__(self):
        return TransformerState, self._arguments()

    def __eq__(self, other):
        if not isinstance(other, TransformerState):
            return NotImplemented
        self._bring_up_to_date()
        other._bring_up_to_date()
        names = ("batch_size", "n_kv_heads", "head_dim", "max_tokens", "window", "cached_tokens")
        return all(getattr(self, name) == getattr(other, name) for name in names) and all(
            np.array_equal(mine.view(np.uint32), theirs.view(np.uint32))
            for mine, theirs in ((self._k, other._k), (self._v, other._v))
        )

    def __repr__(self):
        return (
            f"TransformerState(batch_size={self._batch_size}, cached_tokens={self.cached_tokens}/{self._max_tokens}, "
            f"n_kv_heads={self._n_kv_heads}, head_dim={self._head_dim}, window={self._window}, "
            f"{self.nbytes / 1024:.1f} KiB)"
        )
