"""Compiling ahead of time, and saying what runs here."""

import platform
import sys

import llvmlite
import numba
import numpy as np

from mojolearn import _jit, threads
from mojolearn._version import NUMERICS_VERSION, __version__
from mojolearn.block import TransformerBlock
from mojolearn.kernels.softcap import softcap_parallel, softcap_serial
from mojolearn.log_softmax import log_softmax
from mojolearn.options import WEIGHT_FORMATS, BlockOptions
from mojolearn.scalars import admit_choice
from mojolearn.weights import narrow


def warmup(target="float32"):
    """Compile every kernel that a block or model needs, or load it from the compile cache.

    In a new installation that takes some ten to twenty seconds; without it, the first calls take that time.

    Parameters
    ----------
    target : {"float32", "bfloat16", "float16"}, TransformerBlock or CausalLM
        What will be used: a storage format of weights, or something that has one.

    Raises
    ------
    TypeError, ValueError
        For anything else.

    Examples
    --------
    >>> warmup()
    """
    weight_format = getattr(target, "weight_format", target)
    admit_choice(weight_format, "target", "warmup", WEIGHT_FORMATS)
    # A factor takes the addition to the residual through a kernel of its own.
    options = {"n_heads": 1, "weight_format": weight_format, "residual_multiplier": 0.5}
    shapes = BlockOptions(d_model=2, intermediate_size=2, **options).weight_shapes()
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    weights = {name: narrow(w, weight_format) if w.ndim == 2 else w for name, w in weights.items()}
    block = TransformerBlock(weights, **options)
    state = block.allocate_state(1, 4)
    x = np.ones((1, 2, 2), np.float32)
    with threads.both_twins():
        threads.run(softcap_serial, softcap_parallel, 1, 0, np.zeros(_jit.LANES, np.float32), np.float32(1))
        block.forward(x, state, return_attention=True)
        block.step(x[:, 0], state)
        with block.decode_session(state) as session:
            session.step(x[:, 0])
        block.decode_session(state).discard()
        log_softmax(x[0], "warmup")


def versions():
    """Collect what a bug report needs.

    Returns
    -------
    dict of str to str
        Versions, processor, threads and the place of the compile cache.
    """
    return {
        "mojolearn": f"{__version__} (numerics {NUMERICS_VERSION})",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "numba": f"{numba.__version__} (llvmlite {llvmlite.__version__})",
        "numpy": np.__version__,
        "processor": f"{_jit.CPU_NAME}, {_jit.LANES} lanes of float32",
        "threads": f"{threads.get_num_threads()} of {threads.NUM_THREADS}",
        "compile cache": str(_jit.CACHE_FOLDER or "off"),
    }


def show_versions(file=None):
    """Print what a bug report needs: versions, processor, threads and the place of the compile cache.

    Parameters
    ----------
    file : text file, optional
        Where to print (default: standard output).

    Examples
    --------
    ``mojolearn.show_versions()``
    """
    out = sys.stdout if file is None else file
    for name, value in versions().items():
        out.write(f"{name:14}{value}\n")
