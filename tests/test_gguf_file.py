"""The reader of GGUF files: what is there is read, what is not there is never believed."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf_files import gguf_bytes, stored, text, write
from hypothesis import given
from hypothesis import strategies as st

from mojolearn.models.gguf_file import GGUFFile, Strings, is_gguf

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.epsilon": 1e-5,
    "flag": True,
    "large": np.uint64(2**63),
    "small": np.int32(-7),
    "names": ["a", "", "ü漢"],
    "numbers": [3, 1, 2],
    "floats": [0.5, 1.5],
    "flags": [True, False],
}
TENSORS = {
    "a.weight": stored(np.arange(6.0).reshape(2, 3)),
    "b.weight": stored(np.arange(64.0).reshape(2, 32), "Q8_0"),
    "c.weight": stored(np.ones(5), "BF16"),
    "d.weight": stored(np.ones((1, 2, 4)), "F16"),
}
GOOD = gguf_bytes(METADATA, TENSORS)


def read(path):
    return GGUFFile(path, "T")


def refused(tmp_path, data, match):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=match) as caught:
        read(path)
    assert str(caught.value).startswith(f"T: {path}")
    assert "\n" not in str(caught.value)


def test_what_stands_in_a_file(tmp_path):
    file = read(write(tmp_path / "x.gguf", METADATA, TENSORS))
    found = file.metadata
    assert list(found) == list(METADATA)
    assert found["flag"] is True
    assert (found["large"], found["small"]) == (2**63, -7)
    assert found["llama.epsilon"] == 1e-5
    assert isinstance(found["names"], Strings)
    assert (len(found["names"]), found["names"].read("names")) == (3, METADATA["names"])
    assert found["numbers"].tolist() == [3, 1, 2]
    assert found["floats"].dtype == np.float32
    assert found["flags"].tolist() == [True, False]
    assert file.tensors["a.weight"][:2] == ("F32", (2, 3))
    assert file.tensors["b.weight"][:2] == ("Q8_0", (2, 32))
    for name, (_, _, data) in TENSORS.items():
        assert file.data(file.tensors[name]).tobytes() == data
        assert not file.data(file.tensors[name]).flags.writeable


@pytest.mark.parametrize("options", [{"version": 2}, {"alignment": 64}, {"alignment": 1}])
def test_other_versions_and_alignments(tmp_path, options):
    alignment = {"general.alignment": options["alignment"]} if "alignment" in options else {}
    file = read(write(tmp_path / "x.gguf", METADATA | alignment, TENSORS, **options))
    assert file.data(file.tensors["b.weight"]).tobytes() == TENSORS["b.weight"][2]


def test_the_package_reads_the_same(tmp_path):
    """Our files are what others take for GGUF files."""
    path = write(tmp_path / "x.gguf", METADATA, TENSORS)
    file, theirs = read(path), GGUFReader(path)
    assert {t.name: (t.data_offset, t.n_bytes) for t in theirs.tensors} == {
        name: (t.start, t.stop - t.start) for name, t in file.tensors.items()
    }


def test_padding_at_the_end_may_be_missing(tmp_path):
    pad = -len(TENSORS["d.weight"][2]) % 32
    assert pad
    assert len(read(write(tmp_path / "x.gguf", METADATA, TENSORS, cut=pad)).tensors) == 4


def test_metadata_alone(tmp_path):
    """As files that hold nothing but a vocabulary."""
    assert read(write(tmp_path / "x.gguf", METADATA, {})).tensors == {}


@pytest.mark.parametrize(
    "length", range(len(gguf_bytes({"k": "v", "l": ["a"]}, {"t": stored(np.ones(3))})) - 20)
)
def test_cut_anywhere(tmp_path, length):
    whole = gguf_bytes({"k": "v", "l": ["a"]}, {"t": stored(np.ones(3))})
    refused(tmp_path, whole[:length], "cut short|no GGUF file")


def tensor(name="t", dimensions=(3,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def with_tensor(data):
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + data + bytes(512)


def with_key(data, key="k"):
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(key) + data


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "no GGUF file: it begins with b''"),
        (b"GGML" + bytes(100), "no GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version 1; wanted is version 2 or 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "of the other byte order"),
        (gguf_bytes(METADATA, {}, counts=(0, 2**63)), "9223372036854775808 metadata keys; at most"),
        (gguf_bytes(METADATA, {}, counts=(2**62, 1)), "tensors; at most"),
        (gguf_bytes(METADATA, {}, counts=(0, 11)), "a metadata key is"),
        (gguf_bytes([("k", 1), ("k", 2)], {}), "the metadata key k appears twice"),
        (gguf_bytes({"": 1}, {}), "wanted are one or more printable"),
        (gguf_bytes({"a\nb": 1}, {}), r"'a\\nb'; wanted are one or more printable"),
        (gguf_bytes({b"\xff": 1}, {}), r"not UTF-8 text \(byte 0\)"),
        (gguf_bytes({"k": b"ab\xff"}, {}), r"k is not UTF-8 text \(byte 2\)"),
        (with_key(b"", key="k" * 2000), "2000 bytes; at most 1024"),
        (with_key(struct.pack("<I", 99)), "k is of the unknown type 99"),
        (with_key(struct.pack("<IQ", 8, 2**40)), "k has 1099511627776 bytes; at most"),
        (with_key(struct.pack("<IIQ", 9, 4, 2**61)), "cut short"),
        (with_key(struct.pack("<IIQ", 9, 9, 1) + bytes(64)), "k is a list of the unknown type 9"),
        (with_key(struct.pack("<IIQ", 9, 8, 2**61)), "strings; at most"),
        (with_key(struct.pack("<IIQQ", 9, 8, 2, 2**63)), "cut short"),
        (gguf_bytes({"general.alignment": 24}, {}), "a power of two up to 1048576, not 24"),
        (gguf_bytes({"general.alignment": 0}, {}), "general.alignment"),
        (gguf_bytes({"general.alignment": 2**21}, {}), "general.alignment"),
        (gguf_bytes({"general.alignment": "32"}, {}), "general.alignment"),
        (with_tensor(tensor(dimensions=())), "t has 0 dimensions"),
        (with_tensor(tensor(dimensions=(1,) * 5)), "t has 5 dimensions"),
        (with_tensor(text("t") + struct.pack("<I", 2**32 - 1)), "4294967295 dimensions"),
        (with_tensor(tensor(dimensions=(0,))), r"shape \(0,\); wanted are sizes from 1"),
        (with_tensor(tensor(dimensions=(2**40, 2**40))), "cut short"),
        (with_tensor(tensor(kind=9)), r"type 9 \(Q8_1\); wanted is one of F32"),
        (with_tensor(tensor(kind=4)), r"type 4 \(unknown\)"),
        (with_tensor(tensor(dimensions=(33,), kind=8)), "rows of type Q8_0 are multiples of 32 values"),
        (with_tensor(tensor(offset=32)), "t is at byte 32 of the data; wanted is 0"),
        (with_tensor(tensor(name="\x1b[2J")), "printable"),
        (gguf_bytes({}, [("t", stored(np.ones(3)))] * 2), "the tensor t appears twice"),
        (
            gguf_bytes({}, {"t": stored(np.ones(3)), "u": (*stored(np.ones(3)), 0)}),
            "u is at byte 0 of the data",
        ),
        (gguf_bytes({}, {"t": stored(np.ones(3))}, cut=21), "t ends at byte"),
        (gguf_bytes({}, {"t": stored(np.ones(3))}) + bytes(32), "longer than its header says"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "pointer of Git LFS"),
    ],
)
def test_refused(tmp_path, data, match):
    refused(tmp_path, data, match)


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^T: .*none\.gguf does not exist"):
        read(tmp_path / "none.gguf")


@given(st.data())
def test_damaged_bytes(tmp_path_factory, data):
    """One sentence or a file that is consistent with itself, and little memory in either case."""
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(GOOD) - 1))
        damaged[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 127, 128, 255])))
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    path.write_bytes(damaged)
    tracemalloc.start()
    said, file = outcome(lambda: read(path))
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    assert said is None or (said.startswith(f"T: {path}") and "\n" not in said)
    if file is not None:
        assert all(tensor.stop <= len(damaged) for tensor in file.tensors.values())
        for strings in (value for value in file.metadata.values() if isinstance(value, Strings)):
            said, _ = outcome(lambda strings=strings: strings.read("k"))
            assert said is None or "not UTF-8" in said


def outcome(call):
    """What an error says, or what is returned."""
    try:
        return None, call()
    except ValueError as error:
        return str(error), None


def test_lists_cost_nothing_until_they_are_read(tmp_path):
    path = write(
        tmp_path / "x.gguf",
        {"names": ["token"] * 100_000, "numbers": np.arange(100_000.0, dtype=np.float32)},
        {},
    )
    tracemalloc.start()
    file = read(path)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()
    assert file.metadata["names"].read("names")[-1] == "token"


def test_what_is_taken_for_a_file(tmp_path):
    (tmp_path / "blob").write_bytes(GOOD)
    (tmp_path / "other").write_bytes(b"GGU")
    (tmp_path / "folder.gguf").mkdir()
    assert is_gguf(tmp_path / "blob")
    assert is_gguf(str(tmp_path / "none.GGUF"))
    for other in (
        tmp_path / "other",
        tmp_path / "none",
        tmp_path / "folder.gguf",
        Path("a\0b"),
        3,
        None,
        b"x.gguf",
    ):
        assert not is_gguf(other)
