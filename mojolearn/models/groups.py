"""Rows of a stream whose prompts have one length run together, with a state of their own."""

import numpy as np

from mojolearn.admission import admit_state as admit_cache
from mojolearn.models.model_state import admit_state, begin_from


class Group:
    """Rows whose prompts have one length: they share a state.

    Parameters
    ----------
    rows : list of int
        Places of the rows in the batch.
    ids : ndarray of int64, shape (len(rows), L)
        Their prompts.
    state : CausalLMState
        The stream's own; holds what comes before.
    position : int
        Tokens in the state.

    Attributes
    ----------
    logits : ndarray or None
        Those that the next tokens are chosen from, once they are computed.
    pending : ndarray or None
        Tokens that were chosen and not run yet.
    """

    def __init__(self, rows, ids, state, position):
        self.rows, self.ids, self.state = rows, ids, state
        self.position = position
        self.logits = self.pending = self.session = None
        self.whole = True

    def next_logits(self, lm, method):
        """Return the logits behind the last token, which is run first if need be."""
        self.check_whole(method)
        if self.pending is not None:
            self.whole = False
            if self.session is None:
                self.session = lm.decode_session(self.state)
            self.logits = self.session.step(self.pending)
            self.pending = None
            self.position += 1
            self.whole = True
        return self.logits

    def check_whole(self, method):
        """Refuse to go on where an interrupt may have come between a token and its logits."""
        if not self.whole:
            raise ValueError(f"{method}: the stream was interrupted while it ran a token; begin a new one")

    def settle(self):
        """Bring the state's buffers up to date."""
        if self.session is not None:
            self.session.sync_state()


def grouped(lm, plan, rows, state, method):
    """Put rows of one length together, each group with a state of its own for all tokens to come."""
    places = {}
    for row, ids in enumerate(rows):
        places.setdefault(len(ids), []).append(row)
    if state is None:
        held, run = 0, plan.max_new_tokens - 1  # the last token is given out, not run
    else:
        if len(places) > 1:
            raise ValueError(
                f"{method}: with a state the prompts must have one length, but they have "
                f"{', '.join(map(str, sorted(places)))}"
            )
        run = plan.max_new_tokens
        held = _admit_caches(lm, state, len(rows), max(places) + run, method)
        if held and plan.rules.repetition_penalty != 1:
            raise ValueError(
                f"{method}: repetition_penalty needs all tokens of a row, but of the {held} in the state only keys "
                "and values are known; leave out one of the two"
            )
    for length in places:
        lm._check_positions(held + length + max(run, 0), method)
    if state is None and not plan.max_new_tokens:
        return []
    groups = []
    for length, members in places.items():
        ids = np.stack([rows[row] for row in members])
        room = length + run if state is None else state.max_tokens
        own = begin_from(state, lm.allocate_state(len(members), room), method)
        groups.append(Group(members, ids, own, held))
    return groups


def _admit_caches(lm, state, batch_size, length, method):
    """Check a caller's state, before it is copied, as the layers would; returns the number of tokens it holds."""
    held = admit_state(state, lm.n_layers, batch_size, length, method)
    for layer, (block, own) in enumerate(zip(lm.blocks, state.blocks, strict=True)):
        admit_cache(own, block.options, batch_size, length, f"{method}: layer {layer}")
    return held
