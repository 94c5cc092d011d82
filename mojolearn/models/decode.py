"""Decoding a whole model through sessions: one `TransformerDecodeSession` per layer, which move together."""

from mojolearn.admission import settle
from mojolearn.claims import Claim
from mojolearn.models.ids import admit_ids
from mojolearn.models.loading import retold
from mojolearn.models.model_state import admit_state, claim_layers
from mojolearn.stepping import Stepper

NAME = "CausalLMDecodeSession"


class CausalLMDecodeSession:
    """Decode token by token with the caches of all layers in their resident layout.

    Parameters
    ----------
    lm : CausalLM
        The model.
    state : CausalLMState
        Its state; advanced by the session alone until that is closed.

    Raises
    ------
    TypeError, ValueError
        For a state that does not fit, or is in a session already; no layer is then in one.

    Examples
    --------
    See `CausalLM.decode_session`, which opens one.
    """

    def __init__(self, lm, state):
        method = "CausalLM.decode_session"
        self._lm, self._state, self._layers = lm, state, []
        before = None
        try:
            with claim_layers(state, method):
                admit_state(state, lm.n_layers, getattr(state, "batch_size", 0), 0, method)
                before = [block_state.session for block_state in state.blocks]
                for layer, (block, block_state) in enumerate(zip(lm.blocks, state.blocks, strict=True)):
                    self._layers.append(_open_layer(block, block_state, f"{method}: layer {layer}"))
                self._stepper = Stepper(self._layers)
        except BaseException:  # an interrupt may come before a session stands in the list: ask the states
            for block_state, other in zip(state.blocks if before else (), before or (), strict=True):
                if block_state.session is not other:
                    block_state.session.discard()
            raise

    @property
    def state(self):
        """The state of the session."""
        return self._state

    @property
    def is_open(self):
        """Whether the session can still be used."""
        return all(layer.is_open for layer in self._layers)

    def step(self, ids):
        """Compute the logits after one more token per row, as `CausalLM.step`.

        Parameters
        ----------
        ids : array or list of int, shape (B,) or (B, 1)
            Token ids.

        Returns
        -------
        ndarray of float32, shape (B, vocab_size)
            They predict the next token.

        Raises
        ------
        TypeError, ValueError
            As `CausalLM.step`, and when the session is closed. No layer has then changed.
        """
        method = f"{NAME}.step"
        ids = admit_ids(ids, self._lm.vocab_size, method, step=True)
        with Claim(self._states, method):
            self._check_open(method)
            held = self._stepper.position(len(ids))
            if held is None:
                held = self._slow_position(len(ids), method)
            return self._lm._run(ids, self._state, held, method, session=self)[:, 0]

    @property
    def _states(self):
        return [layer.state for layer in self._layers]

    def _slow_position(self, B, method):
        """Ask each layer: one says what is in the way, or takes over a count that was set by hand."""
        admit_state(self._state, self._lm.n_layers, B, 1, method)
        return max(session._ready(B, f"{method}: layer {i}") for i, session in enumerate(self._layers))

    def _advance(self, tokens, position, method):
        """Run one token per row through all layers: outputs, and what adds them to the caches."""
        return self._stepper.step(tokens, position, method, "{}: layer {}".format)

    def _check_open(self, method):
        if not self.is_open:
            raise ValueError(f"{method}: the session is closed; open another with lm.decode_session(state)")

    def sync_state(self):
        """Write all tokens into the buffers of the states; the session stays open."""
        with Claim(self._states, f"{NAME}.sync_state"):
            self._check_open(f"{NAME}.sync_state")
            settle([layer.sync_state for layer in self._layers])

    def close(self):
        """Write all tokens into the buffers of the states and end the session; closing twice is harmless."""
        with Claim(self._states, f"{NAME}.close"):
            settle([layer.close for layer in self._layers])

    def discard(self):
        """End the session without writing: the states are as they were at the last `sync_state`."""
        with Claim(self._states, f"{NAME}.discard"):
            settle([layer.discard for layer in self._layers])

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def _open_layer(block, state, where):
    # A function of its own: Python 3.11 leaves the line of a nested `try` out of the handlers around it.
    try:
        return block.decode_session(state)
    except (TypeError, ValueError, MemoryError) as error:
        raise retold(error, where) from error
