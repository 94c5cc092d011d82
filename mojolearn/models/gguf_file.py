"""One file in the GGUF format: its metadata and tensors, checked against the bytes that are really there.

The header is read here rather than by the package ``gguf``, which trusts the counts and lengths in a file.
Everything is bounded by the size of the file and by the limits below before it is read or made room for.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mojolearn.files import admit_file
from mojolearn.models.gguf_quants import OTHER_TYPES, TYPES
from mojolearn.scalars import brief, counted, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_KEYS = 2**16
MOST_TENSORS = 2**16
MOST_STRINGS = 2**22  # of all lists of strings in a file; the largest vocabularies have 2**20
LONGEST_NAME = 2**10
MOST_DIMENSIONS = 4
LARGEST_ALIGNMENT = 2**20

# The types of metadata by their numbers; those of numbers as letters of the modules struct and numpy.
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def is_gguf(path):
    """Tell whether a path means a GGUF file: by its name, or by how the file begins.

    Parameters
    ----------
    path : object
        What the user gave.

    Returns
    -------
    bool
        False for folders, and for what is no path.
    """
    if not isinstance(path, (str, Path)) or os.path.isdir(path):
        return False
    if str(path).lower().endswith(".gguf"):
        return True
    try:
        if not os.path.isfile(path):  # reading a pipe might never end
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # unreadable, or no name that a file could have
        return False


def check_no_files(folder, caller):
    """Where a folder holds GGUF files instead of a config.json, say that one of them is wanted.

    Parameters
    ----------
    folder : pathlib.Path
        What the user gave.
    caller : str
        The public name that the message starts with.

    Raises
    ------
    FileNotFoundError
        There are such files, and no config.json.
    """
    files = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    if files and not os.path.lexists(folder / "config.json"):
        raise FileNotFoundError(
            f"{caller}: {folder} holds no config.json, but {counted(len(files), 'GGUF file')}; give the path of one, "
            f"such as {folder / files[0]}"
        )


def shortest(number):
    """Return the decimal number of the fewest digits that rounds to a float32: 1e-5 for 9.99999974737875e-06."""
    return float(str(np.float32(number)))


class Tensor(NamedTuple):
    """Where one tensor lies in its file; ``shape`` is in the order of NumPy and torch."""

    type: str
    shape: tuple
    start: int
    stop: int


class Strings:
    """A list of strings in the metadata, decoded when it is asked for."""

    def __init__(self, file, count, start):
        self._file, self._count, self._start = file, count, start

    def __len__(self):
        return self._count

    def __repr__(self):
        return f"<{counted(self._count, 'string')}>"

    def read(self, what):
        """Return the strings as a list; `what` names them in errors."""
        reader = _Reader(self._file, self._start)
        return [reader.text(what, limit=len(self._file.map)) for _ in range(self._count)]


class GGUFFile:
    """A GGUF file, mapped into memory.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    caller : str
        The public name that messages start with.

    Attributes
    ----------
    metadata : dict
        Key -> a Python int, float, bool or str, an ndarray, or `Strings`.
    tensors : dict
        Name -> `Tensor`.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no well-formed GGUF file of version 2 or 3.
    """

    def __init__(self, path, caller):
        admit_file(path, caller)
        self.path = path
        self.where = f"{caller}: {path}"
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        if self.map[:4] != MAGIC:
            raise ValueError(
                f"{self.where} is no GGUF file: it begins with {bytes(self.map[:4])!r}, not b'GGUF'"
            )
        reader = _Reader(self, 4)
        version = reader.number("I")
        if version not in VERSIONS:
            hint = " (of the other byte order)" if version & 0xFFFF == 0 else ""
            raise ValueError(f"{self.where} is GGUF version {version}{hint}; wanted is version 2 or 3")
        tensors = reader.count("tensors", MOST_TENSORS)
        keys = reader.count("metadata keys", MOST_KEYS)
        self._strings = 0
        self.metadata = {}
        for _ in range(keys):
            key = reader.name("a metadata key")
            if key in self.metadata:
                raise ValueError(f"{self.where}: the metadata key {key} appears twice")
            self.metadata[key] = self._value(reader, key, reader.number("I"))
        self.tensors = {}
        self._read_tensors(reader, tensors, size)

    def data(self, tensor):
        """Return the bytes of a tensor as a read-only uint8 array in the memory of the file."""
        return np.frombuffer(self.map, np.uint8, tensor.stop - tensor.start, tensor.start)

    def release(self):
        """Let the system drop the pages of the file that were read."""
        if hasattr(mmap, "MADV_DONTNEED"):  # where it is missing, the system drops them when memory is short
            self.map.madvise(mmap.MADV_DONTNEED)

    def _value(self, reader, key, kind):
        if kind == STRING:
            return reader.text(key, limit=len(self.map))
        if kind in NUMBERS:
            return reader.number(NUMBERS[kind], key)
        if kind != ARRAY:
            raise ValueError(f"{self.where}: {key} is of the unknown type {kind}")
        kind = reader.number("I")
        count = reader.number("Q")
        if kind == STRING:
            self._strings += count
            if self._strings > MOST_STRINGS:
                raise ValueError(f"{self.where}: {key} has {count} strings; at most {MOST_STRINGS} are read")
            strings = Strings(self, count, reader.at)
            for _ in range(count):
                reader.skip(reader.number("Q"), key)
            return strings
        if kind not in NUMBERS:
            raise ValueError(f"{self.where}: {key} is a list of the unknown type {kind}")
        dtype = np.dtype("<" + NUMBERS[kind].replace("?", "B"))
        start = reader.at
        reader.skip(count * dtype.itemsize, key)
        array = np.frombuffer(self.map, dtype, count, start)
        return array != 0 if NUMBERS[kind] == "?" else array

    def _read_tensors(self, reader, count, size):
        found = []
        for _ in range(count):
            name = reader.name("the name of a tensor")
            dimensions = reader.number("I")
            if not 1 <= dimensions <= MOST_DIMENSIONS:
                raise ValueError(f"{self.where}: {name} has {dimensions} dimensions; wanted are 1 to 4")
            shape = tuple(reader.number("Q") for _ in range(dimensions))[::-1]
            found.append((name, shape, reader.number("I"), reader.number("Q")))
        alignment = self.metadata.get("general.alignment", 32)
        power = (
            type(alignment) is int and 0 < alignment <= LARGEST_ALIGNMENT and not alignment & alignment - 1
        )
        if not power:
            raise ValueError(
                f"{self.where}: general.alignment must be a power of two up to {LARGEST_ALIGNMENT}, "
                f"not {shown(alignment)}"
            )
        data = reader.at + -reader.at % alignment
        end = 0  # of the tensors so far, from where the data begin
        for name, shape, number, offset in found:
            if name in self.tensors:
                raise ValueError(f"{self.where}: the tensor {name} appears twice")
            kind, length = self._length(name, shape, number)
            if offset != end:
                raise ValueError(f"{self.where}: {name} is at byte {offset} of the data; wanted is {end}")
            self.tensors[name] = Tensor(kind, shape, data + offset, data + offset + length)
            if data + offset + length > size:
                raise ValueError(
                    f"{self.where} is cut short: {name} ends at byte {data + offset + length}, the file has {size}"
                )
            end = offset + length + -length % alignment
        if found and size > data + end:
            raise ValueError(
                f"{self.where} is longer than its header says: {size} bytes, wanted {data + end}"
            )

    def _length(self, name, shape, number):
        """Return the type of a tensor and its number of bytes."""
        kind = next((kind for kind, known in TYPES.items() if known.number == number), None)
        if kind is None:
            other = OTHER_TYPES.get(number, "unknown")
            raise ValueError(
                f"{self.where}: {name} is of type {number} ({other}); wanted is one of {', '.join(TYPES)}"
            )
        if 0 in shape:
            raise ValueError(f"{self.where}: {name} has shape {shape}; wanted are sizes from 1")
        if shape[-1] % TYPES[kind].values:
            raise ValueError(
                f"{self.where}: {name} has shape {shape}; rows of type {kind} are multiples of "
                f"{counted(TYPES[kind].values, 'value')}"
            )
        length = TYPES[kind].bytes
        for n in (*shape[:-1], shape[-1] // TYPES[kind].values):
            length *= n
        return kind, length


class _Reader:
    """A place in the header that moves on with every value read, and never past the end of the file."""

    def __init__(self, file, at):
        self._file, self.at = file, at

    def skip(self, length, what):
        """Move on; `what` is being read."""
        self.at += length
        if self.at > len(self._file.map):
            raise ValueError(
                f"{self._file.where} is cut short or damaged: {what} ends at byte {self.at}, but the file has "
                f"{len(self._file.map)}"
            )

    def number(self, letter, what="the header"):
        """Read one number, given by its letter in `NUMBERS`."""
        start = self.at
        self.skip(struct.calcsize("<" + letter), what)
        number = struct.unpack_from("<" + letter, self._file.map, start)[0]
        return shortest(number) if letter == "f" else number

    def count(self, what, most):
        """Read how many there are of something."""
        number = self.number("Q")
        if number > most:
            raise ValueError(f"{self._file.where} has {number} {what}; at most {most} are read")
        return number

    def name(self, what):
        """Read a name, which can stand in a sentence."""
        name = self.text(what)
        if not name or not name.isprintable():
            raise ValueError(
                f"{self._file.where}: {what} is {brief(name)}; wanted are one or more printable characters"
            )
        return name

    def text(self, what, limit=LONGEST_NAME):
        """Read one string of at most `limit` bytes."""
        length = self.number("Q", what)
        if length > limit:
            raise ValueError(f"{self._file.where}: {what} has {length} bytes; at most {limit} are read")
        start = self.at
        self.skip(length, what)
        try:
            return self._file.map[start : self.at].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._file.where}: {what} is not UTF-8 text (byte {error.start})") from None
