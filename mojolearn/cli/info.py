"""``mojolearn info``: what a checkpoint is and whether it can run here; without one, what a bug report needs."""

import argparse
import json

from mojolearn.cli.process import FAILED, write
from mojolearn.machine import versions
from mojolearn.scalars import named


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn info",
        description="Print family, options, memory of a checkpoint, and whether it can run here and why not, without "
        "loading it; the exit status is 1 where it cannot. Without a path: versions, for bug reports.",
    )
    parser.add_argument("path", nargs="?", help="a checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(arguments):
    """Print what is asked for."""
    if arguments.path is None:
        rows = versions()
    else:
        from mojolearn.models.describe import describe

        rows = describe(arguments.path)
    if arguments.json:
        write(json.dumps(rows, default=str) + "\n")
    else:
        for name, value in rows.items():
            write(f"{name:26}{_shown(name, value)}\n")
    return 0 if rows.get("runs", True) else FAILED


def _shown(name, value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.startswith("memory"):
        return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 2**10:.1f} KiB"
    if isinstance(value, list):
        return ", ".join(named(entry) if isinstance(entry, str) else str(entry) for entry in value) or "none"
    return "none" if value is None else str(value)
