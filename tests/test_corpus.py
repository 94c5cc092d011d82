"""Corpora in pieces: records of one text, whatever the pieces; a model once per process; the hash over records."""

import math
import pickle
import shutil
import threading

import numpy as np
import pytest
from toy_models import write_model

from mojolearn.integrations import corpus, model_at
from mojolearn.integrations.corpus import (
    ModelAt,
    Prompt,
    Score,
    digest,
    forget_models,
    generate_texts,
    score_texts,
    split,
)
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM

TEXTS = [
    "It is a truth universally acknowledged, that a single man must be in want of a wife.",
    "Emma Woodhouse, handsome, clever, and rich, had lived nearly twenty-one years.",
    "", [], "No.", "Anne", "Sir Walter Elliot took up no book but the Baronetage.", "Emma was", "Anne had", "Anne had",
    "She was then in the bloom of youth", [0, 1818, 305, 267], np.array([0, 774], np.int32),
]  # fmt: skip
PROMPTS = [text for text in TEXTS if len(text)]
DRAWN = {"greedy": False, "seed": 7, "temperature": 0.9, "top_p": 0.95}


@pytest.fixture(scope="module")
def lm():
    return CausalLM.load(BUILT_IN)


@pytest.fixture
def loads(monkeypatch):
    """Paths of all models that are loaded, from a state in which none is kept."""
    forget_models()
    paths, load = [], CausalLM.load.__func__

    def noted(cls, path, **options):
        paths.append(str(path))
        return load(cls, path, **options)

    monkeypatch.setattr(CausalLM, "load", classmethod(noted))
    yield paths
    forget_models()


def test_scores_are_those_of_the_model(lm):
    for text, found in zip(TEXTS, score_texts(TEXTS, lm), strict=True):
        ids = lm.tokenizer.encode(text) if isinstance(text, str) else [int(i) for i in text]
        assert found.ids.tolist() == list(ids) and found.ids.dtype == np.int64
        logprobs = lm.score([ids])[0] if ids else np.empty(0, np.float32)
        assert found.logprobs.tobytes() == logprobs.tobytes()
        assert (found.sum, found.count, found.error) == (math.fsum(logprobs.tolist()), len(logprobs), None)
        if len(ids) > 1:
            assert found.perplexity == math.exp(-found.sum / found.count)
        else:
            assert math.isnan(found.perplexity)


@pytest.mark.parametrize(
    "options", [{}, DRAWN, {"stop": [" the"], "eos_token_id": 5}], ids=["greedy", "drawn", "ends"]
)
def test_continuations_are_those_of_the_model(lm, options):
    for text, found in zip(PROMPTS, generate_texts(PROMPTS, lm, 7, **options), strict=True):
        ids = lm.tokenizer.encode(text) if isinstance(text, str) else [int(i) for i in text]
        seeds = {"seed": [found.seed]} if "seed" in options else {}
        stream = lm.stream([ids], 7, **(options | seeds))
        list(stream)
        assert np.concatenate([found.prompt_ids, found.ids]).tolist() == stream.ids[0].tolist()
        assert found.finish_reason == stream.finish_reasons[0]
        if isinstance(text, str):
            drawn = {"seed": found.seed} if seeds else {}
            assert text + found.text == lm.generate_text(text, 7, **(options | drawn))
        else:
            assert found.text is None


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
def test_pieces_and_batches_do_not_matter(lm, options):
    scores = digest(score_texts(TEXTS, lm))
    texts = digest(generate_texts(PROMPTS, lm, 5, batch_size=100, **options))
    for parts in (2, 3, 5, 30):
        pieces = [score_texts(piece, BUILT_IN) for piece in split(TEXTS, parts)]
        assert digest(record for piece in pieces for record in piece) == scores
        pieces = [
            generate_texts(piece, ModelAt(BUILT_IN, weight_format="float32"), 5, batch_size=parts, **options)
            for piece in split(PROMPTS, parts)
        ]
        assert digest(record for piece in pieces for record in piece) == texts


def test_seeds(lm):
    """Of a prompt and its ids, or of its own: not of its place."""

    def drawn(texts, seed=7):
        return generate_texts(texts, lm, 12, **(DRAWN | {"seed": seed}))

    one, again, other, same = drawn(["Anne had", "Anne had", "Emma was", lm.tokenizer.encode("Anne had")])
    assert (one.seed, one.text) == (again.seed, again.text)
    assert one.seed != other.seed
    assert same.seed == one.seed and same.ids.tolist() == one.ids.tolist()
    assert drawn(["Anne had"], 8)[0].seed != one.seed
    own = drawn([Prompt("Anne had", seed) for seed in (1, 2, 2**64 - 1)])
    assert [found.seed for found in own] == [1, 2, 2**64 - 1]
    assert len({found.text for found in own}) == 3
    assert drawn([Prompt("Anne had", one.seed)])[0].text == one.text


def test_a_text_that_cannot_be_scored_is_named_or_kept(lm):
    texts = ["Emma was", [1] * 513, "Anne"]
    with pytest.raises(ValueError, match=r"^score_texts: texts\[1\] \(.*\): the call reaches position 51"):
        score_texts(texts, lm)
    first, bad, last = score_texts(texts, lm, errors="keep")
    assert (bad.count, bad.sum, bad.ids.size) == (0, 0.0, 0) and "reaches position" in bad.error
    assert digest([first, last]) == digest(score_texts(["Emma was", "Anne"], lm))
    with pytest.raises(ValueError, match=r"^score_texts: texts\[0\] .*from 0 to 2047, not 2048"):
        score_texts([[2048]], lm)


def test_a_prompt_that_cannot_be_continued_is_named_or_kept(lm):
    texts = ["Emma was", [1] * 510, [], "Anne had", ["x"]]
    with pytest.raises(ValueError, match=r"^generate_texts: texts\[1\] "):
        generate_texts(texts, lm, 6)
    found = generate_texts(texts, lm, 6, errors="keep")
    assert [record.error is None for record in found] == [True, False, False, True, False]
    assert "at least one token" in found[2].error
    assert digest([found[0], found[3]]) == digest(generate_texts(["Emma was", "Anne had"], lm, 6))


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("text", BUILT_IN), {}, "texts must be an iterable of texts, not str"),
        (([3], BUILT_IN), {}, r"texts\[0\] must be a str or a sequence of ids"),
        ((["a"], 3), {}, "model must be a path, a ModelAt or a CausalLM"),
        ((["a"], BUILT_IN), {"errors": "drop"}, "errors must be"),
        ((["a"], BUILT_IN), {"greedy": False}, "seed must be given with greedy=False"),
        ((["a"], BUILT_IN), {"greedy": False, "seed": [1]}, "seed must be"),
        ((["a"], BUILT_IN), {"state": None}, "state is no option for a corpus"),
        ((["a"], BUILT_IN), {"stop": [["x"]]}, "stop must be the same for all texts"),
        ((["a"], BUILT_IN), {"batch_size": 0}, "batch_size must be"),
        (([Prompt("a", -1)], BUILT_IN), {}, r"texts\[0\].seed must be"),
    ],
)
def test_refusals(loads, arguments, options, words):
    """All before a model is loaded."""
    with pytest.raises((TypeError, ValueError), match="^generate_texts: .*" + words):
        generate_texts(*arguments, 3, **options)
    assert not loads
    if set(options) <= {"errors"} and "seed" not in words:
        with pytest.raises((TypeError, ValueError), match="^score_texts: .*" + words):
            score_texts(*arguments, **options)


def test_a_seed_has_no_place_in_scores(lm):
    with pytest.raises(TypeError, match=r"texts\[0\] must be a str or a sequence of ids, not a Prompt"):
        score_texts([Prompt("a", 1)], lm)


class TestModelAt:
    def test_once_in_a_process(self, loads):
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(ModelAt(BUILT_IN, fingerprint=None).load()))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(lm) for lm in found}) == 1
        for _ in range(3):
            score_texts(["Emma"], BUILT_IN)
        assert ModelAt(BUILT_IN, fingerprint=found[0].fingerprint).load() is found[0]
        assert loads == [str(BUILT_IN)]
        assert found[0].threads == 1
        assert ModelAt(BUILT_IN, threads=None).load().threads is None
        assert len(loads) == 2

    def test_files_that_change_are_read_again(self, loads, tmp_path):
        folder = write_model(tmp_path / "a", seed=1)
        other = write_model(tmp_path / "b", seed=2)
        one = ModelAt(folder).load()
        assert ModelAt(folder).load() is one
        shutil.copy(other / "model.safetensors", folder / "model.safetensors")
        two = ModelAt(folder).load()
        assert two.fingerprint != one.fingerprint
        assert len(loads) == 2

    def test_another_model_under_the_name_is_refused(self, loads):
        with pytest.raises(
            ValueError, match=r"^ModelAt.load: .* must have the fingerprint 00, but here it has "
        ):
            ModelAt(BUILT_IN, fingerprint="00").load()

    def test_a_name_travels_and_means_the_same(self, monkeypatch, tmp_path):
        monkeypatch.chdir(BUILT_IN.parent)
        model = ModelAt(BUILT_IN.name)
        sent = pickle.dumps(model)
        monkeypatch.chdir(tmp_path)
        assert len(sent) < 500
        assert pickle.loads(sent) == model == ModelAt(BUILT_IN)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"path": 3}, "path must be a str or path, not int"),
            ({"weight_format": "int8"}, "weight_format must be"),
            ({"max_positions": 0}, "max_positions must be"),
            ({"threads": 0}, "threads must be"),
            ({"fingerprint": 3}, "fingerprint must be a str"),
        ],
    )
    def test_refusals(self, options, words):
        with pytest.raises((TypeError, ValueError), match="^ModelAt: .*(" + words + ")"):
            ModelAt(**({"path": BUILT_IN} | options))

    def test_a_missing_model_is_said_by_the_process_that_misses_it(self, loads, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"^CausalLM.load: "):
            score_texts(["a"], tmp_path / "nothing")


def test_every_bit_counts_in_the_hash(lm):
    records = score_texts(PROMPTS, lm) + generate_texts(PROMPTS, lm, 3)
    known = digest(records)
    assert digest(pickle.loads(pickle.dumps(records))) == known
    assert digest(records[::-1]) != known
    for at, record in enumerate(records):
        for name, value in record._asdict().items():
            if isinstance(value, np.ndarray) and value.size:
                changed = value.copy()
                changed.view(np.uint8)[0] ^= 1
            elif isinstance(value, (int, float)) and name != "perplexity":
                changed = value + type(value)(1)
            elif name in ("text", "error", "finish_reason"):
                changed = f"{value}!"
            else:
                continue
            assert digest([*records[:at], record._replace(**{name: changed}), *records[at + 1 :]]) != known
    with pytest.raises(TypeError, match="records must hold Score or Continuation"):
        digest([1])


def test_an_impossible_token_is_no_error(lm, monkeypatch):
    """A log-probability of -inf: the perplexity is infinite."""
    monkeypatch.setattr(CausalLM, "score", lambda self, ids: [np.float32([-1, -np.inf])])
    (found,) = score_texts([[1, 2, 3]], lm)
    assert (found.sum, found.count, found.perplexity) == (-math.inf, 2, math.inf)
    monkeypatch.setattr(CausalLM, "score", lambda self, ids: [np.float32([-3e38, 0])])
    assert score_texts([[1, 2, 3]], lm)[0].perplexity == math.inf


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
def test_split(parts):
    pieces = split(list(range(10)), parts)
    assert len(pieces) == parts
    assert [item for piece in pieces for item in piece] == list(range(10))
    assert {len(piece) for piece in pieces} <= {10 // parts, 10 // parts + 1}
    with pytest.raises(ValueError, match="split: parts must be"):
        split([1], 0)


def test_all_names_are_there():
    assert all(hasattr(corpus, name) for name in corpus.__all__)
    assert Score.__doc__ and model_at.ModelAt is ModelAt
