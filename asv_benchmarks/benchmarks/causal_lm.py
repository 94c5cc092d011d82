"""Whole models, in tokens per second: the built-in one, and a folder that ``MOJOLEARN_BENCH_MODEL`` names."""

import functools
import itertools
import os
import statistics
import time

from mojolearn import CausalLM
from mojolearn.models import BUILT_IN

from .common import fast, median_seconds, skip_if

MODELS = fast("built-in", slow=["MOJOLEARN_BENCH_MODEL"])
TOKENS = 33


@functools.cache
def load(model):
    folder = BUILT_IN if model == "built-in" else os.environ.get(model)
    skip_if(folder is None)
    return CausalLM.load(folder, max_positions=8192)


def prompt(lm, length):
    return [[(7919 * i + 11) % lm.vocab_size for i in range(length)]]


class Model:
    """A model and a prompt; the kernels are compiled."""

    unit = "tokens/s"
    timeout = 300

    def setup(self, model, length):
        self.lm = load(model)
        list(self.lm.stream(prompt(self.lm, 16), 3))
        self.ids = prompt(self.lm, length)


class Decode(Model):
    """Greedy decoding behind a prompt: the median token."""

    param_names = ("model", "context")
    params = (MODELS, [128, 1024])

    def track_tokens_per_second(self, model, context):
        stream = self.lm.stream(self.ids, TOKENS)
        next(stream)  # chosen from the prompt's logits
        stamps = [time.perf_counter()]
        stamps += [time.perf_counter() for _ in stream]
        return 1 / statistics.median(after - before for before, after in itertools.pairwise(stamps))


class Prefill(Model):
    """Running a prompt, with the logits of its last position."""

    param_names = ("model", "prompt")
    params = (MODELS, [128, 512])

    def track_tokens_per_second(self, model, prompt):
        return prompt / median_seconds(lambda: self.lm.stream(self.ids, 1), 3)
