"""Transformer blocks on the CPU with one result: Numba kernels over flat float32 buffers."""

from mojolearn._version import NUMERICS_VERSION, __version__
from mojolearn.block import TransformerBlock
from mojolearn.machine import show_versions, warmup
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.session import TransformerDecodeSession
from mojolearn.state import TransformerState

__all__ = [
    "NUMERICS_VERSION",
    "CausalLM",
    "Tokenizer",
    "TransformerBlock",
    "TransformerDecodeSession",
    "TransformerState",
    "__version__",
    "show_versions",
    "warmup",
]
