"""How positions turn queries and keys, read from either spelling of the fields.

The newer one is ``rope_parameters``, flat or one object for each kind of layer; the older one ``rope_theta``,
``rope_scaling``, ``partial_rotary_factor`` and names of single families. What a file leaves out is filled in as
the reference fills it in, so that a block is told all that it needs.
"""

from mojolearn.models.layer_types import FULL, SLIDING
from mojolearn.models.strict_json import Fields, agreed
from mojolearn.rope_scaling import admit_rope_scaling

# Types whose frequencies depend on the length that the model was first trained for.
WITH_ORIGINAL = ("llama3", "yarn", "longrope")


def read_rope(fields, family, defaults, head_dim, max_positions):
    """Take the fields of rotation.

    Parameters
    ----------
    fields : Fields
        Those of the config.
    family : Family
        The row of the model.
    defaults : dict
        Its row in ``defaults.py``.
    head_dim : int
        Width of a head.
    max_positions : int or None
        What ``max_position_embeddings`` says.

    Returns
    -------
    dict of str to dict
        Options of a block for layers with full and with sliding attention, under the names of ``layer_types``.

    Raises
    ------
    ValueError
        A field is malformed, missing, contradicts another, or asks for what is not honoured.
    """
    rotary = family.rotary
    if rotary is None:
        return _both({"rope_dim": 0})
    if rotary.width:
        if fields.is_null(rotary.width):
            raise fields.wrong(rotary.width, None, "an integer")
        width = fields.integer(rotary.width, 64)
        if width % 2 or width > head_dim:
            raise fields.wrong(rotary.width, width, f"even and at most {head_dim}, the width of a head")
        turned = {"rope_theta": defaults["rope_theta"], "rope_dim": width}
        return _both({**turned, "rope_interleaved": rotary.interleaved})
    entries = (
        _by_layer_type(fields, rotary, defaults) if rotary.local_theta else _flat(fields, rotary, defaults)
    )
    original = fields.integer("original_max_position_embeddings", rotary.original)
    options = {
        kind: _options(inside, rotary, head_dim, max_positions, original) for kind, inside in entries.items()
    }
    return options if rotary.local_theta else _both(options[FULL])


def _both(options):
    return {FULL: options, SLIDING: options}


def _flat(fields, rotary, defaults):
    """Gather both spellings of the one rotation of all layers."""
    given = {name: fields.inner(name) for name in ("rope_parameters", "rope_scaling")}
    for name, entries in given.items():
        for kind in (FULL, SLIDING):
            if entries and isinstance(entries.get(kind), dict):
                raise fields.wrong(
                    f"{name}.{kind}", entries[kind], "absent", "all layers turn in the same way"
                )
    merged = {}
    for key, default in (("rope_theta", defaults["rope_theta"]), ("partial_rotary_factor", rotary.partial)):
        found = {fields.spelt(key)[0]: fields.number(key, None)}
        for name, entries in given.items():
            if entries:
                inside = Fields({key: entries.pop(key, None)}, f"{fields.where}: {name}")
                found[f"{name}.{key}"] = inside.number(key, None)
        merged[key] = agreed({n: v for n, v in found.items() if v is not None}, default, fields.where)
    fields.taken["partial_rotary_factor"] = merged["partial_rotary_factor"]
    scalings = {name: _spelt_type(e, fields, name) for name, e in given.items() if e is not None}
    name = next(iter(scalings), "rope_parameters")
    scaling = agreed(scalings, {"rope_type": "default"}, fields.where)
    return {FULL: Fields({**merged, **scaling}, f"{fields.where}: {name}")}


def _by_layer_type(fields, rotary, defaults):
    """Gather both spellings of a rotation for each kind of layer; the older scaling is that of full attention."""
    older, local = rotary.local_theta
    parameters = fields.inner("rope_parameters") or {}
    for key in parameters:
        if key not in (FULL, SLIDING):
            raise fields.wrong(f"rope_parameters.{key}", parameters[key], f"inside {FULL} or {SLIDING}")
    thetas = {name: fields.number(name, None) for name in dict.fromkeys(("rope_theta", older))}
    scaling = fields.inner("rope_scaling")
    bases = {FULL: ("rope_theta", defaults["rope_theta"]), SLIDING: (older, local or defaults["rope_theta"])}
    gathered = {}
    for kind, (name, default) in bases.items():
        where = f"rope_parameters.{kind}"
        given = {where: Fields(parameters, fields.where).inner(kind)}
        if kind == FULL:
            given["rope_scaling"] = scaling
        given = {n: entries for n, entries in given.items() if entries is not None}
        found = {name: thetas[name]}
        found |= {f"{n}.rope_theta": _number(fields, n, e.pop("rope_theta", None)) for n, e in given.items()}
        theta = agreed({n: v for n, v in found.items() if v is not None}, default, fields.where)
        for n, entries in given.items():
            if entries.get("truncate") is False:
                raise fields.wrong(f"{n}.truncate", False, "absent", "in this place nobody reads it")
        types = {n: _spelt_type(entries, fields, n) for n, entries in given.items()}
        merged = {"rope_theta": theta, **agreed(types, {"rope_type": "default"}, fields.where)}
        gathered[kind] = Fields(merged, f"{fields.where}: {next(iter(types), where)}")
    return gathered


def _number(fields, where, value):
    """Check a number inside an object; None stays."""
    return Fields({"rope_theta": value}, f"{fields.where}: {where}").number("rope_theta", None)


def _spelt_type(entries, fields, name):
    """Bring the type of a scaling under one name: "rope_type", absent means "default"."""
    entries = dict(entries)
    older = entries.pop("type", None)
    given = {"rope_type": entries.get("rope_type"), "type": older}
    kind = agreed({k: v for k, v in given.items() if v is not None}, "default", f"{fields.where}: {name}")
    return {**entries, "rope_type": kind}


def _options(inside, rotary, head_dim, max_positions, original):
    """Turn the gathered fields of one rotation into options of a block."""
    partial = inside.number("partial_rotary_factor", rotary.partial or 1.0)
    if rotary.partial is None and partial != 1:
        raise inside.wrong("partial_rotary_factor", partial, "1", "this family turns whole heads")
    rope_dim = int(head_dim * partial)
    if rope_dim % 2 or not 0 < rope_dim <= head_dim:
        raise inside.wrong(
            "partial_rotary_factor", partial, f"such that an even part of head_dim = {head_dim} turns"
        )
    theta = inside.number("rope_theta")
    kind = inside.left["rope_type"]
    if rotary.types is not None:
        if not isinstance(kind, str) or kind not in rotary.types:
            raise inside.wrong("rope_type", kind, "one of " + ", ".join(rotary.types))
        inside.left["rope_type"] = rotary.types[kind]
    scaling = _completed(inside, max_positions, original)
    where, _, name = inside.where.rpartition(": ")
    return {
        "rope_theta": theta,
        "rope_scaling": admit_rope_scaling(scaling, name, where),
        "rope_dim": rope_dim,
        "rope_interleaved": rotary.interleaved,
    }


def _completed(inside, max_positions, original):
    """Fill in what the reference fills in."""
    scaling = dict(inside.left)
    kind, key = scaling["rope_type"], "original_max_position_embeddings"
    if kind not in ("dynamic", *WITH_ORIGINAL):
        return scaling
    if kind == "dynamic" and scaling.get(key, max_positions) != max_positions:
        raise inside.wrong(key, scaling[key], f"max_position_embeddings = {max_positions}")
    if kind in WITH_ORIGINAL and original is not None:  # it stands beside the object, and goes first
        scaling[key] = original
    scaling.setdefault(key, max_positions)
    follows = kind == "yarn" or (kind == "longrope" and "attention_factor" not in scaling)
    follows &= "factor" not in scaling  # from how many times longer the model's texts are now
    if scaling[key] is None or (follows and max_positions is None):
        raise ValueError(f"{inside.where}: the type {kind} needs max_position_embeddings, which is missing")
    if follows:
        scaling["factor"] = max_positions / Fields(scaling, inside.where).integer(key)
    return scaling
