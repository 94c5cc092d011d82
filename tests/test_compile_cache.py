"""The compile cache: whatever the disk does, calls give their results, and at the most one warning."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
from mojolearn import _jit
from mojolearn.layers import Norm
print(_jit.cache_is_cold())
print(Norm("rmsnorm", np.ones(2, np.float32))(np.array([[3, 4]], np.float32)).tolist())
"""
RESULT = "[[0.8485280871391296, 1.1313707828521729]]"


def call(folder, **environment):
    """Run a small kernel with its cache in a folder: (was it cold, what came on stderr)."""
    environment = {"NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    cold, result = done.stdout.splitlines()
    assert result == RESULT
    return cold == "True", done.stderr


def empty(path):
    path.write_bytes(b"")


def cut(path):
    path.write_bytes(path.read_bytes()[:-50])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def garbage(path):
    path.write_bytes(b"garbage\n")


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache folder with the kernel in it."""
    folder = tmp_path_factory.mktemp("cache")
    assert call(folder) == (True, "")
    assert call(folder) == (False, "")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("damage", [empty, cut, flip, garbage])
def test_damaged_files_are_replaced(filled, kind, damage):
    paths = list(filled.rglob(kind))
    assert paths
    for path in paths:
        damage(path)
    _, warning = call(filled)
    assert warning.count("RuntimeWarning") <= 1  # a damaged index may also read as one of an older source
    assert call(filled) == (False, "")


@pytest.mark.long
def test_deleted_files_are_replaced(filled):
    for path in filled.rglob("*.nbc"):
        path.unlink()
    assert call(filled)[1] == ""
    assert call(filled) == (False, "")


@pytest.mark.long
@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/cache"])
def test_a_folder_that_cannot_be_made_gives_one_warning(folder):
    cold, warning = call(folder)
    assert cold
    assert warning.count("RuntimeWarning") == 1
    assert folder in warning and "NUMBA_CACHE_DIR" in warning


@pytest.mark.long
def test_the_cache_can_be_switched_off(tmp_path):
    assert call(tmp_path, MOJOLEARN_CACHE="0") == (True, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_eight_processes_may_start_at_once(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for process in running:
        assert process.communicate()[0].splitlines()[1] == RESULT
        assert process.returncode == 0
    assert call(tmp_path) == (False, "")
