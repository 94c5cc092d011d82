"""Text to ids and back: one bos, whole characters only, nothing lost."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from mojolearn.models import BUILT_IN
from mojolearn.models.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data" / "austen-2m"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.fixture(scope="module")
def austen():
    return Tokenizer.load(BUILT_IN)


def byte_level(folder, *, post_processor=None, **settings):
    """One token per byte, then <s>, </s> and <pad>; writes the folder and loads it."""
    backend = Backend(models.BPE({byte: i for i, byte in enumerate(BYTES)}, []))
    backend.add_special_tokens(["<s>", "</s>", "<pad>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if post_processor:
        backend.post_processor = post_processor
    return write(folder, backend, **settings)


def metaspace(folder):
    """As Llama's: pieces with ▁ for a space, and <0x..> for the bytes of everything else."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in [f"<0x{byte:02X}>" for byte in range(256)] + ["▁a", "▁b", "▁", "a", "b"]:
        vocabulary[piece] = len(vocabulary)
    backend = Backend(models.BPE(vocabulary, [("▁", "a"), ("▁", "b")], byte_fallback=True, unk_token="<unk>"))
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return write(folder, backend, bos_token="<s>", eos_token="</s>", add_bos_token=True)


def write(folder, backend, **settings):
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.load(folder)


def streamed(tokenizer, ids, prompt=()):
    """The pieces of a stream, with what flush gives at the end."""
    stream = tokenizer.decode_stream(prompt)
    return [*(stream.step(i) for i in ids), stream.flush()]


def test_ids_of_the_built_in_model(austen):
    """Prompts begin with token 0, as in training; the rest is what the library gives."""
    reference = np.load(DATA / "reference.npz")
    prompts = json.loads((DATA / "reference.json").read_text())["prompts"]
    for i, prompt in enumerate(prompts):
        assert austen.encode(prompt) == reference[f"ids_{i}"].tolist()
    assert (austen.bos_token_id, austen.eos_token_id, austen.vocab_size) == (0, 0, 2048)
    assert repr(austen) == "Tokenizer(vocab_size=2048, bos=0, eos=0)"


@given(st.text(max_size=60))
def test_text_survives(austen, text):
    """Any text without the special token written out in it."""
    if "<|endoftext|>" not in text:
        assert austen.decode(austen.encode(text)) == text


@given(st.lists(st.integers(0, 2047), max_size=40), st.integers(0, 40))
def test_stream_is_decode_piece_by_piece(austen, ids, cut):
    """Also where random bytes are no UTF-8, and where the prompt ends inside a character."""
    assert "".join(streamed(austen, ids)) == austen.decode(ids)
    stream = austen.decode_stream()
    before = "".join(stream.step(i) for i in ids[:cut])
    assert before + "".join(streamed(austen, ids[cut:], prompt=ids[:cut])) == austen.decode(ids)


@pytest.mark.parametrize("text", ["é", "漢", "👩‍🚀", "naïve – 漢字 👩‍🚀!"])
@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_no_piece_of_a_character(tmp_path, make, text):
    tokenizer = make(tmp_path)
    pieces = streamed(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    assert pieces[-1] == ""
    assert max(map(len, pieces)) == 1  # each character as soon as its last byte is there


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_invalid_byte_at_the_end_is_shown_once(tmp_path, make):
    tokenizer = make(tmp_path)
    ids = tokenizer.encode("a漢")[:-1]
    assert "".join(streamed(tokenizer, ids)).count("\ufffd") == tokenizer.decode(ids).count("\ufffd") > 0
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
    assert streamed(tokenizer, ids)[:-1] == ["", "a", "", ""][-len(ids) :]


def test_spaces_between_pieces_stay(tmp_path):
    tokenizer = metaspace(tmp_path)
    ids = tokenizer.encode("a b a")
    assert len(ids) == 4
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == "a b a"
    assert "".join(streamed(tokenizer, ids[2:], prompt=ids[:2])) == " b a"


BYTE_A, BYTE_B = 3 + ord("a"), 3 + ord("b")  # among other bytes, a decoder of the whole may drop these


@given(ids=st.lists(st.integers(0, 263).filter(lambda i: i not in (BYTE_A, BYTE_B)), max_size=30))
def test_random_bytes_never_break_a_stream(tmp_path_factory, ids):
    """Byte pieces that begin as UTF-8 and go on otherwise make the library's own stream raise."""
    tokenizer = metaspace(tmp_path_factory.mktemp("meta"))
    text = "".join(streamed(tokenizer, ids))
    assert [c for c in text if c in "ab"] == [c for c in tokenizer.decode(ids) if c in "ab"]


class TestBos:
    TEMPLATE = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 256)])

    @pytest.mark.parametrize("add_bos_token", [None, True])
    @pytest.mark.parametrize("text", ["a", "<s>a", "<s><s>a"])
    def test_once_whoever_asks_for_it(self, tmp_path, text, add_bos_token):
        """The post-processor, tokenizer_config.json and the text itself."""
        tokenizer = byte_level(
            tmp_path,
            post_processor=self.TEMPLATE,
            bos_token="<s>",
            eos_token="</s>",
            add_bos_token=add_bos_token,
        )
        assert tokenizer.encode(text) == [256, BYTES.index("a")]
        assert tokenizer.encode(text, add_bos=True) == [256, BYTES.index("a")]

    def test_false_adds_none(self, tmp_path):
        tokenizer = byte_level(tmp_path, post_processor=self.TEMPLATE, bos_token="<s>")
        assert tokenizer.encode("a", add_bos=False) == [BYTES.index("a")]

    def test_setting_false_overrules_the_post_processor(self, tmp_path):
        tokenizer = byte_level(tmp_path, post_processor=self.TEMPLATE, bos_token="<s>", add_bos_token=False)
        assert tokenizer.encode("a") == [BYTES.index("a")]
        assert tokenizer.encode("a", add_bos=True) == [256, BYTES.index("a")]

    def test_nobody_asks(self, tmp_path):
        assert byte_level(tmp_path, bos_token="<s>", eos_token="</s>").encode("a") == [BYTES.index("a")]

    def test_document_separator(self, tmp_path):
        """One token for bos and eos, as in the built-in model."""
        assert byte_level(tmp_path, bos_token="<s>", eos_token="<s>").encode("a") == [256, BYTES.index("a")]

    def test_written_as_an_object(self, tmp_path):
        tokenizer = byte_level(tmp_path, bos_token={"content": "<s>", "lstrip": False}, eos_token="</s>")
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257)

    def test_there_is_none(self, tmp_path):
        tokenizer = byte_level(tmp_path, bos_token=None)
        assert tokenizer.encode("a") == [BYTES.index("a")]
        with pytest.raises(ValueError, match=r"^Tokenizer\.encode: add_bos"):
            tokenizer.encode("a", add_bos=True)


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path):
    backend = Backend(models.BPE({byte: i for i, byte in enumerate(BYTES)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert len(write(tmp_path, backend).encode("abcdef")) == 6
    assert len(Tokenizer.load(tmp_path).encode("ab")) == 2


def test_special_tokens_are_not_text(austen):
    assert austen.decode([0, 1818, 305, 0]) == "Emma was"
    assert "".join(streamed(austen, [0, 1818, 305, 0])) == "Emma was"


def test_decode_takes_a_row_of_generate(austen):
    assert austen.decode(np.array([1818, 305])) == "Emma was"


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda t: t.encode(b"x"), TypeError, r"^Tokenizer\.encode: text must be a str, not bytes$"),
        (lambda t: t.encode(None), TypeError, "text must be a str, not None"),
        (lambda t: t.encode(["a"]), TypeError, "text must be a str, not list"),
        (lambda t: t.encode("ab\ud800"), ValueError, "character 2 is half a surrogate pair"),
        (lambda t: t.encode("a", add_bos=1), TypeError, "add_bos must be True or False"),
        (lambda t: t.decode([2048]), ValueError, r"^Tokenizer\.decode: id must be from 0 to 2047, not 2048"),
        (lambda t: t.decode([-1]), ValueError, "not -1"),
        (lambda t: t.decode([1.0]), TypeError, "integer"),
        (lambda t: t.decode_stream().step(2048), ValueError, r"^TextStream\.step: id"),
        (lambda t: t.decode_stream().step("a"), TypeError, "integer"),
    ],
)
def test_refused(austen, call, error, match):
    with pytest.raises(error, match=match):
        call(austen)


class TestLoad:
    def test_no_file(self, tmp_path):
        with pytest.raises(
            FileNotFoundError,
            match=r"^Tokenizer\.load: .*tokenizer\.json does not exist; its folder is empty$",
        ):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize("text", ["", "{}", '{"model": 3}', "no json"])
    def test_malformed(self, tmp_path, text):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(
            ValueError, match=r"^Tokenizer\.load: .*tokenizer\.json is not a tokenizer \([^\n]+\)$"
        ):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"bos_token": "<no>"}, r"tokenizer_config\.json: bos_token must be a token .*'<no>'"),
            ({"eos_token": 3}, r"eos_token must be a token .*3"),
            ({"add_bos_token": "yes"}, r"add_bos_token must be true or false, not 'yes'"),
        ],
    )
    def test_settings_that_do_not_fit(self, tmp_path, settings, match):
        with pytest.raises(ValueError, match=match):
            byte_level(tmp_path, **settings)

    def test_without_settings(self, tmp_path):
        byte_level(tmp_path)
        (tmp_path / "tokenizer_config.json").unlink()
        assert Tokenizer.load(tmp_path).bos_token_id is None

    def test_missing_package_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(ImportError, match=r"^Tokenizer\.load: .*`pip install tokenizers`"):
            Tokenizer.load(BUILT_IN)
