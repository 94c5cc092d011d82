"""The arithmetic of one block: its weights made ready, and the seven steps from input to output.

It reads a cache and gives new arrays; checking what comes in and writing a state is the block's business.
"""

import numpy as np

from mojolearn.kernels import attention, decode, rotary, step
from mojolearn.kernels.addresses import place_of
from mojolearn.layers import NOTHING, Arena, Linear, Norm, packed_nbytes, scratch
from mojolearn.rope import inverse_frequencies
from mojolearn.threads import run, workers

PADDING = 16  # frequencies are padded to a whole number of registers, whatever their width
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class Pipeline:
    """The layers of a block, and how they follow each other.

    Parameters
    ----------
    w : dict of str to ndarray
        Admitted weights (`mojolearn.weights.admit_weights`).
    options : BlockOptions
        The options they were admitted for.
    """

    def __init__(self, w, options):
        def bias(*names):
            parts = [w[f"{name}.bias"] for name in names if f"{name}.bias" in w]
            return np.concatenate(parts) if parts else None

        def norm(name, kind=options.norm):
            return Norm(kind, w[f"{name}.weight"], bias(name), options.norm_eps)

        self.options = options
        self.input_norm = norm("input_layernorm")
        self.post_norm = norm("post_attention_layernorm")
        qkv = np.concatenate([w[f"{name}.weight"] for name in PROJECTIONS])
        matrices = (qkv, w["o_proj.weight"], w["up_proj.weight"], w["down_proj.weight"])
        room = sum(packed_nbytes(*m.shape, m.itemsize) for m in matrices)
        if options.gated:
            room += packed_nbytes(*w["gate_proj.weight"].shape, qkv.itemsize)
        arena = Arena(room)
        self.qkv = Linear(qkv, bias(*PROJECTIONS), place=arena)
        self.out = Linear(w["o_proj.weight"], bias("o_proj"), place=arena)
        gate = {"gate": w["gate_proj.weight"], "gate_bias": bias("gate_proj")} if options.gated else {}
        self.up = Linear(
            w["up_proj.weight"], bias("up_proj"), activation=options.activation, **gate, place=arena
        )
        self.down = Linear(w["down_proj.weight"], bias("down_proj"), place=arena)
        self.q_norm = self.k_norm = None
        self.qk_gains = (NOTHING, NOTHING)
        if options.qk_norm:
            kind = "rmsnorm_offset" if options.norm == "rmsnorm_offset" else "rmsnorm"
            self.q_norm, self.k_norm = norm("q_norm", kind), norm("k_norm", kind)
            self.qk_gains = (self.q_norm.gain, self.k_norm.gain)
        self.scale, self.softcap = options.scale, np.float32(options.attn_softcap or 0)
        frequencies = inverse_frequencies(options)
        self.highest_frequency = float(frequencies.max())
        self.frequencies = np.zeros(-(-frequencies.size // PADDING) * PADDING, np.float32)
        self.frequencies[: frequencies.size] = frequencies

        self.work_of_step = self.nbytes // qkv.itemsize

    @property
    def nbytes(self):
        """Bytes of the packed weights."""
        return sum(layer.nbytes for layer in (self.qkv, self.out, self.up, self.down))

    def run(self, tokens, starts, positions, attend):
        """The block over packed tokens: norm, projections, attention, residual, norm, MLP, residual.

        Parameters
        ----------
        tokens : ndarray of float32, shape (n * d_model,)
            Row b of the batch lies from token starts[b] to token starts[b + 1].
        starts : ndarray of int64, shape (B + 1,)
            Where the rows of the batch start.
        positions : ndarray of int64, shape (n,)
            Absolute positions of the tokens.
        attend : callable
            ``attend(qkv, new_k, new_v)`` gives the contexts: `attend` with the rest filled in.

        Returns
        -------
        y : ndarray of float32, shape (n * d_model,)
            Outputs.
        new_k, new_v : ndarray of float32, shape (n * KV * HD,)
            What a cache would hold of these tokens: for each row (KV, length, HD).
        """
        n = positions.size
        qkv = self.qkv.flat(self.input_norm.flat(tokens, n), n)
        new_k, new_v = self._arrange(qkv, starts, positions)
        context = attend(qkv, new_k, new_v)
        residual = self.out.flat(context, n, tokens)
        hidden = self.up.flat(self.post_norm.flat(residual, n), n)
        return self.down.flat(hidden, n, residual), new_k, new_v

    def _arrange(self, qkv, starts, positions):
        """Norm and turn queries (in place) and keys; returns new keys and values, laid out as in a cache."""
        o = self.options
        new_k = np.empty(positions.size * o.kv_width, np.float32)
        new_v = np.empty(positions.size * o.kv_width, np.float32)
        work = 8 * qkv.size  # a number costs about as much as eight multiply-adds
        n_workers = workers(work)
        run(
            rotary.arrange_serial, rotary.arrange_parallel, n_workers, work,
            qkv, starts, positions, starts.size - 1, o.n_heads, o.n_kv_heads, o.head_dim, *self.qk_gains,
            self.input_norm.eps, self.frequencies, o.rope_dim // 2, new_k, new_v,
            scratch(n_workers * 2 * self.frequencies.size),
        )  # fmt: skip
        return new_k, new_v

    def attend(self, qkv, new_k, new_v, *, starts, longest, cached, k_cache, v_cache):
        """Attention over a state's buffers (only read; empty without a state) and the new keys and values.

        longest: tokens of the longest row; cached: tokens that the buffers hold. Returns the contexts, flat
        (n, n_heads * HD).
        """
        o = self.options
        n = int(starts[-1])
        seen = min(cached + longest, o.window or cached + longest)
        work = 2 * n * o.q_width * seen
        n_workers = workers(work)
        size = attention.scratch_size(longest, o.group, o.head_dim, cached, o.window)
        context = np.empty(n * o.q_width, np.float32)
        run(
            attention.attention_serial, attention.attention_parallel, n_workers, work,
            qkv, starts, longest, starts.size - 1, o.n_heads, o.n_kv_heads, o.head_dim, k_cache, v_cache, cached,
            o.window, self.scale, self.softcap, new_k, new_v, context, scratch(n_workers * size), size,
        )  # fmt: skip
        return context

    @property
    def kind(self):
        """An array of the type of the packed weights."""
        return self.qkv.packed[0]

    def describe(self, record):
        """Fill in the block's part of a `mojolearn.kernels.step.LAYER` record."""
        o = self.options
        for name in ("d_model", "n_heads", "n_kv_heads", "head_dim", "intermediate_size"):
            record[name] = getattr(o, name)
        record["layer_norm"], record["eps"] = self.input_norm.layer, self.input_norm.eps
        record["activation"], record["half"] = self.up.activation, o.rope_dim // 2
        record["scale"], record["softcap"] = self.scale, self.softcap
        arrays = zip(
            ("input_gain", "input_bias", "post_gain", "post_bias", "q_gain", "k_gain", "frequency"),
            (*self.input_norm.arrays, *self.post_norm.arrays, *self.qk_gains, self.frequencies),
            strict=True,
        )
        for name, array in arrays:
            record[name] = place_of(array)
        for name, layer in (("qkv", self.qkv), ("out", self.out), ("up", self.up), ("down", self.down)):
            weights, panels, per_output, bias = layer.packed
            record[name] = (place_of(weights), panels, per_output, place_of(bias))

    def room_of_step(self, batch_size, slots):
        """Float32 numbers of scratch for each worker, and of rows between the kernels, of a decode step."""
        o = self.options
        size = max(
            *(layer.scratch_size(batch_size) for layer in (self.qkv, self.out, self.up, self.down)),
            decode.scratch_size(slots, o.head_dim),
            2 * self.frequencies.size,
        )
        rows = step.rows_size(batch_size, o.d_model, self.qkv.out_features, o.q_width, o.intermediate_size)
        return size, rows

    def weights(self):
        """The weights as they were admitted, copied out of the packed layers: dict of str to ndarray."""
        o = self.options
        parts = [o.q_width, o.q_width + o.kv_width]
        given = {
            "input_layernorm.weight": self.input_norm.weight,
            "input_layernorm.bias": self.input_norm.bias,
            "post_attention_layernorm.weight": self.post_norm.weight,
            "post_attention_layernorm.bias": self.post_norm.bias,
            "o_proj.weight": self.out.matrix(),
            "o_proj.bias": self.out.vector(),
            "up_proj.weight": self.up.matrix(),
            "up_proj.bias": self.up.vector(),
            "down_proj.weight": self.down.matrix(),
            "down_proj.bias": self.down.vector(),
        }
        for name, matrix in zip(PROJECTIONS, np.split(self.qkv.matrix(), parts), strict=True):
            given[f"{name}.weight"] = matrix
        if o.qkv_bias:
            for name, vector in zip(PROJECTIONS, np.split(self.qkv.vector(), parts), strict=True):
                given[f"{name}.bias"] = vector
        if o.gated:
            given["gate_proj.weight"] = self.up.matrix(gate=True)
            given["gate_proj.bias"] = self.up.vector(gate=True)
        if o.qk_norm:
            given["q_norm.weight"], given["k_norm.weight"] = self.q_norm.weight, self.k_norm.weight
        return {name: np.array(given[name]) for name in o.weight_shapes()}
