"""Folders of models that users name, and what is wrong with those that are none."""

import os
from pathlib import Path

from mojolearn.scalars import kind


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
