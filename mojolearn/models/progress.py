"""A progress bar while a model loads: only on a terminal, and only where tqdm is installed."""

import sys


def with_progress(items, unit):
    """Iterate over items and show how far it is.

    Parameters
    ----------
    items : sequence
        What to go through.
    unit : str
        What an item is, in a word.

    Returns
    -------
    iterable
        The same items.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, desc="loading", unit=unit, leave=False, file=sys.stderr)
