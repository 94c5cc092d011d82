"""Kernels as ordinary Python (``NUMBA_DISABLE_JIT=1``), for debuggers and coverage: the same bits."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import bits, make_block, uniform
from toy_models import write_model

from mojolearn import CausalLM, threads
from mojolearn.log_softmax import log_softmax
from mojolearn.models.head import Head

HERE = Path(__file__).parent
BLOCKS = {
    "plain": {},
    "windowed": {"window": 3, "qk_norm": True, "norm": "rmsnorm_offset", "attn_softcap": 2.0},
    "biased": {"norm": "layernorm", "norm_bias": True, "mlp": "gelu", "mlp_bias": True, "qkv_bias": True},
    "narrow": {"weight_format": "bfloat16", "mlp": "geglu", "rope_dim": 4},
    "half": {"weight_format": "float16", "mlp": "geglu_tanh"},
    "normed twice": {
        "norm_placement": "both",
        "norm": "layernorm_offset",
        "norm_bias": True,
        "qk_norm": "full",
    },
    "parallel": {
        "residual": "parallel",
        "residual_multiplier": 0.3,
        "rope_interleaved": True,
        "mlp": "relu2",
        "qk_norm": "layernorm",
        "qk_norm_bias": True,
        "qkv_clip": 0.5,
    },
    "shared": {
        "residual": "parallel_shared",
        "mlp": "relu",
        "rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 6},
    },
    "no rotation": {"norm_placement": "post", "rope_dim": 0},
}


def outputs():
    """One hash for each block: a prefill, a plain step, two steps of a session."""
    for name, options in BLOCKS.items():
        block = make_block(d_model=16, intermediate=12, n_heads=2, n_kv_heads=1, **options)
        x = uniform(np.random.default_rng(1), (2, 5, 16))
        state = block.allocate_state(2, 8)
        y = [block.forward(x[:, :2], state), block.step(x[:, 2], state)]
        with block.decode_session(state) as session:
            y += [session.step(x[:, t]) for t in (3, 4)]
        y = np.concatenate(y, axis=1)
        digest = hashlib.sha256(bits(y).tobytes() + state.keys().tobytes() + state.values().tobytes())
        _, attention = block.forward(x, return_attention=True)
        digest.update(bits(attention).tobytes())
        yield f"{name} {digest.hexdigest()}"


def every_kind(folder):
    """Bits of what the blocks above leave out: long sums, many rows and slots, far positions, a model."""
    rng = np.random.default_rng(2)
    yield list(outputs())
    for options in (
        {"d_model": 8, "head_dim": 130, "window": 17},
        {"d_model": 130, "head_dim": 4, "mlp": "geglu"},
    ):
        block = make_block(intermediate=6, n_heads=2, n_kv_heads=1, **options)
        x = uniform(rng, (1, 21, block.d_model))
        state = block.allocate_state(1, 2**20 if block.window else 24)
        if block.window:
            state.cached_tokens = 10**6  # a ring of zeros may begin anywhere
        yield block.forward(x[:, :19], state)
        with block.decode_session(state) as session:
            yield from (session.step(x[:, t]) for t in (19, 20))
        yield block.forward(x[:, :3].repeat(2, axis=0), lengths=[1, 3])
        yield block.forward(x, return_attention=True)[1]
    lm = CausalLM.load(write_model(folder / "model"))
    yield lm.forward([[1, 2, 3], [4, 5, 6]])
    yield Head(uniform(rng, (20, 8)), softcap=3.0)(uniform(rng, (3, 8)))
    yield log_softmax(uniform(rng, (2, 2100)), "every_kind")
    stream = lm.stream([[1, 2], [3]], 4, greedy=False, seed=1, logprobs=1)
    yield np.stack(list(stream))


def test_every_twin(tmp_path, monkeypatch):
    """The parallel twins give what the serial ones give, also where there are no threads."""

    def run_parallel(serial, parallel, n_workers, work, *arguments):
        return parallel(n_workers, *arguments)

    wanted = list(every_kind(tmp_path))
    for module in [module for name, module in sys.modules.items() if name.startswith("mojolearn.")]:
        if getattr(module, "run", None) is threads.run:
            monkeypatch.setattr(module, "run", run_parallel)
    for got, want in zip(every_kind(tmp_path), wanted, strict=True):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


@pytest.mark.long
def test_the_same_bits_without_compiling():
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    }
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(outputs())


if __name__ == "__main__":
    sys.stdout.write("\n".join(outputs()))
