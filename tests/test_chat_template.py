"""Chat templates: found wherever checkpoints keep them, rendered as they are meant, and kept on a leash."""

import json
import re
import shutil
import sys
import threading

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from mojolearn.models import BUILT_IN, meter, sandbox
from mojolearn.models.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture
def folder(tmp_path):
    """A tokenizer of bytes with some special tokens: ``folder(**settings)`` writes it."""
    backend = Backend(
        models.BPE({b: i for i, b in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    backend.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.save(str(tmp_path / "tokenizer.json"))

    def write(**settings):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return tmp_path

    return write


@pytest.fixture
def tokenizer(folder):
    return Tokenizer.load(
        folder(chat_template=CHATML, bos_token="<s>", eos_token="</s>", pad_token={"content": "P"})
    )


def with_template(template, **options):
    """What a template writes about one message."""
    return Tokenizer.load(BUILT_IN).render_chat(HELLO, template=template, **options)


class TestPlaces:
    """A template may stand in four places."""

    def test_string(self, tokenizer):
        assert tokenizer.chat_templates == {"default": CHATML}
        assert tokenizer.render_chat(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"

    def test_list_of_named_ones(self, folder):
        named = [
            {"name": name, "template": f"{name}:{{{{ messages|length }}}}"}
            for name in ("default", "rag", "tool_use")
        ]
        tokenizer = Tokenizer.load(folder(chat_template=named))
        assert tokenizer.render_chat(HELLO) == "default:1"
        assert tokenizer.render_chat(HELLO, template="rag") == "rag:1"
        assert tokenizer.render_chat(HELLO, tools=[TOOL]) == "tool_use:1"
        assert tokenizer.render_chat(HELLO, tools=[TOOL], template="default") == "default:1"

    def test_file_comes_before_the_setting(self, folder):
        path = folder(chat_template="old")
        (path / "chat_template.jinja").write_text("new é", "utf-8")
        assert Tokenizer.load(path).render_chat(HELLO) == "new é"

    def test_folder_of_more(self, folder):
        path = folder()
        (path / "chat_template.jinja").write_text("plain")
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "rag.jinja").write_text("{{ documents[0].text }}")
        tokenizer = Tokenizer.load(path)
        assert sorted(tokenizer.chat_templates) == ["default", "rag"]
        assert tokenizer.render_chat(HELLO, template="rag", documents=[{"text": "D"}]) == "D"

    def test_given_in_the_call(self, tokenizer):
        assert tokenizer.render_chat(HELLO, template="{{ messages[0].role }}") == "user"

    def test_none(self, folder):
        tokenizer = Tokenizer.load(folder())
        with pytest.raises(ValueError, match=r"^Tokenizer\.render_chat: the tokenizer has no chat template"):
            tokenizer.render_chat(HELLO)
        with pytest.raises(ValueError, match=r"^Tokenizer\.encode_chat: the tokenizer has no chat template"):
            tokenizer.encode_chat(HELLO)

    def test_no_default_among_several(self, folder):
        named = [{"name": name, "template": "x"} for name in ("a", "b")]
        with pytest.raises(ValueError, match="no default template; choose one of 'a', 'b'"):
            Tokenizer.load(folder(chat_template=named)).render_chat(HELLO)

    def test_misspelt_name(self, tokenizer):
        with pytest.raises(ValueError, match=r"template 'defualt' is neither.*did you mean 'default'"):
            tokenizer.render_chat(HELLO, template="defualt")

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (3, "must be a text or a list"),
            ([3], r"\[0\] must have a name and a template"),
            ([{"name": "a"}], r"\[0\] must have a name and a template"),
            ([{"name": "a", "template": "x"}] * 2, "two templates called 'a'"),
        ],
    )
    def test_malformed_setting(self, folder, value, words):
        with pytest.raises(
            ValueError, match=r"^Tokenizer\.load: .*tokenizer_config\.json: chat_template" + f".*{words}"
        ):
            Tokenizer.load(folder(chat_template=value))

    def test_file_that_is_no_text(self, folder):
        path = folder()
        (path / "chat_template.jinja").write_bytes(b"a\xff")
        with pytest.raises(
            ValueError, match=r"^Tokenizer\.load: .*chat_template\.jinja is not UTF-8 text \(byte 1\)"
        ):
            Tokenizer.load(path)


class TestWhatTemplatesAreWrittenFor:
    def test_special_tokens(self, tokenizer):
        assert (
            tokenizer.render_chat(
                HELLO, template="{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ mask_token }}"
            )
            == "<s></s>P"
        )
        assert tokenizer.render_chat(HELLO, template="{{ bos_token }}", bos_token="B") == "B"

    def test_tokens_named_in_the_older_file(self, folder):
        path = folder(chat_template="{{ bos_token }}")
        (path / "special_tokens_map.json").write_text(
            json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
        )
        tokenizer = Tokenizer.load(path)
        assert tokenizer.render_chat(HELLO) == "<s>"
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257)

    def test_tokens_of_a_tokenizer_made_of_parts(self, tokenizer):
        made = Tokenizer(
            tokenizer._backend,
            bos_token_id=256,
            eos_token_id=257,
            chat_templates={"default": "{{ eos_token }}"},
        )
        assert made.render_chat(HELLO) == "</s>"
        assert made.encode_chat(HELLO) == [257]

    @pytest.mark.parametrize(
        ("template", "text"),
        [
            ("  {% if true %}\n x\n  {% endif %}\n", " x\n"),  # trim_blocks, lstrip_blocks
            ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
            ("{% for i in range(3) %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}", "01"),
            ("{{ {'a': '<é>', 'b': [1, none]}|tojson }}", '{"a": "<é>", "b": [1, null]}'),
            ("{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, indent=1) }}", '{\n "a": 2,\n "b": 1\n}'),
            ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "aHellob"),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = 2 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('y') }}{% set z %}q{% endset %}{{ z }}", "[y]q"),
            ("{{ messages[0].missing }}{{ missing }}{% if tools is none %}no{% endif %}", "no"),
            ("{{ '%s-%d' % ('a', 7) }}{{ 'ab' * 2 }}{{ 3 * 4 }}{{ 2 ** 5 }}", "a-7abab1232"),
            ("{{ 'x'|center(3) }}{{ '{}'.format(1) }}{{ 'x\ny'|indent(2) }}", " x 1x\n  y"),
            (
                "{{ ['a', 'b']|join(', ') }}{{ 'a-b'.replace('-', '+') }}{{ 'ab'|replace('a', 'c') }}",
                "a, ba+bcb",
            ),
        ],
    )
    def test_settings(self, template, text):
        assert with_template(template) == text

    def test_the_day(self):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", with_template("{{ strftime_now('%Y-%m-%d') }}"))

    def test_further_variables(self):
        assert with_template("{{ enable_thinking }}{{ n }}", enable_thinking=False, n=np.int64(3)) == "False3"

    def test_nothing_is_escaped_and_messages_stay_as_they_are(self):
        messages = [{"role": "user", "content": "<b>", "extra": None, "list": (1, 2.5)}]
        text = Tokenizer.load(BUILT_IN).render_chat(messages, template="{{ messages|tojson }}")
        assert text == '[{"role": "user", "content": "<b>", "list": [1, 2.5]}]'
        assert messages == [{"role": "user", "content": "<b>", "extra": None, "list": (1, 2.5)}]

    def test_the_template_refuses(self):
        with pytest.raises(
            ValueError,
            match=r"^Tokenizer\.render_chat: the chat template refuses the messages: Roles must alternate$",
        ):
            with_template("{{ raise_exception('Roles must alternate') }}")


class TestBos:
    """The template writes the bos token, or none does."""

    @pytest.mark.parametrize("template", ["{{ bos_token }}x", "{{ bos_token }}{{ bos_token }}x"])
    @pytest.mark.parametrize("add_bos_token", [None, True, False])
    def test_once(self, folder, template, add_bos_token):
        tokenizer = Tokenizer.load(
            folder(chat_template=template, bos_token="<s>", add_bos_token=add_bos_token)
        )
        assert tokenizer.encode_chat(HELLO) == [256, *tokenizer.encode("x", add_bos=False)]

    def test_none_where_the_template_writes_none(self, folder):
        tokenizer = Tokenizer.load(folder(chat_template="x", bos_token="<s>", add_bos_token=True))
        assert tokenizer.encode_chat(HELLO) == tokenizer.encode("x", add_bos=False)

    def test_special_tokens_are_recognised(self, tokenizer):
        ids = tokenizer.encode_chat(HELLO)
        assert (ids.count(258), ids.count(259), ids[0]) == (2, 1, 258)


ATTACKS = {
    "SecurityError": [
        "{{ ().__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ namespace(__class__=1) }}",
        "{{ ''['__class__'].mro() }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
    ],
    "stopped": [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for i in range(9) %}{{ f() }}{% endfor %}{% endmacro %}{{ 'a' * 10**9 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 100000 }}",
        "{{ messages|tojson(indent=10**9) }}",
        "{{ messages|tojson(indent='x' * 10**6) }}",
        "{{ messages|tojson(separators=('x' * 10**6, ':')) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '%99999999999d'|format(1) }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ 'x'|center(10 ** 10) }}",
        "{{ 'x'.zfill(10 ** 10) }}",
        "{{ 'x'|indent(10 ** 10) }}",
        "{{ ('a' * 10000)|replace('a', 'b' * 10000) }}",
        "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
        "{{ (['a' * 1000] * 100000)|join }}",
        "{{ ','.join(['a' * 1000] * 100000) }}",
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set s = 'xx' %}" + "{% set s = s ~ s %}" * 60,
        "{% for i in range(9999) %}{{ 'x' * 10000 }}{% endfor %}",
    ],
    "failed": [
        "{{ range(10 ** 9)|length }}",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
    ],
    "malformed: line 2": ["x\n{% if %}", "x\n{{ ", "x\n{% import os %}"],
}


@pytest.mark.parametrize(
    ("kind", "template"), [(kind, template) for kind, templates in ATTACKS.items() for template in templates]
)
def test_kept_on_a_leash(kind, template):
    with pytest.raises(ValueError, match=rf"^Tokenizer\.render_chat: the chat template .*{kind}") as caught:
        with_template(template)
    assert len(str(caught.value)) < 300
    if kind == "SecurityError":
        assert isinstance(caught.value.__cause__, sandbox.jinja2.exceptions.SecurityError)


def test_memory_is_watched(monkeypatch):
    """Sixteen million characters at a time, in a loop: each piece alone is allowed."""
    monkeypatch.setattr(meter, "MOST_GROWTH", -(1 << 40))
    with pytest.raises(ValueError, match=r"the chat template was stopped: it takes more than .* of memory"):
        with_template("{% for i in range(9) %}{% endfor %}")


def test_a_tracer_of_the_caller_stays(monkeypatch):
    """A debugger goes on after the template, whether it was finished or stopped."""

    def tracer(*_):
        return None

    before = sys.gettrace()
    try:
        sys.settrace(tracer)
        with_template("{{ 1 }}")
        with pytest.raises(ValueError, match="stopped"):
            with_template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_in_several_threads(tokenizer):
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(tokenizer.render_chat(HELLO))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [tokenizer.render_chat(HELLO)] * 4


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ("Hello", TypeError, "messages must be a list of dicts, not str"),
        ({"role": "user"}, TypeError, "messages must be a list of dicts, not dict"),
        ([], ValueError, "at least one message"),
        (["Hello"], TypeError, r"messages\[0\] must be a dict with role and content, not str"),
        ([{"content": "x"}], ValueError, r"messages\[0\] must have a role"),
        ([{"role": 3}], ValueError, r"messages\[0\] must have a role"),
        ([{"role": "user", "content": object()}], TypeError, r"messages\[0\]\['content'\] must be .* not object"),
        ([{"role": "user", "content": b"x"}], TypeError, "not bytes"),
        ([{"role": "user", 3: "x"}], TypeError, r"messages\[0\] must have texts for keys"),
        ([{"role": "user", "content": LOOP}], ValueError, "messages is nested more than 50 levels deep"),
    ],
)  # fmt: skip
def test_messages_that_are_none(tokenizer, messages, error, words):
    with pytest.raises(error, match=rf"^Tokenizer\.render_chat: .*{words}"):
        tokenizer.render_chat(messages)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": "x"}, "tools must be a list of dicts, not str"),
        ({"tools": [len]}, r"tools\[0\] must be a dict, not builtin_function_or_method"),
        ({"documents": [1]}, r"documents\[0\] must be a dict, not int"),
        ({"add_generation_prompt": 1}, "add_generation_prompt must be True or False"),
        ({"template": 3}, "template must be a name or a template, not int"),
        ({"day": object()}, r"variables\['day'\] must be made of"),
    ],
)
def test_options_that_do_not_fit(tokenizer, options, words):
    with pytest.raises(TypeError, match=rf"^Tokenizer\.encode_chat: {words}"):
        tokenizer.encode_chat(HELLO, **options)


def test_missing_package_is_named(tokenizer, monkeypatch):
    monkeypatch.delattr("mojolearn.models.sandbox")
    monkeypatch.setitem(sys.modules, "mojolearn.models.sandbox", None)
    with pytest.raises(ImportError, match=r"^Tokenizer\.render_chat: .*`pip install jinja2`"):
        tokenizer.render_chat(HELLO)


def test_built_in_model_has_no_template(tmp_path):
    shutil.copytree(BUILT_IN, tmp_path / "model")
    assert Tokenizer.load(tmp_path / "model").chat_templates == {}
