"""Checks of single values at the boundary: integers, positive floats, switches and choices.

Each takes the name of the argument and the public name of the method or class, with which its message starts.
A wrong kind of value is a ``TypeError``, a wrong value of the right kind a ``ValueError``.
"""

import difflib
import math
import operator
from numbers import Real

import numpy as np

LARGEST = 2**63 - 1  # what a 64-bit integer holds


def shown(value):
    """Write a value for a sentence: its ``repr``, cut short when long, and its type."""
    return brief(value) if value is None else f"{brief(value)} ({kind(value)})"


def brief(value):
    """Write a value for a sentence: its ``repr``, cut short when long."""
    try:
        text = repr(value).replace("\n", "")  # of arrays
    except (ValueError, RecursionError):  # Python writes no integer of thousands of digits
        return "a very long integer" if isinstance(value, int) else "what is too large to be shown"
    return text if len(text) <= 80 else text[:77] + "..."


def reason(error):
    """Write what another library, or a template, gives as the reason of an error: in one line that is not too long."""
    words = " ".join(str(error).split()) or type(error).__name__
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words[:401])
    return text if len(text) <= 400 else text[:397] + "..."


def some(names):
    """List the first few of some names that came out of files."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(named(name) for name in names[:5]) + more


def kind(value):
    """Name the type of a value: "list", "None"."""
    return "None" if value is None else type(value).__name__


def named(name):
    """Write a name that came out of a file: as it is, unless it is long or has characters that cannot be printed."""
    return name if name.isprintable() and 0 < len(name) <= 80 else shown(name)


def counted(n, noun, plural=None):
    """Write a number with its noun: "1 token", "2 tokens"."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def did_you_mean(name, choices):
    """Hint at a close name, " (did you mean 'window'?)"; an empty string when none is close.

    For names only: of the values of an option a similar one can mean something quite different.
    """
    close = difflib.get_close_matches(str(name)[:80], list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def admit_integer(value, name, method, minimum=None, maximum=None):
    """Turn any integer (Python's, NumPy's, whatever has ``__index__``) into an int and check its range.

    Parameters
    ----------
    value : int
        What the caller gave.
    name, method : str
        Name of the argument and public name of the method, for messages.
    minimum, maximum : int, optional
        Smallest and largest value allowed, both included; never beyond 64 bits.

    Returns
    -------
    int
        The value.

    Raises
    ------
    TypeError
        For bool, float, str, None and everything else that is not an integer.
    ValueError
        Outside the range.

    Examples
    --------
    >>> admit_integer(np.int16(7), "window", "TransformerBlock", minimum=0)
    7
    """
    try:
        if isinstance(value, (bool, np.bool_)):  # NumPy before 2.3 takes its own bool for an index
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{method}: {name} must be an integer, not {shown(value)}") from None
    low = -LARGEST if minimum is None else minimum
    high = LARGEST if maximum is None else maximum
    if not low <= number <= high:
        too_small = number < low and minimum is not None
        wanted = f"at least {low}" if too_small and maximum is None else f"from {low} to {high}"
        raise ValueError(f"{method}: {name} must be {wanted}, not {brief(number)}")
    return number


def as_float(value):
    """Turn a real number into a float; one beyond float64, as integers can be, becomes an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def admit_positive(value, name, method):
    """Turn a real number into a float; refuse it unless it is above 0 and finite, also rounded to float32.

    Parameters
    ----------
    value : float
        A real number of Python or NumPy, but no bool.
    name, method : str
        Name of the argument and public name of the method, for messages.

    Returns
    -------
    float
        The value, not rounded to float32.

    Raises
    ------
    TypeError
        For everything that is not a real number.
    ValueError
        For NaN, infinities, numbers up to 0, and those that float32 would turn into 0 or infinity.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{method}: {name} must be a number, not {shown(value)}")
    number = as_float(value)
    with np.errstate(over="ignore", under="ignore"):
        usable = 0 < np.float32(number) < np.inf
    if not usable:
        raise ValueError(
            f"{method}: {name} must be above 0 and within float32 (about 1.4e-45 to 3.4e38), "
            f"not {shown(value)}"
        )
    return number


def admit_switch(value, name, method):
    """Turn a bool of Python or NumPy into a bool; ``TypeError`` for anything else, even 0 and 1."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{method}: {name} must be True or False, not {shown(value)}")
    return bool(value)


def admit_choice(value, name, method, choices):
    """Check that a str is one of `choices`: ``TypeError`` for another kind, ``ValueError`` otherwise."""
    allowed = ", ".join(map(repr, choices))
    if not isinstance(value, str):
        raise TypeError(f"{method}: {name} must be one of {allowed}, not {shown(value)}")
    if value not in choices:
        raise ValueError(f"{method}: {name} must be one of {allowed}, not {brief(value)}")
    return str(value)


def admit_switch_or_choice(value, name, method, choices):
    """Check a bool, or a str out of `choices`: ``TypeError`` for another kind, ``ValueError`` for another str."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    allowed = ", ".join(["False", "True", *map(repr, choices)])
    if not isinstance(value, str):
        raise TypeError(f"{method}: {name} must be one of {allowed}, not {shown(value)}")
    if value not in choices:
        raise ValueError(f"{method}: {name} must be one of {allowed}, not {brief(value)}")
    return str(value)
