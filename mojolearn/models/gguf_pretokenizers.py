"""How vocabularies of byte pairs cut text into words first, by the name in ``tokenizer.ggml.pre``.

The names stand for tokenizers of released models; what each does is written here as in its ``tokenizer.json``.
"""

from typing import NamedTuple

ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
DIGIT, THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
LETTERS = BEFORE + r"\p{L}+"
SIGNS, SIGNS_OF_CODE = r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


class PreTokenizer(NamedTuple):
    """Expressions that cut, one after the other, each what the one before has left whole or cut out.

    ``whole_words``: a word that is a token is not put together from pairs. ``bos``: texts begin with the bos token
    unless the file says otherwise. ``nfc``: text is brought into composed form before.
    """

    expressions: tuple
    whole_words: bool = False
    bos: bool = False
    nfc: bool = False


def cased(tail):
    """Words that begin in capitals or end in small letters, with what may follow them."""
    return rf"{BEFORE}{UPPER}*{LOWER}+{tail}|{BEFORE}{UPPER}+{LOWER}*{tail}"


PLAIN = PreTokenizer((GPT2,))
DIGITS = PreTokenizer((DIGIT, GPT2))
LLAMA3 = PreTokenizer(("|".join((ENGLISH, LETTERS, THREE_DIGITS, SIGNS, SPACES)),))
LLAMA3_WORDS = LLAMA3._replace(whole_words=True, bos=True)
QWEN2 = PreTokenizer(("|".join((ENGLISH, LETTERS, DIGIT, SIGNS, SPACES)),))
O200K = PreTokenizer(("|".join((cased(ENGLISH + "?"), THREE_DIGITS, SIGNS_OF_CODE, SPACES)),))
TEKKEN = PreTokenizer(("|".join((cased(""), DIGIT, SIGNS_OF_CODE, SPACES)),), True, True)
DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", DIGIT))
UNNAMED = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "mpt", "jais"), PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone"), DIGITS),
    "olmo": PLAIN._replace(nfc=True),
    "command-r": DIGITS._replace(nfc=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), LLAMA3_WORDS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), LLAMA3),
    "glm4": LLAMA3._replace(whole_words=True),
    "qwen2": QWEN2._replace(nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "megrez"), QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), O200K),
    "tekken": TEKKEN,
    "deepseek-coder": DEEPSEEK_CODER,
    "default": UNNAMED,
}
