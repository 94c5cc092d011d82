"""A soak: a random mixture of calls on several threads, for minutes, with constant memory and the bits of a cold run.

    python tests/soak.py --minutes 10

Each thread works through a script of its own, drawn from a seed: blocks and states come and go, are forked, cut,
pickled, saved and loaded; sessions open and close; the built-in model writes text in streams that are suspended and
resumed. All that comes out goes into a hash, so that it depends on the seed and the number of operations alone.
Afterwards a fresh process with a single thread does the same operations, one thread's after the other, and must come to
the same hash. Memory is looked at all the time: behind the first third it must not grow.
"""

import argparse
import hashlib
import io
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
from support import bits, choose, make_block, random_options, uniform

from mojolearn import CausalLM, TransformerState, threads
from mojolearn.models import BUILT_IN

WORKERS = 3
SHARED_BLOCKS = 4  # used by all threads at once; each thread also makes some of its own
SEQUENCES = 6  # that a thread has at the most
MOST_TOKENS = 48
GROWTH = 24  # MiB that resident memory may grow by behind the first third of the time
STATUS = Path("/proc/self/status")


class Sequence:
    """A state that goes through its life, with the block that it belongs to."""

    def __init__(self, block, state):
        self.block, self.state = block, state

    @property
    def room(self):
        return self.state.max_tokens - self.state.cached_tokens


class Worker:
    """One thread's script: `do` is the next operation."""

    def __init__(self, seed, number, blocks, lm, folder):
        self.rng = np.random.default_rng([seed, number])
        self.blocks, self.lm, self.folder, self.number = list(blocks), lm, folder, number
        self.sequences, self.digest, self.done = [], hashlib.sha256(), Counter()
        self.scripts = {
            name.removeprefix("do_"): getattr(self, name)
            for name in sorted(dir(self))
            if name.startswith("do_")
        }

    def do(self):
        name = choose(self.rng, *self.scripts)
        self.note(self.scripts[name]())
        self.done[name] += 1

    @property
    def count(self):
        return self.done.total()

    def result(self):
        """The hash so far, with that of all states that live."""
        digest = self.digest.copy()
        for sequence in self.sequences:
            for cache in (sequence.state.keys(), sequence.state.values()):
                digest.update(bits(cache).astype("<u4").tobytes())
        return digest.hexdigest()

    def note(self, results):
        for result in results:
            array = np.ascontiguousarray(result)
            kind = "<u4" if array.dtype == np.float32 else "<i8"
            array = bits(array) if array.dtype == np.float32 else array
            self.digest.update(array.astype(kind).tobytes())

    def integer(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def sequence(self, *, room=0):
        """One of those that live and have room for so many tokens, or a new one."""
        fitting = [sequence for sequence in self.sequences if sequence.room >= room]
        return choose(self.rng, *fitting) if fitting else self.begin()

    def begin(self):
        block = choose(self.rng, *self.blocks)
        state = block.allocate_state(self.integer(1, 3), self.integer(24, MOST_TOKENS))
        return self.keep(Sequence(block, state))

    def keep(self, sequence):
        """Take it among those that live; the oldest one goes, its session, if it has one, open or closed."""
        self.sequences.append(sequence)
        if len(self.sequences) > SEQUENCES:
            self.sequences.pop(0)
        return sequence

    def tokens(self, sequence, n):
        return uniform(self.rng, (sequence.state.batch_size, n, sequence.block.d_model), 2.0)

    def advance(self, sequence, n):
        x = self.tokens(sequence, n)
        if sequence.state.session is not None:
            return sequence.state.session.forward(x)
        return sequence.block.forward(x, sequence.state)

    # The operations; each returns what goes into the hash.

    def do_begin(self):
        self.begin()
        return ()

    def do_new_block(self):
        own = make_block(**random_options(self.rng))
        place = self.integer(SHARED_BLOCKS, SHARED_BLOCKS + 2)
        self.blocks[place : place + 1] = [own]
        return [own(uniform(self.rng, (1, 3, own.d_model)))]

    def do_prefill(self):
        n = self.integer(2, 20)
        return [self.advance(self.sequence(room=n), n)]

    def do_steps(self):
        n = self.integer(1, 6)
        sequence = self.sequence(room=n)
        return [self.advance(sequence, 1) for _ in range(n)]

    do_more_steps = do_steps

    def do_without_state(self):
        sequence = self.sequence()
        x = self.tokens(sequence, self.integer(1, 12))
        lengths = self.rng.integers(1, x.shape[1] + 1, len(x))
        return [sequence.block(x), sequence.block.forward(x, lengths=lengths)]

    def do_open_session(self):
        sequence = self.sequence()
        if sequence.state.session is None:
            sequence.block.decode_session(sequence.state)
        return ()

    def do_use_session(self):
        session = self.sequence().state.session
        if session is not None:
            getattr(session, choose(self.rng, "sync_state", "load_state", "close", "discard"))()
        return ()

    def do_fork(self):
        sequence = self.sequence()
        self.keep(Sequence(sequence.block, sequence.state.copy()))
        return ()

    def do_pickle(self):
        sequence = self.sequence()
        self.keep(Sequence(sequence.block, pickle.loads(pickle.dumps(sequence.state))))
        return ()

    def do_cut(self):
        """A copy that holds the first tokens only."""
        sequence = self.sequence()
        old = sequence.state
        n = self.integer(0, old.cached_tokens)
        if old.window and old.cached_tokens > old.window:
            return ()  # a ring that has gone round has forgotten
        new = old.copy()
        if not new.window:
            keys, values = old.keys()[:, :, :n].copy(), old.values()[:, :, :n].copy()
            new.cached_tokens = n
            new.keys()[:], new.values()[:] = keys, values
        new.cached_tokens = n
        self.keep(Sequence(sequence.block, new))
        return [new.keys(), new.values()]

    def do_save_state(self):
        """Through a file, into buffers of another kind."""
        sequence = self.sequence()
        old = sequence.state.copy()
        file = io.BytesIO()
        np.savez(file, k=old.k_cache, v=old.v_cache, n=old.cached_tokens)
        file.seek(0)
        saved = np.load(file)
        state = TransformerState(old.batch_size, old.n_kv_heads, old.head_dim, old.max_tokens,
                                 memoryview(saved["k"].copy()), saved["v"], int(saved["n"]), old.window)  # fmt: skip
        self.keep(Sequence(sequence.block, state))
        return ()

    def do_refused(self):
        """Calls that raise, and change nothing."""
        sequence = self.sequence(room=2)
        x = self.tokens(sequence, 2)
        x[0, 1, 0] = np.nan
        for call in (lambda: sequence.block.forward(x, sequence.state),
                     lambda: sequence.block.step(x[:, :1, 1:], sequence.state)):  # fmt: skip
            try:
                call()
            except ValueError:
                continue
            raise AssertionError("not refused")
        return [sequence.state.keys()]

    def do_model(self):
        ids = self.rng.integers(0, self.lm.vocab_size, (self.integer(1, 2), self.integer(1, 6)))
        state = self.lm.allocate_state(len(ids), 16)
        results = [self.lm.forward(ids, state), self.lm.step(ids[:, 0], state)]
        with self.lm.decode_session(state) as session:
            results += [session.step(ids[:, 0]) for _ in range(self.integer(0, 3))]
        return results

    def do_stream(self):
        """A stream that is suspended in the middle and resumed from its file."""
        prompts = [self.rng.integers(0, self.lm.vocab_size, self.integer(1, 5)).tolist() for _ in range(2)]
        stream = self.lm.stream(
            prompts, self.integer(2, 8), greedy=False, seed=self.integer(0, 2**31), top_k=self.integer(0, 9),
            temperature=choose(self.rng, 0.7, 1.0), logprobs=choose(self.rng, None, 2),
        )  # fmt: skip
        for _ in range(self.integer(0, 1)):
            next(stream)
        path = self.folder / f"{self.number}.npz"
        stream.save(path)
        stream = self.lm.resume(path)
        for _ in stream:
            pass
        return [*stream.ids, *(() if stream.logprobs is None else stream.logprobs)]

    def do_score(self):
        return [self.lm.score(self.rng.integers(0, self.lm.vocab_size, (2, self.integer(2, 9))))]


def workers(seed, folder):
    """All workers in front of their first operation, and what they share."""
    blocks = [
        make_block(**random_options(np.random.default_rng([seed, 10**6 + i]))) for i in range(SHARED_BLOCKS)
    ]
    lm = CausalLM.load(BUILT_IN)
    return [Worker(seed, number, blocks, lm, folder) for number in range(WORKERS)]


def resident():
    """Resident memory in MiB."""
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{STATUS} has no VmRSS")


def run(seed, seconds, folder):
    """The threads, until the time is over: (number of operations of each, hash of each, samples of memory)."""
    team = workers(seed, folder)
    end, faults, samples = time.monotonic() + seconds, [], []

    def work(worker):
        try:
            while time.monotonic() < end and not faults:
                worker.do()
        except BaseException as error:
            faults.append(error)
            raise

    team_threads = [threading.Thread(target=work, args=(worker,)) for worker in team]
    for thread in team_threads:
        thread.start()
    while any(thread.is_alive() for thread in team_threads):
        if STATUS.exists():
            samples.append(resident())
        time.sleep(min(1.0, seconds / 60))
    if faults:
        raise faults[0]
    return team, samples


def replay(seed, counts, folder):
    """The same operations, one worker after the other: their hashes."""
    results = []
    for worker, count in zip(workers(seed, folder), counts, strict=True):
        for _ in range(count):
            worker.do()
        results.append(worker.result())
    return results


def in_a_fresh_process(seed, counts):
    done = subprocess.run(
        [sys.executable, __file__, "--seed", str(seed), "--replay", *map(str, counts)],
        env=os.environ | {"NUMBA_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.split()


def check_memory(samples):
    """Is there no growth behind the first third? Returns a sentence."""
    if not samples:
        return f"memory: not looked at, this system has no {STATUS}"
    third = len(samples) // 3
    first, growth = max(samples[: third + 1]), max(samples[third:]) - max(samples[: third + 1])
    sentence = (
        f"memory: {first:.0f} MiB at most in the first third, {growth:+.1f} MiB afterwards ({len(samples)} samples, "
        f"{GROWTH} MiB allowed)"
    )
    if growth > GROWTH:
        sys.exit(f"{sentence}: it grows")
    return sentence


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--replay", type=int, nargs="+", help="numbers of operations: print the hashes of a cold run"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.replay:
            print("\n".join(replay(arguments.seed, arguments.replay, folder)))
            return
        threads.SMALL = 0  # the smallest call takes the parallel twins
        for worker in workers(arguments.seed + 1, folder):  # compile, and let memory reach its size
            for _ in range(150):
                worker.do()
        start = time.monotonic()
        team, samples = run(arguments.seed, 60 * arguments.minutes, folder)
        took = time.monotonic() - start
    done = sum((worker.done for worker in team), Counter())
    print(f"{done.total()} operations on {WORKERS} threads in {took:.0f} s: "
          + ", ".join(f"{name} {count}" for name, count in sorted(done.items())))  # fmt: skip
    print(check_memory(samples))
    hot = [worker.result() for worker in team]
    start = time.monotonic()
    cold = in_a_fresh_process(arguments.seed, [worker.count for worker in team])
    if hot != cold:
        sys.exit(f"the hashes differ: {hot}, and {cold} in a cold run")
    final = hashlib.sha256("".join(hot).encode()).hexdigest()
    print(f"hash {final}, also of a cold run on one thread ({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
