"""rope.py: the frequencies to the last bit, and every way to write rope_scaling wrongly."""

import exact
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits

from mojolearn.options import BlockOptions
from mojolearn.rope import inverse_frequencies
from mojolearn.rope_scaling import admit_rope_scaling

LLAMA3 = {
    "type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def options(head_dim=32, **rope):
    return BlockOptions(d_model=8, intermediate_size=8, n_heads=1, head_dim=head_dim, **rope)


def by_the_page(o):
    """Section 4 of the numerics page, one float32 at a time."""
    frequencies, s = [], o.rope_scaling
    for i in range(o.rope_dim // 2):
        e = np.float32(2 * i) / np.float32(o.rope_dim)
        f = np.float32(1) / exact.power(np.float32(o.rope_theta), e)
        if s is not None and s["type"] == "linear":
            f = f / np.float32(s["factor"])
        if s is not None and s["type"] == "llama3":
            factor, low, high = (np.float32(s[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
            original = np.float32(s["original_max_position_embeddings"])
            wavelength = exact.from_bits(0x40C90FDB) / f
            if wavelength > original / low:
                f = f / factor
            elif not wavelength < original / high:
                smooth = (original / wavelength - low) / (high - low)
                f = ((np.float32(1) - smooth) * f) / factor + smooth * f
        frequencies.append(f)
    return np.array(frequencies, np.float32)


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6, 100.0, 1.0, 0.5, 3e38])
@pytest.mark.parametrize(
    "scaling", [None, {"type": "linear", "factor": 1.7}, LLAMA3, LLAMA3 | {"factor": 7.3}]
)
@pytest.mark.parametrize("head_dim", [2, 10, 64])
def test_bits(theta, scaling, head_dim):
    o = options(head_dim, rope_theta=theta, rope_scaling=scaling)
    f = inverse_frequencies(o)
    assert f.shape == (head_dim // 2,)
    assert np.array_equal(bits(f), bits(by_the_page(o)))


@given(
    st.floats(10, 1e7, width=32),
    st.floats(0.5, 64),
    st.floats(0.25, 4),
    st.floats(1.01, 8),
    st.integers(1, 2**20),
)
def test_bits_of_any_llama3(theta, factor, low, ratio, original):
    scaling = LLAMA3 | {
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": low * ratio,
        "original_max_position_embeddings": original,
    }
    o = options(8, rope_theta=theta, rope_scaling=scaling)
    assert np.array_equal(bits(inverse_frequencies(o)), bits(by_the_page(o)))


def test_all_three_bands_of_llama3_are_met():
    plain, scaled = inverse_frequencies(options()), inverse_frequencies(options(rope_scaling=LLAMA3))
    kept, slowed = scaled == plain, scaled == plain / np.float32(32)
    assert kept.any()
    assert slowed.any()
    assert (~kept & ~slowed).any()


def test_values_close_to_the_power_law():
    f = inverse_frequencies(options(64, rope_theta=500000.0))
    wanted = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    assert np.allclose(f, wanted, rtol=2e-6, atol=0)
    assert f[0] == 1


def test_partial_rotation_uses_rope_dim():
    f = inverse_frequencies(options(32, rope_dim=8))
    assert np.array_equal(f, inverse_frequencies(options(8)))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 1e-38, "rope_scaling": {"type": "linear", "factor": 1e-3}},
        {"rope_scaling": {"type": "linear", "factor": 1e-36}},
        {"rope_theta": 1e-45},
    ],
)
def test_angles_beyond_float32_are_refused(rope):
    with pytest.raises(ValueError, match=r"^TransformerBlock: rope_theta=.*angles of rotation"):
        inverse_frequencies(options(**rope))


def admit(given):
    return admit_rope_scaling(given, "rope_scaling", "TransformerBlock")


def test_both_spellings_give_one_form():
    shuffled = dict(reversed(LLAMA3.items()))
    spelt = {"rope_type": shuffled.pop("type")} | shuffled
    for given_form in (LLAMA3, shuffled | {"type": "llama3"}, spelt, spelt | {"type": "llama3"}):
        assert list(admit(given_form).items()) == list(LLAMA3.items())


def test_numbers_become_those_of_python():
    admitted = admit(
        {
            "type": "llama3",
            "factor": np.float32(8),
            "low_freq_factor": 1,
            "high_freq_factor": np.int64(4),
            "original_max_position_embeddings": np.int32(64),
        }
    )
    assert [type(value) for value in admitted.values()] == [str, float, float, float, int]


@pytest.mark.parametrize("nothing", [None, {"type": "default"}, {"rope_type": "default"}])
def test_default_means_none(nothing):
    assert admit(nothing) is None


def without(key):
    return {k: v for k, v in LLAMA3.items() if k != key}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["lacks", "type"]),
        ({"factor": 2.0}, ["lacks", "type", "2.0"]),
        ({"type": "yarn", "factor": 2.0}, ["'yarn'", "'linear'", "'llama3'"]),
        ({"type": 3}, ["3", "'linear'"]),
        ({"type": ["linear"], "factor": 2.0}, ["['linear']"]),
        ({"type": "linear", "rope_type": "llama3", "factor": 2.0}, ["'linear'", "'llama3'", "spellings"]),
        ({"type": "linear"}, ["'linear'", "lacks", "'factor'"]),
        ({"type": "linear", "factor": 2.0, "factr": 3.5}, ["'factr'", "3.5", "did you mean 'factor'"]),
        ({"type": "default", "factor": 2.0}, ["'factor'", "2.0", "'default'"]),
        ({"type": "linear", "factor": 0.0}, ['"factor"', "0.0"]),
        ({"type": "linear", "factor": -2}, ['"factor"', "-2"]),
        ({"type": "linear", "factor": float("nan")}, ['"factor"', "nan"]),
        ({"type": "linear", "factor": 1e39}, ['"factor"', "1e+39"]),
        ({"type": "linear", "factor": True}, ['"factor"', "True"]),
        ({"type": "linear", "factor": "2"}, ['"factor"', "'2'"]),
        ({"type": "linear", "factor": None}, ['"factor"', "None"]),
        *((without(key), ["lacks", repr(key)]) for key in LLAMA3 if key != "type"),
        (LLAMA3 | {"original_max_position_embeddings": 0}, ["original_max_position_embeddings", "0"]),
        (LLAMA3 | {"original_max_position_embeddings": -8}, ["original_max_position_embeddings", "-8"]),
        (
            LLAMA3 | {"original_max_position_embeddings": 8192.0},
            ["original_max_position_embeddings", "8192.0"],
        ),
        (
            LLAMA3 | {"original_max_position_embeddings": "8192"},
            ["original_max_position_embeddings", "'8192'"],
        ),
        (LLAMA3 | {"original_max_position_embeddings": True}, ["original_max_position_embeddings", "True"]),
        (LLAMA3 | {"high_freq_factor": 1.0}, ["high_freq_factor", "low_freq_factor", "1.0"]),
        (LLAMA3 | {"high_freq_factor": 0.5}, ["high_freq_factor", "low_freq_factor", "0.5"]),
        (LLAMA3 | {"high_freq_factor": 1 + 1e-9}, ["high_freq_factor", "float32"]),
    ],
)
def test_wrong_entries_are_named(given, words):
    with pytest.raises(ValueError, match=r"^TransformerBlock: rope_scaling") as caught:
        admit(given)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("given", ["linear", 2.0, ["linear"], [("type", "linear")], True])
def test_other_kinds_are_refused(given):
    with pytest.raises(TypeError, match=r"^TransformerBlock: rope_scaling must be None or a dict"):
        admit(given)


def test_the_given_dict_stays_as_it_is():
    given_form = {"rope_type": "linear", "factor": 2}
    admit(given_form)
    assert given_form == {"rope_type": "linear", "factor": 2}
