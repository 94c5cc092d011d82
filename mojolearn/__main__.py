"""The command ``mojolearn``, also ``python -m mojolearn``; what it does is in `mojolearn.cli`."""

import signal
import sys


def main(argv=None):
    """Run the command line.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; None takes those of the process.

    Returns
    -------
    int
        Exit status: 0, 1 where it failed, 2 for arguments that do not fit, 130 after Ctrl-C, 141 when nobody reads the
        output any more.
    """
    alone = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        # There is nothing to tidy up while modules are imported: Ctrl-C may end the process at once.
        if alone:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from mojolearn.cli import process
        from mojolearn.cli.commands import find

        command, rest = find(sys.argv[1:] if argv is None else argv)
        process.alone = alone
        if alone:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = process.run(command, rest)
        if alone:  # nor while Python closes down
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
