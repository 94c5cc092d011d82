"""Attention of one new token over a resident cache (the layout of ``resident``).

The query rows of a kv head go ROWS at a time, so that each key and value is read once for all of them. Every sum runs
in the order of ``attention``: same bits (numerics page, section 5).

Scratch of one worker: scores (ROWS, padded slots), a panel (HD, LANES) and a value (HDP) for the new token, a
register (LANES), partial sums (levels, TILE).
"""

import functools

import numpy as np
from numba import prange

from mojolearn._jit import LANES, helper, kernel, part, plain, twins
from mojolearn.kernels.resident import PAIR, padded
from mojolearn.kernels.simd import broadcast, fma, get, load, prefetch, put, select, splat, store
from mojolearn.kernels.sums import fold_after, fold_rest, leaf_length, levels_of
from mojolearn.kernels.vmath import INFINITY, SMALLEST_NORMAL, ZERO, exp, tanh

ROWS = 4  # query rows side by side; fewer are filled up by repeating the last: memory is the limit, not arithmetic
TILE = ROWS * PAIR
AHEAD = 32  # slots by which values are fetched ahead; with that of keys it took a third off a cache of 1024 tokens
LINE = 16  # float32 numbers of a cache line


# --- scores ------------------------------------------------------------------------------------------------


@part
def leaf_of_panels(q, q0, q1, q2, q3, first, p0, second, p1, n, ahead, partial, at):
    """ROWS queries times two panels of keys over one leaf of n numbers: eight chains.

    Query r from q[qr] on; panels (n, LANES) from first[p0] and second[p1] on; partial: TILE sums.
    """
    s00 = s01 = s10 = s11 = s20 = s21 = s30 = s31 = splat(ZERO)
    for d in range(n):
        prefetch(first, p0 + d * LANES + ahead)
        prefetch(second, p1 + d * LANES + ahead)
        k0 = load(first, p0 + d * LANES)
        k1 = load(second, p1 + d * LANES)
        x = broadcast(q, q0 + d)
        s00, s01 = fma(x, k0, s00), fma(x, k1, s01)
        x = broadcast(q, q1 + d)
        s10, s11 = fma(x, k0, s10), fma(x, k1, s11)
        x = broadcast(q, q2 + d)
        s20, s21 = fma(x, k0, s20), fma(x, k1, s21)
        x = broadcast(q, q3 + d)
        s30, s31 = fma(x, k0, s30), fma(x, k1, s31)
    store_rows(partial, at, PAIR, s00, s01, s10, s11, s20, s21, s30, s31)


@helper
def store_rows(target, at, stride, s00, s01, s10, s11, s20, s21, s30, s31):
    store(target, at, s00)
    store(target, at + LANES, s01)
    store(target, at + stride, s10)
    store(target, at + stride + LANES, s11)
    store(target, at + 2 * stride, s20)
    store(target, at + 2 * stride + LANES, s21)
    store(target, at + 3 * stride, s30)
    store(target, at + 3 * stride + LANES, s31)


@part
def scores_of_rows(q, q0, q1, q2, q3, keys, keys_at, n_panels, scratch, new_panel_at, new_panel, partial_at,
                   scores_at, stride, head_dim, scale, softcap):  # fmt: skip
    """Scores of ROWS queries and all keys of n_panels panels, of which ``new_panel`` is read from scratch."""
    leaf = leaf_length(head_dim)
    n_leaves = (head_dim + leaf - 1) // leaf
    ahead = 2 * head_dim * LANES  # the next two panels
    for panel in range(0, n_panels, 2):
        other = min(panel + 1, n_panels - 1)
        level = 0
        for t in range(n_leaves):
            first = t * leaf
            n = min(leaf, head_dim - first)
            at = partial_at + level * TILE
            p0 = keys_at + (panel * head_dim + first) * LANES
            p1 = keys_at + (other * head_dim + first) * LANES
            fresh = new_panel_at + first * LANES
            if panel == new_panel:
                leaf_of_panels(q, q0 + first, q1 + first, q2 + first, q3 + first, scratch, fresh, keys, p1, n, ahead,
                               scratch, at)  # fmt: skip
            elif other == new_panel:
                leaf_of_panels(q, q0 + first, q1 + first, q2 + first, q3 + first, keys, p0, scratch, fresh, n, ahead,
                               scratch, at)  # fmt: skip
            else:
                leaf_of_panels(q, q0 + first, q1 + first, q2 + first, q3 + first, keys, p0, keys, p1, n, ahead,
                               scratch, at)  # fmt: skip
            level = fold_after(t, level + 1, scratch, partial_at, TILE)
        fold_rest(level, scratch, partial_at, TILE)
        for r in range(ROWS):
            for i in range(0, (other - panel + 1) * LANES, LANES):
                s = load(scratch, partial_at + r * PAIR + i) * splat(scale)
                if softcap > ZERO:
                    s = tanh(s / splat(softcap)) * splat(softcap)
                store(scratch, scores_at + r * stride + panel * LANES + i, s)


# --- softmax -----------------------------------------------------------------------------------------------


@part
def exponentials(scratch, at, n_slots, lanes_at):
    """exp(score - largest score) in place; slots from n_slots to the end of the last register become 0."""
    end = padded(n_slots, LANES)
    for j in range(n_slots, end):
        put(scratch, at + j, -INFINITY)
    m = splat(-INFINITY)
    for j in range(0, end, LANES):
        s = load(scratch, at + j)
        m = select(s > m, s, m)
    store(scratch, lanes_at, m)
    largest = -INFINITY
    for lane in range(LANES):
        largest = max(largest, get(scratch, lanes_at + lane))
    for j in range(0, end, LANES):
        store(scratch, at + j, exp(load(scratch, at + j) - splat(largest)))


@helper
def add_run(scratch, at, stride, first, last, t0, t1, t2, t3):
    """Four serial sums over the slots [first, last) of four rows."""
    for j in range(first, last):
        t0 = t0 + get(scratch, at + j)
        t1 = t1 + get(scratch, at + stride + j)
        t2 = t2 + get(scratch, at + 2 * stride + j)
        t3 = t3 + get(scratch, at + 3 * stride + j)
    return t0, t1, t2, t3


@helper
def divide(scratch, at, n_slots, total):
    """Weights: each exponential over the total; subnormal ones become 0."""
    for j in range(0, n_slots, LANES):
        w = load(scratch, at + j) / splat(total)
        store(scratch, at + j, select(w < splat(SMALLEST_NORMAL), splat(ZERO), w))


# --- values ------------------------------------------------------------------------------------------------


@part
def add_values(scratch, weights_at, stride, values, at, width, first, last, context_at, fetched):
    """context (ROWS, PAIR) += weight * value over the slots [first, last), ascending.

    fetched: how many numbers of a value to fetch ahead, of this pair of registers and those whose turn comes later.
    """
    c00, c01 = load(scratch, context_at), load(scratch, context_at + LANES)
    c10, c11 = load(scratch, context_at + PAIR), load(scratch, context_at + PAIR + LANES)
    c20, c21 = load(scratch, context_at + 2 * PAIR), load(scratch, context_at + 2 * PAIR + LANES)
    c30, c31 = load(scratch, context_at + 3 * PAIR), load(scratch, context_at + 3 * PAIR + LANES)
    for j in range(first, last):
        for i in range(0, fetched, LINE):
            prefetch(values, at + (j + AHEAD) * width + i)
        v0 = load(values, at + j * width)
        v1 = load(values, at + j * width + LANES)
        w = broadcast(scratch, weights_at + j)
        c00, c01 = fma(w, v0, c00), fma(w, v1, c01)
        w = broadcast(scratch, weights_at + stride + j)
        c10, c11 = fma(w, v0, c10), fma(w, v1, c11)
        w = broadcast(scratch, weights_at + 2 * stride + j)
        c20, c21 = fma(w, v0, c20), fma(w, v1, c21)
        w = broadcast(scratch, weights_at + 3 * stride + j)
        c30, c31 = fma(w, v0, c30), fma(w, v1, c31)
    store_rows(scratch, context_at, PAIR, c00, c01, c10, c11, c20, c21, c30, c31)


# --- one kv head -------------------------------------------------------------------------------------------


@part
def decode_block(qkv, q_at, block, group, head_dim, keys, values, slots, capacity, cached, new_k, new_v, scale, softcap,
                 first_column, last_column, out, out_at, scratch, at):  # fmt: skip
    """Attention of the ``group`` queries of one (row, kv head), for the columns [first, last) of their contexts.

    The new token's key and value come from new_k and new_v; it takes the slot cached % capacity.
    """
    width = padded(head_dim, PAIR)
    stride = slots
    slot = cached % capacity
    n_slots = min(cached + 1, capacity)
    wrapped = cached >= capacity
    panel_at = at + ROWS * stride
    value_at = panel_at + head_dim * LANES
    lanes_at = value_at + width
    partial_at = lanes_at + LANES
    keys_at = block * slots * head_dim
    values_at = block * slots * width

    # The panel and the value of the new token, as they will be in the cache.
    new_panel = slot // LANES
    for i in range(0, head_dim * LANES, LANES):
        store(scratch, panel_at + i, load(keys, keys_at + new_panel * head_dim * LANES + i))
    for d in range(head_dim):
        put(scratch, panel_at + d * LANES + slot % LANES, get(new_k, block * head_dim + d))
    for d in range(width):
        put(scratch, value_at + d, get(new_v, block * head_dim + d) if d < head_dim else ZERO)

    for row in range(0, group, ROWS):
        q0 = q_at + row * head_dim
        q1 = q_at + min(row + 1, group - 1) * head_dim
        q2 = q_at + min(row + 2, group - 1) * head_dim
        q3 = q_at + min(row + 3, group - 1) * head_dim
        n_panels = (n_slots + LANES - 1) // LANES
        scores_of_rows(qkv, q0, q1, q2, q3, keys, keys_at, n_panels, scratch, panel_at, new_panel, partial_at,
                       at, stride, head_dim, scale, softcap)  # fmt: skip
        for r in range(ROWS):
            exponentials(scratch, at + r * stride, n_slots, lanes_at)

        # Positions ascend from the slot after the new one once the ring has wrapped, otherwise from slot 0.
        t0 = t1 = t2 = t3 = ZERO
        if wrapped:
            t0, t1, t2, t3 = add_run(scratch, at, stride, slot + 1, capacity, t0, t1, t2, t3)
        t0, t1, t2, t3 = add_run(scratch, at, stride, 0, slot + 1, t0, t1, t2, t3)
        divide(scratch, at, n_slots, t0)
        divide(scratch, at + stride, n_slots, t1)
        divide(scratch, at + 2 * stride, n_slots, t2)
        divide(scratch, at + 3 * stride, n_slots, t3)

        for column in range(first_column, last_column, PAIR):
            for i in range(0, TILE, LANES):
                store(scratch, partial_at + i, splat(ZERO))
            v_at = values_at + column
            fetched = last_column - first_column if column == first_column else np.int64(0)
            if wrapped:
                add_values(scratch, at, stride, values, v_at, width, slot + 1, capacity, partial_at, fetched)
            add_values(scratch, at, stride, values, v_at, width, 0, slot, partial_at, fetched)
            add_values(
                scratch, at + slot, stride, scratch, value_at + column, width, 0, 1, partial_at, np.int64(0)
            )
            for r in range(min(ROWS, group - row)):
                for i in range(min(PAIR, last_column - column)):
                    put(
                        out,
                        out_at + (row + r) * head_dim + column + i,
                        get(scratch, partial_at + r * PAIR + i),
                    )


@part
def decode_share(index, n_workers, qkv, batch_size, n_heads, n_kv, head_dim, keys, values, slots, capacity, cached,
                 scale, softcap, new_k, new_v, out, scratch, scratch_size):  # fmt: skip
    """Worker ``index`` takes every n_workers-th (row, kv head); of those left over, each is shared by columns."""
    group = n_heads // n_kv
    n_blocks = batch_size * n_kv
    whole = n_blocks // n_workers * n_workers
    left = n_blocks - whole
    parts = max(1, min(padded(head_dim, PAIR) // PAIR, n_workers // max(1, left)))
    columns = padded((head_dim + parts - 1) // parts, PAIR)
    for task in range(index, whole + left * parts, n_workers):
        block, first_column, last_column = task, np.int64(0), head_dim
        if task >= whole:
            block = whole + (task - whole) // parts
            first_column = (task - whole) % parts * columns
            last_column = min(head_dim, first_column + columns)
        b = block // n_kv
        q_at = (b * (n_heads + 2 * n_kv) + block % n_kv * group) * head_dim
        out_at = (b * n_heads + block % n_kv * group) * head_dim
        decode_block(qkv, q_at, block, group, head_dim, keys, values, slots, capacity, cached, new_k, new_v,
                     scale, softcap, first_column, last_column, out, out_at,
                     scratch, index * scratch_size)  # fmt: skip


@kernel
def decode_serial(n_workers, qkv, batch_size, n_heads, n_kv, head_dim, keys, values, slots, capacity, cached,
                  scale, softcap, new_k, new_v, out, scratch, scratch_size):  # fmt: skip
    """All tasks on the calling thread: the twin of ``decode_parallel``."""
    decode_share(np.int64(0), np.int64(1), qkv, batch_size, n_heads, n_kv, head_dim, keys, values, slots, capacity,
                 cached, scale, softcap, new_k, new_v, out, scratch, scratch_size)  # fmt: skip


@kernel(parallel=True)
def decode_parallel(n_workers, qkv, batch_size, n_heads, n_kv, head_dim, keys, values, slots, capacity, cached,
                    scale, softcap, new_k, new_v, out, scratch, scratch_size):  # fmt: skip
    """out (B, n_heads * HD) = attention of one turned token per row in qkv (B, (n_heads + 2 n_kv) * HD).

    keys, values: the resident cache of ``slots`` padded slots, of which ``capacity`` are in use when it is full;
    cached: tokens before this one; new_k, new_v: (B, n_kv, HD).
    """
    for index in prange(n_workers):
        decode_share(np.int64(index), n_workers, qkv, batch_size, n_heads, n_kv, head_dim, keys, values, slots,
                     capacity, cached, scale, softcap, new_k, new_v, out, scratch, scratch_size)  # fmt: skip


decode = twins(decode_serial, decode_parallel)


@functools.lru_cache(1024)
def scratch_size(slots, head_dim):
    """Float32 numbers that one worker needs (plain Python: called before the kernel)."""
    levels = plain(levels_of)(-(-head_dim // plain(leaf_length)(head_dim)))
    return ROWS * slots + head_dim * LANES + plain(padded)(head_dim, PAIR) + LANES + levels * TILE
