"""Tensors in blocks: every type against its definition, value by value, in plain Python."""

import struct
import sys

import gguf
import numpy as np
import pytest
from gguf_files import random_blocks

from mojolearn.models import gguf_quants
from mojolearn.models.gguf_quants import OTHER_TYPES, PLAIN, TYPES, decode

BLOCKS = [kind for kind in TYPES if kind not in PLAIN]
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
f32 = np.float32


def half(data, at):
    return f32(struct.unpack_from("<e", data, at)[0])


def nibbles(data, at, n=16):
    """The low halves of n bytes, then the high ones."""
    return [b & 15 for b in data[at : at + n]] + [b >> 4 for b in data[at : at + n]]


def bits(data, at, n=32):
    return [data[at + i // 8] >> (i % 8) & 1 for i in range(n)]


def q4_0(data):
    d = half(data, 0)
    return [d * f32(q - 8) for q in nibbles(data, 2)]


def q4_1(data):
    d, m = half(data, 0), half(data, 2)
    return [d * f32(q) + m for q in nibbles(data, 4)]


def q5_0(data):
    d, high = half(data, 0), bits(data, 2)
    return [d * f32((q | h << 4) - 16) for q, h in zip(nibbles(data, 6), high, strict=True)]


def q5_1(data):
    d, m, high = half(data, 0), half(data, 2), bits(data, 4)
    return [d * f32(q | h << 4) + m for q, h in zip(nibbles(data, 8), high, strict=True)]


def q8_0(data):
    return [half(data, 0) * f32(q) for q in struct.unpack_from("<32b", data, 2)]


def q2_k(data):
    """16 scales and minima of 4 bits each, then 2 bits a value: 128 values in 32 bytes, four layers deep."""
    d, dmin = half(data, 80), half(data, 82)
    values = []
    for i in range(256):
        q = data[16 + i // 128 * 32 + i % 32] >> 2 * (i % 128 // 32) & 3
        scale = data[i // 16]
        values.append(d * f32(scale & 15) * f32(q) - dmin * f32(scale >> 4))
    return values


def q3_k(data):
    """A high bit for each value, 2 low bits, 16 scales of 6 bits less 32."""
    d = half(data, 108)
    values = []
    for i in range(256):
        low = data[32 + i // 128 * 32 + i % 32] >> 2 * (i % 128 // 32) & 3
        high = data[i % 32] >> i // 32 & 1
        j = i // 16
        scale = data[96 + j % 8] >> 4 * (j // 8) & 15 | (data[104 + j % 4] >> 2 * (j // 4) & 3) << 4
        values.append(d * f32(scale - 32) * f32((low | high << 2) - 4))
    return values


def six_bits(data, j):
    """Scale and minimum of 32 values in Q4_K and Q5_K."""
    s = data[4:16]
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def q4_k(data, first=16, high=None):
    d, dmin = half(data, 0), half(data, 2)
    values = []
    for i in range(256):
        q = data[first + i // 64 * 32 + i % 32] >> 4 * (i // 32 % 2) & 15
        if high is not None:
            q |= (data[high + i % 32] >> i // 32 & 1) << 4
        scale, minimum = six_bits(data, i // 32)
        values.append(d * f32(scale) * f32(q) - dmin * f32(minimum))
    return values


def q5_k(data):
    return q4_k(data, first=48, high=16)


def q6_k(data):
    d, scales = half(data, 208), struct.unpack_from("<16b", data, 192)
    values = []
    for i in range(256):
        low = data[i // 128 * 64 + i % 64] >> 4 * (i % 128 // 64) & 15
        high = data[128 + i // 128 * 32 + i % 32] >> 2 * (i % 128 // 32) & 3
        values.append(d * f32(scales[i // 16]) * f32((low | high << 4) - 32))
    return values


def iq4_nl(data):
    return [half(data, 0) * f32(IQ4[q]) for q in nibbles(data, 2)]


def iq4_xs(data):
    d, high = half(data, 0), struct.unpack_from("<H", data, 2)[0]
    values = []
    for j in range(8):
        scale = data[4 + j // 2] >> 4 * (j % 2) & 15 | (high >> 2 * j & 3) << 4
        values += [d * f32(scale - 32) * f32(IQ4[q]) for q in nibbles(data, 8 + 16 * j)]
    return values


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_block_by_its_definition(kind):
    blocks = random_blocks(kind, 12)
    wanted = np.array([globals()[kind.lower()](block.tobytes()) for block in blocks], np.float32)
    shape = (6, 2 * TYPES[kind].values)
    got = decode(blocks.reshape(-1), kind, shape, "x")
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), wanted.reshape(shape).view(np.uint32))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("chunk", [1, 600, 2**20])
def test_pieces_do_not_show(kind, chunk, monkeypatch):
    blocks = random_blocks(kind, 35)
    shape = (7, 5 * TYPES[kind].values)
    whole = decode(blocks.reshape(-1), kind, shape, "x")
    monkeypatch.setattr(gguf_quants, "CHUNK", chunk)
    np.testing.assert_array_equal(decode(blocks.reshape(-1), kind, shape, "x"), whole)
    vector = decode(blocks[:5].reshape(-1), kind, shape[1:], "x")
    np.testing.assert_array_equal(vector, whole[0])


def test_plain_types_stay_in_place():
    data = np.arange(48, dtype=np.uint8)
    for kind, dtype in PLAIN.items():
        array = decode(data, kind, (2, 24 // dtype.itemsize), "x")
        assert array.dtype == dtype
        assert np.shares_memory(array, data)
        assert array.tobytes() == data.tobytes()


def test_data_that_lie_askew_are_copied():
    """Legal with an alignment of one byte."""
    data = np.arange(49, dtype=np.uint8)[1:]
    assert decode(data, "F32", (12,), "x").tobytes() == data.tobytes()
    assert decode(data, "F32", (12,), "x").flags.aligned


def test_infinite_scales_warn_nobody():
    data = np.full(36, 0x7C, np.uint8)
    assert not np.isfinite(decode(np.tile(data[:34], 1), "Q8_0", (32,), "x")).all()


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    with pytest.raises(
        ImportError, match=r"^T: t is of type Q8_0, which takes .*`pip install mojolearn-numba\[gguf\]`"
    ):
        decode(np.zeros(34, np.uint8), "Q8_0", (32,), "T: t")
    assert decode(np.zeros(4, np.uint8), "F32", (1,), "T: t") == 0


def test_numbers_of_types():
    """As the package numbers them, and with its sizes."""
    for kind, (number, values, size) in TYPES.items():
        assert gguf.GGMLQuantizationType[kind] == number
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (values, size)
    theirs = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    for number, kind in OTHER_TYPES.items():
        assert theirs.get(number, kind) == kind  # newer ones may be missing
