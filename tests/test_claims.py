"""One call at a time on a state: a second thread is refused, and what the first does is as if it were alone."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import bits, elsewhere, make_block, uniform

from mojolearn import CausalLM
from mojolearn.models import BUILT_IN


@pytest.fixture(scope="module")
def lm():
    return CausalLM.load(BUILT_IN)


def test_every_call_on_a_state_in_use_is_refused_by_name(rng):
    block, x = make_block(), uniform(rng, (1, 6, 32))
    state = block.allocate_state(1, 16)
    block.forward(x[:, :3], state)
    before = state.copy()
    with elsewhere([state]):
        for call, name in (
            (lambda: block.step(x[:, 3], state), r"TransformerBlock\.step"),
            (lambda: block.forward(x, state), r"TransformerBlock\.forward"),
            (lambda: block.decode_session(state), r"TransformerBlock\.decode_session"),
            (state.copy, r"TransformerState\.copy"),
        ):
            with pytest.raises(
                RuntimeError, match=f"^{name}: another thread has a call running on this state"
            ):
                call()
    assert state == before
    with block.decode_session(state) as session:
        session.step(x[:, 3])
        with elsewhere([state]):
            for call in (lambda: session.step(x[:, 4]), lambda: session.forward(x[:, 4:]), session.sync_state,
                         session.load_state, session.close, session.discard):  # fmt: skip
                with pytest.raises(RuntimeError, match=r"^TransformerDecodeSession.* another thread"):
                    call()
        assert session.is_open
        y = session.step(x[:, 4])
    block.step(x[:, 3], before)
    np.testing.assert_array_equal(bits(y), bits(block.step(x[:, 4], before)))
    assert state == before


def test_models_and_their_sessions(lm):
    state = lm.allocate_state(1, 16)
    lm.forward([[0, 5]], state)
    before = state.copy()
    with elsewhere(state.blocks[1:2]):
        for call, name in (
            (lambda: lm.step([7], state), "CausalLM.step"),
            (lambda: lm.forward([[7, 8]], state), "CausalLM.forward"),
            (lambda: lm.decode_session(state), "CausalLM.decode_session"),
        ):
            with pytest.raises(RuntimeError, match=f"^{name}.*another thread"):
                call()
    assert state == before
    with lm.decode_session(state) as session:
        with elsewhere(state.blocks[1:2]):
            for call in (lambda: session.step([7]), session.sync_state, session.close, session.discard):
                with pytest.raises(RuntimeError, match=r"^CausalLMDecodeSession.*another thread"):
                    call()
        session.step([7])
    lm.step([7], before)
    assert state == before


@pytest.mark.parametrize("through_session", [False, True])
def test_threads_that_quarrel_over_a_state_lose_nothing(lm, through_session):
    """Every call succeeds wholly or is refused: the state is that of the successful ones, one after the other."""
    state = lm.allocate_state(1, 400)
    runner = lm.decode_session(state) if through_session else None

    def run(_):
        done = 0
        for _ in range(40):
            with contextlib.suppress(RuntimeError):
                runner.step([9]) if runner else lm.step([9], state)
                done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(run, range(4)))
    if runner:
        runner.close()
    assert done and state.cached_tokens == done
    alone = lm.allocate_state(1, 400)
    lm.forward([[9] * done], alone)
    assert state == alone
