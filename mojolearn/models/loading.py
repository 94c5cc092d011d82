"""From a checkpoint folder to the parts of a model, each tensor checked and put in its place."""

import numpy as np

from mojolearn.block import TransformerBlock
from mojolearn.buffers import first_nonfinite
from mojolearn.layers import Norm
from mojolearn.models.checkpoint import Checkpoint
from mojolearn.models.config import CALLER, parse_config, read_config
from mojolearn.models.embedding import Embedding
from mojolearn.models.families import FAMILIES
from mojolearn.models.gguf import GGUFCheckpoint
from mojolearn.models.gguf_file import is_gguf
from mojolearn.models.head import Head
from mojolearn.models.progress import with_progress
from mojolearn.models.recipes import layer_weights
from mojolearn.options import MOST_POSITIONS
from mojolearn.scalars import admit_choice, admit_integer
from mojolearn.weights import STORAGE, narrow, widen

PIECE = 1024  # rows that are widened at once, only to be looked at


def open_checkpoint(path):
    """Return the `ModelConfig` of a folder or GGUF file, and its tensors, of which none has been read."""
    if is_gguf(path):
        checkpoint = GGUFCheckpoint(path)
        return parse_config(checkpoint.raw_config, checkpoint.where), checkpoint
    return read_config(path), Checkpoint(path)


def load_parts(path, weight_format, max_positions):
    """Load everything that `CausalLM` is made of.

    Parameters
    ----------
    path, weight_format, max_positions
        As for `CausalLM.load`.

    Returns
    -------
    dict
        The keyword arguments of `CausalLM`.
    """
    config, checkpoint = open_checkpoint(path)
    max_positions = _ceiling(config, max_positions)
    if weight_format is None:
        stored = checkpoint.matrix_dtypes()
        weight_format = next((name for name, dtype in STORAGE.items() if stored == {dtype}), "float32")
    admit_choice(weight_format, "weight_format", CALLER, tuple(STORAGE))

    layout = FAMILIES[config.model_type].layout
    roots = (root for root in layout.roots if f"{root}{layout.embedding}.weight" in checkpoint)
    root = next(roots, layout.roots[0])
    embedding_name = f"{root}{layout.embedding}.weight"
    embedding = _take_finite(checkpoint, embedding_name, (config.vocab_size, config.d_model))
    positions = None
    if config.position_offset is not None:
        rows = config.max_position_embeddings + config.position_offset
        positions = _take_finite(checkpoint, f"{root}{layout.positions}.weight", (rows, config.d_model))
        positions = np.array(widen(positions[config.position_offset :]))
    norm = _final_norm(checkpoint, config, f"{root}{layout.norm}")
    head = _head(checkpoint, config, layout, embedding, embedding_name, weight_format)
    # Packed rows can be read as well: where the head is the embedding there is no second copy of it.
    embedding = head.linear if config.tie_word_embeddings else np.require(embedding, requirements=["O"])
    checkpoint.release()
    blocks = []
    for layer in with_progress(range(config.n_layers), "layer"):
        prefix = f"{root}{layout.layers.format(layer)}"
        blocks.append(_block(checkpoint, config, layout, prefix, layer, weight_format, max_positions))
        checkpoint.release()  # packed by now: without this the file would be in memory twice
    checkpoint.finish(layout.ignored)
    return {
        "config": config,
        "blocks": blocks,
        "embedding": Embedding(embedding, config.embedding_multiplier, positions),
        "norm": norm,
        "head": head,
        "weight_format": weight_format,
        "max_positions": max_positions,
    }


def _ceiling(config, max_positions):
    """Return the ceiling on positions: what the caller asks for, or what the config says."""
    most = config.max_position_embeddings
    if max_positions is not None:
        max_positions = admit_integer(max_positions, "max_positions", CALLER, 1, MOST_POSITIONS)
        if config.position_offset is not None and max_positions > most:
            raise ValueError(
                f"{CALLER}: max_positions must be at most {most}, the number of positions that the model has "
                f"learned, not {max_positions}"
            )
        return max_positions
    return None if most is None else min(most, MOST_POSITIONS)


def _final_norm(checkpoint, config, name):
    if config.norm is None:
        return None
    shape, bias = (config.d_model,), None
    if config.plain_norms:
        weight = np.ones(shape, np.float32)
    else:
        weight = _take_vector(checkpoint, f"{name}.weight", shape)
        bias = _take_vector(checkpoint, f"{name}.bias", shape) if config.norm_bias else None
    return Norm(config.norm, weight, bias, config.norm_eps)


def _head(checkpoint, config, layout, embedding, embedding_name, weight_format):
    name = next((name for name in layout.heads if f"{name}.weight" in checkpoint), layout.heads[0])
    weight, weight_name = embedding, embedding_name
    if f"{name}.weight" in checkpoint or not config.tie_word_embeddings:
        weight_name = f"{name}.weight"
        weight = _take_finite(checkpoint, weight_name, embedding.shape)
    tied = weight is embedding or not config.tie_word_embeddings
    if not tied and not _equal(weight, embedding):
        raise ValueError(
            f"{checkpoint.where}: {weight_name} must equal {embedding_name}, as tie_word_embeddings is true"
        )
    bias = None
    if config.head_bias:
        bias = _take_vector(checkpoint, f"{name}.bias", (config.vocab_size,))
    return Head(
        _stored(weight, weight_format, f"{checkpoint.where}: {weight_name}"),
        bias,
        multiplier=config.logit_multiplier,
        divisor=config.logit_divisor,
        softcap=config.logit_softcap,
    )


def _block(checkpoint, config, layout, prefix, layer, weight_format, max_positions):
    options, where = config.layers[layer], f"{checkpoint.where}: layer {layer}"
    try:
        shapes = config.tensor_shapes(layer)
    except (TypeError, ValueError) as error:  # options that do not go together
        raise retold(error, where) from error
    weights, origins = layer_weights(
        checkpoint.take, layout, prefix, shapes, options["head_dim"], plain_norms=config.plain_norms
    )
    for name, array in weights.items():
        weights[name] = array if array.dtype == STORAGE[weight_format] else widen(array)
    options = {**options, "max_positions": max_positions, "weight_format": weight_format}
    try:
        return TransformerBlock(weights, **options)
    except (TypeError, ValueError) as error:
        origin = next((o for name, o in origins.items() if f": {name}" in str(error)), None)
        raise retold(error, where, f" (of {origin})" if origin else "") from error


def retold(error, where, hint=""):
    """Return a block's error as one of the model: where it happened, instead of the block's public name."""
    name, _, reason = str(error).partition(": ")
    kind_of_error = next(k for k in (TypeError, MemoryError, ValueError) if isinstance(error, k))
    return kind_of_error(f"{where}: {reason or name}{hint}")


def _take_finite(checkpoint, name, shape):
    """Take a tensor out of the checkpoint, in the memory of the file, and check that all its values are numbers."""
    array = checkpoint.take(name, shape)
    for first in range(0, len(array), PIECE):
        at = first_nonfinite(widen(array[first : first + PIECE]))
        if at is not None:
            index = np.unravel_index(first * array[0].size + at, shape)
            place = ", ".join(map(str, index))
            raise ValueError(
                f"{checkpoint.where}: {name}[{place}] is {widen(array[index])}, not a finite number"
            )
    return array


def _take_vector(checkpoint, name, shape):
    """Take a vector, as float32 in memory of our own."""
    return np.array(widen(_take_finite(checkpoint, name, shape)))


def _equal(a, b):
    """Whether two matrices of one shape hold the same numbers, in whatever formats."""
    pieces = range(0, len(a), PIECE)
    return all(np.array_equal(widen(a[i : i + PIECE]), widen(b[i : i + PIECE])) for i in pieces)


def _stored(array, weight_format, where):
    """Bring a matrix into a storage format, without rounding."""
    if array.dtype == STORAGE[weight_format]:
        return array
    wide = widen(array)
    stored = narrow(wide, weight_format)
    if not np.array_equal(widen(stored), wide):
        raise ValueError(
            f"{where} holds values that {weight_format} cannot hold exactly; nothing is ever rounded"
        )
    return stored
