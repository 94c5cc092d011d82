"""A token through a decode session: weights and cache are read once, and no cache is moved."""

from .common import FORMATS, NAMES, Timed, fast, filled_state, random_block, random_input


class Step(Timed):
    param_names = ("shape", "weight_format", "cached")
    params = (NAMES, FORMATS, fast(128, 2048, slow=[8192]))
    number = 1

    def setup(self, shape, weight_format, cached):
        block, self.x = random_block(shape, weight_format), random_input(shape, 1)
        self.session = block.decode_session(filled_state(block, cached))
        self.session.step(self.x)  # compile, touch

    def time_step(self, shape, weight_format, cached):
        self.session.step(self.x)
