"""JSON files that came from somewhere else: read strictly, refused in one sentence that names the file."""

from mojolearn.files import admit_file
from mojolearn.scalars import admit_choice, admit_integer, admit_positive, admit_switch, brief, named, shown
from mojolearn.strict_json import parse_json

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


class Fields:
    """The fields of one JSON object, each taken once and checked as it is taken; null counts as absent.

    Parameters
    ----------
    raw : dict
        The object.
    where : str
        What messages start with.
    spellings : dict of str to tuple of str, optional
        Other names that a field may have; those that are given must agree.

    Attributes
    ----------
    left : dict
        The fields that were not taken yet.
    taken : dict
        The others: what each was taken to be.
    """

    def __init__(self, raw, where, spellings=None):
        self.left = dict(raw)
        self.where = where
        self.taken = {}
        self._spellings = spellings or {}

    def wrong(self, name, value, wanted, why=""):
        """Return the error to raise for a field."""
        why = f"; {why}" if why else ""
        return ValueError(f"{self.where}: {named(name)} must be {wanted}, not {shown(value)}{why}")

    def spelt(self, name):
        """Return the names under which a field is given, or else the first that it may have."""
        names = dict.fromkeys((*self._spellings.get(name, ()), name))
        return [n for n in names if n in self.left] or [next(iter(names))]

    def is_null(self, name):
        """Whether the field is given, as null."""
        return all(n in self.left and self.left[n] is None for n in self.spelt(name))

    def take(self, name, default=None):
        """Take a field of any kind."""
        given = {n: self.left.pop(n, None) for n in self.spelt(name)}
        value = agreed({n: v for n, v in given.items() if v is not None}, default, self.where)
        self.taken[name] = value
        return value

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

    def ids(self, name):
        """Take one token id or a list of them, as a tuple."""
        spelt = self.spelt(name)[0]
        value = self.take(name, [])
        several = value if isinstance(value, list) else [value]
        if not all(type(v) is int and 0 <= v <= MOST for v in several):
            raise self.wrong(spelt, value, "a token id or a list of them")
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
        spelt = self.spelt(name)[0]
        value = self.take(name)
        if value is None:
            if not default:
                raise ValueError(f"{self.where}: {spelt} is missing")
            value = default[0]
        else:
            try:
                value = admit(value, spelt, self.where, *limits)
            except TypeError as error:  # of the file, our argument, this is a wrong value
                raise ValueError(str(error)) from None
        self.taken[name] = value
        return value


def agreed(found, default, where):
    """Return the one value that several fields, by name, give; ``ValueError`` where they differ."""
    if not found:
        return default
    (first, value), *others = found.items()
    for name, other in others:
        if other != value:
            raise ValueError(
                f"{where}: {first} = {brief(value)} and {name} = {brief(other)} contradict each other"
            )
    return value
