"""What one call of ``generate`` or ``stream`` is asked to do: every option checked, before anything is computed."""

import numpy as np

from mojolearn.models.logits import RULES, LogitRules
from mojolearn.models.sampling import OPTIONS, Sampling, fresh_seed, row_bases
from mojolearn.models.stopping import admit_eos, admit_stop
from mojolearn.scalars import admit_integer, brief, did_you_mean

REST = ("seed", "eos_token_id", "stop", "tokenizer", "pad_token_id", "logprobs")
KNOWN = (*OPTIONS, *RULES, *REST)


class GenerationPlan:
    """The options of one generation.

    Parameters
    ----------
    lm : CausalLM
        The model.
    batch_size : int
        Number of prompts.
    max_new_tokens : int
        At most so many tokens per row.
    method : str
        The public name that messages start with.
    **options
        As for `CausalLM.generate`, but for the state.

    Attributes
    ----------
    sampling : Sampling
        How a token is chosen.
    rules : LogitRules
        What happens to the logits before.
    seed : int, sequence of int or None
        The seed in use, also where none was given; None if greedy.
    bases : list of int
        Where the random numbers of each row start.
    eos, stop : list of tuple
        What ends each row.
    pads : ndarray of int64, shape (B,)
        What fills up each row.
    logprobs : int or None
        How many of the best tokens to tell of; None tells of none, nor of the one chosen.

    Raises
    ------
    TypeError, ValueError
        For an option that is unknown, of the wrong kind, out of range, or without effect.
    """

    def __init__(self, lm, batch_size, max_new_tokens, method, **options):
        for name in options:
            if name not in KNOWN:
                raise TypeError(f"{method}: unknown option {brief(name)}{did_you_mean(name, KNOWN)}")
        self.options = options
        self.max_new_tokens = admit_integer(max_new_tokens, "max_new_tokens", method, 0)
        vocab_size = lm.vocab_size
        self.sampling = Sampling(method, **_those(options, OPTIONS))
        self.rules = LogitRules(method, vocab_size, **_those(options, RULES))
        seed, eos, stop, self.tokenizer, pad, logprobs = (options.get(name) for name in REST)
        greedy = self.sampling.greedy
        if seed is not None and greedy:
            raise ValueError(
                f"{method}: seed={seed} has no effect with greedy=True; give greedy=False to sample"
            )
        self.seed = fresh_seed() if seed is None and not greedy else seed
        self.bases = row_bases(0 if greedy else self.seed, batch_size, method)
        self.eos = admit_eos(eos, batch_size, vocab_size, method)
        if self.tokenizer is None and stop is not None:
            self.tokenizer = lm.tokenizer
        self.stop = admit_stop(stop, batch_size, self.tokenizer, method)
        if pad is not None:
            pad = admit_integer(pad, "pad_token_id", method, 0, vocab_size - 1)
        firsts = [
            ids[0] if ids else 0 for ids in self.eos
        ]  # a row without an eos id is filled up after a stop string
        self.pads = np.array(firsts if pad is None else [pad] * batch_size, np.int64)
        self.logprobs = (
            None if logprobs is None else admit_integer(logprobs, "logprobs", method, 0, vocab_size)
        )


def _those(options, names):
    return {name: options[name] for name in names if name in options}
