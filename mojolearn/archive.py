"""Named fields in one file, which is whole or not there: how suspended streams and saved states are kept.

A field is an array, a number, a switch or a text. The file is an ordinary ``.npz``, or in the safetensors format where
its name ends so. The field ``digests`` holds a checksum of each of the others, so that one that is missing, changed or
strange is refused by its name. That finds damage and mistakes; it is no signature.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
from pathlib import Path

import numpy as np

from mojolearn.buffers import first_nonfinite
from mojolearn.files import admit_file
from mojolearn.npz import read_npz, write_npz
from mojolearn.safetensors_file import DTYPES, SafetensorsFile, write_safetensors
from mojolearn.scalars import LARGEST, counted, named, shown
from mojolearn.strict_json import parse_json

DIGESTS = "digests"
LONGEST_HEADER = 1 << 24  # bytes of a safetensors header; ours have some hundred for each field


def admit_target(path, caller):
    """Check that a file can stand at a path, before anything is computed for it.

    Parameters
    ----------
    path : str or pathlib.Path
        What the user gave. Of a link, the file that it leads to is meant.
    caller : str
        The public name that messages start with.

    Returns
    -------
    pathlib.Path
        The path.

    Raises
    ------
    TypeError
        It is no path.
    ValueError
        No file can have this name.
    OSError
        It is a folder or no regular file, or its folder does not exist.
    """
    _admit_path(path, caller)
    place = os.path.realpath(path)
    folder, name = os.path.split(place)
    if os.path.isdir(place):
        raise IsADirectoryError(f"{caller}: {path} is a folder; wanted is the name of a file")
    if os.path.exists(place) and not os.path.isfile(place):
        raise OSError(f"{caller}: {path} is no regular file; wanted is the name of a file")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{caller}: there is no folder {folder} to write {name} into")
    return Path(path)


def _admit_path(path, caller):
    if not isinstance(path, (str, Path)) or not str(path):
        raise TypeError(f"{caller}: path must be a str or a Path that names a file, not {shown(path)}")
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise ValueError(f"{caller}: path must be a name that a file can have, not {shown(path)}")


def write_fields(path, fields, caller):
    """Write fields and their checksums to a file that appears only when it is complete.

    Parameters
    ----------
    path : pathlib.Path
        Where, as `admit_target` has checked; a file that exists is replaced in one step, and keeps its permissions.
    fields : dict
        Arrays, numbers and texts by name.
    caller : str
        The public name that messages start with.

    Raises
    ------
    OSError
        The file cannot be written; what stood there before is still there, and nothing else.
    """
    arrays = {name: np.asarray(value) for name, value in fields.items()}
    digests = json.dumps({name: _digest(array) for name, array in sorted(arrays.items())})
    target = Path(os.path.realpath(path))
    part = target.with_name(
        f".{secrets.token_hex(8)}.part"
    )  # a name that is short, however long the target's is
    try:
        with open(part, "xb") as file:
            with contextlib.suppress(OSError):  # there is none yet, or the system keeps no permissions
                os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
            if _is_safetensors(path):
                _write_safetensors(file, arrays, digests)
            else:
                write_npz(file, arrays | {DIGESTS: np.frombuffer(digests.encode(), np.uint8)})
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _in_words(error, f"{caller}: {path} cannot be written") from None
        raise
    _sync_folder(target.parent)


def _write_safetensors(file, arrays, digests):
    """Arrays become tensors; single numbers and texts, as JSON, stand in the metadata."""
    tensors = {name: array for name, array in arrays.items() if array.ndim}
    metadata = {name: json.dumps(array.item()) for name, array in arrays.items() if not array.ndim}
    write_safetensors(file, tensors, metadata | {DIGESTS: digests})


def _is_safetensors(path):
    return str(path).lower().endswith(".safetensors")


def _in_words(error, sentence):
    """An error of the system, of the same kind and number, in a sentence of ours."""
    told = type(error)(f"{sentence} ({error.strerror or error})")
    told.errno = error.errno
    return told


def _sync_folder(folder):
    """Make a renamed file last through a power cut, where the system can do that for a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _digest(array):
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def read_fields(path, caller, what):
    """Read what `write_fields` has written, and check every field against its checksum.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.
    caller : str
        The public name that messages start with.
    what : str
        What the file should be, for messages: "a saved state".

    Returns
    -------
    Fields
        The fields, to be taken one by one.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    TypeError, ValueError
        It is no path, no such file, or a field is missing, changed or strange: file and field.
    OSError, MemoryError
        The system cannot read it, or it does not fit.
    """
    _admit_path(path, caller)
    path, where = Path(path), f"{caller}: {path}"
    admit_file(path, caller)
    try:
        read = _read_safetensors if _is_safetensors(path) else _read_npz
        arrays, digests = read(path, caller, what)
    except OSError as error:
        raise _in_words(error, f"{where} cannot be read") from None
    if digests is None:
        raise ValueError(f"{where}: the field {DIGESTS} is missing; it is not {what}")
    wanted = _table(digests, where)
    for name in sorted(wanted.keys() | arrays.keys()):
        if name not in arrays:
            raise ValueError(f"{where}: the field {named(name)} is missing")
        if name not in wanted:
            raise ValueError(f"{where}: the field {named(name)} does not belong there")
        if _digest(arrays[name]) != wanted[name]:
            raise ValueError(f"{where}: the field {named(name)} was changed, or is damaged")
    return Fields(arrays, where)


def _read_npz(path, caller, what):
    arrays = read_npz(path, f"{caller}: {path}", what)
    digests = arrays.pop(DIGESTS, None)
    return arrays, None if digests is None else digests.tobytes()


def _read_safetensors(path, caller, what):
    where = f"{caller}: {path}"
    file = SafetensorsFile(path, caller, LONGEST_HEADER)
    metadata = {} if file.metadata is None else file.metadata
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"{where} is not {what}: its __metadata__ must be a table of texts")
    digests = metadata.pop(DIGESTS, None)
    arrays = {}
    for name, text in metadata.items():
        if name in file.entries:
            raise ValueError(f"{where}: the field {named(name)} appears twice")
        arrays[name] = _single(text, f"{where}: the field {named(name)}")
    for name, entry in file.entries.items():
        field = f"{where}: the field {named(name)}"
        if entry.dtype not in DTYPES:
            raise ValueError(f"{field} has dtype {entry.dtype}; wanted is one of {', '.join(DTYPES)}")
        try:
            arrays[name] = file.array(entry).copy()  # the file may be replaced before the array is used
        except MemoryError:
            size = entry.stop - entry.start
            raise MemoryError(
                f"{field} has {counted(size, 'byte')}, which this machine does not have"
            ) from None
        except ValueError as error:
            raise ValueError(f"{field} is damaged ({error})") from None
    return arrays, None if digests is None else digests.encode()


def _single(text, field):
    """Read a number, a switch or a text from the metadata."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if type(value) not in (int, bool, str) or (type(value) is int and abs(value) > LARGEST):
        raise ValueError(f"{field} is damaged: {shown(text)}")
    return np.asarray(value)


def _table(digests, where):
    try:
        return parse_json(digests, where)
    except ValueError:
        raise ValueError(f"{where}: the field {DIGESTS} was changed, or is damaged") from None


class Fields:
    """The fields of a file, each taken once and checked as it is taken; what is wrong is a ``ValueError``.

    Parameters
    ----------
    fields : dict of str to ndarray
        All of them.
    where : str
        What messages start with.
    """

    def __init__(self, fields, where):
        self._left, self.where = fields, where

    def __contains__(self, name):
        return name in self._left

    def wrong(self, name, found, wanted):
        """Return the error to raise for a field."""
        return ValueError(f"{self.where}: the field {name} {found}; wanted is {wanted}")

    def array(self, name, dtype, shape):
        """Take an array of this dtype and shape; None in the shape stands for any number."""
        if name not in self._left:
            raise ValueError(f"{self.where}: the field {name} is missing")
        array = self._left.pop(name)
        if array.dtype != dtype:
            raise self.wrong(name, f"has dtype {array.dtype}", np.dtype(dtype).name)
        fits = array.ndim == len(shape) and all(
            w is None or n == w for n, w in zip(array.shape, shape, strict=True)
        )
        if not fits:
            wanted = str(tuple("any" if n is None else n for n in shape)).replace("'", "")
            raise self.wrong(name, f"has shape {array.shape}", wanted)
        return array

    def finite(self, name, shape):
        """Take an array of float32 without NaN and infinities."""
        array = self.array(name, np.float32, shape)
        at = first_nonfinite(array)
        if at is not None:
            place = ", ".join(str(i) for i in np.unravel_index(at, array.shape))
            raise ValueError(
                f"{self.where}: the field {name} holds {array.flat[at]} at [{place}], which is not finite"
            )
        return array

    def integers(self, name, shape, low, high):
        """Take an array of integers from ``low`` to ``high``."""
        array = self.array(name, np.int64, shape)
        if array.size and not (low <= array.min() and array.max() <= high):
            raise self.wrong(name, f"holds numbers from {array.min()} to {array.max()}", f"{low} to {high}")
        return array

    def integer(self, name, low, high=LARGEST):
        """Take one integer from ``low`` to ``high``."""
        return int(self.integers(name, (), low, high))

    def switch(self, name):
        """Take True or False."""
        return bool(self.array(name, np.bool_, ()))

    def text(self, name):
        """Take a text."""
        dtype = self._left[name].dtype if name in self._left else np.dtype("U1")
        if dtype.kind != "U":
            raise self.wrong(name, f"has dtype {dtype}", "a text")
        return str(self.array(name, dtype, ()))

    def match(self, name, wanted, whose, *others):
        """Take a text that must be this one, or one of ``others``; returns which."""
        found = self.text(name)
        if found not in (wanted, *others):
            found = found if len(found) <= 80 else found[:77] + "..."
            raise ValueError(
                f"{self.where}: the field {name} is {found!r}, but that of {whose} is {wanted!r}"
            )
        return found

    def finish(self):
        """Check that every field was taken."""
        for name in sorted(self._left):
            raise ValueError(f"{self.where}: the field {named(name)} does not belong there")
