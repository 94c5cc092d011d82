"""Which layers of a model have the sliding window, and which turn their queries and keys."""

from mojolearn.scalars import counted

FULL, SLIDING = "full_attention", "sliding_attention"


def read_layer_types(fields, family, default_window, n_layers):
    """Take the fields that tell layers apart.

    Parameters
    ----------
    fields : Fields
        Those of the config.
    family : Family
        The row of the model.
    default_window : int or None
        The window of a file that does not speak of it.
    n_layers : int
        Number of layers.

    Returns
    -------
    windows : list of int
        Of each layer; 0 is full attention.
    turned : list of bool
        Whether a layer turns its queries and keys.

    Raises
    ------
    ValueError
        A field is malformed, or says what the family does not do.
    """
    turned = (
        _listed_as_turned(fields, n_layers) if family.rotary and family.rotary.layers == "listed" else None
    )
    window = _window(fields, family.windows, default_window)
    kinds = _by_rule(fields, family.windows, window, n_layers, turned)
    kinds = _by_list(fields, family.windows, window, kinds)
    if SLIDING in kinds and not window:
        raise fields.wrong("sliding_window", None, "an integer", "layers of this family have a window")
    windows = [window if kind == SLIDING else 0 for kind in kinds]
    if turned is None:
        every = not family.rotary or family.rotary.layers == "all"
        every = every or (family.rotary.layers == "window or none has one" and not window)
        turned = [every or w > 0 for w in windows]
    return windows, turned


def _listed_as_turned(fields, n_layers):
    interval = fields.integer("no_rope_layer_interval", 4)
    listed = fields.take("no_rope_layers", [])
    if not isinstance(listed, list) or any(entry not in (0, 1) for entry in listed):
        raise fields.wrong("no_rope_layers", listed, "a list of 1 (layers with rotation) and 0 (without)")
    if listed and len(listed) != n_layers:
        raise ValueError(
            f"{fields.where}: no_rope_layers must have one entry per layer, num_hidden_layers = {n_layers}, "
            f"but it has {counted(len(listed), 'entry', 'entries')}"
        )
    return [bool(entry) for entry in listed] or [(i + 1) % interval != 0 for i in range(n_layers)]


def _window(fields, rule, default):
    """Return the window of those layers that have one; 0: there is none."""
    if rule.rule == "none":
        return 0
    on = fields.boolean("use_sliding_window") if rule.switch else True
    default = 0 if default is None or fields.is_null("sliding_window") else default
    return fields.integer("sliding_window", default) * on


def _by_rule(fields, rule, window, n_layers, turned):
    """Return the kinds of layers that the family has where they are not listed."""
    if not window and (rule.rule != "pattern" or rule.optional):
        for name in (rule.pattern, f"_{rule.pattern}") if rule.pattern else ():
            fields.take(name)
        return [FULL] * n_layers
    every = _pattern(fields, rule) if rule.rule == "pattern" else 0
    late = fields.integer("max_window_layers", 28, minimum=0) if rule.rule == "late" else 0
    slides = {
        "all": lambda i: True,
        "listed": lambda i: True,
        "late": lambda i: i >= late,
        "pattern": lambda i: (i + 1) % every != 0,
        "unturned": lambda i: not turned[i],
    }[rule.rule]
    return [SLIDING if slides(i) else FULL for i in range(n_layers)]


def _pattern(fields, rule):
    """Return n, of which every n-th layer sees everything."""
    if rule.pattern is None:
        return rule.every
    if fields.left.get("layer_types") is not None:  # then nobody reads the pattern, which may be in letters
        fields.take(rule.pattern)
        fields.take(f"_{rule.pattern}")
    every = fields.integer(rule.pattern, rule.every)
    echo = fields.integer(f"_{rule.pattern}", every)
    if echo != every:
        raise fields.wrong(f"_{rule.pattern}", echo, f"{rule.pattern} = {every}")
    return every


def _by_list(fields, rule, window, kinds):
    """Return the kinds that ``layer_types`` lists, or else `kinds`."""
    listed = fields.take("layer_types")
    if listed is None:
        return kinds
    if not isinstance(listed, list):
        raise fields.wrong("layer_types", listed, "a list with one entry per layer")
    if len(listed) != len(kinds):
        raise ValueError(
            f"{fields.where}: layer_types must have one entry per layer, num_hidden_layers = {len(kinds)}, "
            f"but it has {counted(len(listed), 'entry', 'entries')}"
        )
    for i, kind in enumerate(listed):
        if kind not in (FULL, SLIDING):
            raise fields.wrong(f"layer_types[{i}]", kind, f"{FULL} or {SLIDING}")
        if kind == SLIDING and not window:
            raise ValueError(
                f"{fields.where}: layer_types[{i}] is {SLIDING}, but the model has no sliding window"
            )
        if kind == FULL and window and rule.rule == "all":
            raise ValueError(
                f"{fields.where}: layer_types[{i}] is {FULL}, but in this family every layer has the "
                f"sliding window, {window}"
            )
    return listed
