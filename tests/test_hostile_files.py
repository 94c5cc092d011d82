"""Faults that hostile files have shown, each refused in one short line now; how they were found is in fuzzing.py."""

import json
import struct

import gguf_files
import numpy as np
import pytest
from support import bits
from toy_models import config, tensors, write_model

from mojolearn import archive
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.template_formats import format_widths, percent_widths
from mojolearn.models.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "Hello"}]


def refused(call, beginning):
    """The message of a refusal, which must be one line of ordinary length."""
    with pytest.raises(ValueError, match=f"^{beginning}: ") as caught:
        call()
    message = str(caught.value)
    assert message.isprintable() and len(message) <= 1000
    return message


# Templates: what makes gigabytes of a few characters is stopped before it is made.

STOPPED = {
    "join of numbers": "{{ range(99999)|join('x' * 10 ** 6) }}",
    "join of what comes one by one": "{{ range(99999)|map('string')|join('x' * 10 ** 4) }}",
    "join, the method": "{{ ('x' * 10 ** 4).join(range(99999)|map('string')) }}",
    "join of wide texts": "{{ range(99999)|map('center', 9999)|join|length }}",
    "long numbers": "{{ ([2 ** 9999] * 10 ** 4)|join|length }}",
    "long numbers in a list": "{{ ([2 ** 9999] * 10 ** 4)|string|length }}",
    "views of a dict": "{{ ([{'a': 'x' * 10 ** 6}.items()] * 100)|string|length }}",
    "a width behind two parentheses": "{{ '%(a(b))999999999d' % {'a(b)': 1} }}",
    "a width behind a percent sign": "{{ '%%%(a%b)999999999d' % {'a%b': 1} }}",
    "a precision": "{{ '%.999999999f' % 1 }}",
    "loops in loops": "{% for a in messages * 2 %}" * 18 + "{% endfor %}" * 18,
}


@pytest.mark.parametrize("name", STOPPED)
def test_templates_that_make_much_of_little(name):
    tokenizer = Tokenizer.load(BUILT_IN)
    call = lambda: tokenizer.render_chat(HELLO, template=STOPPED[name])  # noqa: E731
    assert "was stopped: it" in refused(call, "Tokenizer.render_chat")


def test_namespaces_are_not_written_out():
    tokenizer = Tokenizer.load(BUILT_IN)
    template = "{% set n = namespace(x='a' * 10 ** 6) %}{{ ([n] * 1000)|string|length }}"
    assert int(tokenizer.render_chat(HELLO, template=template)) < 100_000


def test_joining_is_as_ever():
    template = (
        "{{ range(3)|join('-') }} {{ messages|join(',', attribute='role') }}"
        " {{ ','.join(messages|map(attribute='role')) }}"
        " {{ 'abc'|join('.') }} {{ {'k': 1}|join }} {{ '-'.join('xy') }}"
    )
    text = Tokenizer.load(BUILT_IN).render_chat(HELLO * 2, template=template)
    assert text == "0-1-2 user,user user,user a.b.c k x-y"


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("%d %s %%", []),
        ("%5d%-7.3f", ["5", "7", "3"]),
        ("%%5d", []),
        ("%(a)9d %(b(c)d)08.4f", ["9", "8", "4"]),
        ("%(a%12d)34d", ["34"]),
        ("%*d %.*f", ["*", "*"]),
        ("%(open 99d", []),
        ("100 % of 50000", []),
        ("%", []),
    ],
)
def test_widths_before_percent(text, widths):
    assert percent_widths(text) == widths


def test_widths_of_a_hostile_text_take_time_that_is_linear():
    """Two million unclosed parentheses: looking for each one's end again would take days."""
    assert percent_widths("%(" * 2_000_000) == []
    assert percent_widths("%5" * 1_000_000)[:1] == ["5"]
    assert format_widths("{" * 1_000_001) == [] and format_widths("{:{}} {:7}") == ["*", "7"]


# Saved states and streams.


def test_damage_inside_an_archive_is_told_in_a_short_line(tmp_path):
    """The library zipfile quotes the names it finds, which are as long as a damaged length says."""
    lm = CausalLM.load(write_model(tmp_path / "toy"))
    stream = lm.stream([[5, 6]], 6)
    next(stream)
    stream.save(tmp_path / "s.npz")
    data = bytearray((tmp_path / "s.npz").read_bytes())
    assert data[:4] == b"PK\3\4"
    struct.pack_into("<H", data, 26, 3000)  # length of the name of the first field
    (tmp_path / "s.npz").write_bytes(data)
    assert "is damaged" in refused(lambda: lm.resume(tmp_path / "s.npz"), "CausalLM.resume")


def test_an_unknown_option_is_named_in_short(tmp_path):
    lm = CausalLM.load(write_model(tmp_path / "toy"))
    stream = lm.stream([[5, 6]], 6)
    next(stream)
    stream.save(tmp_path / "s.npz")
    fields = dict(archive.read_fields(tmp_path / "s.npz", "T", "a saved stream")._left)
    fields["options"] = json.dumps({"x" * 5000: 1})
    archive.write_fields(tmp_path / "s.npz", fields, "T")
    with pytest.raises(TypeError, match=r"^CausalLM.resume: unknown option 'xxx") as caught:
        lm.resume(tmp_path / "s.npz")
    assert len(str(caught.value)) < 300


# GGUF files.


def convert(folder, change):
    """A small model as a GGUF file, after a change of metadata and tensors."""
    write_model(folder / "toy")
    fields = config()
    metadata = gguf_files.metadata_of(fields | {"rope_parameters": None})
    named = gguf_files.tensors_of(folder / "toy", fields)
    change(metadata, named)
    return gguf_files.write(folder / "x.gguf", metadata, named)


@pytest.mark.parametrize("alignment", [[np.int32(-1)] * 40, True, "x" * 5000, 3])
def test_alignment(tmp_path, alignment):
    path = convert(tmp_path, lambda metadata, _: metadata.update({"general.alignment": alignment}))
    assert "must be a power of two" in refused(lambda: CausalLM.load(path), "CausalLM.load")


@pytest.mark.parametrize("shape", [(1,), (2, 1), (1, 2), (2, 1, 1)])
def test_factors_of_longrope(tmp_path, shape):
    def change(metadata, named):
        metadata["llama.rope.scaling.original_context_length"] = 32
        metadata["llama.rope.scaling.attn_factor"] = 1.0
        for name in ("long", "short"):
            named[f"rope_factors_{name}.weight"] = gguf_files.stored(np.ones(shape, np.float32))

    path = convert(tmp_path, change)
    message = refused(lambda: CausalLM.load(path), "CausalLM.load")
    assert str(path) in message and ("wanted is a vector" in message or "pairs of columns" in message)


# Weights that are finite, and logits that would not be.


def test_logits_are_finite_or_refused(tmp_path):
    named = tensors(config())
    named["lm_head.weight"] = np.full_like(named["lm_head.weight"], 3e38)
    lm = CausalLM.load(write_model(tmp_path / "toy", named))
    state = lm.allocate_state(1, 8)
    before = bits(state.blocks[0].k_cache).tobytes()
    for call, method in (
        (lambda: lm.forward([[1, 2]], state), "CausalLM.forward"),
        (lambda: lm.step([1], state), "CausalLM.step"),
    ):
        assert "a logit is too large for float32" in refused(call, method)
        assert state.cached_tokens == 0 and bits(state.blocks[0].k_cache).tobytes() == before
    with lm.decode_session(state) as session:
        refused(lambda: session.step([1]), "CausalLMDecodeSession.step")
    assert state.cached_tokens == 0


def test_layer_options_that_do_not_go_together_name_the_file(tmp_path):
    scaling = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "factor": 2.0}
    folder = write_model(tmp_path / "toy")
    fields = config(model_type="phi3", rope_scaling=scaling, original_max_position_embeddings=32)
    (folder / "config.json").write_text(json.dumps(fields))
    refused(lambda: CausalLM.load(folder), "CausalLM.load")
