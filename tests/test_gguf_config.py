"""Metadata of GGUF files as fields of a config: every key is used, known not to matter, or refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf_files import metadata_of, stored, tensors_of, write
from hypothesis import given
from hypothesis import strategies as st
from toy_models import write_model

from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.config import parse_config, read_config
from mojolearn.models.gguf import GGUFCheckpoint
from mojolearn.models.gguf_file import shortest
from mojolearn.options import BlockOptions
from mojolearn.rope import attention_factor, inverse_frequencies

DATA = Path(__file__).parent / "data" / "models"
TOKENS = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(37))]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A function that returns the metadata and the tensors of a small llama."""
    folder = write_model(tmp_path_factory.mktemp("toy") / "folder")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    both = metadata_of(config), tensors_of(folder, config)
    return lambda: both


def changed(toy, tmp_path, **keys):
    """A file with other keys; None takes one away."""
    metadata, named = toy()
    metadata = dict(metadata)
    tensors = dict(named)
    for key, value in keys.items():
        if key == "tensors":
            tensors |= value
        elif value is None:
            del metadata[key]
        else:
            metadata[key] = value
    return write(tmp_path / "x.gguf", metadata, tensors)


def of_family(name, tmp_path, **keys):
    """One of the checkpoints of real architectures as a file, and its config."""
    config = json.loads((DATA / name / "config.json").read_text())
    metadata = {key: value for key, value in (metadata_of(config) | keys).items() if value is not None}
    path = write(tmp_path / "x.gguf", metadata, tensors_of(DATA / name, config))
    return GGUFCheckpoint(path).raw_config, config


def test_numbers_are_those_that_their_authors_wrote():
    """They are stored as float32."""
    for number in (1e-5, 0.22, 500000.0, 1e-46, 3.4e38, -0.0):
        assert shortest(np.float32(number)) == (number if number != 1e-46 else 0)
    assert np.isnan(shortest(np.float32("nan")))


def test_fields(toy, tmp_path):
    keys = {
        "llama.rope.freq_base": 500000.0,
        "llama.context_length": 100,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 2,
    }
    config = read_config(changed(toy, tmp_path, **keys))
    assert (config.model_type, config.n_layers, config.d_model, config.vocab_size) == ("llama", 2, 16, 40)
    assert (config.max_position_embeddings, config.norm_eps) == (100, 1e-5)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2, 7))
    layer = config.layers[0]
    assert (layer["n_heads"], layer["n_kv_heads"], layer["head_dim"]) == (4, 2, 4)
    assert (layer["rope_theta"], layer["rope_scaling"], layer["window"]) == (500000.0, None, 0)
    assert config == read_config(str(tmp_path / "x.gguf"))


def test_ends_that_only_their_names_tell(toy, tmp_path):
    """A token of a conversation ends a turn though no key says so; one of plain text does not."""
    tokens = [*TOKENS[:38], "<|im_end|>", "<end_of_turn>"]
    types = [*[1] * 38, 3, 1]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [np.int32(t) for t in types]}
    assert read_config(changed(toy, tmp_path, **keys)).eos_token_ids == (38,)
    keys["tokenizer.ggml.eos_token_id"] = 2
    assert read_config(changed(toy, tmp_path, **keys)).eos_token_ids == (2, 38)


def test_defaults(toy, tmp_path):
    """What llama.cpp takes where a key is missing."""
    keys = dict.fromkeys(
        ["llama.rope.freq_base", "llama.rope.dimension_count", "llama.attention.head_count_kv"]
    )
    metadata = {key: value for key, value in toy()[0].items() if key not in keys}
    assert len(metadata) == len(toy()[0]) - 3
    raw = GGUFCheckpoint(write(tmp_path / "x.gguf", metadata, toy()[1])).raw_config
    assert raw["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert raw["num_key_value_heads"] == raw["num_attention_heads"] == 4


@pytest.mark.parametrize(
    "keys",
    [
        {"general.name": "x", "general.type": "model", "general.file_type": 7, "general.tags": ["a"]},
        {"general.base_model.0.name": "x", "general.license.link": "y", "general.sampling.temp": 0.5},
        {"quantize.imatrix.file": "x", "mradermacher.quantized_by": "y", "general.quantization_version": 2},
        {"llama.attention.causal": True, "llama.expert_count": 0, "llama.expert_used_count": 0},
        {"llama.rope.scaling.finetuned": False, "llama.tensor_data_layout": "Meta AI original pth"},
        {"llama.vocab_size": 40, "tokenizer.ggml.tokens": TOKENS, "tokenizer.chat_template": "{{ x }}"},
        {"llama.attention.head_count": [4, 4], "llama.feed_forward_length": [24, 24]},
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.original_context_length": 32},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0},
        {"llama.rope.scaling.factor": 0.0},
        {"llama.attention.key_length": 4, "llama.attention.value_length": 4},
        {"llama.attention.sliding_window": 0},
        {"split.count": 1, "split.no": 0},
    ],
)
def test_keys_that_change_nothing(toy, tmp_path, keys):
    plain = CausalLM.load(changed(toy, tmp_path)).forward([[1, 2, 3]])
    np.testing.assert_array_equal(CausalLM.load(changed(toy, tmp_path, **keys)).forward([[1, 2, 3]]), plain)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        (
            {"general.architecture": "rwkv7"},
            "general.architecture must be one of arcee, command-r, .*not 'rwkv7'",
        ),
        ({"general.architecture": None}, "general.architecture must be one of .* not None"),
        ({"general.architecture": 3}, "general.architecture"),
        ({"general.architecture": "qwen2"}, r"qwen2\.context_length is missing"),
        ({"general.type": "adapter"}, "general.type must be 'model', not 'adapter'"),
        ({"general.new": 1}, "the key general.new = 1 .* is not known"),
        ({"other.key": "x"}, "the key other.key = 'x' .* is not known"),
        ({"qwen2.block_count": 2}, "the key qwen2.block_count"),
        ({"llama.new": 5}, "llama.new = 5 .* is not honoured; wanted is no such key"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8 .* is not honoured; wanted is 0 or no such key"),
        ({"llama.attention.causal": False}, "llama.attention.causal = False"),
        ({"llama.tensor_data_layout": "x"}, "llama.tensor_data_layout = 'x'"),
        ({"llama.logit_scale": 2.0}, "llama.logit_scale = 2.0"),
        ({"llama.rope.dimension_sections": [1, 2]}, "llama.rope.dimension_sections"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": "2"}, "llama.block_count must be an integer, not '2'"),
        ({"llama.block_count": 0}, "llama.block_count must be at least 1|from 1 to"),
        ({"llama.block_count": 2**31 - 1}, "llama.block_count must be from 1 to 10000"),
        ({"llama.block_count": 3}, r"blk\.2\.attn_q\.weight|blk\.2\.attn_norm\.weight is missing"),
        ({"llama.block_count": 1}, "9 tensors have no place in the model"),
        ({"llama.embedding_length": np.uint64(2**40)}, "llama.embedding_length must be from 1 to 2147483647"),
        ({"llama.embedding_length": 2**31 - 1}, "llama.attention.head_count must be a divisor"),
        ({"llama.embedding_length": 24, "llama.rope.dimension_count": 6}, "has shape"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count"),
        (
            {"llama.attention.head_count": 32},
            "llama.attention.head_count must be a divisor of llama.embedding_length",
        ),
        (
            {"llama.attention.head_count": [4, 2]},
            "llama.attention.head_count must be the same for all layers",
        ),
        ({"llama.attention.head_count": [4.0, 4.0]}, "llama.attention.head_count must be an integer"),
        ({"llama.attention.head_count_kv": 3}, "num_key_value_heads must be a divisor"),
        (
            {"llama.attention.key_length": 8, "llama.attention.value_length": 4},
            "value_length must be the width of keys, 8",
        ),
        (
            {"llama.attention.layer_norm_rms_epsilon": -1.0},
            "llama.attention.layer_norm_rms_epsilon must be above 0",
        ),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon must be above 0"),
        ({"llama.attention.layer_norm_epsilon": 1e-5}, "llama.attention.layer_norm_epsilon = 1e-05"),
        ({"llama.vocab_size": 41}, "llama.vocab_size has 41 tokens, but token_embd.weight 40 rows"),
        (
            {"tokenizer.ggml.tokens": TOKENS[:39]},
            "tokenizer.ggml.tokens has 39 tokens, but token_embd.weight 40",
        ),
        ({"tokenizer.ggml.eos_token_id": "2"}, "tokenizer.ggml.eos_token_id must be a token id, not '2'"),
        (
            {"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.eos_token_id": 40},
            "must be from 0 to 39, as there are 40",
        ),
        ({"llama.attention.sliding_window_pattern": 2}, "llama.attention.sliding_window_pattern = 2"),
        ({"llama.rope.dimension_count": 2}, "partial_rotary_factor must be 1|turns whole heads"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count must be from 1 to 4"),
        ({"llama.rope.freq_base": 0.0}, "llama.rope.freq_base must be above 0"),
        ({"llama.rope.freq_base_swa": 5.0}, "llama.rope.freq_base_swa must be 10000.0, as for all layers"),
        (
            {"llama.rope.scaling.type": "ntk"},
            "llama.rope.scaling.type must be one of none, linear, yarn, longrope",
        ),
        ({"llama.rope.scaling.type": 1}, "llama.rope.scaling.type"),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": -2.0},
            "scaling.factor must be above 0",
        ),
        ({"llama.rope.scaling.type": "longrope"}, "longrope needs the tensors rope_factors_long.weight"),
        ({"llama.rope.scaling.alpha": 2.0}, "llama.rope.scaling.alpha = 2.0"),
    ],
)
def test_refused(toy, tmp_path, keys, match):
    path = changed(toy, tmp_path, **keys)
    with pytest.raises(ValueError, match=match) as caught:
        CausalLM.load(path)
    assert str(caught.value).startswith(f"CausalLM.load: {path}")
    assert "\n" not in str(caught.value)


VALUES = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 2, 3, 4, 2**31 - 1, 2**31, 2**32 - 1]),
    st.floats(width=32),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.integers(0, 9), max_size=4),
    st.lists(st.text(max_size=3), max_size=4),
    st.lists(st.floats(width=32), max_size=3),
)


KEYS = [
    *(f"llama.{key}" for key in ("block_count", "embedding_length", "feed_forward_length", "context_length")),
    *(f"llama.attention.{key}" for key in ("head_count", "head_count_kv", "key_length", "sliding_window")),
    *(f"llama.rope.{key}" for key in ("freq_base", "dimension_count", "scaling.type", "scaling.factor")),
    *(f"general.{key}" for key in ("architecture", "type", "alignment")),
    *(f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "model", "eos_token_id")),
    *("split.count", "split.no", "llama.attention.layer_norm_rms_epsilon"),
]


@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=3))
def test_any_values(toy, tmp_path_factory, chosen):
    """Values of any type: a model or one sentence, whatever they are."""
    metadata, named = toy()
    path = write(tmp_path_factory.mktemp("any") / "x.gguf", metadata | dict(chosen), named)
    said = None
    try:
        CausalLM.load(path)
    except (ValueError, FileNotFoundError) as error:
        said = str(error)
    assert said is None or (said.startswith("CausalLM.load: ") and "\n" not in said)


class TestRotation:
    def scaling(self, toy, tmp_path, factors, **keys):
        return read_config(
            changed(toy, tmp_path, tensors={"rope_freqs.weight": stored(factors)}, **keys)
        ).layers[0]["rope_scaling"]

    def factors(self, head_dim=16, theta=500000.0, factor=8.0, low=1.0, high=4.0, original=8192):
        turns = original * theta ** -(np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return 1 / ((1 - smooth) / factor + smooth)

    def wide(self, tmp_path, factors, **keys):
        """A model with heads of 64 columns: many factors."""
        folder = write_model(tmp_path / "wide", head_dim=64)
        config = json.loads((folder / "config.json").read_text())
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
        named = tensors_of(folder, config) | {"rope_freqs.weight": stored(factors)}
        return write(tmp_path / "x.gguf", metadata_of(config) | keys, named)

    @pytest.mark.parametrize("original", [32, 8192, 4096, 131072])
    @pytest.mark.parametrize("factor", [8.0, 32.0, 2.5])
    def test_the_numbers_of_released_models_are_found(self, tmp_path, factor, original):
        path = self.wide(tmp_path, self.factors(64, factor=factor, original=original))
        assert read_config(path).layers[0]["rope_scaling"] == {
            "type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }

    @pytest.mark.parametrize(
        ("low", "high", "original"), [(1.5, 6.0, 1000), (1.0, 4.0, 3000), (0.7, 3.1, 500)]
    )
    def test_other_factors_are_honoured_as_they_are(self, tmp_path, low, high, original):
        """The frequencies are those of plain rotation, each divided once by its factor."""
        factors = self.factors(64, low=low, high=high, original=original).astype(np.float32)
        layer = read_config(self.wide(tmp_path, factors)).layers[0]
        sizes = {"d_model": 16, "intermediate_size": 24}
        plain = BlockOptions.checked(**sizes, **{k: v for k, v in layer.items() if k != "rope_scaling"})
        options = BlockOptions.checked(**sizes, **layer)
        for length in (7, 1000):
            scaled = inverse_frequencies(options, length)
            np.testing.assert_array_equal(scaled, inverse_frequencies(plain) / factors)
        assert attention_factor(options) == 1

    def test_length_that_a_key_gives(self, tmp_path):
        factors = self.factors(64, original=3000)
        path = self.wide(tmp_path, factors, **{"llama.rope.scaling.original_context_length": 3000})
        assert read_config(path).layers[0]["rope_scaling"]["original_max_position_embeddings"] == 3000

    def test_factors_of_one(self, toy, tmp_path):
        assert self.scaling(toy, tmp_path, np.ones(2)) is None

    @pytest.mark.parametrize(
        "factors",
        [[1.0, 2.0, 3.0], [[1.0, 8.0]], np.ones(2**17)],
        ids=["too many", "a matrix", "far too many"],
    )
    def test_wrong_shape(self, toy, tmp_path, factors):
        with pytest.raises(ValueError, match=r"rope_freqs\.weight (has shape|is of type F32 and shape)"):
            self.scaling(toy, tmp_path, factors)

    @pytest.mark.parametrize("bad", [0, -1, np.nan, np.inf])
    def test_factors_that_divide_nothing(self, tmp_path, bad):
        factors = self.factors(64)
        factors[3] = bad
        with pytest.raises(ValueError, match=r"rope_freqs\.weight must hold numbers above 0"):
            CausalLM.load(self.wide(tmp_path, factors))

    def test_two_scalings(self, toy, tmp_path):
        keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
        with pytest.raises(ValueError, match=r"rope_freqs\.weight does not go with another scaling"):
            self.scaling(toy, tmp_path, [1.0, 8.0], **keys)

    def test_linear(self, toy, tmp_path):
        wanted = {"type": "linear", "factor": 4.0}
        for keys in (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"llama.rope.scaling.factor": 4.0},
            {"llama.rope.scale_linear": 4.0},
        ):
            assert read_config(changed(toy, tmp_path, **keys)).layers[0]["rope_scaling"] == wanted

    def test_yarn(self, toy, tmp_path):
        keys = {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 16,
            "llama.rope.scaling.yarn_attn_factor": 1.2,
            "llama.rope.scaling.yarn_beta_fast": 30.0,
            "llama.rope.scaling.yarn_beta_slow": 2.0,
        }
        assert GGUFCheckpoint(changed(toy, tmp_path, **keys)).raw_config["rope_parameters"] == {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "attention_factor": 1.2,
            "beta_fast": 30.0,
            "beta_slow": 2.0,
        }
        for key, value in (("yarn_ext_factor", 0.5), ("yarn_log_multiplier", 0.1)):
            with pytest.raises(ValueError, match=f"llama.rope.scaling.{key}"):
                CausalLM.load(changed(toy, tmp_path, **keys, **{f"llama.rope.scaling.{key}": value}))


class TestFamilies:
    def test_window_makes_a_mistral(self, toy, tmp_path):
        config = read_config(changed(toy, tmp_path, **{"llama.attention.sliding_window": 8}))
        assert (config.model_type, [layer["window"] for layer in config.layers]) == ("mistral", [8, 8])

    def test_layers_with_a_window(self, tmp_path):
        """All but every sixth, unless a pattern says otherwise: a number, or a list."""
        keys = {"gemma3.block_count": 7, "gemma3.attention.sliding_window_pattern": None}
        raw, _ = of_family("gemma3_text", tmp_path, **keys)
        assert raw["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
        raw, _ = of_family("gemma3_text", tmp_path, **{"gemma3.attention.sliding_window_pattern": 2})
        assert raw["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
        raw, _ = of_family(
            "gemma3_text", tmp_path, **{"gemma3.attention.sliding_window_pattern": [True, False, False]}
        )
        assert raw["layer_types"] == ["sliding_attention", "full_attention", "full_attention"]
        raw, _ = of_family("gemma3_text", tmp_path, **{"gemma3.attention.sliding_window": 0})
        assert (raw["sliding_window"], set(raw["layer_types"])) == (None, {"full_attention"})

    @pytest.mark.parametrize("pattern", [[True], [1, 2, 3], "LLG", 0])
    def test_pattern_that_does_not_fit(self, tmp_path, pattern):
        with pytest.raises(ValueError, match=r"gemma3\.attention\.sliding_window_pattern must be"):
            of_family("gemma3_text", tmp_path, **{"gemma3.attention.sliding_window_pattern": pattern})

    def test_local_layers_turn_in_their_own_way(self, tmp_path):
        raw, _ = of_family("gemma3_text", tmp_path)
        full, local = raw["rope_parameters"]["full_attention"], raw["rope_parameters"]["sliding_attention"]
        assert (full["rope_type"], full["factor"], full["rope_theta"]) == ("linear", 4.0, 50000.0)
        assert local == {"rope_type": "default", "rope_theta": 10000.0}
        raw, _ = of_family("gemma3_text", tmp_path, **{"gemma3.rope.freq_base_swa": 777.0})
        assert raw["rope_parameters"]["sliding_attention"]["rope_theta"] == 777.0

    @pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
    def test_the_model_that_scales_by_width_per_head(self, tmp_path, name, layers):
        architecture = name.removesuffix("_text")
        raw, config = of_family(name, tmp_path)
        assert raw["query_pre_attn_scalar"] == config["head_dim"]
        keys = {
            f"{architecture}.block_count": layers,
            f"{architecture}.attention.sliding_window_pattern": None,
        }
        raw, _ = of_family(name, tmp_path, **keys)
        assert raw["query_pre_attn_scalar"] == config["hidden_size"] // config["num_attention_heads"]

    def test_softcaps(self, tmp_path):
        """Those of the file, or of the released models where an old file has none."""
        raw, config = of_family("gemma2", tmp_path)
        assert raw["attn_logit_softcapping"] == config["attn_logit_softcapping"]
        raw, _ = of_family(
            "gemma2", tmp_path, **dict.fromkeys([f"gemma2.{x}_logit_softcapping" for x in ("attn", "final")])
        )
        assert (raw["attn_logit_softcapping"], raw["final_logit_softcapping"]) == (50.0, 30.0)

    def test_numbers_of_granite(self, tmp_path):
        raw, config = of_family("granite", tmp_path)
        for name in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
            assert raw[name] == config[name]
        with pytest.raises(ValueError, match=r"granite\.rope\.scaling\.finetuned = False"):
            of_family("granite", tmp_path, **{"granite.rope.scaling.finetuned": False})

    def test_every_fourth_layer_does_not_turn(self, tmp_path):
        raw, _ = of_family("smollm3", tmp_path, **{"smollm3.block_count": 4})
        layers = parse_config(raw, "x").layers
        assert [layer["rope_dim"] > 0 for layer in layers] == [True, True, True, False]

    def test_parallel_residual_is_told_by_the_tensors(self, tmp_path):
        """Converters wrote the key the wrong way round for years."""
        for name, parallel in (("stablelm", False), ("stablelm_parallel_qk_norm", True)):
            for said in (True, False):
                raw, _ = of_family(name, tmp_path, **{"stablelm.use_parallel_residual": said})
                assert raw["use_parallel_residual"] is parallel

    def test_epsilon_given_twice(self, tmp_path):
        key = "nemotron.attention.layer_norm_rms_epsilon"
        raw, config = of_family(
            "nemotron", tmp_path, **{key: json.loads((DATA / "nemotron/config.json").read_text())["norm_eps"]}
        )
        assert raw["norm_eps"] == config["norm_eps"]
        with pytest.raises(ValueError, match=r"nemotron\.attention\.layer_norm_rms_epsilon"):
            of_family("nemotron", tmp_path, **{key: 0.5})

    def test_as_many_keys_as_queries(self, tmp_path):
        of_family("gpt2", tmp_path, **{"gpt2.attention.head_count_kv": 4})
        with pytest.raises(
            ValueError, match=r"gpt2\.attention\.head_count_kv must be gpt2\.attention\.head_count = 4"
        ):
            of_family("gpt2", tmp_path, **{"gpt2.attention.head_count_kv": 2})
