"""config.json: what is honoured, what is harmless, and that all else is refused by name."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import config

from mojolearn.models import BUILT_IN, families
from mojolearn.models.config import ModelConfig, parse_config, read_config

MODELS = Path(__file__).parent / "data" / "models"
LEGACY = sorted(path.parent.name for path in MODELS.glob("*/config.legacy.json"))
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def parse(**changes):
    return parse_config(config(**changes), "CausalLM.load: m/config.json")


def layer(**changes):
    """The options of the last block."""
    return parse(**changes).layers[-1]


def refused(**changes):
    """The message with which a config is refused."""
    with pytest.raises(ValueError, match=r"^CausalLM\.load: m/config\.json: [^\n]+$") as caught:
        parse(**changes)
    return str(caught.value)


def test_the_whole_of_one():
    assert read_config(MODELS / "qwen2_sliding") == ModelConfig(
        model_type="qwen2",
        vocab_size=96,
        d_model=48,
        intermediate_size=96,
        n_layers=3,
        norm="rmsnorm",
        norm_eps=1e-6,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_ids=(),
        layers=tuple(
            {
                "n_heads": 4,
                "n_kv_heads": 2,
                "head_dim": 12,
                "rope_theta": 10000.0,
                "rope_scaling": None,
                "norm": "rmsnorm",
                "norm_eps": 1e-6,
                "mlp": "swiglu",
                "qkv_bias": True,
                "window": window,
            }
            for window in (0, 16, 16)
        ),
    )


@pytest.mark.parametrize("name", LEGACY)
def test_both_spellings_of_one_model(name):
    old = json.loads((MODELS / name / "config.legacy.json").read_text())
    assert parse_config(old, "old") == read_config(MODELS / name)


@pytest.mark.parametrize(
    ("changes", "option", "value"),
    [
        ({"rope_theta": 500000}, "rope_theta", 500000.0),
        ({"rope_theta": ...}, "rope_theta", 10000.0),
        (
            {"rope_theta": ..., "rope_parameters": {"rope_theta": 7.5, "rope_type": "default"}},
            "rope_theta",
            7.5,
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            "rope_scaling",
            {"type": "linear", "factor": 2.0},
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            "rope_scaling",
            {"type": "linear", "factor": 2.0},
        ),
        ({"rope_scaling": {"rope_type": "default"}}, "rope_scaling", None),
        ({"rope_parameters": {"factor": None, "partial_rotary_factor": 1.0}}, "rope_scaling", None),
        ({"rms_norm_eps": 1e-5}, "norm_eps", 1e-5),
        ({"rms_norm_eps": ...}, "norm_eps", 1e-6),
        ({"head_dim": None}, "head_dim", 4),
        ({"head_dim": 6}, "head_dim", 6),
        ({"num_key_value_heads": ...}, "n_kv_heads", 4),
        ({"num_key_value_heads": None}, "n_kv_heads", 4),
        ({"hidden_act": "silu"}, "mlp", "swiglu"),
        ({"attention_bias": True}, "qkv_bias", True),
        ({"attention_bias": True}, "o_bias", True),
        ({"mlp_bias": True}, "mlp_bias", True),
        ({"model_type": "qwen3"}, "qk_norm", True),
        ({"model_type": "qwen3", "attention_bias": True}, "o_bias", True),
        ({"model_type": "mistral"}, "window", 4096),
        ({"model_type": "mistral", "sliding_window": 8}, "window", 8),
        ({"model_type": "mistral", "sliding_window": None}, "window", 0),
        ({"model_type": "qwen2", "sliding_window": 8}, "window", 0),
    ],
)
def test_field_is_honoured(changes, option, value):
    assert layer(**changes)[option] == value


@pytest.mark.parametrize("model_type", families.FAMILIES)
def test_which_biases_and_norms_a_family_has(model_type):
    switches = {"qkv_bias", "o_bias", "mlp_bias", "qk_norm"}
    on = {name for name in switches if layer(model_type=model_type).get(name)}
    assert on == {"qwen2": {"qkv_bias"}, "qwen3": {"qk_norm"}}.get(model_type, set())


def test_llama3_keeps_every_number():
    wanted = {"type": "llama3"} | {key: value for key, value in LLAMA3.items() if key != "rope_type"}
    assert layer(rope_scaling=LLAMA3)["rope_scaling"] == wanted
    assert layer(rope_parameters=LLAMA3)["rope_scaling"] == wanted


def test_head_dim_need_not_divide_the_width():
    shapes = parse(hidden_size=20, head_dim=8).tensor_shapes(0)
    assert shapes["q_proj.weight"] == (32, 20)
    assert shapes["k_proj.weight"] == (16, 20)
    assert shapes["o_proj.weight"] == (20, 32)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, [0, 8, 8]),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, [8, 8, 8]),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, [0, 0, 0]),
        ({"use_sliding_window": True, "sliding_window": 8}, [0, 0, 0]),  # max_window_layers is 28
        ({"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}, [0, 0, 0]),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}, [0, 0, 0]),
        ({"layer_types": ["full_attention"] * 3}, [0, 0, 0]),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            [8, 0, 8],
        ),
    ],
)
def test_which_layers_have_a_window(model_type, changes, windows):
    parsed = parse(model_type=model_type, num_hidden_layers=3, **changes)
    assert [options["window"] for options in parsed.layers] == windows


@pytest.mark.parametrize(
    "published",
    [
        {  # SmolLM2-135M-Instruct
            "_name_or_path": "x",
            "architectures": ["LlamaForCausalLM"],
            "is_llama_config": True,
            "pretraining_tp": 1,
            "rope_interleaved": False,
            "rope_scaling": None,
            "torch_dtype": "bfloat16",
            "transformers.js_config": {"dtype": "q4"},
            "use_cache": True,
        },
        {  # Qwen2.5-0.5B
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "max_window_layers": 24,
            "sliding_window": 32768,
            "use_mrope": False,
            "use_sliding_window": False,
        },
        {  # Llama-2-7b, converted early
            "architectures": ["LLaMAForCausalLM"],
            "max_sequence_length": 2048,
            "num_key_value_heads": ...,
            "pad_token_id": -1,
            "rope_theta": ...,
        },
    ],
)
def test_fields_that_are_published(published):
    assert [options["window"] for options in parse(**published).layers] == [0, 0]


@pytest.mark.parametrize("name", sorted(families.HARMLESS))
def test_harmless_fields_change_nothing(name):
    assert parse(**{name: "whatever"}) == parse()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model_type": "gemma"}, ["model_type", "'gemma'", "llama, mistral, qwen2, qwen3"]),
        ({"model_type": ...}, ["model_type"]),
        ({"model_type": ["llama"]}, ["model_type", "['llama']"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["architectures", "SequenceClassification"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "'gelu'", "silu"]),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, ["rope_scaling", "'yarn'"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_scaling", "'dynamic'"]),
        ({"rope_parameters": {"rope_type": "ntk"}}, ['rope_parameters["rope_type"]', "'ntk'"]),
        ({"rope_parameters": {"rope_type": ["linear"], "factor": 2.0}}, ["rope_parameters"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["rope_parameters", "'factor'"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, ["factor", "0"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": True}}, ["factor", "True"]),
        ({"rope_parameters": {"rope_type": "default", "mscale": 2.0}}, ["mscale", "2.0"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ["full_attention"]),
        (
            {"rope_parameters": {"rope_theta": 9.0}},
            ["rope_theta = 10000.0 and rope_parameters.rope_theta = 9.0 contradict"],
        ),
        ({"rope_parameters": {"rope_theta": -9.0}}, ["rope_theta", "-9.0"]),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
                "rope_scaling": {"type": "linear", "factor": 3},
            },
            ["rope_parameters = {", "2.0", "rope_scaling = {", "3.0", "contradict"],
        ),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, ["high_freq_factor", "1.0"]),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 0}}, ["original_max", "0"]),
        ({"rope_scaling": "linear"}, ["rope_scaling", "'linear'"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        ({"rotary_dim": 4}, ["rotary_dim", "4", "wanted is no such field"]),
        ({"use_mrope": True}, ["use_mrope = True", "wanted is false or no such field"]),
        ({"pretraining_tp": 2}, ["pretraining_tp", "2"]),
        ({"pretraining_tp": True}, ["pretraining_tp", "True"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config", "bits"]),
        ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping", "50.0"]),
        ({"auto_map": {"AutoModel": "x.y"}}, ["auto_map"]),
        ({"model_type": "mistral", "attention_bias": True}, ["attention_bias", "mistral"]),
        ({"model_type": "qwen2", "mlp_bias": True}, ["mlp_bias", "qwen2"]),
        ({"sliding_window": 8}, ["sliding_window", "8", "llama"]),
        ({"model_type": "mistral", "sliding_window": -1}, ["sliding_window", "-1"]),
        ({"model_type": "qwen2", "use_sliding_window": 1}, ["use_sliding_window", "1"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "num_hidden_layers = 2", "1 entry"]),
        ({"layer_types": "full_attention"}, ["layer_types must be a list"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types[1]", "no sliding window"]),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            ["layer_types[1] must be full_attention or sliding_attention, not 'linear_attention'"],
        ),
        ({"layer_types": [["full_attention"], {}]}, ["layer_types[0]"]),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 2}, ["layer_types", "family"]),
        ({"hidden_size": ...}, ["hidden_size", "missing"]),
        ({"hidden_size": 18}, ["hidden_size", "18", "num_attention_heads"]),
        ({"hidden_size": 12}, ["head_dim", "3", "even"]),
        ({"hidden_size": 16.0}, ["hidden_size", "16.0"]),
        ({"hidden_size": "16"}, ["hidden_size", "'16'"]),
        ({"vocab_size": 0}, ["vocab_size", "0"]),
        ({"vocab_size": True}, ["vocab_size", "True"]),
        ({"num_hidden_layers": -1}, ["num_hidden_layers", "-1"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "10000"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads", "3", "4"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps", "0"]),
        ({"rms_norm_eps": 1e-46}, ["rms_norm_eps", "1e-46"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan"]),
        ({"rope_theta": 1e39}, ["rope_theta", "1e+39"]),
        ({"rope_theta": 10**400}, ["rope_theta"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings", "'yes'"]),
        ({"eos_token_id": 40}, ["eos_token_id", "40", "39"]),
        ({"eos_token_id": [2, -1]}, ["eos_token_id", "-1"]),
        ({"bos_token_id": True}, ["bos_token_id", "True"]),
    ],
)
def test_refused_by_name_and_value(changes, names):
    message = refused(**changes)
    for name in names:
        assert name in message


@pytest.mark.parametrize("name", ["sliding_window", "quantization_config", "use_mrope", "what_is_this"])
def test_null_is_as_good_as_absent(name):
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize("model_type", families.FAMILIES)
def test_unknown_field_is_refused_in_every_family(model_type):
    message = refused(model_type=model_type, logit_scale=0.0625)
    assert "logit_scale = 0.0625" in message
    assert model_type in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
FIELDS = sorted(
    {
        *config(),
        *families.FIXED,
        "rope_scaling",
        "rope_parameters",
        "head_dim",
        "layer_types",
        "architectures",
    }
    | {
        "hidden_act",
        "max_window_layers",
        "use_sliding_window",
        "sliding_window",
        "eos_token_id",
        "bos_token_id",
    }
)


@given(st.sampled_from(sorted(families.FAMILIES)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_json_in_any_field(model_type, changes):
    """A config is understood or refused with one sentence; nothing else can happen."""
    try:
        parsed, message = parse(**{"model_type": model_type, **changes}), None
    except ValueError as error:
        parsed, message = None, str(error)
    if parsed is None:
        assert message.startswith("CausalLM.load: m/config.json: ")
        assert "\n" not in message
    else:
        assert len(parsed.layers) == parsed.n_layers
        assert parsed.tensor_shapes(0)["q_proj.weight"][1] == parsed.d_model


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "valid JSON"),
        (b"{", "valid JSON"),
        (b"[]", "JSON object"),
        (b"null", "JSON object"),
        (b'{"rms_norm_eps": NaN}', "NaN"),
        (b'{"rms_norm_eps": -Infinity}', "-Infinity"),
        (b'{"vocab_size": 1, "vocab_size": 2}', "'vocab_size'"),
        (b'{"vocab_size": ' + b"1" * 5000 + b"}", "valid JSON"),
        (b"[" * 100_000, "valid JSON"),
        (b'\xff\xfe{"a": 1}', "UTF-8"),
    ],
)
def test_malformed_file(tmp_path, text, words):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"^CausalLM\.load: [^\n]*config\.json[^\n]*$") as caught:
        read_config(tmp_path)
    assert words in str(caught.value)


def test_nothing_there(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"^CausalLM\.load: .*config\.json does not exist; its folder is empty$"
    ):
        read_config(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("own", "generation", "ids"),
    [
        (2, None, (2,)),
        ([2, 7], None, (2, 7)),
        (None, None, ()),
        (2, {}, (2,)),
        (2, {"eos_token_id": [2, 7]}, (2, 7)),
        (2, {"eos_token_id": 5}, (5,)),
    ],
)
def test_every_eos_id_counts(tmp_path, own, generation, ids):
    (tmp_path / "config.json").write_text(json.dumps(config(eos_token_id=own)))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_config(tmp_path).eos_token_ids == ids


def test_generation_config_is_kept_and_checked(tmp_path):
    assert read_config(BUILT_IN).generation["temperature"] == 0.8
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"do_sample": "yes"}, ["do_sample must be True or False", "'yes'"]),
        ({"do_sample": 1}, ["do_sample", "1"]),
        ({"temperature": "0.7"}, ["temperature must be a number", "'0.7'"]),
        ({"temperature": 0}, ["temperature must be above 0"]),
        ({"do_sample": False, "temperature": -1}, ["temperature", "-1"]),
        ({"top_k": 1.5}, ["top_k must be an integer", "1.5"]),
        ({"top_k": -1}, ["top_k", "-1"]),
        ({"top_p": 1.5}, ["top_p", "1.5"]),
        ({"min_p": True}, ["min_p", "True"]),
    ],
)
def test_wrong_settings_of_sampling(tmp_path, field, words):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "generation_config.json").write_text(json.dumps(field))
    with pytest.raises(ValueError, match=r"^CausalLM\.load: .*generation_config\.json: ") as caught:
        read_config(tmp_path)
    for word in words:
        assert word in str(caught.value)


def test_settings_that_say_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "generation_config.json").write_text(
        '{"top_k": null, "do_sample": false, "temperature": 0.0}'
    )
    assert read_config(tmp_path).generation == {"do_sample": False}


def test_tables_do_not_contradict_each_other():
    assert not families.HARMLESS & set(families.FIXED)
    read = {switch for family in families.FAMILIES.values() for switch in family.options.values()} - {True}
    assert not read & families.HARMLESS
