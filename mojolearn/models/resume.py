"""``resume``: the method of `CausalLM` that goes on with a stream from a file."""

import json

import numpy as np

from mojolearn._version import NUMERICS_VERSION
from mojolearn.models.generation import Group, TokenStream
from mojolearn.models.logprobs import Logprobs
from mojolearn.models.plan import GenerationPlan
from mojolearn.models.suspend import FORMAT, RESUME, _tokenizer_hash, _used, read_fields


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
    fields = _Fields(read_fields(path, RESUME), f"{RESUME}: {path}")
    fields.match("format", FORMAT, "this version of mojolearn")
    fields.match("numerics", NUMERICS_VERSION, "this version of mojolearn")
    fields.match("model", self.fingerprint, "this model")
    if bool(fields.take("logits_processor")) != (logits_processor is not None):
        which = "none was given" if logits_processor is None else "one was given"
        raise ValueError(f"{fields.where}: the field logits_processor does not fit: {which}")
    lengths, prompts = fields.take("lengths"), fields.take("prompts")
    options = json.loads(str(fields.take("options")))
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): value for token, value in options["logit_bias"].items()}
    plan = GenerationPlan(
        self, len(lengths), int(fields.take("max_new_tokens")), RESUME, **options, tokenizer=tokenizer,
        logits_processor=logits_processor,
    )  # fmt: skip
    fields.match("tokenizer", _tokenizer_hash(plan), "the tokenizer")
    rows = np.split(prompts, np.cumsum(lengths)[:-1])
    new = fields.take("new")
    left = plan.max_new_tokens - new.shape[1]
    saved = None
    if plan.logprobs is not None:
        saved = Logprobs(*(fields.take(f"logprobs.{name}") for name in Logprobs._fields))
    groups = []
    while f"group{len(groups)}.rows" in fields.left:
        groups.append(_group(self, fields, f"group{len(groups)}", left))
    state = None
    if fields.take("keeps_state"):
        (group,) = groups
        state = self.allocate_state(len(rows), group.state.max_tokens)
    return TokenStream._restored(self, plan, RESUME, rows, groups, state, new.T, saved)


class _Fields:
    """The fields of a file, taken one by one."""

    def __init__(self, fields, where):
        self.left, self.where = fields, where

    def take(self, name):
        if name not in self.left:
            raise ValueError(f"{self.where}: the field {name} is missing")
        return self.left.pop(name)

    def match(self, name, wanted, whose):
        found = str(self.take(name))
        if found != wanted:
            raise ValueError(
                f"{self.where}: the field {name} is {found!r}, but that of {whose} is {wanted!r}"
            )


def _group(lm, fields, name, left):
    """Rebuild one group of rows with its state."""
    rows = fields.take(f"{name}.rows").tolist()
    position, room = (int(fields.take(f"{name}.{field}")) for field in ("position", "max_tokens"))
    lm._check_positions(position + left, RESUME)
    state = lm.allocate_state(len(rows), room)
    for layer, block in enumerate(state.blocks):
        used = _used(block, position)
        block._k[:used] = fields.take(f"{name}.layer{layer}.keys")
        block._v[:used] = fields.take(f"{name}.layer{layer}.values")
        block.cached_tokens = position
    group = Group(rows, None, state, position)
    if f"{name}.pending" in fields.left:
        group.pending = fields.take(f"{name}.pending")
    else:
        group.logits = fields.take(f"{name}.logits")
    return group
