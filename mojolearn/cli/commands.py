"""The commands there are, and the one that is asked for. Light to import: nothing here needs Numba."""

import argparse
import importlib

from mojolearn._version import __version__

COMMANDS = {
    "generate": "continue a text",
    "chat": "talk with a model",
    "score": "how probable each line of a text is",
    "info": "what a model is and whether it can run here; without one, versions for bug reports",
    "verify": "whether this machine gives the same bits as every other",
    "cache": "the compiled kernels on disk: what there is, and away with it",
    "bench": "tokens per second here, and what memory would allow",
}


def find(argv):
    """Read the first argument, and import the command it names.

    Parameters
    ----------
    argv : list of str
        All arguments.

    Returns
    -------
    tuple of module and list of str
        The command, and the arguments that are left for it.
    """
    parser = argparse.ArgumentParser(
        prog="mojolearn",
        description="Language models on the CPU with exactly fixed bits.",
        epilog="mojolearn COMMAND --help tells more.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mojolearn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in COMMANDS.items():
        commands.add_parser(name, help=what, add_help=False)
    name = parser.parse_args(argv[:1]).command
    return importlib.import_module(f"mojolearn.cli.{name}"), argv[1:]
