"""Benchmarks for airspeed velocity: one file per subject, costly things in ``setup``, one expression timed."""

import os
import sys
from pathlib import Path

# Before NumPy and Numba are imported. asv sets these in environments that it makes, not in an existing one.
for name in ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

sys.path.insert(0, str(Path(__file__).parent.parent))  # rivals.py
