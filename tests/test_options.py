"""options.py: every rule of the options, and the sentence that answers its breach."""

import copy
import dataclasses
import pickle
from fractions import Fraction

import numpy as np
import pytest
from support import random_options, weight_shapes

from mojolearn.options import BlockOptions

LINEAR = {"type": "linear", "factor": 2.0}


def make(**options):
    return BlockOptions(**{"d_model": 32, "intermediate_size": 48, "n_heads": 4} | options)


def test_defaults():
    o = make()
    assert o.as_dict() == {
        "n_heads": 4,
        "n_kv_heads": 4,
        "head_dim": 8,
        "window": 0,
        "rope_theta": 10000.0,
        "rope_dim": 8,
        "rope_interleaved": False,
        "rope_scaling": None,
        "max_positions": None,
        "qkv_bias": False,
        "o_bias": False,
        "qkv_clip": None,
        "norm": "rmsnorm",
        "norm_eps": 1e-6,
        "norm_bias": False,
        "norm_placement": "pre",
        "residual": "sequential",
        "residual_multiplier": 1.0,
        "mlp": "swiglu",
        "mlp_bias": False,
        "qk_norm": False,
        "qk_norm_bias": False,
        "attn_softcap": None,
        "attn_scale": None,
        "weight_format": "float32",
    }
    assert (o.d_model, o.intermediate_size) == (32, 48)


def test_derived_values():
    o = make(d_model=20, n_heads=6, n_kv_heads=2, head_dim=8)
    assert (o.group, o.q_width, o.kv_width, o.rope_dim) == (3, 48, 16, 8)


@pytest.mark.parametrize(
    ("mlp", "gated", "activation"),
    [
        ("swiglu", True, "silu"),
        ("geglu", True, "gelu_erf"),
        ("geglu_tanh", True, "gelu_tanh"),
        ("gelu", False, "gelu_erf"),
        ("gelu_tanh", False, "gelu_tanh"),
        ("relu", False, "relu"),
        ("relu2", False, "relu2"),
        ("silu", False, "silu"),
        ("reglu", True, "relu"),
        ("relu2glu", True, "relu2"),
    ],
)
def test_mlp(mlp, gated, activation):
    o = make(mlp=mlp)
    assert (o.gated, o.activation) == (gated, activation)
    assert ("gate_proj.weight" in o.weight_shapes()) == gated


@pytest.mark.parametrize("head_dim", [2, 6, 24, 64, 128])
def test_scale_is_one_root_and_one_division(head_dim):
    scale = make(head_dim=head_dim).scale
    assert scale.dtype == np.float32
    root = np.float32(np.sqrt(np.float64(head_dim)))  # no float32 tie: rounding twice is right here
    assert scale == np.float32(np.float64(1) / np.float64(root))


def test_scale_given():
    scale = make(attn_scale=0.1).scale
    assert scale.dtype == np.float32
    assert scale == np.float32(0.1)


def test_numpy_numbers_become_those_of_python():
    o = make(
        d_model=np.int64(32),
        n_heads=np.uint8(4),
        head_dim=np.array(8),
        window=np.int16(3),
        rope_theta=np.float32(500),
        norm_eps=Fraction(1, 1024),
        attn_scale=1,
        qk_norm=np.True_,
        norm=np.str_("layernorm"),
        max_positions=np.int32(2**24),
    )
    assert {type(v) for v in o.as_dict().values()} == {int, float, bool, str, type(None)}
    assert (o.n_heads, o.window, o.rope_theta, o.norm_eps, o.attn_scale) == (4, 3, 500.0, 2**-10, 1.0)


INTEGERS = [
    "d_model",
    "intermediate_size",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "rope_dim",
    "window",
    "max_positions",
]
FLOATS = ["rope_theta", "norm_eps", "residual_multiplier", "qkv_clip", "attn_softcap", "attn_scale"]
SWITCHES = ["rope_interleaved", "qkv_bias", "o_bias", "norm_bias", "mlp_bias", "qk_norm_bias"]
CHOICES = ["norm", "norm_placement", "residual", "mlp", "weight_format"]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, np.True_, 4.0, np.float32(4), "4", [4], np.array([4]), 4j])
def test_integers_of_a_wrong_kind(name, value):
    with pytest.raises(TypeError, match=rf"^TransformerBlock: {name} must be an integer, not "):
        make(**{name: value})


@pytest.mark.parametrize("name", ["d_model", "intermediate_size", "n_heads", "window"])
def test_integers_that_may_not_be_none(name):
    with pytest.raises(TypeError, match=rf"^TransformerBlock: {name} must be an integer, not None"):
        make(**{name: None})


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_out_of_range(name):
    for value in (-1, -(2**70), 2**63):
        with pytest.raises(ValueError, match=rf"^TransformerBlock: {name} must be .*not {value}$"):
            make(**{name: value})
    if name not in ("window", "rope_dim"):
        with pytest.raises(ValueError, match=rf"^TransformerBlock: {name} must be .*not 0$"):
            make(**{name: 0})


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [True, np.False_, "1", [1.0], np.array(1.0), 1j])
def test_floats_of_a_wrong_kind(name, value):
    with pytest.raises(TypeError, match=rf"^TransformerBlock: {name} must be a number, not "):
        make(**{name: value})


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(
    "value", [0, 0.0, -1.0, np.nan, np.inf, -np.inf, 1e-46, 1e39, 3.5e38, 10**400, np.float64(1e-50)]
)
def test_floats_that_float32_cannot_use(name, value):
    with pytest.raises(ValueError, match=rf"^TransformerBlock: {name} must be above 0 and within float32"):
        make(**{name: value})


@pytest.mark.parametrize("name", ["rope_theta", "norm_eps", "residual_multiplier"])
def test_floats_that_may_not_be_none(name):
    with pytest.raises(TypeError, match=rf"^TransformerBlock: {name} must be a number, not None"):
        make(**{name: None})


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [1.5e-45, 1e-40, 3.4e38, 7])
def test_floats_at_the_ends_of_float32(name, value):
    assert getattr(make(**{name: value}), name) == value


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, None, "True", 1.0])
def test_switches_are_bools(name, value):
    with pytest.raises(TypeError, match=rf"^TransformerBlock: {name} must be True or False, not "):
        make(**{name: value})


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name):
    with pytest.raises(TypeError, match=rf"^TransformerBlock: {name} must be one of '"):
        make(**{name: None})
    with pytest.raises(ValueError, match=rf"^TransformerBlock: {name} must be one of '.*not 'elu'"):
        make(**{name: "elu"})


@pytest.mark.parametrize("given", [{"mlp": "swigly"}, {"mlp": "elu"}, {"weight_format": "float64"}])
def test_no_value_is_suggested(given):
    """What is spelt like it may compute something quite different: all choices are listed, none is put forward."""
    with pytest.raises(ValueError, match=r"must be one of '[^()]*$"):
        make(**given)


def test_heads_that_do_not_fit():
    with pytest.raises(ValueError, match=r"n_heads=4 must be a multiple of n_kv_heads=3"):
        make(n_kv_heads=3)
    with pytest.raises(ValueError, match=r"n_heads=4 must be a multiple of n_kv_heads=8"):
        make(n_kv_heads=8)
    with pytest.raises(ValueError, match=r"d_model=32 is not divisible by n_heads=5.*give head_dim"):
        make(n_heads=5)
    assert make(n_heads=5, head_dim=8).q_width == 40


def test_odd_heads():
    with pytest.raises(ValueError, match=r"head_dim must be even, not 7$"):
        make(head_dim=7)
    with pytest.raises(
        ValueError, match=r"head_dim must be even, not 3 \(d_model / n_heads = 12 / 4; give head_dim"
    ):
        make(d_model=12)


@pytest.mark.parametrize("rope_dim", [3, 10])
def test_rope_dim_that_does_not_fit(rope_dim):
    with pytest.raises(ValueError, match=rf"rope_dim must be even and at most head_dim=8, not {rope_dim}"):
        make(rope_dim=rope_dim)


@pytest.mark.parametrize("norm", ["rmsnorm", "rmsnorm_offset"])
def test_norm_bias_goes_with_layernorm_only(norm):
    with pytest.raises(ValueError, match=rf"norm_bias=True .*norm='layernorm'.*norm='{norm}'"):
        make(norm=norm, norm_bias=True)
    for other in ("layernorm", "layernorm_offset"):
        assert make(norm=other, norm_bias=True).norm_bias


def test_qk_norm_is_a_switch_or_a_choice():
    assert [make(qk_norm=v).qk_norm for v in (False, np.True_, "full", np.str_("layernorm"))] == [
        False,
        True,
        "full",
        "layernorm",
    ]
    for value in (0, 1, None, 1.0):
        with pytest.raises(
            TypeError, match=r"^TransformerBlock: qk_norm must be one of False, True, 'full', 'layer"
        ):
            make(qk_norm=value)
    for value in ("True", "rmsnorm", ""):
        with pytest.raises(
            ValueError, match=rf"^TransformerBlock: qk_norm must be one of .*, not '{value}'$"
        ):
            make(qk_norm=value)


@pytest.mark.parametrize("qk_norm", [False, True, "full"])
def test_qk_norm_bias_goes_with_layernorm_only(qk_norm):
    with pytest.raises(
        ValueError, match=rf"qk_norm_bias=True .*qk_norm='layernorm' only.*qk_norm={qk_norm!r}$"
    ):
        make(qk_norm=qk_norm, qk_norm_bias=True)
    assert make(qk_norm="layernorm", qk_norm_bias=True).qk_norm_bias


@pytest.mark.parametrize("placement", ["post", "both"])
@pytest.mark.parametrize("residual", ["parallel", "parallel_shared"])
def test_parallel_residuals_have_norms_at_inputs_only(residual, placement):
    with pytest.raises(
        ValueError, match=rf"residual='{residual}' .*norm_placement='pre' only.*='{placement}'$"
    ):
        make(residual=residual, norm_placement=placement)
    assert make(residual=residual).norm_placement == "pre"


@pytest.mark.parametrize(
    ("norm", "qk_norm", "kind"),
    [
        ("rmsnorm", True, "rmsnorm"),
        ("layernorm", "full", "rmsnorm"),
        ("rmsnorm_offset", True, "rmsnorm_offset"),
        ("layernorm_offset", "full", "rmsnorm_offset"),
        ("rmsnorm", "layernorm", "layernorm"),
        ("rmsnorm_offset", "layernorm", "layernorm_offset"),
    ],
)
def test_qk_norm_has_the_offset_of_the_block(norm, qk_norm, kind):
    assert make(norm=norm, qk_norm=qk_norm).qk_norm_kind == kind


def test_max_positions_stay_exact_in_float32():
    assert make(max_positions=2**24).max_positions == 2**24
    with pytest.raises(ValueError, match=r"max_positions must be from 1 to 16777216, not 16777217"):
        make(max_positions=2**24 + 1)


def test_rope_scaling_passes_through_its_checks():
    assert make(rope_scaling={"rope_type": "linear", "factor": 2}).rope_scaling == LINEAR
    assert make(rope_scaling={"type": "default"}).rope_scaling is None
    with pytest.raises(ValueError, match=r"rope_scaling.*'factor'"):
        make(rope_scaling={"type": "linear"})


def test_unknown_and_missing_keywords_are_answered():
    needed = {"d_model": 32, "intermediate_size": 48, "n_heads": 4}
    assert BlockOptions.checked(**needed) == make()
    with pytest.raises(TypeError, match=r"unknown option 'windw' .did you mean 'window'.*attn_softcap"):
        BlockOptions.checked(**needed, windw=3)
    for name in needed:
        with pytest.raises(TypeError, match=rf"^TransformerBlock: the option {name} must be given"):
            BlockOptions.checked(**{k: v for k, v in needed.items() if k != name})


def test_options_are_frozen_hashable_and_travel():
    o = make(rope_scaling=LINEAR, window=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        o.window = 4
    for twin in (pickle.loads(pickle.dumps(o)), copy.deepcopy(o), dataclasses.replace(o)):
        assert twin == o
        assert hash(twin) == hash(o)


def test_as_dict_rebuilds_and_is_a_copy():
    o = make(
        n_heads=4, n_kv_heads=2, rope_scaling=LINEAR, norm="layernorm", norm_bias=True, attn_softcap=30.0
    )
    options = o.as_dict()
    assert make(**options) == o
    options["rope_scaling"]["factor"] = 9.0
    assert o.rope_scaling == LINEAR


def test_weight_shapes_of_random_options(rng):
    for _ in range(200):
        options = random_options(rng)
        d_model, intermediate, _ = (options.pop(k) for k in ("d_model", "intermediate", "seed"))
        o = BlockOptions(d_model=d_model, intermediate_size=intermediate, **options)
        assert o.weight_shapes() == weight_shapes(d_model, intermediate, options)


def test_a_shape_is_explained():
    text = make(d_model=20, n_heads=4, head_dim=8).explain_shape("q_proj.weight")
    assert text.startswith(
        "(n_heads*head_dim, d_model) = (32, 20), where n_heads=4, head_dim=8 and d_model=20"
    )
    assert "input_layernorm.weight" in text
    assert make(qk_norm=True).explain_shape("q_norm.weight") == "(head_dim,) = (8,), where head_dim=8"
    wide = make(qk_norm="full", n_kv_heads=2).explain_shape("k_norm.weight")
    assert wide == "(n_kv_heads*head_dim,) = (16,), where n_kv_heads=2, head_dim=8"
    without_input_norms = make(norm_placement="post").explain_shape("q_proj.weight")
    assert without_input_norms.endswith("d_model=32 is the number of columns of up_proj.weight")


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("q_proj.bias", {}, "qkv_bias=False"),
        ("o_proj.bias", {"qkv_bias": True}, "o_bias=False"),
        ("q_norm.weight", {}, "qk_norm=False"),
        ("input_layernorm.bias", {"norm": "layernorm"}, "norm_bias=False"),
        ("up_proj.bias", {}, "mlp_bias=False"),
        ("gate_proj.bias", {}, "mlp_bias=False"),
        ("gate_proj.weight", {"mlp": "gelu"}, "mlp='gelu'"),
        ("gate_proj.bias", {"mlp": "gelu", "mlp_bias": True}, "mlp='gelu'"),
        ("q_norm.bias", {"qk_norm": "layernorm"}, "qk_norm_bias=False"),
        ("k_norm.weight", {"qk_norm": "full"}, None),
        ("input_layernorm.weight", {"norm_placement": "post"}, "norm_placement='post'"),
        ("input_layernorm.bias", {"norm_placement": "post"}, "norm_placement='post'"),
        ("post_attention_layernorm.weight", {"norm_placement": "post"}, "norm_placement='post'"),
        ("post_attention_layernorm.weight", {"residual": "parallel_shared"}, "residual='parallel_shared'"),
        ("attention_output_norm.weight", {}, "norm_placement='pre'"),
        ("mlp_output_norm.weight", {"residual": "parallel"}, "norm_placement='pre'"),
        ("mlp_output_norm.bias", {"norm_placement": "both", "norm": "layernorm"}, "norm_bias=False"),
        ("q_proj.weight", {}, None),
        ("q_proj.bias", {"qkv_bias": True}, None),
        ("q_proj.wieght", {}, None),
    ],
)
def test_why_a_weight_is_not_wanted(name, options, reason):
    found = make(**options).why_not(name)
    assert found is None if reason is None else reason in found
