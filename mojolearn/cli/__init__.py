"""The command line: one file for each command, with a ``parser()`` and a ``run(arguments)``."""
