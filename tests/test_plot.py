"""mojolearn.plot: what is drawn is what was given, spelt as it is, and what does not fit is refused by name."""

import sys

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("agg")

from matplotlib import pyplot

from mojolearn import CausalLM, plot
from mojolearn.models import BUILT_IN

ODD = ["", "Mr", " $a$", "\n", " b_{1}", "\x00", "\\"]
SPELT = ["", "Mr", "$a$", "\\n", "b_{1}", "\\x00", "\\"]


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    pyplot.close("all")


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def drawn(ax):
    """Draw the figure as a file would, so that every label is laid out."""
    ax.figure.canvas.draw()
    return ax


def test_attention_map(rng):
    weights = np.tril(rng.random((7, 7), np.float32))
    ax = drawn(plot.attention_map(weights, ODD))
    (image,) = ax.get_images()
    np.testing.assert_array_equal(image.get_array(), weights)
    assert image.get_clim() == (0, 1)
    assert labels(ax.xaxis) == labels(ax.yaxis) == SPELT
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first token on top


def test_attention_map_of_a_step(rng):
    """Rows are the last tokens; without text they are numbered from where they stand."""
    weights = rng.random((2, 7))
    assert labels(drawn(plot.attention_map(weights, ODD)).yaxis) == SPELT[-2:]
    ax = drawn(plot.attention_map(weights))
    assert labels(ax.yaxis) == ["5", "6"]
    assert all(place == int(place) for place in ax.get_xticks())


def test_surprisal():
    logprobs = np.log(np.array([0.5, 0.25, 1.0], np.float32))
    ax = drawn(plot.surprisal(logprobs, ["a", "b", "c", "d"]))
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([1, 2, 0])
    assert [bar.get_x() + bar.get_width() / 2 for bar in ax.patches] == pytest.approx([1, 2, 3])
    assert labels(ax.xaxis) == ["a", "b", "c", "d"]
    assert ax.lines[0].get_ydata()[0] == pytest.approx(1)
    assert ax.get_ylabel() == "surprisal (bits)"
    nats = plot.surprisal(logprobs, ["b", "c", "d"], unit="nats")
    assert [bar.get_height() for bar in nats.patches] == pytest.approx(list(-logprobs))
    gap = drawn(plot.surprisal([-1.0, -np.inf], ["a", "b"]))  # impossible in float32
    assert len(gap.patches) == 1


def test_logit_lens(rng):
    logits = rng.standard_normal((3, 4, 10)).astype(np.float32)
    words = [f" ${i}" for i in range(10)]
    ax = drawn(plot.logit_lens(logits, ["a", "b", "c", "d"], words.__getitem__, names=["x", "y", "z"]))
    best = logits.argmax(axis=2)
    assert [text.get_text() for text in ax.texts] == [f"${i}" for i in best.reshape(-1)]
    assert [text.get_position() for text in ax.texts] == [(t, n) for n in range(3) for t in range(4)]
    (image,) = ax.get_images()
    e = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(image.get_array(), e.max(axis=2) / e.sum(axis=2), rtol=0, atol=1e-6)
    assert labels(ax.yaxis) == ["x", "y", "z"] and labels(ax.xaxis) == ["a", "b", "c", "d"]
    assert ax.get_ylim()[0] < ax.get_ylim()[1]  # the last layer on top
    assert labels(drawn(plot.logit_lens(logits, None, words.__getitem__)).yaxis) == ["0", "1", "2"]


def test_on_axes_of_the_caller(rng):
    figure, axes = pyplot.subplots(1, 3)
    assert plot.attention_map(np.eye(2), ax=axes[0]) is axes[0]
    assert plot.surprisal([-1.0], ["a"], ax=axes[1]) is axes[1]
    assert plot.logit_lens(np.zeros((1, 1, 2)), ["a"], str, ax=axes[2]) is axes[2]
    assert pyplot.get_fignums() == [figure.number]


def test_of_a_model():
    """The arrays of the model go straight in."""
    lm = CausalLM.load(BUILT_IN)
    ids = lm.tokenizer.encode("Emma was $5 \n")
    tokens = [lm.tokenizer.decode([i]) for i in ids]
    _, hidden, attention = lm.forward([ids], return_hidden=True, return_attention=True)
    drawn(plot.attention_map(attention[3][0, 5], tokens))
    drawn(plot.surprisal(lm.score([ids])[0], tokens))
    views = [lm.unembed(hidden[name])[0] for name in list(hidden)[:-1]]
    drawn(plot.logit_lens(views, tokens, lambda i: lm.tokenizer.decode([i])))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plot.attention_map(np.zeros((1, 2, 3, 3))), ValueError,
         r"attention_map: attention has shape \(1, 2, 3, 3\); wanted is \(L, S\)"),
        (lambda: plot.attention_map(np.zeros((3, 2))), ValueError, "attention_map: attention has shape"),
        (lambda: plot.attention_map(np.zeros((0, 0))), ValueError, "attention_map: attention has shape"),
        (lambda: plot.attention_map(["a"]), TypeError, "attention_map: attention must be an array of real numbers"),
        (lambda: plot.attention_map(np.eye(2), ["a"]), ValueError, "attention_map: tokens has 1 entry; wanted are 2"),
        (lambda: plot.attention_map(np.eye(2), "ab"), TypeError, "tokens must be a list of str, not str"),
        (lambda: plot.attention_map(np.eye(2), [1, 2]), TypeError, r"tokens\[0\] must be a str, not int"),
        (lambda: plot.surprisal([-1.0], ["a"] * 3), ValueError, r"surprisal: logprobs has shape \(1,\); .* 3 tokens"),
        (lambda: plot.surprisal(np.zeros((1, 2)), ["a"] * 3), ValueError, r"surprisal: logprobs has shape \(1, 2\)"),
        (lambda: plot.surprisal([], ["a"]), ValueError, r"surprisal: logprobs has shape \(0,\)"),
        (lambda: plot.surprisal([0.5], ["a"]), ValueError, "surprisal: logprobs must be logarithms of probabilities"),
        (lambda: plot.surprisal([np.nan], ["a"]), ValueError, "surprisal: logprobs must be logarithms"),
        (lambda: plot.surprisal([-1.0], None), TypeError, "surprisal: tokens must be a list of str, not None"),
        (lambda: plot.surprisal([-1.0], ["a"], unit="bit"), ValueError, "unit must be one of 'bits', 'nats'"),
        (lambda: plot.logit_lens(np.zeros((2, 3)), ["a"], str), ValueError, r"logit_lens: logits has shapes \[\(3,\)"),
        (lambda: plot.logit_lens([], ["a"], str), ValueError, "logit_lens: logits has shapes"),
        (lambda: plot.logit_lens([np.zeros((1, 2)), np.zeros((1, 3))], ["a"], str), ValueError, "logits has shapes"),
        (lambda: plot.logit_lens(np.zeros((1, 1, 2)), ["a"], {}), TypeError, "decode must be a function"),
        (lambda: plot.logit_lens(np.zeros((1, 1, 2)), ["a"], str, names=[]), ValueError, "names has 0 entries"),
        (lambda: plot.logit_lens(np.full((1, 1, 2), np.nan), ["a"], str), ValueError, "logit 0 of row 0 is nan"),
    ],
)  # fmt: skip
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert not pyplot.get_fignums()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ImportError, match=r"^plot\.attention_map: the package matplotlib is not installed; `pip"
    ):
        plot.attention_map(np.eye(2))
