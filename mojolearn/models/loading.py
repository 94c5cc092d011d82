"""From a checkpoint folder to the parts of a model, each tensor checked and put in its place."""

import numpy as np

from mojolearn.block import TransformerBlock
from mojolearn.buffers import first_nonfinite
from mojolearn.layers import Linear, Norm
from mojolearn.models import families
from mojolearn.models.checkpoint import Checkpoint
from mojolearn.models.config import CALLER, read_config
from mojolearn.options import MOST_POSITIONS
from mojolearn.scalars import admit_choice, admit_integer
from mojolearn.weights import STORAGE, narrow, widen


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
    config = read_config(path)
    if max_positions is not None:
        max_positions = admit_integer(max_positions, "max_positions", CALLER, 1, MOST_POSITIONS)
    elif config.max_position_embeddings is not None:
        max_positions = min(config.max_position_embeddings, MOST_POSITIONS)
    checkpoint = Checkpoint(path)
    if weight_format is None:
        stored = checkpoint.matrix_dtypes()
        weight_format = next((name for name, dtype in STORAGE.items() if stored == {dtype}), "float32")
    admit_choice(weight_format, "weight_format", CALLER, tuple(STORAGE))

    shape = (config.vocab_size, config.d_model)
    embedding = _take_finite(checkpoint, families.EMBEDDING, shape)
    norm = _take_finite(checkpoint, families.FINAL_NORM, (config.d_model,))
    head, head_name = embedding, families.EMBEDDING
    if families.HEAD in checkpoint or not config.tie_word_embeddings:
        head, head_name = _take_finite(checkpoint, families.HEAD, shape), families.HEAD
    if (
        config.tie_word_embeddings
        and head is not embedding
        and not np.array_equal(widen(head), widen(embedding))
    ):
        raise ValueError(
            f"{CALLER}: {path}: {families.HEAD} must equal {families.EMBEDDING}, as tie_word_embeddings is true"
        )
    head = _stored(head, weight_format, f"{CALLER}: {path}: {head_name}")
    head = Linear(head)
    blocks = []
    for layer in range(config.n_layers):
        blocks.append(_block(checkpoint, config, layer, weight_format, max_positions))
        checkpoint.release()  # packed by now: without this the file would be in memory twice
    checkpoint.finish(families.IGNORED_TENSORS)
    return {
        "config": config,
        "blocks": blocks,
        "embedding": embedding,
        "norm": Norm(config.norm, widen(norm), eps=config.norm_eps),
        "head": head,
        "weight_format": weight_format,
        "max_positions": max_positions,
    }


def _block(checkpoint, config, layer, weight_format, max_positions):
    weights = {}
    for name, shape in config.tensor_shapes(layer).items():
        part, _, leaf = name.partition(".")
        stored_name = f"{families.LAYER.format(layer)}{families.TENSORS[part]}.{leaf}"
        array = checkpoint.take(stored_name, shape)
        weights[name] = array if array.dtype == STORAGE[weight_format] else widen(array)
    options = {**config.layers[layer], "max_positions": max_positions, "weight_format": weight_format}
    try:
        return TransformerBlock(weights, **options)
    except (TypeError, ValueError) as error:
        raise retold(error, f"{checkpoint.where}: layer {layer}") from error


def retold(error, where):
    """Return a block's error as one of the model: where it happened, instead of the block's public name."""
    name, _, reason = str(error).partition(": ")
    kind_of_error = next(k for k in (TypeError, MemoryError, ValueError) if isinstance(error, k))
    return kind_of_error(f"{where}: {reason or name}")


def _take_finite(checkpoint, name, shape):
    """Take a tensor out of the checkpoint, in memory of our own, and check that all its values are numbers."""
    array = np.array(checkpoint.take(name, shape))
    for first in range(0, len(array), 1024):
        at = first_nonfinite(widen(array[first : first + 1024]))
        if at is not None:
            index = np.unravel_index(first * array[0].size + at, shape)
            place = ", ".join(map(str, index))
            raise ValueError(
                f"{checkpoint.where}: {name}[{place}] is {widen(array[index])}, not a finite number"
            )
    return array


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
