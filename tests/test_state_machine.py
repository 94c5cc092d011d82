"""Random walks through every public method of a state and its sessions, valid calls and invalid ones.

A model in plain NumPy knows which tokens were taken and what every number of both buffers must be, spare room
included. After each step the bytes are compared.
"""

import copy
import os
import pickle
import tempfile

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import bits, make_block, uniform

from mojolearn import TransformerState

D_MODEL, KV, HD, ROOM = 16, 2, 4, 12
SMALL = {"d_model": D_MODEL, "intermediate": 8, "n_heads": 4, "head_dim": HD}
BLOCKS = {window: make_block(**SMALL, n_kv_heads=KV, window=window) for window in (0, 1, 3, 20)}
STRANGER = make_block(**SMALL, n_kv_heads=1)  # a block that no state here fits

WRONG_INPUTS = {
    "NaN": lambda x: np.where(np.arange(D_MODEL) == 3, np.float32(np.nan), x),
    "infinity": lambda x: x + np.float32(np.inf),
    "float64": lambda x: x.astype(np.float64),
    "width": lambda x: x[..., 1:],
    "no token": lambda x: x[:, :0],
    "rank": lambda x: x[..., None],
    "batch": lambda x: np.concatenate([x, x]),
    "list": lambda x: x.tolist(),
}
WRONG_COUNTS = (-1, ROOM + 1, 2.0, "3", None, True)
lengths = st.integers(1, ROOM // 2)


def buffer_of(window, batch_size, value):
    return np.full(batch_size * KV * (window or ROOM) * HD, value, np.float32)


class StateMachine(RuleBasedStateMachine):
    @initialize(window=st.sampled_from(sorted(BLOCKS)), batch_size=st.integers(1, 2), seed=st.integers(0, 99))
    def begin(self, window, batch_size, seed):
        self.block, self.window, self.batch_size = BLOCKS[window], window, batch_size
        self.rng = np.random.default_rng(seed)
        self.wanted = [
            buffer_of(window, batch_size, np.nan) for _ in range(2)
        ]  # of what is spare nothing is read
        self.state = TransformerState(
            batch_size, KV, HD, ROOM, *(buffer.copy() for buffer in self.wanted), 0, window
        )
        self.tokens = np.empty((batch_size, 0, D_MODEL), np.float32)
        self.synced = 0  # tokens that the buffers hold
        self.session = None

    def new(self, length):
        return uniform(self.rng, (self.batch_size, length, D_MODEL))

    def room(self):
        return ROOM - self.tokens.shape[1]

    def check(self, call, x):
        """A valid call gives the bits of a cold run over all tokens; one without room is refused."""
        if x.shape[1] > self.room():
            with pytest.raises(ValueError, match="do not fit"):
                call(x)
            return
        y = call(x)
        everything = np.concatenate([self.tokens, x], axis=1)
        cold = self.block.forward(everything)[:, self.tokens.shape[1] :]
        np.testing.assert_array_equal(bits(y), bits(cold))
        self.tokens = everything

    def settle(self):
        """The buffers take over all tokens: packed at the used length, or each into its slot of the ring."""
        first, length = self.synced, self.tokens.shape[1]
        if first == length:
            return
        self.synced = length
        whole = BLOCKS[0].allocate_state(self.batch_size, length)
        BLOCKS[0].forward(self.tokens, whole)  # in one block a key depends on its token and position alone
        for buffer, cache in zip(self.wanted, (whole.keys(), whole.values()), strict=True):
            if self.window == 0:
                buffer[: cache.size] = cache.reshape(-1)
                continue
            ring = buffer.reshape(self.batch_size, KV, self.window, HD)
            for position in range(max(first, length - self.window), length):
                ring[:, :, position % self.window] = cache[:, :, position]

    @rule(length=lengths, step=st.booleans())
    def plain_call(self, length, step):
        x = self.new(1 if step else length)
        call = self.block.step if step else self.block.forward
        if self.session is not None:
            with pytest.raises(ValueError, match="open decode session"):
                call(x, self.state)
            return
        self.check(lambda x: call(x, self.state), x)
        self.settle()

    @precondition(lambda self: self.session is None)
    @rule()
    def open_session(self):
        self.session = self.block.decode_session(self.state)

    @precondition(lambda self: self.session is not None)
    @rule()
    def open_another(self):
        with pytest.raises(ValueError, match="open decode session"):
            self.block.decode_session(self.state)

    @precondition(lambda self: self.session is not None)
    @rule(length=lengths, step=st.booleans())
    def session_call(self, length, step):
        x = self.new(1 if step else length)
        fits = length <= self.room()
        self.check(self.session.step if step else self.session.forward, x)
        if not step and length > 1 and fits:  # goes through the state's own buffers
            self.settle()

    @precondition(lambda self: self.session is not None)
    @rule()
    def sync(self):
        self.session.sync_state()
        self.settle()

    @precondition(lambda self: self.session is not None)
    @rule(steps=st.integers(0, 2))
    def load(self, steps):
        for _ in range(steps):
            self.session_call(1, True)
        self.session.load_state()
        self.tokens = self.tokens[:, : self.synced]

    @rule(steps=st.integers(0, 4), how=st.sampled_from(["close", "with", "discard"]))
    def end_session(self, steps, how):
        self.session = self.session or self.block.decode_session(self.state)
        for _ in range(steps):
            self.session_call(1, True)
        if how == "with":
            with self.session:
                pass
        else:
            getattr(self.session, how)()
        if how == "discard":
            self.tokens = self.tokens[:, : self.synced]
        else:
            self.settle()
        for call in (
            self.session.sync_state,
            self.session.load_state,
            lambda: self.session.step(self.new(1)),
        ):
            with pytest.raises(ValueError, match="session is closed"):
                call()
        self.session.close()
        self.session.discard()
        self.session = None

    @rule(wrong=st.sampled_from(sorted(WRONG_INPUTS)), length=lengths)
    def wrong_input(self, wrong, length):
        runner = self.session.forward if self.session else lambda x: self.block.forward(x, self.state)
        with pytest.raises((TypeError, ValueError)):
            runner(WRONG_INPUTS[wrong](self.new(length)))

    @rule()
    def wrong_block(self):
        with pytest.raises(ValueError, match="n_kv_heads"):
            STRANGER.forward(self.new(1), self.state)

    @precondition(lambda self: self.session is None)
    @rule(wrong=st.sampled_from(WRONG_COUNTS))
    def wrong_count(self, wrong):
        self.state.cached_tokens = wrong
        for call in (self.state.keys, lambda: self.block.step(self.new(1), self.state),
                     lambda: self.block.decode_session(self.state), self.state.copy):  # fmt: skip
            with pytest.raises((TypeError, ValueError), match="cached_tokens"):
                call()
        self.state.cached_tokens = self.tokens.shape[1]

    @precondition(lambda self: self.session is None)
    @rule()
    def start_again(self):
        self.state.cached_tokens = 0
        self.tokens, self.synced = self.tokens[:, :0], 0

    @rule(how=st.sampled_from(["copy", "copy.copy", "deepcopy", "pickle"]), go_on=st.booleans())
    def copy_state(self, how, go_on):
        make = {"copy": self.state.copy, "copy.copy": lambda: copy.copy(self.state),
                "deepcopy": lambda: copy.deepcopy(self.state),
                "pickle": lambda: pickle.loads(pickle.dumps(self.state))}[how]  # fmt: skip
        other = make()
        self.settle()  # a copy brings the buffers up to date
        assert other == self.state and not np.shares_memory(other.k_cache, self.state.k_cache)
        if go_on and self.session is None:
            self.state = other
            return
        if self.room():
            self.block.step(self.new(1), other)
        other.k_cache[:] = 7  # and nobody sees it

    @rule(suffix=st.sampled_from([".npz", ".safetensors"]), go_on=st.booleans())
    def through_a_file(self, suffix, go_on):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"state{suffix}")
            self.state.save(path, self.block)
            other = TransformerState.load(path, self.block)
        self.settle()  # saving brings the buffers up to date
        assert (other.cached_tokens, other.max_tokens) == (self.state.cached_tokens, ROOM)
        np.testing.assert_array_equal(bits(other.keys()), bits(self.state.keys()))
        np.testing.assert_array_equal(bits(other.values()), bits(self.state.values()))
        if go_on and self.session is None:
            self.state = other
            self.wanted = [other.k_cache.copy(), other.v_cache.copy()]  # its spare room is zero

    @rule()
    def read(self):
        keys, values = self.state.keys(), self.state.values()
        self.settle()  # reading brings the buffers up to date
        length = self.tokens.shape[1]
        shown = min(length, self.window or length)
        assert keys.shape == values.shape == (self.batch_size, KV, shown, HD)
        if length:
            whole = BLOCKS[0].allocate_state(self.batch_size, length)
            BLOCKS[0].forward(self.tokens, whole)
            np.testing.assert_array_equal(bits(keys), bits(whole.keys()[:, :, length - shown :]))
            np.testing.assert_array_equal(bits(values), bits(whole.values()[:, :, length - shown :]))

    @invariant()
    def the_count_is_current(self):
        if hasattr(self, "state"):
            assert self.state.cached_tokens == self.tokens.shape[1]
            assert (self.state.session is None) == (self.session is None)

    @invariant()
    def every_byte_is_as_it_must_be(self):
        if hasattr(self, "state"):
            for buffer, wanted in zip((self.state.k_cache, self.state.v_cache), self.wanted, strict=True):
                np.testing.assert_array_equal(bits(buffer), bits(wanted))


TestState = pytest.mark.long(StateMachine.TestCase)
TestState.settings = settings(
    max_examples=min(300, 3 * settings.default.max_examples), stateful_step_count=60
)
