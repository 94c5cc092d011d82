"""A corpus over a cluster of Dask: several worker processes, one killed in the middle, and the hash of one process."""

import os
import subprocess
import sys
import textwrap

import dask.bag
import pytest
from distributed import Client, LocalCluster

from mojolearn.integrations.corpus import ModelAt, digest, generate_texts, score_texts
from mojolearn.integrations.dask import gather, generate_bag, score_bag
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM

TEXTS = [
    f"{who} was {what}"
    for who in ("Emma", "Anne", "Harriet")
    for what in ("handsome", "clever", "rich", "gone")
]

# Clusters with processes, as scripts of their own; `texts` are many enough to kill a worker among them.
PRELUDE = """
import os, signal, sys, threading
import dask, dask.bag
from distributed import Client, LocalCluster
from mojolearn.integrations.corpus import *
from mojolearn.integrations.dask import *
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.model_state import CausalLMState

dask.config.set({"distributed.worker.memory.terminate": False})
DRAWN = {"greedy": False, "seed": 7}
texts = [f"{who} was {what}, number {n}, and" for n in range(8) for who in ("Emma", "Anne", "Harriet")
         for what in ("handsome", "clever", "rich", "gone")]

def count_loads(dask_worker):
    dask_worker.loads = []
    load = CausalLM.load.__func__
    def noted(cls, path, **options):
        dask_worker.loads.append(str(path))
        return load(cls, path, **options)
    CausalLM.load = classmethod(noted)

def loads(dask_worker):
    return dask_worker.loads

if __name__ == "__main__":
"""


@pytest.fixture
def run(tmp_path):
    """``run(body)``: what a script prints that goes on after the prelude, as the main module of a process."""

    def run(body):
        path = tmp_path / "script.py"
        path.write_text(PRELUDE + textwrap.indent(textwrap.dedent(body), "    "))
        done = subprocess.run(
            [sys.executable, str(path)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()

    return run


@pytest.mark.long
def test_one_worker_is_killed_in_the_middle(run):
    """SIGKILL after the sixth of 24 partitions: others do its work again, to the same hash."""
    body = """
    wanted = digest(score_texts(texts, BUILT_IN)), digest(generate_texts(texts, BUILT_IN, 20, **DRAWN))
    bag = dask.bag.from_sequence(texts, npartitions=24)
    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        for which, work in enumerate((score_bag(bag, BUILT_IN), generate_bag(bag, BUILT_IN, 20, **DRAWN))):
            before = client.run(os.getpid)
            seen = []

            def progress(done, total):
                seen.append((done, total))
                if done == 6:
                    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

            records = gather(work, client, progress=progress)
            print(digest(records) == wanted[which], seen == [(n, 24) for n in range(1, 25)])
            client.wait_for_workers(3)
            print(len(set(before.values()) - set(client.run(os.getpid).values())))
    """
    assert run(body) == ["True True", "1"] * 2


@pytest.mark.long
def test_a_model_is_loaded_once_in_each_process(run):
    """By two Python threads of each of two workers, for scores and for texts; nothing of it travels."""
    body = """
    bag = dask.bag.from_sequence(texts, npartitions=16)
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster, Client(cluster) as client:
        client.run(count_loads)
        client.run(lambda: ModelAt(BUILT_IN).load() and None)
        scores = gather(score_bag(bag, BUILT_IN), client)
        texts_ = gather(generate_bag(bag, BUILT_IN, 5), client)
        print(sorted(map(len, client.run(loads).values())))
        print(digest(scores) == digest(score_texts(texts, BUILT_IN)))
        print(digest(texts_) == digest(generate_texts(texts, BUILT_IN, 5)))
        print(len(repr(dict(score_bag(bag, BUILT_IN).dask))) < 50000)
    """
    assert run(body) == ["[1, 1]", "True", "True", "True"]


@pytest.mark.long
def test_a_state_goes_from_worker_to_worker(run, tmp_path):
    """A prompt on one worker, its state in a file or sent along, the continuation on another, compiled for another
    processor: the bits of one process."""
    body = """
    from distributed import Nanny, Scheduler, SpecCluster

    def prefill(path):
        lm = ModelAt(BUILT_IN).load()
        state = lm.allocate_state(1, 64)
        logits = lm.forward([lm.tokenizer.encode("It is a truth universally acknowledged, that")], state)[:, -1]
        state.save(path, lm)
        return state, logits, os.getpid()

    def go_on(state, logits):
        lm = ModelAt(BUILT_IN).load()
        if isinstance(state, str):
            state = CausalLMState.load(state, lm)
        found = [logits.tobytes()]
        with lm.decode_session(state) as session:
            for _ in range(12):
                logits = session.step(logits.argmax(1))
                found.append(logits.tobytes())
        import numba
        return found, os.getpid(), numba.config.CPU_NAME

    def half_a_stream(path):
        lm = ModelAt(BUILT_IN).load()
        stream = lm.stream([lm.tokenizer.encode("Emma was")], 20, greedy=False, seed=3)
        for _ in range(8):
            next(stream)
        stream.save(path)

    def other_half(path):
        stream = ModelAt(BUILT_IN).load().resume(path)
        list(stream)
        return stream.ids[0].tolist()

    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    workers = {name: {"cls": Nanny, "options": {"nthreads": 1, "env": env}}
               for name, env in (("one", {}), ("two", {}), ("generic", other))}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": None}}
    with SpecCluster(workers=workers, scheduler=scheduler) as cluster, Client(cluster) as client:
        state, logits, first = client.submit(prefill, "state.npz", workers="one").result()
        alone, _, _ = go_on(state.copy(), logits)
        for name in ("two", "generic"):
            for given in ("state.npz", state):
                found, second, cpu = client.submit(go_on, given, logits, workers=name, pure=False).result()
                print(found == alone, second not in (first, os.getpid()), cpu)
        client.submit(half_a_stream, "stream.npz", workers="one").result()
        texts = [client.submit(other_half, "stream.npz", workers=name).result() for name in ("two", "generic")]
        lm = ModelAt(BUILT_IN).load()
        whole = lm.generate([lm.tokenizer.encode("Emma was")], 20, greedy=False, seed=3)[0].tolist()
        print([text == whole for text in texts])
    """
    assert run(body) == ["True True None"] * 2 + ["True True generic"] * 2 + ["[True, True]"]


@pytest.fixture(scope="module")
def client():
    """A cluster in this process."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def bag_of(texts, npartitions=5):
    return dask.bag.from_sequence(texts, npartitions=npartitions)


def test_partitions_do_not_matter(client):
    wanted = digest(score_texts(TEXTS, BUILT_IN))
    for npartitions in (1, 3, 12):
        assert digest(gather(score_bag(bag_of(TEXTS, npartitions), BUILT_IN), client)) == wanted
    assert digest(score_bag(bag_of(TEXTS), BUILT_IN).compute()) == wanted
    assert digest(score_bag(bag_of(TEXTS), BUILT_IN).compute(scheduler="threads")) == wanted
    assert digest(bag_of(TEXTS).map_partitions(score_texts, str(BUILT_IN)).compute()) == wanted


def test_a_bag_goes_on_to_be_one(client):
    """Records are filtered, mapped and summed by Dask's own means."""
    scores = score_bag(bag_of(TEXTS).filter(lambda text: "Emma" in text), ModelAt(BUILT_IN))
    best = scores.map(lambda score: score.sum).max().compute()
    assert best == max(score.sum for score in score_texts(TEXTS[:4], BUILT_IN))


def test_a_text_that_fails_ends_the_run(client):
    seen = []
    texts = [*TEXTS[:5], [2048], *TEXTS]
    with pytest.raises(ValueError, match=r"^score_texts: texts\[1\] \(\[2048\]\): .*from 0 to 2047"):
        gather(
            score_bag(bag_of(texts, 17), BUILT_IN), client, retries=0, progress=lambda *at: seen.append(at)
        )
    kept = gather(score_bag(bag_of(texts), BUILT_IN, errors="keep"), client)
    assert [at for at, score in enumerate(kept) if score.error] == [5]
    assert digest(kept[:5] + kept[6:]) == digest(score_texts(TEXTS[:5] + TEXTS, BUILT_IN))


def test_what_fails_once_is_tried_again(client):
    failures = ["a disk that is away for a moment"] * 2

    def fragile(texts):
        if failures:
            raise OSError(failures.pop())
        return list(texts)

    bag = score_bag(bag_of(TEXTS, 1).map_partitions(fragile), BUILT_IN)
    assert digest(gather(bag, client, retries=2)) == digest(score_texts(TEXTS, BUILT_IN))


def test_generation_has_the_options_of_generate(client):
    options = {"greedy": False, "seed": 3, "temperature": 0.8, "stop": ["."], "eos_token_id": [5, 6]}
    found = gather(generate_bag(bag_of(TEXTS), BUILT_IN, 9, batch_size=2, **options), client)
    assert digest(found) == digest(generate_texts(TEXTS, BUILT_IN, 9, **options))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda bag, client: score_bag(TEXTS, BUILT_IN), "score_bag: bag must be a dask.bag.Bag, not list"),
        (
            lambda bag, client: score_bag(bag, CausalLM.load(BUILT_IN)),
            "score_bag: model must be a path or a ModelAt",
        ),
        (lambda bag, client: score_bag(bag, 3), "score_bag: model must be a path"),
        (lambda bag, client: score_bag(bag, BUILT_IN, errors="skip"), "score_bag: errors must be"),
        (lambda bag, client: generate_bag(bag, BUILT_IN, -1), "generate_bag: max_new_tokens must be"),
        (
            lambda bag, client: generate_bag(bag, BUILT_IN, 3, greedy=False),
            "generate_bag: seed must be given",
        ),
        (
            lambda bag, client: generate_bag(bag, BUILT_IN, 3, logprobs=1),
            "generate_bag: logprobs is no option",
        ),
        (lambda bag, client: gather(TEXTS, client), "gather: bag must be"),
        (lambda bag, client: gather(bag, None), "gather: client must be a distributed.Client"),
        (lambda bag, client: gather(bag, client, retries=-1), "gather: retries must be"),
        (lambda bag, client: gather(bag, client, progress=3), "gather: progress must be callable"),
    ],
)
def test_refusals(client, call, words):
    with pytest.raises((TypeError, ValueError), match="^" + words):
        call(bag_of(TEXTS), client)


def test_an_empty_partition(client):
    bag = bag_of(TEXTS, 12).filter(lambda text: "Anne" in text)
    assert digest(gather(score_bag(bag, BUILT_IN), client)) == digest(score_texts(TEXTS[4:8], BUILT_IN))
