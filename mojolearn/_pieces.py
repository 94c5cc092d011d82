"""The pieces of a kernel are compiled once: inside the kernel.

A kernel is made of many small functions. Numba optimises each of them on its own, makes machine code of it, and then
optimises it again inside every function that calls it, level by level. Here a piece stays as it was written until a
kernel that holds it is finished, so that all of it is optimised once: measured, the kernels of a first token compile in
half the time, and run as fast.
"""

import contextlib
import functools
import os

import numba
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering, NativeParforLowering


class PieceLibrary(JITCodeLibrary):
    """Code that is only ever linked into kernels: neither optimised nor made into machine code."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name):
        """What Python would call: a function that refuses every call."""
        return _refusal()

    @property
    def codegen(self):
        return _NoEnvironment()


class _NoEnvironment:
    """Stands for the code generator where Numba would set the environment of machine code that is not there."""

    def set_env(self, name, environment):
        pass


@functools.cache
def _refusal():
    """Address of a compiled function without parameters, under a name that says what is wrong."""

    @numba.njit
    def a_piece_of_a_kernel_cannot_be_called_from_python():
        pass

    a_piece_of_a_kernel_cannot_be_called_from_python.compile(())
    (result,) = a_piece_of_a_kernel_cannot_be_called_from_python.overloads.values()
    return result.library.get_pointer_to_function(result.fndesc.llvm_cpython_wrapper_name)


@contextlib.contextmanager
def _all_in_pieces(codegen):
    """Inside, everything that Numba compiles on the way (the body of a ``prange``, ``min``, slices) is a piece."""
    before, codegen._library_class = codegen._library_class, PieceLibrary
    try:
        yield
    finally:
        codegen._library_class = before


def _lowering(base, library_class):
    """Numba's last step, from typed code to a library, with a library of this class."""

    @register_pass(mutates_CFG=True, analysis_only=False)
    class Lowering(base):
        _name = f"{base._name}_{library_class.__name__}"

        def run_pass(self, state):
            codegen = state.targetctx.codegen()
            _refusal()  # while it still is a function like any other
            state.library = library_class(codegen, state.func_id.func_qualname)
            state.library.enable_object_caching()
            with _all_in_pieces(codegen):
                return super().run_pass(state)

    return Lowering


def reread_environment():
    """Read Numba's variables again, as Numba does whenever it compiles; says what to do where it would refuse."""
    started = config.NUMBA_NUM_THREADS
    try:
        config.reload_config()
    except RuntimeError:
        asked = os.environ.get("NUMBA_NUM_THREADS", "unset")
        raise RuntimeError(
            f"NUMBA_NUM_THREADS was {started} when the threads started and is {asked} now, with which Numba compiles "
            "nothing more; put it back, and use mojolearn.set_num_threads"
        ) from None


def _compiler(library_class):
    """Numba's compiler, with libraries of this class."""
    ours = {base: _lowering(base, library_class) for base in (NativeLowering, NativeParforLowering)}

    class Compiler(CompilerBase):
        def __init__(self, *arguments):
            reread_environment()
            super().__init__(*arguments)

        def define_pipelines(self):
            passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
            passes.passes = [(ours.get(step, step), description) for step, description in passes.passes]
            passes._finalized = False
            passes.finalize()
            return [passes]

    return Compiler


KernelCompiler = _compiler(JITCodeLibrary)
PieceCompiler = _compiler(PieceLibrary)
