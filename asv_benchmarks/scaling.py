"""How much a second worker is worth: scoring and continuing a corpus on a cluster of processes with one thread each.

    python asv_benchmarks/scaling.py [--model FOLDER] [--workers 2] [--rounds 5] [--texts 240]

One cluster of Dask; its workers have loaded the model. The same bag is computed by one of them and by all, in turns,
and the median of the ratios is printed, with the hash of the records, which must be the same each time. A loop over the
same texts in this process tells what the cluster itself costs, and plain loops of Python on the same workers what the
machine gives two processes at that time. Without --model, MOJOLEARN_BENCH_MODEL or the model
inside the package.
"""

import argparse
import os
import time

import dask.bag
import numpy as np
from distributed import Client, LocalCluster

from mojolearn import show_versions
from mojolearn.integrations.corpus import ModelAt, digest, generate_texts, score_texts
from mojolearn.integrations.dask import gather, generate_bag, score_bag
from mojolearn.models import BUILT_IN

SEED = 1


def seconds(call):
    start = time.perf_counter()
    records = call()
    return time.perf_counter() - start, digest(records)


def spin(n):
    """Work that shares nothing with other processes but the machine."""
    total = 0
    for i in range(n):
        total += i * i
    return total


def spins(client, workers):
    """Seconds of a few equal loops on some workers."""
    start = time.perf_counter()
    client.gather(client.map(spin, [2_000_000] * 12, workers=workers, pure=False))
    return time.perf_counter() - start


def turns(work, alone, client, workers, rounds):
    """Seconds of each round: one worker, all, a loop in this process, loops on one worker, on all; and all hashes."""
    times, hashes = [], set()
    for _ in range(rounds):
        row = []
        for call in (
            lambda: gather(work, client, workers=workers[:1]),
            lambda: gather(work, client, workers=workers),
            alone,
        ):
            spent, found = seconds(call)
            row.append(spent)
            hashes.add(found)
        times.append([*row, spins(client, workers[:1]), spins(client, workers)])
    return np.array(times), hashes


def say(what, times, hashes, n_workers):
    one, many, loop = np.median(times[:, :3], axis=0)
    gain, machine = np.median(times[:, 0] / times[:, 1]), np.median(times[:, 3] / times[:, 4])
    best = times[:, 0].min() / times[:, 1].min()
    same = "one hash" if len(hashes) == 1 else f"{len(hashes)} HASHES"
    figures = f"{many:.2f} s, {one:.2f}; a loop in one process {loop:.2f}"
    print(f"{what}: {n_workers} workers {gain:.2f} x as fast as one ({figures}); least times {best:.2f} x; "
          f"plain loops {machine:.2f} x; {same} {min(hashes)[:16]}", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=os.environ.get("MOJOLEARN_BENCH_MODEL") or str(BUILT_IN))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=240)
    parser.add_argument("--tokens", type=int, default=256, help="of each text")
    arguments = parser.parse_args()
    show_versions()
    model = ModelAt(arguments.model)
    lm = model.load()
    rng = np.random.default_rng(SEED)
    texts = list(rng.integers(0, lm.vocab_size, (arguments.texts, arguments.tokens)))
    prompts = [text[:16] for text in texts]
    bag = {
        name: dask.bag.from_sequence(items, npartitions=12) for name, items in (("s", texts), ("g", prompts))
    }
    options = {"greedy": False, "seed": SEED}
    with (
        LocalCluster(n_workers=arguments.workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        for call in (score_bag(bag["s"], model), generate_bag(bag["g"], model, 2, **options)):
            for worker in workers:  # every worker has loaded and compiled before anything counts
                gather(call, client, workers=[worker])
        for what, work, alone in (
            (
                f"scoring {len(texts)} texts of {arguments.tokens} tokens",
                score_bag(bag["s"], model),
                lambda: score_texts(texts, model),
            ),
            (
                f"continuing {len(texts)} prompts by 48 tokens",
                generate_bag(bag["g"], model, 48, **options),
                lambda: generate_texts(prompts, model, 48, batch_size=4, **options),
            ),
        ):
            say(what, *turns(work, alone, client, workers, arguments.rounds), arguments.workers)


if __name__ == "__main__":
    main()
