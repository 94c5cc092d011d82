"""What a row of the table of families is made of, and the names of activations.

The value of an option is a constant, or what ``config.json`` says: a `Switch`, a `Number`, an `InverseRoot`.
"""

from types import MappingProxyType
from typing import NamedTuple

from mojolearn.models import layouts

SILU = ("silu", "swish")
GELU = ("gelu", "gelu_python")
GELU_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate")
GATED = {
    **dict.fromkeys(SILU, "swiglu"),
    **dict.fromkeys(GELU, "geglu"),
    **dict.fromkeys(GELU_TANH, "geglu_tanh"),
    "relu": "reglu",
    "relu2": "relu2glu",
}
PLAIN = {
    **dict.fromkeys(SILU, "silu"),
    **dict.fromkeys(GELU, "gelu"),
    **dict.fromkeys(GELU_TANH, "gelu_tanh"),
    "relu": "relu",
    "relu2": "relu2",
}
LEGACY_GEMMA = GATED | {"gelu": "geglu_tanh"}  # as its first files were written, but not meant

NOTHING = MappingProxyType({})


class Switch(NamedTuple):
    """A field that is true or false, and the value of the option in either case."""

    field: str
    default: bool = False
    on: object = True
    off: object = False


class Number(NamedTuple):
    """A field that holds a number above zero; ``off``: null means that there is none."""

    field: str
    default: float | None
    off: bool = False


class InverseRoot(NamedTuple):
    """One over the square root of a field."""

    field: str
    default: float


class Rotary(NamedTuple):
    """How positions turn queries and keys.

    ``partial`` is the default of ``partial_rotary_factor``, None where only whole heads are turned; ``width``
    names the field that counts the turned columns instead. ``types`` maps the types of scaling that are
    allowed to ours, None allows all; ``original`` is the default of ``original_max_position_embeddings``, None
    takes that of the scaling. ``local_theta`` marks families that turn the two kinds of layers in their
    own ways: its first entry names the older field of the base of layers with a window, which defaults to the
    second. ``layers``: ``"all"``, those with a ``"window"``, those with a ``"window or none has one"``, or as
    ``"listed"`` in ``no_rope_layers``.
    """

    interleaved: bool = False
    partial: float | None = None
    width: str | None = None
    types: dict | None = None
    original: int | None = None
    local_theta: tuple | None = None
    layers: str = "all"


class Windows(NamedTuple):
    """Which layers have the sliding window, where ``layer_types`` does not list them.

    ``"none"``; ``"all"`` (and no list may say otherwise); ``"listed"`` (all); ``"late"`` (from layer
    ``max_window_layers`` on); ``"unturned"`` (layers without rotation); ``"pattern"``: all but every n-th, ``every``
    is n, or what the field ``pattern`` says. ``switch``: the window is only there while ``use_sliding_window`` is
    true; ``optional``: a file may do without, by null.
    """

    rule: str = "none"
    every: int = 0
    pattern: str | None = None
    switch: bool = False
    optional: bool = False


class Family(NamedTuple):
    """How one ``model_type`` is computed, as far as it differs from llama.

    ``options`` are those of ``TransformerBlock``, ``model`` those of ``ModelConfig``. ``eps`` names the field
    of the epsilon of all norms. ``activations`` maps names of activations to ``mlp``; ``act`` names the field.
    ``spellings`` gives fields their names in this family. ``only`` maps fields that are not honoured to the values
    that change nothing, ``echoes`` those that repeat another field, ``ignored`` those that the reference never reads.
    ``head_dim``, ``kv_heads``: whether these may differ from d_model / heads and from the number of heads.
    ``text_type``: the ``model_type`` of the ``text_config`` that holds the language model.
    """

    architecture: str
    layout: layouts.Layout = layouts.LLAMA
    options: dict = NOTHING
    model: dict = NOTHING
    norm: str = "rmsnorm"
    norm_bias: bool = False
    eps: str | None = "rms_norm_eps"
    plain_norms: object = False
    act: str = "hidden_act"
    activations: dict = GATED
    rotary: Rotary | None = Rotary()
    windows: Windows = Windows()
    head_dim: bool = True
    kv_heads: bool = True
    text_type: str | None = None
    spellings: dict = NOTHING
    only: dict = NOTHING
    echoes: dict = NOTHING
    ignored: tuple = ()
