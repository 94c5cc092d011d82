"""A soak of a few seconds; `make soak` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.long
def test_some_seconds_of_everything_at_once():
    done = subprocess.run(
        [sys.executable, HERE / "soak.py", "--minutes", "0.1"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "operations on 3 threads" in done.stdout
    assert "also of a cold run" in done.stdout
