"""``generate`` and ``stream``: the methods of `CausalLM` that continue token ids."""

import numpy as np

from mojolearn.models.generation import TokenStream
from mojolearn.models.ids import admit_ids


def generate(self, ids, max_new_tokens, *, greedy=True, seed=None, temperature=1.0, top_k=0, top_p=1.0,
             min_p=0.0, eos_token_id=None, pad_token_id=None):  # fmt: skip
    """Continue every row of a batch of prompts.

    Parameters
    ----------
    ids : array or nested list of int, shape (B, L)
        Prompts of one length.
    max_new_tokens : int
        How many tokens to add to each row; 0 adds none.
    greedy : bool, default True
        Take the best token every time (the lowest id of equals). False draws from the distribution.
    seed : int or sequence of int, optional
        One for all rows, which then still differ from each other, or one per row: a row's tokens depend on its
        seed and prompt alone. None takes a new seed each time; `stream` can tell which. Only with greedy=False.
    temperature, top_k, top_p, min_p
        What to draw from, see `mojolearn.models.sampling.Sampling`.
    eos_token_id : int or sequence of int, optional
        A row ends after any of these; None: no row ends early. ``lm.config.eos_token_ids`` has the model's own.
    pad_token_id : int, optional
        Fills up rows that have ended; None takes the first eos id.

    Returns
    -------
    ndarray of int64, shape (B, L + max_new_tokens)
        Prompt and continuation.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for more positions than ``max_positions``.
    """
    options = {
        name: value for name, value in locals().items() if name not in ("self", "ids", "max_new_tokens")
    }
    ids = admit_ids(ids, self.vocab_size, "CausalLM.generate")
    stream = TokenStream(self, ids, max_new_tokens, "CausalLM.generate", **options)
    out = np.full((len(ids), ids.shape[1] + stream.max_new_tokens), stream.pad_token_id, np.int64)
    out[:, : ids.shape[1]] = ids
    for n, new in enumerate(stream, ids.shape[1]):
        out[:, n] = new
    return out


def stream(self, ids, max_new_tokens, **options):
    """Continue every row of a batch of prompts, token by token.

    Parameters
    ----------
    ids : array or nested list of int, shape (B, L)
        Prompts of one length; they are run before `stream` returns.
    max_new_tokens : int
        At most so many tokens per row.
    **options
        As for `generate`.

    Returns
    -------
    TokenStream
        An iterator over the new ids, each time an int64 array of shape (B,), until all rows have ended. Its
        attribute ``seed`` tells the seed in use.

    Raises
    ------
    TypeError, ValueError
        As for `generate`.
    """
    return TokenStream(self, ids, max_new_tokens, "CausalLM.stream", **options)
