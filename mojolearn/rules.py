"""Options of a block that cannot go together, each answered with a sentence that names both."""

OWNER = "TransformerBlock"
LAYER_NORMS = ("layernorm", "layernorm_offset")


def check_pairs(options):
    """Raise ``ValueError`` for a pair of options, checked one by one, that makes no block."""
    o = options
    if o.norm_bias and o.norm not in LAYER_NORMS:
        raise ValueError(
            f"{OWNER}: norm_bias=True goes with norm='layernorm' or 'layernorm_offset' only, not with norm={o.norm!r}"
        )
    if o.qk_norm_bias and o.qk_norm != "layernorm":
        raise ValueError(
            f"{OWNER}: qk_norm_bias=True goes with qk_norm='layernorm' only, not with qk_norm={o.qk_norm!r}"
        )
    if o.residual != "sequential" and o.norm_placement != "pre":
        raise ValueError(
            f"{OWNER}: residual={o.residual!r} goes with norm_placement='pre' only, not with "
            f"norm_placement={o.norm_placement!r}"
        )
