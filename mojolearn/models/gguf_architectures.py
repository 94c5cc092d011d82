"""The architectures that GGUF files name, in terms of Hugging Face configurations and tensors: one row each.

Only what sets an architecture apart stands here; what all share is in ``gguf_config.py``. A tensor of a layer is
``blk.<layer>.<part>.weight`` (or ``.bias``) in a GGUF file, one outside the layers ``<part>.weight``.
"""

from types import MappingProxyType
from typing import NamedTuple

NOTHING = MappingProxyType({})

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
RMS, LAYERNORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
LOGIT_SOFTCAP = {"final_logit_softcapping": "final_logit_softcapping"}

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"} | {"attn_output": "self_attn.o_proj"}
QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
FUSED_MLP = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
TWO_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
SANDWICH = {**POST_NORMS, "attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"}

ATTENTION_BIAS = {"attention_bias": "attn_q.bias"}
BIASES = {**ATTENTION_BIAS, "mlp_bias": "ffn_up.bias"}
SILU, GELU_TANH = {"hidden_act": "silu"}, {"hidden_activation": "gelu_pytorch_tanh"}


class Architecture(NamedTuple):
    """How one ``general.architecture`` becomes a Hugging Face model.

    ``layers`` and ``whole`` map parts of tensors. ``numbers`` and ``flags`` map metadata keys, after
    "<architecture>.", to fields of config.json; ``defaults`` are the fields' values where the key is missing,
    ``constants`` those that the architecture determines. ``fixed`` maps keys that are not honoured to the values that
    they may have. ``switches`` maps a field that is true or false to the tensor of layer 0 that is there in the former
    case, or, after "no ", in the latter.
    """

    model_type: str
    layers: dict = MappingProxyType({**ATTENTION, **MLP, **TWO_NORMS})
    whole: dict = MappingProxyType(WHOLE)
    prefix: str = "model.layers.{}."
    numbers: dict = MappingProxyType({RMS: "rms_norm_eps"})
    flags: dict = NOTHING
    defaults: dict = NOTHING
    constants: dict = MappingProxyType(SILU)
    fixed: dict = NOTHING
    switches: dict = NOTHING
    window: str | int = "none"  # which layers slide: "none", "all", or a number n: all but every n-th
    windowed: str | None = None  # model_type of models with a window, where it is another
    rope: bool = True
    partial_rope: bool = False
    local_rope_theta: float | None = None  # of layers with a window, where it is not that of the others
    scaled_by_head: int | None = (
        None  # how many layers that model has whose scale is not that of its head_dim
    )
    kv_heads: bool = True
    permuted: bool = False  # rows of q and k: rotary pairs side by side, where Hugging Face pairs the halves
    norm_plus_one: bool = False  # gains of norms: w + 1 in the file, w at Hugging Face
    transposed: bool = False  # matrices of layers are (in, out) at Hugging Face
    qkv_by_head: bool = False  # queries, keys and values in one tensor: by head at Hugging Face


LLAMA = Architecture("llama", switches=BIASES, window="all", windowed="mistral", permuted=True)
BARE_LLAMA = LLAMA._replace(window="none", windowed=None)
GEMMA2 = Architecture(
    "gemma2",
    layers={**ATTENTION, **MLP, **SANDWICH},
    numbers={RMS: "rms_norm_eps", **LOGIT_SOFTCAP, "attn_logit_softcapping": "attn_logit_softcapping"},
    defaults={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096},
    constants=GELU_TANH,
    window=2,
    scaled_by_head=46,
    norm_plus_one=True,
)
COHERE = Architecture(
    "cohere",
    layers={**ATTENTION, **MLP, **QK_NORM, "attn_norm": "input_layernorm"},
    numbers={LAYERNORM: "layer_norm_eps", "logit_scale": "logit_scale"},
    switches={**ATTENTION_BIAS, "use_qk_norm": "attn_q_norm.weight"},
)

ARCHITECTURES = {
    "arcee": BARE_LLAMA._replace(model_type="arcee", constants={"hidden_act": "relu2"}),
    "command-r": COHERE,
    "cohere2": COHERE._replace(
        model_type="cohere2",
        layers={**ATTENTION, **MLP, "attn_norm": "input_layernorm"},
        switches=NOTHING,
        window=4,
    ),
    "exaone4": Architecture("exaone4", layers={**ATTENTION, **MLP, **QK_NORM, **POST_NORMS}, window=4),
    "gemma": Architecture("gemma", constants=GELU_TANH, norm_plus_one=True),
    "gemma2": GEMMA2,
    "gemma3": GEMMA2._replace(
        model_type="gemma3_text",
        layers={**GEMMA2.layers, **QK_NORM},
        numbers={RMS: "rms_norm_eps", **LOGIT_SOFTCAP},
        defaults=NOTHING,
        window=6,
        local_rope_theta=10000.0,
        scaled_by_head=62,
    ),
    "glm4": Architecture(
        "glm4",
        layers={
            **ATTENTION,
            **FUSED_MLP,
            **TWO_NORMS,
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        switches=ATTENTION_BIAS,
        partial_rope=True,
    ),
    "gpt2": Architecture(
        "gpt2",
        layers={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        whole={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        prefix="transformer.h.{}.",
        numbers={LAYERNORM: "layer_norm_epsilon"},
        constants={"activation_function": "gelu_new"},
        rope=False,
        kv_heads=False,
        transposed=True,
    ),
    "gptneox": Architecture(
        "gpt_neox",
        layers={
            **TWO_NORMS,
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        whole={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        prefix="gpt_neox.layers.{}.",
        numbers={LAYERNORM: "layer_norm_eps"},
        flags={"use_parallel_residual": "use_parallel_residual"},
        constants={"hidden_act": "gelu"},
        switches={"attention_bias": "attn_qkv.bias"},
        partial_rope=True,
        kv_heads=False,
        qkv_by_head=True,
    ),
    "granite": BARE_LLAMA._replace(
        model_type="granite",
        numbers={
            RMS: "rms_norm_eps",
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        fixed={"rope.scaling.finetuned": (True,)},  # here a switch of all rotation
    ),
    "llama": LLAMA,
    "mistral3": LLAMA._replace(model_type="mistral", switches=NOTHING),
    "nemotron": Architecture(
        "nemotron",
        numbers={LAYERNORM: "norm_eps"},
        constants={"hidden_act": "relu2"},
        switches=BIASES,
        partial_rope=True,
        norm_plus_one=True,
    ),
    "olmo": Architecture(
        "olmo",
        layers={**ATTENTION, **MLP},
        numbers={"attention.clamp_kqv": "clip_qkv"},
        fixed={LAYERNORM: (1e-5,)},
        permuted=True,
    ),
    "olmo2": Architecture(
        "olmo2",
        layers={**ATTENTION, **MLP, **QK_NORM, **POST_NORMS},
        switches=ATTENTION_BIAS,
        window=4,
        windowed="olmo3",
    ),
    "phi2": Architecture(
        "phi",
        layers={
            **ATTENTION,
            "attn_norm": "input_layernorm",
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
        whole={**WHOLE, "output_norm": "model.final_layernorm"},
        numbers={LAYERNORM: "layer_norm_eps"},
        constants={"hidden_act": "gelu_new"},
        partial_rope=True,
    ),
    "phi3": Architecture(
        "phi3",
        layers={
            **FUSED_MLP,
            **TWO_NORMS,
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
        },
        window="all",
        partial_rope=True,
    ),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture(
        "qwen3", layers={**ATTENTION, **MLP, **TWO_NORMS, **QK_NORM}, switches=ATTENTION_BIAS
    ),
    "smollm3": BARE_LLAMA._replace(model_type="smollm3"),
    "stablelm": Architecture(
        "stablelm",
        layers={
            **ATTENTION,
            **MLP,
            **TWO_NORMS,
            "attn_q_norm": "self_attn.q_layernorm.norms.{}",
            "attn_k_norm": "self_attn.k_layernorm.norms.{}",
        },
        numbers={LAYERNORM: "layer_norm_eps"},
        fixed={
            "use_parallel_residual": (False, True)
        },  # many files are wrong; whether the second norm is there, decides
        switches={
            "use_qkv_bias": "attn_q.bias",
            "qk_layernorm": "attn_q_norm.weight",
            "use_parallel_residual": "no ffn_norm.weight",
        },
        partial_rope=True,
    ),
    "starcoder2": Architecture(
        "starcoder2",
        layers={**ATTENTION, **TWO_NORMS, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        numbers={LAYERNORM: "norm_epsilon"},
        constants={"hidden_act": "gelu_pytorch_tanh"},
        switches={"use_bias": "attn_q.bias"},
        window="all",
    ),
}
