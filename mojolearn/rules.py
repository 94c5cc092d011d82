"""Options of a block that cannot go together, each answered with a sentence that names both."""

import numpy as np

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
    if o.rope_scaling is not None and o.rope_dim:
        _check_scaling(o, o.rope_scaling)


def _check_scaling(o, scaling):
    """What a type of ``rope_scaling`` asks of the rotation."""
    where = f"{OWNER}: rope_scaling of type {scaling['type']!r}"
    for key in ("short_factor", "long_factor"):
        if key in scaling and len(scaling[key]) != o.rope_dim // 2:
            raise ValueError(
                f'{where} has {len(scaling[key])} numbers in "{key}", but rope_dim={o.rope_dim} has '
                f"{o.rope_dim // 2} pairs of columns, which need one each"
            )
    if scaling["type"] == "dynamic" and o.rope_dim == 2:
        raise ValueError(f"{where} divides by rope_dim - 2; with rope_dim=2 it cannot be used")
    if scaling["type"] == "yarn" and np.float32(o.rope_theta) == 1:
        raise ValueError(
            f"{where} divides by the logarithm of rope_theta; with rope_theta=1 it cannot be used"
        )
