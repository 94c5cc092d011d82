"""One transformer block in plain NumPy, to read, to teach and to test against.

The formulas are those of the docs numerics, sections 1 to 6, written as on a blackboard: no fixed order of
operations, no cache layout, no speed. With ``dtype=np.float64`` the result is far closer to the exact one
than any float32 block can be; the fast blocks agree with it to about 2e-6 of the largest output, and less
closely at positions of many thousands, where a float32 angle is itself no longer exact.

Shapes: B rows, L new tokens, S tokens seen before, H query heads, KV key-value heads, HD = head_dim.
"""

import math

import numpy as np

from mojolearn.options import BlockOptions
from mojolearn.rules import LAYER_NORMS
from mojolearn.weights import admit_weights, infer_sizes, widen


@np.errstate(over="ignore")  # exp(-x) of a very negative x is infinite, and x / infinity the right 0
def reference_block(
    x, weights, options, *, past=None, position=None, lengths=None, max_tokens=None, dtype=np.float64,
    return_attention=False,
):  # fmt: skip
    """Run one block over L new tokens of each row.

    Parameters
    ----------
    x : ndarray of shape (B, L, d_model)
        The new tokens.
    weights : dict of str to ndarray
        As for ``TransformerBlock``.
    options : BlockOptions or dict
        The keyword arguments of ``TransformerBlock``.
    past : tuple of two ndarrays of shape (B, KV, S, HD), optional
        Keys and values of the S tokens before these, as returned by the call before.
    position : int, optional
        Absolute position of the first new token. The default is S: `past` reaches back to position 0.
    lengths : sequence of int, optional
        For a batch of unequal rows without a past: the number of real tokens in each; the rest is padding.
    max_tokens : int, optional
        Room of the state that stands behind the calls, by which the scalings "dynamic" and "longrope" of the rotation
        choose. The default is the number of tokens of each row up to the end of this call.
    dtype : dtype, default float64
        Precision of the computation.
    return_attention : bool, default False
        Return also the weights of attention.

    Returns
    -------
    y : ndarray of shape (B, L, d_model)
        The output; 0 in the padding.
    keys, values : ndarray of shape (B, KV, S + L, HD)
        Those of `past` and of the new tokens: the `past` of the next call.
    attention : ndarray of shape (B, H, L, S + L)
        With `return_attention` only: the weight of each key for each new token; 0 in the padding.

    Raises
    ------
    TypeError, ValueError
        If weights or options are refused (see `mojolearn.weights.admit_weights`).

    Examples
    --------
    Two calls give the same as one:

    >>> options = BlockOptions(d_model=8, intermediate_size=16, n_heads=2)
    >>> weights = {
    ...     name: np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
    ...     for name, shape in options.weight_shapes().items()
    ... }
    >>> x = np.cos(np.arange(40)).reshape(1, 5, 8)
    >>> y, keys, values = reference_block(x, weights, options)
    >>> first, *past = reference_block(x[:, :3], weights, options)
    >>> rest, *past = reference_block(x[:, 3:], weights, options, past=past)
    >>> np.allclose(y, np.concatenate([first, rest], axis=1))
    True
    """
    o = options
    if not isinstance(o, BlockOptions):
        d_model, intermediate_size = infer_sizes(weights)
        o = BlockOptions(d_model=d_model, intermediate_size=intermediate_size, **options)
    w = {name: widen(array).astype(dtype) for name, array in admit_weights(weights, o).items()}

    x = np.asarray(x).astype(dtype)
    B, L, _ = x.shape
    real = np.arange(L) < (np.full((B, 1), L) if lengths is None else np.reshape(lengths, (B, 1)))
    x = np.where(real[:, :, None], x, 0)  # padding may hold anything, even NaN

    # Attention.
    h = norm(x, w, "input_layernorm", o)
    q, k, v = (limit(linear(h, w, f"{name}_proj"), o) for name in "qkv")
    q, k = qk_norm(q, w, "q_norm", o), qk_norm(k, w, "k_norm", o)
    q, k, v = split_heads(q, o.n_heads), split_heads(k, o.n_kv_heads), split_heads(v, o.n_kv_heads)
    if position is None:
        position = 0 if past is None else past[0].shape[2]
    positions = position + np.arange(L)
    if lengths is None:
        lengths = np.full(B, position + L if max_tokens is None else max_tokens)
    angle = positions[:, None] * np.array(
        [[frequencies(o, length)] for length in lengths]
    )  # (B, L, rope_dim / 2)
    q, k = rotate(q, angle, o), rotate(k, angle, o)
    if past is not None:
        k = np.concatenate([past[0], k], axis=2).astype(dtype)
        v = np.concatenate([past[1], v], axis=2).astype(dtype)
    context, attention = attend(q, k, v, positions, o)
    mixed = linear(merge_heads(context), w, "o_proj")
    residual = x + o.residual_multiplier * norm(mixed, w, "attention_output_norm", o)

    # MLP: after attention, or beside it.
    if o.residual == "sequential":
        h = norm(residual, w, "post_attention_layernorm", o)
    elif o.residual == "parallel":
        h = norm(x, w, "post_attention_layernorm", o)
    up = linear(h, w, "up_proj")
    activation = ACTIVATIONS[o.activation]
    inner = activation(linear(h, w, "gate_proj")) * up if o.gated else activation(up)
    y = residual + o.residual_multiplier * norm(linear(inner, w, "down_proj"), w, "mlp_output_norm", o)
    y = np.where(real[:, :, None], y, 0)
    return (y, k, v, np.where(real[:, None, :, None], attention, 0)) if return_attention else (y, k, v)


def linear(x, w, name):
    """Multiply by the matrix ``name``, (out, in), and add the bias if there is one."""
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def norm(x, w, name, o):
    """Apply the norm ``name``, if the block has it, of the kind that the options name."""
    if f"{name}.weight" not in w:
        return x
    y = layer_norm(x, o) if o.norm in LAYER_NORMS else rms_norm(x, o)
    return scale(y, w, name, o)


def layer_norm(x, o):
    """Divide each vector by its standard deviation about the mean: RMSNorm of the centred values."""
    return rms_norm(x - x.mean(axis=-1, keepdims=True), o)


def rms_norm(x, o):
    """Divide each vector by its root mean square."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + o.norm_eps)


def scale(x, w, name, o):
    """Scale each column by the weight, or by 1 + weight in the offset forms, and add the bias if there is one."""
    y = (1 + w[f"{name}.weight"] if o.offset else w[f"{name}.weight"]) * x
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def limit(x, o):
    """Clip q, k or v if the options ask for it."""
    return x if o.qkv_clip is None else np.clip(x, -o.qkv_clip, o.qkv_clip)


def qk_norm(x, w, name, o):
    """Normalise q or k, (B, L, heads * HD): every head, or all of the width as one."""
    if not o.qk_norm:
        return x
    if o.qk_norm == "full":
        return scale(rms_norm(x, o), w, name, o)
    heads = x.reshape(*x.shape[:2], -1, o.head_dim)
    if o.qk_norm == "layernorm":
        return scale(layer_norm(heads, o).reshape(x.shape), w, name, o)
    return scale(rms_norm(heads, o), w, name, o).reshape(x.shape)


def split_heads(x, n_heads):
    """(B, L, heads * HD) -> (B, heads, L, HD)."""
    B, L, width = x.shape
    return x.reshape(B, L, n_heads, width // n_heads).swapaxes(1, 2)


def merge_heads(x):
    """(B, heads, L, HD) -> (B, L, heads * HD)."""
    B, n_heads, L, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(B, L, n_heads * head_dim)


def frequencies(o, length):
    """Angle per position of each pair of columns, shape (rope_dim / 2,), in a sequence of ``length`` tokens."""
    theta, R, scaling = o.rope_theta, o.rope_dim, o.rope_scaling or {"type": "default"}
    kind, factor = scaling["type"], scaling.get("factor")
    original = scaling.get("original_max_position_embeddings")
    if kind == "dynamic" and length > original:
        theta *= (factor * length / original - (factor - 1)) ** (R / (R - 2))
    f = theta ** (-np.arange(0, R, 2) / max(R, 1))
    if R == 0 or kind in ("default", "dynamic"):
        return f
    if kind == "linear":
        return f / factor
    if kind == "longrope":
        return f / np.array(scaling["long_factor" if length > original else "short_factor"])
    if kind == "llama3":
        # Fast pairs stay, slow pairs are slowed down, those between change over smoothly.
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * f / (2 * np.pi)  # within the original context
        stay = np.clip((turns - low) / (high - low), 0, 1)
    else:  # yarn: the same, but smooth in the number of the pair
        low, high = (R * math.log(original / (2 * np.pi * scaling[key])) / (2 * math.log(theta))
                     for key in ("beta_fast", "beta_slow"))  # fmt: skip
        if scaling["truncate"]:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, R - 1)
        high += 0.001 if low == high else 0
        stay = 1 - np.clip((np.arange(R // 2) - low) / (high - low), 0, 1)
    return (1 - stay) * f / factor + stay * f


def amplitude(o):
    """Factor of the rotated columns: what "yarn" and "longrope" do to the size of the scores."""
    scaling = o.rope_scaling or {"type": "default"}
    if scaling["type"] not in ("yarn", "longrope"):
        return 1.0
    if "attention_factor" in scaling:
        return scaling["attention_factor"]
    growth = math.log(max(scaling["factor"], 1))
    if scaling["type"] == "longrope":
        return (
            math.sqrt(1 + growth / math.log(scaling["original_max_position_embeddings"])) if growth else 1.0
        )
    both = "mscale" in scaling and "mscale_all_dim" in scaling
    above, below = (scaling["mscale"], scaling["mscale_all_dim"]) if both else (1, 0)
    return (1 + 0.1 * above * growth) / (1 + 0.1 * below * growth)


def rotate(u, angle, o):
    """Rotate the pairs of columns of every head, (B, heads, L, HD), by the angles (B, L, rope_dim / 2).

    Pair i is made of the columns i and i + rope_dim / 2 or, interleaved, of 2 i and 2 i + 1.
    """
    cos, sin = ((amplitude(o) * of(angle)).astype(u.dtype)[:, None] for of in (np.cos, np.sin))
    half = o.rope_dim // 2
    first, second = slice(0, half), slice(half, o.rope_dim)
    if o.rope_interleaved:
        first, second = slice(0, o.rope_dim, 2), slice(1, o.rope_dim, 2)
    a, b = u[..., first], u[..., second]
    turned = u.copy()
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return turned


def attend(q, k, v, positions, o):
    """Mix the values that each query sees, weighted by the softmax of its scores: (B, H, L, HD).

    The last key stands at the last of `positions`, those before it at the positions before. Returns the weights too,
    (B, H, L, S + L), 0 for keys that a query does not see.
    """
    k, v = np.repeat(k, o.group, axis=1), np.repeat(v, o.group, axis=1)  # one per query head
    scores = (q @ k.swapaxes(2, 3)) * (o.head_dim**-0.5 if o.attn_scale is None else o.attn_scale)
    if o.attn_softcap is not None:
        scores = o.attn_softcap * np.tanh(scores / o.attn_softcap)

    query = positions[:, None]
    key = positions[-1] + 1 - k.shape[2] + np.arange(k.shape[2])
    seen = key <= query
    if o.window:
        seen &= key > query - o.window
    scores = np.where(seen, scores, -np.inf)

    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights @ v, weights


def silu(x):
    """x times its logistic function."""
    return x / (1 + np.exp(-x))


def gelu_erf(x):
    """x times the normal distribution function, exactly."""
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    return x / 2 * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x):
    """x times the normal distribution function, approximately."""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x):
    """x where it is above 0, else 0."""
    return np.maximum(x, 0)


def relu2(x):
    """The square of relu."""
    return relu(x) ** 2


ACTIVATIONS = {"silu": silu, "gelu_erf": gelu_erf, "gelu_tanh": gelu_tanh, "relu": relu, "relu2": relu2}
