"""A stream in a file: what it takes to go on with the same bits, in this process or another, here or elsewhere.

The file is an ordinary ``.npz``. Every field is an array under a name of its own, no object is pickled, and the field
``digests`` holds a checksum of each of the others: one that is missing, changed or strange is refused by its name.
"""

import contextlib
import hashlib
import json
import os
import secrets
import zipfile
from pathlib import Path

import numpy as np

from mojolearn._version import NUMERICS_VERSION
from mojolearn.models.files import admit_file
from mojolearn.scalars import shown

FORMAT = "mojolearn stream 1"
RESUME, SAVE = "CausalLM.resume", "TokenStream.save"
BROKEN = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    MemoryError,
    TypeError,
    zipfile.BadZipFile,
    NotImplementedError,
)


def save_stream(stream, path):
    """Write a stream into a file; see `TokenStream.save`."""
    if not isinstance(path, (str, Path)) or not str(path):
        raise TypeError(f"{SAVE}: path must be a str or a Path that names a file, not {shown(path)}")
    if not stream._open:
        raise ValueError(f"{SAVE}: the stream has ended or was closed; there is nothing to resume")
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{SAVE}: {path} is a folder; wanted is the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{SAVE}: there is no folder {path.parent} to write {path.name} into")
    write_fields(path, _fields(stream))


def _fields(stream):
    """Everything a stream is made of, by name."""
    plan, lm = stream._plan, stream._lm
    asked = {
        name: value for name, value in plan.options.items() if name not in ("tokenizer", "logits_processor")
    }
    asked |= {"seed": plan.seed, "logit_bias": plan.rules.logit_bias}
    asked = {name: value for name, value in asked.items() if value is not None}
    fields = {
        "format": FORMAT,
        "numerics": NUMERICS_VERSION,
        "model": lm.fingerprint,
        "tokenizer": _tokenizer_hash(plan),
        "options": json.dumps(asked, default=_plain, sort_keys=True),
        "max_new_tokens": plan.max_new_tokens,
        "logits_processor": plan.rules.logits_processor is not None,
        "keeps_state": stream.state is not None,
        "lengths": np.array([len(prompt) for prompt in stream._prompts]),
        "prompts": np.concatenate(stream._prompts),
        "new": stream._new[:, : stream._count],
    }
    if plan.logprobs is not None:
        fields |= {f"logprobs.{name}": array for name, array in stream._logprobs._asdict().items()}
    for g, group in enumerate(stream._groups):
        group.check_whole(SAVE)
        group.settle()
        fields |= {f"group{g}.{name}": value for name, value in _group_fields(group).items()}
    return fields


def _group_fields(group):
    fields = {"rows": group.rows, "position": group.position, "max_tokens": group.state.max_tokens}
    fields |= {"pending": group.pending} if group.logits is None else {"logits": group.logits}
    for layer, block in enumerate(group.state.blocks):
        for name, flat in (("keys", block._k), ("values", block._v)):
            fields[f"layer{layer}.{name}"] = flat[: _used(block, group.position)]
    return fields


def _used(block, position):
    """Numbers of a buffer that are in use: the packed cache, or under a window the ring."""
    return block.batch_size * block.n_kv_heads * block.head_dim * (block.window or position)


def _tokenizer_hash(plan):
    """Only a stream with stop strings depends on its tokenizer."""
    return plan.tokenizer.fingerprint if any(plan.stop) else ""


def _plain(value):
    """Options as users may give them, in words of JSON."""
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray) else list(value)


def write_fields(path, fields):
    """Write named arrays and their checksums to a ``.npz`` file that appears only when it is complete.

    Parameters
    ----------
    path : str or pathlib.Path
        The file; one that exists is replaced in one step.
    fields : dict
        Arrays, numbers and texts by name.
    """
    arrays = {name: np.asarray(value) for name, value in fields.items()}
    arrays["digests"] = np.asarray(json.dumps({name: _digest(array) for name, array in arrays.items()}))
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


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
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def read_fields(path, caller):
    """Read what `write_fields` has written, and check every field against its checksum.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.
    caller : str
        The public name that messages start with.

    Returns
    -------
    dict of str to ndarray
        The fields, without ``digests``.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no such file, or a field is missing, changed or strange: file and field.
    """
    if not isinstance(path, (str, Path)) or not str(path):
        raise TypeError(f"{caller}: path must be a str or a Path that names a file, not {shown(path)}")
    admit_file(Path(path), caller)
    where = f"{caller}: {path}"
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            fields = {name: _read_field(file, name, where) for name in file.files}
    except BROKEN as error:
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where} is not a saved stream, or was cut short ({error})") from None
    if "digests" not in fields:
        raise ValueError(f"{where}: the field digests is missing; it is not a saved stream")
    wanted = _digests(fields.pop("digests"), where)
    for name in sorted(wanted.keys() | fields.keys()):
        if name not in fields:
            raise ValueError(f"{where}: the field {name} is missing")
        if name not in wanted:
            raise ValueError(f"{where}: the field {name} does not belong there")
        if _digest(fields[name]) != wanted[name]:
            raise ValueError(f"{where}: the field {name} was changed, or is damaged")
    return fields


def _read_field(file, name, where):
    try:
        array = file[name]
        if not isinstance(array, np.ndarray):
            raise ValueError("it is no array")
    except BROKEN as error:
        raise ValueError(f"{where}: the field {name} is damaged ({error})") from None
    return array


def _digests(array, where):
    try:
        table = json.loads(str(array))
        if not isinstance(table, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: the field digests was changed, or is damaged") from None
    return table
