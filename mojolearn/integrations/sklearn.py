"""A model as a transformer of scikit-learn: texts in, features out (the extra ``sklearn``)."""

import numpy as np

from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.features import POOLINGS, admit_layer
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.scalars import admit_choice, admit_integer, kind

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        "mojolearn.integrations.sklearn: the package scikit-learn is not installed; `pip install scikit-learn` does it"
    ) from error

NAME = "TextFeatures"


class TextFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Turn texts into vectors: the hidden states of a language model, pooled over the tokens of each text.

    Nothing is learnt from the data: `fit` loads the model and checks the parameters. The features of a text depend on
    the text alone, in every bit; so what a pipeline was fitted on is what it meets later, in batches of any size.

    Parameters
    ----------
    model : CausalLM or path, optional
        A model, or the folder or GGUF file that `fit` loads it from. None takes the small model inside the package. A
        model is shared by clones of the estimator, and loaded once; a path is loaded by every `fit`.
    tokenizer : Tokenizer, optional
        None takes the one that lies with the model.
    layer : int or str, optional
        Which hidden states, see `CausalLM.features`; None: what the head reads. Those from the middle are often better.
    pooling : {"mean", "last"}, default "mean"
        Mean over the tokens of a text, or its last token.
    max_tokens : int, optional
        Longer texts are cut to their first tokens. None cuts nothing: a text with more tokens than the model has
        positions is refused.

    Attributes
    ----------
    model_ : CausalLM
        The model.
    tokenizer_ : Tokenizer
        The tokenizer.

    See Also
    --------
    mojolearn.CausalLM.features : The same from token ids, without scikit-learn.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> pipeline = make_pipeline(TextFeatures(layer=1), StandardScaler(), LogisticRegression())
    >>> texts = ["He was glad.", "She was sorry.", "He was very happy.", "She was quite miserable."]
    >>> pipeline.fit(texts, [1, 0, 1, 0]).predict(["He was happy."])
    array([1])
    """

    def __init__(self, model=None, *, tokenizer=None, layer=None, pooling="mean", max_tokens=None):
        self.model = model
        self.tokenizer = tokenizer
        self.layer = layer
        self.pooling = pooling
        self.max_tokens = max_tokens

    def fit(self, X, y=None):
        """Check the parameters and the texts, and load the model.

        Parameters
        ----------
        X : sequence of str
            Texts; nothing is learnt from them.
        y : object, optional
            Not used.

        Returns
        -------
        TextFeatures
            This object.

        Raises
        ------
        TypeError, ValueError
            For parameters or texts that do not fit.
        OSError
            The model cannot be read.
        """
        method = f"{NAME}.fit"
        admit_choice(self.pooling, "pooling", method, POOLINGS)
        if self.max_tokens is not None:
            admit_integer(self.max_tokens, "max_tokens", method, 1)
        if self.tokenizer is not None and not isinstance(self.tokenizer, Tokenizer):
            raise TypeError(f"{method}: tokenizer must be a Tokenizer or None, not {kind(self.tokenizer)}")
        admit_texts(X, method)
        model = BUILT_IN if self.model is None else self.model
        model = model if isinstance(model, CausalLM) else CausalLM.load(model)
        admit_layer(model, self.layer, method)
        self.tokenizer_ = model.tokenizer if self.tokenizer is None else self.tokenizer
        self.model_ = model
        return self

    def transform(self, X):
        """Compute the features of texts.

        Parameters
        ----------
        X : sequence of str
            Texts: a list, a one-dimensional array, a column of a data frame.

        Returns
        -------
        ndarray of float32, shape (n_texts, d_model)
            Row i belongs to text i and depends on it alone.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        TypeError, ValueError
            For texts that do not fit: no strings, none at all, without a single token, or too long for the model.
        """
        check_is_fitted(self)
        method = f"{NAME}.transform"
        most, rows = self.model_.max_positions, []
        for i, text in enumerate(admit_texts(X, method)):
            ids = self.tokenizer_.encode(text)[: self.max_tokens]
            if not ids:
                raise ValueError(f"{method}: X[{i}] has no tokens; every text must have at least one")
            if most is not None and len(ids) > most:
                raise ValueError(
                    f"{method}: X[{i}] has {len(ids)} tokens, but the model has {most} positions; max_tokens={most} "
                    "would cut it to its first tokens"
                )
            rows.append(ids)
        return self.model_.features(rows, layer=self.layer, pooling=self.pooling)

    @property
    def _n_features_out(self):
        return self.model_.d_model

    def __sklearn_is_fitted__(self):
        return hasattr(self, "model_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False
        tags.transformer_tags.preserves_dtype = []
        return tags


def admit_texts(X, method):
    """Check a sequence of texts; returns a list."""
    if isinstance(X, (str, bytes, dict, set, frozenset)) or not hasattr(X, "__len__"):
        raise TypeError(f"{method}: X must be a list of texts, not {kind(X)}")
    shape = np.shape(X) if hasattr(X, "shape") else (len(X),)
    if len(shape) != 1 or hasattr(X, "columns"):
        raise ValueError(
            f"{method}: X has shape {tuple(shape)}; wanted is one text for each row, (n_texts,); of a table take one "
            "column, by its name rather than by a list of names"
        )
    texts = list(X)
    if not texts:
        raise ValueError(f"{method}: X has no texts; wanted is at least one")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{method}: X[{i}] must be a str, not {kind(text)}")
    return texts
