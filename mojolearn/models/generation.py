"""The loop that makes text: run the prompt, choose a token for each row, run these, and so on."""

import numpy as np

from mojolearn.models.ids import admit_ids
from mojolearn.models.sampling import OPTIONS, Sampling, fresh_seed, row_bases
from mojolearn.scalars import admit_integer, did_you_mean


class TokenStream:
    """New tokens of a batch as they come; made by `CausalLM.stream`.

    Everything is checked and the prompt is run at construction; iterating gives arrays of shape (B,). Rows are
    independent: each has random numbers of its own, and one that has ended does not disturb the others.

    Parameters
    ----------
    lm : CausalLM
        The model.
    ids : array or nested list of int, shape (B, L)
        Prompts.
    max_new_tokens : int
        At most so many tokens per row.
    method : str
        The public name that messages start with.
    **options
        As for `CausalLM.generate`.

    Attributes
    ----------
    seed : int, sequence of int or None
        The seed in use, also where none was given; None if greedy.
    """

    def __init__(self, lm, ids, max_new_tokens, method, **options):
        known = ("seed", "eos_token_id", "pad_token_id", *OPTIONS)
        for name in options:
            if name not in known:
                raise TypeError(f"{method}: unknown option {name!r}{did_you_mean(name, known)}")
        seed, eos_token_id, pad_token_id = (options.pop(name, None) for name in known[:3])
        ids = admit_ids(ids, lm.vocab_size, method)
        B, L = ids.shape
        self.max_new_tokens = admit_integer(max_new_tokens, "max_new_tokens", method, 0)
        self._sampling = Sampling(method, **options)
        if seed is not None and self._sampling.greedy:
            raise ValueError(
                f"{method}: seed={seed} has no effect with greedy=True; give greedy=False to sample"
            )
        self._eos = _admit_eos(eos_token_id, lm.vocab_size, method)
        if pad_token_id is None:
            pad_token_id = self._eos[0] if self._eos else 0  # without an eos id nothing is ever filled up
        self.pad_token_id = admit_integer(pad_token_id, "pad_token_id", method, 0, lm.vocab_size - 1)
        greedy = self._sampling.greedy
        self.seed = fresh_seed() if seed is None and not greedy else seed
        bases = row_bases(0 if greedy else self.seed, B, method)
        self._tokens = iter(())
        if self.max_new_tokens:
            lm._check_positions(L + self.max_new_tokens - 1, method)  # the last token is not run
            state = lm.allocate_state(B, L + self.max_new_tokens - 1)
            logits = lm._run(ids, state, 0, method, last=True)[:, 0]
            self._tokens = self._generate(lm, state, logits, bases)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._tokens)

    def _generate(self, lm, state, logits, bases):
        active = np.ones(len(bases), bool)
        session = lm.decode_session(
            state
        )  # the state is the stream's own, so nobody needs it synced or closed
        for n in range(self.max_new_tokens):
            new = np.full(len(bases), self.pad_token_id, np.int64)
            for row in np.flatnonzero(active):
                new[row] = self._sampling.choose(logits[row], bases[row], n)
            active &= ~np.isin(new, self._eos)
            yield new.copy()
            if n + 1 == self.max_new_tokens or not active.any():
                return
            logits = session.step(new)


def _admit_eos(ids, vocab_size, method):
    if ids is None:
        return ()
    several = ids if isinstance(ids, (list, tuple, np.ndarray)) and np.ndim(ids) else [ids]
    return tuple(admit_integer(i, "eos_token_id", method, 0, vocab_size - 1) for i in several)
