"""How kernels are compiled: one policy, one place for the compiled code.

Compiled kernels are kept on disk. Numba looks only at the file that defines a kernel when it decides whether
stored code is still good; an edit in a helper of another file would be missed. So the folder's name carries
everything the code depends on: the version of mojolearn, a hash of all kernel sources, the version of Numba
and the processor. ``NUMBA_CACHE_DIR`` moves the folder, ``MOJOLEARN_CACHE=0`` switches it off.
"""

import hashlib
import os
from importlib import resources
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types
from numba.core import config
from numba.extending import overload

from mojolearn._cache import kept
from mojolearn._pieces import KernelCompiler, PieceCompiler
from mojolearn._version import __version__


def _target_features():
    """Name and feature string of the processor that Numba compiles for."""
    name = config.CPU_NAME or llvm.get_host_cpu_name()
    if config.CPU_FEATURES is not None:
        return name, config.CPU_FEATURES
    return name, llvm.get_host_cpu_features().flatten()


CPU_NAME, CPU_FEATURES = _target_features()
IS_X86 = llvm.get_process_triple().startswith(("x86", "i686", "amd64"))

# Lanes of one vector register. 16 gives the same bits as 8 and measured 1.9 times the speed of the matrix
# product where AVX-512 exists.
LANES = 16 if "+avx512f" in CPU_FEATURES.split(",") else 8

# Does the target widen float16 by an instruction? (64-bit Arm always does.)
HAS_F16C = not IS_X86 or "+f16c" in CPU_FEATURES.split(",")


def source_hash():
    """A short hash over the files that compiled code depends on; None where none of them can be read.

    They need not lie in a folder: the package may be imported from an archive, or hold bytecode without sources.
    """
    package = resources.files("mojolearn")
    policy = [file for file in package.iterdir() if Path(file.name).stem in ("_jit", "_pieces", "_cache")]
    kernels = package / "kernels"
    files = [*policy, *(kernels.iterdir() if kernels.is_dir() else ())]
    files = [file for file in files if file.name.endswith((".py", ".pyc"))]
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12] if files else None


def cache_folder():
    """The folder for this version, these sources, this Numba and this processor; None = nothing is kept."""
    sources = None if os.environ.get("MOJOLEARN_CACHE", "1") == "0" else source_hash()
    if sources is None:
        return None
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # no HOME and no entry in the password file
        return None
    target = hashlib.sha256(f"{CPU_NAME} {CPU_FEATURES}".encode()).hexdigest()[:8]
    name = f"{__version__}-{sources}-numba{numba.__version__}-{CPU_NAME}-{target}"
    return base / "mojolearn" / name


CACHE_FOLDER = cache_folder()


def kernel(function=None, *, parallel=False):
    """Compile an entry point called from Python: cached on disk, without the GIL, IEEE division.

    Always one function per variant: two decorations of one function would share a cache entry.
    """
    if function is None:
        return lambda f: kernel(f, parallel=parallel)
    dispatcher = numba.njit(
        function, nogil=True, error_model="numpy", parallel=parallel, pipeline_class=KernelCompiler
    )
    return dispatcher if CACHE_FOLDER is None or config.DISABLE_JIT else kept(dispatcher, CACHE_FOLDER)


PIECE = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": PieceCompiler,
}


def helper(function):
    """Compile a piece that is called from kernels only, and always becomes part of them."""
    return numba.njit(function, forceinline=True, **PIECE)


def part(function):
    """Compile a larger piece that kernels call: LLVM decides whether to copy it into them."""
    return numba.njit(function, **PIECE)


def either(without, given):
    """One function for kernels to call: ``f(None, ...)`` is without(...), and ``f(x, ...)`` is given(x, ...).

    The type of the first argument decides, so that a kernel is compiled with one of the two only.
    """

    def call(first, *arguments):
        return without(*arguments) if first is None else given(first, *arguments)

    @overload(call, jit_options=PIECE)
    def choose(first, *arguments):
        if isinstance(first, types.NoneType):
            return lambda first, *arguments: without(*arguments)
        return lambda first, *arguments: given(first, *arguments)

    return call


def twins(serial, parallel):
    """One function for kernels to call: with n_workers the parallel twin, with None instead the serial one."""

    @part
    def alone(*arguments):
        return serial(np.int64(1), *arguments)

    return either(alone, parallel)


def plain(function):
    """The Python function behind a compiled one, for the odd call outside kernels that is not worth compiling."""
    return getattr(function, "py_func", function)


def cache_is_cold():
    """True when no compiled kernel is stored for this version and processor."""
    return CACHE_FOLDER is None or next(CACHE_FOLDER.glob("*.nbi"), None) is None
