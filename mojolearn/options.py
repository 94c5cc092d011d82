"""The options of a block: every rule is checked once, here, and answered with a sentence.

A message names the option, the value given and what is allowed. It starts with "TransformerBlock", the public
name under which users meet these options.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from mojolearn import tensors
from mojolearn.rope_scaling import admit_rope_scaling
from mojolearn.rules import OWNER, check_pairs
from mojolearn.scalars import (
    admit_choice,
    admit_integer,
    admit_positive,
    admit_switch,
    admit_switch_or_choice,
    did_you_mean,
)

MOST_POSITIONS = 2**24  # float32 holds every integer up to here
NORMS = ("rmsnorm", "layernorm", "rmsnorm_offset", "layernorm_offset")
OFFSET_NORMS = ("rmsnorm_offset", "layernorm_offset")
PLACEMENTS = ("pre", "post", "both")
RESIDUALS = ("sequential", "parallel", "parallel_shared")
QK_NORMS = ("full", "layernorm")
WEIGHT_FORMATS = ("float32", "bfloat16", "float16")
GATED_MLPS = {"swiglu": "silu", "geglu": "gelu_erf", "geglu_tanh": "gelu_tanh"}
GATED_MLPS |= {"reglu": "relu", "relu2glu": "relu2"}
PLAIN_MLPS = {"silu": "silu", "gelu": "gelu_erf", "gelu_tanh": "gelu_tanh", "relu": "relu", "relu2": "relu2"}
ACTIVATIONS = GATED_MLPS | PLAIN_MLPS


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
        How many leading columns of a head are rotated: even, at most ``head_dim`` (None: all). 0 rotates nothing, and
        the other options of the rotation then have no effect.
    rope_interleaved : bool, default False
        Rotate the columns 2 i and 2 i + 1 together instead of i and i + ``rope_dim`` / 2.
    rope_scaling : dict, optional
        Slower rotations for long contexts: a "type" and its numbers, see `mojolearn.rope_scaling.admit_rope_scaling`.
    max_positions : int, optional
        Positions must stay below it; at most 2**24.
    qkv_bias, o_bias, norm_bias, mlp_bias : bool, default False
        Which parts add a bias; ``norm_bias`` goes with the two kinds of layer norm only.
    qkv_clip : float, optional
        q, k and v are limited to [-qkv_clip, qkv_clip] after projection and bias.
    norm : {"rmsnorm", "layernorm", "rmsnorm_offset", "layernorm_offset"}
        The last two scale by 1 + weight.
    norm_eps : float, default 1e-6
        Added to the mean square before the root.
    norm_placement : {"pre", "post", "both"}
        Norms at the inputs of attention and MLP, at their outputs before the residual is added, or at both.
    residual : {"sequential", "parallel", "parallel_shared"}
        Whether the MLP follows attention or works beside it, on the block's own input: behind a norm of its own or
        behind the one of attention. The parallel forms go with ``norm_placement="pre"`` only.
    residual_multiplier : float, default 1.0
        Factor of what attention and MLP add to the residual.
    mlp : {"swiglu", "geglu", "geglu_tanh", "reglu", "relu2glu", "silu", "gelu", "gelu_tanh", "relu", "relu2"}
        The first five have a gate; "relu2" is the square of "relu".
    qk_norm : {False, True, "full", "layernorm"}
        Normalise q and k before the rotation: each head by its root mean square (one weight for all heads), the whole
        width by its root mean square, or each head as in LayerNorm (a weight for every head and column).
    qk_norm_bias : bool, default False
        Add a bias after it; with ``qk_norm="layernorm"`` only.
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
    be None are resolved, except ``rope_scaling``, ``max_positions``, ``qkv_clip``, ``attn_softcap`` and
    ``attn_scale``.

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
    rope_interleaved: bool = False
    rope_scaling: dict | None = field(default=None, hash=False)
    max_positions: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qkv_clip: float | None = None
    norm: str = "rmsnorm"
    norm_eps: float = 1e-6
    norm_bias: bool = False
    norm_placement: str = "pre"
    residual: str = "sequential"
    residual_multiplier: float = 1.0
    mlp: str = "swiglu"
    mlp_bias: bool = False
    qk_norm: bool | str = False
    qk_norm_bias: bool = False
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
        for name in ("n_kv_heads", "head_dim"):
            check(name, admit_integer, 1, optional=True)
        check("rope_dim", admit_integer, 0, optional=True)
        check("window", admit_integer, 0)
        check("max_positions", admit_integer, 1, MOST_POSITIONS, optional=True)
        for name in ("rope_theta", "norm_eps", "residual_multiplier"):
            check(name, admit_positive)
        for name in ("qkv_clip", "attn_softcap", "attn_scale"):
            check(name, admit_positive, optional=True)
        for name in ("rope_interleaved", "qkv_bias", "o_bias", "norm_bias", "mlp_bias", "qk_norm_bias"):
            check(name, admit_switch)
        check("qk_norm", admit_switch_or_choice, QK_NORMS)
        for name, choices in (
            ("norm", NORMS),
            ("norm_placement", PLACEMENTS),
            ("residual", RESIDUALS),
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
        check_pairs(self)

    @property
    def gated(self):
        """Whether the MLP multiplies its activation with ``up_proj``."""
        return self.mlp in GATED_MLPS

    @property
    def activation(self):
        """Activation of the MLP: "silu", "gelu_erf", "gelu_tanh", "relu" or "relu2"."""
        return ACTIVATIONS[self.mlp]

    @property
    def offset(self):
        """Whether the norms, those of q and k among them, scale by 1 + weight."""
        return self.norm in OFFSET_NORMS

    @property
    def input_norms(self):
        """Whether attention and MLP have norms at their inputs."""
        return self.norm_placement != "post"

    @property
    def output_norms(self):
        """Whether attention and MLP have norms at their outputs."""
        return self.norm_placement != "pre"

    @property
    def second_norm(self):
        """Whether the MLP has an input of its own, and so a norm, where there are norms at the inputs."""
        return self.residual != "parallel_shared"

    @property
    def qk_norm_kind(self):
        """Kind of the norm of q and k, one of `NORMS`."""
        kind = "layernorm" if self.qk_norm == "layernorm" else "rmsnorm"
        return f"{kind}_offset" if self.offset else kind

    @property
    def qk_norm_shared(self):
        """Whether one weight of qk-norm serves all heads."""
        return self.qk_norm is True

    @property
    def qk_norm_wide(self):
        """Whether the weights of qk-norm have the whole width of q and of k."""
        return self.qk_norm in QK_NORMS

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
        return tensors.weight_shapes(self)

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
        return tensors.explain_shape(self, name)

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
        return tensors.why_not(self, name)
