"""Files that users name: only regular files are read, and what is wrong with others is said."""

import os

LFS = b"version https://git-lfs.github.com/spec/"


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
