"""One decode step of a whole block: the other kernels in their order, in a single call.

At one token per row a kernel takes some ten microseconds, and calling it from Python nearly as long; between two calls
memory, the limit of decoding, stands idle. So here the sequence is compiled: measured, a sixth faster for a block of
3.5 million weights. The arithmetic is that of the kernels it calls.
"""

import numpy as np

from mojolearn._jit import kernel
from mojolearn.kernels.cache import all_finite
from mojolearn.kernels.decode import decode
from mojolearn.kernels.linear import NO_ACTIVATION, linear
from mojolearn.kernels.norm import norm_serial
from mojolearn.kernels.rotary import arrange_serial


@kernel
def block_step(
    n_workers, x, y, new_k, new_v, batch_size, position,
    d_model, n_heads, n_kv, head_dim, intermediate, layer_norm, eps,
    input_gain, input_bias, post_gain, post_bias, q_gain, k_gain, frequency, half, scale, softcap,
    qkv_w, qkv_panels, qkv_bias, out_w, out_panels, out_bias,
    up_w, up_panels, up_step, up_bias, activation, down_w, down_panels, down_bias,
    keys, values, slots, capacity, starts, positions, nothing, rows, scratch, scratch_size,
):  # fmt: skip
    """y (B, d_model) = the block at one position for x (B, d_model), over the resident cache of ``decode``.

    Reads the cache; new_k and new_v (B, n_kv, HD) are what to append to it. rows: room for the rows between the
    kernels; starts: 0 to B; positions: room for B; nothing: an empty array. Returns what ``all_finite`` says of y,
    new_k and new_v.
    """
    B = batch_size
    one, plain = np.int64(1), np.int64(NO_ACTIVATION)
    q_width = n_heads * head_dim
    width = q_width + 2 * n_kv * head_dim
    h = rows[: B * d_model]
    qkv = rows[B * d_model : B * (d_model + width)]
    context = rows[B * (d_model + width) : B * (d_model + width + q_width)]
    residual = rows[B * (d_model + width + q_width) : B * (2 * d_model + width + q_width)]
    hidden = rows[B * (2 * d_model + width + q_width) : B * (2 * d_model + width + q_width + intermediate)]
    positions[:] = position

    norm_serial(one, x, B, d_model, layer_norm, input_gain, input_bias, eps, h)
    linear(
        n_workers,
        h,
        B,
        d_model,
        qkv_w,
        qkv_panels,
        one,
        width,
        qkv_bias,
        plain,
        nothing,
        qkv,
        scratch,
        scratch_size,
    )
    arrange_serial(one, qkv, starts, positions, B, n_heads, n_kv, head_dim, q_gain, k_gain, eps, frequency, half,
                   new_k, new_v, scratch)  # fmt: skip
    decode(n_workers, qkv, B, n_heads, n_kv, head_dim, keys, values, slots, capacity, position, scale, softcap,
           new_k, new_v, context, scratch, scratch_size)  # fmt: skip
    linear(n_workers, context, B, q_width, out_w, out_panels, one, d_model, out_bias, plain, x, residual,
           scratch, scratch_size)  # fmt: skip
    norm_serial(one, residual, B, d_model, layer_norm, post_gain, post_bias, eps, h)
    linear(n_workers, h, B, d_model, up_w, up_panels, up_step, intermediate, up_bias, activation, nothing, hidden,
           scratch, scratch_size)  # fmt: skip
    linear(n_workers, hidden, B, intermediate, down_w, down_panels, one, d_model, down_bias, plain, residual, y,
           scratch, scratch_size)  # fmt: skip
    return all_finite(y, new_k, new_v)


def rows_size(batch_size, d_model, width, q_width, intermediate):
    """Float32 numbers of ``rows`` (plain Python: called before the kernel)."""
    return batch_size * (2 * d_model + width + q_width + intermediate)
