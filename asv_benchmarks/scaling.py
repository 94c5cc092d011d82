"""How much a second worker is worth: scoring and continuing a corpus on a cluster of processes with one thread each.

    python asv_benchmarks/scaling.py [--model FOLDER] [--workers 2] [--rounds 5] [--texts 48]

One cluster of Dask; its workers have loaded the model. The same bag is computed by one of them and by all, in turns,
and the median of the ratios is printed, with the hash of the records, which must be the same each time. A loop over the
same texts in this process tells what the cluster itself costs. Without --model, MOJOLEARN_BENCH_MODEL or the model
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


def turns(work, alone, client, workers, rounds):
    """Seconds of one worker, of all, and of a loop in this process, by turns; and all hashes that came out."""
    times, hashes = [], set()
    for _ in range(rounds):
        row = []
        for some in (workers[:1], workers):
            spent, found = seconds(lambda some=some: gather(work, client, workers=some))
            row.append(spent)
            hashes.add(found)
        spent, found = seconds(alone)
        times.append([*row, spent])
        hashes.add(found)
    return np.array(times), hashes


def say(what, times, hashes, n_workers):
    one, many, loop = np.median(times, axis=0)
    gain = np.median(times[:, 0] / times[:, 1])
    same = "one hash" if len(hashes) == 1 else f"{len(hashes)} HASHES"
    figures = f"{many:.2f} s, {one:.2f}; a loop in one process {loop:.2f}"
    print(
        f"{what}: {n_workers} workers {gain:.2f} x as fast as one ({figures}), {same} {min(hashes)[:16]}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=os.environ.get("MOJOLEARN_BENCH_MODEL") or str(BUILT_IN))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=256, help="of each text")
    arguments = parser.parse_args()
    show_versions()
    model = ModelAt(arguments.model)
    lm = model.load()
    rng = np.random.default_rng(SEED)
    texts = rng.integers(0, lm.vocab_size, (arguments.texts, arguments.tokens)).tolist()
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
