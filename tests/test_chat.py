"""Text to text: `generate_text`, `stream_text`, `chat` and `stream_chat`."""

import json
import shutil

import numpy as np
import pytest
from toy_models import write_model

from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "Emma was"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %} the{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The built-in model with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(BUILT_IN, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def lm(folder):
    return CausalLM.load(folder)


class TestChat:
    def test_answers_what_the_template_gives(self, lm):
        ids = lm.tokenizer.encode("Emma was the")
        assert lm.tokenizer.encode_chat(HELLO) == ids
        answer = lm.chat(HELLO, 12)
        assert "Emma was the" + answer == lm.generate_text("Emma was the", 12)
        assert "".join(lm.stream_chat(HELLO, 12)) == answer

    def test_options_of_generation(self, lm):
        drawn = {"greedy": False, "seed": 5, "temperature": 1.2}
        assert lm.chat(HELLO, 12, **drawn) == lm.chat(HELLO, 12, **drawn) != lm.chat(HELLO, 12)
        assert lm.chat(HELLO, 12, stop="first") == lm.chat(HELLO, 12).partition("first")[0]
        assert lm.chat(HELLO, 3, logit_bias={305: 1e9}).startswith(" was was was")

    def test_tools_template_and_variables(self, lm):
        template = "{{ bos_token }}{{ messages[0].content }}{{ tools[0].name }}{{ more }}"
        answer = lm.chat(HELLO, 5, template=template, tools=[{"name": " the"}], variables={"more": " first"})
        assert "Emma was the first" + answer == lm.generate_text("Emma was the first", 5)

    def test_ends_where_model_or_tokenizer_say(self, folder, tmp_path):
        """generation_config.json and tokenizer_config.json; an option overrules both."""
        plain = CausalLM.load(folder)
        ids = plain.generate([plain.tokenizer.encode_chat(HELLO)], 20)[0].tolist()
        first = len(plain.tokenizer.encode_chat(HELLO))
        shutil.copytree(folder, tmp_path / "model")
        settings = json.loads((folder / "generation_config.json").read_text()) | {
            "eos_token_id": [ids[first + 4], 3]
        }
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
        lm = CausalLM.load(tmp_path / "model")
        pieces = lm.stream_chat(HELLO, 20)
        text = "".join(pieces)
        assert pieces.stream.finish_reasons == ["eos"]
        assert pieces.stream.ids[0].tolist() == ids[: pieces.stream.ids[0].size]
        assert text == lm.tokenizer.decode(pieces.stream.ids[0][first:])
        assert len(lm.chat(HELLO, 20, eos_token_id=None)) > len(text)
        lm.tokenizer.eos_token_id = ids[first + 1]
        assert len(lm.chat(HELLO, 20)) < len(text)

    def test_length_if_none_is_given(self, lm, folder):
        pieces = lm.stream_chat(HELLO, eos_token_id=None)
        list(pieces)
        assert pieces.stream.ids[0].size == len(lm.tokenizer.encode_chat(HELLO)) + 256
        short = CausalLM.load(folder, max_positions=9)
        pieces = short.stream_chat(HELLO, eos_token_id=None)
        list(pieces)
        assert pieces.stream.ids[0].size == 10  # the last one has no position of its own

    def test_several_turns_with_a_state(self, lm):
        """What was said before need not be run again."""
        state = lm.allocate_state(1, 100)
        first = lm.tokenizer.encode_chat(HELLO)
        text = lm.generate([first], 9, state=state)[0]
        more = lm.tokenizer.encode(" She", add_bos=False)
        again = lm.generate([more], 9, state=state)[0]
        assert lm.generate([[*text, *more]], 9)[0].tolist() == [*text, *again]

    @pytest.mark.parametrize(
        ("messages", "options", "error", "words"),
        [
            ([], {}, ValueError, "Tokenizer.encode_chat: messages must hold at least one message"),
            (HELLO, {"template": " "}, ValueError, "template ' ' is neither a name nor a template"),
            (
                HELLO,
                {"template": "{{ '' }}"},
                ValueError,
                "CausalLM.chat: messages must give at least one token",
            ),
            (HELLO, {"variables": 3}, TypeError, "CausalLM.chat: variables must be a dict, not int"),
            (HELLO, {"tokenizer": 3}, TypeError, "CausalLM.chat: tokenizer must be a Tokenizer, not int"),
            (HELLO, {"max_new_tokens": -1}, ValueError, "CausalLM.chat: max_new_tokens must be at least 0"),
            (
                HELLO,
                {"temprature": 1},
                TypeError,
                "unknown option 'temprature' (did you mean 'temperature'?)",
            ),
            (HELLO, {"max_new_tokens": 999}, ValueError, "the call reaches position 1001"),
        ],
    )
    def test_refused(self, lm, messages, options, error, words):
        with pytest.raises(error) as caught:
            lm.chat(messages, **options)
        assert words in str(caught.value)
        with pytest.raises(error):
            lm.stream_chat(messages, **options)  # at the call

    def test_model_without_a_template(self):
        with pytest.raises(ValueError, match="the tokenizer has no chat template"):
            CausalLM.load(BUILT_IN).chat(HELLO)


class TestText:
    def test_prompt_of_ids(self, lm):
        ids = lm.tokenizer.encode("Emma was")
        for prompt in (ids, np.array(ids), tuple(ids)):
            assert lm.generate_text(prompt, 6) == lm.generate_text("Emma was", 6)

    def test_pieces_are_the_text(self, lm):
        pieces = lm.stream_text("Emma was", 30, greedy=False, seed=3)
        assert pieces.stream.seed == 3
        text = "".join(pieces)
        assert "Emma was" + text == lm.generate_text("Emma was", 30, greedy=False, seed=3)

    def test_pieces_hold_whole_characters(self, lm):
        """Drawn from all tokens at a high temperature: many are bytes."""
        for seed in range(20):
            pieces = list(lm.stream_text("é", 30, greedy=False, seed=seed, temperature=5.0))
            text = lm.generate_text("é", 30, greedy=False, seed=seed, temperature=5.0)
            assert "é" + "".join(pieces) == text
            assert "" not in pieces

    def test_checked_at_the_call(self, lm):
        with pytest.raises(ValueError, match=r"^CausalLM\.stream_text: the call reaches position"):
            lm.stream_text("Emma", 10_000)

    @pytest.mark.parametrize("prompt", [[], np.zeros(0, int)])
    def test_no_token(self, lm, prompt):
        with pytest.raises(
            ValueError, match=r"^CausalLM\.generate_text: prompt must hold at least one token"
        ):
            lm.generate_text(prompt, 2)

    @pytest.mark.parametrize("prompt", [3, None])
    def test_no_prompt(self, lm, prompt):
        with pytest.raises(
            TypeError, match=r"^CausalLM\.generate_text: prompt must be a str or a sequence of ids"
        ):
            lm.generate_text(prompt, 2)


class TestTokenizerOfAModel:
    def test_is_that_of_the_folder(self, lm, folder):
        assert lm.path == folder
        assert lm.tokenizer is lm.tokenizer
        assert lm.tokenizer.fingerprint == Tokenizer.load(folder).fingerprint

    def test_folder_without_one(self, tmp_path):
        lm = CausalLM.load(write_model(tmp_path))
        assert lm.generate([[5]], 2).shape == (1, 3)
        with pytest.raises(FileNotFoundError, match=r"^Tokenizer\.load: .*tokenizer\.json does not exist"):
            lm.generate_text("Emma", 2)

    def test_model_made_of_parts(self, lm):
        parts = {name.removeprefix("_"): value for name, value in vars(lm).items()}
        names = ("config", "blocks", "embedding", "norm", "head", "weight_format", "max_positions")
        made = CausalLM(**{name: parts[name] for name in names})
        assert made.path is None
        with pytest.raises(ValueError, match=r"^CausalLM\.tokenizer: the model was not loaded from a path"):
            made.generate_text("Emma", 2)
        assert made.generate_text("Emma", 2, tokenizer=lm.tokenizer) == lm.generate_text("Emma", 2)
        assert made.fingerprint == lm.fingerprint

    def test_relative_path(self, folder, monkeypatch, tmp_path):
        monkeypatch.chdir(folder.parent)
        lm = CausalLM.load("model")
        monkeypatch.chdir(tmp_path)
        assert lm.tokenizer.vocab_size == 2048
