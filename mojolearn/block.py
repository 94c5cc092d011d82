"""`TransformerBlock`: one decoder block, weights fixed, between an input and a state."""

from functools import partial

import numpy as np

from mojolearn.admission import (
    admit_state,
    check_cache,
    check_finite,
    check_overflow,
    check_positions,
    do_nothing,
    settle,
)
from mojolearn.allocation import allocate
from mojolearn.buffers import admit_input, admit_lengths
from mojolearn.claims import Claim
from mojolearn.describe import described
from mojolearn.fingerprint import block_fingerprint
from mojolearn.insides import DO_NOT_LOOK, admit_look
from mojolearn.kernels.cache import commit_parallel, commit_serial
from mojolearn.layers import NOTHING
from mojolearn.options import BlockOptions
from mojolearn.pipeline import Pipeline
from mojolearn.ragged import forward_ragged
from mojolearn.session import TransformerDecodeSession
from mojolearn.stepping import step_block
from mojolearn.threads import Limit, admit_threads, run, workers
from mojolearn.weights import admit_weights, infer_sizes

NAME = "TransformerBlock"


class TransformerBlock:
    """A Llama-shaped decoder block: attention and an MLP, each behind a norm and a residual.

    ::

        h = norm(x);   r = x + o_proj(attention(rope(q_proj(h)), rope(k_proj(h)), v_proj(h)))
        h = norm(r);   y = r + down_proj(act(gate_proj(h)) * up_proj(h))

    Options move the norms, set the MLP beside attention, and change each of the parts. Every output bit is fixed by the
    numerics page: it does not depend on threads, batch, chunks or processor.

    Parameters
    ----------
    weights : dict of str to array
        Under Hugging Face names without prefixes (``q_proj.weight``), matrices in torch layout (out, in); copied. See
        `BlockOptions.weight_shapes`.
    n_heads : int
        Query heads.
    n_kv_heads : int, optional
        Key-value heads, a divisor of ``n_heads`` (default: ``n_heads``).
    head_dim : int, optional
        Width of a head, even (default: d_model / n_heads).
    window : int, default 0
        0 = every position sees all before it; W > 0: position p sees p - W + 1 to p.
    rope_theta, rope_scaling, rope_dim, rope_interleaved, max_positions
        Rotary positions: base, scaling for long contexts, rotated columns of a head (0: none), which columns are pairs,
        ceiling on positions. The scalings "dynamic" and "longrope" go by the length of the sequence: that of the row in
        a call without a state, otherwise the ``max_tokens`` of the state.
    qkv_bias, o_bias, norm_bias, mlp_bias : bool, default False
        Biases that a block may have.
    norm : {"rmsnorm", "layernorm", "rmsnorm_offset", "layernorm_offset"}
        Kind of the norms; the last two scale by 1 + weight. ``norm_eps`` (1e-6) is added to the mean square.
    norm_placement : {"pre", "post", "both"}
        Norms at the inputs of attention and MLP, at their outputs, or at both.
    residual : {"sequential", "parallel", "parallel_shared"}
        MLP after attention, or beside it, behind its own norm or the same one; ``residual_multiplier`` (1.0) is the
        factor of what both add.
    mlp : {"swiglu", "geglu", "geglu_tanh", "reglu", "relu2glu", "silu", "gelu", "gelu_tanh", "relu", "relu2"}
        The first five are gated.
    qk_norm : {False, True, "full", "layernorm"}
        Norm of q and k, over each head, over the whole width, or as a LayerNorm of each head, which may have a bias
        (``qk_norm_bias``). ``qkv_clip`` limits q, k and v before it.
    attn_softcap, attn_scale : float, optional
        Soft ceiling on the scores; factor of the scores (default: 1 / sqrt(head_dim)).
    weight_format : {"float32", "bfloat16", "float16"}
        How matrices are stored; the arithmetic is float32 always, and widening is exact.
    threads : int, optional
        Threads of its calls (default: as `mojolearn.set_num_threads` says); no bit depends on it.

    Raises
    ------
    TypeError, ValueError
        For every option, pair of options or weight that does not fit, naming it, what was given and what is wanted.

    See Also
    --------
    mojolearn.options.BlockOptions : The options, each with its rule; all are readable attributes of a block.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> shapes = BlockOptions(d_model=16, intermediate_size=32, n_heads=2).weight_shapes()
    >>> weights = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    >>> block = TransformerBlock(weights, n_heads=2)
    >>> state = block.allocate_state(batch_size=1, max_tokens=8)
    >>> x = rng.standard_normal((1, 3, 16), np.float32)
    >>> y = block.forward(x, state)
    >>> y.shape, state.cached_tokens
    ((1, 3, 16), 3)
    >>> bool((y == block(x)).all())
    True
    """

    def __init__(self, weights, *, n_heads, n_kv_heads=None, head_dim=None, window=0, rope_theta=10000.0,
                 rope_scaling=None, rope_dim=None, rope_interleaved=False, max_positions=None, qkv_bias=False,
                 o_bias=False, qkv_clip=None, norm="rmsnorm", norm_eps=1e-6, norm_bias=False, norm_placement="pre",
                 residual="sequential", residual_multiplier=1.0, mlp="swiglu", mlp_bias=False, qk_norm=False,
                 qk_norm_bias=False, attn_softcap=None, attn_scale=None, weight_format="float32",
                 threads=None):  # fmt: skip
        given = {k: v for k, v in locals().items() if k not in ("self", "weights", "threads")}
        set_once = partial(object.__setattr__, self)
        set_once("_limit", Limit(admit_threads(threads, "threads", NAME)))
        d_model, intermediate_size = infer_sizes(weights)
        options = BlockOptions(d_model=d_model, intermediate_size=intermediate_size, **given)
        w = admit_weights(weights, options)
        set_once("options", options)
        set_once("_pipeline", Pipeline(w, options))
        set_once("_positions", self._pipeline.exact_positions)

    def __getattr__(self, name):
        # Every option reads as an attribute of the block. Only called for names that are not found otherwise.
        if name != "options" and name in BlockOptions.__dataclass_fields__:
            value = getattr(self.options, name)
            return dict(value) if isinstance(value, dict) else value
        raise AttributeError(f"{NAME} has no attribute {name!r}")

    def __setattr__(self, name, value):
        raise AttributeError(f"{NAME}: {name} cannot be set; a block never changes, make a new one")

    def __dir__(self):
        return sorted({*super().__dir__(), *BlockOptions.__dataclass_fields__})

    @property
    def threads(self):
        """Number of threads of its calls, or None."""
        return self._limit.threads

    @property
    def nbytes(self):
        """Bytes of the packed weights."""
        return self._pipeline.nbytes

    @property
    def fingerprint(self):
        """A hash over the arithmetic and all weights, whatever their storage; computed at first use."""
        if "_fingerprint" not in vars(self):
            object.__setattr__(self, "_fingerprint", block_fingerprint(self))
        return self._fingerprint

    def __repr__(self):
        return described(self.options, self.nbytes)

    def weights(self):
        """The weights as they were given, in storage format.

        Returns
        -------
        dict of str to ndarray
            Copies; a block made of them and of ``options.as_dict()`` is this block again.
        """
        return self._pipeline.weights()

    def __reduce__(self):
        return _rebuild, (self.weights(), self.options.as_dict(), self.threads)

    def allocate_state(self, batch_size, max_tokens):
        """A new state of zeros for this block.

        Parameters
        ----------
        batch_size : int
            B, the number of sequences.
        max_tokens : int
            Room per sequence. Under a window the buffers hold ``window`` slots whatever ``max_tokens`` is.

        Returns
        -------
        TransformerState
            With two buffers of B * KV * capacity * HD float32 numbers.

        Raises
        ------
        TypeError, ValueError
            For sizes that are no integers above 0.
        MemoryError
            If the buffers do not fit, naming the bytes.

        Examples
        --------
        ``state = block.allocate_state(batch_size=2, max_tokens=256)``
        """
        return allocate(self.options, batch_size, max_tokens, f"{NAME}.allocate_state")

    def forward(self, x, state=None, *, lengths=None, return_hidden=False, return_attention=False):
        """Process L tokens of each sequence.

        Parameters
        ----------
        x : float32 array of shape (B, L, d_model)
            Inputs; any strides, never modified.
        state : TransformerState, optional
            Continues at position ``state.cached_tokens`` and is updated; None: positions start at 0 and nothing is
            kept.
        lengths : sequence of int, optional
            Only without a state: row i has lengths[i] real tokens, and what stands after them is never read.
        return_hidden : bool or list of str, default False
            Return also what stands between the steps, by the names of `mojolearn.insides.HIDDEN`: all, or these.
        return_attention : bool, default False
            Return also the weights of attention.

        Returns
        -------
        y : ndarray of float32, shape (B, L, d_model)
            C-contiguous; with ``lengths``, +0.0 after the real tokens. Without ``return_...`` this alone.
        hidden : dict of str to ndarray of float32, shape (B, L, width)
            With ``return_hidden``; docs/guide/insides.md says what each is.
        attention : ndarray of float32, shape (B, n_heads, L, cached_tokens + L)
            With ``return_attention``: what a token gives to positions 0, 1, ...; 0 where it does not see one.

        Raises
        ------
        TypeError, ValueError, MemoryError
            For inputs that do not fit (shape, dtype, NaN or infinity, no room, ...), and when an output, a new key or a
            new value would not be finite in float32. The state is then unchanged, to the byte.

        Examples
        --------
        ``y = block.forward(x, state)``; ``block(x)`` is ``block.forward(x)``.
        """
        method = f"{NAME}.forward"
        x = admit_input(x, self.options.d_model, method)
        look = admit_look(return_hidden, return_attention, method)
        if lengths is None:
            return self._call(x, state, method, look)
        if state is not None:
            raise ValueError(f"{method}: lengths goes without a state; give state=None, or call row by row")
        return forward_ragged(self, x, admit_lengths(lengths, x.shape[0], x.shape[1], method), method, look)

    __call__ = forward

    def step(self, x, state):
        """Process one token of each sequence: `forward` with L = 1.

        Parameters
        ----------
        x : float32 array of shape (B, d_model) or (B, 1, d_model)
            Inputs.
        state : TransformerState
            Continues at position ``state.cached_tokens`` and is updated.

        Returns
        -------
        ndarray of float32, shape (B, 1, d_model)
            C-contiguous.

        Raises
        ------
        TypeError, ValueError
            As `forward`.

        Examples
        --------
        ``y = block.step(x[:, t], state)``
        """
        method = f"{NAME}.step"
        x = admit_input(x, self.options.d_model, method, step=True)
        if state is None:
            raise TypeError(f"{method}: state must be a TransformerState, not None; without one use forward")
        return self._call(x, state, method)

    def decode_session(self, state):
        """Open a session on a state: the fast way to many single steps over a long cache.

        Parameters
        ----------
        state : TransformerState
            Its cache is copied into a layout made for decoding; until the session is closed only the session
            advances it.

        Returns
        -------
        TransformerDecodeSession
            A context manager with `step` and `forward` of its own, the same bits as the block's.

        Raises
        ------
        TypeError, ValueError
            For a state that does not fit, or is in a session already.

        Examples
        --------
        ``with block.decode_session(state) as session: y = session.step(x)``
        """
        with self._limit:
            return TransformerDecodeSession(self, state)

    def _call(self, x, state, method, look=DO_NOT_LOOK):
        """`forward` after its input was admitted."""
        with self._limit, Claim([state], method):
            y, commit = self._advance(x.reshape(-1), *x.shape[:2], state, method, look=look)
            settle([commit])
        return look.answer(y.reshape(x.shape))

    def _advance(self, tokens, B, L, state, method, session=None, look=DO_NOT_LOOK):
        """Compute the outputs of flat tokens (B, L, d_model), and what writes the state: (y, commit).

        Nothing of the caller's has changed before ``commit`` is called. Without a state there is nothing to write.
        """
        o = self.options
        cached = 0 if state is None else admit_state(state, o, B, L, method, session)
        check_positions(cached + L, o.max_positions, self._positions, method)
        look.begin(B, L)
        if state is not None and L == 1 and look is DO_NOT_LOOK:
            y, new_k, new_v = step_block(self._pipeline, state, tokens, cached, method)
        else:
            check_finite(tokens, f"{method}: x", (B, L, o.d_model))
            if state is not None:
                check_cache(state, o, cached, method)
            starts = np.arange(0, (B + 1) * L, L)
            positions = np.tile(np.arange(cached, cached + L), B)
            buffers = (NOTHING, NOTHING) if state is None else (state._k, state._v)
            frequencies = self._pipeline.frequencies(L if state is None else state.max_tokens)
            y, new_k, new_v = self._outputs(tokens, starts, positions, frequencies, L, cached, buffers,
                                            method, look)  # fmt: skip
        if state is None:
            return y, do_nothing
        work = (cached if o.window == 0 else L) * B * o.kv_width
        return y, partial(
            run, commit_serial, commit_parallel, min(2, workers(work)), work, state._k, state._v, new_k, new_v,
            B * o.n_kv_heads, cached, L, o.head_dim, o.window, state._held,
        )  # fmt: skip

    def _outputs(self, tokens, starts, positions, frequencies, longest, cached, buffers, method, look):
        """Outputs, new keys and new values of packed tokens over a cache; refused unless all are finite."""
        k_cache, v_cache = buffers
        attend = partial(self._pipeline.attend, starts=starts, longest=longest, cached=cached, k_cache=k_cache,
                         v_cache=v_cache)  # fmt: skip
        attend = look.watched(self._pipeline, attend, starts, longest, cached, k_cache)
        y, new_k, new_v = self._pipeline.run(tokens, starts, positions, frequencies, attend, look)
        check_overflow(y, new_k, new_v, method)
        return y, new_k, new_v


def _rebuild(weights, options, threads):
    return TransformerBlock(weights, **options, threads=threads)
