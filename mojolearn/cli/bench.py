"""``mojolearn bench``: how fast a model runs here, and how fast memory would allow."""

import argparse
import json
import statistics
import time
from functools import partial

import numpy as np

from mojolearn._jit import LANES
from mojolearn.cli import options
from mojolearn.cli.process import write
from mojolearn.kernels.bandwidth import read_parallel, read_serial
from mojolearn.layers import aligned_empty
from mojolearn.threads import run as run_twin
from mojolearn.threads import workers

READ = 64 << 20  # float32 numbers that are read to measure memory: more than any cache holds
SECONDS = 1.0  # that each measurement takes, about
PROMPTS = (128, 512)
DECODED = 64  # tokens at most behind the shorter prompt


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn bench",
        description="Measure, in a few seconds, tokens per second of prompts and of decoding, and the bytes that "
        "decoding reads against a plain read of memory. The median counts; other programs that run at the same time "
        "make it worse.",
    )
    parser.add_argument("path", nargs="?", help="a checkpoint (default: the small model inside this package)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--threads", type=int, metavar="N", help="how many threads")
    parser.add_argument(
        "--weight-format", choices=("float32", "bfloat16", "float16"), help="default: as stored"
    )
    return parser


def run(arguments):
    """Measure and print."""
    arguments.model = arguments.path
    options.check(arguments)
    lm = options.load(arguments)
    figures = {"read GB/s": _read_speed()}
    for length in PROMPTS:
        if lm.max_positions is None or length <= lm.max_positions:
            figures[f"prompt of {length}, tokens/s"] = length / _median(
                partial(lm.stream, _prompt(lm, length), 1)
            )
    seconds, n_bytes = _decode(lm)
    figures["decoding, tokens/s"] = 1 / seconds
    figures["decoding, GB/s"] = n_bytes / seconds * 1e-9
    figures["decoding, share of the read"] = figures["decoding, GB/s"] / figures["read GB/s"]
    if arguments.json:
        write(json.dumps(figures) + "\n")
        return 0
    for name, figure in figures.items():
        write(f"{name:30}{figure:12.2f}\n")
    if n_bytes < 4 * READ // 8:
        write("The weights of this model fit a cache, so memory is no measure of it.\n")
    return 0


def _prompt(lm, length):
    return [[(7919 * i + 11) % lm.vocab_size for i in range(length)]]


def _median(call):
    """Median seconds of as many calls as there is time for, after one that does not count."""
    call()
    times = []
    while len(times) < 3 or sum(times) < SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _read_speed():
    """Gigabytes per second of a plain read of memory, by as many threads as kernels use."""
    memory = aligned_empty(READ)
    memory[:] = 1
    n_workers = workers(READ)
    out = np.zeros(n_workers * LANES, np.float32)
    return (
        4 * READ / _median(lambda: run_twin(read_serial, read_parallel, n_workers, READ, memory, out)) * 1e-9
    )


def _decode(lm):
    """Median seconds of a token behind a prompt, and the bytes it reads: weights, head, keys and values."""
    most = PROMPTS[0] + DECODED if lm.max_positions is None else lm.max_positions
    length = min(PROMPTS[0], max(1, most // 2))
    stream = lm.stream(_prompt(lm, length), min(DECODED, most - length))
    next(stream)
    times, start = [], time.perf_counter()
    for _ in stream:
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    cached = length + len(times) // 2
    caches = sum(
        8 * block.n_kv_heads * block.head_dim * min(block.window or cached, cached) for block in lm.blocks
    )
    weights = sum(block.nbytes for block in lm.blocks) + lm._head.linear.nbytes
    return statistics.median(times), weights + caches
