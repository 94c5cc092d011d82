"""Libraries with environments of their own: their interpreters are named by variables, see rivals.py."""

import os
import statistics

from rivals import INTERPRETERS, measure

from .common import NAMES, fast, skip_if

MODELS = {"transformers": "MOJOLEARN_BENCH_MODEL", "llama": "MOJOLEARN_BENCH_GGUF"}
THREADS = os.environ["NUMBA_NUM_THREADS"]


class Rival:
    """Median seconds of what a rival does; a cell whose interpreter or model is not named is skipped."""

    unit = "seconds"
    timeout = 120

    def setup(self, *parameters):
        skip_if(INTERPRETERS[parameters[-1]] not in os.environ)

    def median(self, rival, *arguments):
        return statistics.median(measure(rival, *arguments, threads=THREADS)["seconds"])


class Block(Rival):
    """The run of a prompt, to be read beside block_prefill.py."""

    param_names = ("shape", "prompt", "rival")
    params = (NAMES, fast(128, slow=[512]), fast("core", slow=["torch"]))

    def track_forward(self, shape, prompt, rival):
        return self.median(rival, "--shape", shape, "--length", prompt)


class Step(Rival):
    """One token behind a cache, to be read beside block_decode.py."""

    param_names = ("shape", "cached", "rival")
    params = (NAMES, [128], ["core"])

    def track_step(self, shape, cached, rival):
        return self.median(rival, "--shape", shape, "--length", cached, "--step")


class Model(Rival):
    """A whole model, to be read beside causal_lm.py: seconds per decoded token, and of a prompt."""

    param_names = ("context", "rival")
    params = (fast(128, slow=[1024]), fast("llama", slow=["transformers"]))

    def setup(self, context, rival):
        super().setup(context, rival)
        name = MODELS[rival]
        skip_if(name not in os.environ)
        self.arguments = ("--model", os.environ[name], "--context", context)

    def track_decode(self, context, rival):
        return self.median(rival, *self.arguments)

    def track_prefill(self, context, rival):
        return self.median(rival, *self.arguments, "--prefill")
