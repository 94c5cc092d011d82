"""The options of a block: every rule is checked once, here, and answered with a sentence.

A message names the option, the value given and what is allowed. It starts with "TransformerBlock", the public
name under which users meet these options.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from mojolearn.rope import admit_rope_scaling
from mojolearn.scalars import admit_choice, admit_integer, admit_positive, admit_switch, did_you_mean

OWNER = "TransformerBlock"
MOST_POSITIONS = 2**24  # float32 holds every integer up to here
NORMS = ("rmsnorm", "layernorm", "rmsnorm_offset")
WEIGHT_FORMATS = ("float32", "bfloat16", "float16")
GATED_MLPS = {"swiglu": "silu", "geglu": "gelu_erf", "geglu_tanh": "gelu_tanh"}
PLAIN_MLPS = {"gelu": "gelu_erf", "gelu_tanh": "gelu_tanh"}
ACTIVATIONS = GATED_MLPS | PLAIN_MLPS

# Every weight of a block in the order of the computation: its name, the sizes of its shape, and the switches
# that must all be on for it to be there ("gated" follows from mlp, the others are options).
TENSORS = (
    ("input_layernorm.weight", ("d_model",), ()),
    ("input_layernorm.bias", ("d_model",), ("norm_bias",)),
    ("q_proj.weight", ("n_heads*head_dim", "d_model"), ()),
    ("q_proj.bias", ("n_heads*head_dim",), ("qkv_bias",)),
    ("k_proj.weight", ("n_kv_heads*head_dim", "d_model"), ()),
    ("k_proj.bias", ("n_kv_heads*head_dim",), ("qkv_bias",)),
    ("v_proj.weight", ("n_kv_heads*head_dim", "d_model"), ()),
    ("v_proj.bias", ("n_kv_heads*head_dim",), ("qkv_bias",)),
    ("q_norm.weight", ("head_dim",), ("qk_norm",)),
    ("k_norm.weight", ("head_dim",), ("qk_norm",)),
    ("o_proj.weight", ("d_model", "n_heads*head_dim"), ()),
    ("o_proj.bias", ("d_model",), ("o_bias",)),
    ("post_attention_layernorm.weight", ("d_model",), ()),
    ("post_attention_layernorm.bias", ("d_model",), ("norm_bias",)),
    ("gate_proj.weight", ("intermediate_size", "d_model"), ("gated",)),
    ("gate_proj.bias", ("intermediate_size",), ("gated", "mlp_bias")),
    ("up_proj.weight", ("intermediate_size", "d_model"), ()),
    ("up_proj.bias", ("intermediate_size",), ("mlp_bias",)),
    ("down_proj.weight", ("d_model", "intermediate_size"), ()),
    ("down_proj.bias", ("d_model",), ("mlp_bias",)),
)

# Where the sizes come from, for messages.
ORIGINS = {
    "d_model": "d_model={o.d_model} is the length of input_layernorm.weight",
    "intermediate_size": "intermediate_size={o.intermediate_size} is the number of rows of up_proj.weight",
    "n_heads*head_dim": "n_heads={o.n_heads}, head_dim={o.head_dim}",
    "n_kv_heads*head_dim": "n_kv_heads={o.n_kv_heads}, head_dim={o.head_dim}",
    "head_dim": "head_dim={o.head_dim}",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockOptions:
    """The checked options of one block; whatever exists has passed every rule (docs numerics, section 1).

    Parameters
    ----------
    d_model, intermediate_size : int
        Width of the block and of its MLP; `mojolearn.weights.infer_sizes` reads them from the weights.
    n_heads, n_kv_heads, head_dim : int
        ``n_heads`` must be a multiple of ``n_kv_heads`` (None: equal to it); ``head_dim`` must be even (None:
        ``d_model / n_heads``).
    window : int, default 0
        0 lets every position see all earlier ones; W > 0 only itself and the W - 1 before it.
    rope_theta : float, default 10000.0
        Base of the rotation frequencies.
    rope_dim : int, optional
        How many columns of a head are rotated: even, at most ``head_dim`` (None: all).
    rope_scaling : dict, optional
        ``{"type": "linear", "factor": ...}`` or ``{"type": "llama3", "factor": ..., "low_freq_factor": ...,
        "high_freq_factor": ..., "original_max_position_embeddings": ...}``; "rope_type" may stand for "type".
    max_positions : int, optional
        Positions must stay below it; at most 2**24.
    qkv_bias, o_bias, norm_bias, mlp_bias : bool, default False
        Which parts add a bias; ``norm_bias`` goes with ``norm="layernorm"`` only.
    norm : {"rmsnorm", "layernorm", "rmsnorm_offset"}
        The last scales by 1 + weight.
    norm_eps : float, default 1e-6
        Added to the mean square before the root.
    mlp : {"swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh"}
        The first three have a gate.
    qk_norm : bool, default False
        Normalise each head of q and k, before the rotation.
    attn_softcap, attn_scale : float, optional
        Ceiling of the scores; factor of the scores (None: 1 / sqrt(head_dim)).
    weight_format : {"float32", "bfloat16", "float16"}
        How the matrices are stored. The arithmetic is float32 in every case.

    Raises
    ------
    TypeError
        For a value of the wrong kind (integers are never taken from bool, float or str).
    ValueError
        For a value outside the allowed ones, or options that cannot go together.

    Notes
    -----
    Float options keep the value given; the arithmetic uses it rounded once to float32. The options that may
    be None are resolved, except ``rope_scaling``, ``max_positions``, ``attn_softcap`` and ``attn_scale``.

    Examples
    --------
    >>> options = BlockOptions(d_model=20, intermediate_size=64, n_heads=4, n_kv_heads=2, head_dim=8)
    >>> options.group, options.q_width, options.rope_dim
    (2, 32, 8)
    >>> options.weight_shapes()["k_proj.weight"]
    (16, 20)
    """

    d_model: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int | None = None
    head_dim: int | None = None
    window: int = 0
    rope_theta: float = 10000.0
    rope_dim: int | None = None
    rope_scaling: dict | None = field(default=None, hash=False)
    max_positions: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    norm: str = "rmsnorm"
    norm_eps: float = 1e-6
    norm_bias: bool = False
    mlp: str = "swiglu"
    mlp_bias: bool = False
    qk_norm: bool = False
    attn_softcap: float | None = None
    attn_scale: float | None = None
    weight_format: str = "float32"

    @classmethod
    def checked(cls, **options):
        """Build from keywords that may be misspelt: ``TypeError`` for unknown or missing ones, in a sentence.

        Parameters
        ----------
        **options
            The parameters of the class.

        Returns
        -------
        BlockOptions
            The checked options.
        """
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(
                    f"{OWNER}: unknown option {name!r}{did_you_mean(name, names)}; the options are "
                    + ", ".join(names[2:])
                )
        for name in names[:3]:
            if name not in options:
                raise TypeError(f"{OWNER}: the option {name} must be given")
        return cls(**options)

    def __post_init__(self):
        def check(name, admit, *limits, optional=False):
            if not (optional and getattr(self, name) is None):
                store(name, admit(getattr(self, name), name, OWNER, *limits))

        def store(name, value):
            object.__setattr__(self, name, value)  # the only writes to a frozen instance

        for name in ("d_model", "intermediate_size", "n_heads"):
            check(name, admit_integer, 1)
        for name in ("n_kv_heads", "head_dim", "rope_dim"):
            check(name, admit_integer, 1, optional=True)
        check("window", admit_integer, 0)
        check("max_positions", admit_integer, 1, MOST_POSITIONS, optional=True)
        for name in ("rope_theta", "norm_eps"):
            check(name, admit_positive)
        for name in ("attn_softcap", "attn_scale"):
            check(name, admit_positive, optional=True)
        for name in ("qkv_bias", "o_bias", "norm_bias", "mlp_bias", "qk_norm"):
            check(name, admit_switch)
        for name, choices in (
            ("norm", NORMS),
            ("mlp", tuple(ACTIVATIONS)),
            ("weight_format", WEIGHT_FORMATS),
        ):
            check(name, admit_choice, choices)
        check("rope_scaling", admit_rope_scaling)

        if self.n_kv_heads is None:
            store("n_kv_heads", self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{OWNER}: n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}"
            )
        derived = ""
        if self.head_dim is None:
            if self.d_model % self.n_heads:
                raise ValueError(
                    f"{OWNER}: d_model={self.d_model} is not divisible by n_heads={self.n_heads}, so the "
                    "width of a head does not follow from them; give head_dim"
                )
            derived = f" (d_model / n_heads = {self.d_model} / {self.n_heads}; give head_dim to change it)"
            store("head_dim", self.d_model // self.n_heads)
        if self.head_dim % 2:
            raise ValueError(f"{OWNER}: head_dim must be even, not {self.head_dim}{derived}")
        if self.rope_dim is None:
            store("rope_dim", self.head_dim)
        if self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise ValueError(
                f"{OWNER}: rope_dim must be even and at most head_dim={self.head_dim}, not {self.rope_dim}"
            )
        if self.norm_bias and self.norm != "layernorm":
            raise ValueError(
                f"{OWNER}: norm_bias=True goes with norm='layernorm' only, not with norm={self.norm!r}"
            )

    @property
    def gated(self):
        """Whether the MLP multiplies its activation with ``up_proj``."""
        return self.mlp in GATED_MLPS

    @property
    def activation(self):
        """Activation of the MLP: "silu", "gelu_erf" or "gelu_tanh"."""
        return ACTIVATIONS[self.mlp]

    @property
    def group(self):
        """How many query heads share one key-value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def q_width(self):
        """Width of q, ``n_heads * head_dim``."""
        return self.n_heads * self.head_dim

    @property
    def kv_width(self):
        """Width of k and of v, ``n_kv_heads * head_dim``."""
        return self.n_kv_heads * self.head_dim

    @property
    def scale(self):
        """Factor of the attention scores as float32 (docs numerics, section 5)."""
        if self.attn_scale is not None:
            return np.float32(self.attn_scale)
        return np.float32(1) / np.sqrt(np.float32(self.head_dim))

    def as_dict(self):
        """Collect the options as keyword arguments of ``TransformerBlock``.

        Returns
        -------
        dict
            All but ``d_model`` and ``intermediate_size``, which the weights tell. A copy, free to change.
        """
        options = {f.name: getattr(self, f.name) for f in fields(self)[2:]}
        if self.rope_scaling is not None:
            options["rope_scaling"] = dict(self.rope_scaling)
        return options

    def weight_shapes(self):
        """Name and shape of every weight these options require, in the order of the computation.

        Returns
        -------
        dict of str to tuple of int
            Matrices in torch layout, ``(out, in)``. The names come without the prefixes of a whole model: a
            checkpoint's ``model.layers.0.self_attn.q_proj.weight`` is ``q_proj.weight`` here.
        """
        return {
            name: tuple(self._size(size) for size in sizes)
            for name, sizes, switches in TENSORS
            if all(getattr(self, switch) for switch in switches)
        }

    def explain_shape(self, name):
        """Say which shape the weight `name` must have, and where its sizes come from.

        Parameters
        ----------
        name : str
            One of `weight_shapes`.

        Returns
        -------
        str
            For example "(n_heads*head_dim, d_model) = (32, 20), where n_heads=4, head_dim=8 and ...".
        """
        sizes = next(sizes for tensor, sizes, _ in TENSORS if tensor == name)
        comma = "," if len(sizes) == 1 else ""
        shape = tuple(self._size(size) for size in sizes)
        origins = [ORIGINS[size].format(o=self) for size in sizes]
        return f"({', '.join(sizes)}{comma}) = {shape}, where {' and '.join(origins)}"

    def why_not(self, name):
        """Say which option keeps the weight `name` out, for example "qkv_bias=False".

        Parameters
        ----------
        name : str
            Name of a tensor.

        Returns
        -------
        str or None
            None for names that these options require and for names that no block has.
        """
        for tensor, _, switches in TENSORS:
            off = [switch for switch in switches if not getattr(self, switch)]
            if tensor == name and off:
                return f"mlp={self.mlp!r}, which has no gate" if off[0] == "gated" else f"{off[0]}=False"
        return None

    def _size(self, name):
        factors = [getattr(self, factor) for factor in name.split("*")]
        return factors[0] if len(factors) == 1 else factors[0] * factors[1]
