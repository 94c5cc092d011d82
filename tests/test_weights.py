"""weights.py: what is admitted as weights, what is refused and in which words, and the narrow formats."""

import math
import types

import numpy as np
import pytest
from forms import FORMS
from hypothesis import given
from hypothesis import strategies as st
from support import bits, make_weights

from mojolearn import weights as module
from mojolearn.options import BlockOptions
from mojolearn.weights import admit_weights, infer_sizes, narrow, widen

MATRIX, VECTOR = "q_proj.weight", "input_layernorm.weight"


def case(**options):
    """Weights (float32, d_model 20, intermediate 24) and the options they belong to."""
    options = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8} | options
    stored = {k: v for k, v in options.items() if k != "weight_format"}
    return make_weights(20, 24, **stored), BlockOptions(d_model=20, intermediate_size=24, **options)


def refusal(kind, weights, options):
    """The message with which the weights are refused."""
    with pytest.raises(kind, match=r"^TransformerBlock: ") as caught:
        admit_weights(weights, options)
    return str(caught.value)


# --- formats -----------------------------------------------------------------------------------------------


def test_every_bfloat16_survives_the_round_trip():
    patterns = np.arange(2**16, dtype=np.uint16)
    wide = widen(patterns)
    assert np.array_equal(bits(wide) >> 16, patterns)
    assert not (bits(wide) & 0xFFFF).any()
    back = narrow(wide, "bfloat16")
    number = ~np.isnan(wide)
    assert np.array_equal(back[number], patterns[number])
    assert np.isnan(widen(back[~number])).all()


def test_every_float16_survives_the_round_trip():
    half = np.arange(2**16, dtype=np.uint16).view(np.float16)
    wide = widen(half)
    assert wide.dtype == np.float32
    back = narrow(wide, "float16")
    number = ~np.isnan(half)
    assert np.array_equal(back[number].view(np.uint16), half[number].view(np.uint16))
    assert wide[1] == 2.0**-24  # the smallest subnormal number


NEAR_TIES = st.builds(
    lambda upper, lower: upper << 16 | lower, st.integers(0, 2**16 - 1), st.integers(0x7FFF, 0x8001)
)


@given(st.integers(0, 2**32 - 1) | NEAR_TIES)
def test_narrow_takes_the_nearest_bfloat16(pattern):
    x = np.array([pattern], np.uint32).view(np.float32)
    result = narrow(x, "bfloat16")
    if np.isnan(x[0]):
        assert np.isnan(widen(result)[0])
    elif np.isfinite(x[0]):
        below = np.uint16(pattern >> 16)
        pair = widen(np.array([below, below + 1], np.uint16)).astype(np.float64)  # the second away from 0
        pair[np.isinf(pair)] = math.copysign(2.0**128, x[0])
        distance = np.abs(pair - x[0])
        up = distance[1] < distance[0] or (distance[1] == distance[0] and below & 1)
        assert result[0] == below + int(up)


def test_narrow_keeps_nan_and_infinity_apart():
    x = np.array([0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x7F7FFFFF], np.uint32).view(np.float32)
    assert np.array_equal(
        widen(narrow(x, "bfloat16")), np.float32([np.nan, np.nan, np.inf, -np.inf, np.inf]), equal_nan=True
    )


@pytest.mark.parametrize("weight_format", ["float32", "bfloat16", "float16"])
def test_formats_keep_the_shape_of_strided_arrays(weight_format):
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (x[::2, ::-1], x.T, x[1, 2], x[:0], np.asfortranarray(x)):
        assert np.array_equal(widen(narrow(np.asarray(view), weight_format)), view)


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.uint32, np.bool_, ">f4", ">u2", ">f2"])
def test_formats_refuse_other_dtypes(dtype):
    with pytest.raises(TypeError, match=r"^widen: weights are float32"):
        widen(np.zeros(2, dtype))
    with pytest.raises(TypeError, match=r"^narrow: the array must be float32"):
        narrow(np.zeros(2, dtype), "bfloat16")


def test_narrow_refuses_other_formats():
    with pytest.raises(
        ValueError, match=r"^narrow: weight_format must be one of 'float32', 'bfloat16', 'float16'"
    ):
        narrow(np.zeros(2, np.float32), "int8")


# --- sizes -------------------------------------------------------------------------------------------------


def test_sizes():
    weights, _ = case()
    assert infer_sizes(weights) == (20, 24)


@pytest.mark.parametrize("weights", [None, [], [("a", 1)], "weights", np.zeros(3)])
def test_weights_must_be_a_mapping(weights):
    for function in (infer_sizes, lambda w: admit_weights(w, case()[1])):
        with pytest.raises(TypeError, match=r"^TransformerBlock: weights must be a dict"):
            function(weights)


@pytest.mark.parametrize("name", ["input_layernorm.weight", "up_proj.weight"])
def test_sizes_that_cannot_be_read(name):
    weights, _ = case()
    tensor = weights.pop(name)
    with pytest.raises(ValueError, match=f"^TransformerBlock: the weights lack '{name}'$"):
        infer_sizes(weights)
    misspelt = name.replace("e", "", 1)
    with pytest.raises(ValueError, match=f"lack '{name}'.*'{misspelt}' is unknown .did you mean '{name}'"):
        infer_sizes(weights | {misspelt: tensor})
    for wrong in (tensor[None], np.float32(1).reshape(()), tensor[:0]):
        with pytest.raises(ValueError, match=f"^TransformerBlock: {name} has shape .*wanted is .*d_model"):
            infer_sizes(weights | {name: wrong})
    with pytest.raises(TypeError, match=f"^TransformerBlock: {name} must be a float32 array, not list"):
        infer_sizes(weights | {name: [1.0]})


def test_sizes_of_a_block_without_norms_at_its_inputs():
    weights = make_weights(20, 24, n_heads=2, norm_placement="post")
    assert infer_sizes(weights) == (20, 24)
    del weights["attention_output_norm.weight"]
    with pytest.raises(ValueError, match=r"lack 'input_layernorm.weight'$"):
        infer_sizes(weights)


# --- names -------------------------------------------------------------------------------------------------


def test_all_names_come_back_in_order():
    weights, options = case(
        qkv_bias=True, qk_norm=True, norm="layernorm", norm_bias=True, mlp_bias=True, o_bias=True
    )
    shuffled = dict(sorted(weights.items(), reverse=True))
    admitted = admit_weights(shuffled, options)
    assert list(admitted) == list(options.weight_shapes())
    for name, stored in admitted.items():
        assert np.array_equal(bits(stored), bits(weights[name]))


def test_a_misspelt_name_is_reported_with_the_missing_one():
    weights, options = case()
    weights["o_porj.weight"] = weights.pop("o_proj.weight")
    message = refusal(ValueError, weights, options)
    assert "lack 'o_proj.weight'" in message
    assert "'o_porj.weight' is unknown (did you mean 'o_proj.weight'?)" in message


@pytest.mark.parametrize("prefix", ["", "model.layers.0."])
def test_names_of_a_whole_model_lose_their_prefix(prefix):
    weights, options = case()
    parts = {"q": "self_attn.", "k": "self_attn.", "v": "self_attn.", "o": "self_attn."}
    theirs = {
        f"{prefix}{parts.get(name[0], 'mlp.')}{name}": w for name, w in weights.items() if "proj" in name
    }
    rest = {prefix + name: w for name, w in weights.items() if "proj" not in name}
    first = next(name for name in rest | theirs if name not in weights)
    short = ".".join(first.split(".")[-2:])
    message = refusal(ValueError, rest | theirs, options)
    assert message.startswith(
        f"TransformerBlock: the weight '{first}' must come without its prefix, as '{short}'"
    )
    with pytest.raises(ValueError, match="without its prefix"):
        infer_sizes(rest | theirs)


def test_a_misspelt_name_with_a_prefix():
    weights, options = case()
    weights["model.layers.0.self_attn.o_porj.weight"] = weights.pop("o_proj.weight")
    assert "did you mean 'o_proj.weight'?" in refusal(ValueError, weights, options)


def test_all_faults_of_the_names_are_in_one_message():
    weights, options = case()
    del weights["q_proj.weight"], weights["down_proj.weight"]
    weights |= {"lora": np.zeros(1), 7: np.zeros(1), "q_proj.bias": np.zeros(32, np.float32)}
    message = refusal(ValueError, weights, options)
    for word in ("'q_proj.weight'", "'down_proj.weight'", "'lora'", "7", "'q_proj.bias'", "qkv_bias=False"):
        assert word in message


@pytest.mark.parametrize(
    ("options", "without", "tensor", "words"),
    [
        ({"qkv_bias": True}, {}, "k_proj.bias", "qkv_bias=False"),
        ({"o_bias": True}, {}, "o_proj.bias", "o_bias=False"),
        ({"mlp_bias": True}, {}, "down_proj.bias", "mlp_bias=False"),
        ({"qk_norm": True}, {}, "k_norm.weight", "qk_norm=False"),
        (
            {"norm": "layernorm", "norm_bias": True},
            {"norm": "layernorm"},
            "input_layernorm.bias",
            "norm_bias=False",
        ),
        ({}, {"mlp": "gelu"}, "gate_proj.weight", "mlp='gelu'"),
    ],
)
def test_a_tensor_whose_option_is_off(options, without, tensor, words):
    weights, _ = case(**options)
    message = refusal(ValueError, weights, case(**without)[1])
    assert f"'{tensor}' is given" in message
    assert words in message


def test_a_tensor_whose_option_is_on_is_needed():
    message = refusal(ValueError, case()[0], case(qkv_bias=True)[1])
    for name in ("q_proj.bias", "k_proj.bias", "v_proj.bias"):
        assert f"lack '{name}'" in message


# --- shapes and dtypes -------------------------------------------------------------------------------------


def test_a_wrong_shape_is_explained():
    weights, options = case()
    weights["k_proj.weight"] = weights["k_proj.weight"].T
    message = refusal(ValueError, weights, options)
    assert "k_proj.weight has shape (20, 16)" in message
    assert "(n_kv_heads*head_dim, d_model) = (16, 20)" in message
    assert "n_kv_heads=2, head_dim=8 and d_model=20 is the length of input_layernorm.weight" in message


@pytest.mark.parametrize("name", [MATRIX, VECTOR, "down_proj.weight"])
def test_any_other_shape_is_refused(name):
    weights, options = case()
    right = weights[name]
    for wrong in (right[1:], right[None], right[..., :-1], right.reshape(-1, 1), np.float32(1).reshape(())):
        assert f"{name} has shape {wrong.shape}" in refusal(ValueError, weights | {name: wrong}, options)


def test_a_norm_over_the_full_width_is_never_broadcast():
    weights, options = case(qk_norm=True)
    weights["q_norm.weight"] = np.ones(32, np.float32)
    assert "q_norm.weight has shape (32,); wanted is (head_dim,) = (8,)" in refusal(
        ValueError, weights, options
    )


@pytest.mark.parametrize("name", [MATRIX, VECTOR])
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int8, np.bool_, ">f4", object])
@pytest.mark.parametrize("weight_format", ["float32", "bfloat16", "float16"])
def test_other_dtypes_are_refused_with_the_cast(name, dtype, weight_format):
    weights, options = case(weight_format=weight_format)
    weights[name] = np.ones(weights[name].shape, dtype)
    message = refusal(TypeError, weights, options)
    assert f"weights['{name}'].astype(np.float32)" in message
    assert ("other byte order" in message) == (dtype == ">f4")


@pytest.mark.parametrize("name", [MATRIX, VECTOR])
@pytest.mark.parametrize(
    ("dtype", "weight_format", "remedy"),
    [
        (np.uint16, "float32", "bfloat16"),
        (np.float16, "float32", "float16"),
        (np.uint16, "float16", "bfloat16"),
        (np.float16, "bfloat16", "float16"),
    ],
)
def test_another_format_is_refused_with_the_remedy(name, dtype, weight_format, remedy):
    weights, options = case(weight_format=weight_format)
    weights[name] = np.ones(weights[name].shape, dtype)
    message = refusal(TypeError, weights, options)
    assert name in message
    assert f"give weight_format='{remedy}'" in message


@pytest.mark.parametrize(("dtype", "weight_format"), [(">u2", "bfloat16"), (">f2", "float16")])
def test_narrow_weights_in_the_other_byte_order(dtype, weight_format):
    weights, options = case(weight_format=weight_format)
    weights[MATRIX] = np.ones(weights[MATRIX].shape, dtype)
    assert "other byte order; cast it with weights['q_proj.weight'].astype" in refusal(
        TypeError, weights, options
    )


@pytest.mark.parametrize("wrong", [None, [[1.0]], "abc", 1.0, b"abcd"])
def test_what_is_no_array_is_refused(wrong):
    weights, options = case()
    assert f"{MATRIX} must be a float32 array" in refusal(TypeError, weights | {MATRIX: wrong}, options)


# --- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(wrong):
    weights, options = case()
    weights[MATRIX][3, 17] = weights[MATRIX][3, 18] = wrong
    assert f"{MATRIX}[3, 17] = {np.float32(wrong)} is not a finite number" in refusal(
        ValueError, weights, options
    )
    weights, options = case()
    weights[VECTOR][5] = wrong
    assert f"{VECTOR}[5] = {np.float32(wrong)}" in refusal(ValueError, weights, options)


@pytest.mark.parametrize("pattern", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81])
def test_bfloat16_bits_that_are_not_finite(pattern):
    weights, options = case(weight_format="bfloat16")
    stored = np.zeros(weights[MATRIX].shape, np.uint16)
    stored[1, 2] = pattern
    assert f"{MATRIX}[1, 2] = " in refusal(ValueError, weights | {MATRIX: stored}, options)


def test_float16_that_is_not_finite():
    weights, options = case(weight_format="float16")
    stored = np.zeros(weights[MATRIX].shape, np.float16)
    stored[31, 19] = -np.inf
    assert f"{MATRIX}[31, 19] = -inf" in refusal(ValueError, weights | {MATRIX: stored}, options)


def rounded(weights, weight_format):
    return {name: widen(narrow(tensor, weight_format)) for name, tensor in weights.items()}


@pytest.mark.parametrize("weight_format", ["bfloat16", "float16"])
def test_narrow_matrices_and_wide_vectors(weight_format):
    weights, options = case(weight_format=weight_format, qkv_bias=True)
    exact = rounded(weights, weight_format)
    stored = {name: narrow(tensor, weight_format) for name, tensor in exact.items()}
    from_wide, from_narrow = admit_weights(exact, options), admit_weights(stored, options)
    for name, tensor in exact.items():
        for admitted in (from_wide[name], from_narrow[name]):
            assert admitted.dtype == (stored[name].dtype if tensor.ndim == 2 else np.float32)
            assert np.array_equal(bits(widen(admitted)), bits(tensor))


@pytest.mark.parametrize(
    ("weight_format", "value"),
    [("bfloat16", 0.1), ("bfloat16", 3.4e38), ("float16", 0.1), ("float16", 65536.0), ("float16", 2.0**-25)],
)
def test_a_matrix_is_never_rounded(weight_format, value):
    weights, options = case(weight_format=weight_format)
    weights = rounded(weights, weight_format)
    weights[MATRIX][2, 3] = value
    message = refusal(ValueError, weights, options)
    assert f"{MATRIX}[2, 3] = {np.float32(value)} is no {weight_format} number" in message
    assert "narrow(" in message
    assert "weight_format='float32'" in message


def test_a_float32_vector_is_kept_whole_in_every_format():
    weights, options = case(weight_format="bfloat16")
    vector = weights[VECTOR]
    admitted = admit_weights(rounded(weights, "bfloat16") | {VECTOR: vector}, options)
    assert np.array_equal(bits(admitted[VECTOR]), bits(vector))


def test_a_bfloat16_dtype_is_read_by_its_bits(monkeypatch):
    assert module._is_bfloat16(types.SimpleNamespace(name="bfloat16"))
    two_bytes = np.dtype("V2")  # stands for the dtype that the package ml_dtypes adds to NumPy
    monkeypatch.setattr(module, "_is_bfloat16", lambda dtype: dtype == two_bytes)
    weights, options = case(weight_format="bfloat16")
    exact = rounded(weights, "bfloat16")
    typed = {name: narrow(tensor, "bfloat16").view(two_bytes) for name, tensor in exact.items()}
    for name, admitted in admit_weights(typed, options).items():
        assert np.array_equal(bits(widen(admitted)), bits(exact[name]))
        assert np.array_equal(bits(widen(typed[name])), bits(exact[name]))
    message = refusal(TypeError, exact | {MATRIX: typed[MATRIX]}, case()[1])
    assert "give weight_format='bfloat16'" in message


# --- memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_any_memory_is_admitted(form):
    weights, options = case()
    admitted = admit_weights({name: FORMS[form](tensor) for name, tensor in weights.items()}, options)
    for name, tensor in admitted.items():
        assert type(tensor) is np.ndarray
        assert tensor.flags.c_contiguous
        assert tensor.flags.aligned
        assert np.array_equal(bits(tensor), bits(weights[name]))


def test_memory_maps_are_admitted(tmp_path):
    weights, options = case()
    mapped = {}
    for name, tensor in weights.items():
        np.save(tmp_path / f"{name}.npy", tensor)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    for name, tensor in admit_weights(mapped, options).items():
        assert np.array_equal(bits(tensor), bits(weights[name]))


def test_an_archive_is_a_mapping_too(tmp_path):
    weights, options = case()
    np.savez(tmp_path / "weights.npz", **weights)
    with np.load(tmp_path / "weights.npz") as archive:
        assert infer_sizes(archive) == (20, 24)
        assert list(admit_weights(archive, options)) == list(options.weight_shapes())


def test_vectors_are_copies_and_nothing_is_modified():
    weights, options = case(qkv_bias=True)
    before = {name: tensor.copy() for name, tensor in weights.items()}
    admitted = admit_weights(weights, options)
    for name, tensor in admitted.items():
        if tensor.ndim == 1:
            assert not np.shares_memory(tensor, weights[name])
        assert np.array_equal(bits(weights[name]), bits(before[name]))


def test_a_mask_is_not_ignored():
    weights, options = case()
    weights[MATRIX] = np.ma.masked_less(weights[MATRIX], 0)
    assert "masked" in refusal(TypeError, weights, options)
