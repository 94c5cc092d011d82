"""``mojolearn cache``: what the compile cache holds, and away with it."""

import argparse
import contextlib
import json
import os

from mojolearn import _jit
from mojolearn.cli.process import write
from mojolearn.scalars import counted

KINDS = (".nbi", ".nbc")  # in the names of all files of Numba's cache: an index for each kernel, and its code


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn cache",
        description="Compiled kernels are kept on disk, in a folder for each version, Numba and processor. "
        "NUMBA_CACHE_DIR moves them, MOJOLEARN_CACHE=0 switches that off.",
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="info|clear")
    info = commands.add_parser("info", help="where they are, how many, how large")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    clear = commands.add_parser("clear", help="remove them; they are compiled again when they are needed")
    clear.add_argument("--old", action="store_true", help="only those of other versions and processors")
    return parser


def run(arguments):
    """Do what is asked."""
    folder = _jit.CACHE_FOLDER
    if folder is None:
        write("null\n" if getattr(arguments, "json", False) else "The compile cache is switched off.\n")
        return 0
    folders = sorted(entry for entry in _entries(folder.parent) if entry.is_dir())
    if arguments.what == "clear":
        return _clear([entry for entry in folders if not (arguments.old and entry == folder)])
    sizes = {entry: _sizes(entry) for entry in folders}
    here = sizes.get(folder, [])
    rows = {
        "folder": str(folder),
        "kernels": len([path for path, _ in here if path.suffix == ".nbi"]),
        "bytes": sum(size for _, size in here),
        "other folders": len(set(folders) - {folder}),
        "bytes of others": sum(size for entry in folders if entry != folder for _, size in sizes[entry]),
        "can be written": _can_be_written(folder),
    }
    if arguments.json:
        write(json.dumps(rows) + "\n")
    else:
        for name, value in rows.items():
            write(f"{name:17}{value if not isinstance(value, bool) else ('no', 'yes')[value]}\n")
    return 0


def _entries(folder):
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _sizes(folder):
    """The files of a cache folder with their sizes; what is not ours is left out."""
    found = []
    for path in _entries(folder):
        with contextlib.suppress(OSError):  # another process may remove it meanwhile
            if any(kind in path.name for kind in KINDS) and path.is_file() and not path.is_symlink():
                found.append((path, path.stat().st_size))
    return found


def _can_be_written(folder):
    """Whether a kernel could be kept: in the folder, or in the first one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _clear(folders):
    """Remove compiled kernels, and the folders that are empty then."""
    count = freed = 0
    for folder in folders:
        for path, size in _sizes(folder):
            path.unlink(missing_ok=True)
            count, freed = count + 1, freed + size
        with contextlib.suppress(OSError):  # something else is in it
            folder.rmdir()
    write(f"removed {counted(count, 'file')}, {freed / 2**20:.1f} MiB\n")
    return 0
