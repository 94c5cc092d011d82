"""The ``.npz`` format, an archive of arrays: written as NumPy does, read without believing what a file says of itself.

``np.load`` allocates what the header of an array asks for before it has seen that so much is there. Here every size is
held against that of the file first, and nothing is unpacked, evaluated or unpickled.
"""

import math
import os
import re
import sys
import zipfile

import numpy as np

from mojolearn.scalars import counted, named, reason

START = b"\x93NUMPY\x01\x00"  # of an array in version 1.0 of NumPy's format
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biufU]\d{1,9})', 'fortran_order': False, "
    rb"'shape': \((|\d{1,18},|\d{1,18}(?:, \d{1,18}){1,63})\), \} *\n"
)
CHUNK = 1 << 20  # bytes read at a time


def write_npz(file, arrays):
    """Write arrays as `numpy.savez` does, which files of equal arrays also are: equal to the byte.

    Parameters
    ----------
    file : binary file
        Open for writing, at its start.
    arrays : dict of str to ndarray
        Numbers and texts; no objects.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


def read_npz(path, where, what):
    """Read all arrays of a file.

    Parameters
    ----------
    path : str or pathlib.Path
        A regular file.
    where : str
        What messages start with.
    what : str
        What the file should be, for messages: "a saved state".

    Returns
    -------
    dict of str to ndarray
        Arrays of their own memory, which together is no more than the file.

    Raises
    ------
    OSError
        As the system reports it.
    ValueError
        It is no such file, is cut short, or holds more or stranger things than arrays.
    MemoryError
        An array does not fit, naming the bytes.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            archive = zipfile.ZipFile(file)
        except OSError:
            raise
        except Exception as error:  # zipfile has no common exception for what a hostile file can make of it
            raise ValueError(f"{where} is not {what}, or was cut short ({reason(error)})") from None
        members = archive.infolist()
        claimed = sum(member.file_size for member in members)
        if claimed > size:
            raise ValueError(
                f"{where} is not {what}: its fields would have {counted(claimed, 'byte')}, but the file has {size}"
            )
        arrays = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            field = f"{where}: the field {named(name)}"
            if name in arrays:
                raise ValueError(f"{field} appears twice")
            try:
                arrays[name] = _read_array(archive, member)
            except MemoryError:
                raise MemoryError(
                    f"{field} has {counted(member.file_size, 'byte')}, which this machine does not have"
                ) from None
            except Exception as error:  # as above
                raise ValueError(f"{field} is damaged ({reason(error)})") from None
    return arrays


def _read_array(archive, member):
    """Read one array; whatever is wrong with it is an exception of any kind."""
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        raise ValueError("it is compressed; wanted is an array as it is")
    with archive.open(member) as file:
        start = file.read(len(START) + 2)
        header = file.read(int.from_bytes(start[-2:], "little"))
        found = HEADER.fullmatch(header)
        if not start.startswith(START) or found is None:
            raise ValueError("it is no array of numbers or text in C order; objects are never read")
        dtype = np.dtype(found[1].decode())
        shape = tuple(int(n) for n in re.findall(rb"\d+", found[2]))
        size = math.prod(shape) * dtype.itemsize
        if len(start) + len(header) + size != member.file_size:
            raise ValueError(f"it has {member.file_size} bytes, which do not fit {dtype} of shape {shape}")
        raw = np.empty(size, np.uint8)
        place, view = 0, memoryview(raw)
        while place < size:
            count = file.readinto(view[place : place + CHUNK])
            if not count:
                raise EOFError("it ends too early")
            place += count
        if dtype.kind == "b" and (raw > 1).any():
            raise ValueError("it holds a truth value that is neither 0 nor 1")
        if dtype.kind == "U" and (raw.view(f"{dtype.str[0]}u4") > sys.maxunicode).any():
            raise ValueError("it holds a number that no character has")
    return raw.view(dtype).reshape(shape)
