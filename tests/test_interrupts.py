"""An exception at any instruction, or for want of memory anywhere: the state is as before the call or as after it.

Ctrl-C raises KeyboardInterrupt between any two instructions of Python. Here it is raised at each of them, one after the
other: a call is traced, and broken off at its n-th instruction, for every n until it completes. A kernel is C code and
runs to its end.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import bits, make_block, uniform
from toy_models import write_model

import mojolearn
from mojolearn import CausalLM
from mojolearn.claims import Claim
from mojolearn.models import BUILT_IN

PACKAGE = str(Path(mojolearn.__file__).parent) + os.sep
KERNELS = PACKAGE + "kernels" + os.sep
HELD, ROOM, D_MODEL = 4, 12, 16
WINDOWS = (0, 3)
IDS = [[3, 1, 4, 1], [5, 9, 2, 6]]


def interrupted(call, n, *, opcodes=True):
    """Run a call that is interrupted at the n-th point inside the package: (has it been?, its result)."""
    left = n

    def point(frame, event, argument):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return point

    def enter(frame, event, argument):
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name.startswith(KERNELS):
            return None
        if frame.f_code.co_name == "<genexpr>":  # Python swallows what is raised while it throws one away
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = opcodes, not opcodes
        return point(frame, event, argument)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        result = call()
    except KeyboardInterrupt:
        return True, None
    finally:
        sys.settrace(before)
    return False, result


def points(make, *, opcodes=True):
    """What remains of a fresh scene after each interrupt: pairs of n and the scene."""
    n = 0
    while True:
        n += 1
        scene = make()
        hit, _ = interrupted(scene.call, n, opcodes=opcodes)
        if not hit:
            assert n > 20  # the call was traced
            return
        yield n, scene


def contents(states):
    """All of states that a user can see: counts, held keys and values, sessions, and every byte of the buffers."""
    return [
        (state.cached_tokens, state.session is None, state.keys().tobytes(), state.values().tobytes(),
         state.k_cache.tobytes(), state.v_cache.tobytes())
        for state in states
    ]  # fmt: skip


def outcome(y):
    return (
        bits(y).tobytes() if isinstance(y, np.ndarray) and y.dtype == np.float32 else np.asarray(y).tolist()
    )


def check_free(states):
    """Another thread can use the states."""
    faults = []

    def use():
        try:
            with Claim(states, "other"):
                pass
        except RuntimeError as error:
            faults.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert not faults


def check_every_point(make, *, opcodes=True):
    """Before or after, never between; and the same call, made again, goes on from there with the right bits."""
    before = contents(make().states)
    wanted = []  # after one call, and after two: what the last one gave, the states, what a step then gives
    for times in (1, 2):
        scene, other = make(), make()
        for _ in range(times):
            y = outcome(scene.call())
            other.call()
        wanted.append((y, contents(scene.states), outcome(other.probe())))
    # Looking at a state lets a session write into it, so one scene is looked at and another goes on.
    for (n, scene), (_, again) in zip(
        points(make, opcodes=opcodes), points(make, opcodes=opcodes), strict=True
    ):
        check_free(scene.states)
        seen = contents(scene.states)
        assert seen in (before, wanted[0][1]), f"between, at point {n}"
        allowed = wanted[:1] * (seen == before) + wanted[1:] * (seen == wanted[0][1])
        y, later = outcome(again.call()), outcome(again.probe())
        assert any(y == w[0] and later == w[2] for w in allowed), (
            f"other bits after an interrupt at point {n}"
        )


BLOCKS = {
    window: make_block(D_MODEL, 8, n_heads=2, n_kv_heads=1, head_dim=4, window=window) for window in WINDOWS
}
X = uniform(np.random.default_rng(3), (2, ROOM, D_MODEL))


def prepared(window):
    state = BLOCKS[window].allocate_state(2, ROOM)
    state.k_cache[:] = state.v_cache[:] = np.nan  # of what is spare nothing is read
    BLOCKS[window].forward(X[:, :HELD], state)
    return state


PREPARED = {window: prepared(window) for window in WINDOWS}


def scene_of_block(name, window):
    """A state of HELD tokens, where need be in a session that holds one more; one call; and a step to look at it."""
    block, state = BLOCKS[window], PREPARED[window].copy()
    session = None

    def open_session():
        if state.session is None:
            block.decode_session(state)

    if name.startswith("session"):
        session = block.decode_session(state)
        session.step(X[:, HELD])
    if name.endswith("by hand"):
        state.cached_tokens = 1
    call = {
        "forward": lambda: block.forward(X[:, 5:7], state),
        "step": lambda: block.step(X[:, 5], state),
        "open": open_session,
        "copy": lambda: contents([state.copy()])[0][0],
        "session.step": lambda: session.step(X[:, 5]),
        "session.forward": lambda: session.forward(X[:, 5:7]),
        "session.sync_state": lambda: session.sync_state(),
        "session.load_state": lambda: session.load_state(),
        "session.close": lambda: session.close(),
        "session.discard": lambda: session.discard(),
    }[name.removesuffix(" by hand")]

    def probe():
        return block.step(X[:, -1], state) if state.session is None else state.session.step(X[:, -1])

    return SimpleNamespace(call=call, states=[state], probe=probe)


CALLS_OF_BLOCK = ("forward", "step", "open", "copy", "session.step", "session.forward", "session.sync_state",
                  "session.load_state", "session.load_state by hand", "session.close", "session.discard")  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", CALLS_OF_BLOCK)
def test_block_and_session(name, window):
    check_every_point(lambda: scene_of_block(name, window))


def test_cached_tokens_set_by_hand():
    """The setter, from a good count to a bad one and back, each at every instruction."""
    for first, second in ((4, 2), (4, "two"), ("two", 4), ("two", "three"), (4, 99), (99, 4)):

        def make(first=first, second=second):
            state = PREPARED[0].copy()
            state.cached_tokens = first
            return SimpleNamespace(
                call=lambda: setattr(state, "cached_tokens", second), state=state, states=[state]
            )

        seen = {scene.state.cached_tokens for _, scene in points_or_few(make)}
        assert seen <= {first, second} and first in seen


def points_or_few(make):
    """`points` for a call of a few instructions."""
    n, hit = 0, True
    while hit:
        n += 1
        scene = make()
        hit, _ = interrupted(scene.call, n)
        yield n, scene


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return CausalLM.load(write_model(tmp_path_factory.mktemp("model")))


def scene_of_model(lm, name):
    state = lm.allocate_state(2, ROOM + 8)
    lm.forward(IDS, state)
    session = None

    def open_session():
        if state.blocks[0].session is None:
            lm.decode_session(state)

    if name.startswith("session"):
        session = lm.decode_session(state)
        session.step([7, 8])
    call = {
        "forward": lambda: lm.forward([[1, 2], [3, 4]], state),
        "step": lambda: lm.step([1, 2], state),
        "open": open_session,
        "generate": lambda: lm.generate([[1, 2], [3, 4]], 2, state=state),
        "session.step": lambda: session.step([1, 2]),
        "session.sync_state": lambda: session.sync_state(),
        "session.close": lambda: session.close(),
        "session.discard": lambda: session.discard(),
    }[name]

    def probe():
        if state.blocks[0].session is None:
            return lm.step([5, 6], state)
        return [block.session is not None for block in state.blocks]

    return SimpleNamespace(call=call, states=state.blocks, probe=probe)


@pytest.mark.long
@pytest.mark.parametrize("name", ["forward", "step", "open", "generate", "session.step", "session.sync_state",
                                  "session.close", "session.discard"])  # fmt: skip
def test_model_and_session(lm, name):
    check_every_point(lambda: scene_of_model(lm, name), opcodes=name.startswith("session"))


def rest_of(stream):
    """The tokens to come, or None where the stream says that it cannot go on."""
    try:
        return [new.tolist() for new in stream]
    except ValueError as error:
        if "the stream was interrupted while it ran a token" not in str(error):
            raise
        return None


@pytest.mark.long
def test_streams_with_stop_strings_see_every_token_once():
    """What looks for them remembers the text so far: an interrupt while it looks must not count a token twice."""
    lm = CausalLM.load(BUILT_IN)

    wanted = [int(new[0]) for new in lm.stream([[0, 1818, 305]], 12)]
    text = lm.tokenizer.decode(wanted[3:6])  # the words of the fourth to sixth token

    def make():
        stream = lm.stream([[0, 1818, 305]], 12, stop=text)
        for _ in range(4):
            next(stream)
        return SimpleNamespace(call=lambda: next(stream), stream=stream)

    end = make().stream
    list(end)
    assert end.finish_reasons == ["stop"]
    went_on = 0
    for _, scene in points(make, opcodes=False):
        if rest_of(scene.stream) is not None:
            went_on += 1
            assert scene.stream.finish_reasons == ["stop"]
            assert scene.stream.ids[0].tolist() == end.ids[0].tolist()
    assert went_on > 20


@pytest.mark.long
def test_streams_go_on_or_refuse(lm):
    """After an interrupt a stream gives the tokens that it would have given, or says that it cannot."""
    wanted = [new.tolist() for new in lm.stream(IDS, 3, state=lm.allocate_state(2, ROOM))]

    def make(before):
        state = lm.allocate_state(2, ROOM)
        stream = lm.stream(IDS, 3, state=state)
        for _ in range(before):
            next(stream)
        return SimpleNamespace(call=lambda: next(stream), stream=stream, state=state, states=state.blocks)

    final = make(0)
    for _ in range(3):
        final.call()
    empty, whole = contents(lm.allocate_state(2, ROOM).blocks), contents(final.states)
    for before in range(3):
        told = []
        for n, scene in points(lambda before=before: make(before), opcodes=False):
            check_free(scene.states)
            seen = contents(scene.states)
            assert seen in ((empty, whole) if before == 2 else (empty,)), f"between, at point {n}"
            given = [column.tolist() for column in np.array(scene.stream.ids)[:, len(IDS[0]) :].T]
            assert given == wanted[: len(given)] and len(given) - before in (0, 1)
            rest = rest_of(scene.stream)
            if rest is None:
                assert contents(scene.states) == empty
                continue
            told.append(rest)
            assert rest == wanted[len(given) :], f"at point {n}"
            assert contents(scene.states) == whole, f"at point {n}"
        assert told


ALLOCATING = ("empty", "zeros", "ones", "full", "empty_like", "arange", "tile", "concatenate", "array",
              "ascontiguousarray", "require", "stack", "repeat")  # fmt: skip


class OutOfMemory:
    """Lets the n-th allocation of the package fail."""

    def __init__(self, n):
        self.left, self.patch = n, pytest.MonkeyPatch()

    def __enter__(self):
        for name in ALLOCATING:
            self.patch.setattr(np, name, self._failing(getattr(np, name)))

    def __exit__(self, *exception):
        self.patch.undo()

    def _failing(self, make):
        def allocate(*arguments, **options):
            if sys._getframe(1).f_globals["__name__"].startswith("mojolearn"):
                self.left -= 1
                if self.left == 0:
                    raise MemoryError("no more")
            return make(*arguments, **options)

        return allocate


def check_every_allocation(make):
    """Before, wherever it fails; and then the call gives what it should. Returns the number of allocations."""
    before, scene = contents(make().states), make()
    wanted = outcome(scene.call()), contents(scene.states)
    n = 0
    while True:
        n += 1
        scene = make()
        try:
            with OutOfMemory(n):
                scene.call()
        except MemoryError:
            check_free(scene.states)
            again = make()
            with pytest.raises(MemoryError), OutOfMemory(n):
                again.call()
            assert contents(scene.states) == before, f"allocation {n}"
            assert outcome(again.call()) == wanted[0], f"allocation {n}"
            assert contents(again.states) == wanted[1], f"allocation {n}"
        else:
            return n - 1


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["forward", "step", "open", "session.step", "session.forward"])
def test_no_memory(name, window):
    assert check_every_allocation(lambda: scene_of_block(name, window)) >= 1


@pytest.mark.parametrize("name", ["forward", "step", "open", "generate", "session.step"])
def test_no_memory_for_a_model(lm, name):
    assert check_every_allocation(lambda: scene_of_model(lm, name)) >= 1


SIGNALS = """
import signal, sys, time
import mojolearn, numpy as np
from support import bits, make_block, uniform

seed, rounds = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(seed)
armed = False

def alarm(*_):
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, alarm)
ROOM = 40
block = make_block(16, 8, n_heads=2, n_kv_heads=1, head_dim=4, window=[0, 5][seed % 2])
x = uniform(rng, (2, ROOM, 16))
cold, wanted = block(x), []
state = block.allocate_state(2, ROOM)
wanted.append((state.keys().copy(), state.values().copy()))
for t in range(ROOM):
    block.step(x[:, t], state)
    wanted.append((state.keys().copy(), state.values().copy()))

def walk(state):
    global armed
    session, ended = state.session, 0
    armed = True
    while True:
        held = state.cached_tokens
        n = int(rng.integers(1, 4))
        if held + n > ROOM:
            armed = False
            return True
        choice = int(rng.integers(6))
        if state.session is None:
            if choice == 0:
                block.decode_session(state)
            else:
                y = block.forward(x[:, held : held + n], state)
        elif choice == 0:
            state.session.close()
        elif choice == 1:
            state.session.sync_state()
        else:
            y = state.session.forward(x[:, held : held + n])

mojolearn.warmup()  # a compiler that was interrupted is Numba's affair
block.decode_session(state.copy()).discard()
times = []
for _ in range(9):
    begun = time.perf_counter()
    assert walk(block.allocate_state(2, ROOM))
    times.append(time.perf_counter() - begun)
longest = sorted(times)[4]  # of a walk: interrupts come at all of its moments, on a machine of any speed
hits = full = 0
state = block.allocate_state(2, ROOM)
for _ in range(rounds):
    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(2e-5, longest)))
    try:
        over = walk(state)
    except KeyboardInterrupt:
        armed, over = False, False
        hits += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    held = state.cached_tokens
    for got, want in zip((state.keys(), state.values()), wanted[held], strict=True):
        assert np.array_equal(bits(got), bits(want)), f"{held} tokens, after {hits} interrupts"
    if held < ROOM:
        copy = state.copy()
        assert np.array_equal(bits(block.step(x[:, held], copy)), bits(cold[:, held : held + 1]))
    if over:
        full += 1
        state = block.allocate_state(2, ROOM)
print(hits, full)
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_signals_at_random_moments(seed):
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS, str(seed), "600"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    hits, full = map(int, done.stdout.split())
    assert hits >= 100 and full >= 5
