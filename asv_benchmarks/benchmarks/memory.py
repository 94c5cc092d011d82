"""Bytes: those that a layer or a state holds are exact, peaks are those of a whole process."""

import os

from mojolearn import CausalLM
from mojolearn.models import BUILT_IN

from .common import FORMATS, NAMES, fast, random_block, skip_if


class Block:
    """Exact, so that any change is a real one."""

    param_names = ("shape", "weight_format")
    params = (NAMES, FORMATS)
    unit = "bytes"

    def setup(self, shape, weight_format):
        self.block = random_block(shape, weight_format)

    def track_block_nbytes(self, shape, weight_format):
        return self.block.nbytes

    def track_state_nbytes(self, shape, weight_format):
        return self.block.allocate_state(batch_size=1, max_tokens=2048).nbytes


class Peak:
    """Import, load, and decode sixteen tokens; ``MOJOLEARN_BENCH_MODEL`` names a folder."""

    param_names = ("model",)
    params = (fast("none", "built-in", slow=["MOJOLEARN_BENCH_MODEL"]),)

    def setup(self, model):
        skip_if(model == "MOJOLEARN_BENCH_MODEL" and model not in os.environ)

    def peakmem_load_and_decode(self, model):
        if model != "none":
            CausalLM.load(BUILT_IN if model == "built-in" else os.environ[model]).generate([[0, 1, 2]], 16)
