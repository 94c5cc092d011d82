"""Speed as ratios, measured in one run.

    python asv_benchmarks/ratios.py [products] [prefill] [step] [session] [overhead] [others] [startup] [memory]
    python asv_benchmarks/ratios.py model FOLDER ...

Without arguments all of the first line. Rivals take turns call by call and the median of many is compared, so a slow
moment of the machine meets both. Each line names what was measured, the ratio, and the figures behind it. Threads: one
for products, all that Numba has for the rest. ``model`` takes folders of checkpoints; README.md has the variables that
name rivals.
"""

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("NUMBA_NUM_THREADS", str(os.cpu_count())))

import numba
import numpy as np
import rivals

from mojolearn import CausalLM, TransformerBlock, show_versions
from mojolearn._jit import LANES
from mojolearn.kernels.bandwidth import read_parallel
from mojolearn.layers import Linear, aligned_empty
from mojolearn.models import BUILT_IN
from mojolearn.options import BlockOptions
from mojolearn.weights import narrow

THREADS = numba.config.NUMBA_NUM_THREADS
SHAPES = {
    "SmolLM2-135M": {"d_model": 576, "intermediate_size": 1536, "n_heads": 9, "n_kv_heads": 3},
    "Llama-3.2-1B": {"d_model": 2048, "intermediate_size": 8192, "n_heads": 32, "n_kv_heads": 8},
    "Qwen2.5-0.5B": {"d_model": 896, "intermediate_size": 4864, "n_heads": 14, "n_kv_heads": 2},
}


# --- measuring ---------------------------------------------------------------------------------------------


def make_reader():
    """A call that reads 256 MiB on all threads, and the gigabytes it reads."""
    big, out = aligned_empty(64 << 20), np.zeros(64 * LANES, np.float32)
    big[:] = 1
    return partial(read_parallel, THREADS, big, out), big.nbytes * 1e-9


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def turns(repeat, *calls):
    """Seconds of each call in each turn, (repeat, calls), after one call of each that does not count."""
    for call in calls:
        call()
    return np.array([[seconds(call) for call in calls] for _ in range(repeat)])


def in_turns(repeat, *calls):
    """Median seconds of each call."""
    return np.median(turns(repeat, *calls), axis=0)


def make_block(rng, shape, weight_format="float32"):
    """A block with random weights, and its projections as plain float32 matrices."""
    shapes = BlockOptions(**shape).weight_shapes()
    weights = {
        name: rng.standard_normal(s, np.float32) / np.float32(s[-1] ** 0.5) for name, s in shapes.items()
    }
    matrices = [w for w in weights.values() if w.ndim == 2]
    weights = {name: narrow(w, weight_format) if w.ndim == 2 else w for name, w in weights.items()}
    options = {name: shape[name] for name in ("n_heads", "n_kv_heads")}
    return TransformerBlock(weights, **options, weight_format=weight_format), matrices


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# --- the measures ------------------------------------------------------------------------------------------


def products(rng):
    """One thread: `Linear` against ``A @ W.T`` of OpenBLAS, for the seven projections of the three models."""
    from threadpoolctl import threadpool_limits

    numba.set_num_threads(1)
    ratios = []
    with threadpool_limits(1):
        for name, shape in SHAPES.items():
            matrices = make_block(rng, shape)[1]
            for m in (6, 24, 96, 512):
                row = []
                for w in matrices:
                    a, layer = rng.standard_normal((m, w.shape[1]), np.float32), Linear(w)
                    repeat = int(np.clip(0.25 / (2e-11 * m * w.size), 7, 101))
                    ours, blas = in_turns(
                        repeat, partial(layer.flat, a.reshape(-1), m), partial(np.matmul, a, w.T)
                    )
                    row.append(blas / ours)
                ratios += row
                figures = " ".join(f"{ratio:.2f}" for ratio in row)
                say(f"products, {name}, {m} rows, against OpenBLAS (q k v o gate up down): {figures}")
    say(f"products: median {np.median(ratios):.2f}, least {min(ratios):.2f}")
    numba.set_num_threads(THREADS)


def prefill(rng):
    """All threads: a block over L tokens against the seven NumPy products alone.

    These run in a process of their own: OpenBLAS threads that wait for work spin, and would be in our way.
    """
    for name in ("SmolLM2-135M", "Llama-3.2-1B"):
        block, _ = make_block(rng, SHAPES[name])
        for length in (128, 512):
            x = rng.standard_normal((1, length, block.d_model), np.float32)
            ours, blas = rounds(partial(block.forward, x), "numpy", "--shape", name, "--length", length)
            say(f"prefill, {name}, {length} tokens: {ours / blas:.2f} x the time of the products "
                f"({ours * 1e3:.1f} ms, {blas * 1e3:.1f})")  # fmt: skip


def fraction(what, nbytes, times, read_gb):
    """Say what part of the read bandwidth a call of so many bytes reaches: times of calls and of reads, in turns.

    The median of the ratios turn by turn: the speed of memory is not always the same where others use it too.
    """
    calls, reads = times.T
    share = np.median(nbytes * 1e-9 / calls / (read_gb / reads))
    ours, reading = np.median(times, axis=0)
    say(f"{what}: {share:.2f} of the read bandwidth "
        f"({nbytes * 1e-9 / ours:.1f} GB/s, {read_gb / reading:.1f}; {ours * 1e3:.2f} ms)")  # fmt: skip


def step(rng):
    """A plain step with 128 cached tokens: weights and cache against reading memory."""
    reader, read_gb = make_reader()
    for weight_format in ("float32", "bfloat16"):
        block, _ = make_block(rng, SHAPES["Llama-3.2-1B"], weight_format)
        x = rng.standard_normal((1, block.d_model), np.float32)
        state = block.allocate_state(1, 1024)
        block.forward(rng.standard_normal((1, 128, block.d_model), np.float32), state)
        times = turns(40, partial(block.step, x, state), reader)
        nbytes = block.nbytes + 2 * 4 * (128 + 20) * block.options.kv_width
        fraction(f"step, Llama-3.2-1B, {weight_format}, 128 cached", nbytes, times, read_gb)


def session(rng):
    """Steps of a session at long contexts, and plain steps against them."""
    reader, read_gb = make_reader()
    block, _ = make_block(rng, SHAPES["Llama-3.2-1B"])
    x = rng.standard_normal((1, block.d_model), np.float32)
    for cached in (2048, 8192):
        state = block.allocate_state(1, cached + 64)
        for _ in range(cached // 512):
            block.forward(rng.standard_normal((1, 512, block.d_model), np.float32), state)
        other = state.copy()
        with block.decode_session(other) as decoding:
            times = turns(30, partial(decoding.step, x), partial(block.step, x, state), reader)
        nbytes = block.nbytes + 2 * 4 * (cached + 15) * block.options.kv_width
        fraction(f"session step, Llama-3.2-1B, {cached} cached", nbytes, times[:, ::2], read_gb)
        ours, plain, _ = np.median(times, axis=0)
        say(f"plain step, {cached} cached: {plain / ours:.2f} x the session's time ({plain * 1e3:.2f} ms)")


def model(rng, folder):
    """Tokens per second of a checkpoint: bytes per token against reading memory, and against others."""
    reader, read_gb = make_reader()
    lm = CausalLM.load(folder)
    weights = sum(block.nbytes for block in lm.blocks) + lm._head.linear.nbytes
    kv = sum(2 * 4 * block.options.kv_width for block in lm.blocks)
    name = f"model, {lm.weight_format}"
    for context in (128, 1024):
        stream = lm.stream(rng.integers(0, lm.vocab_size, (1, context)), 45)
        for _ in range(4):
            next(stream)
        times = turns(38, partial(next, stream), reader)
        fraction(f"{name}, context {context}", weights + kv * (context + 20), times, read_gb)
        against_models(lm, f"{name}, decode at {context}", "--context", context)
    against_models(lm, f"{name}, prefill of 512", "--context", 512, "--prefill")


def against_models(lm, what, *arguments):
    """The same work of transformers and llama.cpp, where there are interpreters and files for them."""
    context, prefill = arguments[1], "--prefill" in arguments
    ids = np.arange(context)[None] % lm.vocab_size
    if prefill:
        ours = partial(lm.stream, ids, 1)
    else:
        stream = lm.stream(ids, 200)
        next(stream)
        ours = partial(next, stream)
    files = [("transformers", os.environ.get("MOJOLEARN_BENCH_MODEL"))]
    files += [("llama", file) for file in os.environ.get("MOJOLEARN_BENCH_GGUF", "").split(os.pathsep)]
    for rival, file in files:
        if file and os.environ.get(rivals.INTERPRETERS[rival]):
            mine, theirs = rounds(ours, rival, "--model", file, *arguments)
            scale = context if prefill else 1
            say(f"{what}: {theirs / mine:.2f} x the speed of {rival} {os.path.basename(file)} "
                f"({scale / mine:.1f} tokens/s, {scale / theirs:.1f})")  # fmt: skip


def startup(rng):
    """Import, first token with an empty compile cache and with a full one, of the model in MOJOLEARN_BENCH_MODEL."""
    folder = os.environ.get("MOJOLEARN_BENCH_MODEL") or str(BUILT_IN)
    first_token = f"from mojolearn import CausalLM; CausalLM.load({folder!r}).generate([[1, 2, 3]], 2)"
    with tempfile.TemporaryDirectory() as cache:
        for what, code in (
            ("import", "import mojolearn"),
            ("cold first token", first_token),
            ("warm", first_token),
        ):
            call = partial(
                subprocess.run,
                [sys.executable, "-c", code],
                env=os.environ | {"NUMBA_CACHE_DIR": cache},
                check=True,
            )
            say(f"startup, {what}: {min(seconds(call) for _ in range(1 if 'cold' in what else 3)):.2f} s")


# ru_maxrss would count what the process that started this one held: VmHWM is of this program alone.
PEAK = """
import sys
from mojolearn import CausalLM
lm = CausalLM.load(sys.argv[1])
state = lm.allocate_state(1, 1024)
lm.forward([list(range(64))], state)
with lm.decode_session(state) as session:
    for _ in range(20):
        session.step([5])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024, state.nbytes)
"""


def memory(rng):
    """Peak memory of loading and decoding MOJOLEARN_BENCH_MODEL, against its file."""
    folder = os.environ.get("MOJOLEARN_BENCH_MODEL") or str(BUILT_IN)
    done = subprocess.run([sys.executable, "-c", PEAK, folder], check=True, capture_output=True, text=True)
    peak, cache = map(int, done.stdout.split())
    file = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    say(f"memory: peak {peak / 2**20:.0f} MiB, file {file / 2**20:.0f}, cache {cache / 2**20:.0f}: "
        f"{(peak - cache - 150e6) / file:.2f} x the file beyond the cache and 150 MB")  # fmt: skip


def overhead(rng):
    """Python and launch overhead: a step of a very small block."""
    block, _ = make_block(rng, {"d_model": 64, "intermediate_size": 128, "n_heads": 4, "n_kv_heads": 2})
    x = rng.standard_normal((1, 64), np.float32)
    state = block.allocate_state(1, 4096)
    plain = in_turns(500, partial(block.step, x, state))[0]
    with block.decode_session(state) as decoding:
        resident = in_turns(500, partial(decoding.step, x))[0]
    say(f"overhead, d_model 64: step {plain * 1e6:.0f} us, session step {resident * 1e6:.0f} us")


def rounds(ours, rival, *arguments, count=3):
    """Median seconds of a call of ours and of a rival's (None without its interpreter), in turns of a few seconds."""
    mine, theirs = [], []
    for _ in range(count):
        mine += [seconds(ours) for _ in range(8)][1:]
        measured = rivals.measure(rival, *arguments, threads=THREADS)
        if measured is None:
            return np.median(mine), None
        theirs += measured["seconds"]
    return np.median(mine), np.median(theirs)


def others(rng):
    """A block against torch and mojolearn-core, where their interpreters are given (README.md)."""
    for name in ("SmolLM2-135M", "Llama-3.2-1B"):
        block, _ = make_block(rng, SHAPES[name])
        for length in (128, 512):
            x = rng.standard_normal((1, length, block.d_model), np.float32)
            for rival in ("torch", "core"):
                ours, theirs = rounds(partial(block.forward, x), rival, "--shape", name, "--length", length)
                if theirs is not None:
                    say(f"prefill, {name}, {length} tokens: {ours / theirs:.2f} x the time of {rival} "
                        f"({ours * 1e3:.1f} ms, {theirs * 1e3:.1f})")  # fmt: skip
    state = block.allocate_state(1, 1024)
    block.forward(x[:, :128], state)
    step = partial(block.step, x[:, 0], state)
    ours, theirs = rounds(step, "core", "--shape", name, "--length", 128, "--step")
    if theirs is not None:
        figures = f"{theirs * 1e3:.1f} ms, {ours * 1e3:.2f}"
        say(f"step, {name}, 128 cached: core takes {theirs / ours:.1f} x the time ({figures})")


MEASURES = {
    "products": products,
    "prefill": prefill,
    "step": step,
    "session": session,
    "overhead": overhead,
    "others": others,
    "startup": startup,
    "memory": memory,
}


def main(arguments):
    show_versions()
    rng = np.random.default_rng(0)
    if arguments[:1] == ["model"]:
        for folder in arguments[1:]:
            model(rng, folder)
        return
    for name in arguments or MEASURES:
        MEASURES[name](rng)


if __name__ == "__main__":
    main(sys.argv[1:])
