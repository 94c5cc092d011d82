"""Tensors stored otherwise than a block wants them: each row lands in its place, at the cost of one copy."""

import tracemalloc

import numpy as np
import pytest

from mojolearn.models.layouts import GLM, GPT2, GPT_NEOX, LLAMA, PHI, PHI3, STABLELM
from mojolearn.models.recipes import layer_weights

HEADS, KV, HD, D, IT = 3, 1, 2, 5, 7


class Tensors:
    """Stands for a checkpoint: hands out arrays by name and shape."""

    def __init__(self, named):
        self.named = named

    def take(self, name, shape):
        array = self.named.pop(name)
        assert array.shape == shape
        return array


def numbered(*shape):
    """Every number is another one."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def gathered(layout, named, shapes, head_dim=HD):
    checkpoint = Tensors({f"h.{name}": array for name, array in named.items()})
    weights, origins = layer_weights(checkpoint.take, layout, "h.", shapes, head_dim)
    assert not checkpoint.named
    assert set(weights) == set(shapes)
    assert set(origins.values()) == {f"h.{name}" for name in named}
    return weights


def test_alone_is_the_memory_of_the_file():
    array = numbered(6, D)
    assert (
        gathered(LLAMA, {"self_attn.q_proj.weight": array}, {"q_proj.weight": (6, D)})["q_proj.weight"]
        is array
    )


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_stacked(leaf):
    rest = (D,) if leaf == "weight" else ()
    whole = numbered((HEADS + 2 * KV) * HD, *rest)
    shapes = {
        f"{part}.{leaf}": (n * HD, *rest) for part, n in (("q_proj", HEADS), ("k_proj", KV), ("v_proj", KV))
    }
    weights = gathered(PHI3, {f"self_attn.qkv_proj.{leaf}": whole}, shapes)
    np.testing.assert_array_equal(weights[f"q_proj.{leaf}"], whole[:6])
    np.testing.assert_array_equal(weights[f"k_proj.{leaf}"], whole[6:8])
    np.testing.assert_array_equal(weights[f"v_proj.{leaf}"], whole[8:])
    assert all(np.shares_memory(array, whole) for array in weights.values())


def test_gate_comes_first():
    whole = numbered(2 * IT, D)
    shapes = {"gate_proj.weight": (IT, D), "up_proj.weight": (IT, D)}
    weights = gathered(GLM, {"mlp.gate_up_proj.weight": whole}, shapes)
    np.testing.assert_array_equal(weights["gate_proj.weight"], whole[:IT])
    np.testing.assert_array_equal(weights["up_proj.weight"], whole[IT:])


def test_transposed():
    whole, bias = numbered(D, 3 * 4), numbered(3 * 4)
    shapes = {f"{part}.weight": (4, D) for part in ("q_proj", "k_proj", "v_proj")}
    shapes |= {f"{part}.bias": (4,) for part in ("q_proj", "k_proj", "v_proj")}
    weights = gathered(GPT2, {"attn.c_attn.weight": whole, "attn.c_attn.bias": bias}, shapes)
    for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
        np.testing.assert_array_equal(weights[f"{part}.weight"], whole.T[4 * i : 4 * i + 4])
        np.testing.assert_array_equal(weights[f"{part}.bias"], bias[4 * i : 4 * i + 4])


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_head_by_head(leaf):
    """Rows of q, k and v for head 0, then for head 1, ..."""
    rest = (D,) if leaf == "weight" else ()
    whole = numbered(HEADS * 3 * HD, *rest)
    shapes = {f"{part}.{leaf}": (HEADS * HD, *rest) for part in ("q_proj", "k_proj", "v_proj")}
    weights = gathered(GPT_NEOX, {f"attention.query_key_value.{leaf}": whole}, shapes)
    for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
        rows = [head * 3 * HD + i * HD + column for head in range(HEADS) for column in range(HD)]
        np.testing.assert_array_equal(weights[f"{part}.{leaf}"], whole[rows])


def test_one_vector_for_all_heads():
    shapes = {"q_norm.weight": (HEADS * HD,), "k_norm.weight": (KV * HD,)}
    q, k = numbered(HD), numbered(HD) + 10
    named = {"self_attn.q_layernorm.weight": q, "self_attn.k_layernorm.weight": k}
    weights = gathered(PHI, named, shapes)
    np.testing.assert_array_equal(weights["q_norm.weight"], [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(weights["k_norm.weight"], [10, 11])


def test_one_tensor_per_head():
    named = {f"self_attn.q_layernorm.norms.{head}.weight": numbered(HD) + 10 * head for head in range(HEADS)}
    checkpoint = Tensors({f"h.{name}": array for name, array in named.items()})
    weights, _ = layer_weights(checkpoint.take, STABLELM, "h.", {"q_norm.weight": (HEADS * HD,)}, HD)
    np.testing.assert_array_equal(weights["q_norm.weight"], [0, 1, 10, 11, 20, 21])


def test_norms_without_tensors():
    shapes = {"input_layernorm.weight": (D,), "post_attention_layernorm.weight": (D,)}
    weights, _ = layer_weights(Tensors({}), LLAMA, "h.", shapes, HD, plain_norms=True)
    assert all((weights[name] == 1).all() for name in shapes)


def test_head_by_head_costs_one_copy():
    whole = np.ones((8 * 3 * 64, 2048), np.float32)
    named = {"attention.query_key_value.weight": whole}
    shapes = {f"{part}.weight": (512, 2048) for part in ("q_proj", "k_proj", "v_proj")}
    tracemalloc.start()
    weights = gathered(GPT_NEOX, named, shapes, head_dim=64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(array.nbytes for array in weights.values()) == whole.nbytes
    assert peak < 1.1 * whole.nbytes
