"""``score``: the method of `CausalLM` that tells how probable given tokens are."""

import numpy as np

from mojolearn.models.ids import admit_prompts
from mojolearn.models.logprobs import logprobs_of

CHUNK = 256  # tokens whose logits are in memory at once


def score(self, ids):
    """Compute the log-probability of each token given those before it.

    Parameters
    ----------
    ids : array or nested list of int
        Texts: shape (B, L), or B sequences of any lengths.

    Returns
    -------
    ndarray of float32, shape (B, L - 1), or a list of B arrays
        ``[b, t]`` belongs to ``ids[b][t + 1]``: the first token of a text has none, as nothing comes before it. A list
        where texts differ in length. A text's numbers do not depend on the others.

    Raises
    ------
    TypeError, ValueError
        For ids that do not fit, and for more positions than ``max_positions``.

    Notes
    -----
    The sum of a row is the log-likelihood of the text, and exp(-mean) its perplexity. ``math.fsum`` adds without
    rounding on the way, so in any order.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> CausalLM.load(BUILT_IN).score([[0, 1818, 305, 267]]).round(2)
    array([[-10.72,  -1.82,  -1.64]], dtype=float32)
    """
    method = "CausalLM.score"
    rows = admit_prompts(ids, self.vocab_size, method)
    self._check_positions(max(len(row) for row in rows), method)
    scores = [_score_row(self, row, method) for row in rows]
    return np.stack(scores) if len({len(row) for row in rows}) == 1 else scores


def _score_row(lm, ids, method):
    """The log-probabilities of one text, in chunks: the bits are those of one call, without all logits at once."""
    scores = np.empty(len(ids) - 1, np.float32)
    state = lm.allocate_state(1, len(ids))
    for first in range(0, len(scores), CHUNK):
        chunk = ids[first : first + CHUNK + 1]
        logits = lm._run(chunk[None, :-1], state, first, method)[0]
        scores[first : first + len(logits)] = logprobs_of(logits, chunk[1:], method)
    return scores
