"""JSON objects that came from somewhere else, read strictly: no NaN, no key twice, nothing but an object."""

import json

from mojolearn.scalars import shown


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


def _no_constant(name):
    raise ValueError(f"the number {name} is not allowed")


def _no_repeats(pairs):
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} appears twice")
    return result
