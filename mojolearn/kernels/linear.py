"""The matrix product: rows of activations times packed weights, in an order that depends on k alone.

``out[i, j] = sum over p of a[i, p] * w[j, p]``. The sum over k is cut into leaves of (mostly) 128; inside a
leaf one chain of fused multiply-adds runs from first to last, and the leaves are added in pairs, level by level
(numerics page, section 2). Many outputs are computed side by side, but each by that same chain: so the bits
of a row do not depend on how many rows there are, on the threads, or on the width of the registers.

Weights are packed once, at construction, into panels of ``PANEL`` output features: ``[panel][k][PANEL]``. One
step of k then reads one contiguous line, and a leaf of a panel (16 kB or less) stays in the first-level cache
while all rows of a block pass over it.

Shapes: n_rows rows of k inputs, n_out outputs, n_panels = ceil(n_out / PANEL).
"""

import functools

import numpy as np
from numba import prange

from mojolearn._jit import LANES, helper, kernel, part, plain, twins
from mojolearn.kernels.activation import NO_ACTIVATION, activate
from mojolearn.kernels.simd import broadcast, fma, get, load, prefetch, put, splat, store
from mojolearn.kernels.sums import fold_after, fold_rest, leaf_length, levels_of
from mojolearn.kernels.vmath import ZERO

PANEL = 2 * LANES  # output features side by side: two registers
TILE_ROWS = 6  # rows of a tile; 6 x 2 accumulators, 2 weights and 1 input fill the 16 registers of AVX2
TILE = TILE_ROWS * PANEL
BLOCK_TILES = 22  # tiles that pass over one leaf while it is in the cache
BLOCK_ROWS = BLOCK_TILES * TILE_ROWS
MANY_TILES = (
    5  # from here on a leaf is first copied to scratch, as float32; below, that cost a third of the time
)
AHEAD = 32  # steps of k by which one row fetches its weights ahead; 0 reads a tenth slower, 16 and 64 some percent
GROUP = 4  # panels that one single row walks through together: 8 chains hide the latency of fma


# --- one leaf ----------------------------------------------------------------------------------------------


@part
def leaf_of_tile(x, at, w, w_at, n, partial, partial_at):
    """Six rows times one panel over one leaf of n terms: twelve chains, kept in registers.

    x: inputs (n, TILE_ROWS) from at on; w: (n, PANEL) from w_at on; partial: TILE sums from partial_at on.
    """
    zero = splat(ZERO)
    c00 = c01 = c10 = c11 = c20 = c21 = c30 = c31 = c40 = c41 = c50 = c51 = zero
    for p in range(n):
        i = at + p * TILE_ROWS
        w0 = load(w, w_at + p * PANEL)
        w1 = load(w, w_at + p * PANEL + LANES)
        a = broadcast(x, i)
        c00, c01 = fma(a, w0, c00), fma(a, w1, c01)
        a = broadcast(x, i + 1)
        c10, c11 = fma(a, w0, c10), fma(a, w1, c11)
        a = broadcast(x, i + 2)
        c20, c21 = fma(a, w0, c20), fma(a, w1, c21)
        a = broadcast(x, i + 3)
        c30, c31 = fma(a, w0, c30), fma(a, w1, c31)
        a = broadcast(x, i + 4)
        c40, c41 = fma(a, w0, c40), fma(a, w1, c41)
        a = broadcast(x, i + 5)
        c50, c51 = fma(a, w0, c50), fma(a, w1, c51)
    store_pair(partial, partial_at, c00, c01)
    store_pair(partial, partial_at + PANEL, c10, c11)
    store_pair(partial, partial_at + 2 * PANEL, c20, c21)
    store_pair(partial, partial_at + 3 * PANEL, c30, c31)
    store_pair(partial, partial_at + 4 * PANEL, c40, c41)
    store_pair(partial, partial_at + 5 * PANEL, c50, c51)


@part
def leaf_of_row(a, r0, w, w0, w1, w2, w3, n, partial, at):
    """One row times GROUP panels over one leaf: the weights stream by once, as fast as memory gives them.

    w may be stored narrow: ``load`` widens in registers. partial: GROUP * PANEL sums from at on.
    """
    zero = splat(ZERO)
    c00 = c01 = c10 = c11 = c20 = c21 = c30 = c31 = zero
    for p in range(n):
        x = broadcast(a, r0 + p)
        i = p * PANEL
        ahead = i + AHEAD * PANEL
        fetch_step(w, w0 + ahead)
        fetch_step(w, w1 + ahead)
        fetch_step(w, w2 + ahead)
        fetch_step(w, w3 + ahead)
        c00, c01 = fma(x, load(w, w0 + i), c00), fma(x, load(w, w0 + i + LANES), c01)
        c10, c11 = fma(x, load(w, w1 + i), c10), fma(x, load(w, w1 + i + LANES), c11)
        c20, c21 = fma(x, load(w, w2 + i), c20), fma(x, load(w, w2 + i + LANES), c21)
        c30, c31 = fma(x, load(w, w3 + i), c30), fma(x, load(w, w3 + i + LANES), c31)
    store_pair(partial, at, c00, c01)
    store_pair(partial, at + PANEL, c10, c11)
    store_pair(partial, at + 2 * PANEL, c20, c21)
    store_pair(partial, at + 3 * PANEL, c30, c31)


@helper
def fetch_step(w, at):
    """Ask for the weights of one step of k of a panel."""
    prefetch(w, at)
    if w.itemsize * PANEL > 64:  # more than one cache line
        prefetch(w, at + LANES)


@helper
def store_pair(target, at, first, second):
    store(target, at, first)
    store(target, at + LANES, second)


# --- what happens to a finished sum ------------------------------------------------------------------------


@part
def finish(sums, at, up_at, panel, step, rows, row, n_out, bias, activation, residual, out):
    """Bias, activation and residual for rows x PANEL sums, then into out (n_rows, n_out) at (row, panel).

    step: 2 for a gated pair (the gate's sums at sums[at], those of up at sums[up_at]), otherwise 1.
    bias: (n_panels * PANEL,) in packed order; residual: as out; both empty when there is none.
    """
    column = panel * PANEL
    bias_at = panel * step * PANEL
    n_columns = min(PANEL, n_out - column)
    for r in range(rows):
        for i in range(0, n_columns, LANES):
            y = load(sums, at + r * PANEL + i)
            if bias.size > 0:
                y = y + load(bias, bias_at + i)
            if activation != NO_ACTIVATION:
                y = activate(activation, y)
            if step == 2:
                up = load(sums, up_at + r * PANEL + i)
                if bias.size > 0:
                    up = up + load(bias, bias_at + PANEL + i)
                y = y * up
            place = (row + r) * n_out + column + i
            if i + LANES <= n_columns:
                if residual.size > 0:
                    y = load(residual, place) + y
                store(out, place, y)
            else:  # the last panel of a width that is no multiple of LANES
                store(sums, at + r * PANEL + i, y)
                for j in range(n_columns - i):
                    value = get(sums, at + r * PANEL + i + j)
                    if residual.size > 0:
                        value = get(residual, place + j) + value
                    put(out, place + j, value)


# --- many rows ---------------------------------------------------------------------------------------------


@part
def pack_rows(a, k, row, rows, packed, at):
    """Copy rows of a so that one leaf of all tiles is one run: [leaf][tile][term][TILE_ROWS].

    Rows lie k numbers apart, each on another page of memory; the product passes over them once per panel.
    A tile that reaches past the last row repeats that row.
    """
    leaf = leaf_length(k)
    last = row + rows - 1
    for first in range(0, k, leaf):
        n = min(leaf, k - first)
        for r in range(row, row + rows, TILE_ROWS):
            r0 = r * k + first
            r1 = min(r + 1, last) * k + first
            r2 = min(r + 2, last) * k + first
            r3 = min(r + 3, last) * k + first
            r4 = min(r + 4, last) * k + first
            r5 = min(r + 5, last) * k + first
            for p in range(n):
                put(packed, at, get(a, r0 + p))
                put(packed, at + 1, get(a, r1 + p))
                put(packed, at + 2, get(a, r2 + p))
                put(packed, at + 3, get(a, r3 + p))
                put(packed, at + 4, get(a, r4 + p))
                put(packed, at + 5, get(a, r5 + p))
                at += TILE_ROWS


@part
def sums_of_block(k, n_tiles, w, panel, next_panel, scratch, rows_at, leaf_at, at):
    """The rows of a block times one panel: leaf by leaf, and every tile of rows over each leaf.

    scratch: the packed rows at rows_at; the leaf, widened to float32, at leaf_at; for each tile its levels of
    the tree, (n_tiles, levels, TILE), from at on. The finished sums are the levels 0. While the tiles of a leaf are
    computed, the weights of the next one are fetched: without that, waiting for them took a quarter of the time.
    """
    leaf = leaf_length(k)
    n_leaves = (k + leaf - 1) // leaf
    tile_size = levels_of(n_leaves) * TILE
    level = 0
    for t in range(n_leaves):
        first = t * leaf
        n = min(leaf, k - first)
        n_registers = n * 2
        w_at = (panel * k + first) * PANEL
        next_at = w_at + n * PANEL if t + 1 < n_leaves else next_panel * k * PANEL
        widen = n_tiles >= MANY_TILES
        if widen:
            for i in range(n_registers):
                store(scratch, leaf_at + i * LANES, load(w, w_at + i * LANES))
        next_level = level
        for tile in range(n_tiles):
            x_at = rows_at + (first * n_tiles + tile * n) * TILE_ROWS
            tile_at = at + tile * tile_size
            if widen:
                for i in range(tile * n_registers // n_tiles, (tile + 1) * n_registers // n_tiles):
                    prefetch(w, next_at + i * LANES)
                leaf_of_tile(scratch, x_at, scratch, leaf_at, n, scratch, tile_at + level * TILE)
            else:
                leaf_of_tile(scratch, x_at, w, w_at, n, scratch, tile_at + level * TILE)
            next_level = fold_after(t, level + 1, scratch, tile_at, TILE)
        level = next_level
    for tile in range(n_tiles):
        fold_rest(level, scratch, at + tile * tile_size, TILE)


@helper
def tiles_of_block(n_rows):
    """Tiles of the largest block of rows."""
    return min(BLOCK_TILES, (n_rows + TILE_ROWS - 1) // TILE_ROWS)


@part
def rows_by_panels(index, n_workers, a, n_rows, k, w, n_panels, step, n_out, bias, activation, residual, out,
                   scratch, at):  # fmt: skip
    """Worker ``index`` takes every n_workers-th panel (or gate and up pair) for one block of rows after another."""
    leaf = leaf_length(k)
    tile_size = levels_of((k + leaf - 1) // leaf) * TILE
    most_tiles = tiles_of_block(n_rows)
    leaf_at = at + most_tiles * TILE_ROWS * k
    sums_at = leaf_at + leaf * PANEL
    up_at = sums_at + most_tiles * tile_size
    for row in range(0, n_rows, BLOCK_ROWS):
        rows = min(BLOCK_ROWS, n_rows - row)
        n_tiles = tiles_of_block(rows)
        pack_rows(a, k, row, rows, scratch, at)
        for panel in range(index, n_panels // step, n_workers):
            first, following = panel * step, (panel + n_workers) * step
            if step == 1:
                sums_of_block(k, n_tiles, w, first, following, scratch, at, leaf_at, sums_at)
            else:
                sums_of_block(k, n_tiles, w, first, first + 1, scratch, at, leaf_at, sums_at)
                sums_of_block(k, n_tiles, w, first + 1, following, scratch, at, leaf_at, up_at)
            for tile in range(n_tiles):
                offset = tile * tile_size
                done = tile * TILE_ROWS
                finish(scratch, sums_at + offset, up_at + offset, panel, step, min(TILE_ROWS, rows - done), row + done,
                       n_out, bias, activation, residual, out)  # fmt: skip


# --- one row -----------------------------------------------------------------------------------------------


@part
def one_row_by_panels(index, n_workers, a, k, w, n_panels, step, n_out, bias, activation, residual, out,
                      scratch, at):  # fmt: skip
    """Worker ``index`` takes an equal share of the panels, GROUP at a time: one pass over the weights."""
    leaf = leaf_length(k)
    n_leaves = (k + leaf - 1) // leaf
    n_outputs = n_panels // step
    last = (index + 1) * n_outputs // n_workers * step - 1
    for p0 in range(index * n_outputs // n_workers * step, last + 1, GROUP):
        level = 0
        for t in range(n_leaves):
            first = t * leaf
            w0 = (p0 * k + first) * PANEL
            w1 = (
                min(p0 + 1, last) * k + first
            ) * PANEL  # a group that reaches past the last panel repeats it
            w2 = (min(p0 + 2, last) * k + first) * PANEL
            w3 = (min(p0 + 3, last) * k + first) * PANEL
            leaf_of_row(
                a, first, w, w0, w1, w2, w3, min(leaf, k - first), scratch, at + level * GROUP * PANEL
            )
            level = fold_after(t, level + 1, scratch, at, GROUP * PANEL)
        fold_rest(level, scratch, at, GROUP * PANEL)
        for p in range(p0, min(p0 + GROUP, last + 1), step):
            sums_at = at + (p - p0) * PANEL
            finish(scratch, sums_at, sums_at + PANEL, p // step, step, np.int64(1), np.int64(0), n_out,
                   bias, activation, residual, out)  # fmt: skip


# --- entry points ------------------------------------------------------------------------------------------


@part
def linear_share(index, n_workers, a, n_rows, k, w, n_panels, step, n_out, bias, activation, residual, out,
                 scratch, scratch_size):  # fmt: skip
    at = index * scratch_size
    if n_rows == 1:
        one_row_by_panels(index, n_workers, a, k, w, n_panels, step, n_out, bias, activation, residual, out,
                          scratch, at)  # fmt: skip
    else:
        rows_by_panels(index, n_workers, a, n_rows, k, w, n_panels, step, n_out, bias, activation, residual, out,
                       scratch, at)  # fmt: skip


@kernel
def linear_serial(n_workers, a, n_rows, k, w, n_panels, step, n_out, bias, activation, residual, out,
                  scratch, scratch_size):  # fmt: skip
    """The whole product on the calling thread: the twin of ``linear_parallel`` with the same bits."""
    linear_share(np.int64(0), np.int64(1), a, n_rows, k, w, n_panels, step, n_out, bias, activation, residual, out,
                 scratch, scratch_size)  # fmt: skip


@kernel(parallel=True)
def linear_parallel(n_workers, a, n_rows, k, w, n_panels, step, n_out, bias, activation, residual, out,
                    scratch, scratch_size):  # fmt: skip
    """out (n_rows, n_out) = f(a (n_rows, k) times packed w), all flat; n_workers shares side by side."""
    for index in prange(n_workers):
        linear_share(np.int64(index), n_workers, a, n_rows, k, w, n_panels, step, n_out, bias, activation, residual,
                     out, scratch, scratch_size)  # fmt: skip


linear = twins(linear_serial, linear_parallel)


@functools.lru_cache(1024)
def scratch_size(n_rows, k, step):
    """Float32 numbers that one worker needs (plain Python: called before the kernel)."""
    leaf = plain(leaf_length)(k)
    levels = plain(levels_of)(-(-k // leaf))
    if n_rows == 1:
        return levels * GROUP * PANEL
    tiles = plain(tiles_of_block)(n_rows)
    return tiles * TILE_ROWS * k + leaf * PANEL + tiles * step * levels * TILE
