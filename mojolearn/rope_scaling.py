"""The option ``rope_scaling``: how long contexts slow rotary positions down, and the one form in which that is kept."""

from collections.abc import Mapping, Sequence

import numpy as np

from mojolearn.scalars import admit_integer, admit_positive, admit_switch, brief, did_you_mean, shown

ORIGINAL = "original_max_position_embeddings"

# The types and, in the order in which we keep them, their keys besides "type": those that must be given, and those that
# may be, with what stands for them otherwise (None: nothing).
SCALINGS = {
    "default": ((), {}),
    "linear": (("factor",), {}),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), {}),
    "dynamic": (("factor", ORIGINAL), {}),
    "yarn": (
        ("factor", ORIGINAL),
        {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
        | {"attention_factor": None, "mscale": None, "mscale_all_dim": None},
    ),
    "longrope": (("short_factor", "long_factor", ORIGINAL), {"factor": None, "attention_factor": None}),
}
BY_LENGTH = ("dynamic", "longrope")  # the types whose frequencies depend on the length of the sequence


def admit_rope_scaling(given, name, method):
    """Check the option `rope_scaling` and bring it into one form.

    Parameters
    ----------
    given : dict or None
        As users write it: "type" (or "rope_type") and the keys of the type, with numbers of Python or NumPy.

        - "linear": ``factor``.
        - "llama3": ``factor``, ``low_freq_factor``, ``high_freq_factor``, ``original_max_position_embeddings``.
        - "yarn": ``factor``, ``original_max_position_embeddings``; optional ``beta_fast`` (32), ``beta_slow`` (1),
          ``truncate`` (True) and, for the size of q and k, ``attention_factor`` or the pair ``mscale`` and
          ``mscale_all_dim``, of which one alone has no effect.
        - "dynamic": ``factor``, ``original_max_position_embeddings``.
        - "longrope": ``short_factor`` and ``long_factor`` (a number for each rotated pair of columns),
          ``original_max_position_embeddings``, and ``attention_factor``, or ``factor`` from which it follows.
    name, method : str
        Name of the option and public name of the class, for messages.

    Returns
    -------
    dict or None
        A new dict with "type" first, then its keys in a fixed order; None when the type is "default".

    Raises
    ------
    TypeError
        If `given` is neither None nor a mapping.
    ValueError
        For an unknown type, and for a missing, unknown or unusable entry.

    Examples
    --------
    >>> admit_rope_scaling({"factor": 2, "rope_type": "linear"}, "rope_scaling", "TransformerBlock")
    {'type': 'linear', 'factor': 2.0}
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"{method}: {name} must be None or a dict, not {shown(given)}")
    entries = dict(given)
    rope_type = _take_type(entries, given, name, method)
    required, optional = SCALINGS[rope_type]
    keys = (*required, *optional)
    for key, value in entries.items():
        if key not in keys:
            known = ", ".join(map(repr, keys)) or "none"
            raise ValueError(
                f"{method}: {name} has the unknown key {brief(key)} = {shown(value)}{did_you_mean(key, keys)}; "
                f"keys of the type {rope_type!r} besides the type: {known}"
            )
    admitted = {"type": rope_type}
    for key in keys:
        if key in required and key not in entries:
            raise ValueError(f"{method}: {name} of type {rope_type!r} lacks the key {key!r}")
        value = entries.get(key)
        if key in optional and value is None:
            value = optional[key]
        if key in required or value is not None:
            admitted[key] = _admit_entry(value, key, f'{name}["{key}"]', method)
    _check_together(admitted, name, method)
    return admitted if keys else None


def _take_type(entries, given, name, method):
    """Remove the type, in either spelling, from the entries; returns it."""
    spelt = [key for key in ("type", "rope_type") if key in entries]
    spellings = [entries.pop(key) for key in spelt]
    allowed = ", ".join(map(repr, SCALINGS))
    if not spellings:
        raise ValueError(f'{method}: {name}={shown(given)} lacks the key "type", one of {allowed}')
    rope_type = spellings[0]
    if rope_type != spellings[-1]:
        raise ValueError(
            f'{method}: {name} has "type" {brief(rope_type)} but "rope_type" {brief(spellings[-1])}; these are two '
            "spellings of one key, give one of them"
        )
    if not isinstance(rope_type, str) or rope_type not in SCALINGS:
        raise ValueError(f'{method}: {name}["{spelt[0]}"] must be one of {allowed}, not {shown(rope_type)}')
    return str(rope_type)


def _admit_entry(value, key, name, method):
    """Check the value of a key; every wrong one is a wrong value of the option, the dict."""
    try:
        if key == ORIGINAL:
            return admit_integer(value, name, method, 1)
        if key == "truncate":
            return admit_switch(value, name, method)
        if key in ("short_factor", "long_factor"):
            return _admit_numbers(value, name, method)
        return admit_positive(value, name, method)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _admit_numbers(values, name, method):
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise TypeError(f"{method}: {name} must be a list of numbers, not {shown(values)}")
    return tuple(admit_positive(value, f"{name}[{i}]", method) for i, value in enumerate(values))


def _check_together(admitted, name, method):
    """What the entries of one type ask of each other."""
    for high, low in (("high_freq_factor", "low_freq_factor"), ("beta_fast", "beta_slow")):
        if high in admitted and np.float32(admitted[high]) <= np.float32(admitted[low]):
            raise ValueError(
                f'{method}: {name}["{high}"]={admitted[high]} must be above {name}["{low}"]={admitted[low]}, '
                "also when both are rounded to float32"
            )
    if admitted["type"] == "longrope" and "attention_factor" not in admitted:
        if "factor" not in admitted:
            raise ValueError(
                f"{method}: {name} of type 'longrope' lacks the key 'attention_factor', or 'factor' from which it "
                "follows"
            )
        if admitted[ORIGINAL] == 1 and admitted["factor"] > 1:
            raise ValueError(
                f'{method}: {name}["{ORIGINAL}"]=1 gives no attention_factor, which divides by its logarithm; give '
                f'{name}["attention_factor"]'
            )
