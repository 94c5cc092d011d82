"""Checkpoints in GGUF files, as if they were Hugging Face folders: the same names, rows and fields of config.json.

Nothing outside the modules ``gguf*`` knows that a model came from such a file.
"""

import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mojolearn.models.gguf_config import raw_config
from mojolearn.models.gguf_file import GGUFFile
from mojolearn.models.gguf_quants import PLAIN, check_readable, decode
from mojolearn.models.gguf_rows import by_head, minus_one, unpermute
from mojolearn.scalars import counted, named, shown, some
from mojolearn.weights import widen

CALLER = "CausalLM.load"
NAME = re.compile(r"(?:blk\.(\d+)\.)?([a-z0-9_]+)\.(weight|bias)")
PART = re.compile(r"(.*-)00001-of-(\d{5})(\.gguf)", re.IGNORECASE)
MOST_SMALL = 2**16  # values of a tensor that belongs to the config


class Source(NamedTuple):
    """Where a tensor of the model comes from: rows of one in a file, the change that is due, and its shape then."""

    name: str
    first: int
    last: int
    change: object
    shape: tuple


class GGUFCheckpoint:
    """All tensors of a GGUF file, or of several, under Hugging Face names; it has the methods of `Checkpoint`.

    Parameters
    ----------
    path : str or path
        The file; of a model in several files the first, ``...-00001-of-0000N.gguf``.

    Attributes
    ----------
    raw_config : dict
        The fields of config.json.

    Raises
    ------
    FileNotFoundError
        A file is missing.
    ValueError
        A file is malformed, or holds a model that is not known or keys that are not honoured.
    """

    def __init__(self, path):
        path = Path(path)
        self.where = f"{CALLER}: {path}"
        self._files = open_parts(path, CALLER)
        self._stored = {}  # name in a file -> (file, tensor)
        for file in self._files:
            for name, tensor in file.tensors.items():
                if name in self._stored:
                    other = self._stored[name][0].path
                    raise ValueError(f"{file.where}: the tensor {named(name)} is in {other} too")
                self._stored[name] = (file, tensor)
        used = set()
        self.raw_config, self._row = raw_config(
            self._files[0].metadata,
            {name: tensor for name, (_, tensor) in self._stored.items()},
            partial(self._small, used),
            self.where,
        )
        self._left = {}  # Hugging Face name -> Source
        for name, (_, tensor) in self._stored.items():
            if name not in used:
                self._left.update(self._sources(name, tensor))

    def __contains__(self, name):
        return name in self._left

    def matrix_dtypes(self):
        """Return the NumPy types of all matrices, as a set; those in blocks are float32 once they are decoded."""
        names = {source.name for source in self._left.values() if "norm" not in source.name}
        tensors = [self._stored[name][1] for name in names - {"position_embd.weight"}]
        return {PLAIN.get(tensor.type, np.dtype(np.float32)) for tensor in tensors if len(tensor.shape) == 2}

    def take(self, name, shape):
        """Hand out one tensor, for the first and last time.

        Parameters
        ----------
        name : str
            As Hugging Face spells it.
        shape : tuple of int
            The shape that it must have.

        Returns
        -------
        ndarray of float32, float16, or uint16 holding the bits of bfloat16
            In the memory of the file and read-only where nothing had to be done to it.

        Raises
        ------
        ValueError
            No such tensor, or one of another shape.
        ImportError
            The tensor comes in blocks, and the package gguf is not installed.
        """
        source, file, tensor, where = self._cross_off(name, shape)
        data, rows = file.data(tensor), tensor.shape[0]
        if len(tensor.shape) == 1:
            array = decode(data, tensor.type, tensor.shape, where)[source.first : source.last]
        else:
            data = data.reshape(rows, -1)[source.first : source.last].reshape(-1)
            array = decode(data, tensor.type, (source.last - source.first, *tensor.shape[1:]), where)
        if source.change:
            array = source.change(array) if source.change is not minus_one else minus_one(array, where)
        return array if array.shape == shape else array.reshape(shape)

    def pass_over(self, name, shape):
        """Check a tensor as `take` does and cross it off, without reading it: returns zeros of its shape."""
        _, _, tensor, where = self._cross_off(name, shape)
        check_readable(tensor.type, where)
        return np.broadcast_to(np.float32(0), shape)

    def _cross_off(self, name, shape):
        if name not in self._left:
            stored = self._stored_as(name)
            raise ValueError(
                f"{self.where}: the tensor {stored} is missing; wanted is {name} of shape {shape}"
            )
        source = self._left.pop(name)
        file, tensor = self._stored[source.name]
        where = f"{file.where}: {source.name}"
        if source.shape != shape:
            raise ValueError(f"{where} has shape {source.shape}, as {name}; wanted {shape}")
        return source, file, tensor, where

    def release(self):
        """Give back the memory of what was read so far; arrays stay good, and are read again where they are used."""
        for file in self._files:
            file.release()

    def finish(self, ignored=()):
        """Check that nothing is left; `ignored` are patterns of Hugging Face tensors that GGUF files never hold."""
        unused = sorted({source.name for source in self._left.values()})
        if unused:
            have = "has" if len(unused) == 1 else "have"
            raise ValueError(
                f"{self.where}: {counted(len(unused), 'tensor')} {have} no place in the model: {some(unused)}"
            )

    def _small(self, used, name):
        """Return a tensor that belongs to the config as float32, or None where there is none."""
        if name not in self._stored:
            return None
        used.add(name)
        file, tensor = self._stored[name]
        where = f"{file.where}: {name}"
        if tensor.type not in PLAIN or len(tensor.shape) != 1 or tensor.shape[0] > MOST_SMALL:
            raise ValueError(
                f"{where} is of type {tensor.type} and shape {tensor.shape}; "
                f"wanted is a vector of F32 with at most {MOST_SMALL} values"
            )
        return widen(decode(file.data(tensor), tensor.type, tensor.shape, where))

    def _sources(self, name, tensor):
        """Return what a stored tensor is in the model; one that is unknown keeps its name, and nobody takes it."""
        row, shape = self._row, tensor.shape
        whole = Source(name, 0, shape[0], None, shape)
        match = NAME.fullmatch(name)
        if not match:
            return {name: whole}
        layer, part, leaf = match.groups()
        known = row.whole if layer is None else row.layers
        prefix = "" if layer is None else row.prefix.format(layer)
        if part == "attn_qkv" and part not in known and layer is not None:
            return self._three(name, shape, prefix, leaf)
        if part not in known:
            return {name: whole}
        theirs = f"{prefix}{known[part]}.{leaf}"
        if "{}" in known[part]:  # one tensor for each head
            return {theirs.format(h): Source(name, h, h + 1, None, shape[1:]) for h in range(shape[0])}
        change = self._change(part, leaf)
        return {theirs: whole._replace(change=change, shape=shape[::-1] if change is np.transpose else shape)}

    def _change(self, part, leaf):
        raw, row = self.raw_config, self._row
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        if row.permuted and part in heads:
            return partial(unpermute, heads=raw[heads[part]])
        if row.norm_plus_one and part.endswith("norm") and leaf == "weight":
            return minus_one
        if row.qkv_by_head and part == "attn_qkv":
            return partial(by_head, heads=raw["num_attention_heads"])
        in_layer = part in row.layers and not part.endswith("norm")
        return np.transpose if row.transposed and in_layer and leaf == "weight" else None

    def _three(self, name, shape, prefix, leaf):
        """Part the rows of queries, keys and values that lie in one tensor."""
        raw = self.raw_config
        heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
        head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
        wanted = (heads + 2 * kv_heads) * head_dim
        if shape[0] != wanted:
            raise ValueError(f"{self.where}: {name} has {shape[0]} rows; wanted are {wanted}")
        sources, first = {}, 0
        for part, n in (("attn_q", heads), ("attn_k", kv_heads), ("attn_v", kv_heads)):
            last = first + n * head_dim
            source = Source(name, first, last, self._change(part, leaf), (last - first, *shape[1:]))
            sources[f"{prefix}{self._row.layers[part]}.{leaf}"] = source
            first = last
        return sources

    def _stored_as(self, name):
        """Return the name that a tensor should have in the file."""
        stem, _, leaf = name.rpartition(".")
        before, _, after = self._row.prefix.partition("{}")
        layer, dot, rest = stem.removeprefix(before).partition(after)
        inside = stem.startswith(before) and dot and layer.isdigit()
        known, wanted = (self._row.layers, rest) if inside else (self._row.whole, stem)
        part = next((part for part, theirs in known.items() if theirs == wanted), None)
        if part is None:
            return name
        return f"blk.{layer}.{part}.{leaf}" if inside else f"{part}.{leaf}"


def open_parts(path, caller):
    """Open a file and, where it says that it is the first of several, the others.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    caller : str
        The public name that messages start with.

    Returns
    -------
    list of GGUFFile
        The first holds the metadata.

    Raises
    ------
    FileNotFoundError
        One of them is missing.
    ValueError
        One is malformed, or is not the part that it should be.
    """
    files = [GGUFFile(path, caller)]
    count = _split(files[0], "count", 1)
    if count in (0, 1):
        return files
    match = PART.fullmatch(path.name)
    if _split(files[0], "no") != 0 or not match or int(match[2]) != count:
        raise ValueError(
            f"{caller}: {path} is one of {count} files; wanted is the first, named ...-00001-of-{count:05}.gguf"
        )
    for number in range(1, count):
        file = GGUFFile(path.with_name(f"{match[1]}{number + 1:05}-of-{match[2]}{match[3]}"), caller)
        if (_split(file, "no"), _split(file, "count")) != (number, count):
            raise ValueError(f"{file.where} does not say that it is file {number + 1} of {count}")
        files.append(file)
    total = sum(len(file.tensors) for file in files)
    wanted = _split(files[0], "tensors.count", total)
    if total != wanted:
        raise ValueError(f"{files[0].where}: the {count} files hold {total} tensors; wanted {wanted}")
    return files


def _split(file, name, default=None):
    value = file.metadata.get(f"split.{name}", default)
    if value is not None and type(value) is not int:
        raise ValueError(f"{file.where}: split.{name} must be an integer, not {shown(value)}")
    return value
