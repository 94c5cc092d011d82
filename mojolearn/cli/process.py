"""A command as a process: its exit status, its messages, and what becomes of Ctrl-C and closed pipes."""

import contextlib
import os
import re
import signal
import sys

FAILED, MISUSED, INTERRUPTED, UNREAD = 1, 2, 130, 141
FAILURES = (ValueError, TypeError, OSError, ImportError, MemoryError)  # what the library says in a sentence
FOR_PYTHON = re.compile(
    r"^([A-Z]\w+(\.\w+)?: |\[Errno \d+\] )"
)  # "CausalLM.load: ", which says nothing in a shell


alone = False  # whether the process is there for the command alone; set in `mojolearn.__main__`


class UsageError(Exception):
    """An argument is wrong by itself."""


def run(command, argv):
    """Run a command and return the exit status of the process.

    Parameters
    ----------
    command : module
        Of `mojolearn.cli`.
    argv : list of str
        Its arguments.

    Returns
    -------
    int
        As `mojolearn.__main__.main` says.
    """
    if sys.stdout is None:  # the shell's >&-
        return _complain("the standard output is closed", FAILED)
    try:
        status = command.run(command.parser().parse_args(argv))
        with _output():
            sys.stdout.flush()
        return status or 0
    except BrokenPipeError:
        _drop_output()
        return UNREAD
    except KeyboardInterrupt:
        return _flushed(INTERRUPTED)
    except UsageError as error:
        return _complain(str(error), MISUSED)
    except FAILURES as error:
        message = FOR_PYTHON.sub("", " ".join(str(error).split())) or type(error).__name__
        return _flushed(_complain(message, FAILED))


@contextlib.contextmanager
def nothing_to_tidy():
    """Inside, Ctrl-C ends the process at once.

    For stretches that leave nothing half done but are deep in foreign code: what a compiler calls back cannot raise,
    so an exception there would be printed and forgotten.
    """
    if not alone:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _complain(message, status):
    say(f"mojolearn: error: {message}")
    return status


def _flushed(status):
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, for example
        _drop_output()
    return status


@contextlib.contextmanager
def _output():
    """Inside, a disk that is full or gone is said in a sentence."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"the standard output cannot be written ({error.strerror or error})") from None


def _drop_output():
    """Lead the output nowhere, or Python's own flush at exit fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line):
    """Write a line about what is going on, where it is not in the way of the results."""
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def write(text):
    """Write a part of the results, to be seen at once."""
    if text:
        with _output():
            sys.stdout.write(text)
            sys.stdout.flush()


def bear_any_text():
    """Let a terminal that cannot show a character show "?"."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
