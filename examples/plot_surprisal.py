"""
Surprisal, token by token
=========================

How unexpected is each token of a text? Its surprisal is minus the logarithm of its probability given all before it; the
first token has none. ``CausalLM.score`` computes it, with the same bits in any batch.
"""

# %%
# The first sentence of "Pride and Prejudice", on which the built-in model was trained, and one with another end.
import math

import matplotlib.pyplot as plt
import numpy as np

from mojolearn import CausalLM, plot
from mojolearn.models import BUILT_IN

lm = CausalLM.load(BUILT_IN)
beginning = "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
beginning += "must be in want of a"
texts = [f"{beginning} wife.", f"{beginning} parrot."]
rows = [lm.tokenizer.encode(text) for text in texts]
scores = lm.score(rows)
assert [len(score) for score in scores] == [len(row) - 1 for row in rows]

# %%
# The two have the same surprisal up to where they part. Then the parrot costs more.
figure, axes = plt.subplots(2, 1, figsize=(11, 7), sharey=True, layout="constrained")
for row, score, ax in zip(rows, scores, axes, strict=True):
    tokens = [lm.tokenizer.decode([i]) for i in row]
    plot.surprisal(score, tokens, ax=ax)

parting = next(i for i, (one, other) in enumerate(zip(*rows, strict=False)) if one != other) - 1
assert (scores[0][:parting].view(np.uint32) == scores[1][:parting].view(np.uint32)).all()
assert scores[0][parting:].sum() > scores[1][parting:].sum()

# %%
# Surprisal is spent where a word begins; how it goes on is nearly certain.
tokens = [lm.tokenizer.decode([i]) for i in rows[0]][1:]
bits = -scores[0] / math.log(2)
begins = np.array([token.startswith(" ") for token in tokens])
goes_on = np.array([token.isalpha() for token in tokens])
goes_on[0] = False  # "It"
print(f"{bits[begins].mean():.1f} bits where a word begins, {bits[goes_on].mean():.1f} where it goes on")
assert bits[begins].mean() > 2 * bits[goes_on].mean()

# %%
# The sum is what the text costs to write down with this model, and exp of the mean is its perplexity.
print(f"{math.fsum(bits):.1f} bits, perplexity {math.exp(-math.fsum(scores[0]) / len(scores[0])):.1f}")
assert math.fsum(bits) < 8 * len(texts[0]) / 4  # less than a quarter of its bytes
plt.show()
