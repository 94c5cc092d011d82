"""The weights that attention multiplies values with, written out for those who want to look at them.

``attention`` keeps them in scratch only as long as it needs them. Here the same code makes them anew, so they are the
same numbers, and writes them where they belong: one number for each head, new token and position.
"""

import numpy as np
from numba import prange

from mojolearn._jit import LANES, kernel, part
from mojolearn.kernels.attention import weigh_block
from mojolearn.kernels.simd import get, put


@part
def weights_share(index, n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache, cached, window,
                  scale, softcap, new_k, out, n_tokens, n_keys, scratch, scratch_size):  # fmt: skip
    """Worker ``index`` takes every n_workers-th block of LANES rows, as in `attention_share`."""
    group = n_heads // n_kv
    slots = window if window > 0 else max(cached, 1)
    width = (n_heads + 2 * n_kv) * head_dim
    blocks = (longest * group + LANES - 1) // LANES
    for task in range(index, batch_size * n_kv * blocks, n_workers):
        b = task // (n_kv * blocks)
        h = task // blocks % n_kv
        first_row = task % blocks * LANES
        token = starts[b]
        length = starts[b + 1] - token
        if first_row < length * group:
            weights_at, first_key, highest, _, _ = weigh_block(
                qkv, width, h * group * head_dim, token, length, first_row, k_cache,
                (b * n_kv + h) * slots * head_dim, slots, cached, new_k, (token * n_kv + h * length) * head_dim,
                group, head_dim, window, scale, softcap, scratch, index * scratch_size,
            )  # fmt: skip
            for lane in range(min(LANES, length * group - first_row)):
                row = first_row + lane
                head = h * group + row % group
                target = ((b * n_heads + head) * n_tokens + row // group) * n_keys
                for j in range(first_key, highest + 1):
                    put(out, target + j, get(scratch, weights_at + (j - first_key) * LANES + lane))


@kernel
def weights_serial(n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache, cached, window,
                   scale, softcap, new_k, out, n_tokens, n_keys, scratch, scratch_size):  # fmt: skip
    """All blocks on the calling thread: the twin of ``weights_parallel``."""
    weights_share(np.int64(0), np.int64(1), qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache, cached,
                  window, scale, softcap, new_k, out, n_tokens, n_keys, scratch, scratch_size)  # fmt: skip


@kernel(parallel=True)
def weights_parallel(n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache, cached, window,
                     scale, softcap, new_k, out, n_tokens, n_keys, scratch, scratch_size):  # fmt: skip
    """out (B, n_heads, n_tokens, n_keys) = the weight of each position for each new token, zeros before the call.

    A row's tokens may be fewer than n_tokens, and its positions than n_keys: the rest stays as it is. The other
    arguments are those of ``attention_parallel``; a worker needs as much scratch as there.
    """
    for index in prange(n_workers):
        weights_share(np.int64(index), n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache,
                      cached, window, scale, softcap, new_k, out, n_tokens, n_keys, scratch,
                      scratch_size)  # fmt: skip
