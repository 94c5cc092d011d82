"""Fixtures and settings of the whole suite. Plain helpers are in support.py, which needs no pytest."""

import os

import numba
import numpy as np
import pytest
import support
from hypothesis import HealthCheck, settings

# The first example of a test may compile kernels, so no deadline. In CI the same examples every time.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("soak", settings.get_profile("dev"), max_examples=2000)
settings.register_profile(
    "plain", settings.get_profile("ci"), max_examples=5
)  # kernels as plain Python are slow
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def rng():
    """A generator that starts the same in every test."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def bits():
    """``bits(a)``: the bit patterns of a float32 array."""
    return support.bits


@pytest.fixture(scope="session")
def make_weights():
    """``make_weights(d_model, intermediate, seed, **options)``: random weights for any options."""
    return support.make_weights


@pytest.fixture(scope="session")
def make_block():
    """``make_block(d_model, intermediate, seed, **options)``: a block with random weights."""
    return support.make_block


@pytest.fixture(autouse=True)
def threads_as_before():
    """The command line sets a number of threads for its process: that of a test counts in no other."""
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)
