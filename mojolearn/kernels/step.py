"""One decode step of a block, or of all the layers of a model: the other kernels in their order, in a single call.

At one token per row a kernel takes some ten microseconds, and calling it from Python nearly as long; between two calls
memory, the limit of decoding, stands idle. So here the sequence is compiled: measured, a sixth faster for a block of
3.5 million weights, and with all 30 layers of such a model in one call another twentieth. The arithmetic is that of the
kernels it calls.

A kernel takes its layers as an array of records, ``LAYER``: sizes, options and where the arrays lie.
"""

import numpy as np

from mojolearn._jit import either, kernel, part
from mojolearn.kernels.activation import NO_ACTIVATION
from mojolearn.kernels.addresses import PLACE, array_at
from mojolearn.kernels.attention import attention
from mojolearn.kernels.cache import all_finite, scan
from mojolearn.kernels.decode import decode
from mojolearn.kernels.linear import linear
from mojolearn.kernels.norm import norm_serial
from mojolearn.kernels.resident import put_key, put_value
from mojolearn.kernels.residual import add_scaled
from mojolearn.kernels.rotary import arrange_serial
from mojolearn.kernels.vmath import ONE

# What `step` returns when all numbers are finite, and otherwise when those of the input or of a state's cache are not.
FINE, BAD_INPUT, BAD_CACHE = -1, -2, -3

# A matrix in panels (of its number per output one or, for a gated pair, two), and its bias.
MATRIX = np.dtype([("weights", PLACE), ("panels", np.int64), ("per_output", np.int64), ("bias", PLACE)])

LAYER = np.dtype(
    [
        # the block
        ("d_model", np.int64),
        ("n_heads", np.int64),
        ("n_kv_heads", np.int64),
        ("head_dim", np.int64),
        ("intermediate_size", np.int64),
        ("layer_norm", np.int64),  # 1: LayerNorm, 0: RMSNorm
        ("activation", np.int64),
        ("parallel", np.int64),  # 1: the MLP works on the block's input
        ("qk_layer", np.int64),  # 1: LayerNorm of the heads of q and k
        ("half", np.int64),  # rotated pairs
        ("interleaved", np.int64),  # 1: neighbours are pairs
        ("amplitude", np.float32),  # of the rotation's cosines and sines
        ("bound", np.float32),  # limit of q, k and v; 0: none
        ("eps", np.float32),
        ("scale", np.float32),
        ("softcap", np.float32),
        ("multiplier", np.float32),  # of what is added to the residual
        # gains and biases of norms; empty where there is none
        ("input_gain", PLACE),
        ("input_bias", PLACE),
        ("attention_gain", PLACE),
        ("attention_bias", PLACE),
        ("post_gain", PLACE),
        ("post_bias", PLACE),
        ("mlp_gain", PLACE),
        ("mlp_bias", PLACE),
        ("q_gain", PLACE),
        ("q_bias", PLACE),
        ("k_gain", PLACE),
        ("k_bias", PLACE),
        ("qkv", MATRIX),
        ("out", MATRIX),
        ("up", MATRIX),
        ("down", MATRIX),
        ("window", np.int64),
        # the session; a step over the buffers of a state goes without
        ("frequency", PLACE),
        ("keys", PLACE),
        ("values", PLACE),
        ("slots", np.int64),  # of the resident layout, padded
        ("capacity", np.int64),
        ("held", PLACE),  # one int64: the state's count of tokens
        ("count", PLACE),  # one int64: the session's
    ],
    align=True,
)


@part
def product(n_workers, x, n_rows, k, matrix, n_out, activation, residual, out, scratch, scratch_size, kind):
    """out (n_rows, n_out) = f(x (n_rows, k) times a ``MATRIX``); kind: any array of the type of its weights."""
    linear(n_workers, x, n_rows, k, array_at(matrix["weights"], kind), matrix["panels"], matrix["per_output"], n_out,
           array_at(matrix["bias"], x), activation, residual, out, scratch, scratch_size)  # fmt: skip


@part
def norm(x, B, layer, gain, bias, out):
    """out (B, d_model) = the norm of x with the gain and bias at these places; x and out may be the same memory."""
    norm_serial(np.int64(1), x, B, layer["d_model"], layer["layer_norm"] == 1, array_at(gain, x), array_at(bias, x),
                layer["eps"], out)  # fmt: skip


@part
def add_to_residual(B, layer, gain, bias, residual, out):
    """out (B, d_model) = residual + the norm of out, if there is one, times the factor of the layer."""
    if gain["size"] > 0:
        norm(out, B, layer, gain, bias, out)
    add_scaled(residual, layer["multiplier"], out, out)


@part
def attend_session(_, n_workers, layer, qkv, B, position, starts, new_k, new_v, out, scratch, scratch_size):
    """out (B, n_heads * HD) = attention over the resident cache of the layer's session."""
    decode(n_workers, qkv, B, layer["n_heads"], layer["n_kv_heads"], layer["head_dim"], array_at(layer["keys"], qkv),
           array_at(layer["values"], qkv), layer["slots"], layer["capacity"], position, layer["scale"],
           layer["softcap"], new_k, new_v, out, scratch, scratch_size)  # fmt: skip


@part
def attend_state(k_cache, v_cache, n_workers, layer, qkv, B, position, starts, new_k, new_v, out, scratch,
                 scratch_size):  # fmt: skip
    """out (B, n_heads * HD) = attention over the buffers of a state."""
    attention(n_workers, qkv, starts, np.int64(1), B, layer["n_heads"], layer["n_kv_heads"], layer["head_dim"], k_cache,
              v_cache, position, layer["window"], layer["scale"], layer["softcap"], new_k, new_v, out, scratch,
              scratch_size)  # fmt: skip


attend = either(attend_session, attend_state)


@part
def block_step(n_workers, layer, x, y, new_k, new_v, B, position, starts, positions, k_cache, v_cache, frequency, rows,
               scratch, scratch_size, kind):  # fmt: skip
    """y (B, d_model) = the block ``layer`` at one position for x (B, d_model), over its cache.

    Reads the cache: k_cache and v_cache, or that of its session where these are None; new_k and new_v (B, n_kv, HD) are
    what to append to it.
    rows: room for the rows between the kernels (`rows_size`); starts: 0 to B; positions: B times the position.
    """
    plain = np.int64(NO_ACTIVATION)
    d_model, n_heads, n_kv, head_dim = (
        layer["d_model"],
        layer["n_heads"],
        layer["n_kv_heads"],
        layer["head_dim"],
    )
    intermediate, parallel = layer["intermediate_size"], layer["parallel"] == 1
    q_width = n_heads * head_dim
    width = q_width + 2 * n_kv * head_dim
    h, rest = rows[: B * d_model], rows[B * d_model :]
    qkv, rest = rest[: B * width], rest[B * width :]
    context, rest = rest[: B * q_width], rest[B * q_width :]
    residual, hidden = rest[: B * d_model], rest[B * d_model : B * (d_model + intermediate)]
    nothing = rows[:0]
    plain_sums = layer["mlp_gain"]["size"] == 0 and layer["multiplier"] == ONE

    source = x
    if layer["input_gain"]["size"] > 0:
        norm(x, B, layer, layer["input_gain"], layer["input_bias"], h)
        source = h
    product(
        n_workers, source, B, d_model, layer["qkv"], width, plain, nothing, qkv, scratch, scratch_size, kind
    )
    turns = array_at(layer["frequency"], x) if frequency is None else frequency
    arrange_serial(np.int64(1), qkv, starts, positions, B, n_heads, n_kv, head_dim, layer["bound"],
                   layer["qk_layer"] == 1, array_at(layer["q_gain"], x), array_at(layer["q_bias"], x),
                   array_at(layer["k_gain"], x), array_at(layer["k_bias"], x), layer["eps"],
                   turns, np.int64(0), layer["half"], layer["interleaved"] == 1,
                   layer["amplitude"], new_k, new_v, scratch)  # fmt: skip
    attend(
        k_cache,
        v_cache,
        n_workers,
        layer,
        qkv,
        B,
        position,
        starts,
        new_k,
        new_v,
        context,
        scratch,
        scratch_size,
    )
    product(n_workers, context, B, q_width, layer["out"], d_model, plain, x if plain_sums else nothing, residual,
            scratch, scratch_size, kind)  # fmt: skip
    if not plain_sums:
        add_to_residual(B, layer, layer["attention_gain"], layer["attention_bias"], x, residual)

    if layer["post_gain"]["size"] > 0:
        norm(x if parallel else residual, B, layer, layer["post_gain"], layer["post_bias"], h)
        source = h
    elif not parallel:  # otherwise attention and the MLP share their input
        source = residual
    product(n_workers, source, B, d_model, layer["up"], intermediate, layer["activation"], nothing, hidden, scratch,
            scratch_size, kind)  # fmt: skip
    product(n_workers, hidden, B, intermediate, layer["down"], d_model, plain, residual if plain_sums else nothing, y,
            scratch, scratch_size, kind)  # fmt: skip
    if not plain_sums:
        add_to_residual(B, layer, layer["mlp_gain"], layer["mlp_bias"], residual, y)


@part
def cache_is_finite(n_workers, layer, k_cache, v_cache, B, cached):
    """Are all numbers finite that the buffers of a state hold? n_workers: as of `step`."""
    window, head_dim = layer["window"], layer["head_dim"]
    slots = window if window > 0 else cached  # without a window the blocks are packed at this length
    n_blocks, used = B * layer["n_kv_heads"], min(cached, slots) * head_dim
    broken = np.empty(1 if n_workers is None else n_workers, np.int64)
    scan(n_workers, k_cache, v_cache, n_blocks, slots * head_dim, used, broken)
    return broken.sum() == 0


@kernel
def step(n_workers, layers, x, y, new_k, new_v, B, position, k_cache, v_cache, frequency, rows_size, scratch,
         scratch_size, kind):  # fmt: skip
    """y (B, d_model) = all layers, one after the other, at one position for x (B, d_model).

    Reads the caches; new_k and new_v hold what to append, (layers, B, n_kv, HD). Two arguments are for the compiler,
    which makes a kernel of its own for each combination: n_workers is None for all work on the calling thread; k_cache,
    v_cache and frequency belong to a single layer without a session, and are None otherwise.

    scratch: of all workers, then ``rows_size`` numbers, then room for the outputs of two layers. Stops at the first
    layer with an infinity or NaN and returns 4 * layer + what ``all_finite`` says of its output, new keys and new
    values; otherwise `FINE`, `BAD_INPUT` or `BAD_CACHE`.
    """
    if all_finite(x, x[:0], x[:0]) < 3:
        return BAD_INPUT
    if k_cache is not None and not cache_is_finite(n_workers, layers[0], k_cache, v_cache, B, position):
        return BAD_CACHE
    size = x.size
    starts, positions = np.arange(B + 1), np.full(B, position)
    rest = scratch[scratch_size:] if n_workers is None else scratch[n_workers * scratch_size :]
    rows, between = rest[:rows_size], rest[rows_size:]
    new_at = 0
    for i in range(layers.size):
        layer = layers[i]
        source = x if i == 0 else between[i % 2 * size : (i % 2 + 1) * size]
        target = y if i == layers.size - 1 else between[(i + 1) % 2 * size : ((i + 1) % 2 + 1) * size]
        new_size = B * layer["n_kv_heads"] * layer["head_dim"]
        k, v = new_k[new_at : new_at + new_size], new_v[new_at : new_at + new_size]
        block_step(n_workers, layer, source, target, k, v, B, position, starts, positions, k_cache, v_cache, frequency,
                   rows, scratch, scratch_size, kind)  # fmt: skip
        which = all_finite(target, k, v)
        if which < 3:
            return 4 * i + which
        new_at += new_size
    return FINE


@kernel
def append(layers, new_k, new_v, B, position):
    """Take the new token of every row and layer into the resident caches and count it, in states and sessions.

    Repeating changes nothing.
    """
    at = 0
    for i in range(layers.size):
        layer = layers[i]
        keys, values = array_at(layer["keys"], new_k), array_at(layer["values"], new_v)
        slots, head_dim = layer["slots"], layer["head_dim"]
        slot = position % layer["capacity"]
        for block in range(B * layer["n_kv_heads"]):
            put_key(keys, block, slot, slots, head_dim, new_k, at)
            put_value(values, block, slot, slots, head_dim, new_v, at)
            at += head_dim
    counts = np.empty(0, np.int64)
    for i in range(layers.size):
        array_at(layers[i]["held"], counts)[0] = position + 1
        array_at(layers[i]["count"], counts)[0] = position + 1


@kernel
def agree(layers, position):
    """Do all states and sessions hold just the tokens before this position?"""
    counts = np.empty(0, np.int64)
    for i in range(layers.size):
        if (
            array_at(layers[i]["held"], counts)[0] != position
            or array_at(layers[i]["count"], counts)[0] != position
        ):
            return False
    return True


def rows_size(batch_size, d_model, width, q_width, intermediate):
    """Float32 numbers of ``rows`` (plain Python: called before the kernel)."""
    return batch_size * (2 * d_model + width + q_width + intermediate)
