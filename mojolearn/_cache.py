"""Compiled kernels on disk, such that no state of the disk can break a call.

Numba's own cache trusts what it finds: a file cut short, a full disk or a folder that cannot be written end in a
traceback. Here whatever goes wrong while reading means "not there" and while writing "not kept": the kernel is
compiled, and one warning says why. Stored code carries a checksum, so that damaged code is never run. A folder that
can be read but not written still serves.
"""

import hashlib
import pickle
import warnings
from pathlib import Path

from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.serialize import dumps

_warned = False


def _warn(folder, problem):
    global _warned
    if not _warned:
        _warned = True
        warnings.warn_explicit(
            f"the compile cache in {folder} cannot be used ({problem}), so kernels are compiled anew; NUMBA_CACHE_DIR "
            "moves it, MOJOLEARN_CACHE=0 switches it off",
            RuntimeWarning,
            filename="mojolearn",
            lineno=0,
        )


class _Locator(_CacheLocator):
    """The folder, whose name already tells sources and processor apart: no time stamps of files are needed."""

    folder = Path()  # set in `kept`

    def __init__(self, line):
        self._line = line

    def ensure_cache_path(self):
        self.folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self):
        return str(self.folder)

    def get_source_stamp(self):
        return self.folder.name

    def get_disambiguator(self):
        return str(self._line)

    @classmethod
    def from_function(cls, py_func, py_file):
        return cls(py_func.__code__.co_firstlineno)


class _Implementation(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (Numba's name)


class _Cache(FunctionCache):
    """Numba's cache of one kernel, with a checksum, and with every failure turned into a warning."""

    _impl_class = _Implementation

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever is in those files
            _warn(self.cache_path, f"{type(error).__name__}: {error}")
            self._forget()
            return None

    def save_overload(self, sig, data):
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _warn(self.cache_path, f"{type(error).__name__}: {error}")

    def _load_overload(self, sig, target_context):
        stored = self._cache_file.load(self._index_key(sig, target_context.codegen()))
        if stored is None:
            return None
        digest, code = stored
        if hashlib.sha256(code).digest() != digest:
            raise ValueError("a file is damaged")
        return self._impl.rebuild(target_context, pickle.loads(code))

    def _save_overload(self, sig, data):
        if self._impl.check_cachable(data):
            self._impl.locator.ensure_cache_path()
            code = dumps(self._impl.reduce(data))
            stored = (hashlib.sha256(code).digest(), code)
            self._cache_file.save(self._index_key(sig, data.codegen), stored)

    def _forget(self):
        """Remove the index of this kernel, so that it is written anew."""
        try:
            Path(self._cache_file._index_path).unlink(missing_ok=True)
        except OSError:
            pass  # the next save will say so


def kept(dispatcher, folder):
    """Let a kernel be kept in the folder, and return it."""
    _Locator.folder = folder
    dispatcher._cache = _Cache(dispatcher.py_func)
    return dispatcher
