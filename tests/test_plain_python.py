"""Kernels as ordinary Python (``NUMBA_DISABLE_JIT=1``), for debuggers and coverage: the same bits."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import bits, make_block, uniform

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
        yield f"{name} {digest.hexdigest()}"


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
