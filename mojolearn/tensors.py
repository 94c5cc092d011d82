"""The weights of a block: which there are for given options, and their shapes.

Names are those of the published checkpoints without their prefixes, matrices lie in torch layout, ``(out, in)``.
"""

# Every weight of a block in the order of the computation: its name, the sizes of its shape, and the switches
# that must all be on for it to be there (options, and properties of `BlockOptions`). Of two rows with one name, the
# options choose at most one.
TENSORS = (
    ("input_layernorm.weight", ("d_model",), ("input_norms",)),
    ("input_layernorm.bias", ("d_model",), ("input_norms", "norm_bias")),
    ("q_proj.weight", ("n_heads*head_dim", "d_model"), ()),
    ("q_proj.bias", ("n_heads*head_dim",), ("qkv_bias",)),
    ("k_proj.weight", ("n_kv_heads*head_dim", "d_model"), ()),
    ("k_proj.bias", ("n_kv_heads*head_dim",), ("qkv_bias",)),
    ("v_proj.weight", ("n_kv_heads*head_dim", "d_model"), ()),
    ("v_proj.bias", ("n_kv_heads*head_dim",), ("qkv_bias",)),
    ("q_norm.weight", ("head_dim",), ("qk_norm", "qk_norm_shared")),
    ("q_norm.weight", ("n_heads*head_dim",), ("qk_norm", "qk_norm_wide")),
    ("q_norm.bias", ("n_heads*head_dim",), ("qk_norm_bias",)),
    ("k_norm.weight", ("head_dim",), ("qk_norm", "qk_norm_shared")),
    ("k_norm.weight", ("n_kv_heads*head_dim",), ("qk_norm", "qk_norm_wide")),
    ("k_norm.bias", ("n_kv_heads*head_dim",), ("qk_norm_bias",)),
    ("o_proj.weight", ("d_model", "n_heads*head_dim"), ()),
    ("o_proj.bias", ("d_model",), ("o_bias",)),
    ("attention_output_norm.weight", ("d_model",), ("output_norms",)),
    ("attention_output_norm.bias", ("d_model",), ("output_norms", "norm_bias")),
    ("post_attention_layernorm.weight", ("d_model",), ("input_norms", "second_norm")),
    ("post_attention_layernorm.bias", ("d_model",), ("input_norms", "second_norm", "norm_bias")),
    ("gate_proj.weight", ("intermediate_size", "d_model"), ("gated",)),
    ("gate_proj.bias", ("intermediate_size",), ("gated", "mlp_bias")),
    ("up_proj.weight", ("intermediate_size", "d_model"), ()),
    ("up_proj.bias", ("intermediate_size",), ("mlp_bias",)),
    ("down_proj.weight", ("d_model", "intermediate_size"), ()),
    ("down_proj.bias", ("d_model",), ("mlp_bias",)),
    ("mlp_output_norm.weight", ("d_model",), ("output_norms",)),
    ("mlp_output_norm.bias", ("d_model",), ("output_norms", "norm_bias")),
)

# Where the sizes come from, for messages.
ORIGINS = {
    "d_model": "d_model={o.d_model} is the length of input_layernorm.weight",
    "intermediate_size": "intermediate_size={o.intermediate_size} is the number of rows of up_proj.weight",
    "n_heads*head_dim": "n_heads={o.n_heads}, head_dim={o.head_dim}",
    "n_kv_heads*head_dim": "n_kv_heads={o.n_kv_heads}, head_dim={o.head_dim}",
    "head_dim": "head_dim={o.head_dim}",
}
WITHOUT_INPUT_NORMS = "d_model={o.d_model} is the number of columns of up_proj.weight"

# What a switch that is off says, where it is no option itself.
REASONS = {
    "gated": "mlp={o.mlp!r}, which has no gate",
    "input_norms": "norm_placement={o.norm_placement!r}",
    "output_norms": "norm_placement={o.norm_placement!r}",
    "second_norm": "residual={o.residual!r}, which has one norm",
}


def weight_shapes(options):
    """Name and shape of every weight that the options require, in the order of the computation: a dict."""
    return {
        name: tuple(_size(options, size) for size in sizes)
        for name, sizes, switches in TENSORS
        if all(getattr(options, switch) for switch in switches)
    }


def explain_shape(options, name):
    """Say which shape the weight ``name``, one of `weight_shapes`, must have, and where its sizes come from."""
    sizes = next(
        sizes
        for tensor, sizes, switches in TENSORS
        if tensor == name and all(getattr(options, switch) for switch in switches)
    )
    comma = "," if len(sizes) == 1 else ""
    shape = tuple(_size(options, size) for size in sizes)
    origins = dict(ORIGINS) if options.input_norms else ORIGINS | {"d_model": WITHOUT_INPUT_NORMS}
    places = " and ".join(origins[size].format(o=options) for size in sizes)
    return f"({', '.join(sizes)}{comma}) = {shape}, where {places}"


def why_not(options, name):
    """Say which option keeps the weight ``name`` out; None for names that are required or that no block has."""
    reasons = []
    for tensor, _, switches in TENSORS:
        if tensor == name:
            off = [switch for switch in switches if not getattr(options, switch)]
            if not off:
                return None
            reasons.append(REASONS.get(off[0], f"{off[0]}={{o.{off[0]}!r}}").format(o=options))
    return reasons[0] if reasons else None


def _size(options, name):
    factors = [getattr(options, factor) for factor in name.split("*")]
    return factors[0] if len(factors) == 1 else factors[0] * factors[1]
