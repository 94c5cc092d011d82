"""
The logit lens
==============

What would a model say if it had to answer after its first layer, after its second, and so on? The head is made for the
last hidden state, but it can read the others too (nostalgebraist, 2020, "interpreting GPT: the logit lens").
"""

# %%
# ``return_hidden`` gives what stands between the layers: the embedding, and the output of each layer before any norm.
import matplotlib.pyplot as plt
import numpy as np

from mojolearn import CausalLM, plot
from mojolearn.models import BUILT_IN

lm = CausalLM.load(BUILT_IN)
ids = lm.tokenizer.encode("Mr. Weston came into the")
tokens = [lm.tokenizer.decode([i]) for i in ids]
logits, hidden = lm.forward([ids], return_hidden=True)
names = list(hidden)[:-1]  # without the last, which is after the final norm
assert names == ["embed", "block_0", "block_1", "block_2", "block_3"]

# %%
# ``unembed`` is the final norm and the head. After the last layer it gives the logits of the model, in every bit.
views = np.concatenate([lm.unembed(hidden[name]) for name in names])  # (layers + 1, tokens, vocabulary)
assert (views[-1].view(np.uint32) == logits[0].view(np.uint32)).all()


def decode(token):
    return lm.tokenizer.decode([token])


plot.logit_lens(views, tokens, decode, names=names).set_title("the next token, layer by layer")

# %%
# Before the first layer the model can only repeat the token that it stands on: embedding and head share their weights.
# A place to come into is found on the way, and becomes ever more probable.
assert decode(views[0, -1].argmax()) == " the"
assert decode(views[-1, -1].argmax()) == " room"

(room,) = lm.tokenizer.encode(" room", add_bos=False)
weights = np.exp(views[:, -1] - views[:, -1].max(axis=1, keepdims=True))
probability = weights[:, room] / weights.sum(axis=1)
for name, p in zip(names, probability, strict=True):
    print(f"{name}: room {p:.3f}")
assert (np.diff(probability) > 0).all() and probability[-1] > 0.2

# %%
# The same in a picture: the logarithm, for what is small at first.
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.semilogy(names, probability, "o-")
ax.set_ylabel("probability of “room”")
plt.show()
