"""Where a text ends: at one of some token ids, or where one of some strings has been written."""

import numpy as np

from mojolearn.models.tokenizer import Tokenizer
from mojolearn.scalars import admit_integer, counted, kind, shown

LISTS = (list, tuple)


def admit_eos(ids, batch_size, vocab_size, method):
    """Turn ``eos_token_id`` into one tuple of ids per row.

    Parameters
    ----------
    ids : int, sequence of int, or sequence of such sequences, or None
        One or more for all rows, or a list of lists with those of each row.
    batch_size, vocab_size : int
        Number of rows and of token ids.
    method : str
        The public name that messages start with.

    Returns
    -------
    list of tuple of int
        One per row; empty tuples where a row does not end early.

    Examples
    --------
    >>> admit_eos([7, 9], 2, 10, "CausalLM.generate"), admit_eos([[7], []], 2, 10, "CausalLM.generate")
    ([(7, 9), (7, 9)], [(7,), ()])
    """

    def one(i):
        return admit_integer(i, "eos_token_id", method, 0, vocab_size - 1)

    if ids is None:
        return [()] * batch_size
    ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if not isinstance(ids, LISTS):
        return [(one(ids),)] * batch_size
    if any(isinstance(row, (*LISTS, np.ndarray)) for row in ids):
        _check_count(ids, "eos_token_id", batch_size, method)
        return [
            tuple(one(i) for i in (row if isinstance(row, (*LISTS, np.ndarray)) else [row])) for row in ids
        ]
    return [tuple(one(i) for i in ids)] * batch_size


def admit_stop(stop, batch_size, tokenizer, method):
    """Turn ``stop`` into one tuple of strings per row; given like ``eos_token_id``.

    Parameters
    ----------
    stop : str, sequence of str, or sequence of such sequences, or None
        Strings that end a row.
    batch_size : int
        Number of rows.
    tokenizer : Tokenizer or None
        What turns ids into text; needed where there are strings.
    method : str
        The public name that messages start with.

    Returns
    -------
    list of tuple of str
        One per row.
    """
    if stop is None or (isinstance(stop, LISTS) and not stop):
        return [()] * batch_size
    if isinstance(stop, LISTS) and any(isinstance(row, LISTS) for row in stop):
        _check_count(stop, "stop", batch_size, method)
        rows = [tuple(row) if isinstance(row, LISTS) else (row,) for row in stop]
    else:
        rows = [tuple(stop) if isinstance(stop, LISTS) else (stop,)] * batch_size
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(
            f"{method}: stop needs tokenizer=, a Tokenizer that turns ids into text, not {kind(tokenizer)}"
        )
    for string in {string: None for row in rows for string in row}:
        if not isinstance(string, str):
            raise TypeError(f"{method}: stop must be a string or a list of strings, not {shown(string)}")
        if not string:
            raise ValueError(f"{method}: stop holds an empty string, which would end every text")
        special = tokenizer.special_id(string)
        if special is not None:
            raise ValueError(
                f"{method}: stop {string!r} is a special token, which is never part of a text; "
                f"give its id instead: eos_token_id={special}"
            )
    return rows


def _check_count(rows, name, batch_size, method):
    if len(rows) != batch_size:
        raise ValueError(
            f"{method}: {name} has lists for {counted(len(rows), 'row')}, but ids has {batch_size}"
        )


class StopStrings:
    """Looks for strings in a text that comes in pieces, and holds back what may be the beginning of one.

    Parameters
    ----------
    strings : sequence of str
        What to look for; none is found in nothing.

    Attributes
    ----------
    found : bool
        Whether one of them has come.

    Examples
    --------
    >>> stop = StopStrings(["\\n\\n"])
    >>> stop.step("One line.\\n"), stop.step("\\nAnother"), stop.found
    ('One line.', '', True)
    """

    def __init__(self, strings):
        self._strings = tuple(strings)
        self._held = ""
        self.found = False

    def step(self, piece):
        """Take a piece and return the text that is certainly before any of the strings."""
        if self.found:
            return ""
        text = self._held + piece
        places = [at for at in (text.find(string) for string in self._strings) if at >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        keep = max((_overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self):
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text, string):
    """Length of the longest end of the text that the string begins with."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
