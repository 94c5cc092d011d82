"""A hash that tells whether two models compute the same: over their arithmetic and every weight."""

import dataclasses

import numpy as np

from mojolearn.block import TransformerBlock
from mojolearn.fingerprint import add_array, add_block, add_json, new_digest
from mojolearn.layers import Linear, Norm

# What does not change a logit: names, ends of texts, ceilings, and how exactly the same weights are stored.
CONFIG_ASIDE = {
    "bos_token_id", "eos_token_ids", "generation", "layers", "max_position_embeddings", "model_type",
    "tie_word_embeddings",
}  # fmt: skip
MODEL_ASIDE = {"config", "max_positions", "path", "weight_format", "_fingerprint", "_limit", "_tokenizer"}


def fingerprint(lm):
    """Compute the fingerprint of a model.

    Parameters
    ----------
    lm : CausalLM
        The model; every weight is read.

    Returns
    -------
    str
        64 hexadecimal digits: SHA-256 over the version of the numerics, the settings that enter the arithmetic, the
        options of every block, and the float32 values of every weight. A model stored narrow and the same values
        stored wide agree; so do two spellings of one configuration.
    """
    digest = new_digest()
    settings = {
        field.name: getattr(lm.config, field.name)
        for field in dataclasses.fields(lm.config)
        if field.name not in CONFIG_ASIDE
    }
    add_json(digest, settings)
    for name, value in sorted(vars(lm).items()):
        if name not in MODEL_ASIDE:
            digest.update(name.encode())
            _add(digest, name, value)
    return digest.hexdigest()


def _add(digest, name, value):
    """Add a part of a model, whatever it is made of."""
    if isinstance(value, TransformerBlock):
        add_block(digest, value)
    elif isinstance(value, Linear):
        _add(digest, name, value.matrix())
        if value.vector() is not None:
            _add(digest, f"{name}.bias", value.vector())
    elif isinstance(value, Norm):
        add_json(digest, [value.kind, float(value.eps)])
        _add(digest, name, (value.weight, value.bias))
    elif isinstance(value, tuple):
        for part in value:
            _add(digest, name, part)
    elif isinstance(value, np.ndarray):
        add_array(digest, name, value)
    elif value is None or isinstance(value, (bool, int, float, str, np.generic)):
        add_json(digest, [name, value])
    elif type(value).__module__.startswith("mojolearn."):
        for part in sorted(vars(value).items()):
            _add(digest, *part)
    else:
        raise TypeError(
            f"CausalLM.fingerprint: {name} is of a kind that has no fingerprint, {type(value).__name__}"
        )
