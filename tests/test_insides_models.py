"""Looking inside a whole model, and walking through it by hand: the bits of forward, under names that say where."""

from pathlib import Path

import numpy as np
import pytest
from support import bits
from toy_models import write_model

from mojolearn import CausalLM
from mojolearn.insides import HIDDEN
from mojolearn.models import BUILT_IN

DATA = Path(__file__).parent / "data" / "models"
EVERYTHING = {"return_hidden": True, "return_attention": True}
FOLDERS = [pytest.param(path.parent, id=path.parent.name) for path in sorted(DATA.glob("*/config.json"))]


@pytest.fixture(scope="module")
def lm():
    return CausalLM.load(BUILT_IN)


@pytest.fixture
def ids(rng, lm):
    return rng.integers(0, lm.vocab_size, (2, 9))


def walk(lm, ids, states=None, position=0):
    """What CausalLM.forward does, by hand."""
    x = lm.embed(ids, position=position)
    for layer, block in enumerate(lm.blocks):
        x = block.forward(x, None if states is None else states.blocks[layer])
    return lm.unembed(x)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_family(folder):
    """No bit changes, layer by layer too, and a loop by hand gives the model's bits: with and without a state."""
    lm = CausalLM.load(folder)
    ids = np.random.default_rng(0).integers(0, lm.vocab_size, (2, 7))
    wanted = bits(lm.forward(ids))
    logits, hidden, attention = lm.forward(ids, **EVERYTHING)
    np.testing.assert_array_equal(bits(logits), wanted)
    np.testing.assert_array_equal(bits(walk(lm, ids)), wanted)

    n = lm.n_layers
    names = ["embed", *(f"block_{i}" for i in range(n)), "final_norm"]
    assert list(hidden) == (names if lm._norm is not None else names[:-1])
    assert all(h.shape == (2, 7, lm.d_model) for h in hidden.values())
    x = lm.embed(ids)
    for i, block in enumerate(lm.blocks):
        np.testing.assert_array_equal(bits(x), bits(hidden[names[i]]))
        x, inner, weights = block.forward(x, return_hidden=True, return_attention=True)
        np.testing.assert_array_equal(bits(weights), bits(attention[i]))
        _, asked = lm.forward(ids, return_hidden=[f"block_{i}.{name}" for name in HIDDEN])
        for name in HIDDEN:
            np.testing.assert_array_equal(bits(asked[f"block_{i}.{name}"]), bits(inner[name]))
    np.testing.assert_array_equal(bits(lm.unembed(hidden[names[n]])), wanted)
    if lm._norm is not None:
        np.testing.assert_array_equal(bits(lm.unembed(hidden["final_norm"], norm=False)), wanted)

    one, other = lm.allocate_state(2, 7), lm.allocate_state(2, 7)
    for first, last in ((0, 4), (4, 5), (5, 7)):
        logits, hidden, attention = lm.forward(ids[:, first:last], one, **EVERYTHING)
        by_hand = walk(lm, ids[:, first:last], other, position=first)
        np.testing.assert_array_equal(bits(by_hand), bits(logits))
        assert one == other
        assert [a.shape for a in attention.values()] == [
            (2, b.n_heads, last - first, last) for b in lm.blocks
        ]


def test_names_before_and_after_the_final_norm(lm, ids):
    """The last layer's output is what the norm reads, "final_norm" what the head reads; they are not the same."""
    _, hidden = lm.forward(ids, return_hidden=["final_norm", 3])
    assert list(hidden) == ["block_3", "final_norm"]
    rows = hidden["block_3"].reshape(-1, lm.d_model).astype(np.float64)
    eps = lm.blocks[0].norm_eps
    normed = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + eps) * lm._norm.gain
    after = hidden["final_norm"].reshape(normed.shape)
    np.testing.assert_allclose(after, normed, rtol=0, atol=2e-6 * np.abs(normed).max())
    assert np.abs(after - rows).max() > 0.1


def test_weights_of_grouped_heads_windows_and_steps(lm, ids):
    """One map for each query head, and a column for each position from 0 on, also for a step over a ring."""
    lm = CausalLM.load(DATA / "mistral")
    blocks = lm.blocks
    assert blocks[0].n_kv_heads < blocks[0].n_heads and blocks[0].window
    ids = ids[:1] % lm.vocab_size
    _, whole = lm.forward(ids, return_attention=True)
    state = lm.allocate_state(1, 9)
    for t in range(9):
        _, attention = lm.forward(ids[:, t : t + 1], state, return_attention=True)
        for layer, weights in attention.items():
            assert weights.shape == (1, blocks[layer].n_heads, 1, t + 1)
            np.testing.assert_array_equal(bits(weights), bits(whole[layer][:, :, t : t + 1, : t + 1]))
            seen = weights != 0
            assert not seen[..., : max(0, t + 1 - blocks[layer].window)].any() and seen[..., t].all()


def test_any_subset_of_layers(lm, ids):
    wanted = bits(lm.forward(ids))
    _, every = lm.forward(ids, return_attention=True)
    assert list(every) == [0, 1, 2, 3]
    for asked in ([2], (3, 0, 3), {1}, range(1, 3), np.array([0, 2]), []):
        logits, attention = lm.forward(ids, return_attention=asked)
        np.testing.assert_array_equal(bits(logits), wanted)
        assert list(attention) == sorted({int(n) for n in asked})
        for layer, weights in attention.items():
            np.testing.assert_array_equal(bits(weights), bits(every[layer]))
    logits, hidden, attention = lm.forward(
        ids, return_hidden=["block_2.context", 0, "embed", "block_2"], return_attention=[2]
    )
    assert list(hidden) == ["embed", "block_0", "block_2.context", "block_2"]
    assert hidden["block_2.context"].shape == (2, 9, lm.blocks[2].n_heads * lm.blocks[2].head_dim)
    np.testing.assert_array_equal(bits(logits), wanted)
    assert isinstance(lm.forward(ids, return_hidden=False, return_attention=False), np.ndarray)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"return_attention": None}, TypeError, "return_attention must be True, False or a list of layers"),
        ({"return_attention": 2}, TypeError, r"return_attention must be .* a list of layers, not 2 \(int\)"),
        ({"return_attention": [4]}, ValueError, "a layer in return_attention must be from 0 to 3, not 4"),
        ({"return_attention": [-1]}, ValueError, "a layer in return_attention must be from 0 to 3, not -1"),
        ({"return_attention": [True]}, TypeError, "a layer in return_attention must be an integer"),
        ({"return_hidden": "embed"}, TypeError, "return_hidden must be True, False or a list of names"),
        ({"return_hidden": ["block_4"]}, ValueError, "holds 'block_4'; the names are embed, block_0 to final_norm"),
        ({"return_hidden": ["final_nom"]}, ValueError, r"holds 'final_nom' \(did you mean 'final_norm'\?\)"),
        ({"return_hidden": ["block_1.mid"]}, ValueError, r"holds 'block_1.mid'; .* block_0.input, .* block_0.output"),
        ({"return_hidden": ["block_99999999999999"]}, ValueError, "holds 'block_9"),
        ({"return_hidden": [4]}, ValueError, "a layer in return_hidden must be from 0 to 3, not 4"),
        ({"return_hidden": [1.0]}, TypeError, r"a layer in return_hidden must be an integer, not 1.0 \(float\)"),
    ],
)  # fmt: skip
def test_refusals(lm, ids, asked, error, message):
    """Before anything is computed or written; asked for and not given never happens."""
    state = lm.allocate_state(2, 12)
    before = state.copy()
    with pytest.raises(error, match=rf"^CausalLM\.forward: .*{message}"):
        lm.forward(ids, state, **asked)
    assert state == before


def test_a_model_without_a_final_norm(ids):
    """Where there is no final norm nothing has its name, and asking for it is refused."""
    lm = CausalLM.load(DATA / "opt")
    lm = CausalLM(config=lm.config, blocks=lm.blocks, embedding=lm._embedding, norm=None, head=lm._head,
                  weight_format=lm.weight_format, max_positions=lm.max_positions)  # fmt: skip
    ids = ids % lm.vocab_size
    logits, hidden = lm.forward(ids, return_hidden=True)
    assert list(hidden) == ["embed", "block_0", "block_1"]
    np.testing.assert_array_equal(bits(lm.unembed(hidden["block_1"])), bits(logits))
    np.testing.assert_array_equal(bits(lm.unembed(hidden["block_1"], norm=False)), bits(logits))
    with pytest.raises(ValueError, match=r"'final_norm'; this model has no final norm; the names are embed"):
        lm.forward(ids, return_hidden=["final_norm"])


def test_walking_by_hand_checks_what_it_is_given(lm, ids):
    with pytest.raises(ValueError, match=r"^CausalLM\.embed: ids\[0, 0\] must be from 0 to 2047"):
        lm.embed([[2048]])
    with pytest.raises(
        ValueError, match=r"^CausalLM\.embed: the call reaches position 512, but max_positions=512"
    ):
        lm.embed(ids, position=504)
    with pytest.raises(ValueError, match=r"^CausalLM\.embed: position must be at least 0, not -1"):
        lm.embed(ids, position=-1)
    x = lm.embed(ids)
    with pytest.raises(TypeError, match=r"^CausalLM\.unembed: x must be float32, not float64"):
        lm.unembed(x.astype(np.float64))
    with pytest.raises(
        ValueError, match=r"^CausalLM\.unembed: x has shape \(9, 192\); wanted is \(B, L, 192\)"
    ):
        lm.unembed(x[0])
    with pytest.raises(TypeError, match=r"^CausalLM\.unembed: norm must be True or False"):
        lm.unembed(x, norm=None)
    x[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match=r"^CausalLM\.unembed: x\[1, 2, 3\] is nan, which is not finite"):
        lm.unembed(x)
    x[1, 2] = 3e38 * np.sign(x[0, 0])  # head and embedding share their rows
    with pytest.raises(ValueError, match=r"^CausalLM\.unembed: a logit is too large for float32"):
        lm.unembed(x, norm=False)


def test_patching_a_hidden_state_by_hand(lm):
    """Activation patching is a loop: put a hidden state of one text into another, and see what the model says then."""
    tokenizer = lm.tokenizer
    clean = np.array([tokenizer.encode("Mr. Weston was very happy, and")])
    corrupt = np.array([tokenizer.encode("Mrs. Weston was very happy, and")])
    assert clean.shape == corrupt.shape
    _, hidden = lm.forward(clean, return_hidden=True)

    def patched(layer, at):
        x = lm.embed(corrupt)
        for i, block in enumerate(lm.blocks):
            x = block(x)
            if i == layer:
                x[:, at] = hidden[f"block_{i}"][:, at]
        return lm.unembed(x)

    last = lm.n_layers - 1
    everything, nothing = slice(None), slice(0, 0)
    wanted, broken = lm.forward(clean), lm.forward(corrupt)
    for layer in range(lm.n_layers):
        np.testing.assert_array_equal(bits(patched(layer, everything)), bits(wanted))
        np.testing.assert_array_equal(bits(patched(layer, nothing)), bits(broken))
    differs = int(np.flatnonzero(clean[0] != corrupt[0])[0])
    np.testing.assert_array_equal(bits(patched(0, slice(0, differs))), bits(broken))  # the same up to there
    moved = bits(patched(0, slice(differs, differs + 1)))
    assert (moved[:, -1] != bits(broken)[:, -1]).any()
    np.testing.assert_array_equal(
        bits(patched(last, slice(differs, differs + 1)))[:, -1], bits(broken)[:, -1]
    )


def test_weights_can_be_changed_by_hand(tmp_path):
    """Taking heads out of a layer: the same weights, without their columns of o_proj, in a new block."""
    from mojolearn import TransformerBlock

    lm = CausalLM.load(write_model(tmp_path / "model"))
    block, ids = lm.blocks[1], [[1, 5, 7, 9]]
    weights = block.weights()
    weights["o_proj.weight"][:, : block.head_dim] = 0
    ablated = TransformerBlock(weights, **block.options.as_dict())
    x = lm.blocks[0](lm.embed(ids))
    _, hidden = block.forward(x, return_hidden=["context"])
    _, same = ablated.forward(x, return_hidden=["context"])
    np.testing.assert_array_equal(bits(hidden["context"]), bits(same["context"]))
    assert (lm.unembed(ablated(x)) != lm.forward(ids)).any()
