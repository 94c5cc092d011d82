"""The architectures that GGUF files name, in terms of Hugging Face configurations and tensors: one row each.

Only what sets an architecture apart stands here; what all share is in ``gguf_config.py``. A tensor of a layer is
``blk.<layer>.<part>.weight`` (or ``.bias``) in a GGUF file, one outside the layers ``<part>.weight``.
"""

from types import MappingProxyType
from typing import NamedTuple

NOTHING = MappingProxyType({})


class Architecture(NamedTuple):
    """How one ``general.architecture`` becomes a Hugging Face model.

    ``layers`` and ``whole`` map parts of tensors. ``numbers`` and ``flags`` map metadata keys, after
    "<architecture>.", to fields of config.json; ``defaults`` are the fields' values where the key is missing,
    ``constants`` those that the architecture determines. ``switches`` maps a field that is true or false to the
    tensor of layer 0 that is there in the former case. ``window`` tells which layers slide: ``"none"``, ``"all"``,
    or a number n: all but every n-th. ``root_scale`` is the number of layers of the one model of the
    architecture that scales scores by the width per head rather than by the width of a head.
    """

    model_type: str
    layers: dict
    whole: dict
    numbers: dict = NOTHING
    flags: dict = NOTHING
    defaults: dict = NOTHING
    constants: dict = NOTHING
    switches: dict = NOTHING
    window: str | int = "none"
    prefix: str = "model.layers.{}."
    rope: bool = True
    partial_rope: bool = False
    local_rope_theta: float | None = None  # of layers with a window, where it is not that of the others
    root_scale: int | None = None
    kv_heads: bool = True
    permuted: bool = False  # rows of q and k: rotary pairs side by side, where Hugging Face pairs the halves
    norm_plus_one: bool = False  # gains of norms: w + 1 in the file, w at Hugging Face


SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
LAYERNORM = "attention.layer_norm_epsilon"
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
LLAMA = {**ATTENTION, **MLP, **TWO_NORMS}
GEMMA2 = {**ATTENTION, **MLP, **POST_NORMS} | {
    "attn_norm": "input_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
}

ATTENTION_BIAS = {"attention_bias": "attn_q.bias"}
BIASES = {**ATTENTION_BIAS, "mlp_bias": "ffn_up.bias"}
GELU_TANH = {"hidden_activation": "gelu_pytorch_tanh"}
SILU = {"hidden_act": "silu"}

ARCHITECTURES = {
    "llama": Architecture(
        "llama", LLAMA, WHOLE, numbers=RMS, constants=SILU, switches=BIASES, permuted=True
    ),
    "qwen2": Architecture("qwen2", LLAMA, WHOLE, numbers=RMS, constants=SILU),
    "qwen3": Architecture(
        "qwen3", {**LLAMA, **QK_NORM}, WHOLE, numbers=RMS, constants=SILU, switches=ATTENTION_BIAS
    ),
    "gemma": Architecture("gemma", LLAMA, WHOLE, numbers=RMS, constants=GELU_TANH, norm_plus_one=True),
    "gemma2": Architecture(
        "gemma2",
        GEMMA2,
        WHOLE,
        numbers={**RMS, **LOGIT_SOFTCAP, "attn_logit_softcapping": "attn_logit_softcapping"},
        defaults={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096},
        constants=GELU_TANH,
        window=2,
        root_scale=46,
        norm_plus_one=True,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {**GEMMA2, **QK_NORM},
        WHOLE,
        numbers={**RMS, **LOGIT_SOFTCAP},
        constants=GELU_TANH,
        window=6,
        local_rope_theta=10000.0,
        root_scale=62,
        norm_plus_one=True,
    ),
}
