"""Compiling ahead of time, and saying what runs here."""

import platform
import sys

import llvmlite
import numba
import numpy as np

from mojolearn import _jit, threads
from mojolearn._version import NUMERICS_VERSION, __version__
from mojolearn.block import TransformerBlock
from mojolearn.options import WEIGHT_FORMATS, BlockOptions
from mojolearn.scalars import admit_choice
from mojolearn.weights import narrow


def warmup(weight_format="float32"):
    """Compile every kernel that blocks and models need, or load it from the compile cache.

    The first call in a new installation takes some ten to twenty seconds; without it, the first ``forward`` and
    ``step`` take that time.

    Parameters
    ----------
    weight_format : {"float32", "bfloat16", "float16"}
        Storage format of the weights that will be used.

    Raises
    ------
    TypeError, ValueError
        For an unknown format.

    Examples
    --------
    >>> warmup()
    """
    admit_choice(weight_format, "weight_format", "warmup", WEIGHT_FORMATS)
    options = {"n_heads": 1, "weight_format": weight_format}
    shapes = BlockOptions(d_model=2, intermediate_size=2, **options).weight_shapes()
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    weights = {name: narrow(w, weight_format) if w.ndim == 2 else w for name, w in weights.items()}
    block = TransformerBlock(weights, **options)
    with threads.both_twins():
        block.forward(np.ones((1, 2, 2), np.float32), block.allocate_state(1, 2))


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
    rows = {
        "mojolearn": f"{__version__} (numerics {NUMERICS_VERSION})",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "numba": f"{numba.__version__} (llvmlite {llvmlite.__version__})",
        "numpy": np.__version__,
        "processor": f"{_jit.CPU_NAME}, {_jit.LANES} lanes of float32",
        "threads": f"{numba.get_num_threads()} of {numba.config.NUMBA_NUM_THREADS}",
        "compile cache": str(_jit.CACHE_FOLDER or "off"),
    }
    out = sys.stdout if file is None else file
    for name, value in rows.items():
        out.write(f"{name:14}{value}\n")
