"""rope.py: the frequencies to the last bit, and close to the published formulas."""

import math
from decimal import Decimal, localcontext

import exact
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bits

from mojolearn.options import BlockOptions
from mojolearn.rope import attention_factor, chosen_length, inverse_frequencies

LLAMA3 = {
    "type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
DYNAMIC = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")


def longrope(pairs):
    return {
        "type": "longrope",
        "short_factor": [1 + 0.05 * i for i in range(pairs)],
        "long_factor": [1.1 + 1.7 * i for i in range(pairs)],
        "original_max_position_embeddings": 64,
        "factor": 16.0,
    }


def options(head_dim=32, **rope):
    return BlockOptions(d_model=8, intermediate_size=8, n_heads=1, head_dim=head_dim, **rope)


def ramp_ends(o, s):
    """Both ends of the ramp of "yarn", to more digits than the library takes."""
    with localcontext(prec=80):
        theta, two_pi = Decimal(float(np.float32(o.rope_theta))), 2 * PI
        ends = [
            o.rope_dim
            * (s["original_max_position_embeddings"] / (two_pi * Decimal(s[key]))).ln()
            / (2 * theta.ln())
            for key in ("beta_fast", "beta_slow")
        ]
        if s["truncate"]:
            ends = [Decimal(math.floor(ends[0])), Decimal(math.ceil(ends[1]))]
        low, high = np.float32(float(max(ends[0], 0))), np.float32(float(min(ends[1], o.rope_dim - 1)))
    return low, high + np.float32(0.001) if low == high else high


def by_the_page(o, length=0):
    """Section 4 of the numerics page, one float32 at a time."""
    frequencies, s = [], o.rope_scaling
    theta = np.float32(o.rope_theta)
    original = None if s is None else s.get("original_max_position_embeddings")
    if s is not None and s["type"] == "dynamic" and length > original:
        growth = np.float32(1) + np.float32(s["factor"]) * (
            np.float32(length - original) / np.float32(original)
        )
        theta = theta * exact.power(growth, np.float32(o.rope_dim) / np.float32(o.rope_dim - 2))
    for i in range(o.rope_dim // 2):
        e = np.float32(2 * i) / np.float32(o.rope_dim)
        f = np.float32(1) / exact.power(theta, e)
        if s is not None and s["type"] == "yarn":
            low, high = ramp_ends(o, s)
            ramp = min(max((np.float32(i) - low) / (high - low), np.float32(0)), np.float32(1))
            f = ramp * (f / np.float32(s["factor"])) + (np.float32(1) - ramp) * f
        if s is not None and s["type"] == "longrope":
            f = f / np.float32(s["long_factor" if length > original else "short_factor"][i])
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


YARNS = [
    YARN,
    YARN | {"truncate": False},
    YARN | {"beta_fast": 20.0, "beta_slow": 3.0, "factor": 1.5},
    YARN | {"original_max_position_embeddings": 1, "factor": 8.0},
    YARN | {"original_max_position_embeddings": 2**20, "truncate": False},
]


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6, 100.0, 0.5])
@pytest.mark.parametrize("scaling", YARNS, ids=str)
@pytest.mark.parametrize("head_dim", [2, 10, 64, 128])
def test_bits_of_yarn(theta, scaling, head_dim):
    o = options(head_dim, rope_theta=theta, rope_scaling=scaling)
    assert np.array_equal(bits(inverse_frequencies(o)), bits(by_the_page(o)))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 66, 100, 640, 100000, 2**24])
@pytest.mark.parametrize("head_dim", [4, 10, 64])
def test_bits_of_what_goes_by_length(length, head_dim):
    for scaling in (DYNAMIC, DYNAMIC | {"factor": 7.3}, longrope(head_dim // 2)):
        o = options(head_dim, rope_scaling=scaling)
        assert np.array_equal(bits(inverse_frequencies(o, length)), bits(by_the_page(o, length)))


def published(o, length):
    """The frequencies as published, in float64."""
    theta, R, s = o.rope_theta, o.rope_dim, o.rope_scaling
    original, i = s["original_max_position_embeddings"], np.arange(R // 2)
    if s["type"] == "dynamic":
        growth = s["factor"] * max(length, original) / original - (s["factor"] - 1)
        return (theta * growth ** (R / (R - 2))) ** (-2 * i / R)
    f = theta ** (-2 * i / R)
    if s["type"] == "longrope":
        return f / np.array(s["long_factor"] if length > original else s["short_factor"])
    low, high = (
        R * math.log(original / (s[k] * 2 * math.pi)) / (2 * math.log(theta))
        for k in ("beta_fast", "beta_slow")
    )
    low, high = (math.floor(low), math.ceil(high)) if s["truncate"] else (low, high)
    low, high = max(low, 0), min(high, R - 1)
    kept = 1 - np.clip((i - low) / (high - low or 0.001), 0, 1)
    return f / s["factor"] * (1 - kept) + f * kept


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6])
@pytest.mark.parametrize("scaling", [*YARNS, DYNAMIC, longrope(16)], ids=str)
@pytest.mark.parametrize("length", [1, 64, 65, 1000])
def test_values_close_to_the_published_formulas(theta, scaling, length):
    o = options(32, rope_theta=theta, rope_scaling=scaling)
    assert np.allclose(inverse_frequencies(o, length), published(o, length), rtol=2e-6, atol=0)


def test_yarn_keeps_slows_and_changes_over():
    """64 ln(512 / (2 pi 32)) / (2 ln 10000) = 3.2 and 64 ln(512 / (2 pi)) / (2 ln 10000) = 15.3."""
    plain, scaled = inverse_frequencies(options(64)), inverse_frequencies(options(64, rope_scaling=YARN))
    kept, slowed = scaled == plain, scaled == plain / np.float32(4)
    assert kept.tolist() == [i <= 3 for i in range(32)]
    assert slowed.tolist() == [i >= 16 for i in range(32)]


def test_lengths_with_the_same_frequencies():
    for o, lengths in (
        (options(), (0, 0, 0)),
        (options(rope_scaling=YARN), (0, 0, 0)),
        (options(rope_scaling=DYNAMIC), (0, 65, 1000)),
        (options(rope_scaling=longrope(16)), (0, 65, 65)),
        (options(rope_dim=0, rope_scaling=DYNAMIC), (0, 0, 0)),
    ):
        assert tuple(chosen_length(o, length) for length in (64, 65, 1000)) == lengths
        for length in (1, 64, 65, 1000):
            same = inverse_frequencies(o, chosen_length(o, length))
            assert np.array_equal(inverse_frequencies(o, length), same)


def test_no_rotation_has_no_frequencies():
    for scaling in (None, LLAMA3, YARN, DYNAMIC, longrope(3)):
        assert inverse_frequencies(options(rope_dim=0, rope_theta=1.0, rope_scaling=scaling), 1000).shape == (
            0,
        )


def mscale(factor, m):
    return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5, 4.0, 32.0])
def test_attention_factors(factor):
    """As published: rounded to float32, the number of float64."""

    def close(scaling, wanted):
        found = attention_factor(options(rope_scaling=scaling))
        assert found.dtype == np.float32
        return abs(float(found) - wanted) <= 2**-24 * wanted * (1 + 1e-6)

    yarn, long = YARN | {"factor": factor}, longrope(16) | {"factor": factor}
    assert close(yarn, mscale(factor, 1))
    assert close(yarn | {"mscale": 0.707}, mscale(factor, 1))
    assert close(yarn | {"mscale": 0.707, "mscale_all_dim": 0.5}, mscale(factor, 0.707) / mscale(factor, 0.5))
    assert close(yarn | {"attention_factor": 1.23, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.23)
    assert close(long, math.sqrt(1 + math.log(max(factor, 1)) / math.log(64)))
    assert close(long | {"attention_factor": 0.9}, 0.9)
    for other in (None, LLAMA3 | {"factor": factor}, DYNAMIC | {"factor": factor}):
        assert attention_factor(options(rope_scaling=other)) == 1
