"""One block over a whole prompt, without a state: mostly arithmetic."""

from .common import NAMES, Timed, fast, forward_of


class Prefill(Timed):
    """numpy: the block's seven matrix products alone, a floor that no block on NumPy gets below."""

    param_names = ("shape", "prompt", "library")
    params = (NAMES, fast(128, slow=[512]), fast("mojolearn", "mojolearn-bfloat16", "numpy", slow=["torch"]))

    def setup(self, shape, prompt, library):
        self.call = forward_of(shape, library, prompt)
        self.call()  # compile, touch

    def time_forward(self, shape, prompt, library):
        self.call()
