"""What a checkpoint is and whether it can run here, without loading it."""

import contextlib
import math
import os

from mojolearn.models.checkpoint import Checkpoint
from mojolearn.models.config import read_config
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.options import BlockOptions
from mojolearn.weights import STORAGE

SIZES = ("n_layers", "d_model", "intermediate_size", "vocab_size", "max_position_embeddings")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def describe(path):
    """Read the configuration, the headers of the weights and the tokenizer of a checkpoint.

    Parameters
    ----------
    path : str or path
        As for `CausalLM.load`.

    Returns
    -------
    dict
        Of plain values, in an order to be read. ``"runs"`` tells whether the checkpoint can be loaded here as far as
        this can be known without reading the weights, ``"reason"`` why not.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> rows = describe(BUILT_IN)
    >>> rows["family"], rows["parameters"], rows["stored as"], rows["runs"]
    ('llama', 1967808, 'float16', True)
    """
    rows = {"path": str(path)}
    try:
        config = read_config(path)
        rows |= _of_config(config)
        rows |= _of_weights(path, config)
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        return {**rows, "runs": False, "reason": str(error).partition(": ")[2] or str(error)}
    rows |= _of_tokenizer(path)
    available = available_memory()
    if available is not None:
        rows["memory available"] = available
        if rows["memory of weights"] > available:
            reason = f"the weights take {rows['memory of weights']} bytes, but {available} are available"
            return {**rows, "runs": False, "reason": reason}
    return {**rows, "runs": True}


def _of_config(config):
    """Family and options; of options that differ from layer to layer, all values there are."""
    rows = {"family": config.model_type} | {name: getattr(config, name) for name in SIZES}
    for name in config.layers[0]:
        values = list({str(layer[name]): layer[name] for layer in config.layers}.values())
        default = BlockOptions.__dataclass_fields__[name].default
        if values != [default]:
            rows[name] = values[0] if len(values) == 1 else values
    return rows


def _of_weights(path, config):
    """How the weights are stored, how many they are, and what memory they take; from headers alone."""
    stored = Checkpoint(path).matrix_dtypes()
    form = next((name for name, dtype in STORAGE.items() if stored == {dtype}), "float32")
    shapes = [shape for layer in range(config.n_layers) for shape in config.tensor_shapes(layer).values()]
    matrix = config.vocab_size * config.d_model  # once as it is stored, for rows; once packed, for the head
    blocks = sum(math.prod(shape) for shape in shapes)
    cache = [
        2 * 4 * options["n_kv_heads"] * options["head_dim"]
        for options in config.layers
        if not options["window"]
    ]
    rings = [
        2 * 4 * options["n_kv_heads"] * options["head_dim"] * options["window"] for options in config.layers
    ]
    tied = config.tie_word_embeddings
    return {
        "parameters": blocks + config.d_model + matrix * (1 if tied else 2),
        "stored as": form,
        "memory of weights": BYTES[form] * (blocks + 2 * matrix),
        "memory per token and row": sum(cache),
        **({"memory of windows per row": sum(rings)} if any(rings) else {}),
    }


def _of_tokenizer(path):
    """Whether there is one, and for chats."""
    try:
        tokenizer = Tokenizer.load(path)
    except (ValueError, OSError, ImportError) as error:
        return {"tokenizer": f"none: {str(error).partition(': ')[2] or error}"}
    return {"tokenizer": f"{tokenizer.vocab_size} tokens", "chat templates": sorted(tokenizer.chat_templates)}


def available_memory():
    """Return the bytes of memory that programs can still have, or None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as table:
        for line in table:
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
