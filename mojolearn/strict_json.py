"""JSON objects that came from somewhere else, read strictly: no NaN, no key twice, nothing but an object."""

import codecs
import json
import math
import re

from mojolearn.scalars import brief, reason, shown

DEEPEST = 100  # levels of lists and objects
TOO_DEEP = f"lists or objects are nested more than {DEEPEST} levels deep"
HALF = re.compile("[\ud800-\udfff]")


def parse_json(text, where):
    """Parse the bytes of one JSON object; messages start with `where`."""
    if text.startswith(codecs.BOM_UTF8):
        raise ValueError(f"{where} begins with a byte order mark; wanted is UTF-8 text without one")
    try:
        value = json.loads(text.decode(), parse_constant=_no_constant, object_pairs_hook=_no_repeats)
        _check_values(value)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise ValueError(f"{where} is not valid JSON ({TOO_DEEP})") from None
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON ({reason(error)})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} must hold a JSON object, not {shown(value)}")
    return value


def _check_values(value):
    """Refuse what is too deep for all that comes after, and what JSON can write but nobody can hold."""
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(TOO_DEEP)
        below = []
        for entry in level:
            if isinstance(entry, dict):
                below += entry
                below += entry.values()
            elif isinstance(entry, list):
                below += entry
            elif isinstance(entry, str) and HALF.search(entry):
                raise ValueError(f"the text {brief(entry)} holds half a surrogate pair")
            elif isinstance(entry, float) and math.isinf(entry):
                raise ValueError("a number is beyond float64")
        level, depth = below, depth + 1


def _no_constant(name):
    raise ValueError(f"the number {name} is not allowed")


def _no_repeats(pairs):
    result = dict(pairs)
    if len(result) < len(pairs):
        seen = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {brief(twice)} appears twice")
    return result
