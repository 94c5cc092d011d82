"""
Attention maps
==============

Which tokens does a token look at? ``return_attention`` gives the weights with which a call mixes the values of
earlier tokens, and changes no bit of its logits.
"""

# %%
# The built-in model, a sentence, and the weights of its second layer: one map for each of six heads.
import matplotlib.pyplot as plt
import numpy as np

from mojolearn import CausalLM, plot
from mojolearn.models import BUILT_IN

lm = CausalLM.load(BUILT_IN)
ids = lm.tokenizer.encode("When Mr. Knightley came into the room, Emma was very glad to see him.")
tokens = [lm.tokenizer.decode([i]) for i in ids]

logits, attention = lm.forward([ids], return_attention=[1])
heads = attention[1][0]  # of the only text: (heads, tokens, positions)
assert list(attention) == [1] and heads.shape == (6, len(ids), len(ids))
assert (logits.view(np.uint32) == lm.forward([ids]).view(np.uint32)).all()

# %%
# Each row is a distribution over the token itself and those before it. What comes later has weight 0.
np.testing.assert_allclose(heads.sum(axis=2), 1, atol=1e-6)
assert not np.triu(heads, 1).any()

figure, axes = plt.subplots(2, 3, figsize=(13, 9), layout="constrained")
for head, ax in enumerate(axes.flat):
    plot.attention_map(heads[head], tokens, ax=ax).set_title(f"layer 1, head {head}")

# %%
# One of them looks back by one: on average most of its weight is on the token just before.
before = np.array([np.diagonal(head, -1)[1:].mean() for head in heads])
print("on the token before:", before.round(2))
assert before.argmax() == 4 and before[4] > 0.5

# %%
# With a state the map has a row for each new token and a column for each position, and its rows are the same.
state = lm.allocate_state(batch_size=1, max_tokens=len(ids))
lm.forward([ids[:-3]], state)
_, last = lm.forward([ids[-3:]], state, return_attention=[1])
assert last[1].shape == (1, 6, 3, len(ids))
assert (last[1][0].view(np.uint32) == heads[:, -3:].view(np.uint32)).all()

plot.attention_map(last[1][0, 4], tokens).set_title("the last three tokens, head 4")
plt.show()
