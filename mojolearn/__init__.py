"""Transformer blocks on the CPU with one result: Numba kernels over flat float32 buffers."""

import importlib
import importlib.util
from typing import TYPE_CHECKING

from mojolearn._version import NUMERICS_VERSION, __version__

if TYPE_CHECKING:
    from mojolearn.block import TransformerBlock
    from mojolearn.machine import show_versions, warmup
    from mojolearn.models.causal_lm import CausalLM
    from mojolearn.models.tokenizer import Tokenizer
    from mojolearn.session import TransformerDecodeSession
    from mojolearn.state import TransformerState
    from mojolearn.threads import get_num_threads, set_num_threads

__all__ = [
    "NUMERICS_VERSION",
    "CausalLM",
    "Tokenizer",
    "TransformerBlock",
    "TransformerDecodeSession",
    "TransformerState",
    "__version__",
    "get_num_threads",
    "set_num_threads",
    "show_versions",
    "warmup",
]

# Where each name is found once it is asked for: Numba takes half a second, which `mojolearn --help` need not wait for.
_PLACES = {
    "CausalLM": "models.causal_lm",
    "Tokenizer": "models.tokenizer",
    "TransformerBlock": "block",
    "TransformerDecodeSession": "session",
    "TransformerState": "state",
    "get_num_threads": "threads",
    "set_num_threads": "threads",
    "show_versions": "machine",
    "warmup": "machine",
}


def __getattr__(name):
    if name in _PLACES:
        value = getattr(importlib.import_module(f"mojolearn.{_PLACES[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"mojolearn.{name}"):
        value = importlib.import_module(f"mojolearn.{name}")
    else:
        raise AttributeError(f"module 'mojolearn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_PLACES})
