"""Running a chat template, which is a program that came with a checkpoint, under guard.

Jinja's immutable sandbox keeps a template away from Python's insides and from the messages. Here it is also stopped
when it does not come to an end or makes too much: a `Meter` counts every line it runs, and every operation that could
make much of little is looked at before it is done. That bounds accidents and attacks that are known; whoever must run
templates of an enemy gives them a process with limits of its own. Jinja is imported with this file, so import this
file late.
"""

import json
from datetime import datetime
from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.filters import do_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mojolearn.models.meter import (
    Meter,
    Stopped,
    check,
    check_bits,
    check_size,
    check_width,
    measure,
)
from mojolearn.models.template_formats import format_widths, percent_widths

PADDING = {"center", "ljust", "rjust", "zfill"}

# Filters and methods that templates of models do not use: they draw at random, or take longer than the text is long.
WITHOUT = ("pprint", "random", "striptags", "urlize", "wordwrap")
SLOW_METHODS = ("striptags", "unescape")  # of texts that a filter has marked as safe


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
    pieces, length = [], 0
    with Meter():
        for piece in template.generate(variables):
            length += len(piece)
            check_size(length)
            pieces.append(piece)
    return "".join(pieces)


def _join(texts):
    """Put texts together, whose sizes are counted as they come."""
    pieces, length = [], 0
    for text in texts:
        length += len(text)
        check_size(length)
        pieces.append(text)
    return "".join(pieces)


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
        super().__setitem__(name, check(value))

    def __repr__(self):
        """Without what is in it, which may be large."""
        return "<Namespace>"


class _Code(CodeGenerator):
    """Code that computes nothing before the template runs, when nobody counts, and that joins texts in our way."""

    def visit_Concat(self, node, frame):
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_child_to_const(self, node, frame, finalize):
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the settings that chat templates are written for, and with limits on sizes."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    code_generator_class = _Code
    concat = staticmethod(_join)

    def __init__(self):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            optimized=False,
            finalize=check,
        )
        self.filters |= {"tojson": _tojson, "join": _join_filter}
        for name in WITHOUT:
            del self.filters[name]
        del self.globals["lipsum"]  # texts at random
        self.filters = {
            name: _guarded(function, GUARDED.get(name)) for name, function in self.filters.items()
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _namespace,
        }

    def joined(self, values):
        """Put values together as texts: what ``~`` does."""
        return _join(str(check(value)) for value in values)

    def is_safe_attribute(self, obj, attr, value):
        """Numbers and bytes have no methods here, as some of them make much of little."""
        if isinstance(obj, (int, float, bytes)) or (isinstance(obj, str) and attr in SLOW_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context, operator, left, right):
        if operator == "%" and isinstance(left, str):
            _check_percent(left, right)
        elif isinstance(left, int) and isinstance(right, int):
            _check_number(operator, left, right)
        elif operator == "*":
            times, sized = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int):
                check_size(times * measure(sized)[0])
        return check(super().call_binop(context, operator, left, right))

    def call(__self, __context, __obj, *args, **kwargs):  # such names cannot be among kwargs
        check([*args, *kwargs.values()])
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str):
            _check_method(text, name, *args, **kwargs)
            if name == "join" and args:
                args = (_gathered(args[0], text), *args[1:])
        elif getattr(__obj, "__wrapped__", None) is not None:  # str.format, which the sandbox wraps
            text = getattr(__obj.__wrapped__, "__self__", None)
            if isinstance(text, str):
                values = [*args, *kwargs.values()]
                _check_fields(text, values, text.count("{"), format_widths(text))
        return check(super().call(__context, __obj, *args, **kwargs))


def _check_number(operator, left, right):
    """Check an operation on two integers."""
    bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * max(right, 0)}
    check_bits(bits.get(operator, 0))


def _check_percent(text, values):
    """Check what ``%`` does with a text."""
    _check_fields(text, values, text.count("%"), percent_widths(text))


def _check_fields(text, values, fields, widths):
    """Check a text into which values are put: each field may hold all of them, and be as wide as the widest."""
    if "*" in widths:
        raise Stopped("it takes the width of a text from a value")
    widest = max((int(digits[:9]) for digits in widths), default=0)
    check_width(widest)
    check_size(len(text) + fields * (measure(values)[0] + widest))


def _check_method(text, name, *args, **named):
    """Check the call of a method of str."""
    if name in PADDING:
        check_width(args[0] if args else 0)
    elif name == "expandtabs":
        width = args[0] if args else named.get("tabsize", 8)
        check_width(width)
        check_size(len(text) + text.count("\t") * (width if isinstance(width, int) else 0))
    elif name == "translate":
        table = args[0] if args and isinstance(args[0], dict) else {}
        longest = max((len(part) for part in table.values() if isinstance(part, str)), default=1)
        check_size(len(text) * longest)
    elif name == "replace" and len(args) > 1:
        _check_replace(text, *args)


def _gathered(values, between):
    """List what is to be joined, which may come one by one, while its size is counted."""
    found, size, gap = [], 0, len(between) if isinstance(between, str) else 0
    for value in values:
        size += measure(value)[0] + gap
        check_size(size)
        found.append(value)
    return found


@jinja2.pass_eval_context
def _join_filter(context, value, d="", attribute=None):
    return do_join(context, _gathered(value, d), d, attribute)


def _check_replace(text, old, new, *rest, **named):
    if all(isinstance(part, str) for part in (text, old, new)):
        check_size(len(text) + text.count(old) * len(new))


def _check_indent(text, width=4, *rest, **named):
    check_width(width)
    columns = len(width) if isinstance(width, str) else width if isinstance(width, int) else 0
    check_size(len(text) + (1 + text.count("\n")) * columns if isinstance(text, str) else 0)


def _check_batch(value, count=None, fill_with=None, **named):
    count = named.get("linecount", named.get("slices", count))
    check_width(count)
    if isinstance(count, int):
        check_size(count * measure(fill_with)[0])


def _check_sum(value, attribute=None, start=0):
    if not isinstance(start, (int, float)):
        raise Stopped("it adds up what are no numbers")


MOST_BETWEEN = 64  # characters that tojson may write between two values, for each level

GUARDED = {  # filters, and what their arguments are checked for
    "batch": _check_batch,
    "center": lambda text, width=80: check_width(width),
    "format": lambda text, *values, **named: _check_percent(str(text), [*values, *named.values()]),
    "indent": _check_indent,
    "replace": _check_replace,
    "round": lambda value, precision=0, *rest, **named: check_width(precision),
    "slice": _check_batch,
    "sum": _check_sum,
}


def _guarded(function, check_arguments):
    """The filter behind its check, and with its values checked; Jinja reads what to pass from its attributes."""

    def guarded(*args, **named):
        first = next((i for i, value in enumerate(args) if not _is_of_jinja(value)), 0)
        check([*args[first:], *named.values()])
        if check_arguments is not None:
            check_arguments(*args[first:], **named)
        return check(function(*args, **named))

    guarded.__dict__.update(getattr(function, "__dict__", {}))
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
    size, depth = measure(value)
    check_size(size * max(1, depth * len(between[0]), *(len(text) for text in between)))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=16)
def _compiled(source):
    return _Environment().from_string(source)
