"""The tensors of a checkpoint folder: found, mapped into memory, and each handed out exactly once.

The library ``safetensors`` cannot give bfloat16 to NumPy, so the format (a JSON header, then raw arrays) is
read here: strictly, and without reading an array before it is asked for.
"""

import math
import mmap
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mojolearn.models.files import admit_file
from mojolearn.models.strict_json import parse_json, read_json
from mojolearn.scalars import counted, shown

CALLER = "CausalLM.load"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000  # bytes, as in the library safetensors

# Bytes per value of every type that may stand in a file, and the NumPy type of those that we can use.
ITEMSIZE = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}  # bfloat16 as its bits


class Checkpoint:
    """All tensors of one folder, by name.

    Parameters
    ----------
    folder : str or path
        Holds ``model.safetensors``, or the shards that ``model.safetensors.index.json`` lists. Other
        ``.safetensors`` files in it are not looked at.

    Raises
    ------
    FileNotFoundError
        Neither is there, or a shard is missing.
    ValueError
        A file is cut short, malformed, or does not hold what the index says.
    """

    def __init__(self, folder):
        folder = Path(folder)
        self.where = f"{CALLER}: {folder}"
        self._left = {}  # name -> (the file it is in, its entry)
        self._shards = []
        if os.path.lexists(folder / SINGLE):
            shards = {SINGLE: None}
        elif os.path.lexists(folder / INDEX):
            shards = _shards(folder / INDEX)
        else:
            others = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".gguf", ".safetensors"))
            raise FileNotFoundError(
                f"{self.where}: no weights found; wanted {SINGLE} or {INDEX}, found {some(others) or 'neither'}"
            )
        for file, names in shards.items():
            shard = SafetensorsFile(folder / file)
            self._shards.append(shard)
            if names is not None and names != set(shard.entries):
                name = min(names ^ set(shard.entries))
                says, has = ("lists", "lacks") if name in names else ("does not list", "holds")
                raise ValueError(f"{self.where}: {INDEX} {says} {name} in {file}, which {has} it")
            self._left.update((name, (shard, entry)) for name, entry in shard.entries.items())

    def __contains__(self, name):
        return name in self._left

    def matrix_dtypes(self):
        """Return the NumPy types of all matrices, as a set; those that we cannot use are left out."""
        matrices = [entry.dtype for _, entry in self._left.values() if len(entry.shape) == 2]
        return {DTYPES[dtype] for dtype in matrices if dtype in DTYPES}

    def take(self, name, shape):
        """Hand out one tensor, for the first and last time.

        Parameters
        ----------
        name : str
            As the file spells it.
        shape : tuple of int
            The shape that it must have.

        Returns
        -------
        ndarray of float32, float16, or uint16 holding the bits of bfloat16
            Read-only, in the memory of the file.

        Raises
        ------
        ValueError
            No such tensor, or one of another shape or an unusable type.
        """
        shard, entry = self._cross_off(name, shape)
        return shard.array(entry)

    def pass_over(self, name, shape):
        """Check a tensor as `take` does and cross it off, without reading it: returns zeros of its shape."""
        self._cross_off(name, shape)
        return np.broadcast_to(np.float32(0), shape)

    def _cross_off(self, name, shape):
        if name not in self._left:
            raise ValueError(f"{self.where}: the tensor {name} is missing; wanted one of shape {shape}")
        shard, entry = self._left.pop(name)
        where = f"{CALLER}: {shard.path}: {name}"
        if entry.shape != shape:
            raise ValueError(f"{where} has shape {entry.shape}; wanted {shape}")
        if entry.dtype not in DTYPES:
            raise ValueError(f"{where} has dtype {entry.dtype}; wanted one of {', '.join(DTYPES)}")
        return shard, entry

    def release(self):
        """Give back the memory of what was read so far; arrays stay good, and are read again where they are used."""
        for shard in self._shards:
            shard.release()

    def finish(self, ignored=()):
        """Check that nothing is left but tensors whose names match one of the patterns, such as "*.bias"."""
        unused = sorted(n for n in self._left if not any(fnmatchcase(n, pattern) for pattern in ignored))
        if unused:
            have = "has" if len(unused) == 1 else "have"
            raise ValueError(
                f"{self.where}: {counted(len(unused), 'tensor')} {have} no place in the model: {some(unused)}"
            )


class Entry(NamedTuple):
    """Where one tensor lies in the data part of its file."""

    dtype: str
    shape: tuple
    start: int
    stop: int


class SafetensorsFile:
    """One file in the safetensors format, mapped into memory; ``entries`` says what is in it.

    Parameters
    ----------
    path : pathlib.Path
        The file.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no well-formed safetensors file: wrong header, or tensors that overlap, leave holes, have the
        wrong number of bytes, or end elsewhere than the file does.
    """

    def __init__(self, path):
        self.path = path
        admit_file(path, CALLER)
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise ValueError(
                f"{CALLER}: {path} is cut short or no safetensors file: {counted(size, 'byte')}, header {length}"
            )
        self._data = 8 + length
        header = parse_json(self._map[8 : self._data], f"{CALLER}: {path}: the header")
        header.pop("__metadata__", None)
        self.entries = {name: self._entry(name, value) for name, value in header.items()}
        self._check_layout(size - self._data)

    def release(self):
        """Let the system drop the pages of the file that were read."""
        if hasattr(mmap, "MADV_DONTNEED"):  # where it is missing, the system drops them when memory is short
            self._map.madvise(mmap.MADV_DONTNEED)

    def array(self, entry):
        """Return one tensor as a read-only array in the memory of the file."""
        dtype = DTYPES[entry.dtype]
        count = math.prod(entry.shape)
        array = (
            np.frombuffer(self._map, dtype, count, self._data + entry.start) if count else np.empty(0, dtype)
        )
        if not array.flags.aligned:  # legal in the format, rare
            array = array.copy()
        array = array.reshape(entry.shape)
        array.flags.writeable = False
        return array

    def _entry(self, name, value):
        where = f"{CALLER}: {self.path}: {name}"
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{where} = {shown(value)}; wanted dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in ITEMSIZE:
            raise ValueError(f"{where} has dtype {shown(dtype)}; wanted one of {', '.join(ITEMSIZE)}")
        for key, numbers in (("shape", shape), ("data_offsets", offsets)):
            if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
                raise ValueError(f"{where} has {key} {shown(numbers)}; wanted a list of integers from 0")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * ITEMSIZE[dtype]:
            wanted = (
                f"{counted(math.prod(shape) * ITEMSIZE[dtype], 'byte')} for {dtype} of shape {tuple(shape)}"
            )
            raise ValueError(f"{where} has data_offsets {shown(offsets)}; wanted {wanted}")
        return Entry(dtype, tuple(shape), *offsets)

    def _check_layout(self, size):
        """Tensors must lie end to end and fill the file."""
        end = 0
        for name, entry in sorted(self.entries.items(), key=lambda item: item[1][2:]):
            if entry.start != end:
                fault = "overlaps the tensor before it" if entry.start < end else "leaves a hole before it"
                raise ValueError(
                    f"{CALLER}: {self.path}: {name} {fault}: at byte {entry.start}, wanted {end}"
                )
            end = entry.stop
        if end != size:
            fault = "cut short" if size < end else "longer than its header says"
            raise ValueError(
                f"{CALLER}: {self.path} is {fault}: it holds {counted(size, 'byte')} of tensors, wanted {end}"
            )


def some(names):
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _shards(path):
    """Read an index: file name -> the set of tensor names that should be in it."""
    where = f"{CALLER}: {path}"
    table = read_json(path, CALLER).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{where}: weight_map = {shown(table)}; wanted a table from tensor to file")
    shards = {}
    for name, file in table.items():
        plain = isinstance(file, str) and file.strip(".") and not set(file) & set("/\\:\0")
        if not plain:
            raise ValueError(f"{where}: {name} is placed in {shown(file)}; wanted a file in the same folder")
        shards.setdefault(file, set()).add(name)
    return shards
