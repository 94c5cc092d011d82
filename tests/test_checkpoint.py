"""Reading safetensors: every bit arrives, and a file that is not what it says is refused by name."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toy_models import raw_file, safetensors_bytes, write_shards

from mojolearn.models.checkpoint import CALLER, Checkpoint
from mojolearn.safetensors_file import SafetensorsFile
from mojolearn.weights import widen

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -0.0], np.float16),
    "c": np.array([[0x3F80]], np.uint16),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(TENSORS))
    return tmp_path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(path, data):
    """The message with which a file is refused."""
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"^CausalLM\.load: [^\n]+$") as caught:
        SafetensorsFile(path, CALLER)
    assert str(path) in str(caught.value)
    return str(caught.value)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        hnp.arrays(
            st.sampled_from([np.float32, np.float16, np.uint16]),
            hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
        ),
        max_size=4,
    ),
    st.sampled_from([1, 8]),
)
def test_round_trip(tmp_path_factory, tensors, pad):
    """Any names, shapes and bits, also where the data do not start at a multiple of the item size."""
    folder = tmp_path_factory.mktemp("round")
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, pad))
    checkpoint = Checkpoint(folder)
    for name, array in tensors.items():
        assert name in checkpoint
        read = checkpoint.take(name, array.shape)
        assert read.dtype == array.dtype
        assert read.tobytes() == array.tobytes()
        assert read.flags.aligned
        assert not read.flags.writeable
    checkpoint.finish()


def test_arrays_are_the_memory_of_the_file(folder):
    array = Checkpoint(folder).take("a", (2, 3))
    assert not array.flags.owndata
    assert array.base is not None


def test_bfloat16_widens_exactly(tmp_path):
    """-0, infinity, NaN, the smallest subnormal: a bfloat16 is the upper half of a float32."""
    bits = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0x0001, 0x8001, 0x3F80], np.uint16)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"w": bits}))
    wide = widen(Checkpoint(tmp_path).take("w", (8,)))
    np.testing.assert_array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)


def test_every_prefix_of_a_file_is_refused(tmp_path):
    whole = safetensors_bytes(TENSORS)
    for size in range(len(whole)):
        refused(tmp_path / "cut.safetensors", whole[:size])


@given(st.data())
def test_damaged_header_never_crashes(tmp_path_factory, data):
    """One byte of the header is changed: the file is refused in a sentence, or still reads within its bounds."""
    whole = bytearray(safetensors_bytes(TENSORS))
    place = data.draw(st.integers(0, 8 + struct.unpack("<Q", whole[:8])[0] - 1))
    whole[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "x.safetensors"
    path.write_bytes(whole)
    try:
        file, message = SafetensorsFile(path, CALLER), None
    except ValueError as error:
        file, message = None, str(error)
    if file is None:
        assert message.startswith(f"CausalLM.load: {path}")
        assert "\n" not in message
        return
    for each in file.entries.values():
        if each.dtype in ("F32", "F16", "BF16"):
            assert file.array(each).nbytes == each.stop - each.start


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        (b"", 0, ["valid JSON"]),
        (b"[]", 0, ["JSON object"]),
        (b'{"a": 1, "a": 2}', 0, ["'a'", "twice"]),
        ({"a": 1}, 0, ["a = 1", "data_offsets"]),
        ({"a": entry() | {"extra": 1}}, 8, ["a = ", "extra"]),
        ({"a": entry(dtype="F31")}, 8, ["'F31'", "F32"]),
        ({"a": entry(dtype=["F32"])}, 8, ["['F32']"]),
        ({"a": entry(shape=(2.0,))}, 8, ["shape", "2.0"]),
        ({"a": entry(shape=(True, 2))}, 8, ["shape", "True"]),
        ({"a": entry(shape=(-2,))}, 8, ["shape", "-2"]),
        ({"a": entry() | {"shape": 2}}, 8, ["shape"]),
        ({"a": entry(offsets=(0, 8, 8))}, 8, ["data_offsets", "8 bytes"]),
        ({"a": entry(offsets=(0, 7))}, 8, ["data_offsets", "8 bytes"]),
        ({"a": entry(offsets=(8, 0))}, 8, ["data_offsets"]),
        ({"a": entry(shape=(2**62, 4))}, 8, ["data_offsets"]),
        ({"a": entry()}, 1, ["cut short", "1 byte of", "wanted 8"]),
        ({"a": entry()}, 12, ["longer than its header says", "12 bytes", "wanted 8"]),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, 12, ["b overlaps"]),
        ({"a": entry(), "b": entry()}, 8, ["overlaps"]),
        ({"a": entry(), "b": entry(offsets=(12, 20))}, 20, ["b leaves a hole"]),
        ({"a": entry(offsets=(4, 12))}, 12, ["a leaves a hole"]),
    ],
)
def test_wrong_header(tmp_path, header, size, words):
    message = refused(tmp_path / "wrong.safetensors", raw_file(header, bytes(size)))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "data", [b"", b"abc", struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"]
)
def test_no_safetensors_file(tmp_path, data):
    assert "cut short or no safetensors" in refused(tmp_path / "x.safetensors", data)


def test_header_over_the_limit(tmp_path):
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001) + b"{}")
        file.truncate(100_000_100)  # sparse
    with pytest.raises(ValueError, match="header 100000001"):
        SafetensorsFile(path, CALLER)


def test_takes_each_tensor_once(folder):
    checkpoint = Checkpoint(folder)
    checkpoint.take("a", (2, 3))
    with pytest.raises(ValueError, match="the tensor a is missing"):
        checkpoint.take("a", (2, 3))


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("z", (2,), ["z is missing", "(2,)"]),
        ("a", (3, 2), ["model.safetensors: a", "(2, 3)", "(3, 2)"]),
        ("a", (6,), ["(2, 3)", "(6,)"]),
        ("d", (1,), ["model.safetensors: d", "F64", "F32, F16, BF16"]),
    ],
)
def test_unusable_tensor(tmp_path, name, shape, words):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(TENSORS | {"d": np.zeros(1)}))
    with pytest.raises(ValueError, match=r"^CausalLM\.load: ") as caught:
        Checkpoint(tmp_path).take(name, shape)
    for word in words:
        assert word in str(caught.value)


def test_left_over_tensors(folder):
    checkpoint = Checkpoint(folder)
    checkpoint.take("a", (2, 3))
    with pytest.raises(ValueError, match=r"2 tensors have no place in the model: b, c$"):
        checkpoint.finish()
    with pytest.raises(ValueError, match=r"1 tensor has no place in the model: c$"):
        checkpoint.finish(ignored=("b",))
    checkpoint.finish(ignored=("b", "c"))


class TestShards:
    def test_any_file_names(self, tmp_path):
        write_shards(tmp_path, TENSORS, {"a.safetensors": ["a", "c"], "weird name": ["b"]})
        checkpoint = Checkpoint(tmp_path)
        for name, array in TENSORS.items():
            assert checkpoint.take(name, array.shape).tobytes() == array.tobytes()
        checkpoint.finish()

    def test_missing_shard(self, tmp_path):
        write_shards(tmp_path, TENSORS, {"1.safetensors": ["a", "c"], "2.safetensors": ["b"]})
        (tmp_path / "2.safetensors").unlink()
        with pytest.raises(FileNotFoundError, match=r"2\.safetensors does not exist"):
            Checkpoint(tmp_path)

    def test_stray_file_is_not_looked_at(self, folder):
        (folder / "adapter.safetensors").write_bytes(
            safetensors_bytes({"lm_head.weight": np.zeros(1, np.float32)})
        )
        assert "lm_head.weight" not in Checkpoint(folder)

    def test_index_lists_what_the_shard_lacks(self, tmp_path):
        write_shards(tmp_path, TENSORS, {"1": ["a"], "2": ["b"]}, c="1")
        with pytest.raises(ValueError, match=r"index\.json lists c in 1, which lacks it"):
            Checkpoint(tmp_path)

    def test_index_places_a_tensor_in_the_other_shard(self, tmp_path):
        write_shards(tmp_path, TENSORS, {"1": ["a"], "2": ["b"]}, a="2")
        with pytest.raises(ValueError, match="a in 2, which lacks it"):
            Checkpoint(tmp_path)

    def test_shard_holds_what_the_index_lacks(self, tmp_path):
        write_shards(tmp_path, TENSORS, {"1": ["a", "b"]})
        (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "1"}}')
        with pytest.raises(ValueError, match="does not list b in 1, which holds it"):
            Checkpoint(tmp_path)

    @pytest.mark.parametrize(
        "file", ["../1", "/etc/passwd", "sub/1", "..", ".", "", "a\\b", "c:x", "\0", 1, None]
    )
    def test_file_outside_the_folder(self, tmp_path, file):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
        with pytest.raises(ValueError, match=r"a is placed in .*; wanted a file in the same folder"):
            Checkpoint(tmp_path)

    @pytest.mark.parametrize("table", [None, {}, [], "x"])
    def test_no_table(self, tmp_path, table):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
        with pytest.raises(ValueError, match="weight_map"):
            Checkpoint(tmp_path)


def test_no_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        FileNotFoundError, match=r"no weights found; wanted model\.safetensors .*, found pytorch_model\.bin$"
    ):
        Checkpoint(tmp_path)


def test_a_folder_for_a_file(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        Checkpoint(tmp_path)
