"""Faults of sliding windows that users of other libraries reported, tried here (docs/trust.md, group A)."""

import numpy as np
import pytest
from support import bits, make_block, uniform
from toy_models import write_model

from mojolearn import CausalLM

W = 4
SHAPE = {"d_model": 32, "intermediate": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8}

# Every way of cutting ends with a call of several tokens: on an empty, a part-full, a full and a wrapped ring.
CUTS = [[11], [5, 3], [2, 9], [4, 7], [3, 3, 2], [6, 5]]


@pytest.fixture
def block():
    return make_block(**SHAPE, window=W)


def by_chunks(block, x, chunks, state=None):
    """Outputs of x (B, L, d_model) in calls of so many tokens."""
    state = block.allocate_state(x.shape[0], x.shape[1]) if state is None else state
    parts = np.split(x, np.cumsum(chunks)[:-1], axis=1)
    return np.concatenate([block.forward(part, state) for part in parts], axis=1)


def by_session(block, x, chunks, state=None):
    """The same in a decode session."""
    state = block.allocate_state(x.shape[0], x.shape[1]) if state is None else state
    parts = np.split(x, np.cumsum(chunks)[:-1], axis=1)
    with block.decode_session(state) as session:
        return np.concatenate([session.forward(part) for part in parts], axis=1)


WAYS = pytest.mark.parametrize("way", [by_chunks, by_session])


@WAYS
@pytest.mark.parametrize("chunks", CUTS, ids=str)
@pytest.mark.parametrize("window", [0, 1, W])
def test_no_call_lets_a_token_see_later_ones(rng, way, chunks, window):
    """Each token of the last call is changed in turn: the rows before it keep their bits."""
    block = make_block(**SHAPE, window=window)
    x = uniform(rng, (1, sum(chunks), 32))
    wanted = bits(way(block, x, chunks))
    for t in range(sum(chunks[:-1]), sum(chunks)):
        changed = x.copy()
        changed[:, t] = uniform(rng, 32, 5.0)
        y = bits(way(block, changed, chunks))
        np.testing.assert_array_equal(y[:, :t], wanted[:, :t])
        assert (y[:, t] != wanted[:, t]).any()


@WAYS
@pytest.mark.parametrize("chunks", [[3, 2], [2, 3], [1] * 5, [5]], ids=str)
def test_a_huge_value_is_out_of_sight_after_the_window(block, rng, way, chunks):
    """The value of token 0 is made 10 000 times as large in the ring: rows up to W - 1 see it, later ones do not."""
    x = uniform(rng, (2, 8, 32))
    wanted = bits(block(x))
    state = block.allocate_state(2, 8)
    block.forward(x[:, :3], state)
    state.v_cache.reshape(2, 2, W, 8)[:, :, 0] *= 1e4
    y = bits(way(block, x[:, 3:], chunks, state))
    assert (y[:, 0] != wanted[:, 3]).any(axis=-1).all()
    np.testing.assert_array_equal(y[:, 1:], wanted[:, 4:])


@pytest.mark.parametrize("with_state", [False, True])
def test_one_call_has_the_window_too(block, rng, with_state):
    """Up to W tokens there is nothing to hide; from then on every row differs from full attention."""
    x = uniform(rng, (1, 9, 32))
    full = make_block(**SHAPE)(x)
    y = block.forward(x, block.allocate_state(1, 9) if with_state else None)
    np.testing.assert_array_equal(bits(y[:, :W]), bits(full[:, :W]))
    assert (bits(y[:, W:]) != bits(full[:, W:])).any(axis=-1).all()


def test_room_smaller_than_the_window_is_kept_to(block, rng):
    """The ring has W slots whatever max_tokens is, but a call for more tokens is refused before it has begun."""
    x = uniform(rng, (1, 7, 32))
    state = block.allocate_state(1, 2)
    before = state.copy()
    with pytest.raises(ValueError, match=r"holds 0 tokens and has room for max_tokens=2; 7 more do not fit"):
        block.forward(x, state)
    assert state == before
    np.testing.assert_array_equal(bits(block.forward(x[:, :2], state)), bits(block(x)[:, :2]))


def test_nothing_is_shifted_when_the_room_is_used_up(block, rng):
    """A ring could go on; the state says what it holds, what was asked and what to do, and stays as it was."""
    x = uniform(rng, (1, 9, 32))
    state = block.allocate_state(1, 8)
    block.forward(x[:, :8], state)
    before = state.copy()
    message = (
        r"holds 8 tokens and has room for max_tokens=8; 1 more do not fit\. Allocate a state with a larger"
    )
    with pytest.raises(ValueError, match=message):
        block.step(x[:, 8], state)
    with block.decode_session(state) as session, pytest.raises(ValueError, match=message):
        session.step(x[:, 8])
    assert state == before


@WAYS
def test_a_used_ring_begins_anew(block, rng, way):
    """With cached_tokens set to 0 nothing of the first text is left to see."""
    x = uniform(rng, (2, 9, 32))
    state, fresh = block.allocate_state(2, 20), block.allocate_state(2, 20)
    block.forward(uniform(rng, (2, 11, 32)), state)
    state.cached_tokens = 0
    for first, last in ((0, 2), (2, 9)):
        part = x[:, first:last]
        y = way(block, part, [last - first], state)
        np.testing.assert_array_equal(bits(y), bits(way(block, part, [last - first], fresh)))
        np.testing.assert_array_equal(bits(state.keys()), bits(fresh.keys()))
        np.testing.assert_array_equal(bits(state.values()), bits(fresh.values()))


@WAYS
def test_a_wrapped_ring_goes_through_a_file(block, rng, way, tmp_path):
    x = uniform(rng, (1, 14, 32))
    state = block.allocate_state(1, 14)
    block.forward(x[:, :11], state)
    np.savez(tmp_path / "state.npz", k=state.k_cache, v=state.v_cache, n=state.cached_tokens)
    saved, loaded = np.load(tmp_path / "state.npz"), block.allocate_state(1, 14)
    loaded.k_cache[:], loaded.v_cache[:], loaded.cached_tokens = saved["k"], saved["v"], int(saved["n"])
    assert loaded == state
    np.testing.assert_array_equal(bits(way(block, x[:, 11:], [1, 1, 1], loaded)), bits(block(x)[:, 11:]))


def test_rows_of_several_lengths_have_the_window(block, rng):
    lengths = [9, 3, 6]
    x = uniform(rng, (3, 9, 32))
    y = block.forward(x, lengths=lengths)
    for row, n in enumerate(lengths):
        alone = by_chunks(block, x[row : row + 1, :n], [1] * n)
        np.testing.assert_array_equal(bits(y[row, :n]), bits(alone[0]))


# One value of each option other than its default. None is found to be unsupported at token W + 1.
OTHERS = [
    {"rope_theta": 500.0},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 6}},
    {"rope_dim": 4},
    {"rope_dim": 0},
    {"rope_interleaved": True},
    {"max_positions": 11},
    {"qkv_bias": True, "o_bias": True},
    {"qkv_clip": 0.5},
    {"norm": "layernorm", "norm_bias": True},
    {"norm_eps": 1e-3},
    {"norm_placement": "both"},
    {"residual": "parallel", "residual_multiplier": 0.5},
    {"mlp": "gelu", "mlp_bias": True},
    {"qk_norm": True},
    {"qk_norm": "layernorm", "qk_norm_bias": True},
    {"attn_softcap": 5.0},
    {"attn_scale": 0.3},
    {"weight_format": "bfloat16"},
    {"weight_format": "float16"},
]


@pytest.mark.parametrize("option", OTHERS, ids=str)
def test_a_window_goes_with_every_other_option(rng, option):
    block = make_block(**SHAPE | option, window=W)
    x = uniform(rng, (1, 11, 32))
    wanted = bits(by_chunks(block, x, [11]))
    np.testing.assert_array_equal(bits(by_chunks(block, x, [1] * 11)), wanted)
    np.testing.assert_array_equal(bits(by_session(block, x, [1] * 11)), wanted)
    np.testing.assert_array_equal(bits(by_session(block, x, [3, 6, 2])), wanted)


def test_the_table_above_names_every_option():
    options = make_block(**SHAPE).options.as_dict()
    sizes = {"d_model", "intermediate_size", "n_heads", "n_kv_heads", "head_dim", "window"}
    assert set().union(*OTHERS) == set(options) - sizes


# --- whole models ------------------------------------------------------------------------------------------

MIXED = {
    "model_type": "qwen2",
    "use_sliding_window": True,
    "sliding_window": W,
    "max_window_layers": 1,  # layer 0 sees everything, layer 1 has the window
}
MODELS = {"windows": {"model_type": "mistral", "sliding_window": W}, "mixed": MIXED}


@pytest.fixture(scope="module", params=MODELS)
def lm(request, tmp_path_factory):
    return CausalLM.load(write_model(tmp_path_factory.mktemp("toy"), **MODELS[request.param]))


def test_prompt_and_new_tokens_cross_the_window(lm):
    """A prompt of 3 and 6 new tokens: the logits of each step are those of the text so far, in one call."""
    ids = [[7, 3, 11]]
    state = lm.allocate_state(1, 9)
    logits = lm.forward(ids, state)[:, -1]
    for _ in range(6):
        np.testing.assert_array_equal(bits(logits), bits(lm.forward(ids)[:, -1]))
        ids = [[*ids[0], int(logits[0].argmax())]]
        logits = lm.step([ids[0][-1]], state)
    assert lm.generate([ids[0][:3]], 6).tolist() == ids


def test_all_layers_hold_what_the_model_says(lm):
    state = lm.allocate_state(2, 12)
    for held, n in ((3, 3), (4, 1), (9, 5), (10, 1)):
        lm.forward([[1] * n, [2] * n], state)
        assert state.cached_tokens == state.position == held
        for layer, block in enumerate(state.blocks):
            assert block.cached_tokens == held, layer
            kept = min(held, block.window or held)
            assert block.keys().shape == block.values().shape == (2, 2, kept, 4)


def test_branches_of_a_wrapped_ring_are_those_of_cold_runs(lm):
    """Two continuations of one prefix, step by step in turn."""
    prefix, branches = [5, 6, 7, 8, 9, 1], ([3, 4, 2, 9, 9], [30, 31, 32, 33, 34])
    state = lm.allocate_state(1, 12)
    lm.forward([prefix], state)
    states = [state.copy(), state]
    for t in range(5):
        for branch, own in zip(branches, states, strict=True):
            warm = lm.step([branch[t]], own)
            cold = lm.forward([prefix + branch[: t + 1]])[:, -1]
            np.testing.assert_array_equal(bits(warm), bits(cold))
