"""config.json: what is honoured, what is harmless, and that all else is refused by name."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import config, config_of

from mojolearn.models import BUILT_IN
from mojolearn.models.config import ModelConfig, parse_config, read_config
from mojolearn.models.defaults import DEFAULTS
from mojolearn.models.families import FAMILIES
from mojolearn.models.family import GATED, PLAIN
from mojolearn.models.irrelevant import FIXED, HARMLESS

MODELS = Path(__file__).parent / "data" / "models"
LEGACY = sorted(path.parent.name for path in MODELS.glob("*/config.legacy.json"))
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def parse(model_type="llama", **changes):
    return parse_config(config_of(model_type, **changes), "CausalLM.load: m/config.json")


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
                "rope_dim": 12,
                "rope_interleaved": False,
                "norm": "rmsnorm",
                "norm_eps": 1e-6,
                "norm_bias": False,
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


# What sets each family apart: options of its layers, in a config that says nothing of them.
FEATURES = {
    "arcee": {"mlp": "relu2"},
    "cohere": {"norm": "layernorm", "residual": "parallel_shared", "rope_interleaved": True},
    "cohere2": {"norm": "layernorm", "residual": "parallel_shared", "window": 4096, "rope_interleaved": True},
    "exaone4": {"norm_placement": "post", "qk_norm": True, "window": 4096, "rope_dim": 4},
    "gemma": {"norm": "rmsnorm_offset", "mlp": "geglu_tanh", "head_dim": 256},
    "gemma2": {"norm_placement": "both", "attn_softcap": 50.0, "attn_scale": 1 / 16, "window": 0},
    "gemma3": {"norm_placement": "both", "qk_norm": True, "attn_scale": 1 / 16, "window": 4096},
    "gemma3_text": {"norm": "rmsnorm_offset", "qk_norm": True, "attn_scale": 1 / 16, "rope_theta": 1e4},
    "glm": {"qkv_bias": True, "o_bias": None, "rope_interleaved": True, "rope_dim": 64, "head_dim": 128},
    "glm4": {"qkv_bias": True, "norm_placement": "both", "rope_interleaved": True, "rope_dim": 64},
    "gpt2": {"norm_bias": True, "rope_dim": 0, "mlp": "gelu_tanh", "qkv_bias": True, "attn_scale": None},
    "gpt_neox": {"norm_bias": True, "residual": "parallel", "mlp": "gelu", "n_kv_heads": 4},
    "gptj": {"residual": "parallel_shared", "rope_interleaved": True, "rope_dim": 4, "mlp_bias": True},
    "granite": {"attn_scale": 1.0, "residual_multiplier": 1.0},
    "helium": {"rope_interleaved": True, "norm_eps": 1e-6, "head_dim": 128},
    "llama": {"mlp": "swiglu", "norm": "rmsnorm", "rope_dim": 4, "window": 0},
    "ministral": {"window": 4096},
    "mistral": {"window": 4096},
    "nemotron": {"norm": "layernorm_offset", "norm_bias": True, "mlp": "relu2", "rope_dim": 2},
    "olmo": {"norm": "layernorm", "norm_bias": False, "norm_eps": 1e-5, "qkv_clip": None},
    "olmo2": {"norm_placement": "post", "qk_norm": "full"},
    "olmo3": {"norm_placement": "post", "qk_norm": "full", "window": 4096},
    "opt": {"norm_bias": True, "mlp": "relu", "mlp_bias": True, "rope_dim": 0},
    "phi": {
        "norm_bias": True,
        "residual": "parallel_shared",
        "mlp": "gelu_tanh",
        "rope_dim": 2,
        "qk_norm": False,
    },
    "phi3": {"mlp": "swiglu", "window": 0, "rope_dim": 4},
    "qwen2": {"qkv_bias": True, "window": 0},
    "qwen3": {"qk_norm": True, "head_dim": 128, "qkv_bias": False},
    "smollm3": {"rope_dim": 4, "window": 0},
    "stablelm": {"norm_bias": True, "residual": "sequential", "mlp": "swiglu", "qkv_bias": False},
    "starcoder2": {"norm_bias": True, "mlp": "gelu_tanh", "mlp_bias": True, "o_bias": True, "window": 0},
}
OF_THE_MODEL = {
    "cohere": {"logit_multiplier": 0.0625},
    "gemma": {"embedding_multiplier": 4.0},
    "gemma2": {"embedding_multiplier": 4.0, "logit_softcap": 30.0},
    "gemma3": {"embedding_multiplier": 4.0, "logit_softcap": None},
    "gpt2": {"position_offset": 0, "norm_bias": True},
    "gptj": {"head_bias": True},
    "granite": {"embedding_multiplier": 1.0, "logit_divisor": 1.0},
    "llama": {"embedding_multiplier": 1.0, "position_offset": None, "head_bias": False, "plain_norms": False},
    "olmo": {"plain_norms": True, "norm_bias": False},
    "opt": {"position_offset": 2, "plain_norms": False, "norm": "layernorm"},
    "phi": {"head_bias": True},
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_what_sets_a_family_apart(model_type):
    parsed = parse(model_type)
    options = parsed.layers[-1]
    assert {name: options.get(name) for name in FEATURES[model_type]} == FEATURES[model_type]
    for name, value in OF_THE_MODEL.get(model_type, {}).items():
        assert getattr(parsed, name) == value


@pytest.mark.parametrize("model_type", FAMILIES)
def test_fields_that_are_absent_have_the_defaults_of_the_family(model_type):
    raw = {"model_type": model_type}
    if FAMILIES[model_type].text_type:
        raw["text_config"] = {}
    parsed, defaults = parse_config(raw, "x"), DEFAULTS[model_type]
    assert parsed.vocab_size == defaults["vocab_size"]
    assert parsed.d_model == defaults["hidden_size"]
    assert parsed.intermediate_size == (defaults["intermediate_size"] or 4 * parsed.d_model)
    assert parsed.n_layers == len(parsed.layers) == defaults["num_hidden_layers"]
    assert parsed.tie_word_embeddings == defaults["tie_word_embeddings"]
    assert parsed.max_position_embeddings == defaults["max_position_embeddings"]
    options = parsed.layers[-1]
    assert options["n_heads"] == defaults["num_attention_heads"]
    assert options["n_kv_heads"] == (defaults["num_key_value_heads"] or options["n_heads"])
    assert options["head_dim"] == (defaults["head_dim"] or parsed.d_model // options["n_heads"])
    assert options["norm_eps"] == defaults["norm_eps"]


@pytest.mark.parametrize(
    ("model_type", "n_layers", "changes", "windows", "unturned"),
    [
        ("gemma2", 4, {}, [4096, 0, 4096, 0], []),
        ("gemma3_text", 7, {"sliding_window": 8}, [8, 8, 8, 8, 8, 0, 8], []),
        ("gemma3_text", 4, {"sliding_window": 8, "sliding_window_pattern": 2}, [8, 0, 8, 0], []),
        (
            "gemma3_text",
            2,
            {
                "sliding_window": 8,
                "_sliding_window_pattern": 6,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            [0, 8],
            [],
        ),
        ("olmo3", 5, {"sliding_window": 8}, [8, 8, 8, 0, 8], []),
        ("cohere2", 5, {"sliding_window": 8}, [8, 8, 8, 0, 8], [3]),
        ("cohere2", 3, {"sliding_window": 8, "sliding_window_pattern": 2}, [8, 0, 8], [1]),
        ("exaone4", 5, {"sliding_window": 8}, [8, 8, 8, 0, 8], [3]),
        ("exaone4", 3, {"sliding_window": None}, [0, 0, 0], []),
        (
            "exaone4",
            2,
            {
                "sliding_window": 8,
                "sliding_window_pattern": "LG",
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [8, 0],
            [1],
        ),
        ("smollm3", 5, {}, [0] * 5, [3]),
        ("smollm3", 4, {"no_rope_layer_interval": 2}, [0] * 4, [1, 3]),
        ("smollm3", 3, {"no_rope_layers": [0, 1, 1]}, [0] * 3, [0]),
        ("smollm3", 3, {"no_rope_layers": []}, [0] * 3, []),
        (
            "smollm3",
            4,
            {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 8},
            [0, 8, 0, 8],
            [1, 3],
        ),
        ("ministral", 2, {"sliding_window": 8}, [8, 8], []),
        ("ministral", 2, {"sliding_window": None}, [0, 0], []),
        (
            "ministral",
            2,
            {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
            [0, 8],
            [],
        ),
        ("phi3", 2, {}, [0, 0], []),
        ("phi3", 2, {"sliding_window": 8}, [8, 8], []),
        ("starcoder2", 2, {"sliding_window": 8}, [8, 8], []),
    ],
)
def test_layers_that_differ(model_type, n_layers, changes, windows, unturned):
    parsed = parse(model_type, num_hidden_layers=n_layers, **changes)
    assert [options["window"] for options in parsed.layers] == windows
    assert [i for i, options in enumerate(parsed.layers) if options["rope_dim"] == 0] == unturned


def test_each_kind_of_layer_turns_in_its_own_way():
    linear = {"rope_type": "linear", "factor": 8.0}
    new = {"full_attention": {"rope_theta": 5e5, **linear}, "sliding_attention": {"rope_theta": 3e3}}
    old = {"rope_theta": 5e5, "rope_local_base_freq": 3e3, "rope_scaling": {"type": "linear", "factor": 8.0}}
    for spelling in ({"rope_theta": ..., "rope_parameters": new}, old):
        layers = parse("gemma3_text", num_hidden_layers=6, **spelling).layers
        assert [options["rope_theta"] for options in layers] == [3e3] * 5 + [5e5]
        assert [options["rope_scaling"] is None for options in layers] == [True] * 5 + [False]
    layers = parse("olmo3", num_hidden_layers=4, rope_theta=7e5, rope_scaling=linear).layers
    assert [options["rope_theta"] for options in layers] == [7e5] * 4
    assert [options["rope_scaling"] is None for options in layers] == [True] * 3 + [False]
    assert [o["rope_theta"] for o in parse("gemma3_text", rope_theta=..., num_hidden_layers=6).layers] == [
        1e4
    ] * 5 + [1e6]
    assert [o["rope_theta"] for o in parse("olmo3", rope_theta=..., num_hidden_layers=4).layers] == [5e5] * 4


@pytest.mark.parametrize(
    ("model_type", "changes", "option", "value"),
    [
        ("phi", {"partial_rotary_factor": 1.0}, "rope_dim", 4),
        ("gpt_neox", {"rotary_pct": 1.0}, "rope_dim", 8),
        ("gpt_neox", {}, "rope_dim", 2),
        ("gpt_neox", {"rotary_emb_base": 700, "rotary_pct": 0.5}, "rope_theta", 700.0),
        ("gpt_neox", {"rotary_pct": 0.5, "partial_rotary_factor": 0.5}, "rope_dim", 4),
        ("gptj", {"rotary_dim": 2}, "rope_dim", 2),
        ("gptj", {}, "rope_theta", 10000.0),
        ("gpt2", {"hidden_size": 16}, "n_heads", 4),  # the general name beside its own
        ("gpt2", {"scale_attn_weights": False}, "attn_scale", 1.0),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "attn_scale", 0.25),
        ("gpt2", {"activation_function": "gelu_fast"}, "mlp", "gelu_tanh"),
        ("gemma", {"hidden_act": "gelu"}, "mlp", "geglu_tanh"),
        ("gemma2", {"hidden_activation": "gelu"}, "mlp", "geglu"),
        ("gemma2", {"attn_logit_softcapping": None}, "attn_softcap", None),
        ("gemma2", {"query_pre_attn_scalar": 4}, "attn_scale", 0.5),
        ("opt", {"enable_bias": False}, "o_bias", False),
        ("opt", {"layer_norm_elementwise_affine": False}, "norm_bias", False),
        ("starcoder2", {"use_bias": False}, "mlp_bias", False),
        ("stablelm", {"use_parallel_residual": True}, "residual", "parallel_shared"),
        ("stablelm", {"qk_layernorm": True}, "qk_norm", "layernorm"),
        ("phi", {"qk_layernorm": True}, "qk_norm_bias", True),
        ("cohere", {"use_qk_norm": True}, "qk_norm", "layernorm"),
        ("gpt_neox", {"use_parallel_residual": False}, "residual", "sequential"),
        ("granite", {"attention_multiplier": 0.5}, "attn_scale", 0.5),
        ("granite", {"residual_multiplier": 0.25}, "residual_multiplier", 0.25),
        ("olmo", {"clip_qkv": 8}, "qkv_clip", 8.0),
        ("glm", {"attention_bias": False}, "qkv_bias", False),
        ("helium", {"attention_bias": True}, "o_bias", None),
        ("nemotron", {"norm_eps": 1e-3}, "norm_eps", 1e-3),
        ("mistral", {"num_key_value_heads": None}, "n_kv_heads", 4),
        ("qwen3", {"head_dim": None}, "head_dim", 4),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 1}, "rope_theta": ...},
            "rope_theta",
            5.0,
        ),
    ],
)
def test_field_of_a_family_is_honoured(model_type, changes, option, value):
    assert parse(model_type, **changes).layers[-1 if model_type != "gpt2" else 1].get(option) == value


@pytest.mark.parametrize(
    ("model_type", "changes", "option", "value"),
    [
        ("gemma2", {"final_logit_softcapping": None}, "logit_softcap", None),
        ("gemma3_text", {"final_logit_softcapping": 7}, "logit_softcap", 7.0),
        ("granite", {"embedding_multiplier": 12}, "embedding_multiplier", 12.0),
        ("granite", {"logits_scaling": 8}, "logit_divisor", 8.0),
        ("cohere2", {"logit_scale": 1}, "logit_multiplier", 1.0),
        ("opt", {"_remove_final_layer_norm": True}, "norm", None),
        ("opt", {"layer_norm_elementwise_affine": False}, "plain_norms", True),
        ("gpt2", {"n_inner": None}, "intermediate_size", 64),
        ("gpt2", {"n_positions": 7}, "max_position_embeddings", 7),
        (
            "llama",
            {"eos_token_id": [2, 40, 151329]},
            "eos_token_ids",
            (2,),
        ),  # beyond the vocabulary: never met
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
            "max_position_embeddings",
            256,
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}},
            "max_position_embeddings",
            64,
        ),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "max_position_embeddings", None),
    ],
)
def test_option_of_the_model_is_honoured(model_type, changes, option, value):
    assert getattr(parse(model_type, **changes), option) == value


def test_square_root_of_the_width_multiplies_embeddings():
    """For d = 2048 that is 45.2548..., not the 45.25 of bfloat16."""
    assert parse("gemma", hidden_size=2048).embedding_multiplier == 2048**0.5


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_activation_or_a_refusal(model_type):
    family = FAMILIES[model_type]
    names = {**GATED, **PLAIN}
    for act in [*names, "quick_gelu", "tanh", "mish", "relu6"]:
        if act in family.activations:
            assert (
                parse(model_type, **{family.spellings.get("hidden_act", (family.act,))[0]: act}).n_layers == 2
            )
        else:
            with pytest.raises(ValueError, match=act):
                parse(model_type, **{family.spellings.get("hidden_act", (family.act,))[0]: act})


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


# What published folders hold beside sizes, to the best of our knowledge; written out where a family's own fields are.
PUBLISHED = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "n_ctx": 1024,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "_num_labels": 1,
    },
    "gpt_neox": {
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
        "torch_dtype": "float16",
    },
    "gptj": {"rotary": True, "scale_attn_weights": True, "n_inner": None, "gradient_checkpointing": False},
    "opt": {
        "_remove_final_layer_norm": False,
        "activation_dropout": 0.0,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "layerdrop": 0.0,
        "prefix": "</s>",
        "word_embed_proj_dim": 16,
    },
    "phi": {"embd_pdrop": 0.0, "resid_pdrop": 0.1, "qk_layernorm": False, "partial_rotary_factor": 0.5},
    "phi3": {
        "auto_map": {
            "AutoConfig": "configuration_phi3.Phi3Config",
            "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        },
        "attention_bias": False,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "original_max_position_embeddings": 4096,
        "sliding_window": 2047,
    },
    "gemma": {"hidden_act": "gelu", "hidden_activation": None},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid", "eos_token_id": [1, 107]},
    "gemma3_text": {
        "rope_local_base_freq": 10000,
        "sliding_window_pattern": 6,
        "cache_implementation": "hybrid",
    },
    "cohere": {"logit_scale": 0.0625, "model_max_length": 131072, "pretraining_tp": 1},
    "cohere2": {
        "cache_implementation": "hybrid",
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "sliding_window_pattern": 4,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
    },
    "starcoder2": {
        "activation_function": "gelu",
        "attention_softmax_in_fp32": True,
        "layer_norm_epsilon": 1e-6,
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True,
    },
    "nemotron": {"kv_channels": 4, "rope_percent": 0.5, "partial_rotary_factor": 0.5},
    "smollm3": {
        "pretraining_tp": 2,
        "max_window_layers": 28,
        "use_sliding_window": False,
        "sliding_window": None,
    },
    "exaone4": {
        "sliding_window": None,
        "sliding_window_pattern": None,
        "layer_types": ["full_attention"] * 2,
    },
}


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_fields_that_are_published_in_a_family(model_type):
    assert parse(model_type, **PUBLISHED[model_type]).n_layers == 2


def test_language_model_inside_a_model_of_pictures():
    """As the first files have it: few fields in text_config, ids outside."""
    raw = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
    }
    parsed = parse_config(raw, "x")
    assert (parsed.vocab_size, parsed.eos_token_ids, parsed.tie_word_embeddings) == (262208, (1, 106), True)
    assert [options["window"] for options in parsed.layers[:7]] == [1024] * 5 + [0, 1024]
    assert parsed.layers[5]["rope_scaling"] == {"type": "linear", "factor": 8.0}
    for change, words in (
        ({"text_config": None}, "text_config"),
        ({"text_config": {"model_type": "llama"}}, "text_config.model_type must be gemma3_text, not 'llama'"),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, "contradict"),
        ({"adapter": 3}, "adapter = 3"),
        ({"architectures": ["Gemma3ForSequenceClassification"]}, "architectures"),
    ):
        with pytest.raises(ValueError, match=r"^x: ") as caught:
            parse_config(raw | change, "x")
        assert words in str(caught.value)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_harmless_fields_change_nothing(name):
    assert parse(**{name: "whatever"}) == parse()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, ["architectures", "SequenceClassification"]),
        ({"hidden_act": "quick_gelu"}, ["hidden_act", "'quick_gelu'", "silu"]),
        ({"rope_scaling": {"type": "proportional", "factor": 2.0}}, ["rope_scaling", "'proportional'"]),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, ["rope_scaling", "'mrope'"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["rope_parameters", "short_factor"]),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            ["linear", "yarn", "contradict"],
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}},
            ["original_max_position_embeddings", "8", "64"],
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": None},
            ["dynamic", "missing"],
        ),
        ({"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}}, ["'linear'", "longrope"]),
        ({"model_type": "gptj", "rope_theta": 10000.0}, ["rope_theta", "gptj"]),
        ({"model_type": "gptj", "rotary_dim": 6}, ["rotary_dim", "6", "4"]),
        ({"model_type": "gptj", "rotary_dim": None}, ["rotary_dim", "None"]),
        ({"model_type": "gpt2", "num_key_value_heads": 2}, ["num_key_value_heads", "2", "gpt2"]),
        ({"model_type": "gpt2", "head_dim": 8}, ["head_dim", "8", "16 / 4"]),
        ({"model_type": "gpt2", "hidden_size": 32}, ["n_embd = 16 and hidden_size = 32 contradict"]),
        ({"model_type": "gpt_neox", "rotary_pct": 0.5, "partial_rotary_factor": 1.0}, ["contradict", "0.5"]),
        ({"model_type": "phi", "partial_rotary_factor": 0.3}, ["partial_rotary_factor", "0.3"]),
        ({"model_type": "phi", "partial_rotary_factor": 1.5}, ["partial_rotary_factor", "1.5"]),
        (
            {"model_type": "gemma", "use_bidirectional_attention": True},
            ["use_bidirectional_attention = True"],
        ),
        ({"model_type": "gemma2", "sliding_window": None}, ["sliding_window", "None"]),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, ["attn_logit_softcapping = 50.0"]),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            ["rope_parameters.rope_type", "inside full_attention"],
        ),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": 3}},
            ["full_attention must be a JSON object"],
        ),
        (
            {
                "model_type": "olmo3",
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "yarn",
                        "factor": 2.0,
                        "truncate": False,
                        "rope_theta": 10000.0,
                    }
                },
            },
            ["truncate", "False"],
        ),
        ({"model_type": "gemma3_text", "_sliding_window_pattern": 3}, ["_sliding_window_pattern", "3", "6"]),
        ({"model_type": "exaone4", "sliding_window_pattern": "LG"}, ["sliding_window_pattern", "'LG'"]),
        ({"model_type": "cohere2", "position_embedding_type": "rope"}, ["position_embedding_type", "'rope'"]),
        ({"model_type": "opt", "do_layer_norm_before": False}, ["do_layer_norm_before = False", "true or"]),
        ({"model_type": "opt", "word_embed_proj_dim": 8}, ["word_embed_proj_dim", "8", "16, as hidden_size"]),
        (
            {"model_type": "starcoder2", "layer_norm_epsilon": 1e-3},
            ["layer_norm_epsilon", "0.001", "norm_eps"],
        ),
        ({"model_type": "nemotron", "rope_percent": 1.0}, ["rope_percent", "1.0", "0.5"]),
        ({"model_type": "gpt2", "add_cross_attention": True}, ["add_cross_attention = True"]),
        ({"model_type": "gpt2", "n_positions": None}, ["n_positions", "None", "learned"]),
        ({"model_type": "opt", "max_position_embeddings": None}, ["max_position_embeddings", "learned"]),
        ({"model_type": "stablelm", "head_dim": 4}, ["head_dim", "4", "32 / 4"]),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, ["no_rope_layers", "1 entry"]),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2]}, ["no_rope_layers", "[1, 2]"]),
        (
            {
                "model_type": "smollm3",
                "layer_types": ["sliding_attention", "full_attention"],
                "sliding_window": 8,
            },
            ["layer_types[0]", "no sliding window"],
        ),
        ({"model_type": "granite", "logits_scaling": 0}, ["logits_scaling", "0"]),
        ({"model_type": "granite", "residual_multiplier": -1}, ["residual_multiplier", "-1"]),
        ({"model_type": "olmo", "clip_qkv": 0}, ["clip_qkv", "0"]),
        ({"model_type": "gemma2", "query_pre_attn_scalar": "16"}, ["query_pre_attn_scalar", "'16'"]),
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
            ["rope_parameters = {", "2.0", "rope_scaling = {", "3", "contradict"],
        ),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, ["high_freq_factor", "1.0"]),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 0}}, ["original_max", "0"]),
        ({"rope_scaling": "linear"}, ["rope_scaling", "'linear'"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5", "whole heads"]),
        ({"rotary_dim": 4}, ["rotary_dim", "4", "wanted is no such field"]),
        ({"use_mrope": True}, ["use_mrope = True", "wanted is false or no such field"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config", "bits"]),
        ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping", "50.0"]),
        ({"auto_map": {"AutoModel": "x.y"}}, ["auto_map.AutoModel", "'x.y'", "Llama"]),
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
        ({"eos_token_id": [2, -1]}, ["eos_token_id", "-1"]),
        ({"bos_token_id": True}, ["bos_token_id", "True"]),
    ],
)
def test_refused_by_name_and_value(changes, names):
    message = refused(**changes)
    for name in names:
        assert name in message


@pytest.mark.parametrize("model_type", ["bert", None, ["llama"], "Llama"])
def test_unknown_family(model_type):
    with pytest.raises(
        ValueError, match=r"^x: model_type must be one of arcee, cohere, .*, starcoder2, not "
    ) as caught:
        parse_config(config(model_type=model_type), "x")
    assert str(model_type) in str(caught.value)


@pytest.mark.parametrize("name", ["sliding_window", "quantization_config", "use_mrope", "what_is_this"])
def test_null_is_as_good_as_absent(name):
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_unknown_field_is_refused_in_every_family(model_type):
    message = refused(model_type=model_type, router_aux_loss_coef=0.0625)
    assert "router_aux_loss_coef = 0.0625" in message
    assert model_type in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
OWN = {source.field for f in FAMILIES.values() for source in f.options.values() if hasattr(source, "field")}
FIELDS = sorted(
    {*config(), *FIXED, *OWN}
    | {name for family in FAMILIES.values() for names in family.spellings.values() for name in names}
    | {
        "rope_scaling",
        "rope_parameters",
        "head_dim",
        "layer_types",
        "architectures",
        "original_max_position_embeddings",
    }
    | {
        "hidden_act",
        "max_window_layers",
        "use_sliding_window",
        "sliding_window",
        "sliding_window_pattern",
        "text_config",
    }
    | {"no_rope_layers", "no_rope_layer_interval", "rotary_dim", "eos_token_id", "bos_token_id"}
)


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_json_in_any_field(model_type, changes):
    """A config is understood or refused with one sentence; nothing else can happen."""
    changes = {name: value for name, value in changes.items() if name != "model_type"}
    try:
        parsed, message = parse(model_type, **changes), None
    except ValueError as error:
        parsed, message = None, str(error)
    if parsed is None:
        assert message.startswith("CausalLM.load: m/config.json: ")
        assert "\n" not in message
    else:
        assert len(parsed.layers) == parsed.n_layers
        assert all(parsed.layers)


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
        ({"temperature": -0.5}, ["temperature must be above 0", "-0.5"]),
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
    assert not HARMLESS & set(FIXED)
    for family in FAMILIES.values():
        sources = [*family.options.values(), *family.model.values(), family.plain_norms]
        read = {source.field for source in sources if hasattr(source, "field")} | {family.act, family.eps}
        assert not read & HARMLESS
        assert not (set(family.only) | set(family.echoes) | set(family.ignored)) & (read | HARMLESS)
