"""The metadata of a GGUF file as the fields of a Hugging Face ``config.json``.

Every key of the metadata is used here or by the tokenizer, is known not to matter, or is refused.
"""

import numpy as np

from mojolearn.models.gguf_architectures import ARCHITECTURES, LAYERNORM, RMS, SIZES
from mojolearn.models.gguf_file import shortest
from mojolearn.models.gguf_rope import rope_parameters
from mojolearn.models.gguf_special import end_ids, special_id
from mojolearn.models.strict_json import MOST, Fields
from mojolearn.scalars import shown

# Keys after "<architecture>." that are not honoured, and need not be while they hold one of these values.
FIXED = {
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0.0,),
    "attention.temperature_scale": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "nextn_predict_layers": (0,),
    "rope.scaling.finetuned": (True, False),
    "tensor_data_layout": ("Meta AI original pth",),  # rows of q and k as ever
}

# Keys after "general." that never alter the logits, and beginnings of others: descriptions, how a file was made.
DESCRIPTIONS = frozenset(
    """
    alignment architecture author basename datasets description doi file_type finetune languages license name
    organization quantization_version quantized_by repo_url size_label tags type url uuid version
    """.split()
)
HARMLESS = (
    *(f"general.{name}." for name in ("base_model", "dataset", "license", "sampling", "source")),
    *("mradermacher.", "quantize.", "split.", "tokenizer."),
)

ROPE_BY_KIND = ("gemma3_text", "olmo3")  # rope_parameters hold an object for each kind of layer
MOST_LAYERS = 10_000


def raw_config(metadata, tensors, small, where):
    """Write the config.json of a model.

    Parameters
    ----------
    metadata : dict
        The metadata of the file, or of the first of several.
    tensors : dict of str to Tensor
        All tensors, whatever file they are in.
    small : callable
        Returns a small tensor by its name as an array, or None.
    where : str
        What messages start with.

    Returns
    -------
    raw : dict
        Fields in the newest spelling.
    row : Architecture
        How the tensors of the model are named and stored.

    Raises
    ------
    ValueError
        An architecture or key that is not known, or a key that is missing or malformed.
    """
    name, row = _architecture(metadata, where)
    at = f"{name}.".__add__  # from "block_count" to the key in the file
    fields = Fields(_own_keys(metadata, at, where), where)
    raw = {"model_type": row.model_type, **row.defaults, **row.constants}
    sizes = {
        key: _one(fields, at(key), maximum=MOST_LAYERS if key == "block_count" else MOST) for key in SIZES
    }
    raw |= {field: sizes[key] for key, field in SIZES.items()}
    heads, width = sizes["attention.head_count"], sizes["embedding_length"]
    raw |= _kv_heads(fields, at, row, heads)
    head_dim = _head_dim(fields, at, raw, heads, width)
    if row.scaled_by_head is not None:
        wide = sizes["block_count"] == row.scaled_by_head
        raw["query_pre_attn_scalar"] = width // heads if wide else head_dim
    _same_epsilon(fields, at, row)
    found = {field: fields.number(at(key), None) for key, field in row.numbers.items()}
    found |= {field: fields.boolean(at(key), None) for key, field in row.flags.items()}
    raw |= {field: value for field, value in found.items() if value is not None}
    raw |= {field: _has(tensors, part) for field, part in row.switches.items()}
    raw |= _windows(fields, at, row, sizes["block_count"])
    if raw.get("sliding_window") and row.windowed:
        raw["model_type"] = row.windowed
    if row.rope:
        by_kind = raw["model_type"] in ROPE_BY_KIND
        raw |= rope_parameters(fields, at, small, row, head_dim, sizes["context_length"], by_kind)
    raw |= _vocabulary(metadata, fields, at, tensors, where)
    _refuse_the_rest(fields, metadata, name, {**FIXED, **row.fixed}, where)
    return raw, row


def _own_keys(metadata, at, where):
    """Return the keys of the architecture; none of them holds a long list."""
    own = {key: value for key, value in metadata.items() if key.startswith(at(""))}
    for key, value in own.items():
        if isinstance(value, np.ndarray) and len(value) > MOST_LAYERS:
            raise ValueError(f"{where}: {key} has {len(value)} entries; at most {MOST_LAYERS} are read")
    return {key: _listed(value) if isinstance(value, np.ndarray) else value for key, value in own.items()}


def _listed(array):
    return [shortest(v) for v in array] if array.dtype == np.float32 else array.tolist()


def _architecture(metadata, where):
    kind = metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise ValueError(f"{where}: general.type must be 'model', not {shown(kind)}")
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ValueError(
            f"{where}: general.architecture must be one of {', '.join(ARCHITECTURES)}, not {shown(name)}"
        )
    return name, ARCHITECTURES[name]


def _one(fields, key, *default, maximum=MOST):
    """Take an integer that may be given layer by layer, if all layers agree."""
    value = fields.left.get(key)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise fields.wrong(key, value, "the same for all layers")
        fields.left[key] = value[0]
    return fields.integer(key, *default, maximum=maximum)


def _same_epsilon(fields, at, row):
    """Take the epsilon of the other kind of norm, which some files repeat."""
    for used, other in ((RMS, LAYERNORM), (LAYERNORM, RMS)):
        value = fields.left.get(at(used))
        if used in row.numbers and value is not None and fields.left.get(at(other)) == value:
            fields.take(at(other))


def _kv_heads(fields, at, row, heads):
    kv_heads = _one(fields, at("attention.head_count_kv"), heads)
    if row.kv_heads:
        return {"num_key_value_heads": kv_heads}
    if kv_heads != heads:
        raise fields.wrong(at("attention.head_count_kv"), kv_heads, f"{at('attention.head_count')} = {heads}")
    return {}


def _head_dim(fields, at, raw, heads, width):
    """Return the width of a head; a width of its own becomes a field."""
    head_dim = fields.integer(at("attention.key_length"), None)
    if head_dim is not None:
        raw["head_dim"] = head_dim
    elif width % heads:
        raise fields.wrong(
            at("attention.head_count"), heads, f"a divisor of {at('embedding_length')} = {width}"
        )
    head_dim = head_dim or width // heads
    values = fields.integer(at("attention.value_length"), head_dim)
    if values != head_dim:
        raise fields.wrong(at("attention.value_length"), values, f"the width of keys, {head_dim}")
    return head_dim


def _has(tensors, part):
    """Tell whether layer 0 has a tensor, by itself or in one with others; after "no ", whether it has none."""
    if part.startswith("no "):
        return not _has(tensors, part.removeprefix("no "))
    fused = part.replace("attn_q.", "attn_qkv.")
    return f"blk.0.{part}" in tensors or f"blk.0.{fused}" in tensors


def _windows(fields, at, row, n_layers):
    """Return the window and which layers have it."""
    window = fields.integer(at("attention.sliding_window"), row.defaults.get("sliding_window", 0), minimum=0)
    if row.window == "none" and window:
        raise fields.wrong(at("attention.sliding_window"), window, "0 or absent for this architecture")
    if row.window in ("none", "all"):
        return {"sliding_window": window or None}
    key = at("attention.sliding_window_pattern")
    pattern = fields.take(key)
    if not window:
        return {"sliding_window": None, "layer_types": ["full_attention"] * n_layers}
    if not isinstance(pattern, list):
        fields.left[key] = pattern
        every = fields.integer(key, row.window)
        pattern = [(i + 1) % every != 0 for i in range(n_layers)]
    if len(pattern) != n_layers or not all(v in (False, True) for v in pattern):
        raise fields.wrong(key, pattern, f"a number, or a list of {n_layers} of true and false")
    kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return {"sliding_window": window, "layer_types": kinds}


def _vocabulary(metadata, fields, at, tensors, where):
    """Return the fields about tokens; their number is that of the rows of the embedding."""
    if "token_embd.weight" not in tensors:
        raise ValueError(f"{where}: the tensor token_embd.weight is missing")
    size = tensors["token_embd.weight"].shape[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    counts = {at("vocab_size"): fields.integer(at("vocab_size"), size)}
    if hasattr(tokens, "__len__"):
        counts["tokenizer.ggml.tokens"] = len(tokens)
    for key, count in counts.items():
        if count != size:
            raise ValueError(f"{where}: {key} has {count} tokens, but token_embd.weight {size} rows")
    bos = special_id(metadata, "bos", where)
    return {
        "vocab_size": size,
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": end_ids(metadata, where),
        **({} if bos is None else {"bos_token_id": bos}),
    }


def _refuse_the_rest(fields, metadata, name, fixed, where):
    for key, value in fields.left.items():
        allowed = fixed.get(key.removeprefix(f"{name}."), ())
        if not any(type(value) is type(v) and value == v for v in allowed):
            wanted = "".join(f"{v!r} or " for v in allowed)
            raise ValueError(
                f"{where}: {key} = {shown(value)} is not honoured; wanted is {wanted}no such key"
            )
    for key, value in metadata.items():
        space, _, rest = key.partition(".")
        known = space == name or key.startswith(HARMLESS) or (space == "general" and rest in DESCRIPTIONS)
        if not known:
            raise ValueError(f"{where}: the key {key} = {shown(value)} is not known; wanted is no such key")
