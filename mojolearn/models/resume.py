"""``resume``: the method of `CausalLM` that goes on with a stream from a file."""

import json

import numpy as np

from mojolearn.archive import read_fields
from mojolearn.models.generation import TokenStream
from mojolearn.models.groups import Group
from mojolearn.models.logprobs import Logprobs
from mojolearn.models.plan import GenerationPlan
from mojolearn.models.suspend import FORMAT, tokenizer_hash
from mojolearn.saved_state import fill, match_head
from mojolearn.scalars import LARGEST

RESUME = "CausalLM.resume"


def resume(self, path, *, tokenizer=None, logits_processor=None):
    """Go on with a stream that `TokenStream.save` has written: with the tokens that it would have given.

    Parameters
    ----------
    path : str or path
        The file.
    tokenizer : Tokenizer, optional
        For a stream with stop strings; None takes the one that lies with the checkpoint.
    logits_processor : callable, optional
        That of the stream, which a file cannot hold; required if it had one.

    Returns
    -------
    TokenStream
        Its ``ids`` begin with the prompts. Where the stream had a state, it has a new one in its place: ``state``.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    TypeError, ValueError
        A field is missing or changed, or belongs to another model, another tokenizer or another version of the
        arithmetic; the message names file and field.

    Examples
    --------
    >>> import os, tempfile
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> lm = CausalLM.load(BUILT_IN)
    >>> stream = lm.stream([[0, 1818, 305]], 4)
    >>> next(stream), next(stream)
    (array([267]), array([670]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stream.save(os.path.join(folder, "half.npz"))
    ...     later = lm.resume(os.path.join(folder, "half.npz"))
    >>> [int(new[0]) for new in later], later.ids
    ([578, 282], [array([   0, 1818,  305,  267,  670,  578,  282])])
    """
    fields = read_fields(path, RESUME, "a saved stream")
    match_head(fields, FORMAT, "a stream", self)
    if fields.switch("logits_processor") != (logits_processor is not None):
        which = "none was given" if logits_processor is None else "one was given"
        raise ValueError(f"{fields.where}: the field logits_processor does not fit: {which}")
    lengths = fields.integers("lengths", (None,), 1, LARGEST)
    if not len(lengths):
        raise fields.wrong("lengths", "is empty", "a length for each row")
    B, total = len(lengths), sum(lengths.tolist())
    prompts = fields.integers("prompts", (total,), 0, self.vocab_size - 1)
    plan = GenerationPlan(
        self, B, fields.integer("max_new_tokens", 1), RESUME, **_options(fields), tokenizer=tokenizer,
        logits_processor=logits_processor,
    )  # fmt: skip
    fields.match("tokenizer", tokenizer_hash(plan), "the tokenizer")
    rows = np.split(prompts, np.cumsum(lengths)[:-1])
    new = fields.integers("new", (B, None), 0, self.vocab_size - 1)
    left = plan.max_new_tokens - new.shape[1]
    if left < 0:
        raise fields.wrong("new", f"has {new.shape[1]} tokens", f"at most {plan.max_new_tokens}")
    groups = []
    while f"group{len(groups)}.rows" in fields:
        groups.append(_group(self, fields, f"group{len(groups)}", B, left))
    if sorted(row for group in groups for row in group.rows) != list(range(B)):
        raise ValueError(f"{fields.where}: the fields rows of the groups do not name each of {B} rows once")
    saved = None if plan.logprobs is None else _logprobs(fields, B, plan)
    state = None
    if fields.switch("keeps_state"):
        if len(groups) > 1:
            raise fields.wrong("keeps_state", "is True", "False, as the prompts have several lengths")
        state = self.allocate_state(B, groups[0].state.max_tokens)
    fields.finish()
    return TokenStream._restored(self, plan, RESUME, rows, groups, state, new.T, saved)


def _options(fields):
    """The options of the generation, as they were given."""
    text = fields.text("options")
    try:
        options = json.loads(text)
        if options.keys() & {"tokenizer", "logits_processor"}:
            raise ValueError
        if "logit_bias" in options:
            options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    except (AttributeError, ValueError, RecursionError):
        raise fields.wrong("options", "is damaged", "a table of options") from None
    return options


def _logprobs(fields, B, plan):
    """What was told of the tokens so far, with room for all of them."""
    shape = (B, plan.max_new_tokens)
    return Logprobs(
        fields.array("logprobs.chosen", np.float32, shape),
        fields.array("logprobs.top_ids", np.int64, (*shape, plan.logprobs)),
        fields.array("logprobs.top", np.float32, (*shape, plan.logprobs)),
    )


def _group(lm, fields, name, B, left):
    """Rebuild one group of rows with its state."""
    rows = fields.integers(f"{name}.rows", (None,), 0, B - 1).tolist()
    if not rows:
        raise fields.wrong(f"{name}.rows", "is empty", "the places of its rows")
    room = fields.integer(f"{name}.max_tokens", 1)
    position = fields.integer(f"{name}.position", 1, room)
    if position + left - 1 > room:  # the last token may be one that is given out and not run
        raise fields.wrong(f"{name}.max_tokens", f"is {room}", f"room for {position + left - 1} tokens")
    lm._check_positions(position + left, RESUME)
    kept = {}
    for layer, block in enumerate(lm.blocks):
        o, prefix = block.options, f"{name}.layer{layer}"
        shape = (len(rows), o.n_kv_heads, min(position, o.window or position), o.head_dim)
        kept[layer] = [fields.finite(f"{prefix}.{each}", shape) for each in ("keys", "values")]
    state = lm.allocate_state(len(rows), room)
    for layer, block in enumerate(state.blocks):
        block.cached_tokens = position
        fill(block, *kept[layer])
    group = Group(rows, None, state, position)
    if f"{name}.pending" in fields:
        group.pending = fields.integers(f"{name}.pending", (len(rows),), 0, lm.vocab_size - 1)
    elif f"{name}.logits" in fields:
        group.logits = fields.array(f"{name}.logits", np.float32, (len(rows), lm.vocab_size))
    else:
        raise fields.wrong(f"{name}.pending", "is missing", f"this or {name}.logits")
    return group
