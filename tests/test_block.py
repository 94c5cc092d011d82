"""TransformerBlock: right numbers on every option, readable attributes, pickling."""

import pickle

import contract
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support import bits, choose, make_block, make_weights, random_options, uniform

from mojolearn import TransformerBlock
from mojolearn.options import BlockOptions
from mojolearn.reference import reference_block
from mojolearn.rope import attention_factor, inverse_frequencies

LLAMA3 = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 2.0,
    "beta_slow": 0.5,
}
DYNAMIC = {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {"type": "longrope", "factor": 4.0, "original_max_position_embeddings": 8,
            "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}  # fmt: skip

EACH_OPTION = [
    {}, {"n_kv_heads": 1}, {"n_kv_heads": 2}, {"head_dim": 24}, {"head_dim": 132}, {"window": 3},
    {"rope_theta": 500000.0}, {"rope_scaling": {"type": "linear", "factor": 4.0}}, {"rope_scaling": LLAMA3},
    {"rope_dim": 2}, {"qkv_bias": True}, {"o_bias": True}, {"norm": "layernorm"},
    {"norm": "layernorm", "norm_bias": True}, {"norm": "rmsnorm_offset"}, {"norm_eps": 1e-2}, {"mlp": "geglu"},
    {"mlp": "geglu_tanh"}, {"mlp": "gelu"}, {"mlp": "gelu_tanh"}, {"mlp_bias": True},
    {"mlp": "gelu", "mlp_bias": True}, {"qk_norm": True}, {"qk_norm": True, "norm": "rmsnorm_offset"},
    {"attn_softcap": 0.5}, {"attn_scale": 0.7}, {"weight_format": "bfloat16"}, {"weight_format": "float16"},
    {"norm": "layernorm_offset"}, {"norm": "layernorm_offset", "norm_bias": True}, {"norm_placement": "post"},
    {"norm_placement": "both"}, {"norm_placement": "both", "norm": "layernorm", "norm_bias": True},
    {"norm_placement": "post", "norm": "rmsnorm_offset"}, {"residual": "parallel"}, {"residual": "parallel_shared"},
    {"residual": "parallel_shared", "norm": "layernorm", "norm_bias": True}, {"residual_multiplier": 0.22},
    {"residual_multiplier": 1.7, "residual": "parallel"}, {"residual_multiplier": 0.4, "norm_placement": "both"},
    {"qk_norm": "full"}, {"qk_norm": "full", "n_kv_heads": 2, "norm": "rmsnorm_offset"}, {"qk_norm": "layernorm"},
    {"qk_norm": "layernorm", "n_kv_heads": 2}, {"qk_norm": "layernorm", "qk_norm_bias": True},
    {"qk_norm": "layernorm", "norm": "layernorm_offset"}, {"rope_dim": 0}, {"rope_interleaved": True},
    {"rope_interleaved": True, "rope_dim": 4}, {"mlp": "relu"}, {"mlp": "relu2"}, {"mlp": "relu2", "mlp_bias": True},
    {"mlp": "reglu"}, {"mlp": "relu2glu"}, {"mlp": "silu"},
    {"qkv_clip": 0.3}, {"qkv_clip": 0.3, "qk_norm": True, "qkv_bias": True}, {"rope_scaling": YARN},
    {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}}, {"rope_scaling": DYNAMIC},
    {"rope_scaling": LONGROPE}, {"rope_scaling": LONGROPE | {"attention_factor": 1.3}},
]  # fmt: skip


@pytest.mark.parametrize("options", EACH_OPTION, ids=str)
def test_every_option_against_the_float64_reference(rng, options):
    given = {"n_heads": 4, **options}
    weights = make_weights(32, 48, **given)
    block = TransformerBlock(weights, **given)
    x = uniform(rng, (2, 9, 32), 2.0)
    wanted, keys, values = reference_block(x, weights, given)
    state = block.allocate_state(2, 9)
    y = np.concatenate(
        [block.forward(x[:, :5], state), block.forward(x[:, 5:8], state), block.step(x[:, 8], state)], 1
    )
    assert y.dtype == np.float32 and y.flags.c_contiguous
    assert np.abs(y - wanted).max() <= 2e-6 * np.abs(wanted).max()
    held = min(9, block.window or 9)
    assert np.abs(state.keys() - keys[:, :, -held:]).max() <= 2e-6 * np.abs(keys).max()
    assert np.abs(state.values() - values[:, :, -held:]).max() <= 2e-6 * np.abs(values).max()


@pytest.mark.parametrize("options", [o for o in EACH_OPTION if o and "weight_format" not in o], ids=str)
def test_every_option_matters(rng, options):
    """An option that were read but not used would give the bits of the plain block."""
    weights = make_weights(32, 48, **{"n_heads": 4, **options})
    plain = BlockOptions(d_model=32, intermediate_size=48, n_heads=4, head_dim=options.get("head_dim"),
                         n_kv_heads=options.get("n_kv_heads")).weight_shapes()  # fmt: skip
    x = uniform(rng, (1, 9, 32), 2.0)
    shared = {name: value for name, value in options.items() if name in ("n_kv_heads", "head_dim")}
    if shared:  # other shapes of weights: the reference test above is the proof
        assert TransformerBlock(weights, n_heads=4, **options)(x).shape == x.shape
        return
    without = {name: weights.get(name, np.ones(shape, np.float32)) for name, shape in plain.items()}
    assert not np.array_equal(
        TransformerBlock(without, n_heads=4)(x), TransformerBlock(weights, n_heads=4, **options)(x)
    )


@given(st.integers(0, 2**31))
def test_random_options_have_the_bits_of_the_contract(seed):
    """The numerics page written again in plain NumPy, apart from softcap and the gelu functions."""
    rng = np.random.default_rng(seed)
    options = random_options(rng) | {"attn_softcap": None, "weight_format": "float32"}
    if "ge" in options["mlp"]:
        options["mlp"] = choose(rng, "swiglu", "relu", "relu2")
    block = make_block(**options)
    L = int(rng.integers(1, 12))
    x = uniform(rng, (1, L, block.d_model), 2.0)
    frequencies = inverse_frequencies(block.options, L)
    factor = attention_factor(block.options)
    wanted = contract.block(x[0], block.weights(), block.options, frequencies, factor)
    np.testing.assert_array_equal(bits(block(x)[0]), bits(wanted))


def conditioning(x, weights, options, rng):
    """How far the exact output moves when every number given moves by two roundings of float32.

    A norm of an MLP output of which the activations left next to nothing blows up what little there is, rounding
    errors and all: no float32 block can be closer to the reference than the reference is to itself.
    """

    def moved(values):
        return values * (1 + 2.0**-22 * rng.choice([-1, 1], values.shape))

    options = options | {"weight_format": "float32"}  # moved weights are not of the narrower formats
    exact, _, _ = reference_block(x, weights, options)
    others = (
        reference_block(
            moved(x), {name: moved(w).astype(np.float32) for name, w in weights.items()}, options
        )[0]
        for _ in range(8)
    )
    return max(np.abs(other - exact).max() for other in others)


@given(st.integers(0, 2**31))
@example(15433)  # norms of MLP outputs that the activation leaves next to nothing of
@example(21294)
@example(23403)
def test_random_options_against_the_float64_reference(seed):
    rng = np.random.default_rng(seed)
    options = random_options(rng)
    # A LayerNorm of two numbers leaves little more than a sign, which a rounding may change.
    assume(options["qk_norm"] != "layernorm" or options["head_dim"] > 2)
    block, weights = make_block(**options), make_weights(**options)
    x = uniform(rng, (2, 11, block.d_model), 2.0)
    for name in ("d_model", "intermediate", "seed"):
        options.pop(name)
    wanted, _, _ = reference_block(x, weights, options)
    error = np.abs(block(x) - wanted).max()
    assert error <= 3e-6 * np.abs(wanted).max() or error <= 2 * conditioning(x, weights, options, rng)


@given(st.integers(0, 2**31))
def test_pickling_and_weights_give_the_same_block(seed):
    rng = np.random.default_rng(seed)
    options = random_options(rng)
    block = make_block(**options)
    x = uniform(rng, (1, 3, block.d_model))
    other = pickle.loads(pickle.dumps(block))
    assert other.options == block.options
    np.testing.assert_array_equal(bits(other(x)), bits(block(x)))
    given_back, weights = block.weights(), make_weights(**options)
    assert list(given_back) == list(block.options.weight_shapes())
    again = TransformerBlock(given_back, **block.options.as_dict())
    np.testing.assert_array_equal(bits(again(x)), bits(block(x)))
    for name, weight in weights.items():
        assert given_back[name].shape == weight.shape


def test_every_option_is_an_attribute():
    block = make_block(n_heads=4, n_kv_heads=2, rope_theta=500.0, qk_norm=True, weight_format="bfloat16")
    for name, value in block.options.as_dict().items():
        assert getattr(block, name) == value
        assert name in dir(block)
    assert (block.d_model, block.intermediate_size, block.head_dim, block.rope_theta) == (32, 48, 8, 500.0)


def test_repr_says_what_is_special():
    text = repr(make_block(d_model=64, intermediate=96, n_heads=4, n_kv_heads=2, window=7, qk_norm=True))
    assert text == (
        "TransformerBlock(d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, intermediate_size=96, window=7, "
        "qk_norm=True, 0.1 MiB)"
    )


def test_calling_is_forward(rng):
    block, x = make_block(), uniform(rng, (1, 3, 32))
    state, other = block.allocate_state(1, 3), block.allocate_state(1, 3)
    np.testing.assert_array_equal(bits(block(x, state)), bits(block.forward(x, other)))
    assert state == other


def test_step_takes_two_forms(rng):
    block, x = make_block(), uniform(rng, (2, 32))
    one, other = block.allocate_state(2, 3), block.allocate_state(2, 3)
    y = block.step(x, one)
    assert y.shape == (2, 1, 32)
    np.testing.assert_array_equal(bits(block.step(x[:, None], other)), bits(y))


def test_missing_and_misspelt_weights_in_one_sentence():
    weights = make_weights(32, 48, n_heads=4)
    weights["q_porj.weight"] = weights.pop("q_proj.weight")
    with pytest.raises(
        ValueError, match=r"lack 'q_proj.weight'.*'q_porj.weight' is unknown .did you mean 'q_proj.weight'"
    ):
        TransformerBlock(weights, n_heads=4)
