"""The arithmetic contract in plain NumPy, one rounding per operation: what the kernels must give bit for bit.

Written from the numerics page alone. The loops run over the terms of a sum, the arrays over independent outputs.
"""

import numpy as np
from exact import from_bits

from mojolearn.float32 import exp, fma


def matrix_product(a, w):
    """a (n, k) times w (m, k): leaves of a serial chain, folded in pairs (section 2)."""
    k = a.shape[1]
    leaf = k if k <= 128 else 128 if -(-k // 128) <= 1024 else -(-k // 1024)
    sums = []
    for first in range(0, k, leaf):
        total = np.zeros((len(a), len(w)), np.float32)
        for p in range(first, min(first + leaf, k)):
            total = fma(a[:, p, None], w[None, :, p], total)
        sums.append(total)
    while len(sums) > 1:
        pairs = [x + y for x, y in zip(sums[::2], sums[1::2], strict=False)]
        sums = pairs + sums[2 * len(pairs) :]
    return sums[0]


def reciprocal_root(a):
    return np.float32(1) / np.sqrt(a)


def rms_norm(x, gain, eps):
    total = np.zeros(len(x), np.float32)
    for column in x.T:
        total = fma(column, column, total)
    r = reciprocal_root(total / np.float32(x.shape[1]) + np.float32(eps))
    return gain * (x * r[:, None])


def layer_norm(x, gain, bias, eps):
    d = np.float32(x.shape[1])
    total = np.zeros(len(x), np.float32)
    for column in x.T:
        total = total + column
    t = x - (total / d)[:, None]
    total = np.zeros(len(x), np.float32)
    for column in t.T:
        total = fma(column, column, total)
    out = gain * (t * reciprocal_root(total / d + np.float32(eps))[:, None])
    return out if bias is None else out + bias


def cos_sin(x):
    """Cosine and sine of 0 <= x < 8192 (section 7)."""
    j = np.floor(x * from_bits(0x3FA2F983)).astype(np.int32)
    j += j & 1
    r = x
    for part in (0xBF490000, 0xB97DA000, 0xB3222169):
        r = fma(j.astype(np.float32), from_bits(part), r)
    j &= 7
    z = r * r
    p = from_bits(0xB94CA1F9)
    for c in (0x3C08839E, 0xBE2AAAA3):
        p = fma(p, z, from_bits(c))
    s = fma(r * z, p, r)
    p = from_bits(0x37CCF5CE)
    for c in (0xBAB6061A, 0x3D2AAAA5):
        p = fma(p, z, from_bits(c))
    c = fma(z * z, p, fma(np.float32(-0.5), z, np.float32(1)))
    cosine = np.select([j == 0, j == 2, j == 4], [c, -s, -c], s)
    sine = np.select([j == 0, j == 2, j == 4], [s, c, -s], -c)
    return cosine, sine


def rotate(u, f, factor, interleaved):
    """Heads u (L, n, HD) at the positions 0, 1, ..., with frequencies f (section 4)."""
    half = len(f)
    c, s = (factor * t[:, None] for t in cos_sin(np.arange(len(u), dtype=np.float32)[:, None] * f))
    first, second = np.arange(half), np.arange(half) + half
    if interleaved:
        first, second = 2 * np.arange(half), 2 * np.arange(half) + 1
    out, a, b = u.copy(), u[..., first], u[..., second]
    out[..., first] = a * c + (-b) * s
    out[..., second] = b * c + a * s
    return out


def attention(q, k, v, scale, window):
    """Contexts of q (L, n_heads, HD) over k and v (L, n_kv, HD), without softcap (section 5)."""
    out = np.empty_like(q)
    for h in range(q.shape[1]):
        kv = h // (q.shape[1] // k.shape[1])
        scores = matrix_product(q[:, h], k[:, kv]) * scale
        for p in range(len(q)):
            seen = range(max(0, p - window + 1) if window else 0, p + 1)
            e = exp(scores[p, seen] - scores[p, seen].max())
            total = np.float32(0)
            for one in e:
                total = total + one
            context = np.zeros(q.shape[2], np.float32)
            for j, one in zip(seen, e, strict=True):
                weight = one / total
                context = fma(weight if weight >= np.float32(2.0**-126) else np.float32(0), v[j, kv], context)
            out[p, h] = context
    return out


def activate(name, x):
    if name == "silu":
        return x / (exp(-x) + np.float32(1))
    relu = np.where(x < 0, np.float32(0), x)
    return relu * relu if name == "relu2" else relu


def block(x, w, o, frequencies, factor):
    """One row x (L, d_model) through a block, for all options but softcap and the gelu MLPs (section 6)."""
    one = np.float32(1)

    def linear(x, name):
        y = matrix_product(x, w[f"{name}.weight"])
        return y + w[f"{name}.bias"] if f"{name}.bias" in w else y

    def gain(name):
        return one + w[f"{name}.weight"] if o.offset else w[f"{name}.weight"]

    def norm(x, name):
        if f"{name}.weight" not in w:
            return x
        if o.norm in ("layernorm", "layernorm_offset"):
            return layer_norm(x, gain(name), w.get(f"{name}.bias"), o.norm_eps)
        return rms_norm(x, gain(name), o.norm_eps)

    def qk_norm(u, name):
        if o.qk_norm == "full":
            return rms_norm(u, gain(name), o.norm_eps)
        if o.qk_norm == "layernorm":
            # The row of a head is normed with its part of gain and bias.
            heads, width = u.reshape(len(u), -1, o.head_dim), o.head_dim
            parts = []
            for h in range(heads.shape[1]):
                part = slice(h * width, (h + 1) * width)
                bias = w[f"{name}.bias"][part] if o.qk_norm_bias else None
                parts.append(layer_norm(heads[:, h], gain(name)[part], bias, o.norm_eps))
            return np.concatenate(parts, axis=1)
        if o.qk_norm:
            return rms_norm(u.reshape(-1, o.head_dim), gain(name), o.norm_eps).reshape(u.shape)
        return u

    def added(residual, x, projection, name):
        t = norm(linear(x, projection), name)
        return residual + np.float32(o.residual_multiplier) * t

    h = norm(x, "input_layernorm")
    q, k, v = (linear(h, name) for name in ("q_proj", "k_proj", "v_proj"))
    if o.qkv_clip is not None:
        bound = np.float32(o.qkv_clip)
        q, k, v = (np.clip(u, -bound, bound) for u in (q, k, v))
    q, k = qk_norm(q, "q_norm"), qk_norm(k, "k_norm")
    q, k, v = (u.reshape(len(u), -1, o.head_dim) for u in (q, k, v))
    q, k = (rotate(u, frequencies, factor, o.rope_interleaved) for u in (q, k))
    context = attention(q, k, v, o.scale, o.window).reshape(len(x), -1)
    residual = added(x, context, "o_proj", "attention_output_norm")
    if o.residual != "parallel_shared":
        h = norm(residual if o.residual == "sequential" else x, "post_attention_layernorm")
    up = linear(h, "up_proj")
    inner = activate(o.activation, linear(h, "gate_proj")) * up if o.gated else activate(o.activation, up)
    return added(residual, inner, "down_proj", "mlp_output_norm")
