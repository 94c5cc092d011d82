"""The promise of one result, tried out on a model: every way to compute its logits must give the same bits."""

import contextlib
import hashlib
import os
import tempfile

import numba
import numpy as np

from mojolearn import threads

ROWS, LENGTH, NEW = 3, 20, 6

# What the built-in model gives, on every machine (numerics fp32.v1).
KNOWN = "950bef40c6454b8e823db991e153a566745660ac71621139f9c4153cc936d254"


def verify(lm, wide=None):
    """Compute the same logits in many ways.

    Parameters
    ----------
    lm : CausalLM
        The model.
    wide : CausalLM, optional
        The same model with its weights stored as float32.

    Yields
    ------
    tuple of str and bool
        What was compared with the first way (each row alone, all tokens at once, one thread), and whether every bit
        was the same. The last one is ("hash", the hash of logits and of new tokens).

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> *checks, (_, digest) = verify(CausalLM.load(BUILT_IN))
    >>> all(same for _, same in checks), digest == KNOWN
    (True, True)
    """
    length = LENGTH if lm.max_positions is None else max(1, min(LENGTH, lm.max_positions - NEW))
    ids = np.array(
        [[(7919 * (i + length * row) + 11) % lm.vocab_size for i in range(length)] for row in range(ROWS)]
    )
    with _kernels("serial"):
        first = np.concatenate([lm.forward(row[None]) for row in ids])
        texts = [lm.generate(row[None, : 1 + place], NEW)[0] for place, row in enumerate(ids)]
    digest = hashlib.sha256(first.astype("<f4", copy=False).tobytes())
    digest.update(np.concatenate(texts).astype("<i8").tobytes())
    for name, compute in _ways(lm, wide, ids):
        yield name, _same(compute(), first)
    prompts = [row[: 1 + place] for place, row in enumerate(ids)]
    yield "tokens: prompts of several lengths together", _equal(lm.generate(prompts, NEW), texts)
    yield "tokens: a stream in a file and back", _equal(_resumed(lm, prompts), texts)
    yield "hash", digest.hexdigest()


def _ways(lm, wide, ids):
    """Names, and functions that compute the logits."""
    most = threads.NUM_THREADS
    for count in sorted({1, 2, most} & set(range(1, most + 1))):
        yield f"threads: parallel kernels, {count}", lambda n=count: _on_threads(n, lambda: lm.forward(ids))
    yield "batch: rows together", lambda: lm.forward(ids)
    yield "batch: in another order", lambda: lm.forward(ids[::-1])[::-1]
    yield "chunks: all at once with a state", lambda: _in_chunks(lm, ids, ())
    yield "chunks: 5, 1, 7 and the rest", lambda: _in_chunks(lm, ids, (5, 1, 7))
    yield "chunks: 2, 3, 1, 1 and the rest", lambda: _in_chunks(lm, ids, (2, 3, 1, 1))
    yield "chunks: token by token", lambda: _in_chunks(lm, ids, (1,) * ids.shape[1])
    yield "decoding: steps in a session", lambda: _in_session(lm, ids)
    if wide is not None:
        yield "storage: weights as float32", lambda: wide.forward(ids)


@contextlib.contextmanager
def _kernels(which):
    """Inside, all kernels run as their serial or as their parallel twins."""
    before = threads.SMALL
    threads.SMALL = 0 if which == "parallel" else 1 << 62
    try:
        yield
    finally:
        threads.SMALL = before


def _on_threads(count, compute):
    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        with _kernels("parallel"):
            return compute()
    finally:
        numba.set_num_threads(before)


def _in_chunks(lm, ids, cuts):
    state, pieces, at = lm.allocate_state(len(ids), ids.shape[1]), [], 0
    for cut in (*cuts, ids.shape[1]):
        if at < ids.shape[1]:
            pieces.append(lm.forward(ids[:, at : at + cut], state))
            at += cut
    return np.concatenate(pieces, axis=1)


def _in_session(lm, ids):
    state = lm.allocate_state(len(ids), ids.shape[1])
    with lm.decode_session(state) as session:
        return np.stack([session.step(column) for column in ids.T], axis=1)


def _resumed(lm, prompts):
    stream = lm.stream(prompts, NEW)
    next(stream), next(stream)
    with tempfile.TemporaryDirectory() as folder:
        stream.save(os.path.join(folder, "stream.npz"))
        later = lm.resume(os.path.join(folder, "stream.npz"))
    for _ in later:
        pass
    return later.ids


def _same(got, wanted):
    return got.shape == wanted.shape and np.array_equal(got.view(np.uint32), wanted.view(np.uint32))


def _equal(got, wanted):
    return all(np.array_equal(mine, other) for mine, other in zip(got, wanted, strict=True))
