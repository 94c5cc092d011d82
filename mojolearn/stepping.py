"""One token per row through the blocks of open sessions, in one kernel call."""

from functools import partial

import numpy as np

from mojolearn.admission import refuse_overflow
from mojolearn.kernels import step
from mojolearn.layers import scratch
from mojolearn.threads import run, workers

REGIONS = 5  # parallel regions of a block's step


class Stepper:
    """The blocks of one or more sessions as the step kernel takes them: a record each.

    Parameters
    ----------
    sessions : sequence of TransformerDecodeSession
        In the order of their layers, of one batch size and one storage format of weights.
    """

    def __init__(self, sessions):
        self._batch_size = sessions[0].state.batch_size
        pipelines = [session._block._pipeline for session in sessions]
        self._layers = np.concatenate([session._record for session in sessions])
        self._arrays = (
            [session._arrays for session in sessions],
            pipelines,
        )  # alive while the records speak of them
        self._held = sessions[0].state._held
        self._room = min(session._room() for session in sessions)
        self._kind = pipelines[0].kind
        self._capacity = int(self._layers["capacity"].max())
        self._work = sum(pipeline.work_of_step for pipeline in pipelines)
        self._work_per_slot = sum(2 * pipeline.options.q_width for pipeline in pipelines)
        rooms = [
            pipeline.room_of_step(self._batch_size, int(layer["slots"]))
            for pipeline, layer in zip(pipelines, self._layers, strict=True)
        ]
        self._size, self._rows = (max(sizes) for sizes in zip(*rooms, strict=True))
        self._new = self._batch_size * sum(pipeline.options.kv_width for pipeline in pipelines)
        self._starts = np.arange(self._batch_size + 1)

    def position(self, batch_size):
        """The position at which one more token can follow in all sessions, or None where something is in the way."""
        position = int(self._held[0])
        if batch_size == self._batch_size and position < self._room and step.agree(self._layers, position):
            return position
        return None

    def step(self, tokens, position, method, name_layer=lambda method, layer: method):
        """Compute the outputs of the last block; the sessions and their states stay as they are.

        Parameters
        ----------
        tokens : ndarray of float32, shape (B * d_model,)
            Inputs of the first block.
        position : int
            Of these tokens.
        method : str
            The public name that messages start with.
        name_layer : callable
            ``name_layer(method, layer)`` is the same with the layer where a number became too large.

        Returns
        -------
        y : ndarray of float32, shape (B * d_model,)
            Outputs.
        commit : callable
            Adds the tokens to the sessions and counts them.
        """
        B = self._batch_size
        work = B * (self._work + self._work_per_slot * min(position + 1, self._capacity))
        n_workers = workers(work // (REGIONS * self._layers.size))
        y = np.empty(tokens.size, np.float32)
        new_k, new_v = np.empty(self._new, np.float32), np.empty(self._new, np.float32)
        positions = np.full(B, position)
        shared = n_workers * self._size
        memory = scratch(shared + self._rows + 2 * tokens.size)
        at = run(
            step.step, step.step, n_workers, work,
            self._layers, tokens, y, new_k, new_v, B, position, self._starts, positions,
            memory[shared + self._rows :], memory[shared:], memory, self._size, self._kind,
        )  # fmt: skip
        if at != step.FINE:
            layer, which = divmod(at, 4)
            refuse_overflow(which, name_layer(method, layer))
        return y, partial(step.append, self._layers, new_k, new_v, B, position)
