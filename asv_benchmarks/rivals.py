"""The same work in other libraries: run in the rival's own interpreter, prints seconds per call as JSON.

    PYTHON rivals.py numpy --shape Llama-3.2-1B --length 512
    PYTHON rivals.py torch --shape Llama-3.2-1B --length 512
    PYTHON rivals.py core --shape Llama-3.2-1B --length 128 [--step]
    PYTHON rivals.py transformers --model FOLDER --dtype bfloat16 --context 1024 [--prefill]
    PYTHON rivals.py llama --model FILE.gguf --context 1024 [--prefill]
    PYTHON rivals.py gguf --model FILE.gguf --dtype F16 --out FILE-F16.gguf

From a program that has mojolearn installed, `measure` starts the interpreter that an environment variable names:
``MOJOLEARN_TORCH_PYTHON`` (torch, transformers), ``MOJOLEARN_CORE_PYTHON``, ``MOJOLEARN_LLAMA_PYTHON``. This file
imports nothing but the standard library until a rival is chosen. README.md tells how to install the rivals.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SHAPES = {  # d_model, intermediate_size, n_heads, n_kv_heads
    "SmolLM2-135M": (576, 1536, 9, 3),
    "Llama-3.2-1B": (2048, 8192, 32, 8),
    "Qwen2.5-0.5B": (896, 4864, 14, 2),
}
INTERPRETERS = {
    "torch": "MOJOLEARN_TORCH_PYTHON",
    "transformers": "MOJOLEARN_TORCH_PYTHON",
    "core": "MOJOLEARN_CORE_PYTHON",
    "llama": "MOJOLEARN_LLAMA_PYTHON",
}
DECODE_TOKENS = 8  # tokens of one timed call of a decode; seconds are divided by it
THETA, EPS = 10000.0, 1e-6


def measure(rival, *arguments, threads=2):
    """Run a rival in its own interpreter: the printed dict, or None where the interpreter is not given."""
    python = sys.executable if rival == "numpy" else os.environ.get(INTERPRETERS[rival])
    if not python:
        return None
    command = [python, __file__, rival, "--threads", str(threads), *map(str, arguments)]
    done = subprocess.run(command, env=environment(python, threads), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def environment(python, threads):
    """Variables that a rival wants before it starts: threads, and the folder of mojolearn-core's libraries."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    libraries = Path(python).absolute().parent.parent.glob("lib/python3*/site-packages/mojolearn/.libs")
    path = os.pathsep.join([*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    more = {"LD_LIBRARY_PATH": path} if path else {}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return inherited | more | {"HF_HUB_OFFLINE": "1"} | dict.fromkeys(names, str(threads))


def seconds_per_call(call, budget, rewind=lambda: None):
    """Seconds of each call, after one that does not count: at least 3 calls, then until ``budget`` is spent."""
    rewind()
    call()
    times, end = [], time.perf_counter() + budget
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 100):
        rewind()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def matrices(shape):
    """Name and (out, in) of the seven projections of a model's block, in the order of the computation."""
    d_model, intermediate, n_heads, n_kv_heads = SHAPES[shape]
    kv_width = d_model // n_heads * n_kv_heads
    return {
        "q_proj": (d_model, d_model),
        "k_proj": (kv_width, d_model),
        "v_proj": (kv_width, d_model),
        "o_proj": (d_model, d_model),
        "gate_proj": (intermediate, d_model),
        "up_proj": (intermediate, d_model),
        "down_proj": (d_model, intermediate),
    }


def random_matrix(out_features, in_features, seed=0):
    """A float32 matrix that bfloat16 holds exactly: one random run of a prime length, over and over."""
    import numpy as np

    run = np.random.default_rng(seed).standard_normal(1_000_003, np.float32) / np.float32(in_features**0.5)
    run = (run.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.resize(run, (out_features, in_features))


def random_weights(shape):
    """Float32 weights of a block under Hugging Face names."""
    import numpy as np

    weights = {
        f"{name}.weight": random_matrix(*size, seed)
        for seed, (name, size) in enumerate(matrices(shape).items())
    }
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{name}.weight"] = np.ones(SHAPES[shape][0], np.float32)
    return weights


def random_input(shape, length):
    """Float32 tokens (1, length, d_model)."""
    import numpy as np

    return np.random.default_rng(1).standard_normal((1, length, SHAPES[shape][0]), np.float32)


def torch_block(weights, n_heads, n_kv_heads):
    """A function of x (1, L, d_model) that does in torch what TransformerBlock does, from position 0 on."""
    import torch
    from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

    w = {name.removesuffix(".weight"): torch.from_numpy(array) for name, array in weights.items()}
    d_model = w["q_proj"].shape[0]
    head_dim = d_model // n_heads
    frequencies = THETA ** (-torch.arange(0, head_dim, 2) / head_dim)

    def turn(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def heads(x, n):
        return x.view(1, -1, n, head_dim).transpose(1, 2)

    @torch.inference_mode()
    def block(x):
        length = x.shape[1]
        angles = torch.arange(length)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        h = rms_norm(x, (d_model,), w["input_layernorm"], EPS)
        q = turn(heads(linear(h, w["q_proj"]), n_heads), cos, sin)
        k = turn(heads(linear(h, w["k_proj"]), n_kv_heads), cos, sin)
        v = heads(linear(h, w["v_proj"]), n_kv_heads)
        context = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        r = x + linear(context.transpose(1, 2).reshape(1, length, d_model), w["o_proj"])
        h = rms_norm(r, (d_model,), w["post_attention_layernorm"], EPS)
        return r + linear(silu(linear(h, w["gate_proj"])) * linear(h, w["up_proj"]), w["down_proj"])

    return block


def run_numpy(o):
    """The seven products of a block alone."""
    import numpy as np

    pairs = [
        (random_matrix(o.length, size[1], 1), random_matrix(*size)) for size in matrices(o.shape).values()
    ]
    seconds = seconds_per_call(lambda: [a @ w.T for a, w in pairs], o.budget)
    return {"seconds": seconds, "version": np.__version__}


def run_torch(o):
    """Prefill of one block."""
    import torch

    torch.set_num_threads(o.threads)
    block = torch_block(random_weights(o.shape), *SHAPES[o.shape][2:])
    x = torch.from_numpy(random_input(o.shape, o.length))
    return {"seconds": seconds_per_call(lambda: block(x), o.budget), "version": torch.__version__}


def run_core(o):
    """Prefill of one block of mojolearn-core, or with --step one token behind ``length`` cached ones."""
    import mojolearn

    n_heads, n_kv_heads = SHAPES[o.shape][2:]
    block = mojolearn.TransformerBlock(random_weights(o.shape), n_heads=n_heads, n_kv_heads=n_kv_heads)
    x = random_input(o.shape, o.length)
    if not o.step:
        seconds = seconds_per_call(lambda: block.forward(x), o.budget)
    else:
        state, token = block.allocate_state(1, o.length + 200), random_input(o.shape, 1)[:, 0]
        block.forward(x, state)
        seconds = seconds_per_call(lambda: block.step(token, state), o.budget)
    return {"seconds": seconds, "version": mojolearn.__version__}


def prompt(length, vocab_size):
    """Token ids without meaning: the work does not depend on them."""
    return [(7919 * i + 11) % (vocab_size - 100) + 100 for i in range(length)]


def run_transformers(o):
    """Decode behind ``context`` tokens (seconds per token), or with --prefill the run of these tokens."""
    import torch
    import transformers

    torch.set_num_threads(o.threads)
    dtype = getattr(torch, o.dtype or "float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        o.model, dtype=dtype, attn_implementation="sdpa", local_files_only=True
    ).eval()
    ids = torch.tensor([prompt(o.context, model.config.vocab_size)])

    with torch.inference_mode():
        if o.prefill:
            seconds = seconds_per_call(lambda: model(ids, use_cache=True, logits_to_keep=1), o.budget)
        else:
            cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values

            def decode():
                for _ in range(DECODE_TOKENS):
                    model(ids[:, :1], past_key_values=cache, use_cache=True)

            def rewind():
                decoded = cache.get_seq_length() - o.context
                if decoded:
                    cache.crop(-decoded)  # negative: so many tokens are taken away

            times = seconds_per_call(decode, o.budget, rewind)
            seconds = [time / DECODE_TOKENS for time in times]
    return {"seconds": seconds, "version": f"{transformers.__version__}, torch {torch.__version__}"}


def run_llama(o):
    """The same in llama.cpp."""
    import llama_cpp

    lm = llama_cpp.Llama(o.model, n_ctx=o.context + 2 * DECODE_TOKENS, n_batch=512, n_threads=o.threads,
                         n_threads_batch=o.threads, verbose=False)  # fmt: skip
    ids = prompt(o.context, lm.n_vocab())
    if o.prefill:
        seconds = seconds_per_call(lambda: lm.eval(ids), o.budget, lm.reset)
    else:
        lm.eval(ids)

        def decode():
            for token in ids[:DECODE_TOKENS]:
                lm.eval([token])

        def rewind():  # `eval` drops what the cache holds from n_tokens on
            lm.n_tokens = o.context

        seconds = [time / DECODE_TOKENS for time in seconds_per_call(decode, o.budget, rewind)]
    return {"seconds": seconds, "version": llama_cpp.__version__}


def run_gguf(o):
    """Write a GGUF file anew with its matrices in F32 or F16 (norms stay F32)."""
    import gguf
    import numpy as np

    source, kinds = gguf.GGUFReader(o.model), {"F32": np.float32, "F16": np.float16}
    writer = gguf.GGUFWriter(o.out, "llama")  # writes general.architecture itself
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type({"F32": 0, "F16": 1}[o.dtype])
    for tensor in source.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(kinds[o.dtype] if values.ndim == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"file": o.out}


def main():
    runs = {
        "numpy": run_numpy,
        "torch": run_torch,
        "core": run_core,
        "transformers": run_transformers,
        "llama": run_llama,
        "gguf": run_gguf,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rival", choices=runs)
    parser.add_argument("--shape", choices=SHAPES, default="SmolLM2-135M")
    parser.add_argument("--length", type=int, default=128, help="tokens of a block's input or cache")
    parser.add_argument("--step", action="store_true", help="core: one step behind LENGTH cached tokens")
    parser.add_argument("--model", help="folder (transformers) or GGUF file (llama, gguf)")
    parser.add_argument("--dtype", help="transformers: float32, bfloat16; gguf: F32, F16")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prefill", action="store_true", help="run CONTEXT tokens instead of decoding")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of measuring, about")
    parser.add_argument("--out", help="gguf: file to write")
    o = parser.parse_args()
    print(json.dumps(runs[o.rival](o)))


if __name__ == "__main__":
    main()
