"""Saved states and streams for fuzzing: damaged ones, and ones whose checksums somebody has made right again."""

import copy
import json
from functools import cache, partial

import numpy as np
import toy_models
from support import make_block

from mojolearn import TransformerState, archive
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.model_state import CausalLMState

ENDINGS = (".npz", ".safetensors")
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 2**16, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
FLOATS = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45)
TEXTS = ("", " ", "a\nb", "x" * 3000, "\x1b[31m", "é", "[" * 5000, '{"seed": NaN}')
NAMES = ("a\nb", "x" * 300, "é", "group2.rows", "layer9.keys", "\x1b[31m")
OPTIONS = (
    "seed",
    "greedy",
    "top_k",
    "eos_token_id",
    "logit_bias",
    "stop",
    "logprobs",
    "pad_token_id",
    "x" * 5000,
)
VALUES = (
    0,
    -1,
    2**63,
    2**64,
    1e308,
    float("nan"),
    None,
    True,
    "",
    "x" * 999,
    [],
    [[1]],
    {},
    {"a": 1},
    {"1": [2]},
)


@cache
def _owners(folder, window):
    """A block and a model that states belong to."""
    more = {"model_type": "mistral", "sliding_window": window} if window else {}
    lm = CausalLM.load(toy_models.write_model(folder / f"owner{window}", **more))
    return make_block(32, 48, n_heads=4, n_kv_heads=2, window=window), lm


@cache
def _saved(folder):
    """Files of every kind by name: their bytes and their fields."""
    found = {}
    for window in (0, 4):
        block, lm = _owners(folder, window)
        state, whole, kept = block.allocate_state(2, 8), lm.allocate_state(2, 8), lm.allocate_state(2, 16)
        block.forward(np.full((2, 5, 32), 0.125, np.float32), state)
        lm.forward([[1, 2, 3, 4, 5]] * 2, whole)
        drawn = lm.stream([[5, 6], [1], [2, 2]], 6, seed=1, greedy=False, eos_token_id=[3], logprobs=2)
        ruled = lm.stream([[5, 6], [1, 2]], 6, state=kept, repetition_penalty=1.2, logit_bias={3: 1.0})
        next(drawn), next(ruled)
        ways = {
            "block": partial(state.save, model=block),
            "whole": partial(whole.save, model=lm),
            "drawn": drawn.save,
            "ruled": ruled.save,
        }
        for kind, save in ways.items():
            for ending in ENDINGS:
                path = folder / f"{kind}{window}{ending}"
                save(path)
                found[path.name] = (
                    path.read_bytes(),
                    archive.read_fields(path, "fuzzing", "a saved file")._left,
                )
    return found


def make_saved(rng, folder, damaged):
    """Write a hostile file into the folder; `damaged` changes bytes. Its name tells what it was."""
    files = _saved(folder)
    name = rng.choice(sorted(files))
    data, fields = files[name]
    path = folder / "case" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if rng.random() < 0.3:
        path.write_bytes(damaged(rng, data))
        return path
    fields = dict(copy.deepcopy(fields))
    for _ in range(rng.choice((1, 1, 2))):
        _change(rng, fields)
    try:
        archive.write_fields(path, fields, "fuzzing")
    except (KeyError, ValueError):  # what a format cannot hold
        path.write_bytes(damaged(rng, data))
    return path


def _change(rng, fields):
    name = rng.choice(sorted(fields))
    value, action = np.array(fields[name]), rng.randrange(9)
    if action == 0:
        del fields[name]
    elif action == 1:
        fields[rng.choice(NAMES)] = fields.pop(name)
    elif action == 2:
        fields[name] = fields[rng.choice(sorted(fields))]
    elif action == 3:
        fields[name] = np.asarray(rng.choice((True, 0, [], [[]], [1.5], ["a"], np.float32(1), *TEXTS)))
    elif action == 4 and value.ndim:
        fields[name] = rng.choice((value[:0], value[..., :1], value.reshape(-1), value.T, value[None]))
    elif name == "options" and value.dtype.kind == "U":
        try:
            options = json.loads(str(value))
            options[rng.choice((*OPTIONS, *options))] = rng.choice(VALUES)
        except (TypeError, ValueError):  # it was changed before
            options = None
        fields[name] = np.asarray(json.dumps(options))
    elif value.dtype.kind in "if" and value.size:
        number = rng.choice(NUMBERS if value.dtype.kind == "i" else FLOATS)
        value.flat[slice(None) if action == 5 else rng.randrange(value.size)] = number
        fields[name] = value
    elif value.dtype.kind == "b":
        fields[name] = ~value
    else:
        fields[name] = np.asarray(rng.choice(TEXTS))


def check_saved(path, judge):
    """Read a file for its owner and for nobody in particular, and go on from it."""
    kind, window = path.stem[:-1], int(path.stem[-1])
    block, lm = _owners(path.parent.parent, window)
    if kind == "block":
        judge(lambda: TransformerState.load(path), path)
        state, refusal = judge(lambda: TransformerState.load(path, block), path)
        x = None if state is None else np.full((state.batch_size, 1, 32), 0.125, np.float32)
        go_on = lambda: block.forward(x, state)  # noqa: E731
    elif kind == "whole":
        judge(lambda: CausalLMState.load(path), path)
        state, refusal = judge(lambda: CausalLMState.load(path, lm), path)
        go_on = lambda: lm.forward([[1]] * state.blocks[0].batch_size, state)  # noqa: E731
    else:
        state, refusal = judge(lambda: lm.resume(path), path)
        go_on = lambda: [next(state, None) for _ in range(3)]  # noqa: E731
    if state is not None:
        judge(go_on, path)
    return refusal
