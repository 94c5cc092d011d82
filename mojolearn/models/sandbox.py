"""Running a chat template, which is a program that came with a checkpoint, under guard.

Jinja's immutable sandbox keeps a template away from Python's insides and from the messages. Here it is also stopped
when it does not come to an end or makes too much: every line it runs is counted, sizes are checked where a few
characters of template could ask for gigabytes, and the growth of the process is watched. That bounds accidents and
simple attacks; whoever must run templates of an enemy gives them a process with limits of its own. Jinja is imported
with this file, so import this file late.
"""

import json
import re
import sys
from datetime import datetime
from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

try:
    import resource
except ImportError:  # Windows: the growth of the process is not watched
    resource = None

MOST_STEPS = 500_000  # lines of a template that are run; a long conversation takes some thousands
LONGEST = 1 << 24  # characters of a text, entries of a list
MOST_GROWTH = 1 << 30  # bytes by which the memory of the process may exceed what it ever was
WIDEST = 10_000  # columns that a text can be padded to, bits of a number
FILE_NAME = "<template>"  # that of the code Jinja makes

PADDING = {"center", "ljust", "rjust", "zfill", "expandtabs"}
WIDTH = re.compile(r"\d{5}")  # in a format such as "%99999d"


class Stopped(jinja2.TemplateError):
    """A template asked for more than it may."""


def render(source, variables):
    """Run a template.

    Parameters
    ----------
    source : str
        The template.
    variables : dict
        What it can see: plain data.

    Returns
    -------
    str
        What it wrote.

    Raises
    ------
    Exception
        Whatever goes wrong in a template; `jinja2.TemplateError` and more.

    Examples
    --------
    >>> render("{% for m in messages %}{{ m.role }}: {{ m['content'] }}\\n{% endfor %}",
    ...        {"messages": [{"role": "user", "content": "Hello"}]})
    'user: Hello\\n'
    """
    template = _compiled(source)
    steps = _Steps()
    pieces, length, before = [], 0, sys.gettrace()
    sys.settrace(steps.enter)
    try:
        for piece in template.generate(variables):
            length += len(piece)
            _check_size(length)
            pieces.append(piece)
    finally:
        sys.settrace(before)
    return "".join(pieces)


class _Steps:
    """Counts the lines that a template runs: an endless loop ends at the same place on every machine."""

    def __init__(self):
        self.left = MOST_STEPS
        self.largest = _peak_memory() + MOST_GROWTH

    def enter(self, frame, event, argument):
        """Called by Python for each function that is entered."""
        self._count()
        return self.line if frame.f_code.co_filename == FILE_NAME else None

    def line(self, frame, event, argument):
        """Called by Python for each line of the template."""
        self._count()
        for value in frame.f_locals.values():
            if isinstance(value, (str, list, tuple, dict)):
                _check_size(len(value))
        if _peak_memory() > self.largest:
            raise Stopped(f"it takes more than {MOST_GROWTH >> 20} MiB of memory")
        return self.line

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise Stopped(f"it does not end within {MOST_STEPS} steps")


def _peak_memory():
    """Bytes that the process held at its largest."""
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _check_size(size):
    if size > LONGEST:
        raise Stopped(f"it makes a text or list of more than {LONGEST} characters or entries")


def _check_width(width):
    if isinstance(width, int) and width > WIDEST:
        raise Stopped(f"it pads a text to {width} columns; at most {WIDEST} are allowed")


def _check_format(text):
    if isinstance(text, str) and WIDTH.search(text):
        raise Stopped(f"it pads a text to more than {WIDEST} columns")


def _join(texts):
    texts = list(texts)
    _check_size(sum(len(text) for text in texts if isinstance(text, str)))
    return "".join(texts)


class _Generation(Extension):
    """``{% generation %}`` marks what a model wrote, for training; what stands inside is written as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's name)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller):
        return caller()


class _Namespace(Namespace):
    """``namespace()`` without names that begin with an underscore, which lead into Python's insides."""

    def __setitem__(self, name, value):
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")
        if isinstance(value, (str, list, tuple, dict)):
            _check_size(len(value))
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the settings that chat templates are written for, and with limits on sizes."""

    intercepted_binops = frozenset(["*", "**", "%"])
    concat = staticmethod(_join)

    def __init__(self):
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        self.filters["tojson"] = _tojson
        self.filters |= {name: _guarded(self.filters[name], check) for name, check in GUARDED.items()}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _namespace,
        }

    def call_binop(self, context, operator, left, right):
        if operator == "%":
            _check_format(left)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (max(right, 0) if operator == "**" else 1)
            if bits > WIDEST:
                raise Stopped(f"it computes a number of {bits} bits; at most {WIDEST} are allowed")
        elif operator == "*":
            times, sized = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int) and hasattr(sized, "__len__"):
                _check_size(times * len(sized))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context, __obj, *args, **kwargs):  # such names cannot be among kwargs
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str):
            _check_method(text, name, *args)
        elif getattr(__obj, "__wrapped__", None) is not None:  # str.format, which the sandbox wraps
            _check_format(getattr(__obj.__wrapped__, "__self__", None))
        return super().call(__context, __obj, *args, **kwargs)


def _check_method(text, name, *args):
    """Check the call of a method of str."""
    if name in PADDING:
        _check_width(args[0] if args else 0)
    elif name == "join" and args and isinstance(args[0], (list, tuple)):
        _check_join(args[0], text)
    elif name == "replace" and len(args) > 1:
        _check_replace(text, *args)


def _check_join(texts, between="", *rest, **named):
    if isinstance(texts, (list, tuple)) and isinstance(between, str):
        _check_size(sum(len(text) + len(between) for text in texts if isinstance(text, str)))


def _check_replace(text, old, new, *rest, **named):
    if all(isinstance(part, str) for part in (text, old, new)):
        _check_size(text.count(old) * len(new))


MOST_BETWEEN = 64  # characters that tojson may write between two values, for each level

GUARDED = {  # filters, and what their arguments are checked for
    "center": lambda text, width=80: _check_width(width),
    "indent": lambda text, width=4, *rest, **named: _check_width(width),
    "format": lambda text, *rest, **named: _check_format(text),
    "join": _check_join,
    "replace": lambda *args, **named: _check_replace(
        *args[-3:], **named
    ),  # after the context it is called with
}


def _guarded(function, check):
    """The filter behind its check; Jinja reads what to pass a filter from its attributes."""

    def guarded(*args, **named):
        first = next((i for i, value in enumerate(args) if not _is_of_jinja(value)), 0)
        check(*args[first:], **named)
        return function(*args, **named)

    guarded.__dict__.update(function.__dict__)
    return guarded


def _is_of_jinja(value):
    return isinstance(value, (jinja2.Environment, nodes.EvalContext, jinja2.runtime.Context))


def _namespace(*args, **values):
    space = _Namespace()
    for name, value in dict(*args, **values).items():
        space[name] = value
    return space


def _raise_exception(message):
    raise jinja2.TemplateError(message)


def _strftime_now(form):
    return datetime.now().strftime(form)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    between = [indent] if isinstance(indent, str) else [" " * min(indent or 0, MOST_BETWEEN + 1)]
    between += separators or ()
    if any(len(text) > MOST_BETWEEN for text in between):
        raise Stopped(f"tojson is to write more than {MOST_BETWEEN} characters between two values")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=16)
def _compiled(source):
    return _Environment().from_string(source)
