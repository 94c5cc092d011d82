"""What a checkpoint is and whether it can run here, without loading it."""

import contextlib
import math
import os

from mojolearn.models.config import read_config
from mojolearn.models.families import FAMILIES
from mojolearn.models.loading import open_checkpoint
from mojolearn.models.recipes import layer_weights
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
    >>> rows["family"], rows["parameters"], rows["weight format"], rows["runs"]
    ('llama', 1967808, 'float16', True)
    """
    rows = {"path": str(path)}
    try:
        config = read_config(path)
        rows |= _of_config(config)
        rows |= _of_weights(open_checkpoint(path)[1], config)
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
    defaults = {name: field.default for name, field in BlockOptions.__dataclass_fields__.items()}
    for name in dict.fromkeys(name for layer in config.layers for name in layer):
        default = defaults[name]
        values = list(
            {str(value): value for value in (layer.get(name, default) for layer in config.layers)}.values()
        )
        if values != [default]:
            rows[name] = values[0] if len(values) == 1 else values
    return rows


def _of_weights(checkpoint, config):
    """How the weights are stored, how many they are, and what memory they take; from headers alone."""
    stored = checkpoint.matrix_dtypes()
    form = next((name for name, dtype in STORAGE.items() if stored == {dtype}), "float32")
    parameters = _take_all(checkpoint, config)
    caches = [
        2 * 4 * options["n_kv_heads"] * options["head_dim"] * (options["window"] or 1)
        for options in config.layers
    ]
    windows = [options["window"] for options in config.layers]
    rows = {
        "parameters": parameters,
        "weight format": form,
        "memory of weights": BYTES[form] * parameters,
        "memory per token and row": sum(
            size for size, window in zip(caches, windows, strict=True) if not window
        ),
    }
    if any(windows):
        size = sum(size for size, window in zip(caches, windows, strict=True) if window)
        rows["memory of windows per row"] = size
    return rows


def _take_all(checkpoint, config):
    """Check name and shape of every tensor, without reading one; returns how many numbers the model has."""
    layout = FAMILIES[config.model_type].layout
    embedding, vector = (config.vocab_size, config.d_model), (config.d_model,)
    roots = (root for root in layout.roots if f"{root}{layout.embedding}.weight" in checkpoint)
    root = next(roots, layout.roots[0])
    head = next((name for name in layout.heads if f"{name}.weight" in checkpoint), layout.heads[0])
    wanted = {f"{root}{layout.embedding}.weight": embedding}
    if config.position_offset is not None:
        rows = config.max_position_embeddings + config.position_offset
        wanted[f"{root}{layout.positions}.weight"] = (rows, config.d_model)
    if config.norm is not None and not config.plain_norms:
        wanted[f"{root}{layout.norm}.weight"] = vector
        wanted |= {f"{root}{layout.norm}.bias": vector} if config.norm_bias else {}
    if config.head_bias:
        wanted[f"{head}.bias"] = (config.vocab_size,)
    tied = config.tie_word_embeddings
    if f"{head}.weight" in checkpoint or not tied:
        wanted[f"{head}.weight"] = embedding
    for name, shape in wanted.items():
        checkpoint.pass_over(name, shape)
    count = sum(math.prod(shape) for name, shape in wanted.items() if not (tied and name == f"{head}.weight"))
    for layer in range(config.n_layers):
        prefix = f"{root}{layout.layers.format(layer)}"
        shapes, head_dim = config.tensor_shapes(layer), config.layers[layer]["head_dim"]
        weights, origins = layer_weights(
            checkpoint.pass_over, layout, prefix, shapes, head_dim, plain_norms=config.plain_norms
        )
        count += sum(weights[name].size for name in weights if "no tensors" not in origins[name])
    checkpoint.finish(layout.ignored)
    return count


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
