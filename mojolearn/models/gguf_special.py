"""Which tokens of a GGUF vocabulary begin and end texts."""

import numpy as np

from mojolearn.models.gguf_file import Strings
from mojolearn.scalars import shown

CONTROL, USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type
NO_TOKEN = 2**32 - 1  # how some files write that there is none

# What llama.cpp takes for the ids that a vocabulary of the kind "llama" does not give.
LLAMA_DEFAULTS = {"unknown": 0, "bos": 1, "eos": 2}

# Tokens that end a turn or a text whatever the metadata say, as llama.cpp has it.
ENDS = frozenset(
    """
    <|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <|eom_id|> <|return|> <EOT> _<EOT>
    """.split()
)


def special_id(metadata, kind, where):
    """Return the id of a special token, or None.

    Parameters
    ----------
    metadata : dict
        The metadata of the file.
    kind : str
        Such as "bos", for ``tokenizer.ggml.bos_token_id``.
    where : str
        What messages start with.

    Returns
    -------
    int or None
        The id.

    Raises
    ------
    ValueError
        What stands there is no token of the vocabulary.
    """
    key = f"tokenizer.ggml.{kind}_token_id"
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, Strings) else None
    model = metadata.get("tokenizer.ggml.model")
    if key not in metadata:
        number = LLAMA_DEFAULTS.get(kind) if isinstance(model, str) and model == "llama" else None
        return number if number is not None and number < (count or 0) else None
    number = metadata[key]
    if type(number) is int and number == NO_TOKEN:
        return None
    if type(number) is not int or not 0 <= number < (NO_TOKEN if count is None else count):
        wanted = "a token id" if count is None else f"from 0 to {count - 1}, as there are {count} tokens"
        raise ValueError(f"{where}: {key} must be {wanted}, not {shown(number)}")
    return number


def end_ids(metadata, where):
    """Return the ids of all tokens that end a text or a turn, the proper one first.

    Parameters
    ----------
    metadata : dict
        The metadata of the file.
    where : str
        What messages start with.

    Returns
    -------
    list of int
        Each id once.

    Raises
    ------
    ValueError
        Something that should be a token is none.
    """
    ids = [special_id(metadata, kind, where) for kind in ("eos", "eot", "eom")]
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if isinstance(tokens, Strings) and isinstance(types, np.ndarray) and len(types) == len(tokens):
        texts = tokens.read("tokenizer.ggml.tokens")
        special = np.flatnonzero((types == CONTROL) | (types == USER_DEFINED))
        ids += [int(i) for i in special if texts[i] in ENDS]
    return list(dict.fromkeys(i for i in ids if i is not None))
