"""Tokenizers from the metadata of GGUF files, put together from parts of the library ``tokenizers``.

Two kinds of vocabulary are known: byte pairs with a list of merges ("gpt2"), and pieces with scores that fall back
to bytes, in the manner of SentencePiece ("llama").
"""

import math
from pathlib import Path

import numpy as np

from mojolearn.models.foreign import in_words
from mojolearn.models.gguf import open_parts
from mojolearn.models.gguf_file import Strings
from mojolearn.models.gguf_pretokenizers import PRE_TOKENIZERS
from mojolearn.models.gguf_special import CONTROL, USER_DEFINED, special_id
from mojolearn.scalars import counted, shown

UNKNOWN, BYTE = 2, 6  # of tokenizer.ggml.token_type, beside CONTROL and USER_DEFINED
SPACE = "▁"
OWN = "tokenizer.ggml."

# Keys after "tokenizer.ggml." that are not honoured, and need not be while they hold one of these values.
FIXED = {
    "add_sep_token": (False,),
    "normalizer.lowercase": (False,),
    "normalizer.strip_accents": (False,),
    "remove_extra_whitespaces": (False,),
    "token_type_count": (0, 1),
}
USED = frozenset(
    """
    model pre tokens token_type scores merges bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id
    add_bos_token add_eos_token add_space_prefix
    """.split()
)
# Names of tokens for other uses: padding, filling gaps, the prompts of classifiers.
HARMLESS = frozenset(
    f"{name}_token_id"
    for name in (
        *("padding", "seperator", "mask", "cls", "prefix", "suffix", "middle"),
        *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
    )
) | {"suppress_tokens"}
LONGEST_PIECE = 256  # characters; longer ones, which nobody has, are never put together
NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
TEMPLATE = "tokenizer.chat_template"
UNUSABLE = "holds no tokenizer that works"


def load_tokenizer(path, caller):
    """Read a tokenizer.

    Parameters
    ----------
    path : str or path
        The GGUF file, the first if there are several.
    caller : str
        The public name that messages start with.

    Returns
    -------
    backend : tokenizers.Tokenizer
        Without truncation and padding.
    settings : dict
        The ids ``bos_token_id`` and ``eos_token_id``, ``add_bos``, ``chat_templates`` by name (the usual one is
        "default"), and ``special_tokens``, the texts that templates may write.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is malformed, or its vocabulary or pre-tokenizer is not known.
    """
    file = open_parts(Path(path), caller)[0]
    metadata, where = file.metadata, file.where
    _check_keys(metadata, where)
    tokens, types = _tokens(metadata, where)
    model = metadata.get(OWN + "model")
    makers = {"gpt2": _byte_pairs, "llama": _pieces}
    if not isinstance(model, str) or model not in makers:
        raise ValueError(f"{where}: {OWN}model must be one of {', '.join(makers)}, not {shown(model)}")
    bos, eos = (special_id(metadata, kind, where) for kind in ("bos", "eos"))
    backend, add_bos = makers[model](metadata, tokens, types, where)
    add_bos = _wanted(metadata, "bos", add_bos, bos, where)
    add_eos = _wanted(metadata, "eos", False, eos, where)
    with in_words(f"{where} {UNUSABLE}"):
        _add_special(backend, metadata, tokens, types)
        if add_eos:
            _end_with(backend, tokens[eos], eos)
    named = {f"{kind}_token": special_id(metadata, name, where) for kind, name in NAMED.items()}
    return backend, {
        "bos_token_id": bos,
        "eos_token_id": eos,
        "add_bos": add_bos or (None if add_eos else False),
        "chat_templates": _templates(metadata, where),
        "special_tokens": {kind: tokens[i] for kind, i in named.items() if i is not None},
    }


def _check_keys(metadata, where):
    """Refuse keys of tokenizers that nobody knows."""
    for key, value in metadata.items():
        if not key.startswith(OWN):
            continue
        name = key.removeprefix(OWN)
        allowed = FIXED.get(name, ())
        if name not in USED | HARMLESS and not any(type(value) is type(v) and value == v for v in allowed):
            raise ValueError(f"{where}: {key} = {shown(value)} is not honoured")


def _flag(metadata, name, default, where):
    value = metadata.get(OWN + name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {OWN}{name} must be true or false, not {shown(value)}")
    return value


def _wanted(metadata, kind, default, number, where):
    """Tell whether a token is added to every text; it must exist then."""
    wanted = _flag(metadata, f"add_{kind}_token", default, where)
    if wanted and number is None:
        raise ValueError(f"{where}: {OWN}add_{kind}_token is true, but there is no {OWN}{kind}_token_id")
    return wanted


def _list(metadata, name, kinds, count, where):
    """Return a list of `count` numbers."""
    value = metadata.get(OWN + name)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
        raise ValueError(
            f"{where}: {OWN}{name} must be a list of numbers, one for each token, not {shown(value)}"
        )
    if len(value) != count:
        raise ValueError(
            f"{where}: {OWN}{name} has {len(value)} entries, but there are {counted(count, 'token')}"
        )
    return value


def _strings(metadata, name, where):
    value = metadata.get(OWN + name)
    if not isinstance(value, Strings):
        raise ValueError(f"{where}: {OWN}{name} must be a list of strings, not {shown(value)}")
    return value.read(OWN + name)


def _tokens(metadata, where):
    """Return the texts of all tokens, each different, and their types."""
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(_strings(metadata, "tokens", where))]
    if not tokens:
        raise ValueError(f"{where}: {OWN}tokens is empty")
    if len(set(tokens)) != len(tokens):
        first = {}
        twice = next(i for i, text in enumerate(tokens) if first.setdefault(text, i) != i)
        raise ValueError(
            f"{where}: the tokens {first[tokens[twice]]} and {twice} are the same, {shown(tokens[twice])}"
        )
    if OWN + "token_type" not in metadata:
        return tokens, np.ones(len(tokens), np.int32)
    return tokens, _list(metadata, "token_type", "iu", len(tokens), where)


def _byte_pairs(metadata, tokens, types, where):
    """Make a tokenizer of bytes and merges."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = metadata.get(OWN + "pre")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise ValueError(f"{where}: {OWN}pre must be one of {', '.join(PRE_TOKENIZERS)}, not {shown(name)}")
    pre = PRE_TOKENIZERS[name]
    if _flag(metadata, "add_space_prefix", False, where):
        raise ValueError(f"{where}: {OWN}add_space_prefix must be false for {OWN}model 'gpt2'")
    merges = []
    for line in _strings(metadata, "merges", where):
        at = line.find(" ", 1)
        if at < 0 or at == len(line) - 1:
            raise ValueError(
                f"{where}: {OWN}merges holds {shown(line)}; wanted are two tokens and a space between"
            )
        merges.append((line[:at], line[at + 1 :]))
    vocabulary = {text: i for i, text in enumerate(tokens)}
    with in_words(f"{where} {UNUSABLE}"):
        backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre.whole_words))
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in pre.expressions]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_])
    backend.decoder = decoders.ByteLevel()
    return backend, pre.bos


def _pieces(metadata, tokens, types, where):
    """Make a tokenizer of pieces with scores: the pair that makes the piece of the highest score is joined first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _list(metadata, "scores", "fi", len(tokens), where).tolist()
    if any(math.isnan(score) for score in scores):
        raise ValueError(f"{where}: {OWN}scores must be numbers, not nan")
    vocabulary = {text: i for i, text in enumerate(tokens)}
    special = {tokens[i] for i in np.flatnonzero((types == CONTROL) | (types == UNKNOWN) | (types == BYTE))}
    unknown = special_id(metadata, "unknown", where)
    merges = _merges(vocabulary, scores, special)
    with in_words(f"{where} {UNUSABLE}"):
        unk_token = None if unknown is None else tokens[unknown]
        backend = Tokenizer(
            models.BPE(vocabulary, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True)
        )
    prefix = _flag(metadata, "add_space_prefix", True, where)
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend, True


def _merges(vocabulary, scores, special):
    """List all pairs of pieces that make a piece, in the order of its score."""
    merges = []
    for piece, i in vocabulary.items():
        if piece in special or len(piece) > LONGEST_PIECE:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary and left not in special and right not in special:
                merges.append((-scores[i], -len(left), left, right))
    merges.sort()
    return [(left, right) for _, _, left, right in merges]


def _add_special(backend, metadata, tokens, types):
    """Tell the tokenizer which tokens are found as they stand, before anything else is done to the text."""
    from tokenizers import AddedToken

    name = metadata.get("general.name")
    eager = isinstance(name, str) and (
        "phi-3" in name.lower() or "phi3" in name.lower()
    )  # they swallow spaces
    shy = ("<unk>", "<s>", "<|endoftext|>")

    def added(i, special):
        return AddedToken(tokens[i], special=special, normalized=False, rstrip=eager and tokens[i] not in shy)

    control = np.flatnonzero((types == CONTROL) | (types == UNKNOWN))
    backend.add_special_tokens([added(i, True) for i in control])
    backend.add_tokens([added(i, False) for i in np.flatnonzero(types == USER_DEFINED)])


def _end_with(backend, text, number):
    from tokenizers.processors import TemplateProcessing

    backend.post_processor = TemplateProcessing(f"$A {text}", special_tokens=[(text, number)])


def _templates(metadata, where):
    """Return the chat templates by name."""
    found = {key: text for key, text in metadata.items() if key == TEMPLATE or key.startswith(TEMPLATE + ".")}
    for key, text in found.items():
        if not isinstance(text, str):
            raise ValueError(f"{where}: {key} must be a string, not {shown(text)}")
    return {key.removeprefix(TEMPLATE).removeprefix(".") or "default": text for key, text in found.items()}
