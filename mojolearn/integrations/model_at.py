"""A model by its place, loaded once in each process."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from mojolearn.models.causal_lm import CausalLM
from mojolearn.scalars import admit_choice, admit_integer, kind
from mojolearn.threads import admit_threads
from mojolearn.weights import STORAGE


@dataclass(frozen=True)
class ModelAt:
    """A model by its place: small to send to other processes, each of which loads it once.

    Parameters
    ----------
    path : str or path
        A folder or GGUF file that every process finds under this name. A relative one is taken from the current folder.
    weight_format, max_positions
        As for `CausalLM.load`.
    threads : int or None, default 1
        Threads of each call. One, as a process for each core is the faster way to share a machine.
    fingerprint : str, optional
        What ``lm.fingerprint`` must be: a machine that has another model under this name is refused.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit. What the files hold is judged where they are loaded.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> model = ModelAt(BUILT_IN)
    >>> model.load() is model.load()
    True
    """

    path: str
    weight_format: str | None = None
    max_positions: int | None = None
    threads: int | None = 1
    fingerprint: str | None = None

    def __post_init__(self):
        if not isinstance(self.path, (str, os.PathLike)):
            raise TypeError(f"ModelAt: path must be a str or path, not {kind(self.path)}")
        if self.weight_format is not None:
            admit_choice(self.weight_format, "weight_format", "ModelAt", tuple(STORAGE))
        if self.max_positions is not None:
            admit_integer(self.max_positions, "max_positions", "ModelAt", 1)
        if self.threads is not None:
            admit_integer(self.threads, "threads", "ModelAt", 1)
        if self.fingerprint is not None and not isinstance(self.fingerprint, str):
            raise TypeError(f"ModelAt: fingerprint must be a str, not {kind(self.fingerprint)}")
        object.__setattr__(self, "path", str(Path(self.path).absolute()))

    def load(self):
        """Load the model, or return the one that this process has loaded already; a file that changed is read again.

        Returns
        -------
        CausalLM
            The same for all Python threads of the process.

        Raises
        ------
        FileNotFoundError, ImportError, ValueError
            As `CausalLM.load`, and for another fingerprint.
        """
        key = self.path, self.weight_format, self.max_positions, self.threads
        with _lock:
            stamp = _stamp(self.path)
            known, lm = _models.get(key, (None, None))
            if lm is None or known != stamp:
                _models.pop(key, None)  # not twice in memory
                admit_threads(self.threads, "threads", "ModelAt.load")
                lm = CausalLM.load(self.path, weight_format=self.weight_format, max_positions=self.max_positions,
                                   threads=self.threads)  # fmt: skip
                _models[key] = stamp, lm
            if self.fingerprint not in (None, lm.fingerprint):
                raise ValueError(
                    f"ModelAt.load: {self.path} must have the fingerprint {self.fingerprint}, but here it has "
                    f"{lm.fingerprint}; it is another model"
                )
            return lm


_models = {}  # arguments of a load -> how the files were, and the model
_lock = threading.Lock()


def _new_lock():
    """For a forked child: the thread that held the lock is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def forget_models():
    """Let go of all models that `ModelAt.load` keeps in this process."""
    with _lock:
        _models.clear()


def _stamp(path):
    """What changes when the files of a model do."""
    try:
        entries = list(os.scandir(path)) if os.path.isdir(path) else [Path(path)]
        found = [(entry.name, entry.stat()) for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return None  # loading says what is wrong
    return sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def admit_model(model, caller):
    """Return a `CausalLM` as it is, and a path or `ModelAt` as a `ModelAt`; others are refused."""
    if isinstance(model, (CausalLM, ModelAt)):
        return model
    if isinstance(model, (str, os.PathLike)):
        return ModelAt(model)
    raise TypeError(f"{caller}: model must be a path, a ModelAt or a CausalLM, not {kind(model)}")
