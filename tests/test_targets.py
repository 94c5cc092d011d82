"""Another processor, another number of threads, no stored kernels: in a process of its own, the same bits."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
X86 = platform.machine() in ("x86_64", "AMD64")

# What an environment of its own sets. Numba compiles for the named processor whatever the real one is, so
# "nehalem" (no AVX, no FMA) and "generic" run anywhere, and "haswell" (AVX2, FMA) on nearly all of today's.
ELSEWHERE = {
    "two threads": {"NUMBA_NUM_THREADS": "2"},
    "three threads, workqueue": {"NUMBA_NUM_THREADS": "3", "NUMBA_THREADING_LAYER": "workqueue"},
    "no SVML": {"NUMBA_DISABLE_INTEL_SVML": "1"},
    "generic": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
}
if X86:
    for target in ("haswell", "nehalem"):
        ELSEWHERE[target] = {"NUMBA_CPU_NAME": target, "NUMBA_CPU_FEATURES": ""}


def check_bits(**settings):
    """What check_bits.py prints in an environment with these settings, by default on one thread."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_CPU", "NUMBA_THREADING"))}
    environment |= {"NUMBA_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    done = subprocess.run(
        [sys.executable, HERE / "check_bits.py"], env=environment | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def here():
    return check_bits()


@pytest.mark.long
@pytest.mark.parametrize("name", ELSEWHERE)
def test_same_bits_elsewhere(name, here):
    assert check_bits(**ELSEWHERE[name]) == here
