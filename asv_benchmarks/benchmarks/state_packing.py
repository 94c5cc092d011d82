"""Moving a cache: into a session, out of it, and whole. The blocks have the heads of a model but no large matrices."""

import numpy as np

from .common import NAMES, Timed, fast, filled_state, thin_block

ONE_TOKEN = np.ones((1, 1, 2), np.float32)


class Cache(Timed):
    param_names = ("shape", "cached")
    params = (NAMES, fast(2048, slow=[8192]))
    number = 1

    def setup(self, shape, cached):
        self.block = thin_block(shape)
        self.state = filled_state(self.block, cached)
        self.session = self.block.decode_session(filled_state(self.block, cached))
        self.session.step(ONE_TOKEN)
        self.session.sync_state()  # compile
        self.session.step(ONE_TOKEN)

    def time_open(self, shape, cached):
        self.block.decode_session(self.state)

    def time_sync(self, shape, cached):
        self.session.sync_state()

    def time_copy(self, shape, cached):
        self.state.copy()
