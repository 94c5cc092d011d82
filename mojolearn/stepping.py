"""One token per row through a block and a state, or through the blocks of open sessions, in one kernel call."""

from functools import partial

import numpy as np
from numba import types

from mojolearn.admission import check_cache, check_finite, refuse_overflow
from mojolearn.kernels import attention, decode, step
from mojolearn.layers import scratch
from mojolearn.threads import launch, run, workers

REGIONS = 5  # parallel regions of a block's step
SESSIONS = (None, None, None)  # instead of the buffers of a state and of frequencies


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
            pipeline.room_of_step(
                self._batch_size, decode.scratch_size(int(layer["slots"]), pipeline.options.head_dim)
            )
            for pipeline, layer in zip(pipelines, self._layers, strict=True)
        ]
        self._size, self._rows = (max(sizes) for sizes in zip(*rooms, strict=True))
        self._new = self._batch_size * sum(pipeline.options.kv_width for pipeline in pipelines)

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
        room = (self._new, self._size, self._rows)
        at, y, new_k, new_v = call_kernel(self._layers, tokens, B, position, work, room, SESSIONS, self._kind)
        if at != step.FINE:
            check_finite(tokens, f"{method}: x", (B, 1, tokens.size // B))
            layer, which = divmod(at, 4)
            refuse_overflow(which, name_layer(method, layer))
        return y, partial(step.append, self._layers, new_k, new_v, B, position)


def step_block(pipeline, state, tokens, position, method):
    """Outputs, new keys and new values of one token per row, over the buffers of a state, which stays as it is.

    Parameters
    ----------
    pipeline : Pipeline
        Of the block.
    state : TransformerState
        Checked but for the numbers in its buffers.
    tokens : ndarray of float32, shape (B * d_model,)
        Inputs, not checked.
    position : int
        Of these tokens.
    method : str
        The public name that messages start with.

    Returns
    -------
    y, new_k, new_v : ndarray of float32
        As of `Pipeline.run`.
    """
    o, B = pipeline.options, state.batch_size
    room = pipeline.room_of_step(B, attention.scratch_size(1, o.group, o.head_dim, position, o.window))
    work = B * (pipeline.work_of_step + 2 * o.q_width * (position + 1))
    memory = (state._k, state._v, pipeline.frequencies(state.max_tokens)[0])
    at, *results = call_kernel(
        pipeline.record, tokens, B, position, work, (B * o.kv_width, *room), memory, pipeline.kind
    )
    if at != step.FINE:
        check_finite(tokens, f"{method}: x", (B, 1, o.d_model))
        check_cache(state, o, position, method)
        refuse_overflow(at, method)
    return results


class _OnOneThread:
    """The serial twin of the step kernel, as `mojolearn.threads.run` takes it."""

    def __call__(self, n_workers, *arguments):
        return step.step(None, *arguments)

    @property
    def signatures(self):
        """Of those that are compiled."""
        return [signature for signature in step.step.signatures if signature[0] == types.none]


step_serial = _OnOneThread()


def call_kernel(layers, tokens, B, position, work, room, memory, kind):
    """Run the step kernel on LAYER records: what it answers, outputs, new keys and new values.

    room: float32 numbers of all new keys, of scratch for each worker and of the rows between the kernels; memory: the
    buffers of a state and the frequencies, or `SESSIONS`.
    """
    n_new, size, rows = room
    launch()
    n_workers = workers(work // (REGIONS * layers.size))
    y = np.empty(tokens.size, np.float32)
    new_k, new_v = np.empty(n_new, np.float32), np.empty(n_new, np.float32)
    at = run(
        step_serial, step.step, n_workers, work, layers, tokens, y, new_k, new_v, B, position, *memory,
        rows, scratch(n_workers * size + rows + 2 * tokens.size), size, kind,
    )  # fmt: skip
    return at, y, new_k, new_v
