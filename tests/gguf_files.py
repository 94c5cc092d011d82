"""GGUF files for tests: a writer of files that may be wrong, and conversions of checkpoint folders.

Names of tensors come from the package ``gguf``, which llama.cpp converts with; what is done to rows, and which
keys are written, follows its conversion scripts.
"""

import json
import struct

import gguf
import numpy as np
from gguf.quants import quantize

from mojolearn.models.checkpoint import Checkpoint
from mojolearn.models.gguf_quants import TYPES
from mojolearn.weights import widen

KINDS = {
    bool: (7, "?"),
    int: (4, "I"),
    float: (6, "f"),
    np.int32: (5, "i"),
    np.uint64: (10, "Q"),
    np.float32: (6, "f"),
}
NUMBERS = {kind.name: kind.value for kind in gguf.GGMLQuantizationType}


def text(value):
    """A string as it stands in a file; bytes may be anything."""
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def value_bytes(value):
    """The number of the type of a value, and its bytes. A tuple is (number, bytes) already."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, (str, bytes)):
        return 8, text(value)
    if isinstance(value, (list, np.ndarray)):
        items = [value_bytes(v) for v in value]
        kind = items[0][0] if items else 8
        return 9, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)
    kind, letter = KINDS[type(value)]
    return kind, struct.pack("<" + letter, value)


def stored(array, kind="F32"):
    """A tensor to write: its type, its shape and its bytes, from float32 values."""
    array = np.ascontiguousarray(array, np.float32)
    if kind == "BF16":
        data = (array.view(np.uint32) >> 16).astype("<u2")
    elif kind == "F16":
        data = array.astype("<f2")
    else:
        data = array if kind == "F32" else quantize(array, gguf.GGMLQuantizationType[kind])
    return kind, array.shape, data.tobytes()


def gguf_bytes(metadata, tensors, *, version=3, alignment=32, counts=None, cut=0):
    """A GGUF file.

    `metadata` maps keys to values, `tensors` names to what `stored` returns; either may also be a list of pairs, to
    repeat one. ``counts`` replaces the numbers of tensors and keys, ``cut`` takes bytes off the end.
    """
    metadata = list(metadata.items() if isinstance(metadata, dict) else metadata)
    tensors = list(tensors.items() if isinstance(tensors, dict) else tensors)
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(metadata))))
    for key, value in metadata:
        kind, data = value_bytes(value)
        head += text(key) + struct.pack("<I", kind) + data
    at, blobs = 0, []
    for name, (kind, shape, data, *offset) in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", NUMBERS.get(kind, kind), offset[0] if offset else at)
        blobs.append(data + b"\0" * (-len(data) % alignment))
        at += len(blobs[-1])
    whole = head + b"\0" * (-len(head) % alignment) + b"".join(blobs)
    return whole[: len(whole) - cut]


def write(path, metadata, tensors, **options):
    """Write a file; returns its path."""
    path.write_bytes(gguf_bytes(metadata, tensors, **options))
    return path


SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}  # where a block has its halves; else at the front
SCALES |= dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,))
SCALES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))


def random_blocks(kind, count, seed=0):
    """Bytes of blocks, with scales that are ordinary numbers."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (count, TYPES[kind].bytes), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = rng.uniform(-0.1, 0.1, count).astype("<f2")
        data[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return data


# --- from a checkpoint folder -------------------------------------------------------------------------------

OWN_NAMES = (
    "arcee cohere2 exaone4 gemma gemma2 glm4 gpt2 granite llama nemotron olmo olmo2 phi3 qwen2 qwen3 smollm3"
)
ARCHITECTURES = {name: name for name in f"{OWN_NAMES} stablelm starcoder2".split()} | {
    "cohere": "command-r",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "mistral": "llama",
    "olmo3": "olmo2",
    "phi": "phi2",
}
PERMUTED = ("arcee", "granite", "llama", "mistral", "olmo", "smollm3")
PLUS_ONE = ("gemma", "gemma2", "gemma3_text", "nemotron")
SIZES = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.scale": ("attention_multiplier",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "use_parallel_residual": ("use_parallel_residual",),
    "vocab_size": ("vocab_size",),
}


def metadata_of(config):
    """The metadata for a config.json in the newer spelling."""
    kind = config["model_type"]
    name = ARCHITECTURES[kind]
    found = {}
    for key, fields in SIZES.items():
        value = next((config[f] for f in fields if config.get(f) is not None), None)
        if value is not None:
            found[key] = value
    width, heads = found["embedding_length"], found["attention.head_count"]
    found["feed_forward_length"] = config.get("intermediate_size") or config.get("n_inner") or 4 * width
    head_dim = config.get("head_dim") or width // heads
    if kind == "olmo":
        found["attention.layer_norm_epsilon"] = 1e-5
    slides = [kind == "sliding_attention" for kind in config.get("layer_types") or ()]
    if "attention.sliding_window" in found and any(slides) and not all(slides):
        found["attention.sliding_window_pattern"] = slides
    parameters = config.get("rope_parameters")
    if parameters:
        found |= rope_keys(parameters, head_dim)
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in found.items()}}


def rope_keys(parameters, head_dim):
    """The keys about rotation."""
    parameters = parameters.get("full_attention", parameters)
    found = {"rope.freq_base": float(parameters["rope_theta"])}
    found["rope.dimension_count"] = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    kind = parameters["rope_type"]
    if kind in ("linear", "yarn", "longrope"):
        found["rope.scaling.type"] = kind
    if kind in ("linear", "yarn"):
        found["rope.scaling.factor"] = float(parameters["factor"])
    if parameters.get("original_max_position_embeddings") and kind != "llama3":
        found["rope.scaling.original_context_length"] = parameters["original_max_position_embeddings"]
    if parameters.get("attention_factor"):
        found["rope.scaling.yarn_attn_factor"] = parameters["attention_factor"]
    return found


def permuted(array, heads):
    """Rows as llama.cpp rotates them: the two of a pair side by side."""
    rows = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
    return rows.swapaxes(1, 2).reshape(array.shape)


def changed(name, array, config):
    """A tensor of a checkpoint folder as a conversion writes it."""
    kind = config["model_type"]
    heads = config.get("num_attention_heads") or config.get("n_head")
    if kind in PERMUTED and ".q_proj." in name:
        return permuted(array, heads)
    if kind in PERMUTED and ".k_proj." in name:
        return permuted(array, config.get("num_key_value_heads") or heads)
    if kind in PLUS_ONE and name.endswith("norm.weight"):
        return array + np.float32(1)
    if kind == "gpt2" and ".c_" in name and array.ndim == 2:
        return array.T
    if "query_key_value" in name:  # by head at Hugging Face, all queries first in the file
        parts = array.reshape(heads, 3, -1, *array.shape[1:])
        return np.concatenate([parts[:, i].reshape(-1, *array.shape[1:]) for i in range(3)])
    return array


def llama3_factors(config):
    """The tensor that stands for rotary scaling of the kind llama3, or None."""
    parameters = config.get("rope_parameters") or {}
    if parameters.get("rope_type") != "llama3":
        return None
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = parameters["rope_theta"] ** -(np.arange(0, head_dim, 2, np.float32) / np.float32(head_dim))
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * frequencies / np.float32(2 * np.pi)
    smooth = (turns - low) / (high - low)
    between = 1 / ((1 - smooth) / parameters["factor"] + smooth)
    return np.where(turns > high, 1, np.where(turns < low, parameters["factor"], between)).astype(np.float32)


def tensors_of(folder, config, kind="F32", absent=()):
    """The tensors of a folder under the names of the format; matrices are stored as `kind`, some are left out."""
    architecture = next(
        a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[config["model_type"]]
    )
    names = gguf.get_tensor_name_map(architecture, config.get("num_hidden_layers") or config["n_layer"])
    checkpoint = Checkpoint(folder)
    found, heads = {}, {}
    for name, (_, entry) in sorted(checkpoint._left.copy().items()):
        if any(part in name for part in absent):
            continue
        array = changed(name, widen(checkpoint.take(name, entry.shape)), config)
        stem, _, head = name.removesuffix(".weight").partition(".norms.")
        if head:  # one tensor per head: they become one matrix
            heads.setdefault(stem, {})[int(head)] = array
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        found[theirs] = stored(array, kind if array.ndim == 2 and "norm" not in theirs else "F32")
    for stem, arrays in heads.items():
        matrix = np.stack([arrays[h] for h in range(len(arrays))])
        found[names.get_name(stem) + ".weight"] = stored(matrix)
    if config["tie_word_embeddings"]:
        found.pop("output.weight", None)
    parameters = config.get("rope_parameters") or {}
    factors = {"rope_freqs.weight": llama3_factors(config)}
    factors |= {f"rope_factors_{x}.weight": parameters.get(f"{x}_factor") for x in ("long", "short")}
    return found | {name: stored(values) for name, values in factors.items() if values is not None}


def convert(folder, path, kind="F32", **extra):
    """Write a checkpoint folder as a GGUF file; returns its path."""
    config = json.loads((folder / "config.json").read_text())
    return write(path, metadata_of(config) | extra, tensors_of(folder, config, kind))
