"""One call at a time on a state: a second thread is refused, and what the first does is as if it were alone."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import bits, elsewhere, make_block, uniform

from mojolearn import CausalLM
from mojolearn.claims import Claim
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


@pytest.mark.parametrize("dead", [False, True])
def test_a_claim_that_was_left_behind_counts_no_more(dead):
    """As an interrupt may leave it: the function that took it has ended, its thread has or has not."""
    state = make_block().allocate_state(1, 4)
    left, go_on = threading.Event(), threading.Event()

    def leave():
        Claim([state], "left").__enter__()

    def thread():
        leave()
        left.set()
        if not dead:
            go_on.wait()

    other = threading.Thread(target=thread)
    other.start()
    assert left.wait(10)
    if dead:
        other.join()
    with Claim([state], "mine"):
        with pytest.raises(RuntimeError, match=r"^theirs: another thread"), ThreadPoolExecutor(1) as pool:
            pool.submit(Claim([state], "theirs").__enter__).result()
    assert not state._holder
    go_on.set()
    other.join()


def test_a_thread_does_not_take_its_own_left_claim_for_a_running_call():
    """Otherwise it would go on without a claim, and a second thread could come in."""
    state = make_block().allocate_state(1, 4)

    def leave():
        Claim([state], "left").__enter__()

    leave()
    with Claim([state], "outer"), Claim([state], "inner"):
        with pytest.raises(RuntimeError, match=r"^theirs: another thread"), ThreadPoolExecutor(1) as pool:
            pool.submit(Claim([state], "theirs").__enter__).result()
    assert not state._holder
