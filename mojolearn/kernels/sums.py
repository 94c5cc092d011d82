"""The order of long sums: leaves of a serial chain, folded in pairs (numerics page, section 2).

A sum of k terms is cut into leaves of (mostly) 128 terms. Inside a leaf one chain of fused multiply-adds runs from
first to last; then neighbours are added, level by level, until one value is left. The tree is folded on the fly, as
a carry runs when counting in binary, so that only one partial sum per level is alive.
"""

from mojolearn._jit import LANES, helper
from mojolearn.kernels.simd import load, store

LEAF, MAX_LEAVES = 128, 1024


@helper
def leaf_length(k):
    """Terms per leaf: 128 as long as that makes no more than 1024 leaves."""
    if k <= LEAF:
        return k
    if (k + LEAF - 1) // LEAF <= MAX_LEAVES:
        return LEAF
    return (k + MAX_LEAVES - 1) // MAX_LEAVES


@helper
def levels_of(n_leaves):
    """Levels that are alive at once while the tree over the leaves is folded on the fly."""
    levels = 1
    while (1 << levels) <= n_leaves:
        levels += 1
    return levels + 1


@helper
def add_level(partial, at, size):
    """partial[at : at + size] += the level above it (left operand first)."""
    for i in range(0, size, LANES):
        store(partial, at + i, load(partial, at + i) + load(partial, at + size + i))


@helper
def fold_after(leaf, level, partial, at, size):
    """Add what has found its neighbour after this leaf, as a carry runs when counting in binary.

    Level 0 lies at partial[at], each further one size numbers on; returns the level that is free next.
    """
    count = leaf + 1
    while count & 1 == 0:
        level -= 1
        add_level(partial, at + (level - 1) * size, size)
        count >>= 1
    return level


@helper
def fold_rest(level, partial, at, size):
    """After the last leaf: the odd ones that moved up unchanged meet their neighbours, right to left."""
    while level > 1:
        level -= 1
        add_level(partial, at + (level - 1) * size, size)
