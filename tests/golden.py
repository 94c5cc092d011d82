"""Loader of the golden cases under ``tests/data/golden``, made by the public release mojolearn-core 0.8.62.

A case is one ``.npz`` file: a block (weights and options), perhaps a preset state, and a few calls with the
outputs and the buffers that the release produced.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "data" / "golden"


@dataclass(frozen=True)
class Call:
    """One call of the case: what went in and what came out.

    ``kind`` is "forward", "step" (``x`` is ``(B, 1, d_model)``) or "lengths" (a ragged forward, no state).
    ``cached_tokens`` and the four arrays describe the state after the call; without a state they are None.
    """

    kind: str
    x: np.ndarray
    y: np.ndarray
    lengths: list | None
    cached_tokens: int | None
    k_cache: np.ndarray | None
    v_cache: np.ndarray | None
    keys: np.ndarray | None
    values: np.ndarray | None


@dataclass(frozen=True)
class Case:
    """One golden file. ``max_tokens`` is None without a state, ``init_*`` are None without a preset state."""

    name: str
    note: str
    options: dict
    weights: dict
    batch: int
    max_tokens: int | None
    init_cached_tokens: int | None
    init_k_cache: np.ndarray | None
    init_v_cache: np.ndarray | None
    calls: list

    @property
    def d_model(self):
        return len(self.weights["input_layernorm.weight"])

    @property
    def intermediate_size(self):
        return len(self.weights["up_proj.weight"])


def load_case(path):
    """Read the golden case at `path` (an ``.npz`` file, pathlib or str) and return a `Case`."""
    path = Path(path)
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    meta = json.loads(str(arrays.pop("meta")))
    calls = [
        Call(
            kind=call["kind"],
            x=arrays[f"call{i}/x"],
            y=arrays[f"call{i}/y"],
            lengths=call.get("lengths"),
            cached_tokens=call.get("cached_tokens_after"),
            **{name: arrays.get(f"call{i}/{name}") for name in ("k_cache", "v_cache", "keys", "values")},
        )
        for i, call in enumerate(meta["calls"])
    ]
    return Case(
        name=path.stem,
        note=meta["note"],
        options=meta["options"],
        weights={name.removeprefix("w/"): a for name, a in arrays.items() if name.startswith("w/")},
        batch=meta["batch"],
        max_tokens=meta["max_tokens"],
        init_cached_tokens=meta.get("init_cached_tokens"),
        init_k_cache=arrays.get("init/k_cache"),
        init_v_cache=arrays.get("init/v_cache"),
        calls=calls,
    )


def replay(case, *, in_session=False):
    """Run a case through a block; yields each call with its results by the names of `Call`'s arrays.

    in_session: every call goes through one decode session, synced after each.
    """
    from mojolearn import TransformerBlock

    block = TransformerBlock(case.weights, **case.options)
    state = None
    if case.max_tokens is not None:
        state = block.allocate_state(case.batch, case.max_tokens)
        if case.init_cached_tokens is not None:
            state.k_cache[:], state.v_cache[:] = case.init_k_cache, case.init_v_cache
            state.cached_tokens = case.init_cached_tokens
    session = block.decode_session(state) if in_session else None
    for call in case.calls:
        if session is not None:
            results = {"y": getattr(session, call.kind)(call.x)}
            session.sync_state()
        elif call.kind == "lengths":
            results = {"y": block.forward(call.x, lengths=call.lengths)}
        else:
            results = {"y": getattr(block, call.kind)(call.x, state)}
        if state is not None:
            assert state.cached_tokens == call.cached_tokens
            results |= {"k_cache": state.k_cache, "v_cache": state.v_cache}
            results |= {"keys": state.keys(), "values": state.values()}
        yield call, results


def case_paths(folder):
    """Sorted paths of the cases in `folder`: "open" or "subnormal"; a folder without cases is an error."""
    paths = sorted((GOLDEN / folder).glob("*.npz"))
    if not paths:
        raise FileNotFoundError(f"no golden cases in {GOLDEN / folder}")
    return paths
