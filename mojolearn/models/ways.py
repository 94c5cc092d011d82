"""Ways to compute the same logits: numbers of threads, batches, cuts of a sequence, and how they are crossed."""

import contextlib
import itertools
import os
import tempfile
from functools import partial

import numba
import numpy as np

from mojolearn import threads
from mojolearn.models.model_state import CausalLMState

BEGINNING = 7  # tokens before what is stored, copied or continued by steps
SERIAL = "serial kernels"
WAYS = ("first", "pairs", "all")


def threads_axis():
    """Return the numbers of threads to try, by name: context managers under which every call runs so."""
    most = threads.NUM_THREADS
    counts = sorted({count for count in (1, 2, 3, 4, 8, 16, 32, 64, most) if count <= most})
    named = {f"{count} thread{'s' if count > 1 else ''}": partial(on_threads, count) for count in counts}
    return {SERIAL: partial(kernels, "serial"), **named}


@contextlib.contextmanager
def kernels(which):
    """Inside, all kernels run as their serial or as their parallel twins."""
    before = threads.SMALL
    threads.SMALL = 0 if which == "parallel" else 1 << 62
    try:
        yield
    finally:
        threads.SMALL = before


@contextlib.contextmanager
def on_threads(count):
    """Inside, all kernels run as their parallel twins, on so many threads."""
    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        with kernels("parallel"):
            yield
    finally:
        numba.set_num_threads(before)


def batches_axis(rows):
    """Return ways to put rows into calls, by name.

    Parameters
    ----------
    rows : int
        How many there are.

    Returns
    -------
    dict of str to list of list of int
        For each call the rows that are in it. A row may come again; every row comes at least once.
    """
    order = list(range(rows))
    return {
        "each row alone": [[row] for row in order],
        "rows together": [order],
        "rows in another order": [order[::-1]],
        "two rows and one": [part for part in (order[:2], order[2:]) if part],
        "seven rows, some of them equal": [[order[(2 * i + i // 3) % rows] for i in range(7)]],
    }


def cuts_axis(length, *, every=False):
    """Return ways to cut a sequence, by name.

    Parameters
    ----------
    length : int
        Its number of tokens.
    every : bool, default False
        With two pieces for every place of the cut.

    Returns
    -------
    dict of str to callable
        ``way(lm, ids)`` gives the logits, float32 of shape (B, length, vocab_size).
    """
    ways = {
        "at once, without a state": lambda lm, ids: lm.forward(ids),
        "at once": partial(_in_chunks, cuts=()),
        "chunks of 5, 1, 7 and the rest": partial(_in_chunks, cuts=(5, 1, 7)),
        "chunks of 2, 3, 1, 1 and the rest": partial(_in_chunks, cuts=(2, 3, 1, 1)),
        "chunks of one token": partial(_in_chunks, cuts=(1,) * length),
        "single steps": partial(_by_steps, beginning=0),
        "steps in a session": partial(_in_session, beginning=0),
        "a prompt, then single steps": partial(_by_steps, beginning=BEGINNING),
        "a prompt, then a session": partial(_in_session, beginning=BEGINNING),
        "a prompt, a copy of its state, then the rest": _on_a_copy,
        "a prompt, its state in a file, then the rest": _through_a_file,
    }
    if every:
        for at in range(1, length):
            ways[f"{at} and {length - at}"] = partial(_in_chunks, cuts=(at,))
    return ways


def compute(lm, ids, calls, cut):
    """Compute the logits of rows in these calls, cut in this way: yields a row's place and its logits."""
    for rows in calls:
        yield from zip(rows, cut(lm, ids[rows]), strict=True)


def cross(axes, ways):
    """Choose combinations of one value from each axis.

    Parameters
    ----------
    axes : list of sequence
        The values of each axis.
    ways : {"first", "pairs", "all"}
        The first value of each alone; so few that every two values of two axes meet; or all.

    Returns
    -------
    list of tuple
        Combinations, in the order of the axes; the same at each call.

    Examples
    --------
    >>> cross(["ab", "xyz"], "first")
    [('a', 'x')]
    >>> len(cross(["ab", "xyz"], "all"))
    6
    >>> len(cross(["ab", "cd", "ef", "gh"], "pairs"))  # instead of 16
    6
    """
    everything = list(itertools.product(*axes))
    if ways != "pairs":
        return everything if ways == "all" else everything[:1]
    left = {pair for combination in everything for pair in _pairs(combination)}
    chosen = []
    while left:
        best = max(everything, key=lambda combination: len(left.intersection(_pairs(combination))))
        left.difference_update(_pairs(best))
        chosen.append(best)
    return [combination for combination in everything if combination in chosen]


def _pairs(combination):
    return list(itertools.combinations(enumerate(combination), 2))


def _begun(lm, ids, beginning):
    """A state after the first tokens, their logits, and the other tokens; at least one token is left."""
    state = lm.allocate_state(len(ids), ids.shape[1])
    beginning = min(beginning, ids.shape[1] - 1)
    pieces = [lm.forward(ids[:, :beginning], state)] if beginning else []
    return state, pieces, ids[:, beginning:]


def _in_chunks(lm, ids, cuts):
    state, pieces, rest = _begun(lm, ids, 0)
    for cut in (*cuts, ids.shape[1]):
        if rest.size:
            pieces.append(lm.forward(rest[:, :cut], state))
            rest = rest[:, cut:]
    return np.concatenate(pieces, axis=1)


def _by_steps(lm, ids, beginning):
    state, pieces, rest = _begun(lm, ids, beginning)
    pieces += [lm.step(column, state)[:, None] for column in rest.T]
    return np.concatenate(pieces, axis=1)


def _in_session(lm, ids, beginning):
    state, pieces, rest = _begun(lm, ids, beginning)
    with lm.decode_session(state) as session:
        pieces += [session.step(column)[:, None] for column in rest.T]
    return np.concatenate(pieces, axis=1)


def _on_a_copy(lm, ids):
    state, pieces, rest = _begun(lm, ids, BEGINNING)
    later = state.copy()
    lm.forward((rest + 1) % lm.vocab_size, state)  # what becomes of the original does not matter
    return np.concatenate([*pieces, lm.forward(rest, later)], axis=1)


def _through_a_file(lm, ids):
    state, pieces, rest = _begun(lm, ids, BEGINNING)
    with tempfile.TemporaryDirectory() as folder:
        state.save(os.path.join(folder, "state.npz"), lm)
        later = CausalLMState.load(os.path.join(folder, "state.npz"), lm)
    return np.concatenate([*pieces, lm.forward(rest, later)], axis=1)
