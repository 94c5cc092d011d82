"""The resident layout of a cache: what a decode session keeps instead of a state's packed buffers.

A state packs its buffers at the used length, so each further token moves nearly all of them. A session keeps its
own copy instead, laid out for reading (N = B * KV blocks, one per row of the batch and kv head):

    keys     [N][panel][HD][LANES]   panel p holds slots p * LANES to (p + 1) * LANES - 1, one per lane
    values   [N][slot][HDP]          HDP is HD rounded up to two registers, the rest zeros

One line of keys is one step of LANES dot products, one line of values one step of a row's context, and a new token
moves nothing. A slot is a position, or under a window position % window, as in the state.
"""

from mojolearn._jit import LANES, helper, kernel, part, plain
from mojolearn.kernels.simd import get, put

PAIR = 2 * LANES  # numbers of a context that are computed together


@helper
def padded(n, multiple):
    """The next multiple of ``multiple`` from n on."""
    return (n + multiple - 1) // multiple * multiple


@part
def put_key(keys, block, slot, slots, head_dim, source, at):
    """Key of one slot: source[at : at + HD] into one lane of a panel."""
    to = (block * slots + slot // LANES * LANES) * head_dim + slot % LANES
    for d in range(head_dim):
        put(keys, to + d * LANES, get(source, at + d))


@part
def put_value(values, block, slot, slots, head_dim, source, at):
    to = (block * slots + slot) * padded(head_dim, PAIR)
    for d in range(head_dim):
        put(values, to + d, get(source, at + d))


# What a session counts, in one array of int64, so that a kernel changes the numbers together with the caches: tokens in
# the resident layout, tokens in the state's buffers, and whether the session is open.
RESIDENT, SYNCED, OPEN = 0, 1, 2
N_COUNTS = 3


@kernel
def settle_in(
    k_cache, v_cache, n_blocks, block_slots, used, head_dim, slots, keys, values, cached, held, counts
):
    """Copy ``used`` slots of each block of a state's buffers (block_slots apart) into the resident layout.

    Both then hold ``cached`` tokens. held: the state's count, and whether it was set by hand.
    """
    for block in range(n_blocks):
        for slot in range(used):
            at = (block * block_slots + slot) * head_dim
            put_key(keys, block, slot, slots, head_dim, k_cache, at)
            put_value(values, block, slot, slots, head_dim, v_cache, at)
    held[0], held[1] = cached, 0
    counts[RESIDENT] = counts[SYNCED] = cached


@kernel
def move_out(
    keys, values, n_blocks, block_slots, used, head_dim, slots, k_cache, v_cache, counts, stays_open
):
    """The way back: ``used`` slots of each block into a state's buffers, packed block_slots apart.

    Nothing is written where the buffers hold all tokens already.
    """
    width = padded(head_dim, PAIR)
    if counts[SYNCED] != counts[RESIDENT]:
        for block in range(n_blocks):
            for slot in range(used):
                to = (block * block_slots + slot) * head_dim
                k_at = (block * slots + slot // LANES * LANES) * head_dim + slot % LANES
                v_at = (block * slots + slot) * width
                for d in range(head_dim):
                    put(k_cache, to + d, get(keys, k_at + d * LANES))
                    put(v_cache, to + d, get(values, v_at + d))
        counts[SYNCED] = counts[RESIDENT]
    counts[OPEN] = stays_open


@kernel
def give_up(held, counts):
    """End a session without writing: the state's count goes back to what its buffers hold."""
    if counts[SYNCED] != counts[RESIDENT]:
        held[0] = counts[SYNCED]
    counts[OPEN] = 0


def sizes(n_blocks, capacity, head_dim):
    """Padded slots of a block, and float32 numbers of the keys and of the values (plain Python)."""
    slots = plain(padded)(capacity, LANES)
    return slots, n_blocks * slots * head_dim, n_blocks * slots * plain(padded)(head_dim, PAIR)
