"""Files of named fields: what is written arrives, what is damaged or hostile is refused in a sentence, and cheaply."""

import io
import json
import os
import re
import signal
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mojolearn import archive
from mojolearn.archive import admit_target, read_fields, write_fields

FIELDS = {
    "format": "a file",
    "count": 7,
    "least": -(2**63) + 1,
    "flag": True,
    "empty": "",
    "numbers": np.arange(6, dtype=np.float32).reshape(2, 3),
    "none": np.zeros((2, 0, 3), np.float32),
    "ids": np.array([3, 1, 2]),
    "turned": np.arange(6.0).reshape(2, 3).T,
}
SUFFIXES = [".npz", ".safetensors"]
suffixes = pytest.mark.parametrize("suffix", SUFFIXES)


def read(path):
    return read_fields(path, "Test.load", "a test file")


def arrays_of(fields):
    return {name: np.asarray(value) for name, value in fields.items()}


def assert_holds(path, fields):
    found = read(path)._left
    assert found.keys() == fields.keys()
    for name, array in arrays_of(fields).items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@pytest.fixture
def path(tmp_path, suffix):
    path = tmp_path / f"f{suffix}"
    write_fields(path, FIELDS, "Test.save")
    return path


def refused(path, error=ValueError):
    """The message with which a file is refused."""
    with pytest.raises(error, match=r"^Test\.load: [^\n]+$") as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@suffixes
def test_what_is_written_arrives(path):
    assert_holds(path, FIELDS)


@suffixes
def test_equal_fields_are_equal_files(path):
    before = path.read_bytes()
    write_fields(path, read(path)._left, "Test.save")
    assert path.read_bytes() == before


@suffixes
def test_what_is_read_is_not_the_memory_of_the_file(path):
    fields = read(path)
    path.write_bytes(b"\xff" * path.stat().st_size)
    ids = fields.array("ids", np.int64, (3,))
    assert ids.tolist() == [3, 1, 2] and ids.flags.writeable


TEXT = st.text(st.characters(exclude_characters="\0"), max_size=20)  # NumPy drops zeros at the end
ARRAYS = hnp.arrays(
    st.sampled_from(["f4", "f2", "f8", "i8", "i4", "u1", "u2"]),
    hnp.array_shapes(min_dims=1, min_side=0, max_side=4),
)


@given(
    fields=st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_.]{0,8}", fullmatch=True).filter(lambda name: name != "digests"),
        st.one_of(ARRAYS, TEXT, st.booleans(), st.integers(-(2**63) + 1, 2**63 - 1)),
        max_size=5,
    ),
    suffix=st.sampled_from(SUFFIXES),
)
def test_any_fields_arrive(tmp_path_factory, fields, suffix):
    path = tmp_path_factory.mktemp("any") / f"f{suffix}"
    write_fields(path, fields, "Test.save")
    assert_holds(path, fields)


def test_other_libraries_read_them(tmp_path):
    for suffix in SUFFIXES:
        write_fields(tmp_path / f"f{suffix}", FIELDS, "Test.save")
    arrays = arrays_of(FIELDS)
    with np.load(tmp_path / "f.npz", allow_pickle=False) as file:
        assert set(file) == {*arrays, "digests"}
        for name, array in arrays.items():
            np.testing.assert_array_equal(file[name], array)
    with safetensors.safe_open(tmp_path / "f.safetensors", "numpy") as file:
        assert set(file.keys()) == {name for name, array in arrays.items() if array.ndim}
        for name in file.keys():
            np.testing.assert_array_equal(file.get_tensor(name), arrays[name])
        singles = {name: array.item() for name, array in arrays.items() if not array.ndim}
        assert {
            name: json.loads(text) for name, text in file.metadata().items() if name != "digests"
        } == singles


def test_tensors_start_at_multiples_of_their_item_size(tmp_path):
    """So that whoever maps the file need not copy them."""
    fields = {f"{dtype}.{i}": np.ones(i, dtype) for i in (1, 3) for dtype in ("u1", "f4", "i8", "f2")}
    write_fields(tmp_path / "f.safetensors", fields, "Test.save")
    whole = (tmp_path / "f.safetensors").read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:begin])
    assert begin % 8 == 0 and header.keys() == {"__metadata__", *fields}
    for name, array in fields.items():
        assert header[name]["data_offsets"][0] % array.itemsize == 0


@suffixes
def test_files_that_other_libraries_have_written_again(path, suffix):
    if suffix == ".npz":
        with np.load(path) as file:
            np.savez(path, **file)
    else:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata()
        safetensors.numpy.save_file(safetensors.numpy.load_file(path), path, metadata)
    assert_holds(path, FIELDS)


@suffixes
def test_every_length_of_a_file_that_is_cut_short(path):
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path)


@suffixes
def test_every_changed_byte_is_refused_or_means_nothing(path):
    whole = path.read_bytes()
    n = {"refused": 0, "as before": 0}
    for at in range(len(whole)):
        for other in (whole[at] ^ 1, 0xFF):
            path.write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
            try:
                read(path)
            except ValueError as error:
                n["refused"] += bool(re.match(r"^Test\.load: [^\n]+$", str(error)))
            else:
                assert_holds(path, FIELDS)
                n["as before"] += 1
    assert sum(n.values()) == 2 * len(whole) and n["refused"] > len(whole)


@suffixes
@given(data=st.data())
def test_random_damage(tmp_path_factory, suffix, data):
    """Pieces cut out, doubled, moved and overwritten: a sentence, or the fields as they were."""
    path = tmp_path_factory.mktemp("damaged") / f"f{suffix}"
    write_fields(path, FIELDS, "Test.save")
    whole = path.read_bytes()
    a, b, c = sorted(data.draw(st.integers(0, len(whole))) for _ in range(3))
    piece = data.draw(st.one_of(st.just(b""), st.just(whole[b:c] * 2), st.binary(max_size=40)))
    path.write_bytes(whole[:a] + piece + whole[b:])
    try:
        read(path)
    except ValueError as error:
        assert re.match(r"^Test\.load: [^\n]+$", str(error))  # noqa: PT017
    else:
        assert_holds(path, FIELDS)


@suffixes
@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04", bytes(100), b"\xff" * 100, b"PK\x05\x06" + bytes(18)]
)
def test_no_such_file(path, content):
    path.write_bytes(content)
    refused(path)


# Files that claim more than they hold.


def npy(header, data=b"", version=b"\x01\x00"):
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def described(descr="<f4", shape="(2,)", order="False", rest=", "):
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}{rest}}}"


def zipped(path, members, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members:
            file.writestr(name, content)


@pytest.fixture
def little_memory():
    """No test under it may take more than some MB, of Python or of NumPy."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.usefixtures("little_memory")
class TestBombs:
    @pytest.mark.parametrize("shape", ["(1099511627776,)", "(1099511627776, 0, 0)", f"({'9' * 18}, {'9' * 18})",
                                       "(" + "9, " * 63 + "9)"])  # fmt: skip
    def test_array_that_says_it_is_huge(self, tmp_path, shape):
        zipped(tmp_path / "f.npz", [("a.npy", npy(described(shape=shape), bytes(8)))])
        assert "the field a is damaged (it has " in refused(tmp_path / "f.npz")

    def test_compressed_zeros(self, tmp_path):
        big = npy(described("|u1", "(300000000,)"), b"")
        path = tmp_path / "f.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a.npy", "w") as member:
            member.write(big)
            for _ in range(300):
                member.write(bytes(1_000_000))
        assert path.stat().st_size < 1e6
        assert re.search(r"its fields would have 300\d+ bytes, but the file has \d+$", refused(path))

    def test_compressed_but_not_smaller(self, tmp_path):
        noise = np.random.default_rng(0).bytes(4000)
        content = npy(described("|u1", "(4000,)"), noise)
        zipped(tmp_path / "f.npz", [("a.npy", content)], compression=zipfile.ZIP_DEFLATED)
        assert "the field a is damaged (it is compressed; wanted" in refused(tmp_path / "f.npz")

    def test_many_names_for_one_place(self, tmp_path):
        """Entries of the directory that all point to the same bytes."""
        path = tmp_path / "f.npz"
        zipped(path, [("a.npy", npy(described("|u1", "(1000000,)"), bytes(1_000_000)))])
        whole = path.read_bytes()
        at = whole.index(b"PK\x01\x02")
        end = whole.index(b"PK\x05\x06")
        entry, tail = whole[at:end], bytearray(whole[end:])
        n = 1000
        entries = b"".join(entry.replace(b"a.npy", b"%05d" % i) for i in range(n))
        tail[8:12] = struct.pack("<HH", n, n)
        tail[12:16] = struct.pack("<I", len(entries))
        path.write_bytes(whole[:at] + entries + tail)
        assert "its fields would have 1000" in refused(path)

    def test_directory_that_lies_about_a_size(self, tmp_path):
        path = tmp_path / "f.npz"
        zipped(path, [("a.npy", npy(described(), bytes(8)))])
        whole = bytearray(path.read_bytes())
        at = whole.index(b"PK\x01\x02")
        whole[at + 20 : at + 28] = struct.pack("<II", 0x7FFFFFFF, 0x7FFFFFFF)
        path.write_bytes(whole)
        assert "its fields would have 2147483647 bytes" in refused(path)

    @pytest.mark.parametrize("length", [2**63, 2**40, 1 << 25, 10_000])
    def test_header_that_says_it_is_huge(self, tmp_path, length):
        path = tmp_path / "f.safetensors"
        path.write_bytes(struct.pack("<Q", length) + b"{}" + b" " * 5000)
        assert f"is cut short or no safetensors file: 5010 bytes, header {length}" in refused(path)

    def test_header_beyond_what_a_file_of_ours_has(self, tmp_path):
        path = tmp_path / "f.safetensors"
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", 1 << 25))
            file.truncate(1 << 26)
        assert "is cut short or no safetensors file" in refused(path)

    @pytest.mark.parametrize(
        ("shape", "words"),
        [([2**62, 4], "data_offsets"), ([10**30], "a list of integers from 0"), ([1] * 65, "65 dimensions"),
         ([0, 2**62, 2**62], "the field a is damaged")],
    )  # fmt: skip
    def test_tensor_that_says_it_is_huge(self, tmp_path, shape, words):
        size = 0 if 0 in shape else 4
        header = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
        text = json.dumps(header).encode()
        (tmp_path / "f.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
        assert words in refused(tmp_path / "f.safetensors")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        npy(described("|O"), b"cos\nsystem\n."),
        npy(described("<f4"), bytes(7)),
        npy(described("<f4"), bytes(9)),
        npy(described("<f3"), bytes(6)),
        npy(described("<U0"), b""),
        npy(described("<f4", order="True"), bytes(8)),
        npy(described("<f4", order="__import__('os')"), bytes(8)),
        npy(described("<f4", shape="(2)"), bytes(8)),
        npy(described("<f4", shape="(-2,)"), bytes(8)),
        npy(described("<f4", shape="(" * 5000), bytes(8)),
        npy(described("<f4", rest=", 'x': 1"), bytes(8)),
        npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", bytes(8)),
        npy(described("<f4"), bytes(8), b"\x02\x00"),
        npy(described("|b1"), b"\0\2"),
        npy(described("<U1"), struct.pack("<II", 65, 0x110000)),
        npy(described("<M8[s]"), bytes(16)),
    ],
)
def test_members_that_are_no_array_of_numbers(tmp_path, content):
    zipped(tmp_path / "f.npz", [("a.npy", content)])
    assert "the field a is damaged (" in refused(tmp_path / "f.npz")


def test_nothing_is_unpickled(tmp_path):
    """An object that would leave a trace."""

    class Trace:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trace"),)

    np.savez(tmp_path / "f.npz", a=np.array([Trace()], object))
    assert "objects are never read" in refused(tmp_path / "f.npz")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("name", ["a\nb", "x" * 500, "", "\u202e"])
def test_strange_names_are_shown_on_one_line(tmp_path, name):
    zipped(tmp_path / "f.npz", [(f"{name}.npy", b"")])
    assert "is damaged" in refused(tmp_path / "f.npz")
    header = {name: {"dtype": "F31", "shape": [], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (tmp_path / "f.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "F31" in refused(tmp_path / "f.safetensors")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_fields_that_appear_twice(tmp_path):
    array = npy(described(), bytes(8))
    zipped(tmp_path / "f.npz", [("a.npy", array), ("a.npy", array)])
    assert "the field a appears twice" in refused(tmp_path / "f.npz")
    entry = {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}
    text = json.dumps({"__metadata__": {"a": "1"}, "a": entry}).encode()
    (tmp_path / "f.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert "the field a appears twice" in refused(tmp_path / "f.safetensors")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "the field digests is missing; it is not a test file"),
        ({}, "the field digests is missing; it is not a test file"),
        ([], "its __metadata__ must be a table of texts"),
        ({"digests": 1}, "its __metadata__ must be a table of texts"),
        ({"digests": "x"}, "the field digests was changed, or is damaged"),
        ({"digests": "[1]"}, "the field digests was changed, or is damaged"),
        ({"digests": '{"a": 1}'}, "the field a is missing"),
        ({"digests": "{}", "a": "1"}, "the field a does not belong there"),
        ({"digests": '{"a": 1}', "a": "1"}, "the field a was changed"),
        ({"digests": "{}", "a": "1.5"}, "the field a is damaged: '1.5'"),
        ({"digests": "{}", "a": "[1]"}, "the field a is damaged"),
        ({"digests": "{}", "a": "NaN"}, "the field a is damaged"),
        ({"digests": "{}", "a": "1" + "0" * 30}, "the field a is damaged"),
        ({"digests": "{}", "a": "1" + "0" * 5000}, "the field a is damaged"),
        ({"digests": "{}", "a": "[" * 100_000}, "the field a is damaged"),
    ],
)
def test_metadata_that_is_not_ours(tmp_path, metadata, words):
    text = json.dumps({"__metadata__": metadata}).encode()
    (tmp_path / "f.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert words in refused(tmp_path / "f.safetensors")


@pytest.mark.parametrize("dtype", ["BOOL", "F8_E4M3"])
def test_tensors_without_a_type_of_ours(tmp_path, dtype):
    text = json.dumps({"a": {"dtype": dtype, "shape": [1], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "f.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\2")
    assert f"the field a has dtype {dtype}; wanted is one of F16, F32" in refused(tmp_path / "f.safetensors")


def test_wrong_checksum_of_the_archive(tmp_path):
    """That of zip itself, with our own sums right."""
    path = tmp_path / "f.npz"
    write_fields(path, FIELDS, "Test.save")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        crc = file.getinfo("ids.npy").CRC
        assert crc == zlib.crc32(file.read("ids.npy"))
    path.write_bytes(whole.replace(struct.pack("<I", crc), struct.pack("<I", crc ^ 1)))
    assert "the field ids is damaged (Bad CRC-32" in refused(path)


class TestPlacesToReadFrom:
    @pytest.mark.parametrize(
        ("path", "error", "words"),
        [
            (3, TypeError, "path must be a str or a Path that names a file, not 3"),
            (None, TypeError, "path must be"),
            ("", TypeError, "path must be"),
            (b"f.npz", TypeError, "path must be"),
            ("no/such.npz", FileNotFoundError, "no/such.npz does not exist"),
            (".", ValueError, "cannot be read: it is a folder"),
            ("/dev/null", ValueError, "cannot be read: it is no regular file"),
            ("a\0b.npz", ValueError, "path must be a name that a file can have"),
            ("a\udfff.npz", ValueError, "path must be a name that a file can have"),
        ],
    )
    def test_no_file(self, path, error, words):
        with pytest.raises(error, match=rf"^Test\.load: [^\n]*{re.escape(words)}"):
            read(path)

    @suffixes
    def test_errors_of_the_system(self, path, monkeypatch):
        def fails(*_, **__):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("mojolearn.npz.open", fails, raising=False)
        monkeypatch.setattr("mojolearn.safetensors_file.open", fails, raising=False)
        with pytest.raises(
            OSError, match=rf"^Test\.load: {path} cannot be read \(Input/output error\)$"
        ) as caught:
            read(path)
        assert caught.value.errno == 5

    @suffixes
    def test_memory_runs_out(self, path, monkeypatch):
        def fails(*_):
            raise MemoryError

        monkeypatch.setattr("mojolearn.npz.np.empty", fails)
        monkeypatch.setattr("mojolearn.safetensors_file.SafetensorsFile.array", fails)
        assert re.search(
            r"the field \w+ has \d+ bytes, which this machine does not have$", refused(path, MemoryError)
        )


class TestPlacesToWriteTo:
    @pytest.mark.parametrize(
        ("path", "error", "words"),
        [
            (3, TypeError, "path must be a str or a Path that names a file, not 3"),
            ("", TypeError, "path must be"),
            ("folder", IsADirectoryError, "folder is a folder; wanted is the name of a file"),
            ("gone/f.npz", FileNotFoundError, "there is no folder "),
            ("file/f.npz", FileNotFoundError, "there is no folder "),
            ("/dev/full", OSError, "/dev/full is no regular file"),
            ("/dev/null", OSError, "/dev/null is no regular file"),
            ("a\0b.npz", ValueError, "path must be a name that a file can have"),
        ],
    )
    def test_no_file_can_be_there(self, tmp_path, monkeypatch, path, error, words):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(error, match=rf"^Test\.save: [^\n]*{re.escape(words)}"):
            admit_target(path, "Test.save")
        assert sorted(os.listdir(tmp_path)) == ["file", "folder"]

    @suffixes
    def test_a_pipe_is_not_replaced(self, tmp_path, suffix):
        os.mkfifo(tmp_path / f"f{suffix}")
        with pytest.raises(OSError, match="is no regular file"):
            admit_target(tmp_path / f"f{suffix}", "Test.save")

    @suffixes
    def test_the_longest_name_there_can_be(self, tmp_path, suffix):
        longest = tmp_path / ("x" * (255 - len(suffix)) + suffix)
        write_fields(admit_target(longest, "Test.save"), FIELDS, "Test.save")
        assert_holds(longest, FIELDS)
        with pytest.raises(OSError, match=r"^Test\.save: [^\n]* cannot be written \(File name too long\)$"):
            write_fields(
                admit_target(longest.with_name("x" + longest.name), "Test.save"), FIELDS, "Test.save"
            )
        assert os.listdir(tmp_path) == [longest.name]

    @suffixes
    def test_a_link_stays_one(self, tmp_path, suffix):
        (tmp_path / "there").mkdir()
        link, file = tmp_path / f"link{suffix}", tmp_path / "there" / "file"
        link.symlink_to(file)
        for _ in range(2):  # first it leads nowhere, then to the file
            write_fields(admit_target(link, "Test.save"), FIELDS, "Test.save")
            assert link.is_symlink() and not file.is_symlink()
            assert_holds(link, FIELDS)
        assert os.listdir(tmp_path / "there") == ["file"]

    @suffixes
    def test_rights_stay_as_they_are(self, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
        for mode in (0o600, 0o640):
            path.chmod(mode)
            write_fields(path, FIELDS, "Test.save")
            assert stat.S_IMODE(path.stat().st_mode) == mode


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def run_python(source, *arguments):
    """Run a program that finds this file and the package."""
    here = os.path.dirname(__file__)
    paths = os.pathsep.join([here, os.path.dirname(here)])
    command = [sys.executable, "-c", source, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})


class FullDisk(io.FileIO):
    """A file on a disk with room for so many bytes."""

    room = 0

    def write(self, data):
        data = bytes(data)
        if self.tell() + len(data) > self.room:
            super().write(data[: max(0, self.room - self.tell())])
            raise OSError(28, "No space left on device")
        return super().write(data)


class TestFailures:
    """The old file whole, and nothing else in the folder."""

    @staticmethod
    def fails(path, error=OSError):
        before = path.read_bytes()
        with pytest.raises(error) as caught:
            write_fields(path, FIELDS | {"count": 8}, "Test.save")
        assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]
        return caught.value

    @suffixes
    @pytest.mark.parametrize("name", ["fsync", "replace", "chmod"])
    def test_at_each_call_of_the_system(self, path, monkeypatch, name):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(archive.os, name, full)
        if name == "chmod":  # some file systems keep no rights
            write_fields(path, FIELDS, "Test.save")
            return
        error = self.fails(path)
        assert str(error) == f"Test.save: {path} cannot be written (No space left on device)"
        assert error.errno == 28

    @suffixes
    @pytest.mark.parametrize("buffered", [False, True])
    def test_disk_full_after_any_number_of_bytes(self, path, monkeypatch, buffered):
        def opened(part, mode):
            file = FullDisk(part, mode)
            return io.BufferedWriter(file) if buffered else file

        monkeypatch.setattr("mojolearn.archive.open", opened, raising=False)
        for room in range(0, path.stat().st_size, 23):
            monkeypatch.setattr(FullDisk, "room", room)
            assert str(self.fails(path)) == f"Test.save: {path} cannot be written (No space left on device)"

    @suffixes
    def test_folder_that_cannot_be_written(self, path, monkeypatch):
        def refuses(*_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("mojolearn.archive.open", refuses, raising=False)
        error = self.fails(path, PermissionError)
        assert str(error) == f"Test.save: {path} cannot be written (Permission denied)"

    @suffixes
    def test_interrupt(self, path, monkeypatch):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(archive.os, "fsync", interrupted)
        self.fails(path, KeyboardInterrupt)

    @suffixes
    def test_a_limit_of_the_system(self, path):
        """No patch: the kernel itself refuses to let the file grow."""
        before = path.read_bytes()
        source = (
            "import resource, sys; from test_archive import FIELDS; from mojolearn.archive import write_fields\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))\n"
            "try: write_fields(sys.argv[1], FIELDS | {'more': bytes(10**6).hex()}, 'Test.save')\n"
            "except OSError as error: print(error)"
        )
        done = run_python(source, str(path))
        assert done.stdout == f"Test.save: {path} cannot be written (File too large)\n", done.stderr
        assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


KILLED = """
import io, os, signal, sys
from test_archive import FIELDS
from mojolearn import archive
moment, path = sys.argv[1:]
size = os.path.getsize(path)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(io.FileIO):
    def write(self, data):
        data = bytes(data)
        left = size * int(moment[:-1]) // 100 - self.tell()
        if len(data) > left:
            super().write(data[: max(0, left)])
            die()
        return super().write(data)

if moment == "opened":
    os.chmod = die
elif moment == "written":
    os.fsync = die
elif moment == "synced":
    os.replace = die
elif moment == "renamed":
    archive._sync_folder = die
else:
    archive.open = Dying
archive.write_fields(path, FIELDS | {"count": 8}, "Test.save")
"""


@suffixes
@pytest.mark.parametrize(
    "moment", ["opened", "0%", "1%", "30%", "60%", "99%", "written", "synced", "renamed"]
)
def test_killed_in_the_middle(path, moment):
    """The old file or the new one; what is left behind has another name and no tool takes it for one."""
    done = run_python(KILLED, moment, str(path))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_holds(path, FIELDS | {"count": 8 if moment == "renamed" else 7})
    left = set(os.listdir(path.parent)) - {path.name}
    assert all(re.fullmatch(r"\.[0-9a-f]{16}\.part", name) for name in left)
    assert len(left) == (moment != "renamed")
    write_fields(path, FIELDS, "Test.save")  # what is left does not stand in the way
    assert_holds(path, FIELDS)


class TestFields:
    """Each field is taken once, and must be what it should."""

    @pytest.fixture
    def fields(self):
        return archive.Fields(arrays_of(FIELDS), "Test.load: f")

    @pytest.mark.parametrize(
        ("take", "words"),
        [
            (lambda f: f.array("gone", np.float32, ()), "the field gone is missing"),
            (lambda f: f.text("gone"), "the field gone is missing"),
            (lambda f: f.array("numbers", np.float64, (2, 3)), "has dtype float32; wanted is float64"),
            (lambda f: f.array("numbers", np.float32, (2, 4)), r"has shape (2, 3); wanted is (2, 4)"),
            (lambda f: f.array("numbers", np.float32, (None,)), r"has shape (2, 3); wanted is (any,)"),
            (lambda f: f.integer("count", 8), "the field count holds numbers from 7 to 7; wanted is 8 to "),
            (lambda f: f.integer("flag", 0), "the field flag has dtype bool; wanted is int64"),
            (lambda f: f.integer("ids", 0), "the field ids has shape (3,); wanted is ()"),
            (lambda f: f.integers("ids", (3,), 0, 2), "the field ids holds numbers from 1 to 3; wanted is 0 to 2"),
            (lambda f: f.switch("count"), "the field count has dtype int64; wanted is bool"),
            (lambda f: f.text("count"), "the field count has dtype int64; wanted is a text"),
            (lambda f: f.match("format", "b", "this"), "the field format is 'a file', but that of this is 'b'"),
            (lambda f: f.finish(), "the field count does not belong there"),
        ],
    )  # fmt: skip
    def test_refused(self, fields, take, words):
        with pytest.raises(ValueError, match=f"^Test.load: f: .*{re.escape(words)}"):
            take(fields)

    def test_not_finite(self):
        for value in (np.nan, np.inf):
            array = np.zeros((2, 3), np.float32)
            array[1, 2] = value
            with pytest.raises(
                ValueError, match=rf"the field a holds {value} at \[1, 2\], which is not finite"
            ):
                archive.Fields({"a": array}, "x").finite("a", (2, 3))

    def test_taken(self, fields):
        assert "count" in fields and fields.integer("count", 0) == 7 and "count" not in fields
        assert (
            fields.switch("flag") is True and fields.text("empty") == "" and fields.text("format") == "a file"
        )
        assert fields.finite("none", (2, None, 3)).size == 0
        with pytest.raises(ValueError, match="the field count is missing"):
            fields.integer("count", 0)

    def test_long_texts_are_cut_short(self):
        with pytest.raises(ValueError, match=r"is 'x{77}\.\.\.', but"):
            archive.Fields({"a": np.asarray("x" * 1000)}, "x").match("a", "b", "this")
