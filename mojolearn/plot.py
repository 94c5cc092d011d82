"""Pictures of what stands inside a model: attention maps, surprisal by token, the logit lens.

Each function draws on one axes of matplotlib (the extra ``plot``), takes arrays as `CausalLM.forward` and
`CausalLM.score` return them, and gives the axes back for a title or a file. Tokens are drawn as they are spelt: a "$"
is no formula, and a line break is shown as ``\\n``.
"""

import math

import numpy as np

from mojolearn.log_softmax import log_softmax
from mojolearn.scalars import admit_choice, counted, kind

COLOURS = "Blues"
DARK = 0.6  # of the largest colour: from here on text is white


def attention_map(attention, tokens=None, *, ax=None):
    """Draw the weights that each token gives to those before it.

    Parameters
    ----------
    attention : array of shape (L, S)
        Weights of one head in one row of the batch, such as ``attention[layer][0, head]``; S - L tokens came before
        the first of these L.
    tokens : sequence of str, optional
        The S tokens as text.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None makes a figure.

    Returns
    -------
    matplotlib.axes.Axes
        One row for each new token, one column for each position; colours from 0 to 1.

    Raises
    ------
    ImportError
        The package matplotlib is not installed.
    TypeError, ValueError
        For another shape, and for tokens that are not S strings.

    Examples
    --------
    >>> ax = attention_map([[1, 0], [0.25, 0.75]], ["Mr", "."])
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['Mr', '.']
    """
    method = "plot.attention_map"
    attention = _numbers(attention, "attention", method)
    if attention.ndim != 2 or attention.size == 0 or attention.shape[0] > attention.shape[1]:
        raise ValueError(
            f"{method}: attention has shape {attention.shape}; wanted is (L, S) with 1 <= L <= S, one head of one row"
        )
    L, S = attention.shape
    labels = _labels(tokens, S, method)
    ax = _axes(ax, (1.5 + 0.3 * S, 1 + 0.3 * L), method)
    ax.imshow(attention, cmap=COLOURS, vmin=0, vmax=1, aspect="equal")
    _name_ticks(ax.xaxis, labels, rotation=90)
    _name_ticks(ax.yaxis, None if labels is None else labels[S - L :])
    if labels is None:
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_yticks(range(L), [str(i) for i in range(S - L, S)])
    ax.set_xlabel("attends to")
    return ax


def surprisal(logprobs, tokens, *, unit="bits", ax=None):
    """Draw how unexpected each token of a text is: minus its log-probability given those before it.

    Parameters
    ----------
    logprobs : array of shape (L - 1,) or (L,)
        Natural logarithms, as `CausalLM.score` gives them for one text: for each token but the first, which nothing
        comes before. With L numbers every token has one.
    tokens : sequence of str
        The L tokens as text.
    unit : {"bits", "nats"}
        Minus the logarithm to the base of 2, or of e.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None makes a figure.

    Returns
    -------
    matplotlib.axes.Axes
        A bar for each token that has a number; a dashed line at their mean.

    Raises
    ------
    ImportError
        The package matplotlib is not installed.
    TypeError, ValueError
        For another shape, numbers above 0 or that are no numbers, and for tokens that are not L strings.

    Examples
    --------
    >>> ax = surprisal(np.log([0.5, 0.125]), ["It", " is", " a"])
    >>> [float(bar.get_height()) for bar in ax.patches]
    [1.0, 3.0]
    """
    method = "plot.surprisal"
    logprobs = _numbers(logprobs, "logprobs", method)
    admit_choice(unit, "unit", method, ("bits", "nats"))
    labels = _labels(tokens, None, method)
    if logprobs.ndim != 1 or logprobs.size == 0 or len(labels) - logprobs.size not in (0, 1):
        raise ValueError(
            f"{method}: logprobs has shape {logprobs.shape}; wanted is (L - 1,) or (L,), those of one text, for "
            f"{counted(len(labels), 'token')}"
        )
    if not (logprobs <= 0).all():
        raise ValueError(f"{method}: logprobs must be logarithms of probabilities, none above 0 and none NaN")
    height = -logprobs / (math.log(2) if unit == "bits" else 1)
    finite = np.isfinite(height)  # of a token that is impossible in float32 there is no bar
    ax = _axes(ax, (1.5 + 0.3 * len(labels), 3), method)
    at = np.arange(len(labels) - height.size, len(labels))
    ax.bar(at[finite], height[finite], width=0.8)
    if finite.any():
        ax.axhline(height[finite].mean(), linestyle="--", linewidth=1, color="black")
    _name_ticks(ax.xaxis, labels, rotation=90)
    ax.set_xlim(-0.6, len(labels) - 0.4)
    ax.set_ylabel(f"surprisal ({unit})")
    return ax


def logit_lens(logits, tokens, decode, *, names=None, ax=None):
    """Draw what the model would say after each of its layers.

    Parameters
    ----------
    logits : array of shape (n, L, vocab_size), or sequence of n arrays of shape (L, vocab_size)
        From the first layer to the last, such as ``lm.unembed(hidden[name])[0]`` for each name.
    tokens : sequence of str
        The L tokens as text.
    decode : callable
        ``decode(id)`` is the text of a token.
    names : sequence of str, optional
        Names of the n layers; None numbers them.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None makes a figure.

    Returns
    -------
    matplotlib.axes.Axes
        The last layer on top. Each field holds the most probable next token, its colour the probability from 0 to 1.

    Raises
    ------
    ImportError
        The package matplotlib is not installed.
    TypeError, ValueError
        For another shape, logits that are not finite, and for tokens or names that are not as many strings.

    Examples
    --------
    >>> ax = logit_lens(np.float32([[[0, 9]], [[9, 0]]]), ["Mr"], ["no", "yes"].__getitem__)
    >>> [text.get_text() for text in ax.texts]
    ['yes', 'no']
    """
    method = "plot.logit_lens"
    rows = [_numbers(row, "logits", method) for row in logits]
    if not rows or rows[0].ndim != 2 or rows[0].size == 0 or any(row.shape != rows[0].shape for row in rows):
        raise ValueError(
            f"{method}: logits has shapes {[row.shape for row in rows][:4]}; wanted is (n, L, vocab_size), one text"
        )
    if not callable(decode):
        raise TypeError(f"{method}: decode must be a function from an id to a str, not {kind(decode)}")
    n, L = len(rows), len(rows[0])
    labels = _labels(tokens, L, method)
    names = [str(i) for i in range(n)] if names is None else _labels(names, n, method, "names")
    best = np.array([row.argmax(axis=1) for row in rows])
    probability = np.array(
        [
            np.exp(log_softmax(np.ascontiguousarray(row, np.float32), method)[np.arange(L), ids])
            for row, ids in zip(rows, best, strict=True)
        ]
    )
    ax = _axes(ax, (1.5 + 0.8 * L, 1 + 0.35 * n), method)
    ax.imshow(probability, cmap=COLOURS, vmin=0, vmax=1, aspect="auto", origin="lower")
    for layer in range(n):
        for t in range(L):
            colour = "white" if probability[layer, t] > DARK else "black"
            text = _spelt(decode(int(best[layer, t])))
            ax.text(t, layer, text, ha="center", va="center", color=colour, fontsize=8, parse_math=False)
    _name_ticks(ax.xaxis, labels, rotation=90)
    _name_ticks(ax.yaxis, names)
    return ax


def _numbers(given, name, method):
    """An array of real numbers as it is, or of what can be made one."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{method}: {name} must be an array of real numbers, not of {array.dtype}")
    return array


def _labels(given, n, method, name="tokens"):
    """Check a sequence of n strings (None: of any number), and spell each; None without one."""
    if given is None and n is not None and name == "tokens":
        return None
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
        raise TypeError(f"{method}: {name} must be a list of str, not {kind(given)}")
    given = list(given)
    for i, one in enumerate(given):
        if not isinstance(one, str):
            raise TypeError(f"{method}: {name}[{i}] must be a str, not {kind(one)}")
    if n is not None and len(given) != n:
        raise ValueError(f"{method}: {name} has {counted(len(given), 'entry', 'entries')}; wanted are {n}")
    return [_spelt(one) for one in given]


def _spelt(text):
    """A token with what cannot be printed written out, and blanks around it gone."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.strip(" "))


def _axes(ax, size, method):
    """The axes to draw on: those given, or of a new figure of this size in inches."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            f"{method}: the package matplotlib is not installed; `pip install matplotlib` does it"
        ) from error
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def _name_ticks(axis, labels, rotation=0):
    """One tick for each label, spelt as it is."""
    if labels is not None:
        axis.set_ticks(range(len(labels)), labels, rotation=rotation)
        for label in axis.get_ticklabels():
            label.set_parse_math(False)
