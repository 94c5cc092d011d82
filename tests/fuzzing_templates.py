"""Random Jinja programs: a small grammar that knows the ways out of a sandbox and the ways to use up a machine."""

NAMES = ("messages", "x", "ns.x", "m", "bos_token", "undefined", "loop", "self", "caller", "cycler", "joiner", "dict",
         "namespace", "range", "lipsum", "raise_exception", "strftime_now", "varargs", "kwargs", "f")  # fmt: skip
ATTRIBUTES = (
    *(
        "__class__",
        "__mro__",
        "__init__",
        "__globals__",
        "__subclasses__",
        "__builtins__",
        "__dict__",
        "gi_frame",
    ),
    *(
        "content",
        "role",
        "items",
        "keys",
        "update",
        "append",
        "pop",
        "format",
        "format_map",
        "join",
        "encode",
    ),
    *(
        "upper",
        "split",
        "replace",
        "center",
        "zfill",
        "expandtabs",
        "translate",
        "to_bytes",
        "real",
        "fromkeys",
    ),
    *(
        "strip",
        "index",
        "first",
        "cycle",
        "__html__",
        "_fields",
        "x",
        "0",
        "environment",
        "ljust",
        "rjust",
        "title",
    ),
)
FILTERS = (
    *(
        "upper",
        "lower",
        "length",
        "list",
        "string",
        "join",
        "join(',')",
        "tojson",
        "tojson(indent=4)",
        "first",
    ),
    *(
        "last",
        "sort",
        "unique",
        "reverse",
        "trim",
        "title",
        "int",
        "float",
        "abs",
        "sum",
        "sum(start=[])",
        "safe",
    ),
    *(
        "e",
        "forceescape",
        "urlize",
        "striptags",
        "wordwrap(1)",
        "pprint",
        "random",
        "xmlattr",
        "items",
        "dictsort",
    ),
    *(
        "attr('__class__')",
        "attr('__init__')",
        "map('upper')",
        "map(attribute='content')",
        "map('attr', '__class__')",
    ),
    *(
        "selectattr('role')",
        "rejectattr('x')",
        "groupby('role')",
        "batch(3)",
        "batch(1000000000, 'x')",
        "slice(9)",
    ),
    *(
        "batch(9999, messages)",
        "indent(9999)",
        "indent(10**9)",
        "center(10**9)",
        "center(9999)",
        "round(10**9, 'ceil')",
    ),
    *(
        "replace('a', 'b' * 9999)",
        "replace('', messages|string)",
        "format(1, 2)",
        "truncate(10**9)",
        "wordcount",
    ),
    *(
        "default('x')",
        "int(base=16)",
        "filesizeformat",
        "urlencode",
        "min",
        "max",
        "capitalize",
        "count",
        "nothing",
    ),
)
CONSTANTS = (
    *(
        "1",
        "0",
        "-1",
        "1.5",
        "99999",
        "10**9",
        "true",
        "none",
        "''",
        "'a'",
        "'a\\nb'",
        "'\\ud800'",
        "'__class__'",
    ),
    *(
        "'{0.__class__}'",
        "'{:{}}'",
        "'%*d'",
        "'%s'",
        "'{0}' * 9999",
        "'%99999d'",
        "'\\t' * 9999",
        "[]",
        "{}",
        "()",
    ),
    *(
        "'<!---->' * 9999",
        "'f' * 9999",
        "'9' * 5000",
        "[1] * 9999",
        "('a',) * 9999",
        "{'a': messages}",
        "1e308",
    ),
)
ODD = (
    *("{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% break %}", "{% debug %}", "{# "),
    *(
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{% generation %}{{ 1 / 0 }}{% endgeneration %}",
        "{% raw %}{{",
    ),
    *("{% if", "{{ (", "{% autoescape true %}{{ x }}{% endautoescape %}", "{% with x = messages %}{{ x }}"),
)
DEEP = (
    *("{{ " + "(" * 5000, "{{ " + "1+" * 5000 + "1 }}", "{{ " + "-" * 5000 + "1 }}"),
    *("{% if 1 %}" * 200 + "{% endif %}" * 200, "{{ " + "[" * 300 + "]" * 300 + " }}"),
)
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "is", "not in")


def expression(rng, depth=4):
    """An expression, for ``{{ }}``."""
    kind = rng.randrange(10) if depth else rng.randrange(2)
    inner = depth - 1
    if kind == 0:
        return rng.choice(NAMES)
    if kind == 1:
        return rng.choice(CONSTANTS)
    if kind == 2:
        operator = rng.choice(OPERATORS)
        right = rng.choice(("defined", "string", "mapping")) if operator == "is" else expression(rng, inner)
        return f"({expression(rng, inner)} {operator} {right})"
    if kind == 3:
        return f"{expression(rng, inner)}.{rng.choice(ATTRIBUTES)}"
    if kind == 4:
        return f"{expression(rng, inner)}['{rng.choice(ATTRIBUTES)}']"
    if kind in (5, 6):
        return f"({expression(rng, inner)})|{rng.choice(FILTERS)}"
    if kind == 7:
        arguments = ", ".join(expression(rng, inner) for _ in range(rng.randrange(3)))
        return f"{expression(rng, inner)}({arguments})"
    if kind == 8:
        return f"[{expression(rng, inner)}, {expression(rng, inner)}]"
    return f"{expression(rng, inner)}.{rng.choice(ATTRIBUTES)}({expression(rng, inner)})"


def statement(rng, depth=3):
    """A statement with what is inside it."""
    kind = rng.randrange(11) if depth else 0
    inner = depth - 1
    if kind <= 2:
        return "{{ " + expression(rng) + " }}"
    if kind == 3:
        return "{% set x = " + expression(rng) + " %}" + statement(rng, inner)
    if kind == 4:
        return "{% set x = [x, x] %}" * rng.choice((1, 3, 40)) + statement(rng, inner)
    if kind == 5:
        head = rng.choice(
            ("m in messages", "i in range(99999)", f"m in {expression(rng)}", "i in [1] recursive")
        )
        return "{% for " + head + " %}" + statement(rng, inner) + "{% endfor %}"
    if kind == 6:
        condition, yes, no = expression(rng), statement(rng, inner), statement(rng, inner)
        return "{% if " + condition + " %}" + yes + "{% else %}" + no + "{% endif %}"
    if kind == 7:
        body = rng.choice(("{{ f(x) }}{{ f(x) }}", statement(rng, inner)))
        call = rng.choice(("{{ f(1) }}", "{% call f(2) %}x{% endcall %}"))
        return "{% macro f(x, y=1) %}" + body + "{% endmacro %}" + call
    if kind == 8:
        assignment = rng.choice(("ns.x ~ ns.x", "[ns.x, ns.x]", "[ns.x]", "ns.x + ns.x", expression(rng)))
        loop = "{% for i in range(60) %}{% set ns.x = " + assignment + " %}{% endfor %}"
        return "{% set ns = namespace(x='xx') %}" + loop + statement(rng, inner)
    if kind == 9:
        change = rng.choice(("upper", "indent", "e"))
        text = statement(rng, inner)
        return "{% set x %}" + text + "{% endset %}{% filter " + change + " %}{{ x }}{% endfilter %}"
    return rng.choice(ODD)


def random_template(rng):
    """A whole template."""
    text = "".join(statement(rng) for _ in range(rng.choice((1, 1, 2, 3))))
    return rng.choice(DEEP) if rng.random() < 0.03 else text
