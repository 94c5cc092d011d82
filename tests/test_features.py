"""lm.features, and the same as a transformer of scikit-learn: a text's vector depends on the text alone."""

import copy
import importlib
import pickle
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from support import bits
from test_insides_models import FOLDERS
from toy_models import write_model

from mojolearn import CausalLM, Tokenizer
from mojolearn.integrations.sklearn import TextFeatures
from mojolearn.models import BUILT_IN
from mojolearn.models import features as of_features

TEXTS = [
    "Emma was very happy.",
    "He",
    "She was not at all pleased, and said so.",
    "Mr. Weston came into the room.",
]


@pytest.fixture(scope="module")
def lm():
    return CausalLM.load(BUILT_IN)


def by_hand(states, pooling):
    """Of the states of one text, (L, d_model), in the order that is written down."""
    if pooling == "last":
        return states[-1]
    total = np.zeros(states.shape[1], np.float32)
    for state in states:
        total = total + state
    return total / np.float32(len(states))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_family(folder, rng):
    """Texts of several lengths at once, each alone, and pooled by hand from what forward returns."""
    lm = CausalLM.load(folder)
    ids = [rng.integers(0, lm.vocab_size, n).tolist() for n in (3, 7, 1, 7)]
    layers = [None, "embed", *range(lm.n_layers), *(["final_norm"] if lm._norm is not None else [])]
    for layer in layers:
        name = {None: "final_norm" if lm._norm is not None else f"block_{lm.n_layers - 1}"}.get(layer, layer)
        for pooling in ("mean", "last"):
            together = lm.features(ids, layer=layer, pooling=pooling)
            assert together.shape == (4, lm.d_model) and together.flags.c_contiguous
            for row, vector in zip(ids, together, strict=True):
                _, hidden = lm.forward([row], return_hidden=[name])
                ((states,),) = hidden.values()
                np.testing.assert_array_equal(bits(vector), bits(by_hand(states, pooling)))
                alone = lm.features([row], layer=layer, pooling=pooling)[0]
                np.testing.assert_array_equal(bits(vector), bits(alone))


@pytest.mark.parametrize("tokens", [1, 5, 64, 10**6])
def test_batches_do_not_matter(lm, rng, monkeypatch, tokens):
    ids = [rng.integers(0, lm.vocab_size, n).tolist() for n in rng.integers(1, 40, 23)]
    wanted = bits(lm.features(ids))
    monkeypatch.setattr(of_features, "TOKENS", tokens)
    np.testing.assert_array_equal(bits(lm.features(ids)), wanted)
    shuffled = rng.permutation(23)
    np.testing.assert_array_equal(bits(lm.features([ids[i] for i in shuffled])), wanted[shuffled])


def test_batches_are_of_about_equal_lengths():
    assert list(of_features.batches([600, 3, 500, 4, 1500])) == [[1, 3], [2], [0], [4]]
    assert list(of_features.batches([7])) == [[0]]
    lengths = list(range(1, 400))
    dealt = list(of_features.batches(lengths))
    assert sorted(i for batch in dealt for i in batch) == list(range(399))
    assert all(len(batch) * max(lengths[i] for i in batch) <= of_features.TOKENS for batch in dealt)


def test_later_layers_are_not_computed(lm):
    """A model whose last layer overflows still has an earlier one."""
    from mojolearn import TransformerBlock

    block = lm.blocks[3]
    weights = {name: np.array(w) for name, w in block.weights().items()}
    weights["input_layernorm.weight"] = np.full(lm.d_model, 3e38, np.float32)
    broken = CausalLM(config=lm.config, blocks=[*lm.blocks[:3], TransformerBlock(weights, **block.options.as_dict())],
                      embedding=lm._embedding, norm=lm._norm, head=lm._head, weight_format=lm.weight_format,
                      max_positions=lm.max_positions)  # fmt: skip
    np.testing.assert_array_equal(
        bits(broken.features([[1, 2]], layer=2)), bits(lm.features([[1, 2]], layer=2))
    )
    with pytest.raises(ValueError, match=r"^CausalLM\.features: layer 3: .* too large for float32"):
        broken.features([[1, 2]])


@pytest.mark.parametrize(
    ("ids", "asked", "error", "message"),
    [
        ([[1, 2]], {"pooling": "max"}, ValueError, "pooling must be one of 'mean', 'last', not 'max'"),
        ([[1, 2]], {"pooling": None}, TypeError, "pooling must be one of 'mean', 'last', not None"),
        ([[1, 2]], {"layer": 4}, ValueError, "layer must be from 0 to 3, not 4"),
        ([[1, 2]], {"layer": -1}, ValueError, "layer must be from 0 to 3, not -1"),
        ([[1, 2]], {"layer": 1.0}, TypeError, r"layer must be an integer, not 1.0 \(float\)"),
        ([[1, 2]], {"layer": "block_9"}, ValueError, "from 0 to 3, or embed, block_0 to final_norm, not 'block_9'"),
        ([[1, 2]], {"layer": "block_1.context"}, ValueError, "not 'block_1.context'"),
        ([[1, 2], []], {}, ValueError, r"ids\[1\] must be a sequence of at least one token"),
        ([[1, 2048]], {}, ValueError, r"ids\[0, 1\] must be from 0 to 2047"),
        ([[1] * 513], {}, ValueError, "reaches position 512, but max_positions=512"),
        ("text", {}, TypeError, "ids must be an array or list of integers, not str"),
    ],
)  # fmt: skip
def test_refusals(lm, ids, asked, error, message):
    with pytest.raises(error, match=rf"^CausalLM\.features: .*{message}"):
        lm.features(ids, **asked)


def test_a_sum_beyond_float32(lm, tmp_path):
    lm = CausalLM.load(write_model(tmp_path / "model"))
    huge = CausalLM(config=lm.config, blocks=lm.blocks, norm=lm._norm, head=lm._head, weight_format=lm.weight_format,
                    max_positions=lm.max_positions,
                    embedding=lambda ids, first: np.full((*ids.shape, lm.d_model), 3e38, np.float32))  # fmt: skip
    with pytest.raises(ValueError, match=r"^CausalLM\.features: a feature is too large for float32"):
        huge.features([[1, 2]], layer="embed")


class TestTextFeatures:
    def test_the_features_of_the_model(self, lm):
        transformer = TextFeatures(lm, layer=2, pooling="last").fit(TEXTS)
        X = transformer.transform(TEXTS)
        wanted = lm.features([lm.tokenizer.encode(text) for text in TEXTS], layer=2, pooling="last")
        np.testing.assert_array_equal(bits(X), bits(wanted))
        np.testing.assert_array_equal(
            bits(TextFeatures(lm, layer=2, pooling="last").fit_transform(TEXTS)), bits(X)
        )

    @pytest.mark.parametrize("model", [None, BUILT_IN, str(BUILT_IN)])
    def test_models_by_path(self, lm, model):
        transformer = TextFeatures(model).fit(TEXTS)
        assert transformer.model is model
        np.testing.assert_array_equal(
            bits(transformer.transform(TEXTS)), bits(TextFeatures(lm).fit_transform(TEXTS))
        )

    def test_a_text_alone(self, lm):
        """What fit has seen, and what stands beside a text, changes nothing."""
        transformer = TextFeatures(lm).fit(["anything"])
        together = transformer.transform(TEXTS)
        for text, vector in zip(TEXTS, together, strict=True):
            np.testing.assert_array_equal(bits(transformer.transform([text])[0]), bits(vector))

    def test_kinds_of_sequences(self, lm):
        transformer = TextFeatures(lm).fit(TEXTS)
        wanted = bits(transformer.transform(TEXTS))
        for X in (tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object), pd.Series(TEXTS), pd.Index(TEXTS)):
            np.testing.assert_array_equal(bits(transformer.transform(X)), wanted)

    def test_in_a_pipeline_and_a_search(self, lm):
        texts, y = TEXTS * 3, [1, 0, 0, 1] * 3
        pipeline = make_pipeline(TextFeatures(lm), StandardScaler(), LogisticRegression())
        assert (pipeline.fit(texts, y).predict(TEXTS) == y[:4]).all()
        search = GridSearchCV(pipeline, {"textfeatures__layer": ["embed", 1]}, cv=3).fit(texts, y)
        assert search.best_estimator_[0].model_ is lm  # and not a copy for each of seven fits
        again = pickle.loads(pickle.dumps(search))
        np.testing.assert_array_equal(again.predict_proba(TEXTS), search.predict_proba(TEXTS))

    def test_in_a_table(self, lm):
        table = pd.DataFrame({"text": TEXTS, "n": [1.0, 2, 3, 4]})
        columns = ColumnTransformer(
            [("words", TextFeatures(lm, layer=0), "text"), ("n", "passthrough", ["n"])],
            verbose_feature_names_out=False,
        ).set_output(transform="pandas")
        frame = columns.fit_transform(table)
        assert list(frame.columns) == [f"textfeatures{i}" for i in range(lm.d_model)] + ["n"]
        wanted = lm.features([lm.tokenizer.encode(text) for text in TEXTS], layer=0)
        np.testing.assert_array_equal(bits(frame.iloc[:, :-1].to_numpy(np.float32)), bits(wanted))
        with pytest.raises(ValueError, match=r"X has shape \(4, 1\); .* take one column, by its name"):
            TextFeatures(lm).fit(table[["text"]])

    def test_max_tokens(self, lm):
        ids = [lm.tokenizer.encode(text)[:3] for text in TEXTS]
        X = TextFeatures(lm, max_tokens=3).fit_transform(TEXTS)
        np.testing.assert_array_equal(bits(X), bits(lm.features(ids)))
        long = "Emma " * 600
        for max_tokens in (None, 600):
            transformer = TextFeatures(lm, max_tokens=max_tokens).fit(TEXTS)
            with pytest.raises(ValueError, match=r"^TextFeatures\.transform: X\[1\] has 60\d tokens, but "):
                transformer.transform(["Emma", long])
        assert TextFeatures(lm, max_tokens=512).fit_transform([long]).shape == (1, lm.d_model)

    def test_the_checks_of_sklearn(self):
        """check_estimator knows texts as an input for which it has no data; its checks that need none are called."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=estimator_checks.SkipTestWarning)
            results = estimator_checks.check_estimator(TextFeatures(), on_fail="raise")
        assert results
        assert all(result["status"] == "passed" for result in results)
        for name in (
            "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_estimator_repr",
            "check_estimator_tags_renamed", "check_valid_tag_types", "check_get_params_invariance", "check_set_params",
        ):  # fmt: skip
            getattr(estimator_checks, name)("TextFeatures", TextFeatures())

    def test_what_the_checks_of_sklearn_would_do_with_texts(self, lm):
        transformer = TextFeatures(lm)
        with pytest.raises(NotFittedError):
            transformer.transform(TEXTS)
        before = transformer.get_params()
        texts = list(TEXTS)
        assert transformer.fit(texts, y=[0, 1, 0, 1]) is transformer
        assert transformer.get_params() == before and texts == TEXTS
        first = transformer.transform(TEXTS)
        state = dict(vars(transformer))
        np.testing.assert_array_equal(
            bits(transformer.transform(TEXTS)), bits(first)
        )  # idempotent, changes nothing
        assert vars(transformer) == state
        twin = clone(transformer)
        assert not hasattr(twin, "model_") and twin.get_params() == before
        np.testing.assert_array_equal(bits(twin.fit(TEXTS).transform(TEXTS)), bits(first))
        loaded = pickle.loads(pickle.dumps(transformer))
        np.testing.assert_array_equal(bits(loaded.transform(TEXTS)), bits(first))
        assert list(transformer.get_feature_names_out()[:2]) == ["textfeatures0", "textfeatures1"]
        assert len(transformer.get_feature_names_out()) == first.shape[1]

    @pytest.mark.parametrize(
        ("parameters", "X", "error", "message"),
        [
            ({"pooling": "max"}, TEXTS, ValueError, r"TextFeatures\.fit: pooling must be one of 'mean', 'last'"),
            ({"layer": 9}, TEXTS, ValueError, r"TextFeatures\.fit: layer must be from 0 to 3, not 9"),
            ({"max_tokens": 0}, TEXTS, ValueError, r"TextFeatures\.fit: max_tokens must be at least 1, not 0"),
            ({"tokenizer": "gpt2"}, TEXTS, TypeError, r"TextFeatures\.fit: tokenizer must be a Tokenizer or None"),
            ({"model": "/nowhere"}, TEXTS, OSError, r"/nowhere"),
            ({}, "text", TypeError, r"TextFeatures\.fit: X must be a list of texts, not str"),
            ({}, {"a", "b"}, TypeError, r"TextFeatures\.fit: X must be a list of texts, not set"),
            ({}, None, TypeError, r"TextFeatures\.fit: X must be a list of texts, not None"),
            ({}, [], ValueError, r"TextFeatures\.fit: X has no texts"),
            ({}, ["a", float("nan")], TypeError, r"TextFeatures\.fit: X\[1\] must be a str, not float"),
            ({}, np.array([["a"], ["b"]]), ValueError, r"TextFeatures\.fit: X has shape \(2, 1\); wanted is one text"),
        ],
    )  # fmt: skip
    def test_refusals(self, lm, parameters, X, error, message):
        with pytest.raises(error, match=message):
            TextFeatures(**{"model": lm, **parameters}).fit(X)

    def test_a_text_without_tokens(self, lm):
        class Silent(Tokenizer):
            def encode(self, text, *, add_bos=None):
                return super().encode(text, add_bos=False)

        silent = copy.copy(Tokenizer.load(BUILT_IN))
        silent.__class__ = Silent
        transformer = TextFeatures(lm, tokenizer=silent).fit(["a"])
        with pytest.raises(ValueError, match=r"^TextFeatures\.transform: X\[1\] has no tokens"):
            transformer.transform(["a", ""])


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "mojolearn.integrations.sklearn")
    with pytest.raises(
        ImportError, match=r"^mojolearn\.integrations\.sklearn: the package scikit-learn is not installed"
    ):
        importlib.import_module("mojolearn.integrations.sklearn")


def test_models_are_not_copied(lm):
    """They never change: a deep copy is the model itself, and a pickle another one of the same bits."""
    assert copy.deepcopy({"model": lm})["model"] is lm
    twin = pickle.loads(pickle.dumps(lm))
    assert twin is not lm
    np.testing.assert_array_equal(bits(twin.features([[1, 2]])), bits(lm.features([[1, 2]])))
