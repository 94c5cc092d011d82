"""Models from GGUF files: the same bits as from the folders that they were made of, or a refusal that says why."""

import json
import shutil
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf_files import ARCHITECTURES, convert, metadata_of, random_blocks, stored, tensors_of, write
from toy_models import coarse, config, tensors, write_model

from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.describe import describe
from mojolearn.models.gguf import GGUFCheckpoint
from mojolearn.models.gguf_quants import TYPES, decode

DATA = Path(__file__).parent / "data" / "models"

# What a GGUF file has no words for, as llama.cpp takes it.
UNSAID = {
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3_text": {"query_pre_attn_scalar": 12},
    "gpt2": {"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
    "llama_yarn": {"hidden_act": "silu"},
    "qwen2_sliding": {"use_sliding_window": False, "layer_types": None, "sliding_window": None},
    "smollm3": {"no_rope_layers": None, "no_rope_layer_interval": 4},
}
UNSAYABLE = ("llama_dynamic", "phi_qk_norm")
TOY = {"hidden_size": 64, "intermediate_size": 96}


def fields_of(folder):
    return json.loads((folder / "config.json").read_text())


FOLDERS = [
    folder
    for folder in sorted(path.parent for path in DATA.glob("*/config.json"))
    if fields_of(folder)["model_type"] in ARCHITECTURES and folder.name not in UNSAYABLE
]


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


def assert_same(a, b):
    """Two models have the same options and give the same bits."""
    ids = np.random.default_rng(0).integers(0, b.vocab_size, (2, 40))
    assert a.config.layers == b.config.layers
    np.testing.assert_array_equal(bits(a.forward(ids)), bits(b.forward(ids)))
    if a.config.model_type != "gemma":  # (1 + w) - 1 need not be w, though 1 + that is the same number again
        assert a.fingerprint == b.fingerprint  # so a stream that one has saved goes on with the other


def parts(tmp_path, kind="F32", named=None, **fields):
    """A small llama: its folder, and the metadata and tensors of the file that says the same."""
    folder = write_model(tmp_path / "folder", named, **{**TOY, **fields})
    config = fields_of(folder)
    config.setdefault(
        "rope_parameters", {"rope_type": "default", "rope_theta": config.pop("rope_theta", 10000.0)}
    )
    return folder, metadata_of(config), tensors_of(folder, config, kind)


def refused(path, match, error=ValueError):
    with pytest.raises(error, match=match) as caught:
        CausalLM.load(path)
    assert str(caught.value).startswith("CausalLM.load: ")
    assert "\n" not in str(caught.value)
    assert str(path.parent) in str(caught.value)


def test_every_architecture_is_here():
    assert {fields_of(folder)["model_type"] for folder in FOLDERS} | {"phi"} == set(ARCHITECTURES)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_same_bits_as_the_folder(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "config.json").write_text(json.dumps(fields_of(copy) | UNSAID.get(folder.name, {})))
    ours = CausalLM.load(convert(copy, tmp_path / "x.gguf"))
    theirs = CausalLM.load(copy, weight_format="float32")
    assert_same(ours, theirs)
    assert ours.max_positions == theirs.max_positions


def test_phi_without_its_optional_norms(tmp_path):
    """The reference models of this architecture have none, and the format no names for them."""
    folder = tmp_path / "folder"
    shutil.copytree(DATA / "phi_qk_norm", folder)
    fields = fields_of(folder) | {"qk_layernorm": False}
    (folder / "config.json").write_text(json.dumps(fields))
    named = tensors_of(folder, fields, absent=("q_layernorm", "k_layernorm"))
    path = write(tmp_path / "x.gguf", metadata_of(fields), named)
    lm = CausalLM.load(path)
    assert lm.config.layers[0]["qk_norm"] is False
    assert np.isfinite(lm.forward([[1, 2, 3]])).all()
    del named["blk.1.ffn_up.bias"]
    refused(write(path, metadata_of(fields), named), r"blk\.1\.ffn_up\.bias is missing")


class TestStorage:
    @pytest.mark.parametrize(("kind", "name"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16")])
    def test_plain_types_are_kept(self, tmp_path, kind, name):
        named = {name: coarse(array) for name, array in tensors(config(**TOY)).items()}
        folder, metadata, stored = parts(tmp_path, kind, named)
        path = write(tmp_path / "x.gguf", metadata, stored)
        lm = CausalLM.load(path)
        assert lm.weight_format == name
        for other in ("float32", "float16", "bfloat16"):
            assert_same(CausalLM.load(path, weight_format=other), CausalLM.load(folder, weight_format=other))

    @pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
    def test_blocks_become_float32(self, tmp_path, kind):
        """Near the values they were made of, and the bits of a folder that holds what they are decoded to."""
        _, metadata, named = parts(tmp_path, kind)
        path = write(tmp_path / "x.gguf", metadata, named)
        original, decoded = tensors(config(**TOY)), {}
        checkpoint = GGUFCheckpoint(path)
        for name, array in original.items():
            decoded[name] = checkpoint.take(name, array.shape)
            error = np.abs(decoded[name] - array).max() / np.abs(array).max()
            assert error < {"Q4": 0.2, "Q5": 0.1, "Q8": 0.01}[kind[:2]]
        checkpoint.finish()
        lm = CausalLM.load(path)
        assert lm.weight_format == "float32"
        assert_same(lm, CausalLM.load(write_model(tmp_path / "decoded", decoded, **TOY)))

    @pytest.mark.parametrize("kind", [kind for kind in TYPES if TYPES[kind].values == 256])
    def test_blocks_of_256(self, tmp_path, kind):
        """Every matrix of a model in random blocks."""
        sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
        _, metadata, named = parts(tmp_path, **sizes)
        for name, (_, shape, _) in named.items():
            if len(shape) == 2:
                named[name] = (kind, shape, random_blocks(kind, shape[0] * shape[1] // 256).tobytes())
        path = write(tmp_path / "x.gguf", metadata, named)
        checkpoint = GGUFCheckpoint(path)
        decoded = {name: checkpoint.take(name, a.shape) for name, a in tensors(config(**sizes)).items()}
        assert_same(CausalLM.load(path), CausalLM.load(write_model(tmp_path / "decoded", decoded, **sizes)))

    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    def test_nothing_is_rounded(self, tmp_path, name):
        _, metadata, named = parts(tmp_path, "Q4_1")
        path = write(tmp_path / "x.gguf", metadata, named)
        with pytest.raises(
            ValueError, match=rf"{name} .*(never rounds|nothing is ever rounded)|no {name} number"
        ):
            CausalLM.load(path, weight_format=name)

    def test_mixed_types(self, tmp_path):
        _, metadata, named = parts(tmp_path, "F16")
        named["token_embd.weight"] = ("Q8_0", *parts(tmp_path, "Q8_0")[2]["token_embd.weight"][1:])
        assert CausalLM.load(write(tmp_path / "x.gguf", metadata, named)).weight_format == "float32"

    def test_blocks_take_the_package(self, tmp_path, monkeypatch):
        _, metadata, named = parts(tmp_path, "Q8_0")
        path = write(tmp_path / "x.gguf", metadata, named)
        monkeypatch.setitem(sys.modules, "gguf.quants", None)
        refused(path, r"`pip install mojolearn-numba\[gguf\]`", ImportError)
        _, metadata, named = parts(tmp_path, "F16")
        CausalLM.load(write(path, metadata, named))

    def test_peak_of_memory(self, tmp_path):
        """What is left afterwards, and not much more than the decoded tensors of one layer."""
        sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 4096}
        _, metadata, named = parts(tmp_path, "Q8_0", **sizes)
        path = write(tmp_path / "x.gguf", metadata, named)
        CausalLM.load(path)  # imports
        tracemalloc.start()
        lm = CausalLM.load(path)
        left, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        layer = 4 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 512)
        assert lm.n_layers == 6
        assert peak - left < max(3 * layer, 4 * 4096 * 128) + 500_000


class TestNames:
    def test_rows_of_pairs(self, tmp_path):
        """Queries and keys have different numbers of heads; done with one number, or not at all, bits would differ."""
        folder, metadata, named = parts(tmp_path, num_attention_heads=8, num_key_value_heads=2, head_dim=8)
        assert_same(CausalLM.load(write(tmp_path / "x.gguf", metadata, named)), CausalLM.load(folder))
        kind, shape, data = named["blk.0.attn_k.weight"]
        named["blk.0.attn_k.weight"] = (
            kind,
            shape,
            np.frombuffer(data, "<f4").reshape(shape)[::-1].tobytes(),
        )
        other = CausalLM.load(write(tmp_path / "x.gguf", metadata, named)).forward([[1, 2, 3]])
        assert (bits(other) != bits(CausalLM.load(folder).forward([[1, 2, 3]]))).any()

    @pytest.mark.parametrize("kind", ["F32", "Q8_0"])
    def test_one_tensor_for_queries_keys_and_values(self, tmp_path, kind):
        _, metadata, named = parts(tmp_path, kind, attention_bias=True)
        whole = CausalLM.load(write(tmp_path / "x.gguf", metadata, named))
        for layer in range(2):
            for leaf in ("weight", "bias"):
                three = [named.pop(f"blk.{layer}.attn_{x}.{leaf}") for x in "qkv"]
                rows = sum(shape[0] for _, shape, _ in three)
                data = b"".join(data for _, _, data in three)
                named[f"blk.{layer}.attn_qkv.{leaf}"] = (three[0][0], (rows, *three[0][1][1:]), data)
        path = write(tmp_path / "x.gguf", metadata, named)
        assert_same(CausalLM.load(path), whole)
        kind, shape, data = named["blk.1.attn_qkv.weight"]
        short = data[: len(data) // shape[0] * (shape[0] - 1)]
        named["blk.1.attn_qkv.weight"] = (kind, (shape[0] - 1, shape[1]), short)
        refused(write(path, metadata, named), r"blk\.1\.attn_qkv\.weight has 127 rows; wanted are 128")

    def test_tied_head(self, tmp_path):
        folder, metadata, named = parts(tmp_path, tie_word_embeddings=True)
        assert "output.weight" not in named
        lm = CausalLM.load(write(tmp_path / "x.gguf", metadata, named))
        assert lm.config.tie_word_embeddings
        assert_same(lm, CausalLM.load(folder))

    def test_gains_with_one_added(self, tmp_path):
        """The file holds 1 + w, rounded; what is computed with is that number, to the bit."""
        folder = DATA / "gemma"
        fields = fields_of(folder)
        named = tensors_of(folder, fields)
        gains = np.array([0.5, 1.0, 1.5, 2.0, 70.3, 1 + 2**-23, 1 - 2**-24, 3e5, -2.5, 0], np.float32)
        gains = np.resize(gains, fields["hidden_size"])
        named["output_norm.weight"] = stored(gains)
        path = write(tmp_path / "x.gguf", metadata_of(fields), named)
        taken = GGUFCheckpoint(path).take("model.norm.weight", gains.shape)
        np.testing.assert_array_equal(bits(taken + np.float32(1)), bits(gains))
        named["output_norm.weight"] = stored(np.resize(np.float32(0.1), gains.shape))
        refused(
            write(path, metadata_of(fields), named),
            r"output_norm\.weight\[0\] is .*0\.1.*, which is not 1 \+ w",
        )

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (
                {"blk.1.attn_q.weight": None},
                r"blk\.1\.attn_q\.weight is missing; wanted is model\.layers\.1\.self_attn",
            ),
            ({"blk.0.ffn_norm.weight": None}, r"blk\.0\.ffn_norm\.weight is missing"),
            ({"output_norm.weight": None}, r"the tensor output_norm\.weight is missing"),
            ({"token_embd.weight": None}, r"the tensor token_embd\.weight is missing"),
            (
                {"blk.2.attn_q.weight": np.ones((64, 64))},
                r"1 tensor has no place in the model: blk\.2\.attn_q\.weight",
            ),
            ({"blk.00.attn_q.weight": np.ones((64, 64))}, r"no place in the model: blk\.00\.attn_q\.weight"),
            (
                {"blk.0.attn_q.scale": np.ones(1), "odd": np.ones(1)},
                r"2 tensors have no place .*: blk\.0\.attn_q\.scale, odd",
            ),
            ({"blk.0.attn_sinks.weight": np.ones(4)}, r"no place in the model: blk\.0\.attn_sinks\.weight"),
            (
                {"blk.0.attn_q.weight": np.ones((64, 32))},
                r"blk\.0\.attn_q\.weight has shape \(64, 32\), as model\.layers",
            ),
            ({"blk.0.attn_q.weight": np.ones((32, 128))}, r"blk\.0\.attn_q\.weight has shape \(32, 128\)"),
            ({"blk.0.attn_norm.weight": np.ones((1, 64))}, r"blk\.0\.attn_norm\.weight has shape \(1, 64\)"),
            ({"output.weight": np.ones((39, 64))}, r"output\.weight has shape \(39, 64\)"),
            (
                {"blk.0.ffn_up.weight": np.full((96, 64), np.nan)},
                r"up_proj\.weight\[0, 0\] = nan is not a finite number",
            ),
            ({"token_embd.weight": np.full((40, 64), np.inf)}, r"\[0, 0\] is inf, not a finite number"),
            ({"output_norm.weight": np.full(64, np.nan)}, r"\[0\] is nan, not a finite number"),
        ],
    )
    def test_refused(self, tmp_path, change, match):
        _, metadata, named = parts(tmp_path)
        for name, array in change.items():
            if array is None:
                del named[name]
            else:
                named[name] = stored(array)
        refused(write(tmp_path / "x.gguf", metadata, named), match)

    def test_nan_in_blocks(self, tmp_path):
        _, metadata, named = parts(tmp_path, "Q8_0")
        kind, shape, data = named["blk.1.ffn_up.weight"]
        named["blk.1.ffn_up.weight"] = (kind, shape, b"\xff\xff" + data[2:])
        refused(write(tmp_path / "x.gguf", metadata, named), "layer 1.* is not a finite number")


class TestParts:
    def split(self, tmp_path, count=3, **changes):
        """A model in several files; returns the first."""
        folder, metadata, named = parts(tmp_path)
        names = list(named)
        paths = []
        for i in range(count):
            keys = {"split.no": i, "split.count": count, "split.tensors.count": len(named)} | changes.get(
                f"keys{i}", {}
            )
            path = tmp_path / f"toy-{i + 1:05}-of-{count:05}.gguf"
            write(path, ({} if i else metadata) | keys, {name: named[name] for name in names[i::count]})
            paths.append(path)
        return folder, paths

    def test_all_are_read(self, tmp_path):
        folder, paths = self.split(tmp_path)
        assert_same(CausalLM.load(paths[0]), CausalLM.load(folder))

    def test_missing_part(self, tmp_path):
        _, paths = self.split(tmp_path)
        paths[1].unlink()
        refused(paths[0], r"toy-00002-of-00003\.gguf does not exist", FileNotFoundError)

    def test_not_the_first(self, tmp_path):
        _, paths = self.split(tmp_path)
        refused(paths[1], r"is one of 3 files; wanted is the first, named \.\.\.-00001-of-00003\.gguf")

    def test_renamed(self, tmp_path):
        _, paths = self.split(tmp_path)
        paths[0] = paths[0].rename(tmp_path / "toy.gguf")
        refused(paths[0], "is one of 3 files")

    def test_parts_of_different_models(self, tmp_path):
        _, paths = self.split(tmp_path, keys1={"split.no": 2})
        refused(paths[0], "does not say that it is file 2 of 3")
        _, paths = self.split(tmp_path, keys0={"split.tensors.count": 99})
        refused(paths[0], "the 3 files hold 21 tensors; wanted 99")

    def test_tensor_in_two_parts(self, tmp_path):
        _, paths = self.split(tmp_path)
        shutil.copy(paths[1], paths[2])
        refused(paths[0], "does not say that it is file 3 of 3")
        _, metadata, named = parts(tmp_path)
        keys = {"split.no": 1, "split.count": 2}
        for i, path in enumerate(tmp_path / f"two-0000{i}-of-00002.gguf" for i in (1, 2)):
            write(path, metadata | keys | {"split.no": i}, named)
        refused(tmp_path / "two-00001-of-00002.gguf", r"the tensor .* is in .*two-00001-of-00002\.gguf too")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_description(folder, tmp_path, monkeypatch):
    """The same as of the folder, from names, types and shapes: no value of the model is decoded for it."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "config.json").write_text(json.dumps(fields_of(copy) | UNSAID.get(folder.name, {})))
    path = convert(copy, tmp_path / "x.gguf")
    monkeypatch.setattr("mojolearn.models.gguf.decode", factors_only)
    ours, theirs = describe(path), describe(copy)
    assert ours["runs"] and theirs["runs"]
    for name in (
        "path",
        "tokenizer",
        "chat templates",
        "memory available",
        "weight format",
        "memory of weights",
    ):
        ours.pop(name, None)
        theirs.pop(name, None)
    assert ours == theirs


def factors_only(data, kind, shape, where):
    """Decoding of what belongs to the configuration."""
    assert "rope_" in where
    return decode(data, kind, shape, where)


def test_description_wants_the_package(tmp_path, monkeypatch):
    _, metadata, named = parts(tmp_path, "Q8_0")
    path = write(tmp_path / "x.gguf", metadata, named)
    assert describe(path)["weight format"] == "float32"
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    rows = describe(path)
    assert not rows["runs"]
    assert "pip install mojolearn-numba[gguf]" in rows["reason"]


def test_no_such_file(tmp_path):
    refused(tmp_path / "none.gguf", r"none\.gguf does not exist", FileNotFoundError)


def test_folder_of_files(tmp_path):
    _, metadata, named = parts(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("b.gguf", "a.GGUF"):
        write(tmp_path / "models" / name, metadata, named)
    with pytest.raises(
        FileNotFoundError, match=r"models holds no config\.json, but 2 GGUF files; .*models/a\.GGUF$"
    ):
        CausalLM.load(tmp_path / "models")


def test_a_file_without_the_ending(tmp_path):
    """As some programs keep them, under the name of their contents."""
    folder, metadata, named = parts(tmp_path)
    assert_same(CausalLM.load(str(write(tmp_path / "sha256-0a1b", metadata, named))), CausalLM.load(folder))


def test_max_positions(tmp_path):
    _, metadata, named = parts(tmp_path)
    path = write(tmp_path / "x.gguf", metadata, named)
    assert CausalLM.load(path).max_positions == 64
    assert CausalLM.load(path, max_positions=9).max_positions == 9
