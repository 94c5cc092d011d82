"""Folders and files that users name: only regular files are read, and what is wrong with others is said."""

import os
from pathlib import Path

from mojolearn.scalars import kind

LFS = b"version https://git-lfs.github.com/spec/"


def admit_folder(path, caller):
    """Check that a path is a folder.

    Parameters
    ----------
    path : str or pathlib.Path
        What the user gave.
    caller : str
        The public name that messages start with.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    TypeError, ValueError
        It is no path, or empty.
    FileNotFoundError
        There is no such folder; the message says what is there instead.
    """
    if not isinstance(path, (str, Path)):
        raise TypeError(f"{caller}: path must be a str or a Path, not {kind(path)}")
    if path == "":
        raise ValueError(f"{caller}: path must name a folder, but it is empty")
    if os.path.isdir(path):
        return Path(path)
    text = str(path)
    short = text if len(text) <= 200 else f"{text[:80]}...{text[-80:]}"
    if os.path.exists(path):
        raise FileNotFoundError(f"{caller}: {short} is a file; wanted is the folder with config.json in it")
    if os.path.islink(path):
        raise FileNotFoundError(f"{caller}: {short} is a link to {os.readlink(path)}, which does not exist")
    hub = text.count("/") == 1 and text[0] not in "/.~" and text[-1] != "/"
    hint = "; models are not downloaded from a hub, give the folder of a local copy" if hub else ""
    raise FileNotFoundError(f"{caller}: the folder {short} does not exist{hint}")


def admit_file(path, caller):
    """Check that a path is a regular file with contents of its own: reading a pipe might never end.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    caller : str
        The public name that messages start with.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is something else, cannot be opened, or is a pointer of Git LFS.
    """
    where = f"{caller}: {path}"
    if not os.path.exists(path):
        if os.path.islink(path):
            raise FileNotFoundError(f"{where} is a link to {os.readlink(path)}, which does not exist")
        empty = os.path.isdir(path.parent) and not os.listdir(path.parent)
        raise FileNotFoundError(f"{where} does not exist" + ("; its folder is empty" if empty else ""))
    if not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "no regular file"
        raise ValueError(f"{where} cannot be read: it is {what}")
    try:
        with open(path, "rb") as file:
            beginning = file.read(len(LFS))
    except OSError as error:
        raise ValueError(f"{where} cannot be read ({error.strerror})") from None
    if beginning == LFS:
        raise ValueError(f"{where} is a pointer of Git LFS instead of the file; `git lfs pull` fetches it")
