"""JSON files that came from somewhere else: read strictly, refused in one sentence that names the file."""

import json

from mojolearn.models.files import admit_file
from mojolearn.scalars import admit_choice, admit_integer, admit_positive, admit_switch, shown

MOST = 2**31 - 1  # of any count or size


def read_json(path, caller):
    """Read a JSON object from a file.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    caller : str
        The public name that messages start with.

    Returns
    -------
    dict
        The object.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is no regular file, not UTF-8, not JSON, or not an object; holds NaN or Infinity, or one key twice.
    """
    admit_file(path, caller)
    return parse_json(path.read_bytes(), f"{caller}: {path}")


def parse_json(text, where):
    """Parse the bytes of one JSON object; messages start with `where`."""
    try:
        value = json.loads(text.decode(), parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON ({error or 'nested too deeply'})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} must hold a JSON object, not {shown(value)}")
    return value


class Fields:
    """The fields of one JSON object, each taken once and checked as it is taken; null counts as absent.

    Parameters
    ----------
    raw : dict
        The object.
    where : str
        What messages start with.

    Attributes
    ----------
    left : dict
        The fields that were not taken yet.
    """

    def __init__(self, raw, where):
        self.left = dict(raw)
        self.where = where

    def wrong(self, name, value, wanted):
        """Return the error to raise for a field."""
        return ValueError(f"{self.where}: {name} must be {wanted}, not {shown(value)}")

    def take(self, name, default=None):
        """Take a field of any kind."""
        value = self.left.pop(name, None)
        return default if value is None else value

    def integer(self, name, *default, minimum=1, maximum=MOST):
        """Take an integer in range; it is required unless a default is given."""
        return self._admit(admit_integer, name, default, minimum, maximum)

    def number(self, name, *default):
        """Take a number above zero that float32 can hold; it is required unless a default is given."""
        return self._admit(admit_positive, name, default)

    def boolean(self, name, default=False):
        """Take true or false; absent means the default."""
        return self._admit(admit_switch, name, (default,))

    def choice(self, name, default, choices):
        """Take one of the keys of `choices`, and return its value."""
        return choices[self._admit(admit_choice, name, (default,), choices)]

    def ids(self, name, vocab_size):
        """Take one token id or a list of them, as a tuple."""
        value = self.take(name, [])
        several = value if isinstance(value, list) else [value]
        if not all(type(v) is int and 0 <= v < vocab_size for v in several):
            raise self.wrong(name, value, f"ids from 0 to {vocab_size - 1}")
        return tuple(several)

    def inner(self, name):
        """Take a JSON object, as a dict without its nulls; None if absent."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, value, "a JSON object")
        return {k: v for k, v in value.items() if v is not None}

    def _admit(self, admit, name, default, *limits):
        value = self.take(name)
        if value is None and default:
            return default[0]
        if value is None:
            raise ValueError(f"{self.where}: {name} is missing")
        try:
            return admit(value, name, self.where, *limits)
        except TypeError as error:  # of the file, our argument, this is a wrong value
            raise ValueError(str(error)) from None


def _no_constant(name):
    raise ValueError(f"the number {name} is not allowed")


def _no_repeats(pairs):
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} appears twice")
    return result
