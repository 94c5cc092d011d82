"""Every family: the numbers of the reference, both spellings, all ways to cut a call, and damaged tensors."""

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from toy_models import raw_file

from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.checkpoint import DTYPES
from mojolearn.models.families import FAMILIES

DATA = Path(__file__).parent / "data" / "models"
MORE = os.environ.get("MOJOLEARN_MODELS")
OURS = sorted(path.parent for path in DATA.glob("*/config.json"))
THEIRS = sorted(path.parent for path in Path(MORE).glob("*/reference.npz")) if MORE else []
ABSENT = pytest.param(None, marks=pytest.mark.skip("MOJOLEARN_MODELS names no folder of further checkpoints"))


def each(folders):
    return [pytest.param(folder, id=folder.name) for folder in folders]


every = pytest.mark.parametrize("folder", [*each(OURS), *(each(THEIRS) or [ABSENT])])
every_of_ours = pytest.mark.parametrize("folder", each(OURS))


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


def reference(folder):
    """The arrays of a reference; small ones keep ids in two bytes."""
    arrays = np.load(folder / "reference.npz")
    return {
        name: arrays[name].astype(np.int64) if name[:2] in ("id", "at", "ge") else arrays[name]
        for name in arrays
    }


def scaling(lm):
    """The type of rotary scaling of a model, or None."""
    return (lm.config.layers[-1].get("rope_scaling") or {}).get("type")


def hidden_states(lm, ids):
    """Embeddings, the output of every layer but the last, and of the final norm: (layers + 1, L, d_model)."""
    x = lm._embedding(ids, 0)
    states = [x]
    for block in lm.blocks:
        x = block.forward(x)
        states.append(x)
    rows = states[-1].reshape(-1, lm.d_model)
    states[-1] = (rows if lm._norm is None else lm._norm(rows)).reshape(x.shape)
    return np.stack(states)[:, 0]


def test_every_family_is_here():
    assert {json.loads((f / "config.json").read_text())["model_type"] for f in OURS} == set(FAMILIES)


@every
@pytest.mark.parametrize("letter", "ab")
def test_logits(folder, letter):
    wanted = reference(folder)
    logits = CausalLM.load(folder).forward(wanted[f"ids_{letter}"])
    assert logits.dtype == np.float32
    at = wanted.get(f"at_{letter}", slice(None))
    exact = wanted[f"logits64_{letter}"]
    np.testing.assert_allclose(logits[:, at], exact, rtol=0, atol=2e-5 * np.abs(exact).max())


@every
@pytest.mark.parametrize("letter", "ab")
def test_greedy_tokens(folder, letter):
    """The reference was computed by calls without a cache, so that its scaling followed the length."""
    lm, wanted = CausalLM.load(folder), reference(folder)
    ids, new = wanted[f"ids_{letter}"], wanted[f"gen_{letter}"]
    if scaling(lm) in ("dynamic", "longrope"):
        for n in range(new.shape[1]):
            so_far = np.concatenate([ids, new[:, :n]], axis=1)
            np.testing.assert_array_equal(lm.forward(so_far)[:, -1].argmax(1), new[:, n])
        return
    state = lm.allocate_state(len(ids), ids.shape[1] + new.shape[1])
    logits = lm.forward(ids, state)[:, -1]
    for n in range(new.shape[1]):
        np.testing.assert_array_equal(logits.argmax(1), new[:, n])
        logits = lm.step(new[:, n], state)
    np.testing.assert_array_equal(lm.generate(ids, new.shape[1])[:, ids.shape[1] :], new)


@every
def test_hidden_states(folder):
    wanted = reference(folder)
    if "hidden64_a0" not in wanted:
        pytest.skip("the reference holds no hidden states")
    states, exact = hidden_states(CausalLM.load(folder), wanted["ids_a"][:1]), wanted["hidden64_a0"]
    states = states if exact.ndim == 3 else states[:, -1]
    np.testing.assert_allclose(states, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("folder", each([f for f in [*OURS, *THEIRS] if (f / "config.legacy.json").exists()]))
def test_older_spelling_gives_the_same_bits(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "old")
    os.replace(tmp_path / "old" / "config.legacy.json", tmp_path / "old" / "config.json")
    ids = np.arange(40)[None]
    new, old = CausalLM.load(folder), CausalLM.load(tmp_path / "old")
    assert new.config == old.config
    np.testing.assert_array_equal(bits(new.forward(ids)), bits(old.forward(ids)))


@every_of_ours
def test_any_cut_of_a_call_gives_the_same_bits(folder):
    lm = CausalLM.load(folder)
    ids = np.random.default_rng(0).integers(0, lm.vocab_size, (2, 24))
    one, state = lm.allocate_state(2, 24), lm.allocate_state(2, 24)
    whole = lm.forward(ids, one)
    parts = [
        lm.forward(ids[:, :13], state),
        lm.step(ids[:, 13], state)[:, None],
        lm.forward(ids[:, 14:], state),
    ]
    np.testing.assert_array_equal(bits(np.concatenate(parts, axis=1)), bits(whole))
    np.testing.assert_array_equal(bits(lm.forward(ids)), bits(whole))  # as long as the state
    np.testing.assert_array_equal(bits(lm.forward(ids[1:])[0]), bits(whole[1]))


# --- the tensors of a folder, to be damaged -----------------------------------------------------------------


def read(path):
    """Header and data of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def tensors(folder):
    """All tensors of a folder: (dtype as the file spells it, array); bfloat16 as its bits."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        header, data = read(path)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            array = np.frombuffer(data[start:stop], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
            found[name] = (entry["dtype"], array)
    return found


def write(folder, named):
    """Write tensors as the one file of a folder."""
    header, blobs, at = {}, [], 0
    for name, (dtype, array) in named.items():
        blobs.append(np.ascontiguousarray(array).tobytes())
        offsets = [at, at + len(blobs[-1])]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        at = offsets[1]
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "model.safetensors").write_bytes(raw_file(header, b"".join(blobs)))


def copied(folder, tmp_path, change):
    """A copy of a folder whose tensors a function of their dict has changed."""
    shutil.copytree(folder, tmp_path / "copy")
    named = tensors(folder)
    named = change(named) or named
    write(tmp_path / "copy", named)
    return tmp_path / "copy"


def nan_like(dtype):
    return np.array([0x7FC0], np.uint16)[0] if dtype == "BF16" else np.nan


# A tensor of each kind of layout: plain, stacked, transposed, interleaved by heads, folded, shared, listed.
DAMAGED = {
    "phi3": "model.layers.1.self_attn.qkv_proj.weight",
    "glm4": "model.layers.1.mlp.gate_up_proj.weight",
    "gpt2": "transformer.h.1.attn.c_attn.weight",
    "gpt_neox": "gpt_neox.layers.1.attention.query_key_value.weight",
    "gptj": "transformer.h.1.mlp.fc_in.bias",
    "cohere_qk_norm": "model.layers.1.self_attn.q_norm.weight",
    "phi_qk_norm": "model.layers.1.self_attn.k_layernorm.weight",
    "stablelm_parallel_qk_norm": "model.layers.1.self_attn.q_layernorm.norms.2.weight",
    "opt": "model.decoder.layers.1.fc2.weight",
    "gemma2": "model.layers.1.pre_feedforward_layernorm.weight",
}
damaged = pytest.mark.parametrize(("name", "tensor"), DAMAGED.items(), ids=DAMAGED)


class TestDamage:
    def refused(self, folder, *words):
        with pytest.raises(ValueError, match=r"^CausalLM\.load: [^\n]+$") as caught:
            CausalLM.load(folder)
        assert str(folder) in str(caught.value)
        for word in words:
            assert word in str(caught.value)

    @damaged
    def test_missing(self, tmp_path, name, tensor):
        wanted = tensors(DATA / name)[tensor][1].shape
        folder = copied(DATA / name, tmp_path, lambda named: named.pop(tensor) and None)
        self.refused(folder, f"the tensor {tensor} is missing", str(wanted))

    @damaged
    def test_wrong_shape(self, tmp_path, name, tensor):
        def change(named):
            dtype, array = named[tensor]
            named[tensor] = (dtype, array[:-1])

        shape = tensors(DATA / name)[tensor][1].shape
        self.refused(
            copied(DATA / name, tmp_path, change),
            tensor,
            str(shape),
            str((shape[0] - 1, *shape[1:])),
            "wanted",
        )

    @damaged
    def test_wrong_dtype(self, tmp_path, name, tensor):
        def change(named):
            named[tensor] = ("F64", named[tensor][1].astype(np.float64))

        self.refused(copied(DATA / name, tmp_path, change), tensor, "F64", "F32")

    @damaged
    def test_no_number(self, tmp_path, name, tensor):
        def change(named):
            dtype, array = named[tensor]
            array.reshape(-1)[3] = nan_like(dtype)

        folder = copied(DATA / name, tmp_path, change)
        self.refused(folder, tensor.replace("norms.2.", "norms.*."), "layer 1", "not a finite number")

    @damaged
    def test_one_too_many(self, tmp_path, name, tensor):
        extra = tensor.replace(".1.", ".7.", 1)
        folder = copied(DATA / name, tmp_path, lambda named: {**named, extra: named[tensor]})
        self.refused(folder, "no place", extra)

    def test_bias_that_is_switched_off(self, tmp_path):
        name = "transformer.h.0.attn.q_proj.bias"
        folder = copied(DATA / "gptj", tmp_path, lambda n: {**n, name: ("F32", np.zeros(32, np.float32))})
        self.refused(folder, "no place", name)

    def test_positions(self, tmp_path):
        def change(named):
            dtype, array = named["transformer.wpe.weight"]
            named["transformer.wpe.weight"] = (dtype, array[:-1])

        self.refused(copied(DATA / "gpt2", tmp_path, change), "wpe.weight", "(63, 32)", "(64, 32)")

    def test_bias_of_the_head(self, tmp_path):
        folder = copied(DATA / "gptj", tmp_path, lambda named: named.pop("lm_head.bias") and None)
        self.refused(folder, "lm_head.bias is missing", "(64,)")


ROOTS = ("model.decoder.", "model.language_model.", "model.", "transformer.", "gpt_neox.")


@every_of_ours
def test_names_without_the_prefix_of_the_model(folder, tmp_path):
    """As written from the class without an output head."""

    def change(named):
        def short(name):
            return next((name.removeprefix(root) for root in ROOTS if name.startswith(root)), name)

        return {short(name): tensor for name, tensor in named.items()}

    ids = np.arange(12)[None]
    bare = CausalLM.load(copied(folder, tmp_path, change))
    np.testing.assert_array_equal(bits(bare.forward(ids)), bits(CausalLM.load(folder).forward(ids)))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.1.attn.masked_bias"),
        ("gptj", "transformer.h.0.attn.masked_bias"),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias"),
        ("gpt_neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("gemma3", "vision_tower.vision_model.head.probe"),
        ("llama_bias", "model.rotary_emb.inv_freq"),
    ],
)
def test_tensors_that_hold_no_weights(tmp_path, name, tensor):
    extra = {tensor: ("F32", np.ones((1, 1, 4, 4), np.float32))}
    assert CausalLM.load(copied(DATA / name, tmp_path, lambda named: {**named, **extra})).n_layers >= 2


def test_older_name_of_a_head(tmp_path):
    def change(named):
        return {name.replace("embed_out", "lm_head"): tensor for name, tensor in named.items()}

    ids = np.arange(12)[None]
    lm = CausalLM.load(copied(DATA / "gpt_neox_sequential", tmp_path, change))
    wanted = CausalLM.load(DATA / "gpt_neox_sequential").forward(ids)
    np.testing.assert_array_equal(bits(lm.forward(ids)), bits(wanted))


def test_older_names_of_a_model_of_texts_and_pictures(tmp_path):
    """language_model.model.layers..., as its first files have it."""

    def change(named):
        named = {
            name.replace("model.language_model.", "language_model.model."): t for name, t in named.items()
        }
        return {name.removeprefix("model."): tensor for name, tensor in named.items()}

    ids = np.arange(12)[None]
    lm = CausalLM.load(copied(DATA / "gemma3", tmp_path, change))
    wanted = CausalLM.load(DATA / "gemma3").forward(ids)
    np.testing.assert_array_equal(bits(lm.forward(ids)), bits(wanted))


class TestLearnedPositions:
    @pytest.mark.parametrize(("name", "most"), [("gpt2", 64), ("opt", 96)])
    def test_ceiling(self, name, most):
        lm = CausalLM.load(DATA / name)
        assert lm.max_positions == most
        assert np.isfinite(lm.forward(np.zeros((1, most), int))).all()
        with pytest.raises(ValueError, match=f"reaches position {most}, but max_positions={most}"):
            lm.forward(np.zeros((1, most + 1), int))

    def test_no_more_than_were_learned(self):
        with pytest.raises(ValueError, match=r"max_positions must be at most 64, .* learned, not 65"):
            CausalLM.load(DATA / "gpt2", max_positions=65)
        assert CausalLM.load(DATA / "gpt2", max_positions=9).max_positions == 9


def test_soft_ceiling_of_the_logits_is_never_passed(tmp_path):
    """|l| ≤ cap, an odd function, finite: also for logits that are far above."""

    def change(named):
        for name in named:
            if name.endswith("norm.weight") and "layers" not in name:
                named[name] = ("F32", np.full(named[name][1].shape, 1e5, np.float32))

    logits = CausalLM.load(copied(DATA / "gemma2", tmp_path, change)).forward(np.arange(12)[None])
    assert np.abs(logits).max() == 4.0
    assert np.isfinite(logits).all()
