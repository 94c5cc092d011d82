"""The safetensors format: a JSON header, then raw arrays; read strictly, and written.

The library ``safetensors`` cannot give bfloat16 to NumPy, so the format is read here, without reading an array before
it is asked for. Nothing that a header says is believed before it was held against the size of the file.
"""

import json
import math
import mmap
from typing import NamedTuple

import numpy as np

from mojolearn.files import admit_file
from mojolearn.scalars import LARGEST, brief, counted, named, shown
from mojolearn.strict_json import parse_json

LONGEST_HEADER = 100_000_000  # bytes, as in the library safetensors

# Bytes per value of every type that may stand in a file, and the NumPy type of those that it has one for.
ITEMSIZE = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}  # bfloat16 as its bits
DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
DTYPES = {name: np.dtype(code) for name, code in DTYPES.items()}
MOST_DIMENSIONS = 64  # of an array of NumPy


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
    caller : str
        The public name that messages start with.
    longest_header : int, default LONGEST_HEADER
        Bytes that are read at most before anything is known of the tensors.

    Attributes
    ----------
    entries : dict of str to Entry
        The tensors.
    metadata : object
        What stands under ``__metadata__``, unchecked; None where there is nothing.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no well-formed safetensors file: wrong header, or tensors that overlap, leave holes, have the
        wrong number of bytes, or end elsewhere than the file does.
    """

    def __init__(self, path, caller, longest_header=LONGEST_HEADER):
        self.path, self._where = path, f"{caller}: {path}"
        admit_file(path, caller)
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(size - 8, longest_header):
            raise ValueError(
                f"{self._where} is cut short or no safetensors file: {counted(size, 'byte')}, header {length}"
            )
        self._data = 8 + length
        header = parse_json(self._map[8 : self._data], f"{self._where}: the header")
        self.metadata = header.pop("__metadata__", None)
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
        where = f"{self._where}: {named(name)}"
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{where} = {shown(value)}; wanted dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in ITEMSIZE:
            raise ValueError(f"{where} has dtype {shown(dtype)}; wanted one of {', '.join(ITEMSIZE)}")
        for key, numbers in (("shape", shape), ("data_offsets", offsets)):
            if not isinstance(numbers, list) or not all(
                type(n) is int and 0 <= n <= LARGEST for n in numbers
            ):
                raise ValueError(f"{where} has {key} {shown(numbers)}; wanted a list of integers from 0")
        if len(shape) > MOST_DIMENSIONS:
            raise ValueError(f"{where} has {len(shape)} dimensions; wanted at most {MOST_DIMENSIONS}")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * ITEMSIZE[dtype]:
            wanted = f"{brief(math.prod(shape) * ITEMSIZE[dtype])} bytes for {dtype} of shape {brief(tuple(shape))}"
            raise ValueError(f"{where} has data_offsets {shown(offsets)}; wanted {wanted}")
        return Entry(dtype, tuple(shape), *offsets)

    def _check_layout(self, size):
        """Tensors must lie end to end and fill the file."""
        end = 0
        for name, entry in sorted(self.entries.items(), key=lambda item: item[1][2:]):
            if entry.start != end:
                fault = "overlaps the tensor before it" if entry.start < end else "leaves a hole before it"
                raise ValueError(f"{self._where}: {named(name)} {fault}: at byte {entry.start}, wanted {end}")
            end = entry.stop
        if end != size:
            fault = "cut short" if size < end else "longer than its header says"
            raise ValueError(
                f"{self._where} is {fault}: it holds {counted(size, 'byte')} of tensors, wanted {end}"
            )


def write_safetensors(file, tensors, metadata):
    """Write arrays and texts in the safetensors format.

    Parameters
    ----------
    file : binary file
        Open for writing.
    tensors : dict of str to ndarray
        Numbers, of a type among `DTYPES`.
    metadata : dict of str to str
        The texts.
    """
    names = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
    # The widest first, so that each starts at a multiple of its item size.
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])))
    header, end = {"__metadata__": dict(sorted(metadata.items()))}, 0
    for name, array in ordered.items():
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": names[array.dtype.newbyteorder("<")],
            "shape": array.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for array in ordered.values():
        file.write(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False))
