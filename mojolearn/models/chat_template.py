"""From the messages of a conversation to the text a model was trained on: chat templates, found, chosen and run."""

import numbers
import os
import re
from collections.abc import Mapping

from mojolearn.files import admit_file
from mojolearn.scalars import as_float, brief, did_you_mean, kind, reason, shown

FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
DEFAULT, WITH_TOOLS = "default", "tool_use"
DEEPEST = 50  # levels of lists and dicts in a message
HALF = re.compile("[\ud800-\udfff]")


def read_templates(folder, settings, settings_path, caller):
    """Read the chat templates of a checkpoint folder.

    Parameters
    ----------
    folder : pathlib.Path
        May hold ``chat_template.jinja`` and ``additional_chat_templates/<name>.jinja``; these come before what
        ``tokenizer_config.json`` says.
    settings : dict
        The contents of ``tokenizer_config.json``, whose ``chat_template`` is a template or a list of
        ``{"name": ..., "template": ...}``.
    settings_path : pathlib.Path
        Where the settings stand, for messages.
    caller : str
        The public name that messages start with.

    Returns
    -------
    dict of str to str
        The templates by name; a single one is called "default". Empty if there are none.

    Raises
    ------
    ValueError
        A template is no text, or a file is not readable.
    """
    files = {DEFAULT: folder / FILE} if os.path.lexists(folder / FILE) else {}
    files |= {path.stem: path for path in sorted((folder / FOLDER).glob("*.jinja"))}
    if files:
        return {name: _read_text(path, caller) for name, path in files.items()}
    return parse_templates(settings.get("chat_template"), f"{caller}: {settings_path}: chat_template")


def parse_templates(value, where):
    """Turn a ``chat_template`` setting (text, list of named texts, or None) into a dict from name to text."""
    if value is None:
        return {}
    entries = [{"name": DEFAULT, "template": value}] if isinstance(value, str) else value
    if not isinstance(entries, list):
        raise ValueError(f"{where} must be a text or a list of named texts, not {shown(value)}")
    templates = {}
    for i, entry in enumerate(entries):
        name, text = (entry.get(key) if isinstance(entry, dict) else None for key in ("name", "template"))
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"{where}[{i}] must have a name and a template, both texts, not {shown(entry)}")
        if name in templates:
            raise ValueError(f"{where}: there are two templates called {brief(name)}")
        templates[name] = text
    return templates


def _read_text(path, caller):
    admit_file(path, caller)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{caller}: {path} is not UTF-8 text (byte {error.start})") from None


def choose_template(templates, asked, with_tools, method):
    """Return the template to use.

    Parameters
    ----------
    templates : dict of str to str
        Those of the tokenizer.
    asked : str or None
        A name, or the text of a template; None takes "tool_use" for tools, where there is one, then "default".
    with_tools : bool
        Whether tools are given.
    method : str
        The public name that messages start with.

    Returns
    -------
    str
        The text.
    """
    if asked is not None and not isinstance(asked, str):
        raise TypeError(f"{method}: template must be a name or a template, not {kind(asked)}")
    if asked in templates:
        return templates[asked]
    names = ", ".join(map(brief, list(templates)[:9]))
    if asked is not None:
        if "{" in asked:
            return asked
        raise ValueError(
            f"{method}: template {brief(asked)} is neither a name nor a template{did_you_mean(asked, templates)}; "
            f"the tokenizer has {names or 'none'}"
        )
    if not templates:
        raise ValueError(
            f"{method}: the tokenizer has no chat template (chat_template in tokenizer_config.json, or {FILE}); "
            "give one with template="
        )
    name = WITH_TOOLS if with_tools and WITH_TOOLS in templates else DEFAULT
    if name not in templates:
        raise ValueError(f"{method}: the tokenizer has no default template; choose one of {names}")
    return templates[name]


def render_template(source, variables, method):
    """Run a template on variables that were admitted; whatever goes wrong becomes one ``ValueError``."""
    try:
        from mojolearn.models import sandbox
    except ImportError:
        raise ImportError(
            f"{method}: the package jinja2 is not installed; `pip install jinja2` does it"
        ) from None
    try:
        text = sandbox.render(source, variables)
    except sandbox.Stopped as error:
        raise ValueError(f"{method}: the chat template was stopped: {reason(error)}") from error
    except sandbox.jinja2.exceptions.SecurityError as error:
        raise ValueError(
            f"{method}: the chat template was stopped: SecurityError: {reason(error)}"
        ) from error
    except sandbox.jinja2.TemplateSyntaxError as error:
        fault = f"line {error.lineno}: {reason(error.message or error)}"
        raise ValueError(f"{method}: the chat template is malformed: {fault}") from error
    except sandbox.jinja2.TemplateError as error:
        raise ValueError(f"{method}: the chat template refuses the messages: {reason(error)}") from error
    except Exception as error:  # a template can fail in every way that a program can
        fault = f"{type(error).__name__}: {reason(error)}"
        raise ValueError(f"{method}: the chat template failed: {fault}") from error
    if HALF.search(text):
        raise ValueError(f"{method}: the chat template failed: it writes half a surrogate pair")
    return text


def admit_messages(messages, method):
    """Check a conversation and return a copy that is plain data.

    Parameters
    ----------
    messages : list of dict
        Each with a "role", and what else the template reads, mostly "content".
    method : str
        The public name that messages of errors start with.

    Returns
    -------
    list of dict
        Without the entries that are None.

    Raises
    ------
    TypeError, ValueError
        It is something else, empty, or holds what is not text, number, list or dict.

    Examples
    --------
    >>> admit_messages([{"role": "user", "content": "Hello", "name": None}], "Tokenizer.render_chat")
    [{'role': 'user', 'content': 'Hello'}]
    """
    if not isinstance(messages, (list, tuple)):
        raise TypeError(f"{method}: messages must be a list of dicts, not {kind(messages)}")
    if not messages:
        raise ValueError(f"{method}: messages must hold at least one message, but it is empty")
    admitted = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise TypeError(f"{method}: {where} must be a dict with role and content, not {kind(message)}")
        if not isinstance(message.get("role"), str):
            raise ValueError(
                f"{method}: {where} must have a role, a text such as 'user'; it is {shown(message)}"
            )
        present = {name: value for name, value in message.items() if value is not None}
        admitted.append(plain_data(present, where, method))
    return admitted


def plain_data(value, where, method, depth=0):
    """Copy nested lists and dicts of texts, numbers, bools and None; anything else is a ``TypeError``."""
    if depth > DEEPEST:
        raise ValueError(f"{method}: {where.partition('[')[0]} is nested more than {DEEPEST} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return as_float(value)
    if isinstance(value, Mapping):
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            raise TypeError(f"{method}: {where} must have texts for keys, not {shown(strange)}")
        return {str(k): plain_data(v, f"{where}[{k!r}]", method, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(v, f"{where}[{i}]", method, depth + 1) for i, v in enumerate(value)]
    raise TypeError(f"{method}: {where} must be made of texts, numbers, lists and dicts, not {kind(value)}")


def admit_dicts(value, name, method):
    """Check a list of dicts that a template may list, such as descriptions of tools; None stays None."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{method}: {name} must be a list of dicts, not {kind(value)}")
    for i, entry in enumerate(value):
        if not isinstance(entry, Mapping):
            raise TypeError(f"{method}: {name}[{i}] must be a dict, not {kind(entry)}")
    return plain_data(value, name, method)
