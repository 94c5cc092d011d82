"""How positions turn queries and keys, from the metadata and tensors of a GGUF file to ``rope_parameters``.

The scaling of the kind llama3 is stored as a tensor of factors, one for each pair of columns, by which frequencies
are divided. Where they are those of numbers that models have, these are found again, and with them the bits of
the model as it was before the conversion; other factors are honoured as they are.
"""

import numpy as np

from mojolearn.models.gguf_file import shortest
from mojolearn.scalars import shown

FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
TOLERANCE = 1e-5  # relative; the factors are float32, computed from float32 frequencies

# The numbers of released models, and lengths that others would choose.
LOW, HIGH = 1.0, 4.0
LENGTHS = (8192, *(2**n for n in range(4, 21)))


def rope_parameters(fields, at, small, row, head_dim, context, by_kind):
    """Take the keys about rotation.

    Parameters
    ----------
    fields : Fields
        The metadata; what is used is taken.
    at : callable
        Turns "rope.freq_base" into the key in the file.
    small : callable
        Returns a small tensor by its name as an array, or None.
    row : Architecture
        The row of the model.
    head_dim : int
        Width of a head.
    context : int
        The length that the model was made for.
    by_kind : bool
        Whether there are parameters for each kind of layer.

    Returns
    -------
    dict
        ``rope_parameters``, and fields that stand beside it.

    Raises
    ------
    ValueError
        A key is malformed, or asks for what is not honoured.
    """
    theta = fields.number(at("rope.freq_base"), 10000.0)
    local = fields.number(at("rope.freq_base_swa"), row.local_rope_theta or theta)
    turned = fields.integer(at("rope.dimension_count"), head_dim, maximum=head_dim)
    original = fields.integer(at("rope.scaling.original_context_length"), None)
    scaling = _scaling(fields, at, original)
    beside = {}
    long, short, factors = (small(name) for name in (LONG, SHORT, FACTORS))
    if long is not None or short is not None or scaling.get("rope_type") == "longrope":
        scaling, beside = _longrope(fields, at, long, short, original)
    if factors is not None:
        if scaling:
            raise ValueError(
                f"{fields.where}: the tensor {FACTORS} does not go with another scaling of rotation"
            )
        scaling = _by_frequency(factors, theta, turned, (original, context), fields.where)
    if turned != head_dim or row.partial_rope:
        scaling["partial_rotary_factor"] = _share(turned, head_dim)
    everywhere = {"rope_type": "default", **scaling, "rope_theta": theta}
    if not by_kind:
        if local != theta:
            raise fields.wrong(at("rope.freq_base_swa"), local, f"{theta}, as for all layers")
        return {"rope_parameters": everywhere, **beside}
    sliding = {"rope_type": "default", "rope_theta": local}
    return {"rope_parameters": {"full_attention": everywhere, "sliding_attention": sliding}, **beside}


def _share(turned, head_dim):
    """Return the share of the columns that are turned, such that ``int(head_dim * share)`` is their number."""
    share = turned / head_dim
    return share if int(head_dim * share) == turned else float(np.nextafter(share, 1))


def _scaling(fields, at, original):
    """Return the scaling that the keys give."""
    key = at("rope.scaling.factor")
    has_factor = fields.left.get(key) or fields.left.get(at("rope.scale_linear"))
    kind = fields.take(at("rope.scaling.type"), "linear" if has_factor else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise fields.wrong(at("rope.scaling.type"), kind, "one of none, linear, yarn, longrope")
    if kind == "longrope":  # which has a list of factors instead
        return {"rope_type": "longrope"}
    factor = fields.take(key, fields.take(at("rope.scale_linear")))
    if kind == "none" or factor in (None, 0, 1):
        return {}
    fields.left[key] = factor
    factor = fields.number(key)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    yarn = {"rope_type": "yarn", "factor": factor}
    if original is not None:
        yarn["original_max_position_embeddings"] = original
    names = {
        "yarn_attn_factor": "attention_factor",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    for name, field in names.items():
        value = fields.number(at(f"rope.scaling.{name}"), None)
        if value is not None:
            yarn[field] = value
    if fields.number(at("rope.scaling.yarn_ext_factor"), 1.0) != 1:
        raise ValueError(
            f"{fields.where}: {at('rope.scaling.yarn_ext_factor')} must be 1, nothing else is honoured"
        )
    return yarn


def _longrope(fields, at, long, short, original):
    """Return the scaling with a factor for each pair of columns, for texts up to the original length and beyond."""
    if long is None or short is None or original is None:
        key = at("rope.scaling.original_context_length")
        raise ValueError(f"{fields.where}: longrope needs the tensors {LONG} and {SHORT}, and {key}")
    lists = {"long_factor": [shortest(f) for f in long], "short_factor": [shortest(f) for f in short]}
    scaling = {"rope_type": "longrope", **lists}
    attention = fields.number(at("rope.scaling.attn_factor"), None)
    if attention is not None:
        scaling["attention_factor"] = attention
    return scaling, {"original_max_position_embeddings": original}


def _by_frequency(factors, theta, turned, lengths, where):
    """Return the scaling that divides every frequency by its factor: llama3 where its numbers are those of a model."""
    if factors.shape != (turned // 2,):
        raise ValueError(f"{where}: {FACTORS} has shape {factors.shape}; wanted is {(turned // 2,)}")
    if (factors == 1).all():
        return {}
    factor = shortest(factors.max())
    for original in dict.fromkeys((*(n for n in lengths if n), *LENGTHS)):
        if _fits(
            factors.astype(np.float64), theta ** (-2.0 * np.arange(turned // 2) / turned), factor, original
        ):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW,
                "high_freq_factor": HIGH,
                "original_max_position_embeddings": original,
            }
    if not ((factors > 0) & (factors < np.inf)).all():
        raise ValueError(f"{where}: {FACTORS} must hold numbers above 0, not {shown(factors.tolist())}")
    listed = [shortest(f) for f in factors]
    return {
        "rope_type": "longrope",  # with the same factors for texts of any length
        "short_factor": listed,
        "long_factor": listed,
        "attention_factor": 1.0,
        "original_max_position_embeddings": lengths[1],
    }


def _fits(factors, frequencies, factor, original):
    """Tell whether a scaling of the kind llama3 gives the factors."""
    with np.errstate(all="ignore"):
        turns = original * frequencies / (2 * np.pi)  # within the original length
        smooth = np.clip((turns - LOW) / (HIGH - LOW), 0, 1)
        return np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=TOLERANCE, atol=0)
