"""Hostile files: what fuzzing has found, each as a test of its kind, and a bounded sweep of new ones.

The long way is ``make fuzz``; how cases are made and judged stands in fuzzing.py.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import fuzzing
import numpy as np
import pytest
from gguf_files import gguf_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import config, raw_file, safetensors_bytes, tensors, write_model, write_shards

from mojolearn.__main__ import main
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.config import parse_config
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.strict_json import parse_json

HELLO = [{"role": "user", "content": "Hello"}]
CASES = {"template": 300, "command line": 150}  # others: 600


# --- sweeps -------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_sweep(target):
    """New cases each time, and the same ones in CI: a failing number goes to ``fuzzing.run_case``."""

    @settings(max_examples=CASES.get(target, 600))
    @given(st.integers(0, 2**32))
    def sweep(number):
        fuzzing.run_case(target, number)

    sweep()


@pytest.mark.long
def test_sweep_within_bounded_memory(tmp_path):
    """In processes of their own, whose addresses end 3 GiB above what they begin with; none may crash."""
    done = subprocess.run(
        [
            sys.executable,
            fuzzing.__file__,
            "--cases",
            "40",
            "--first",
            "0",
            "--save",
            str(tmp_path / "failures"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(fuzzing.__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["target", "inputs", "accepted", "refused", "faults"]
    assert len(rows) == len(fuzzing.TARGETS)
    assert all(row.split()[-4] == "40" and row.split()[-1] == "0" for row in rows)


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_a_case_is_the_same_every_time(target):
    make = fuzzing.TARGETS[target][0]
    fuzzing.toy_lm()

    def contents(number):
        path = make(fuzzing.random.Random(number))
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [(file.name, file.read_bytes()) for file in files if file.exists()]

    assert contents(3) == contents(3)


class TestJudge:
    """The judge itself: what it lets pass and what it calls a fault."""

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("no public name"),
            KeyError("CausalLM.load: x"),
            RecursionError("CausalLM.load: x"),
            UnicodeError("CausalLM.load: x"),
            ValueError("CausalLM.load: two\nlines"),
            ValueError("CausalLM.load: \x1b[31m"),
            ValueError("CausalLM.load: " + "x" * 3000),
            SystemError("CausalLM.load: x"),
        ],
    )
    def test_faults(self, error):
        def call():
            raise error

        with pytest.raises(fuzzing.Fault):
            fuzzing.judge(call)

    def test_a_warning_is_a_fault(self):
        with pytest.raises(fuzzing.Fault, match="RuntimeWarning: overflow"):
            fuzzing.judge(lambda: warnings.warn("overflow", RuntimeWarning, stacklevel=1))

    def test_what_passes(self):
        def call():
            raise FileNotFoundError("CausalLM.load: /x does not exist")

        assert fuzzing.judge(call) == (None, "CausalLM.load: /x does not exist")
        assert fuzzing.judge(lambda: 3) == (3, None)


def refused(load, path, error=ValueError):
    """The message with which a file is refused: one line that a terminal shows, from a public name on."""
    with pytest.raises(error, match=r"^(CausalLM|Tokenizer)\.\w+: ") as caught:
        load(path)
    assert type(caught.value) is error
    fuzzing.check_line(str(caught.value).replace(str(path), ""))
    return str(caught.value)


# --- JSON ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'\xef\xbb\xbf{"a": 1}', "begins with a byte order mark"),
        (b'{"a": "\xff"}', r"is not UTF-8 text \(byte 7\)"),
        (b'{"a": NaN}', "the number NaN is not allowed"),
        (b'{"a": 1e999}', "a number is beyond float64"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": "\\ud800"}', "half a surrogate pair"),
        (b'{"\\ud800": 1}', "half a surrogate pair"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "nested more than 100 levels deep"),
        (b'{"a": ' * 1000 + b"1" + b"}" * 1000, "nested more than 100 levels deep"),
        (b"[" * 10**6, "nested more than 100 levels deep"),
        (b'{"a\\nb": 1, "a\\nb": 2}', r"the key 'a\\nb' appears twice"),
        (b'{"' + b"x" * 9999 + b'": 1, "' + b"x" * 9999 + b'": 2}', r"the key 'x+\.\.\. appears twice"),
    ],
)
def test_json(text, words):
    with pytest.raises(ValueError, match=f"^CausalLM.load: x .*{words}") as caught:
        parse_json(text, "CausalLM.load: x")
    fuzzing.check_line(str(caught.value))


def test_json_as_deep_as_allowed():
    text = b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}"
    assert parse_json(text, "x") == json.loads(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 10**4000}, r"hidden_size must be from 1 to \d+, not 10+\.\.\."),
        ({"hidden_size": -(10**4000)}, r"not -10+\.\.\."),
        ({"num_hidden_layers": 2**63}, "must be from 1 to 10000, not 9223372036854775808"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be above 0 and within float32"),
        ({"a\nb": 1}, r"'a\\nb' \(str\) = 1 \(int\) is not honoured"),
        ({"x" * 9999: 1}, r"x+\.\.\. \(str\) = 1 \(int\) is not honoured"),
        ({"model_type": "x" * 9999}, r"model_type must be one of .*, not 'x+\.\.\."),
        ({"rope_scaling": {"type": "linear", "factor": 2, "a\n": 1}}, r"unknown key 'a\\n'"),
        ({"rope_theta": 10**300, "rope_parameters": {"rope_theta": 1e4}}, "rope_theta must be above 0"),
        ({"dtype": 5}, r"dtype must be the name of a type, such as \"float32\", not 5"),
        ({"torch_dtype": ["float32"]}, "torch_dtype must be the name of a type"),
        ({"bos_token_id": [1]}, r"bos_token_id must be an integer, not \[1\]"),
        ({"bos_token_id": -1}, "bos_token_id must be from 0"),
        ({"eos_token_id": [[2]]}, "eos_token_id must be a token id or a list of them"),
    ],
)
def test_config(changes, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_config(config(**changes), "CausalLM.load: x")
    fuzzing.check_line(str(caught.value))


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["large", "small"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_options_beyond_float64(name, value):
    """As a file or as an argument: a sentence instead of an OverflowError."""
    lm = CausalLM.load(BUILT_IN)
    options = {name: value} | ({} if name == "repetition_penalty" else {"greedy": False})
    with pytest.raises(ValueError, match=rf"^CausalLM\.generate: {name} must be"):
        lm.generate([[0]], 1, **options)
    with pytest.raises(ValueError, match=r"^CausalLM\.generate: logit_bias\[3\] must be within float32"):
        lm.generate([[0]], 1, logit_bias={3: value})


# --- safetensors --------------------------------------------------------------------------------------------

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float16)}


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def folder(tmp_path):
    """A small model whose files can be replaced."""
    return write_model(tmp_path / "model")


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_length_of_the_header(folder, length):
    data = safetensors_bytes(tensors(config()))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + data[8:])
    refused(CausalLM.load, folder)


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        ({"a": entry(), "b": entry(offsets=(4, 12))}, 12, "b overlaps the tensor before it"),
        ({"a": entry(offsets=(0, 16)), "b": entry(offsets=(8, 16))}, 16, "wanted 8 bytes"),
        (b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "a": 1}', 4, "'a' appears twice"),
        ({"a": entry(shape=(2**62, 2**62))}, 8, "data_offsets"),
        ({"a": entry(shape=(10**4000, 10**4000))}, 8, "shape"),
        ({"a": entry(shape=(2**63 - 1,) * 64)}, 8, "data_offsets"),
        ({"a": entry(shape=(1,) * 65, offsets=(0, 4))}, 4, "65 dimensions"),
        ({"a": entry(shape=(1,) * 10**6)}, 8, "1000000 dimensions"),
        ({"a": entry(shape=(0, 2**62), offsets=(0, 0))}, 0, "missing"),
        ({"a": entry("F64")}, 8, "wanted 16 bytes"),
        ({"a": entry("F16")}, 8, "wanted 4 bytes"),
        (b'{"\xff": 1}', 0, "not UTF-8"),
        ({"a\nb" * 500: entry("F5")}, 8, "dtype 'F5'"),
        ({"\x1b[31m": entry()}, 8, "missing"),
    ],
)
def test_header(folder, header, size, words):
    (folder / "model.safetensors").write_bytes(raw_file(header, bytes(size)))
    assert words in refused(CausalLM.load, folder)


def test_names_of_tensors_that_are_left_over(folder):
    named = tensors(config()) | {"a\nb": np.zeros(2, np.float32), "x" * 5000: np.zeros(2, np.float32)}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(named))
    assert "2 tensors have no place in the model" in refused(CausalLM.load, folder)


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/etc/passwd",
        "a/../b",
        "..",
        ".",
        "",
        "C:\\x",
        "a\nb",
        "x" * 256,
        "é" * 200,
        5,
    ],
)
def test_index_names_files_of_its_folder_only(tmp_path, file):
    write_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors(config()), file)}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "wanted a file in the same folder" in refused(CausalLM.load, tmp_path / "model")


def test_index_beside_the_single_file_is_not_looked_at(folder):
    (folder / "model.safetensors.index.json").write_text("nonsense")
    assert np.isfinite(CausalLM.load(folder).forward([[0]])).all()


class TestLinks:
    """Links may lead out of the folder, as those of the hub's cache do, but only to regular files."""

    def test_to_a_cache(self, tmp_path):
        named = tensors(config())
        blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "1"
        blobs.mkdir()
        folder.mkdir(parents=True)
        half = sorted(named)[: len(named) // 2]
        shards = {"a.safetensors": half, "b.safetensors": sorted(set(named) - set(half))}
        write_shards(blobs, named, shards)
        (blobs / "config.json").write_text(json.dumps(config()))
        for path in blobs.iterdir():
            (folder / path.name).symlink_to(os.path.join("..", "..", "blobs", path.name))
        assert np.isfinite(CausalLM.load(folder).forward([[0]])).all()

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
    @pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "/", "loop"])
    def test_to_no_file(self, folder, name, target):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder / name if target == "loop" else target)
        refused(CausalLM.load, folder, FileNotFoundError if target == "loop" else ValueError)

    def test_to_a_file_that_is_something_else(self, folder):
        (folder / "config.json").unlink()
        (folder / "config.json").symlink_to(__file__)
        message = refused(CausalLM.load, folder)
        assert "Hostile files" not in message  # nothing of what it holds


# --- GGUF ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(0, 24, 4))
@pytest.mark.parametrize("number", [0, 1, 2**31, 2**63 - 1, 2**64 - 1])
def test_gguf_counts(tmp_path, place, number):
    whole = bytearray(fuzzing.gguf_seeds()[0])
    data = whole[:place] + struct.pack("<Q", number) + whole[place + 8 :]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    if data != whole:
        refused(CausalLM.load, path)


@pytest.mark.parametrize("number", fuzzing.NUMBERS)
def test_gguf_every_number(tmp_path, number):
    """Each count, length, type, dimension and offset of a file, one by one."""
    whole = fuzzing.gguf_seeds()[0]
    path = tmp_path / "x.gguf"
    for at, size in fuzzing.numbers_of_gguf(whole)[0]:
        path.write_bytes(whole[:at] + struct.pack("<Q", number)[:size] + whole[at + size :])
        fuzzing.check_model(path)


@pytest.mark.parametrize("key", ["general.\n", "\x1b[31m", ""])
def test_gguf_keys_that_no_terminal_shows(tmp_path, key):
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes({key: 1}, {}))
    assert "printable" in refused(CausalLM.load, path)


# --- tokenizers ---------------------------------------------------------------------------------------------


def changed_tokenizer(tmp_path, **changes):
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(json.loads((Path(BUILT_IN) / "tokenizer.json").read_text()) | changes)
    )
    return tmp_path


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": BPE | {"continuing_subword_prefix": "##########"}},  # a panic of the library
        {"model": BPE | {"merges": ["a x"]}},
        {"model": {"type": "Unigram", "unk_id": 9, "vocab": []}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},  # a panic
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "("}}},
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(" * 10**5 + ")" * 10**5}}},
        {"pre_tokenizer": 5, "decoder": []},
    ],
)
def test_tokenizers_that_are_none(tmp_path, changes, capfd):
    assert "tokenizer.json is not a tokenizer (" in refused(
        Tokenizer.load, changed_tokenizer(tmp_path, **changes)
    )


@pytest.mark.parametrize(
    "text",
    ["", "null", "{}", "[" * 10**6, '{"a":' * 10**6, "\ufeff{}", '{"version": 1e999}', "nonsense\n" * 9999],
)
def test_nonsense(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    assert "is not a tokenizer (" in refused(Tokenizer.load, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},  # a panic, as the next ones
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(a+)+c"}}},  # which would go back and forth for ever
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "((a{1,1000}){1,1000}){1,1000}c"}}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "xx"}},
        {"post_processor": {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
                            "single": [{"SpecialToken": {"id": "nope", "type_id": 0}}]}},
        {"model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"b": 0}}, "added_tokens": []},
    ],
)  # fmt: skip
def test_tokenizers_that_cannot_encode(tmp_path, changes, capfd):
    tokenizer = Tokenizer.load(changed_tokenizer(tmp_path, **changes))
    message = refused(tokenizer.encode, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b")
    assert message.startswith("Tokenizer.encode: the tokenizer fails on the text (")


def test_tokenizer_that_cannot_decode(tmp_path, capfd):
    decoder = {"type": "Strip", "content": "a", "start": 2**60, "stop": 2**60}
    tokenizer = Tokenizer.load(changed_tokenizer(tmp_path, decoder=decoder))
    assert "the tokenizer fails on the ids (" in refused(tokenizer.decode, tokenizer.encode("aaab"))
    with pytest.raises(ValueError, match=r"^TextStream\.flush: the tokenizer fails on the ids \("):
        fuzzing.streamed(tokenizer, tokenizer.encode("aaab"))


def test_an_interrupt_is_not_swallowed():
    class Interrupted:
        def get_vocab_size(self, with_added_tokens):
            return 3

        def encode(self, text, add_special_tokens):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tokenizer(Interrupted()).encode("x")


@pytest.mark.parametrize("ids", [5, None, "abc", 1.5])
def test_decode_wants_a_sequence(ids):
    with pytest.raises(TypeError, match=r"^Tokenizer\.decode: ids must be a sequence of ids, not "):
        Tokenizer.load(BUILT_IN).decode(ids)


# --- templates ----------------------------------------------------------------------------------------------

DOUBLED = "{% set x = ['a'] %}" + "{% set x = [x, x] %}" * 60
DOUBLED_IN_A_LOOP = (
    "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
)
ATTACKS = {
    "SecurityError": [
        "{{ ''.__class__.__mro__[1] }}",
        "{{ (''|attr('__class__'))() }}",
        "{{ cycler('a').__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ '{a.__class__.__mro__}'.format_map({'a': messages}) }}",
        "{{ (1).to_bytes(10**9, 'big') }}",
        "{{ 'x'.encode().center(10**9) }}",
        "{{ ('<!---->' * 200000)|e|string }}{{ (('<!---->' * 20000)|e).striptags() }}",
    ],
    "refuses the messages": ["{{ lipsum.__globals__ }}", "{{ raise_exception('two\nlines' * 9999) }}"],
    "stopped": [
        DOUBLED + "{{ x|tojson }}",
        DOUBLED + "{{ x }}",
        DOUBLED + "{{ x == [x] }}",
        DOUBLED_IN_A_LOOP + "{{ ns.x|string|length }}",
        "{% set ns = namespace(x=0) %}{% for i in range(200) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ ((([1] * 9999,) * 9999,) * 9999)|length }}",
        "{{ [1]|batch(10 ** 9, 'x')|list }}",
        "{{ [1]|batch(9999, [1]|batch(9999, messages)|list)|list }}",
        "{{ 1.5|round(10 ** 7, 'ceil') }}",
        "{{ '%*d' % (10 ** 9, 1) }}",
        "{{ '%.*f' % (10 ** 9, 1) }}",
        "{{ '{:{w}}'.format(1, w=10 ** 9) }}",
        "{{ ('{0:9999}' * 9999).format(1) }}",
        "{{ ('{0}' * 9999).format('a' * 9999) }}",
        "{{ ('%(a)s' * 9999) % {'a': 'a' * 9999} }}",
        "{{ (('%s' * 9999)|format(*(['a' * 9999] * 9999))) }}",
        "{{ (['a' * 1000000] * 10000)|map('upper')|join }}",
        "{{ ('a' * 9999).translate({97: 'b' * 9999}) }}",
        "{{ ('\\t' * 9999).expandtabs(tabsize=9999) }}",
        "{{ ('\\n' * 9999)|indent(9999, blank=true) }}",
        "{{ ('\\n' * 9999)|indent('x' * 9999, blank=true) }}",
        "{{ ([[1]] * 9999)|sum(start=[]) }}",
        "{{ dict(a=1).fromkeys(range(99999), 'x' * 99999) }}",
        "{{ ('f' * 99999)|int(base=16) }}",
        "{{ 3 ** (9 ** 9) }}",
        "{% set ns = namespace(x=3) %}{% for i in range(99999) %}{% set ns.x = 1 * ns.x * ns.x %}{% endfor %}",
        "{% set x = 'a' * 4000000 %}{{ x ~ x }}",
        "{% set x = 'a' * 4000000 %}{{ (x + x)|length }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
    "malformed": ["{{ 'x'|urlize }}", "{{ 'x'|random }}", "{{ 'x'|pprint }}", "{% if 1 %}" * 9 + "{{ ("],
    "failed": [
        "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
        "{{ " + "1+" * 9999 + "1 }}",
        "{{ '\\ud800' }}",
    ],
}


@pytest.mark.parametrize(
    ("kind", "template"), [(kind, template) for kind, templates in ATTACKS.items() for template in templates]
)
def test_templates(kind, template):
    tokenizer = Tokenizer.load(BUILT_IN)
    with pytest.raises(ValueError, match=rf"^Tokenizer\.render_chat: the chat template .*{kind}") as caught:
        tokenizer.render_chat(HELLO, template=template)
    fuzzing.check_line(str(caught.value))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("**{{ '%s' % 20240 }}** {{ '{\"a\": {%s}}' % 1 }}", '**20240** {"a": {1}}'),
        ("{{ 'Today is *{0}*, {1:>5}'.format(1, 'x') }}", "Today is *1*,     x"),
        ("{{ '%-5s|' % 'a' }}{{ '%.2f'|format(1.239) }}", "a    |1.24"),
        ("{{ [3, 4]|sum }}{{ messages|sum(attribute='n', start=2) }}", "72"),
        ("{{ [1, 2, 3]|batch(2, 0)|list }}{{ 2 ** 10 % 7 }}", "[[1, 2], [3, 0]]2"),
        ("{{ 'a' ~ 1 ~ none ~ messages[0].role }}{{ 1.55|round(1) }}", "a1Noneuser1.6"),
        (
            "{{ 'a\tb'.expandtabs(2) }}{{ 'x'|indent(2, first=true) }}{{ ('a', 'b')|join(d='-') }}",
            "a b  xa-b",
        ),
    ],
)
def test_the_guards_let_ordinary_templates_be(template, text):
    messages = [HELLO[0] | {"n": 0}]
    assert Tokenizer.load(BUILT_IN).render_chat(messages, template=template) == text


def test_a_long_conversation_has_room(tmp_path):
    """Thousands of messages with a real template, of which each is met in every way, stay far below the limits."""
    template = (fuzzing.DATA / "smollm2" / "chat_template.jinja").read_text()
    messages = [{"role": role, "content": "word " * 50} for role in ("user", "assistant")] * 1000
    text = Tokenizer.load(BUILT_IN).render_chat(messages, template=template)
    assert text.count("word ") == 50 * len(messages)


# --- the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line in this process: exit status, stdout, lines of stderr."""
    monkeypatch.setattr("mojolearn.cli.options.cache_is_cold", lambda: False)

    def call(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err.splitlines()

    return call


@pytest.mark.parametrize(
    ("text", "words"),
    [("/etc", "the text /etc cannot be read"), ("/nope", "the text /nope cannot be read (No such file")],
)
def test_score_of_no_file(run, text, words):
    status, out, err = run("score", text)
    assert (status, out, len(err)) == (1, "", 1)
    assert err[0].startswith(f"mojolearn: error: {words}")


def test_names_from_files_do_not_reach_the_terminal_raw(run, tmp_path):
    """In notes, and in the table of ``info``."""
    folder = shutil.copytree(BUILT_IN, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"a\x1b[31m\nb": 1}))
    settings = json.loads((Path(BUILT_IN) / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": "a\x1b[31m\nb", "template": "x"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    status, _, err = run("generate", "Emma", "--greedy", "--max-new-tokens", 1, "--model", folder)
    assert (status, len(err)) == (0, 2)
    assert all(line.isprintable() for line in err)
    status, out, _ = run("info", folder)
    assert status == 0
    assert all(line.isprintable() for line in out.splitlines())
    assert "\\x1b" in out


def test_too_many_tokens_is_one_exit_status(run, tmp_path):
    """It depends on the model, so it is a failure and not a misuse, in every command."""
    (tmp_path / "long").write_text("Emma " * 600)
    template = ["--template", "{{ messages[0].content }}"]
    assert run("generate", "Emma " * 600, "--max-new-tokens", 1)[0] == 1
    assert run("generate", "Emma", "--max-new-tokens", 10**20)[0] == 1
    assert run("chat", "Emma " * 600, *template)[0] == 1
    assert run("score", tmp_path / "long")[0] == 1


class TestTemperatureZero:
    """``--temperature 0`` is ``--greedy``."""

    def test_the_same_text_and_no_seed(self, run):
        greedy = run("generate", "Emma", "--greedy", "--max-new-tokens", 5)
        zero = run("generate", "Emma", "--temperature", 0, "--max-new-tokens", 5)
        assert zero[:2] == greedy[:2]
        assert zero[2][0].endswith(", greedy")

    @pytest.mark.parametrize("option", [("--top-k", 3), ("--seed", 1), ("--top-p", 0.5), ("--min-p", 0.1)])
    def test_with_options_that_draw(self, run, option):
        status, _, err = run("generate", "Emma", "--temperature", 0, *option)
        assert (status, len(err)) == (2, 1)
        assert f"{option[0]} has no effect with --temperature 0" in err[0]

    def test_twice(self, run):
        assert run("generate", "Emma", "--temperature", 0, "--greedy", "--max-new-tokens", 1)[0] == 0


# --- arguments that are no files ----------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [["Emma was"], [[1, 2]], np.array([[1, 2]])])
def test_generate_text_continues_one_text(prompt):
    with pytest.raises(TypeError, match=r"^CausalLM\.generate_text: prompt must be one text"):
        CausalLM.load(BUILT_IN).generate_text(prompt, 3)


def test_plain_text_has_no_logprobs():
    lm = CausalLM.load(BUILT_IN)
    for call in (lambda: lm.generate_text("Emma", 1, logprobs=2), lambda: lm.chat(HELLO, 1, logprobs=0)):
        with pytest.raises(TypeError, match=r"^CausalLM\.(generate_text|chat): logprobs must be None"):
            call()


def test_every_token_banned():
    lm = fuzzing.toy_lm()
    bias = dict.fromkeys(range(lm.vocab_size), float("-inf"))
    for options in ({"greedy": True}, {"greedy": False, "seed": 1}):
        with pytest.raises(
            ValueError, match=r"^CausalLM\.generate: no token is left to choose: all logits are -inf"
        ):
            lm.generate([[1]], 1, logit_bias=bias, **options)


@pytest.mark.parametrize("number", [10**5000, -(10**5000)], ids=["large", "small"])
def test_integers_that_python_does_not_write(number):
    with pytest.raises(
        ValueError, match=r"^CausalLM\.generate: max_new_tokens must be .*, not a very long integer"
    ):
        CausalLM.load(BUILT_IN).generate([[1]], number)


def test_a_wrong_name_of_a_template_is_not_shown_at_full_length():
    with pytest.raises(ValueError, match=r"template 'x+\.\.\. is neither a name nor a template") as caught:
        Tokenizer.load(BUILT_IN).render_chat(HELLO, template="x" * 9999)
    assert len(str(caught.value)) < 300
