"""The model families that can be loaded: one row each, and the names they use.

What every one of them shares stands in ``TENSORS`` and in ``config.py``; a new family costs a row of
``FAMILIES`` and, where it differs, an entry in the tables below.
"""

from typing import NamedTuple


class Family(NamedTuple):
    """How one ``model_type`` sets the options of its blocks.

    ``options`` maps an option of ``TransformerBlock`` to True, or to the switch in ``config.json`` that
    decides it (absent means off). ``window`` says which layers slide: none, ``"all"``, or ``"by_layer"``
    (``use_sliding_window`` from layer ``max_window_layers`` on, unless ``layer_types`` lists them).
    """

    options: dict
    window: str = "none"


ATTENTION_BIAS = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}

FAMILIES = {
    # model_type       options of the block                              layers with a window
    "llama": Family({**ATTENTION_BIAS, "mlp_bias": "mlp_bias"}),
    "mistral": Family({}, window="all"),
    "qwen2": Family({"qkv_bias": True}, window="by_layer"),
    "qwen3": Family({**ATTENTION_BIAS, "qk_norm": True}, window="by_layer"),
}

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu"}  # hidden_act -> mlp

# Where the tensors of a block stand in the checkpoint, after "model.layers.<i>.".
LAYER = "model.layers.{}."
TENSORS = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
IGNORED_TENSORS = (".rotary_emb.inv_freq",)  # endings; tables that the config already determines

# Fields that are not honoured, and need not be while they hold one of these values or null.
FIXED = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "chunk_size_feed_forward": (0,),
    "is_encoder_decoder": (False,),
    "is_llama_config": (True,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1, 1.0),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_mrope": (False,),
    "use_sliding_window": (False,),
}

# Fields that never alter the logits: bookkeeping, training, defaults of generation, speed.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled
    _model_name_or_path _name_or_path attention_dropout attn_implementation bad_words_ids
    begin_suppress_tokens bos_token decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range is_decoder
    label2id length_penalty max_length max_sequence_length max_window_layers min_length model_max_length
    name_or_path neftune_noise_alpha no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_attentions output_hidden_states output_scores pad_token pad_token_id prefix problem_type
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p
    torch_dtype torchscript transformers.js_config transformers_version typical_p unk_token unk_token_id
    unsloth_fixed unsloth_version use_bfloat16 use_cache use_flash_attention use_flash_attention_2
    use_flash_attn use_return_dict
    """.split()
)
