"""``generate`` and ``stream``: the methods of `CausalLM` that continue token ids."""

import numpy as np

from mojolearn.models.generation import TokenStream


def generate(self, ids, max_new_tokens, *, greedy=True, seed=None, temperature=1.0, top_k=0, top_p=1.0,
             min_p=0.0, repetition_penalty=1.0, logit_bias=None, logits_processor=None, eos_token_id=None, stop=None,
             tokenizer=None, pad_token_id=None, logprobs=None, state=None):  # fmt: skip
    """Continue every row of a batch of prompts.

    Parameters
    ----------
    ids : array or nested list of int
        Prompts: shape (B, L), or B sequences of any lengths. A row's tokens do not depend on the others.
    max_new_tokens : int
        How many tokens to add to each row; 0 adds none.
    greedy : bool, default True
        Take the best token every time (the lowest id of equals). False draws from the distribution.
    seed : int or sequence of int, optional
        One for all rows, which then still differ from each other, or one per row: a row's tokens depend on its
        seed and prompt alone. None takes a new seed each time; `stream` can tell which. Only with greedy=False.
    temperature, top_k, top_p, min_p
        What to draw from, applied in this order; see `mojolearn.models.sampling.Sampling`.
    repetition_penalty, logit_bias, logits_processor
        What happens to the logits before, in this order; see `mojolearn.models.logits.LogitRules`.
    eos_token_id : int or sequence of int, optional
        A row ends after any of these; None: no row ends early. ``lm.config.eos_token_ids`` has the model's own.
        A list of lists gives each row its own.
    stop : str or sequence of str, optional
        A row ends after the token that completes any of these in its new text. A list of lists gives each row its own.
    tokenizer : Tokenizer, optional
        What turns ids into text for `stop`; None takes the one that lies with the checkpoint.
    pad_token_id : int, optional
        Fills up rows that have ended; None takes the row's first eos id, and 0 where it has none.
    logprobs : int, optional
        Also return the log-probability of each new token, and at each place so many of the best tokens with theirs.
    state : CausalLMState, optional
        Holds the tokens before the prompts, and afterwards also all that is returned: calls with one state continue
        one text. It needs room for ``max_new_tokens``, and is written when everything has succeeded, or not at all.

    Returns
    -------
    ndarray of int64, shape (B, L + max_new_tokens), or a list of B arrays
        Prompt and continuation of each row; a list where prompts differ in length. With ``logprobs``, a pair of this
        and `Logprobs`. (Where all rows end early, a state holds tokens up to where the last row did.)

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for more positions than ``max_positions``.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> lm = CausalLM.load(BUILT_IN)
    >>> lm.generate([[0, 1818, 305], [0, 1818]], 2)
    [array([   0, 1818,  305,  267,  670]), array([   0, 1818,  283,  299])]
    >>> lm.generate([[0, 1818]], 2, logprobs=1)[1].chosen.round(2)
    array([[-1.47, -1.01]], dtype=float32)
    """
    options = {
        name: value for name, value in locals().items() if name not in ("self", "ids", "max_new_tokens")
    }
    options = {name: value for name, value in options.items() if value is not None}
    stream = TokenStream(self, ids, max_new_tokens, "CausalLM.generate", **options)
    while not stream.over:
        stream.advance()
    rows = stream.padded()
    rows = np.stack(rows) if len({len(row) for row in rows}) == 1 else rows
    found = rows if logprobs is None else (rows, stream.padded_logprobs())
    stream.close()  # writes a state, once nothing is left that could fail
    return found


def stream(self, ids, max_new_tokens, **options):
    """Continue every row of a batch of prompts, token by token.

    Parameters
    ----------
    ids : array or nested list of int
        Prompts, as for `generate`; they are run before `stream` returns.
    max_new_tokens : int
        At most so many tokens per row.
    **options
        As for `generate`. A state is written when the stream has ended or is closed.

    Returns
    -------
    TokenStream
        An iterator over the new ids, each time an int64 array of shape (B,), until all rows have ended. Its
        attributes tell the ``seed`` in use, the ``ids`` and ``logprobs`` so far, and the ``finish_reasons``; its
        ``save`` suspends it.

    Raises
    ------
    TypeError, ValueError
        As for `generate`.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> [int(new[0]) for new in CausalLM.load(BUILT_IN).stream([[0, 1818, 305]], 3)]
    [267, 670, 578]
    """
    return TokenStream(self, ids, max_new_tokens, "CausalLM.stream", **options)
