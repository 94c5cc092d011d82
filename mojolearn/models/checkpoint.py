"""The tensors of a checkpoint folder: found, mapped into memory, and each handed out exactly once.

What is not asked for is not read.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from mojolearn import safetensors_file
from mojolearn.models.strict_json import read_json
from mojolearn.safetensors_file import SafetensorsFile
from mojolearn.scalars import brief, counted, named, shown, some

CALLER = "CausalLM.load"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LONGEST_FILE_NAME = 255  # bytes
DTYPES = {name: safetensors_file.DTYPES[name] for name in ("F32", "F16", "BF16")}  # of weights


class Checkpoint:
    """All tensors of one folder, by name.

    Parameters
    ----------
    folder : str or path
        Holds ``model.safetensors``, or the shards that ``model.safetensors.index.json`` lists. Other
        ``.safetensors`` files in it are not looked at, nor is an index beside the single file.

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
            shard = SafetensorsFile(folder / file, CALLER)
            self._shards.append(shard)
            if names is not None and names != set(shard.entries):
                name = min(names ^ set(shard.entries))
                says, has = ("lists", "lacks") if name in names else ("does not list", "holds")
                raise ValueError(f"{self.where}: {INDEX} {says} {named(name)} in {file}, which {has} it")
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
            raise ValueError(
                f"{self.where}: the tensor {named(name)} is missing; wanted one of shape {shape}"
            )
        shard, entry = self._left.pop(name)
        where = f"{CALLER}: {shard.path}: {named(name)}"
        if entry.shape != shape:
            raise ValueError(f"{where} has shape {brief(entry.shape)}; wanted {shape}")
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


def _shards(path):
    """Read an index: file name -> the set of tensor names that should be in it."""
    where = f"{CALLER}: {path}"
    table = read_json(path, CALLER).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{where}: weight_map = {shown(table)}; wanted a table from tensor to file")
    shards = {}
    for name, file in table.items():
        plain = isinstance(file, str) and file.strip(".") and not set(file) & set("/\\:")
        plain = plain and file.isprintable() and len(file.encode()) <= LONGEST_FILE_NAME
        if not plain:
            raise ValueError(
                f"{where}: {named(name)} is placed in {shown(file)}; wanted a file in the same folder"
            )
        shards.setdefault(file, set()).add(name)
    return shards
