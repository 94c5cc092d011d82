"""From nothing to the first token: each call is a new Python process."""

import os
import subprocess
import sys
import tempfile

from .common import fast

FIRST_TOKEN = """
from mojolearn import CausalLM
from mojolearn.models import BUILT_IN
CausalLM.load(BUILT_IN).generate([[0, 1, 2]], 2)
"""


def timeraw_import():
    return "from mojolearn import CausalLM"


def timeraw_import_without_numba():
    return "from mojolearn import CausalLM", "import numba, numpy"


class FirstToken:
    """Import, load the built-in model, run a prompt of three tokens and two steps."""

    param_names = ("cache",)
    params = (fast("warm", slow=["cold"]),)
    number, repeat, rounds, warmup_time = 1, (1, 3, 30), 1, 0
    timeout = 300

    def setup(self, cache):
        self.folder = tempfile.TemporaryDirectory()
        self.environment = dict(os.environ)
        if cache == "cold":
            self.environment["NUMBA_CACHE_DIR"] = self.folder.name
        else:
            self.first_token()

    def teardown(self, cache):
        self.folder.cleanup()

    def first_token(self):
        subprocess.run([sys.executable, "-c", FIRST_TOKEN], env=self.environment, check=True)

    def time_first_token(self, cache):
        self.first_token()
