"""The promise of one result, tried out on a model: every way to compute its logits must give the same bits."""

import hashlib
import os
import tempfile
from typing import NamedTuple

import numpy as np

from mojolearn.models.ways import SERIAL, batches_axis, compute, cross, cuts_axis, kernels, threads_axis

ROWS, LENGTH, NEW = 3, 20, 6

# What the built-in model gives, on every machine (numerics fp32.v1).
KNOWN = "950bef40c6454b8e823db991e153a566745660ac71621139f9c4153cc936d254"


class Check(NamedTuple):
    """What was compared with the first way (each row alone, all tokens at once, serial kernels).

    Attributes
    ----------
    name : tuple of str
        The way: storage, threads, batch, cut; or what was made of them.
    difference : str or None
        Where the first bits differ; None where all are the same.
    """

    name: tuple
    difference: str | None


class Verdict(NamedTuple):
    """What a model gives on every machine, if it gives it here.

    Attributes
    ----------
    hash : str
        SHA-256 over the logits of the first way and the tokens of three texts.
    """

    hash: str


def verify(lm, others=(), ways="pairs"):
    """Compute the same logits in many ways.

    Parameters
    ----------
    lm : CausalLM
        The model.
    others : sequence of CausalLM
        The same model with its weights stored in other formats.
    ways : {"first", "pairs", "all"}
        How the axes are crossed, which are storage, threads, batch and cut: not at all; so that every two values of
        two axes meet; or each value with all others, and every place of a cut.

    Yields
    ------
    Check or Verdict
        A `Check` for each way, and a `Verdict` at the end.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> *checks, verdict = verify(CausalLM.load(BUILT_IN))
    >>> [check for check in checks if check.difference], verdict.hash == KNOWN
    ([], True)
    """
    length = LENGTH if lm.max_positions is None else max(1, min(LENGTH, lm.max_positions - NEW))
    ids = np.array(
        [[(7919 * (i + length * row) + 11) % lm.vocab_size for i in range(length)] for row in range(ROWS)]
    )
    with kernels("serial"):
        first = np.concatenate([lm.forward(row[None]) for row in ids])
        texts = [lm.generate(row[None, : 1 + place], NEW)[0] for place, row in enumerate(ids)]
    digest = hashlib.sha256(first.astype("<f4", copy=False).tobytes())
    digest.update(np.concatenate(texts).astype("<i8").tobytes())

    models = {model.weight_format: model for model in (lm, *others)}
    many, batches, cuts = threads_axis(), batches_axis(ROWS), cuts_axis(length, every=ways == "all")
    for name in cross([models, many, batches, cuts], ways):
        storage, threads, batch, cut = name
        with many[threads]():
            found = compute(models[storage], ids, batches[batch], cuts[cut])
            differences = (difference(logits, first[row], f"row {row}, ") for row, logits in found)
            yield Check(name, next(filter(None, differences), None))
    prompts = [row[: 1 + place] for place, row in enumerate(ids)]
    for storage, threads in cross(
        [models, [SERIAL, *list(many)[-1:]]], "first" if ways == "first" else "all"
    ):
        with many[threads]():
            for what, make in TOKENS.items():
                found = make(models[storage], prompts)
                yield Check((storage, threads, what), _other_tokens(found, texts))
    yield Verdict(digest.hexdigest())


def difference(got, wanted, where=""):
    """Say where two arrays differ first.

    Parameters
    ----------
    got, wanted : ndarray of float32, shape (tokens, vocab_size)
        Logits.
    where : str
        What the sentence begins with.

    Returns
    -------
    str or None
        None where every bit is the same.

    Examples
    --------
    >>> difference(np.float32([[1, 2]]), np.float32([[1, 2.5]]))
    'token 0, logit 1: 0x40000000 (2.0) instead of 0x40200000 (2.5)'
    >>> difference(np.float32([[0]]), np.float32([[-0.0]])) is None
    False
    """
    if got.shape != wanted.shape:
        return f"{where}the shape is {got.shape} instead of {wanted.shape}"
    mine, others = (np.ascontiguousarray(a).view(np.uint32) for a in (got, wanted))
    if np.array_equal(mine, others):
        return None
    token, logit = (int(i) for i in np.argwhere(mine != others)[0])
    at = token, logit
    return (f"{where}token {token}, logit {logit}: {mine[at]:#010x} ({got[at]}) instead of {others[at]:#010x} "
            f"({wanted[at]})")  # fmt: skip


def _other_tokens(got, wanted):
    """Where two lists of texts differ first, or None."""
    for row, (mine, other) in enumerate(zip(got, wanted, strict=True)):
        if not np.array_equal(mine, other):
            return f"row {row}: the tokens {np.asarray(mine).tolist()} instead of {other.tolist()}"
    return None


def _resumed(lm, prompts):
    stream = lm.stream(prompts, NEW)
    next(stream), next(stream)
    with tempfile.TemporaryDirectory() as folder:
        stream.save(os.path.join(folder, "stream.npz"))
        later = lm.resume(os.path.join(folder, "stream.npz"))
    for _ in later:
        pass
    return later.ids


TOKENS = {
    "tokens of prompts of several lengths together": lambda lm, prompts: lm.generate(prompts, NEW),
    "tokens of a stream in a file and back": _resumed,
}
