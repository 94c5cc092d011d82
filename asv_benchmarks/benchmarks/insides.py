"""Looking inside: what ``return_attention`` and ``return_hidden`` add to a call, and texts as features."""

import numpy as np

from mojolearn import CausalLM
from mojolearn.models import BUILT_IN

from .common import NAMES, Timed, fast, random_block, random_input, thin_block

ASKED = {
    "nothing": {},
    "hidden": {"return_hidden": True},
    "attention": {"return_attention": True},
}


class Block(Timed):
    """A prompt through a whole block."""

    param_names = ("shape", "prompt", "asked")
    params = (NAMES, fast(128, slow=[512]), list(ASKED))

    def setup(self, shape, prompt, asked):
        block, x = random_block(shape), random_input(shape, prompt)
        self.call = lambda: block.forward(x, **ASKED[asked])
        self.call()  # compile, touch

    def time_forward(self, shape, prompt, asked):
        self.call()


class AttentionAlone(Timed):
    """The same through the heads of a model with d_model 2: next to nothing but attention."""

    param_names = ("shape", "prompt", "asked")
    params = (NAMES, fast(128, slow=[1024]), ["nothing", "attention"])

    def setup(self, shape, prompt, asked):
        block, x = thin_block(shape), np.ones((1, prompt, 2), np.float32)
        self.call = lambda: block.forward(x, **ASKED[asked])
        self.call()

    def time_forward(self, shape, prompt, asked):
        self.call()


class Features(Timed):
    """256 texts of 1 to 40 tokens through the built-in model: in batches, and one by one."""

    param_names = ("how",)
    params = (["together", "one by one"],)

    def setup(self, how):
        lm, rng = CausalLM.load(BUILT_IN), np.random.default_rng(0)
        texts = [rng.integers(0, lm.vocab_size, n).tolist() for n in rng.integers(1, 41, 256)]
        batches = [texts] if how == "together" else [[text] for text in texts]
        self.call = lambda: [lm.features(batch) for batch in batches]
        self.call()

    def time_features(self, how):
        self.call()
