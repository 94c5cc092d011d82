"""Texts into which values are put: how wide a field may get, read as Python reads it and in time that is linear."""

import re
from string import Formatter

PARENTHESIS = re.compile(r"[()]")
WIDTHS = re.compile(r"[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?")
NUMBER = re.compile(r"\d+")


def percent_widths(text):
    """List widths and precisions, digits or "*", of all fields of a text before ``%``.

    Examples
    --------
    >>> percent_widths("%5d %% %(a(b))9.3f %*s")
    ['5', '9', '3', '*']
    """
    found, at = [], text.find("%")
    while at >= 0:
        at += 1
        if text.startswith("(", at):
            depth = 0
            for match in PARENTHESIS.finditer(text, at):
                depth += 1 if match[0] == "(" else -1
                if not depth:
                    break
            if depth:  # Python refuses the text
                return found
            at = match.end()
        field = WIDTHS.match(text, at)
        found += [digits for digits in field.groups() if digits]
        at = text.find("%", field.end() + 1)  # behind the letter
    return found


def format_widths(text):
    """List widths and precisions of all fields of a text for ``str.format``; "*" is one that is taken from a value.

    Examples
    --------
    >>> format_widths("{0:>5} {a!r:{b}} {c}")
    ['5', '*']
    """
    try:
        specs = [spec for _, _, spec, _ in Formatter().parse(text) if spec]
    except ValueError:  # of which the call itself complains
        return []
    return [digits for spec in specs for digits in (["*"] if "{" in spec else NUMBER.findall(spec))]
