"""Tokenizers from GGUF metadata: against the definitions of both kinds, in plain Python."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from gguf_files import write
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from mojolearn.models.gguf_pretokenizers import PRE_TOKENIZERS
from mojolearn.models.tokenizer import Tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
OWN = "tokenizer.ggml."


def ints(values):
    return [np.int32(v) for v in values]


def byte_pairs(pre="gpt-2", words=("he", "hel", "Ġh", "Ġhe", "llo", "ll", "hello"), **extra):
    """Metadata of a vocabulary of bytes, some pairs, and special tokens at the end."""
    merges = ["h e", "l l", "ll o", "he l", "Ġ h", "Ġ he", "he llo"]
    tokens = [*BYTES, *words, "<s>", "</s>", "<tool>", "  "]
    types = [NORMAL] * (len(tokens) - 4) + [CONTROL, CONTROL, USER, USER]
    own = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": ints(types),
        "merges": merges,
        "bos_token_id": tokens.index("<s>"),
        "eos_token_id": tokens.index("</s>"),
    }
    return {OWN + key: value for key, value in (own | extra).items() if value is not None}


PIECES = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁ab", "aa", "aaa", "bb", "cab", "▁▁", "▁c", "ca"]
SCORES = [-20.0, -21.0, -22.0, -23.0, -1.0, -2.0, -3.5, -4.0, -2.5, -5.0, -6.0, -7.0, -3.0, -8.0, -9.0, -10.0]


def pieces(**extra):
    """Metadata of a vocabulary of pieces with scores, and bytes to fall back to."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *PIECES,
        "<tool>",
        "\n\n",
        "[PAD]",
    ]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES), USER, USER, UNUSED]
    scores = [0.0] * 259 + SCORES + [-1000.0] * 3
    own = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": ints(types), "scores": scores}
    return {OWN + key: value for key, value in (own | extra).items() if value is not None}


def load(folder, metadata):
    return Tokenizer.load(write(folder / "x.gguf", metadata, {}))


def refused(folder, metadata, match):
    path = write(folder / "x.gguf", metadata, {})
    with pytest.raises(ValueError, match=match) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(f"Tokenizer.load: {path}")
    assert "\n" not in str(caught.value)


# --- byte pairs ---------------------------------------------------------------------------------------------

TEXTS = ["It's 12345 o'CLOCK,\n\n  I'LL x_1 fooBar!!\n", "a  b   7½ \t\r\n漢字か ÄÖü's//\n"]
CUTS = {
    "gpt-2": (
        [
            "It",
            "'s",
            " 12345",
            " o",
            "'",
            "CLOCK",
            ",",
            "\n\n ",
            " I",
            "'",
            "LL",
            " x",
            "_",
            "1",
            " fooBar",
            "!!",
            "\n",
        ],
        ["a", " ", " b", "  ", " 7½", " \t\r", "\n", "漢字か", " ÄÖü", "'s", "//", "\n"],
    ),
    "smollm": (
        [
            *["It", "'s", " ", *"12345", " o", "'", "CLOCK", ",", "\n\n ", " I", "'", "LL"],
            " x",
            "_",
            "1",
            " fooBar",
            "!!",
            "\n",
        ],
        ["a", " ", " b", "   ", "7", "½", " \t\r", "\n", "漢字か", " ÄÖü", "'s", "//", "\n"],
    ),
    "llama-bpe": (
        [
            "It",
            "'s",
            " ",
            "123",
            "45",
            " o",
            "'CLOCK",
            ",\n\n",
            " ",
            " I",
            "'LL",
            " x",
            "_",
            "1",
            " fooBar",
            "!!\n",
        ],
        ["a", " ", " b", "  ", " ", "7½", " \t\r\n", "漢字か", " ÄÖü", "'s", "//\n"],
    ),
    "qwen2": (
        [
            "It",
            "'s",
            " ",
            *"12345",
            " o",
            "'CLOCK",
            ",\n\n",
            " ",
            " I",
            "'LL",
            " x",
            "_",
            "1",
            " fooBar",
            "!!\n",
        ],
        ["a", " ", " b", "  ", " ", "7", "½", " \t\r\n", "漢字か", " ÄÖü", "'s", "//\n"],
    ),
    "gpt-4o": (
        [
            "It's",
            " ",
            "123",
            "45",
            " o",
            "'CLOCK",
            ",\n\n",
            " ",
            " I'LL",
            " x",
            "_",
            "1",
            " foo",
            "Bar",
            "!!\n",
        ],
        ["a", " ", " b", "  ", " ", "7½", " \t\r\n", "漢字か", " ÄÖü's", "//\n"],
    ),
    "tekken": (
        [
            "It",
            "'s",
            " ",
            *"12345",
            " o",
            "'CLOCK",
            ",\n\n",
            " ",
            " I",
            "'LL",
            " x",
            "_",
            "1",
            " foo",
            "Bar",
            "!!\n",
        ],
        ["a", " ", " b", "  ", " ", "7", "½", " \t\r\n", "漢字か", " ÄÖü", "'s", "//\n"],
    ),
    "deepseek-coder": (
        [
            *["It", "'", "s", " ", *"12345", " o", "'", "CLOCK", ",", "\n", "\n", " ", " I", "'", "LL"],
            *[" x", "_", "1", " fooBar", "!!", "\n"],
        ],
        ["a", " ", " b", "   ", "7", "½", " \t", "\r", "\n", "漢字か", " ÄÖü", "'", "s", "//", "\n"],
    ),
    "default": (
        [
            *["It", "'", "s", " ", "123", "45", " o", "'", "CLOCK", ",", "\n\n ", " I", "'", "LL"],
            *[" x", "_", "1", " fooBar", "!!", "\n"],
        ],
        ["a", " ", " b", "  ", " ", "7½", " \t\r", "\n", "漢字か", " ÄÖü", "'", "s", "//", "\n"],
    ),
}


def cut(name, text):
    steps = [pre_tokenizers.Split(Regex(e), "isolated") for e in PRE_TOKENIZERS[name].expressions]
    return [word for word, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", CUTS)
def test_words(name):
    assert [cut(name, text) for text in TEXTS] == list(CUTS[name])


def test_every_way_to_cut_is_tested():
    tested = {PRE_TOKENIZERS[name].expressions for name in CUTS}
    assert {pre.expressions for pre in PRE_TOKENIZERS.values()} == tested


@given(st.text(max_size=40))
def test_two_ways_to_say_the_same(text):
    """GPT-2's expression is built into the library, and so are single digits."""
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def ours(name):
        steps = [pre_tokenizers.Split(Regex(e), "isolated") for e in PRE_TOKENIZERS[name].expressions]
        return pre_tokenizers.Sequence([*steps, letters]).pre_tokenize_str(text)

    assert ours("gpt-2") == theirs.pre_tokenize_str(text)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), theirs])
    assert ours("smollm") == digits.pre_tokenize_str(text)


def test_pairs_are_joined_in_order(tmp_path):
    tokenizer = load(tmp_path, byte_pairs())
    names = tokenizer._backend.id_to_token
    wanted = ["hello", "Ġhe", "llo", "Ġ", "hel", "p"]
    assert [names(i) for i in tokenizer.encode("hello hello help")] == wanted
    assert tokenizer.decode(tokenizer.encode("hello, naïve 漢字\n")) == "hello, naïve 漢字\n"


def test_whole_words(tmp_path):
    """Where a pre-tokenizer asks for it, a word that is a token is one, whatever its pairs are."""
    words = ("he", "hel", "Ġh", "Ġhe", "llo", "ll", "hello", "held")
    for pre, wanted in (("gpt-2", ["hel", "d"]), ("llama-bpe", ["held"])):
        tokenizer = load(tmp_path, byte_pairs(pre, words, add_bos_token=False))
        assert [tokenizer._backend.id_to_token(i) for i in tokenizer.encode("held")] == wanted


@pytest.mark.parametrize("pre", ["qwen2", "gpt-2"])
def test_composed_text(tmp_path, pre):
    """As the tokenizer.json of the models does that go by this name."""
    tokenizer = load(tmp_path, byte_pairs(pre))
    same = tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")
    assert same is (pre == "qwen2")


def test_special_tokens(tmp_path):
    tokenizer = load(tmp_path, byte_pairs())
    vocabulary = tokenizer._backend.get_vocab()
    ids = tokenizer.encode("h</s>h<tool>  h")
    wanted = ["h", "</s>", "h", "<tool>", "  ", "h"]
    assert ids == [vocabulary[token] for token in wanted]
    assert tokenizer.decode(ids) == "hh<tool>  h"  # those of the user are text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (vocabulary["<s>"], vocabulary["</s>"])
    assert tokenizer.vocab_size == len(vocabulary) == 256 + 7 + 4


@pytest.mark.parametrize(
    ("make", "keys", "wanted"),
    [
        (byte_pairs, {}, (False, False)),
        (byte_pairs, {"add_bos_token": True}, (True, False)),
        (byte_pairs, {"add_eos_token": True}, (False, True)),
        (byte_pairs, {"add_bos_token": True, "add_eos_token": True}, (True, True)),
        (byte_pairs, {"pre": "llama-bpe"}, (True, False)),
        (byte_pairs, {"pre": "llama-bpe", "add_bos_token": False}, (False, False)),
        (pieces, {}, (True, False)),
        (pieces, {"add_bos_token": False}, (False, False)),
        (pieces, {"add_bos_token": False, "add_eos_token": True}, (False, True)),
    ],
)
def test_what_is_added_to_texts(tmp_path, make, keys, wanted):
    tokenizer = load(tmp_path, make(**keys))
    for text in ("a", "<s>a"):
        ids = tokenizer.encode(text)
        begins = wanted[0] or text.startswith("<s>")
        assert (ids[0] == tokenizer.bos_token_id) is begins
        assert (ids[-1] == tokenizer.eos_token_id) is wanted[1]
        assert ids.count(tokenizer.bos_token_id) == begins
    assert tokenizer.bos_token_id not in tokenizer.encode("a", add_bos=False)


# --- pieces with scores -------------------------------------------------------------------------------------


def joined(text, vocabulary, scores):
    """The tokens of a text without special ones: the best pair is joined first, of equals the leftmost."""
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [
        i
        for part in parts
        for i in (
            [vocabulary[part]] if part in vocabulary else [vocabulary[f"<0x{b:02X}>"] for b in part.encode()]
        )
    ]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """The vocabulary of pieces, with and without a space before every text."""
    found = {}
    for prefix in (True, False):
        folder = tmp_path_factory.mktemp("pieces")
        found[prefix] = load(folder, pieces(add_space_prefix=prefix, add_bos_token=False))
    return found


@given(st.text("abc dé", max_size=16), st.booleans())
def test_best_pair_first(tokenizers, text, prefix):
    tokenizer = tokenizers[prefix]
    vocabulary = tokenizer._backend.get_vocab()
    wanted = joined(" " * (prefix and text != "") + text, vocabulary, dict(zip(PIECES, SCORES, strict=True)))
    assert tokenizer.encode(text) == wanted
    assert tokenizer.decode(wanted) == text


def test_space_after_special_tokens(tokenizers):
    """As llama.cpp does it: every stretch of text gets the space, not the first one alone."""
    names = tokenizers[True]._backend.id_to_token
    assert [names(i) for i in tokenizers[True].encode("a</s>a<tool>a")] == [
        "▁a",
        "</s>",
        "▁a",
        "<tool>",
        "▁a",
    ]
    assert [names(i) for i in tokenizers[False].encode("a</s>a\n\na")] == ["a", "</s>", "a", "\n\n", "a"]


def test_models_whose_special_tokens_swallow_spaces(tmp_path):
    for name, wanted in (("Phi-3 mini", ["</s>", "a"]), ("other", ["</s>", "▁", "▁a"])):
        metadata = {"general.name": name, **pieces(add_bos_token=False, add_space_prefix=False)}
        tokenizer = load(tmp_path, metadata)
        assert [tokenizer._backend.id_to_token(i) for i in tokenizer.encode("</s>  a")] == wanted


def test_defaults_of_pieces(tmp_path):
    tokenizer = load(tmp_path, pieces())
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.add_bos) == (1, 2, True)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


# --- settings and refusals ----------------------------------------------------------------------------------


def test_chat_templates(tmp_path):
    """By name; the one without a name is the usual one."""
    templates = {"tokenizer.chat_template": "{{ a }}", "tokenizer.chat_template.tool_use": "{{ b }}"}
    tokenizer = load(tmp_path, byte_pairs() | templates | {"tokenizer.chat_templates": ["tool_use"]})
    assert tokenizer.chat_templates == {"default": "{{ a }}", "tool_use": "{{ b }}"}
    assert load(tmp_path, byte_pairs()).chat_templates == {}


def test_empty_tokens_and_missing_types(tmp_path):
    metadata = byte_pairs(token_type=None, bos_token_id=None, eos_token_id=None)
    metadata[OWN + "tokens"][-1] = ""
    tokenizer = load(tmp_path, metadata)
    assert tokenizer._backend.id_to_token(tokenizer.vocab_size - 1) == f"[EMPTY_{tokenizer.vocab_size - 1}]"
    assert tokenizer.decode(tokenizer.encode("hello</s>")) == "hello</s>"
    assert tokenizer.bos_token_id is None


def test_no_token(tmp_path):
    """How some files write that there is none."""
    assert load(tmp_path, byte_pairs(bos_token_id=2**32 - 1)).bos_token_id is None


def test_other_tokens_are_not_looked_at(tmp_path):
    keys = {"padding_token_id": 1, "fim_pre_token_id": 2, "seperator_token_id": 3, "mask_token_id": 4}
    assert load(tmp_path, byte_pairs(**keys)).special_tokens["pad_token"] == BYTES[1]


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({}, r"tokenizer\.ggml\.tokens must be a list of strings, not None"),
        (byte_pairs(model="t5"), "tokenizer.ggml.model must be one of gpt2, llama, not 't5'"),
        (byte_pairs(model=None), "tokenizer.ggml.model must be one of gpt2, llama, not None"),
        (byte_pairs(pre="new"), "tokenizer.ggml.pre must be one of gpt-2, .*, not 'new'"),
        (byte_pairs(pre=None), "tokenizer.ggml.pre must be one of .* not None"),
        (byte_pairs(merges=None), "tokenizer.ggml.merges must be a list of strings"),
        (byte_pairs(merges=["he"]), "tokenizer.ggml.merges holds 'he'.*; wanted are two tokens"),
        (byte_pairs(merges=["h "]), "tokenizer.ggml.merges holds 'h '"),
        (byte_pairs(merges=["h q"]), r"holds no tokenizer that works \(.*hq"),
        (byte_pairs(merges=["h 漢漢"]), "holds no tokenizer that works"),
        (byte_pairs(add_space_prefix=True), "tokenizer.ggml.add_space_prefix must be false"),
        (byte_pairs(add_bos_token=1), "tokenizer.ggml.add_bos_token must be true or false, not 1"),
        (
            byte_pairs(add_bos_token=True, bos_token_id=None),
            "add_bos_token is true, but there is no .*bos_token_id",
        ),
        (
            byte_pairs(bos_token_id=267),
            "bos_token_id must be from 0 to 266, as there are 267 tokens, not 267",
        ),
        (byte_pairs(eos_token_id=-1.0), "eos_token_id must be from 0 to 266.* not -1.0"),
        (byte_pairs(tokens=[]), "tokenizer.ggml.tokens is empty"),
        (byte_pairs(tokens=3), "tokenizer.ggml.tokens must be a list of strings, not 3"),
        (byte_pairs(tokens=ints([1, 2])), "tokenizer.ggml.tokens must be a list of strings"),
        (byte_pairs(tokens=["a", "b", "a"]), "the tokens 0 and 2 are the same, 'a'"),
        (byte_pairs(tokens=["a", b"\xff"]), r"tokenizer\.ggml\.tokens is not UTF-8"),
        (
            byte_pairs(token_type=ints([1])),
            "tokenizer.ggml.token_type has 1 entries, but there are 267 tokens",
        ),
        (byte_pairs(token_type=["a"] * 267), "tokenizer.ggml.token_type must be a list of numbers"),
        (
            byte_pairs(remove_extra_whitespaces=True),
            "tokenizer.ggml.remove_extra_whitespaces = True .* is not honoured",
        ),
        (
            byte_pairs(precompiled_charsmap=ints([1])),
            "tokenizer.ggml.precompiled_charsmap .* is not honoured",
        ),
        (byte_pairs(add_sep_token=True), "tokenizer.ggml.add_sep_token = True"),
        (byte_pairs(new_key=1), "tokenizer.ggml.new_key = 1"),
        (byte_pairs() | {"tokenizer.chat_template": 3}, "tokenizer.chat_template must be a string, not 3"),
        (pieces(scores=None), "tokenizer.ggml.scores must be a list of numbers"),
        (pieces(scores=[0.0]), "tokenizer.ggml.scores has 1 entries"),
        (pieces(scores=[float("nan")] * 278), "tokenizer.ggml.scores must be numbers, not nan"),
        (pieces(unknown_token_id=500), "unknown_token_id must be from 0 to 277"),
    ],
)
def test_refused(tmp_path, metadata, match):
    refused(tmp_path, metadata, match)


VALUES = st.one_of(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.floats(width=32),
    st.text(max_size=6),
    st.lists(st.text(max_size=4), max_size=6),
    st.lists(st.integers(0, 9), max_size=6),
    st.lists(st.floats(width=32), max_size=6),
)
KEYS = [
    "model",
    "pre",
    "tokens",
    "token_type",
    "scores",
    "merges",
    "bos_token_id",
    "unknown_token_id",
    "add_bos_token",
]


@pytest.mark.parametrize("make", [byte_pairs, pieces])
@given(chosen=st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=3))
def test_any_values(tmp_path_factory, make, chosen):
    path = write(tmp_path_factory.mktemp("any") / "x.gguf", make(**dict(chosen)), {})
    said = None
    try:
        Tokenizer.load(path).encode("a b")
    except ValueError as error:
        said = str(error)
    assert said is None or (said.startswith("Tokenizer.load: ") and "\n" not in said)


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^Tokenizer\.load: .*none\.gguf does not exist"):
        Tokenizer.load(tmp_path / "none.gguf")


def test_missing_package_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "x.gguf", byte_pairs(), {})
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"^Tokenizer\.load: .*tokenizers"):
        Tokenizer.load(path)
