"""Checkpoint folders for tests: a writer of safetensors files, and small models with random weights."""

import json
import struct

import numpy as np
import support

from mojolearn.models.families import FAMILIES

NAMES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "float64": "F64", "int64": "I64"}
PARTS = {"input_layernorm": "", "post_attention_layernorm": ""} | dict.fromkeys(
    ("gate_proj", "up_proj", "down_proj"), "mlp."
)


def safetensors_bytes(tensors, pad=8):
    """A file in the safetensors format; a uint16 array holds the bits of bfloat16."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        offsets = [at, at + len(blob)]
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        blobs.append(blob)
        at += len(blob)
    return raw_file(header, b"".join(blobs), pad)


def raw_file(header, data, pad=8):
    """The same from a header that may be wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    return struct.pack("<Q", len(text)) + text + data


def config(**changes):
    """A config.json of two small layers; a field changed to ``...`` is left out."""
    fields = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 40,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    fields |= changes
    return {name: value for name, value in fields.items() if value is not ...}


def config_of(model_type, **changes):
    """The same of any family, in its own names."""
    family = FAMILIES[model_type]
    fields = config(model_type=model_type)
    if family.rotary is not None and family.rotary.partial == 0.25:
        fields["hidden_size"] = 32  # so that a quarter of a head is two columns
    own = {name: names[0] for name, names in family.spellings.items()}
    names = {**own, "rms_norm_eps": family.eps}
    if family.rotary is None or family.rotary.width:
        del fields["rope_theta"]
    if family.rotary is not None and family.rotary.width:
        fields[family.rotary.width] = 4
    if not family.kv_heads:
        del fields["num_key_value_heads"]
    fields = {names.get(name, name): value for name, value in fields.items() if names.get(name, name)}
    if family.text_type:
        inner = {**fields, "model_type": family.text_type, **changes}
        return {"model_type": model_type, "text_config": {k: v for k, v in inner.items() if v is not ...}}
    return {name: value for name, value in {**fields, **changes}.items() if value is not ...}


def tensors(fields, seed=0):
    """Random float32 weights under the names of the checkpoint."""
    d, inner, vocab = fields["hidden_size"], fields["intermediate_size"], fields["vocab_size"]
    biased = bool(fields.get("attention_bias"))
    options = {
        "n_heads": fields["num_attention_heads"],
        "n_kv_heads": fields.get("num_key_value_heads"),
        "head_dim": fields.get("head_dim"),
        "qkv_bias": fields["model_type"] == "qwen2" or biased,
        "o_bias": biased,
        "mlp_bias": bool(fields.get("mlp_bias")),
        "qk_norm": fields["model_type"] == "qwen3",
    }
    rng = np.random.default_rng(seed)
    named = {"model.embed_tokens.weight": support.uniform(rng, (vocab, d))}
    for layer in range(fields["num_hidden_layers"]):
        for name, array in support.make_weights(d, inner, seed + layer, **options).items():
            part = PARTS.get(name.partition(".")[0], "self_attn.")
            named[f"model.layers.{layer}.{part}{name}"] = array
    named["model.norm.weight"] = np.float32(1) + support.uniform(rng, (d,), 0.25)
    if not fields.get("tie_word_embeddings"):
        named["lm_head.weight"] = support.uniform(rng, (vocab, d))
    return named


def write_model(folder, named=None, seed=0, **changes):
    """Write config.json and model.safetensors; returns the folder."""
    fields = config(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    named = tensors(fields, seed) if named is None else named
    (folder / "model.safetensors").write_bytes(safetensors_bytes(named))
    return folder


def write_shards(folder, named, shards, **index):
    """Write tensors as shards, a dict from file to names, and the index."""
    for file, names in shards.items():
        (folder / file).write_bytes(safetensors_bytes({name: named[name] for name in names}))
    places = {name: file for file, names in shards.items() for name in names} | index
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def to_bfloat16(array):
    """The upper halves of float32 values, which must be bfloat16 numbers."""
    bits = array.view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def coarse(array):
    """Cut values to what bfloat16 and float16 both can hold: 7 bits after the point, and nothing tiny."""
    cut = (np.ascontiguousarray(array).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.abs(cut) < 2.0**-13, np.float32(0), cut)
