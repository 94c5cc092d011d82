"""Golden cases: every output bit and every byte of the buffers of the public release mojolearn-core 0.8.62."""

import numpy as np
import pytest
from golden import case_paths, load_case
from support import bits

from mojolearn import TransformerBlock

NAMES = ("y", "k_cache", "v_cache", "keys", "values")


def run(case):
    """Run the calls of a case; yields (call, results by name) after each."""
    block = TransformerBlock(case.weights, **case.options)
    state = None
    if case.max_tokens is not None:
        state = block.allocate_state(case.batch, case.max_tokens)
        if case.init_cached_tokens is not None:
            state.k_cache[:] = case.init_k_cache
            state.v_cache[:] = case.init_v_cache
            state.cached_tokens = case.init_cached_tokens
    for call in case.calls:
        if call.kind == "step":
            y = block.step(call.x, state)
        elif call.kind == "lengths":
            y = block.forward(call.x, lengths=call.lengths)
        else:
            y = block.forward(call.x, state)
        results = {"y": y}
        if state is not None:
            assert state.cached_tokens == call.cached_tokens
            results |= {
                "k_cache": state.k_cache, "v_cache": state.v_cache,
                "keys": state.keys(), "values": state.values(),
            }  # fmt: skip
        yield call, results


@pytest.mark.parametrize("path", case_paths("open"), ids=lambda p: p.stem)
def test_bits_of_the_release(path):
    for call, results in run(load_case(path)):
        for name, result in results.items():
            wanted = getattr(call, name)
            assert result.shape == wanted.shape
            np.testing.assert_array_equal(bits(result), bits(wanted), err_msg=name)


@pytest.mark.parametrize("path", case_paths("subnormal"), ids=lambda p: p.stem)
def test_subnormals_are_the_documented_difference(path):
    """The release flushes subnormal numbers to zero, this library keeps them: tiny differences only."""
    for call, results in run(load_case(path)):
        for name, result in results.items():
            np.testing.assert_allclose(result, getattr(call, name), rtol=1e-5, atol=1e-30, err_msg=name)
