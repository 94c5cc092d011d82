"""Golden cases: every output bit and every byte of the buffers of the public release mojolearn-core 0.8.62."""

import numpy as np
import pytest
from golden import case_paths, load_case, replay
from support import bits

CASES = [load_case(path) for path in case_paths("open")]


def assert_equal_bits(call, results):
    for name, result in results.items():
        wanted = getattr(call, name)
        assert result.shape == wanted.shape
        np.testing.assert_array_equal(bits(result), bits(wanted), err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bits_of_the_release(case):
    for call, results in replay(case):
        assert_equal_bits(call, results)


@pytest.mark.parametrize("case", [c for c in CASES if c.max_tokens is not None], ids=lambda case: case.name)
def test_sessions_have_the_bits_of_the_release(case):
    for call, results in replay(case, in_session=True):
        assert_equal_bits(call, results)


@pytest.mark.parametrize("path", case_paths("subnormal"), ids=lambda p: p.stem)
def test_subnormals_are_the_documented_difference(path):
    """The release flushes subnormal numbers to zero, this library keeps them: tiny differences only."""
    for call, results in replay(load_case(path)):
        for name, result in results.items():
            np.testing.assert_allclose(result, getattr(call, name), rtol=1e-5, atol=1e-30, err_msg=name)
