"""Causal attention with grouped queries, straight from the caller's cache (numerics page, section 5).

The queries of the G = n_heads / n_kv heads that share a kv head see the same keys, so the rows (token, head)
of one kv head are stacked: row = token * G + head within the group. ``LANES`` rows at a time, one row per
lane, walk over the keys together. Every lane does exactly what its row would do alone, in the same order: a key
that only some lanes may see changes nothing in the others.

Keys and values come in runs of consecutive positions: those of the cache (two runs where a ring wraps), then
those of this call. So the cache is only read here; it is written after everything has succeeded.

    scores[j] = (q . k[j]) * scale    a chain over head_dim, by the rule of the matrix product
    weights   = softmax(scores)       in place: exp, a serial sum, a division
    context   = sum weights[j] v[j]   a chain over positions, ascending

Scratch of one worker, each number a register of LANES rows:
q (HD), context (HD), partial sums (levels, KEYS), scores (keys of the block, and KEYS to spare).
"""

import functools

import numpy as np
from numba import prange

from mojolearn._jit import LANES, helper, kernel, part, plain, twins
from mojolearn.kernels.simd import broadcast, fma, get, load, put, select, splat, store
from mojolearn.kernels.sums import fold_after, fold_rest, leaf_length, levels_of
from mojolearn.kernels.vmath import INFINITY, SMALLEST_NORMAL, ZERO, exp, tanh

KEYS = 8  # keys, or numbers of a value, side by side: eight chains hide the latency of fma
KEY_TILE = KEYS * LANES


# --- scores ------------------------------------------------------------------------------------------------


@part
def leaf_of_keys(q, q_at, keys, k0, k1, k2, k3, k4, k5, k6, k7, n, partial, partial_at):
    """KEYS dot products per lane over one leaf of n numbers. q: (n, LANES); key i from keys[ki] on."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = splat(ZERO)
    for d in range(n):
        x = load(q, q_at + d * LANES)
        s0 = fma(x, broadcast(keys, k0 + d), s0)
        s1 = fma(x, broadcast(keys, k1 + d), s1)
        s2 = fma(x, broadcast(keys, k2 + d), s2)
        s3 = fma(x, broadcast(keys, k3 + d), s3)
        s4 = fma(x, broadcast(keys, k4 + d), s4)
        s5 = fma(x, broadcast(keys, k5 + d), s5)
        s6 = fma(x, broadcast(keys, k6 + d), s6)
        s7 = fma(x, broadcast(keys, k7 + d), s7)
    store_eight(partial, partial_at, s0, s1, s2, s3, s4, s5, s6, s7)


@helper
def store_eight(target, at, s0, s1, s2, s3, s4, s5, s6, s7):
    store(target, at, s0)
    store(target, at + LANES, s1)
    store(target, at + 2 * LANES, s2)
    store(target, at + 3 * LANES, s3)
    store(target, at + 4 * LANES, s4)
    store(target, at + 5 * LANES, s5)
    store(target, at + 6 * LANES, s6)
    store(target, at + 7 * LANES, s7)


@part
def scores_of_run(scratch, q_at, partial_at, scores_at, keys, at, n_keys, head_dim, scale, softcap):
    """Scores of a run of n_keys keys (HD numbers each, from keys[at] on). softcap: 0 = none.

    The last keys of a run are filled up to KEYS by repeating the last one; those scores land behind the run, where
    the next run, or nothing, follows.
    """
    leaf = leaf_length(head_dim)
    n_leaves = (head_dim + leaf - 1) // leaf
    last = n_keys - 1
    for j in range(0, n_keys, KEYS):
        level = 0
        for t in range(n_leaves):
            first = t * leaf
            start = at + first
            leaf_of_keys(
                scratch, q_at + first * LANES, keys,
                start + j * head_dim, start + min(j + 1, last) * head_dim,
                start + min(j + 2, last) * head_dim, start + min(j + 3, last) * head_dim,
                start + min(j + 4, last) * head_dim, start + min(j + 5, last) * head_dim,
                start + min(j + 6, last) * head_dim, start + min(j + 7, last) * head_dim,
                min(leaf, head_dim - first), scratch, partial_at + level * KEY_TILE,
            )  # fmt: skip
            level = fold_after(t, level + 1, scratch, partial_at, KEY_TILE)
        fold_rest(level, scratch, partial_at, KEY_TILE)
        for i in range(0, KEY_TILE, LANES):
            s = load(scratch, partial_at + i) * splat(scale)
            if softcap > ZERO:
                s = tanh(s / splat(softcap)) * splat(softcap)
            store(scratch, scores_at + j * LANES + i, s)


# --- softmax -----------------------------------------------------------------------------------------------


@part
def softmax(scratch, scores_at, n_keys):
    """Scores to weights in place, lane by lane; a score of -inf (a key not to be seen) gives the weight 0."""
    m = splat(-INFINITY)
    for j in range(n_keys):
        s = load(scratch, scores_at + j * LANES)
        m = select(s > m, s, m)
    total = splat(ZERO)
    for j in range(n_keys):
        e = exp(load(scratch, scores_at + j * LANES) - m)
        total = total + e
        store(scratch, scores_at + j * LANES, e)
    for j in range(n_keys):
        w = load(scratch, scores_at + j * LANES) / total
        store(scratch, scores_at + j * LANES, select(w < splat(SMALLEST_NORMAL), splat(ZERO), w))


# --- values ------------------------------------------------------------------------------------------------


@part
def values_of_run(scratch, weights_at, context_at, values, at, n_keys, head_dim):
    """context += weight * value over a run of keys that every lane sees, position ascending."""
    for d in range(0, head_dim - KEYS + 1, KEYS):
        c_at = context_at + d * LANES
        c0, c1 = load(scratch, c_at), load(scratch, c_at + LANES)
        c2, c3 = load(scratch, c_at + 2 * LANES), load(scratch, c_at + 3 * LANES)
        c4, c5 = load(scratch, c_at + 4 * LANES), load(scratch, c_at + 5 * LANES)
        c6, c7 = load(scratch, c_at + 6 * LANES), load(scratch, c_at + 7 * LANES)
        for j in range(n_keys):
            w = load(scratch, weights_at + j * LANES)
            v = at + j * head_dim + d
            c0 = fma(w, broadcast(values, v), c0)
            c1 = fma(w, broadcast(values, v + 1), c1)
            c2 = fma(w, broadcast(values, v + 2), c2)
            c3 = fma(w, broadcast(values, v + 3), c3)
            c4 = fma(w, broadcast(values, v + 4), c4)
            c5 = fma(w, broadcast(values, v + 5), c5)
            c6 = fma(w, broadcast(values, v + 6), c6)
            c7 = fma(w, broadcast(values, v + 7), c7)
        store_eight(scratch, c_at, c0, c1, c2, c3, c4, c5, c6, c7)
    for d in range(head_dim // KEYS * KEYS, head_dim):
        c = load(scratch, context_at + d * LANES)
        for j in range(n_keys):
            c = fma(load(scratch, weights_at + j * LANES), broadcast(values, at + j * head_dim + d), c)
        store(scratch, context_at + d * LANES, c)


@part
def values_of_key(scratch, weight_at, context_at, values, at, head_dim, seen):
    """The same for one key that only the lanes of the mask ``seen`` see: it must not touch the others' sums."""
    w = load(scratch, weight_at)
    for d in range(head_dim):
        c = load(scratch, context_at + d * LANES)
        store(scratch, context_at + d * LANES, select(seen, fma(w, broadcast(values, at + d), c), c))


# --- one block of rows -------------------------------------------------------------------------------------


@helper
def cache_run(position, cached, slots):
    """Where the cached key of a position lies within its block, and how many follow it without a break.

    slots: slots of a block, that is the cached length itself, or the window of a ring.
    """
    slot = position % slots
    return slot, min(cached - position, slots - slot)


@helper
def sees(first_seen, last_seen, position):
    """The lanes whose row sees the key at this position (positions below 2**24 are exact in float32)."""
    p = splat(np.float32(position))
    return (first_seen <= p) & (p <= last_seen)


@part
def weigh_block(qkv, width, q_column, token, length, first_row, k_cache, cache_at, slots, cached, new_k, new_at, group,
                head_dim, window, scale, softcap, scratch, at):  # fmt: skip
    """Weights of LANES rows, from first_row on, of one row of the batch and one kv head, into scratch.

    token: the first token of this row of the batch; length: its number of new tokens; q_column: where the
    group's query heads start in a row of qkv; cache_at, new_at: where this (row, kv head) starts in the cache and
    among the new keys. Returns where the weights are, the positions of the first and the last key, and between which
    positions (both included) all rows see each key.
    """
    n_rows = length * group
    q_at = at
    first_seen_at = q_at + 2 * head_dim * LANES  # after the context
    last_seen_at = first_seen_at + LANES
    partial_at = last_seen_at + LANES
    leaf = leaf_length(head_dim)
    scores_at = partial_at + levels_of((head_dim + leaf - 1) // leaf) * KEY_TILE

    # The rows: queries transposed to (HD, LANES), and which positions each may see.
    lowest = cached + first_row // group
    highest = cached + min(first_row + LANES - 1, n_rows - 1) // group
    for lane in range(LANES):
        row = min(first_row + lane, n_rows - 1)  # lanes past the last row repeat it
        position = cached + row // group
        put(scratch, last_seen_at + lane, np.float32(position))
        put(scratch, first_seen_at + lane, np.float32(max(0, position - window + 1) if window > 0 else 0))
        source = (token + row // group) * width + q_column + row % group * head_dim
        for d in range(head_dim):
            put(scratch, q_at + d * LANES + lane, get(qkv, source + d))
    first_seen, last_seen = load(scratch, first_seen_at), load(scratch, last_seen_at)
    first_key = max(0, lowest - window + 1) if window > 0 else 0
    all_see_from = max(0, highest - window + 1) if window > 0 else 0

    # Scores, run by run.
    j = first_key
    while j <= highest:
        to = scores_at + (j - first_key) * LANES
        if j < cached:
            slot, n = cache_run(j, cached, slots)
            scores_of_run(scratch, q_at, partial_at, to, k_cache, cache_at + slot * head_dim, n, head_dim,
                          scale, softcap)  # fmt: skip
        else:
            n = highest + 1 - j
            scores_of_run(scratch, q_at, partial_at, to, new_k, new_at + (j - cached) * head_dim, n, head_dim,
                          scale, softcap)  # fmt: skip
        j += n

    # Keys that only some rows see lie at both ends.
    for j in range(first_key, highest + 1):
        if j < all_see_from or j > lowest:
            s_at = scores_at + (j - first_key) * LANES
            store(
                scratch, s_at, select(sees(first_seen, last_seen, j), load(scratch, s_at), splat(-INFINITY))
            )

    softmax(scratch, scores_at, highest + 1 - first_key)
    return scores_at, first_key, highest, all_see_from, lowest


@part
def attend_block(qkv, width, q_column, token, length, first_row, k_cache, v_cache, cache_at, slots, cached,
                 new_k, new_v, new_at, group, head_dim, window, scale, softcap, out, out_width,
                 scratch, at):  # fmt: skip
    """Attention of these rows; their contexts go to a row of out from q_column on. Other arguments: `weigh_block`."""
    n_rows = length * group
    context_at = at + head_dim * LANES
    first_seen_at = context_at + head_dim * LANES
    last_seen_at = first_seen_at + LANES
    scores_at, first_key, highest, all_see_from, lowest = weigh_block(
        qkv, width, q_column, token, length, first_row, k_cache, cache_at, slots, cached, new_k, new_at, group,
        head_dim, window, scale, softcap, scratch, at,
    )  # fmt: skip
    first_seen, last_seen = load(scratch, first_seen_at), load(scratch, last_seen_at)

    # Values, run by run; where not all rows see a key, key by key.
    for d in range(head_dim):
        store(scratch, context_at + d * LANES, splat(ZERO))
    j = first_key
    while j <= highest:
        w_at = scores_at + (j - first_key) * LANES
        seen_by_all = all_see_from <= j <= lowest
        n = min(highest, lowest) + 1 - j if seen_by_all else 1
        if j < cached:
            slot, follow = cache_run(j, cached, slots)
            n = min(n, follow)
            v_at = cache_at + slot * head_dim
            if seen_by_all:
                values_of_run(scratch, w_at, context_at, v_cache, v_at, n, head_dim)
            else:
                values_of_key(
                    scratch, w_at, context_at, v_cache, v_at, head_dim, sees(first_seen, last_seen, j)
                )
        else:
            v_at = new_at + (j - cached) * head_dim
            if seen_by_all:
                values_of_run(scratch, w_at, context_at, new_v, v_at, n, head_dim)
            else:
                values_of_key(
                    scratch, w_at, context_at, new_v, v_at, head_dim, sees(first_seen, last_seen, j)
                )
        j += n

    for lane in range(min(LANES, n_rows - first_row)):
        row = first_row + lane
        target = (token + row // group) * out_width + q_column + row % group * head_dim
        for d in range(head_dim):
            put(out, target + d, get(scratch, context_at + d * LANES + lane))


@part
def attention_share(index, n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache, v_cache,
                    cached, window, scale, softcap, new_k, new_v, out, scratch, scratch_size):  # fmt: skip
    """Worker ``index`` takes every n_workers-th block of LANES rows, over all rows of the batch and kv heads."""
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
            attend_block(qkv, width, h * group * head_dim, token, length, first_row,
                         k_cache, v_cache, (b * n_kv + h) * slots * head_dim, slots, cached,
                         new_k, new_v, (token * n_kv + h * length) * head_dim,
                         group, head_dim, window, scale, softcap, out, n_heads * head_dim,
                         scratch, index * scratch_size)  # fmt: skip


@kernel
def attention_serial(n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache, v_cache,
                     cached, window, scale, softcap, new_k, new_v, out, scratch, scratch_size):  # fmt: skip
    """All blocks on the calling thread: the twin of ``attention_parallel``."""
    attention_share(np.int64(0), np.int64(1), qkv, starts, longest, batch_size, n_heads, n_kv, head_dim,
                    k_cache, v_cache, cached, window, scale, softcap, new_k, new_v, out,
                    scratch, scratch_size)  # fmt: skip


@kernel(parallel=True)
def attention_parallel(n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim, k_cache, v_cache,
                       cached, window, scale, softcap, new_k, new_v, out, scratch, scratch_size):  # fmt: skip
    """out (tokens, n_heads * HD) = attention of the queries in qkv (tokens, (n_heads + 2 n_kv) * HD).

    Row b's tokens are starts[b] to starts[b + 1], ``longest`` the most of any row; k_cache, v_cache:
    [B, n_kv, cached, HD] packed, or rings of ``window`` slots; new_k, new_v: as ``rotary`` lays them out.
    """
    for index in prange(n_workers):
        attention_share(np.int64(index), n_workers, qkv, starts, longest, batch_size, n_heads, n_kv, head_dim,
                        k_cache, v_cache, cached, window, scale, softcap, new_k, new_v, out,
                        scratch, scratch_size)  # fmt: skip


attention = twins(attention_serial, attention_parallel)


@functools.lru_cache(1024)
def scratch_size(longest, group, head_dim, cached, window):
    """Float32 numbers that one worker needs (plain Python: called before the kernel)."""
    n_keys = cached + longest
    if window > 0:  # the rows of a block stand at (LANES - 1) // group + 2 positions at the most
        n_keys = min(n_keys, window + (LANES - 1) // group + 2)
    leaf = plain(leaf_length)(head_dim)
    levels = plain(levels_of)(-(-head_dim // leaf))
    return (2 * head_dim + 2 + levels * KEYS + n_keys + KEYS) * LANES
