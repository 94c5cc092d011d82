"""Real models, from GGUF files and from folders made of them: the numbers of the reference, and the same ids.

The environment variable MOJOLEARN_REAL_MODELS names a folder with the files; `.ci/run` puts SmolLM2 there.
"""

import json
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from toy_models import safetensors_bytes

from mojolearn.__main__ import main
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.tokenizer import Tokenizer

pytestmark = [pytest.mark.realmodel, pytest.mark.long]

DATA = Path(__file__).parent / "data" / "smollm2"
FILES = os.environ.get("MOJOLEARN_REAL_MODELS")
CLOSE = 2e-5  # of the largest logit


def real(name):
    """The path of a file, or a skipped test."""
    if not FILES:
        pytest.skip("MOJOLEARN_REAL_MODELS names no folder of real models")
    path = Path(FILES) / name
    if not path.exists():
        pytest.skip(f"{FILES} holds no {name}")
    return path


@pytest.fixture(scope="module")
def smollm2():
    return real("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def folder(smollm2, tmp_path_factory):
    """A Hugging Face folder of the same weights, made by the package gguf."""
    folder = tmp_path_factory.mktemp("smollm2")
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        shutil.copy(DATA / name, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2).tensors}
    named = {}
    config = json.loads((DATA / "config.json").read_text())
    for part, heads in (("q_proj", config["num_attention_heads"]), ("k_proj", config["num_key_value_heads"])):
        for layer in range(30):
            name = f"model.layers.{layer}.self_attn.{part}.weight"
            tensor = stored.pop(names.get_name(name, try_suffixes=(".weight",)))
            rows = dequantize(tensor.data, tensor.tensor_type).reshape(heads, 32, 2, 576)
            named[name] = np.concatenate([rows[:, :, 0], rows[:, :, 1]], axis=1).reshape(-1, 576)
    theirs = ["embed_tokens", "norm", *(f"layers.{i}.{part}" for i in range(30) for part in PARTS)]
    for name in (f"model.{part}.weight" for part in theirs):
        tensor = stored.pop(names.get_name(name, try_suffixes=(".weight",)))
        named[name] = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
    assert not stored
    (folder / "model.safetensors").write_bytes(safetensors_bytes(named))
    return folder


PARTS = [
    *("input_layernorm", "post_attention_layernorm", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
]


@pytest.fixture(scope="module")
def lm(smollm2):
    return CausalLM.load(smollm2)


@pytest.fixture(scope="module")
def reference():
    return np.load(DATA / "reference.npz")


@pytest.mark.parametrize("i", range(6))
def test_smollm2(lm, reference, i):
    ids, wanted = reference[f"ids_{i}"].astype(np.int64), reference[f"last_{i}"]
    logits = lm.forward(ids[None])[0, -1]
    assert np.abs(logits - wanted).max() <= CLOSE * np.abs(wanted).max()
    new = lm.generate(ids[None], 48)[0, len(ids) :]
    np.testing.assert_array_equal(new, reference[f"gen_{i}"])


def test_log_probabilities_of_a_text(lm, reference):
    ids = reference["text_ids"].astype(np.int64)
    found = lm.score(ids[None])[0].astype(np.float64)
    np.testing.assert_allclose(found, reference["text_lp"], rtol=0, atol=1e-4)
    assert abs(found.sum() - reference["text_lp"].sum()) < 1e-3


def test_folder_and_file_are_the_same_model(lm, folder, reference):
    theirs = CausalLM.load(folder)
    assert theirs.config.layers == lm.config.layers
    assert theirs.max_positions == lm.max_positions == 8192
    assert theirs.config.eos_token_ids == (2,)
    assert lm.config.eos_token_ids == (2, 0)  # a file says no more than that both end something
    ids = reference["text_ids"].astype(np.int64)[None]
    np.testing.assert_array_equal(lm.forward(ids).view(np.uint32), theirs.forward(ids).view(np.uint32))


def test_stream_goes_on_with_the_folder(lm, folder, reference, tmp_path):
    ids = reference["ids_1"].astype(np.int64)[None]
    stream = lm.stream(ids, 12, greedy=False, seed=5, stop="\n\n")
    begun = [next(stream)[0] for _ in range(6)]
    stream.save(tmp_path / "stream.npz")
    theirs = CausalLM.load(folder)
    later = theirs.resume(tmp_path / "stream.npz", tokenizer=lm.tokenizer)
    assert begun + [new[0] for new in later] == [
        new[0] for new in lm.stream(ids, 12, greedy=False, seed=5, stop="\n\n")
    ]


def test_chat(lm):
    """Sensible answers, the second to what was said before; greedy and at a low temperature."""
    said = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    for options in ({}, {"greedy": False, "seed": 3, "temperature": 0.3}):
        pieces = lm.stream_chat(said, 40, **options)
        answer = "".join(pieces)
        assert "Paris" in answer
        assert answer.endswith(".")
        assert pieces.stream.finish_reasons == ["eos"]
        assert lm.chat(said, 40, **options) == answer
    more = [
        *said,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "In which country does it lie?"},
    ]
    assert "France" in lm.chat(more, 40)


def test_chat_on_the_command_line(smollm2, lm, capsys):
    question = "What is the capital of France? Answer in one sentence."
    assert main(["chat", "--model", str(smollm2), "--greedy", question]) == 0
    assert capsys.readouterr().out == lm.chat([{"role": "user", "content": question}]) + "\n"


SAMPLES = [
    "",
    " ",
    "  two  spaces   three\n\n\nlines\r\n\ttabs \t mixed \n",
    "It's I'LL don't WE'VE 'tis ''quoted'' ſt's",
    "0 12 345 6789 1234567890 3.14159 1e-5 0xFF ½ ² Ⅷ ٣ ৪",
    "def f(x: int) -> str:\n    return f'{x!r}'  # ok\n\n\nclass A:\n\tpass\n",
    "naïve café Ångström e\u0301 ﬁ 漢字かな交じり文 한국어 Привет мир مرحبا שלום हिन्दी ไทย 👩‍🚀 🏳️‍🌈 👍🏽",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|endoftext|><|im_star|><repo_name>x",
    "\u00a0\u2003\u2028\u200b\ufeff\x00\x01\x7f\ufffd\U0010ffff𝒳𠮷",
    "https://example.org/a?b=c&d=%20#e foo@bar.com C:\\x\\y ~/.z && || ::= => <!-- --> ``` '''",
]


@pytest.fixture(scope="module")
def both(smollm2):
    """The tokenizer of the file, and that of tokenizer.json."""
    return Tokenizer.load(smollm2), Tokenizer.load(DATA)


def test_tokenizers_agree(both, reference):
    ours, theirs = both
    prompts = json.loads((DATA / "reference.json").read_text("utf-8"))
    for i, prompt in enumerate(prompts["prompts"]):
        assert ours.encode(prompt) == reference[f"ids_{i}"].tolist()
    assert ours.encode(prompts["text"])[:300] == reference["text_ids"].tolist()
    sources = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    for text in (*SAMPLES, *sources):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids)
    assert (ours.vocab_size, ours.bos_token_id, ours.eos_token_id) == (theirs.vocab_size, 1, 2)


@given(st.text(max_size=80))
def test_tokenizers_agree_on_any_text(both, text):
    assert both[0].encode(text) == both[1].encode(text)


@given(
    st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", " ", "\n", "a", "12", "'s", "ü", "漢", "  ", "<"]),
        max_size=20,
    )
)
def test_tokenizers_agree_on_special_tokens(both, parts):
    assert both[0].encode("".join(parts)) == both[1].encode("".join(parts))


def test_chat_template(both):
    assert both[0].chat_templates == {"default": (DATA / "chat_template.jinja").read_text("utf-8")}


def test_gemma3():
    """With post-norms, windows, two rotations and a vocabulary of pieces; the numbers are those of transformers."""
    path = real("gemma-3-270m-q4_k_m.gguf")
    lm, tokenizer = CausalLM.load(path), Tokenizer.load(path)
    ids = tokenizer.encode("The capital of France is")
    assert ids == [2, 818, 5279, 529, 7001, 563]
    logits = lm.forward([ids])[0, -1]
    best = [506, 496, 9079, 886, 3224, 3187, 711, 7001]
    wanted = [19.091461, 18.547598, 18.268619, 18.113008, 17.783886, 16.949697, 16.808581, 16.77927]
    assert np.argsort(-logits)[:8].tolist() == best
    np.testing.assert_allclose(logits[best], wanted, rtol=0, atol=CLOSE * 22.4)
    new = lm.generate([ids], 24)[0, len(ids) :].tolist()
    assert new == [506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506, 7488] + [
        *(3207, 528, 7001, 532, 506, 1855, 7488, 3207, 528, 3879, 236761, 1030)
    ]
    assert tokenizer.decode(new).startswith(" the capital of the country of France. It is")
