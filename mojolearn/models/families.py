"""The model families that can be loaded: one row each, which names the options of its blocks and of the model.

A row says what sets the family apart from llama, in the words of ``family.py``. Where the tensors stand is in
``layouts.py``, what a field means that the file leaves out in ``defaults.py``, and which fields change nothing in
any family in ``irrelevant.py``.
"""

from mojolearn.models import layouts
from mojolearn.models.family import (
    LEGACY_GEMMA,
    PLAIN,
    Family,
    InverseRoot,
    Number,
    Rotary,
    Switch,
    Windows,
)

QKV_BIAS = {"qkv_bias": Switch("attention_bias")}
ATTENTION_BIAS = {**QKV_BIAS, "o_bias": Switch("attention_bias")}
MLP_BIAS = {"mlp_bias": Switch("mlp_bias")}
ALL_BIASES = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}

SWITCHED = Windows("late", switch=True)
ROOT_OF_WIDTH = "root of d_model"
GPT_SPELLINGS = {
    "hidden_size": ("n_embd",),
    "intermediate_size": ("n_inner",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions",),
    "hidden_act": ("activation_function",),
}

GEMMA2 = Family(
    "Gemma2ForCausalLM",
    layouts.GEMMA2,
    norm="rmsnorm_offset",
    options={
        **ATTENTION_BIAS,
        "norm_placement": "both",
        "attn_scale": InverseRoot("query_pre_attn_scalar", 256),
        "attn_softcap": Number("attn_logit_softcapping", 50.0, off=True),
    },
    model={
        "embedding_multiplier": ROOT_OF_WIDTH,
        "logit_softcap": Number("final_logit_softcapping", 30.0, off=True),
    },
    act="hidden_activation",
    windows=Windows("pattern", every=2),
    only={"hidden_act": ("gelu_pytorch_tanh", "gelu"), "use_bidirectional_attention": (False,)},
)
GEMMA3 = GEMMA2._replace(
    architecture="Gemma3ForCausalLM",
    layout=layouts.GEMMA3,
    options={
        **ATTENTION_BIAS,
        "norm_placement": "both",
        "attn_scale": InverseRoot("query_pre_attn_scalar", 256),
        "qk_norm": True,
    },
    model={
        "embedding_multiplier": ROOT_OF_WIDTH,
        "logit_softcap": Number("final_logit_softcapping", None, off=True),
    },
    rotary=Rotary(local_theta=("rope_local_base_freq", 10000.0)),
    windows=Windows("pattern", every=6, pattern="sliding_window_pattern"),
    only={**GEMMA2.only, "attn_logit_softcapping": ()},
)
GLM = Family(
    "GlmForCausalLM",
    layouts.GLM,
    options={"qkv_bias": Switch("attention_bias", True)},
    rotary=Rotary(interleaved=True, partial=0.5),
)
OLMO2 = Family(
    "Olmo2ForCausalLM",
    layouts.OLMO2,
    options={**ATTENTION_BIAS, "norm_placement": "post", "qk_norm": "full"},
)
QWEN2 = Family("Qwen2ForCausalLM", options={"qkv_bias": True}, windows=SWITCHED)

FAMILIES = {
    "arcee": Family("ArceeForCausalLM", options={**ATTENTION_BIAS, **MLP_BIAS}, activations=PLAIN),
    "cohere": Family(
        "CohereForCausalLM",
        layouts.COHERE,
        norm="layernorm",
        eps="layer_norm_eps",
        options={
            **ATTENTION_BIAS,
            "residual": "parallel_shared",
            "qk_norm": Switch("use_qk_norm", on="layernorm"),
        },
        model={"logit_multiplier": Number("logit_scale", 0.0625)},
        rotary=Rotary(interleaved=True),
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        norm="layernorm",
        eps="layer_norm_eps",
        options={**ATTENTION_BIAS, "residual": "parallel_shared"},
        model={"logit_multiplier": Number("logit_scale", 0.0625)},
        rotary=Rotary(interleaved=True, layers="window"),
        windows=Windows("pattern", every=4, pattern="sliding_window_pattern"),
        only={
            "order_of_interleaved_layers": ("local_attn_first",),
            "position_embedding_type": ("rope_gptj",),
            "rotary_pct": (1, 1.0),
            "use_gated_activation": (True,),
            "use_parallel_block": (True,),
            "use_qk_norm": (False,),
        },
        ignored=("layer_switch", "use_embedding_sharing", "use_parallel_embedding"),
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        layouts.OLMO2,
        options={"norm_placement": "post", "qk_norm": True},
        rotary=Rotary(layers="window or none has one"),
        windows=Windows("pattern", every=4, pattern="sliding_window_pattern", optional=True),
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        norm="rmsnorm_offset",
        options=ATTENTION_BIAS,
        model={"embedding_multiplier": ROOT_OF_WIDTH},
        activations=LEGACY_GEMMA,
        only={"hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (False,)},
    ),
    "gemma2": GEMMA2,
    "gemma3": GEMMA3._replace(architecture="Gemma3ForConditionalGeneration", text_type="gemma3_text"),
    "gemma3_text": GEMMA3,
    "glm": GLM,
    "glm4": GLM._replace(
        architecture="Glm4ForCausalLM",
        layout=layouts.GLM4,
        options={**GLM.options, "norm_placement": "both"},
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        layouts.GPT2,
        norm="layernorm",
        norm_bias=True,
        eps="layer_norm_epsilon",
        options={**ALL_BIASES, "attn_scale": Switch("scale_attn_weights", True, on=None, off=1.0)},
        model={"position_offset": 0, "scale_by_layer": Switch("scale_attn_by_inverse_layer_idx")},
        activations=PLAIN,
        rotary=None,
        head_dim=False,
        kv_heads=False,
        spellings=GPT_SPELLINGS,
        only={"reorder_and_upcast_attn": (False, True)},
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        layouts.GPT_NEOX,
        norm="layernorm",
        norm_bias=True,
        eps="layer_norm_eps",
        options={
            "qkv_bias": Switch("attention_bias", True),
            "o_bias": Switch("attention_bias", True),
            "mlp_bias": True,
            "residual": Switch("use_parallel_residual", True, on="parallel", off="sequential"),
        },
        activations=PLAIN,
        rotary=Rotary(partial=0.25),
        head_dim=False,
        kv_heads=False,
        spellings={"rope_theta": ("rotary_emb_base",), "partial_rotary_factor": ("rotary_pct",)},
    ),
    "gptj": Family(
        "GPTJForCausalLM",
        layouts.GPTJ,
        norm="layernorm",
        norm_bias=True,
        eps="layer_norm_epsilon",
        options={"mlp_bias": True, "residual": "parallel_shared"},
        model={"head_bias": True},
        activations=PLAIN,
        rotary=Rotary(interleaved=True, width="rotary_dim"),
        head_dim=False,
        kv_heads=False,
        spellings=GPT_SPELLINGS,
        only={"rotary": (True,), "scale_attn_weights": (True,)},
    ),
    "granite": Family(
        "GraniteForCausalLM",
        options={
            **ATTENTION_BIAS,
            **MLP_BIAS,
            "attn_scale": Number("attention_multiplier", 1.0),
            "residual_multiplier": Number("residual_multiplier", 1.0),
        },
        model={
            "embedding_multiplier": Number("embedding_multiplier", 1.0),
            "logit_divisor": Number("logits_scaling", 1.0),
        },
    ),
    "helium": Family("HeliumForCausalLM", options={**QKV_BIAS, **MLP_BIAS}, rotary=Rotary(interleaved=True)),
    "llama": Family("LlamaForCausalLM", options={**ATTENTION_BIAS, **MLP_BIAS}),
    "ministral": Family("MinistralForCausalLM", windows=Windows("listed")),
    "mistral": Family("MistralForCausalLM", windows=Windows("all")),
    "nemotron": Family(
        "NemotronForCausalLM",
        norm="layernorm_offset",
        norm_bias=True,
        eps="norm_eps",
        options={**ATTENTION_BIAS, **MLP_BIAS},
        activations=PLAIN,
        rotary=Rotary(partial=0.5),
        echoes={"rope_percent": "partial_rotary_factor"},
        ignored=("kv_channels",),
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        norm="layernorm",
        eps=None,
        plain_norms=True,
        options={**ATTENTION_BIAS, "qkv_clip": Number("clip_qkv", None, off=True)},
    ),
    "olmo2": OLMO2,
    "olmo3": OLMO2._replace(
        architecture="Olmo3ForCausalLM",
        rotary=Rotary(local_theta=("rope_theta", None)),
        windows=Windows("pattern", every=4),
    ),
    "opt": Family(
        "OPTForCausalLM",
        layouts.OPT,
        norm="layernorm",
        norm_bias=True,
        eps=None,
        plain_norms=Switch("layer_norm_elementwise_affine", True, on=False, off=True),
        options=dict.fromkeys(ALL_BIASES, Switch("enable_bias", True)),
        model={"position_offset": 2, "final_norm": Switch("_remove_final_layer_norm", on=False, off=True)},
        activations=PLAIN,
        rotary=None,
        head_dim=False,
        kv_heads=False,
        spellings={"intermediate_size": ("ffn_dim",), "hidden_act": ("activation_function",)},
        only={"do_layer_norm_before": (True,)},
        echoes={"word_embed_proj_dim": "hidden_size"},
    ),
    "phi": Family(
        "PhiForCausalLM",
        layouts.PHI,
        norm="layernorm",
        norm_bias=True,
        eps="layer_norm_eps",
        options={
            **ALL_BIASES,
            "residual": "parallel_shared",
            "qk_norm": Switch("qk_layernorm", on="layernorm"),
            "qk_norm_bias": Switch("qk_layernorm"),
        },
        model={"head_bias": True},
        activations=PLAIN,
        rotary=Rotary(partial=0.5),
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        layouts.PHI3,
        rotary=Rotary(
            partial=1.0,
            original=4096,
            types={"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},
        ),
        windows=Windows("all"),
        only={"full_attn_mod": (1,), "interpolate_factor": (1,), "lm_head_bias": (False,)},
    ),
    "qwen2": QWEN2,
    "qwen3": QWEN2._replace(architecture="Qwen3ForCausalLM", options={**ATTENTION_BIAS, "qk_norm": True}),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        options={**ATTENTION_BIAS, **MLP_BIAS},
        rotary=Rotary(layers="listed"),
        windows=Windows("unturned", switch=True),
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        layouts.STABLELM,
        norm="layernorm",
        norm_bias=True,
        eps="layer_norm_eps",
        options={
            "qkv_bias": Switch("use_qkv_bias"),
            "qk_norm": Switch("qk_layernorm", on="layernorm"),
            "residual": Switch("use_parallel_residual", on="parallel_shared", off="sequential"),
        },
        rotary=Rotary(partial=0.25),
        head_dim=False,
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        layouts.STARCODER2,
        norm="layernorm",
        norm_bias=True,
        eps="norm_epsilon",
        options=dict.fromkeys(ALL_BIASES, Switch("use_bias", True)),
        activations=PLAIN,
        windows=Windows("all"),
        only={"mlp_type": ("default",), "norm_type": ("layer_norm",), "scale_attn_weights": (True,)},
        echoes={"layer_norm_epsilon": "norm_eps"},
        ignored=("activation_function", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    ),
}
