"""A stream in a file: what it takes to go on with the same bits, in this process or another, here or elsewhere."""

import json

import numpy as np

from mojolearn.archive import admit_target, write_fields
from mojolearn.claims import Claim
from mojolearn.saved_state import head, slots

FORMAT = "mojolearn stream 1"
SAVE = "TokenStream.save"


def save_stream(stream, path):
    """Write a stream into a file; see `TokenStream.save`."""
    target = admit_target(path, SAVE)
    if not stream._open:
        raise ValueError(f"{SAVE}: {_why_over(stream)}; there is nothing to resume")
    with Claim([block for group in stream._groups for block in group.state.blocks], SAVE):
        write_fields(target, _fields(stream), SAVE)


def _why_over(stream):
    """What has ended a stream that is no longer open."""
    if not stream.max_new_tokens:
        return "the stream was asked for no tokens (max_new_tokens=0)"
    if None in stream.finish_reasons:
        return "the stream was closed before its end"
    reasons = " and ".join(repr(reason) for reason in sorted(set(stream.finish_reasons)))
    return f"the stream has ended, its rows by {reasons}"


def _fields(stream):
    """Everything a stream is made of, by name."""
    plan, lm = stream._plan, stream._lm
    asked = {
        name: value for name, value in plan.options.items() if name not in ("tokenizer", "logits_processor")
    }
    asked |= {"seed": plan.seed, "logit_bias": plan.rules.logit_bias}
    asked = {name: value for name, value in asked.items() if value is not None}
    fields = head(FORMAT, lm) | {
        "tokenizer": tokenizer_hash(plan),
        "options": json.dumps(asked, default=_plain, sort_keys=True),
        "max_new_tokens": plan.max_new_tokens,
        "logits_processor": plan.rules.logits_processor is not None,
        "keeps_state": stream.state is not None,
        "lengths": np.array([len(prompt) for prompt in stream._prompts]),
        "prompts": np.concatenate(stream._prompts),
        "new": stream._new[:, : stream._count],
    }
    if plan.logprobs is not None:
        fields |= {f"logprobs.{name}": array for name, array in stream._logprobs._asdict().items()}
    for g, group in enumerate(stream._groups):
        group.check_whole(SAVE)
        group.settle()
        fields |= {f"group{g}.{name}": value for name, value in _group_fields(group).items()}
    return fields


def _group_fields(group):
    fields = {"rows": group.rows, "position": group.position, "max_tokens": group.state.max_tokens}
    fields |= {"pending": group.pending} if group.logits is None else {"logits": group.logits}
    for layer, block in enumerate(group.state.blocks):
        for name, flat in (("keys", block._k), ("values", block._v)):
            fields[f"layer{layer}.{name}"] = slots(block, flat, group.position)
    return fields


def tokenizer_hash(plan):
    """Only a stream with stop strings depends on its tokenizer."""
    return plan.tokenizer.fingerprint if any(plan.stop) else ""


def _plain(value):
    """Options as users may give them, in words of JSON."""
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray) else list(value)
