"""The loop that makes text: run the prompt, choose a token for each row, run these, and so on."""

from functools import partial

import numpy as np

from mojolearn.admission import settle
from mojolearn.models.groups import grouped
from mojolearn.models.ids import admit_prompts
from mojolearn.models.logprobs import Logprobs, empty_logprobs, fill_logprobs
from mojolearn.models.model_state import claim_layers, replace_state
from mojolearn.models.plan import GenerationPlan
from mojolearn.models.stopping import StopStrings
from mojolearn.models.suspend import save_stream


class TokenStream:
    """New tokens of a batch as they come; made by `CausalLM.stream` and `CausalLM.resume`.

    Everything is checked and the prompts are run at construction; iterating gives arrays of shape (B,). Rows are
    independent: each has random numbers of its own, and one that has ended does not disturb the others.

    Parameters
    ----------
    lm : CausalLM
        The model.
    ids : array or nested list of int
        Prompts: shape (B, L), or B sequences of any lengths.
    max_new_tokens : int
        At most so many tokens per row.
    method : str
        The public name that messages start with.
    state : CausalLMState, optional
        Holds the tokens before the prompts. It is written once: when the last token has come or the stream is
        closed, and then holds all tokens that were given out.
    **options
        As for `CausalLM.generate`.

    Attributes
    ----------
    seed : int, sequence of int or None
        The seed in use, also where none was given; None if greedy.
    max_new_tokens : int
        As given.
    state : CausalLMState or None
        As given.
    """

    def __init__(self, lm, ids, max_new_tokens, method, *, state=None, **options):
        rows = admit_prompts(ids, lm.vocab_size, method)
        plan = GenerationPlan(lm, len(rows), max_new_tokens, method, **options)
        with claim_layers(state, method):
            groups = grouped(lm, plan, rows, state, method)
            self._set(lm, plan, method, rows, groups, state)
        if self.max_new_tokens or state is not None:
            for group in groups:
                group.logits = lm._run(group.ids, group.state, group.position, method, last=True)[:, 0]
                group.position += group.ids.shape[1]
        self._end_if_over()

    @classmethod
    def _restored(cls, lm, plan, method, prompts, groups, state, new, logprobs):
        """Make the stream that `save` has written; groups hold the tokens up to where it was."""
        stream = cls.__new__(cls)
        stream._set(lm, plan, method, prompts, groups, state)
        for at, tokens in enumerate(new):
            stream._take(tokens, at)
        if logprobs is not None:
            for mine, saved in zip(stream._logprobs, logprobs, strict=True):
                mine[:] = saved
        stream._end_if_over()
        return stream

    def _set(self, lm, plan, method, prompts, groups, state):
        self._lm, self._plan, self._method, self._groups = lm, plan, method, groups
        self._prompts = prompts
        self._new = np.zeros((len(prompts), plan.max_new_tokens), np.int64)
        self._count = 0
        self._reasons = [None] * len(prompts)
        # For each row, how many tokens its watcher has been shown, and the watcher.
        self._watchers = [(0, _watcher(plan, row, ids)) for row, ids in enumerate(prompts)]
        n = plan.logprobs
        self._logprobs = None if n is None else empty_logprobs(len(prompts), plan.max_new_tokens, n)
        self._open = True
        self.state, self._held = state, None if state is None else state.cached_tokens
        self.seed, self.max_new_tokens = plan.seed, plan.max_new_tokens

    @property
    def ids(self):
        """Prompt and new tokens of each row so far, without padding: a list of int64 arrays."""
        return [
            np.concatenate([prompt, new[: self._length(row)]])
            for row, (prompt, new) in enumerate(zip(self._prompts, self._new, strict=True))
        ]

    @property
    def finish_reasons(self):
        """Why each row has ended: "eos", "stop", "length", or None where it has not."""
        return [reason and reason[0] for reason in self._reasons]

    @property
    def logprobs(self):
        """`Logprobs` of the new tokens so far; None unless asked for."""
        if self._logprobs is None:
            return None
        return Logprobs(*(array[:, : self._count] for array in self._logprobs))

    def stop_strings(self, row):
        """Return the strings that end a row."""
        return self._plan.stop[row]

    def padded(self):
        """Return prompt and new tokens of each row, filled up to ``max_new_tokens``."""
        places = np.arange(self.max_new_tokens)
        rows = []
        for row, prompt in enumerate(self._prompts):
            new = np.where(places < self._length(row), self._new[row], self._plan.pads[row])
            rows.append(np.concatenate([prompt, new]))
        return rows

    def padded_logprobs(self):
        """Return the `Logprobs` of ``max_new_tokens`` places."""
        return self._logprobs

    def _length(self, row):
        """New tokens of a row."""
        return self._count if self._reasons[row] is None else self._reasons[row][1]

    def __iter__(self):
        return self

    def __next__(self):
        self._end_if_over()  # where an interrupt came before that
        if not self._open:
            raise StopIteration
        new = self.advance()
        self._end_if_over()
        return new

    def advance(self):
        """Choose the next tokens; a state is not written before `close`, even if these are the last."""
        new, ran, found = self._plan.pads.copy(), [], []
        for group in self._groups:
            active = [place for place, row in enumerate(group.rows) if self._reasons[row] is None]
            if not active:
                continue
            logits = group.next_logits(self._lm, self._method)
            ran.append(group)
            for place in active:
                row = group.rows[place]
                new[row] = self._choose(row, logits[place])
            if self._logprobs is not None:
                rows = [group.rows[place] for place in active]
                found.append((rows, logits[active], new[rows]))
        for rows, logits, chosen in found:
            fill_logprobs(self._logprobs, self._count, rows, logits, chosen, self._method)
        settle([partial(self._take, new, self._count, ran)])  # everything has succeeded
        return new

    def _choose(self, row, logits):
        ids = np.concatenate([self._prompts[row], self._new[row, : self._count]])
        logits = self._plan.rules.apply(logits, ids)
        return self._plan.sampling.choose(logits, self._plan.bases[row], self._count)

    def _take(self, new, at, ran=()):
        """Note new tokens at place ``at``, and which rows end with them; repeating changes nothing."""
        for group in ran:
            group.logits, group.pending = None, new[group.rows]
        self._new[:, at] = new
        self._count = at + 1
        for row, token in enumerate(new.tolist()):
            if self._reasons[row] is not None:
                continue
            if token in self._plan.eos[row]:
                self._reasons[row] = ("eos", self._count)
            elif self._plan.stop[row] and self._stops(row, token, at):
                self._reasons[row] = ("stop", self._count)
            elif self._count == self.max_new_tokens:
                self._reasons[row] = ("length", self._count)

    def _stops(self, row, token, at):
        """Does this token complete a stop string of its row?"""
        seen, watcher = self._watchers[row]
        if seen != at:  # it was interrupted while it looked
            watcher = _watcher(self._plan, row, self._prompts[row])
            for earlier in self._new[row, :at].tolist():
                watcher(earlier)
        self._watchers[row] = (None, None)
        found = watcher(token)
        self._watchers[row] = (at + 1, watcher)
        return found

    @property
    def over(self):
        """Have all rows ended?"""
        return not self.max_new_tokens or None not in self._reasons

    def _end_if_over(self):
        if self.over:
            self.close()

    def close(self):
        """End the stream. Only one with a state has something to do: that then holds all tokens given out.

        Called by the last token, and at the end of a ``with`` statement; closing twice is harmless.
        """
        if self._open and self.state is not None:
            (group,) = self._groups
            try:
                group.next_logits(self._lm, self._method)  # runs the last token
                group.settle()
                replace_state(self.state, group.state, self._held, self._method, self._end)
            except Exception:  # an interrupt is none: after one the stream can still be closed
                self._end()
                raise
        self._end()

    def _end(self):
        self._open = False

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self.close()
        self._open = False

    def save(self, path):
        """Write the stream into one file, from which `CausalLM.resume` goes on, in this process or another.

        Parameters
        ----------
        path : str or path
            The file; replaced only when the new one is complete. It is an ordinary ``.npz`` without pickled objects, or
            in the safetensors format if its name ends in ``.safetensors``: options, seeds, tokens so far, the used part
            of the cache, and what the model and the tokenizer must be.

        Raises
        ------
        OSError
            The file cannot be written. What stood there before is still there.
        TypeError, ValueError
            For a path that is none; the stream has ended, was closed, or was interrupted while it ran a token.

        Examples
        --------
        ``stream.save("half.npz")``, and later ``for new in lm.resume("half.npz"): ...``
        """
        save_stream(self, path)


def _watcher(plan, row, prompt):
    """What a row's tokens are shown to: it answers True once a stop string has come. None if there is none."""
    if not plan.stop[row]:
        return None
    stop, text = StopStrings(plan.stop[row]), plan.tokenizer.decode_stream(prompt)

    def watch(token):
        stop.step(text.step(token))
        return stop.found

    return watch
