"""The arithmetic of one block: its weights made ready, and the seven steps from input to output.

It reads a cache and gives new arrays; checking what comes in and writing a state is the block's business.
"""

import functools
import sys

import numpy as np

from mojolearn.kernels import attention, rotary, step
from mojolearn.kernels.addresses import place_of
from mojolearn.kernels.residual import add_scaled
from mojolearn.layers import NOTHING, Arena, Linear, Norm, packed_nbytes, scratch
from mojolearn.options import MOST_POSITIONS
from mojolearn.rope import attention_factor, chosen_length, inverse_frequencies
from mojolearn.rules import LAYER_NORMS
from mojolearn.threads import run, workers

LARGEST_ANGLE = 2.0**30  # radians; beyond it the cosine of a float32 angle is not computed exactly
PADDING = 16  # frequencies are padded to a whole number of registers, whatever their width
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
NORMS = (
    "input_layernorm", "attention_output_norm", "post_attention_layernorm", "mlp_output_norm", "q_norm", "k_norm",
)  # fmt: skip


@functools.lru_cache(64)
def padded_frequencies(options, length):
    """`inverse_frequencies` in an array for kernels, zeros up to a whole number of registers; not to be changed."""
    frequencies = inverse_frequencies(options, length)
    padded = np.zeros(-(-frequencies.size // PADDING) * PADDING, np.float32)
    padded[: frequencies.size] = frequencies
    return padded


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

        def norm(name):
            kind = options.qk_norm_kind if name in ("q_norm", "k_norm") else options.norm
            return Norm(kind, w[f"{name}.weight"], bias(name), options.norm_eps)

        self.options = options
        self.norms = {name: norm(name) for name in NORMS if f"{name}.weight" in w}
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
        self.eps, self.multiplier = np.float32(options.norm_eps), np.float32(options.residual_multiplier)
        self.scale, self.softcap = options.scale, np.float32(options.attn_softcap or 0)
        self.plain_sums = self.multiplier == 1 and not options.output_norms
        self.qk_norm = (
            options.qk_norm == "layernorm",
            *self._norm_arrays("q_norm"),
            *self._norm_arrays("k_norm"),
        )
        self.bound = np.float32(options.qkv_clip or 0)
        self.amplitude = attention_factor(options)
        self.shared_frequencies = padded_frequencies(options, 0)
        self.goes_by_length = chosen_length(options, sys.maxsize) != 0
        # Of two lists of "longrope" either may be the faster one; "dynamic" turns the slower the longer the sequence.
        both = [padded_frequencies(options, n) for n in (0, chosen_length(options, MOST_POSITIONS))]
        fastest = max(LARGEST_ANGLE / MOST_POSITIONS, *(float(f.max(initial=0)) for f in both))
        self.exact_positions = int(LARGEST_ANGLE / fastest)
        self.work_of_step = self.nbytes // qkv.itemsize
        self.record = self._describe()

    @property
    def nbytes(self):
        """Bytes of the packed weights."""
        return sum(layer.nbytes for layer in (self.qkv, self.out, self.up, self.down))

    def frequencies(self, *lengths):
        """Rotation frequencies for rows of these lengths, and how far apart those of two rows lie (0: all the same)."""
        if not self.goes_by_length:
            return self.shared_frequencies, 0
        chosen = [chosen_length(self.options, int(length)) for length in lengths]
        sets = [padded_frequencies(self.options, length) for length in chosen]
        return (sets[0], 0) if len(set(chosen)) == 1 else (np.concatenate(sets), sets[0].size)

    def run(self, tokens, starts, positions, frequencies, attend, look):
        """The block over packed tokens: norm, projections, attention, residual, norm, MLP, residual.

        Parameters
        ----------
        tokens : ndarray of float32, shape (n * d_model,)
            Row b of the batch lies from token starts[b] to token starts[b + 1].
        starts : ndarray of int64, shape (B + 1,)
            Where the rows of the batch start.
        positions : ndarray of int64, shape (n,)
            Absolute positions of the tokens.
        frequencies : tuple
            What `frequencies` gives for the rows.
        attend : callable
            ``attend(qkv, new_k, new_v)`` gives the contexts: `attend` with the rest filled in.
        look : Look or NoLook
            ``look(name, rows)`` sees, under the names of `mojolearn.insides.HIDDEN`, the rows between the steps.

        Returns
        -------
        y : ndarray of float32, shape (n * d_model,)
            Outputs.
        new_k, new_v : ndarray of float32, shape (n * KV * HD,)
            What a cache would hold of these tokens: for each row (KV, length, HD).
        """
        n = positions.size
        look("input", tokens)
        h = self._normed("input_layernorm", tokens, n)
        look("attention_input", h)
        qkv = self.qkv.flat(h, n)
        new_k, new_v = self._arrange(qkv, starts, positions, frequencies)
        context = attend(qkv, new_k, new_v)
        look("context", context)
        residual = self._added("attention_output_norm", self.out, context, n, tokens)
        look("middle", residual)
        if self.options.second_norm:
            source = residual if self.options.residual == "sequential" else tokens
            h = self._normed("post_attention_layernorm", source, n)
        look("mlp_input", h)
        hidden = self.up.flat(h, n)
        look("mlp_hidden", hidden)
        y = self._added("mlp_output_norm", self.down, hidden, n, residual)
        look("output", y)
        return y, new_k, new_v

    def _normed(self, name, x, n):
        """The norm of this name of n rows; the rows themselves where the block has no such norm."""
        return self.norms[name].flat(x, n) if name in self.norms else x

    def _added(self, name, layer, x, n, residual):
        """The residual plus a layer's product, behind the norm of this name and a factor where the block has them."""
        if self.plain_sums:
            return layer.flat(x, n, residual)
        t = self._normed(name, layer.flat(x, n), n)
        add_scaled(residual, self.multiplier, t, t)
        return t

    def _norm_arrays(self, name):
        """What a kernel takes of the norm of this name: gain and bias, both empty where the block has none."""
        return self.norms[name].arrays if name in self.norms else (NOTHING, NOTHING)

    def _arrange(self, qkv, starts, positions, frequencies):
        """Limit, norm and turn queries (in place) and keys; returns new keys and values, laid out as in a cache."""
        o = self.options
        new_k = np.empty(positions.size * o.kv_width, np.float32)
        new_v = np.empty(positions.size * o.kv_width, np.float32)
        work = 8 * qkv.size  # a number costs about as much as eight multiply-adds
        n_workers = workers(work)
        run(
            rotary.arrange_serial, rotary.arrange_parallel, n_workers, work,
            qkv, starts, positions, starts.size - 1, o.n_heads, o.n_kv_heads, o.head_dim, self.bound,
            *self.qk_norm, self.eps, *frequencies, o.rope_dim // 2, o.rope_interleaved, self.amplitude, new_k, new_v,
            scratch(n_workers * 2 * self.shared_frequencies.size),
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

    def _describe(self):
        """The block's part of a `mojolearn.kernels.step.LAYER` record; sessions copy it and add theirs."""
        o = self.options
        record = np.zeros(1, step.LAYER)
        for name in ("d_model", "n_heads", "n_kv_heads", "head_dim", "intermediate_size"):
            record[name] = getattr(o, name)
        record["layer_norm"], record["eps"] = o.norm in LAYER_NORMS, self.eps
        record["activation"], record["half"] = self.up.activation, o.rope_dim // 2
        record["parallel"], record["interleaved"] = o.residual != "sequential", o.rope_interleaved
        record["qk_layer"], record["window"] = o.qk_norm == "layernorm", o.window
        for name in ("scale", "softcap", "bound", "amplitude", "multiplier"):
            record[name] = getattr(self, name)
        for name, place in zip(NORMS, ("input", "attention", "post", "mlp", "q", "k"), strict=True):
            gain, bias = self._norm_arrays(name)
            record[f"{place}_gain"], record[f"{place}_bias"] = place_of(gain), place_of(bias)
        for name, layer in (("qkv", self.qkv), ("out", self.out), ("up", self.up), ("down", self.down)):
            weights, panels, per_output, bias = layer.packed
            record[name] = (place_of(weights), panels, per_output, place_of(bias))
        return record

    def room_of_step(self, batch_size, attention_size):
        """Float32 numbers of scratch for each worker, and of rows between the kernels, of a decode step.

        attention_size: what each worker needs for attention over the cache at hand.
        """
        o = self.options
        size = max(
            *(layer.scratch_size(batch_size) for layer in (self.qkv, self.out, self.up, self.down)),
            attention_size,
            2 * self.shared_frequencies.size,
        )
        rows = step.rows_size(batch_size, o.d_model, self.qkv.out_features, o.q_width, o.intermediate_size)
        return size, rows

    def weights(self):
        """The weights as they were admitted, copied out of the packed layers: dict of str to ndarray."""
        o = self.options
        parts = [o.q_width, o.q_width + o.kv_width]
        given = {
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
        for name, norm in self.norms.items():
            given[f"{name}.weight"], given[f"{name}.bias"] = norm.weight, norm.bias
        return {name: np.array(given[name]) for name in o.weight_shapes()}
