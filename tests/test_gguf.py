"""Models from GGUF files: the same bits as from the folders that they were made of, or a refusal that says why."""

import json
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf_files import ARCHITECTURES, convert, metadata_of, stored, tensors_of, text, write
from gguf_quants_data import random_blocks
from toy_models import coarse, config, safetensors_bytes, tensors, write_model

from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.gguf import GGUFCheckpoint

DATA = Path(__file__).parent / "data" / "models"
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")

# What a GGUF file has no words for, as llama.cpp takes it.
UNSAID = {
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3_text": {"query_pre_attn_scalar": 12},
    "gpt2": {"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
    "qwen2_sliding": {"use_sliding_window": False, "layer_types": None},
    "smollm3": {"no_rope_layers": None},
}
UNSAYABLE = ("llama_dynamic", "phi_qk_norm")


def kind_of(folder):
    return json.loads((folder / "config.json").read_text())["model_type"]


FOLDERS = [
    folder
    for folder in sorted(path.parent for path in DATA.glob("*/config.json"))
    if kind_of(folder) in ARCHITECTURES and folder.name not in UNSAYABLE
]


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


def assert_same(a, b, seed=0):
    """Two models give the same bits."""
    ids = np.random.default_rng(seed).integers(0, b.vocab_size, (2, 40))
    assert a.config.layers == b.config.layers
    np.testing.assert_array_equal(bits(a.forward(ids)), bits(b.forward(ids)))


def test_every_architecture_is_here():
    assert {kind_of(folder) for folder in FOLDERS} | {"phi"} == set(ARCHITECTURES)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_same_bits_as_the_folder(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    fields = json.loads((copy / "config.json").read_text()) | UNSAID.get(folder.name, {})
    (copy / "config.json").write_text(json.dumps(fields))
    ours = CausalLM.load(convert(copy, tmp_path / "x.gguf"))
    theirs = CausalLM.load(copy, weight_format="float32")
    assert_same(ours, theirs)
    assert ours.max_positions == theirs.max_positions


def toy(tmp_path, kind="F32", *, extra=(), change=None, **fields):
    """A small llama as a folder and as a file; the tensors of the file may be changed."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    folder = write_model(tmp_path / "folder", **sizes, **fields)
    config = json.loads((folder / "config.json").read_text())
    parameters = config.setdefault("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
    named = tensors_of(folder, config, kind)
    named = (change(named) or named) if change else named
    config["rope_parameters"] = parameters
    return folder, write(tmp_path / "x.gguf", metadata_of(config) | dict(extra), named)


class TestStorage:
    @pytest.mark.parametrize(("kind", "name"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16")])
    def test_plain_types_are_kept(self, tmp_path, kind, name):
        fields = config(hidden_size=64, intermediate_size=96)
        named = {name: coarse(array) for name, array in tensors(fields).items()}
        folder = write_model(tmp_path / "folder", named, hidden_size=64, intermediate_size=96)
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
        path = write(tmp_path / "x.gguf", metadata_of(fields), tensors_of(folder, fields, kind))
        lm = CausalLM.load(path)
        assert lm.weight_format == name
        assert_same(lm, CausalLM.load(folder, weight_format=name))
        for other in ("float32", "float16", "bfloat16"):
            assert_same(CausalLM.load(path, weight_format=other), lm)

    @pytest.mark.parametrize("kind", KINDS)
    def test_blocks_become_float32(self, tmp_path, kind):
        """The folder holds the decoded values; rows of queries and keys are put in order only afterwards."""
        _, path = toy(tmp_path, kind)
        checkpoint = GGUFCheckpoint(path)
        names = {name: source.shape for name, source in checkpoint._left.items()}
        named = {name: np.array(checkpoint.take(name, shape)) for name, shape in names.items()}
        original = tensors(config(hidden_size=64, intermediate_size=96))
        for name, array in named.items():
            error = np.abs(array - original[name]).max() / np.abs(original[name]).max()
            assert error < {"4": 0.15, "5": 0.08, "8": 0.01}[kind[1]]
        folder = write_model(tmp_path / "decoded", named, hidden_size=64, intermediate_size=96)
        lm = CausalLM.load(path)
        assert lm.weight_format == "float32"
        assert_same(lm, CausalLM.load(folder))

    @pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
    def test_blocks_of_256(self, tmp_path, kind):
        fields = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}

        def change(named):
            for name, (_, shape, _) in named.items():
                if len(shape) == 2 and ".ffn_" in name:
                    blocks = random_blocks(kind, 256 * 256)
                    named[name] = (kind, shape, blocks.tobytes()[: len(blocks[0]) * shape[0] * shape[1] // 256 * (8 if kind == "IQ4_NL" else 1)])

        _, path = self.wide(tmp_path, change, **fields)
        lm = CausalLM.load(path)
        assert np.isfinite(lm.forward([[1, 2, 3]])).all()

    def wide(self, tmp_path, change, **fields):
        folder = write_model(tmp_path / "folder", **fields)
        config = json.loads((folder / "config.json").read_text())
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
        named = tensors_of(folder, config)
        change(named)
        return folder, write(tmp_path / "x.gguf", metadata_of(config), named)
