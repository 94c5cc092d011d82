"""The language model inside the config of a model of texts and pictures."""

from mojolearn.models.irrelevant import HARMLESS
from mojolearn.models.strict_json import Fields, agreed

# What the outer object says of pictures, which a text never meets.
PICTURES = frozenset(
    """
    boi_token_id boi_token_index eoi_token_id eoi_token_index image_token_id image_token_index
    mm_tokens_per_image vision_config
    """.split()
)
SHARED = ("bos_token_id", "eos_token_id", "tie_word_embeddings")  # the outer object may hold these instead


def text_part(fields, model_type, spellings):
    """Take the inner config out of the outer one.

    Parameters
    ----------
    fields : Fields
        Those of the outer config; all are taken that need not be refused.
    model_type : str
        What the inner ``text_config`` must be.
    spellings : dict
        As for `Fields`.

    Returns
    -------
    Fields
        Those of the language model, and what is left of the outer ones.

    Raises
    ------
    ValueError
        There is no inner config, or it is of another kind or contradicts the outer one.
    """
    inner = fields.take("text_config")
    if not isinstance(inner, dict):
        raise fields.wrong("text_config", inner, "a JSON object")
    found = inner.get("model_type")
    if found not in (None, model_type):
        raise fields.wrong("text_config.model_type", found, model_type)
    merged = {name: value for name, value in inner.items() if name not in ("model_type", "architectures")}
    for name in SHARED:
        given = {f"text_config.{name}": inner.get(name), name: fields.left.pop(name, None)}
        given = {key: value for key, value in given.items() if value is not None}
        if name == "tie_word_embeddings":
            merged[name] = agreed(given, None, fields.where)
        elif name in given:
            merged[name] = given[name]
    left = {
        k: v for k, v in fields.left.items() if k not in PICTURES and k not in HARMLESS and k not in merged
    }
    return Fields({**left, **merged}, fields.where, spellings)
