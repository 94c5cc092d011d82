"""warmup() and show_versions()."""

import io
import os
import subprocess
import sys

import pytest
from support import make_block

import mojolearn

# After warmup() nothing that a block or a session does may compile: counted by Numba's own events.
NOTHING_COMPILES_AFTERWARDS = """
import numpy as np
import mojolearn
from numba.core import event
from support import make_block, uniform

block = make_block(d_model=64, intermediate=96, n_heads=4, n_kv_heads=2, window=9, norm="layernorm", norm_bias=True,
                   mlp="geglu", mlp_bias=True, qkv_bias=True, qk_norm=True, attn_softcap=5.0, weight_format="bfloat16")
mojolearn.warmup(block)
with event.install_recorder("numba:compile") as recorder:
    x = uniform(np.random.default_rng(0), (2, 200, 64))
    state = block.allocate_state(2, 300)
    block.forward(x, state)
    block.step(x[:, 0], state)
    block.forward(x, lengths=[3, 200])
    block.forward(x[:, :9], return_attention=True, return_hidden=True)
    with block.decode_session(state) as session:
        session.step(x[:, 0])
        session.forward(x[:, :2])
print(len(recorder.buffer))
"""


@pytest.mark.long
def test_nothing_compiles_after_warmup():
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_COMPILES_AFTERWARDS],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("target", [make_block, 3, "float64", None])
def test_warmup_refuses_what_has_no_format(target):
    with pytest.raises((TypeError, ValueError), match="warmup: target"):
        mojolearn.warmup(target)


def test_show_versions_names_what_a_report_needs():
    out = io.StringIO()
    mojolearn.show_versions(out)
    for word in (
        mojolearn.__version__,
        mojolearn.NUMERICS_VERSION,
        "numba",
        "numpy",
        "threads",
        "compile cache",
    ):
        assert word in out.getvalue()
