"""What the compiler made of the kernels: no float64, which a stray literal or scalar would bring in, and no licence
to reorder, merge or approximate."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FLOAT64 = re.compile(r"= f(?:add|sub|mul|div|neg) [^\n]*double|@llvm\.\w+\.f64")
# Of the system, or of Intel's SVML, which Numba takes where it is installed.
LIBRARY = re.compile(r"@(?:llvm\.)?(?:pow|exp2?|log\d*|sin|cos|tanh?|erf)f?\b|svml", re.IGNORECASE)
LICENCE = re.compile(
    r"= f(?:add|sub|mul|div|neg|cmp) (?:fast|reassoc|contract|arcp|afn|nsz|nnan|ninf)\b|@llvm\.fmuladd"
)

# The angles of far positions are computed in float64 on purpose (docs/numerics.md, section 4).
MEANT = {"cos_sin_large", "cos_sin_of_position", "arrange_share", "arrange_serial", "arrange_parallel"}


@pytest.mark.long
def test_compiled_code():
    """Compiled anew in a process of its own, since stored kernels come without their intermediate code."""
    environment = os.environ | {
        "MOJOLEARN_CACHE": "0",
        "NUMBA_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    }
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def main():
    import numpy as np
    from numba.core.dispatcher import Dispatcher
    from support import make_block, random_options, uniform

    from mojolearn import threads
    from mojolearn.log_softmax import log_softmax

    for threads.SMALL in (0, 2**60):  # parallel twins, serial twins
        for seed in range(8):
            options = random_options(np.random.default_rng(seed))
            block = make_block(**options)
            x = uniform(np.random.default_rng(seed), (1, 5, block.d_model))
            block.forward(x, block.allocate_state(1, 8), return_attention=True)
    with threads.both_twins():
        log_softmax(uniform(np.random.default_rng(0), (3, 50)), "main")

    modules = [m for name, m in sys.modules.items() if name.startswith("mojolearn.kernels")]
    kernels = {id(k): k for m in modules for k in vars(m).values() if isinstance(k, Dispatcher)}
    compiled = {k.py_func.__name__: "".join(k.inspect_llvm().values()) for k in kernels.values()}
    assert compiled["linear_serial"]
    assert compiled["linear_parallel"]
    assert compiled["weights_serial"]
    assert compiled["weights_parallel"]
    assert compiled["exp_sums_serial"]
    assert compiled["exp_sums_parallel"]
    assert FLOAT64.search(compiled["cos_sin_large"])
    found = [name for name in compiled if name not in MEANT and FLOAT64.search(compiled[name])]
    assert not found, f"float64 arithmetic in {found}"
    found = [name for name in compiled if LIBRARY.search(compiled[name])]
    assert not found, f"calls of a math library in {found}"
    found = [name for name in compiled if LICENCE.search(compiled[name])]
    assert not found, f"inexact arithmetic allowed in {found}"


if __name__ == "__main__":
    main()
