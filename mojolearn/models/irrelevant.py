"""Fields of ``config.json`` that change no logit, in any family.

Every other field is honoured by the family's row, or listed there, or refused by name and value.
"""

# Not honoured, and need not be while they hold one of these values or null.
FIXED = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "chunk_size_feed_forward": (0,),
    "is_encoder_decoder": (False,),
    "is_llama_config": (True,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1, 1.0),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_mrope": (False,),
    "use_sliding_window": (False,),
}

# Bookkeeping, training, defaults of generation, other tasks, speed.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _model_name_or_path
    _name_or_path _num_labels activation_dropout attention_dropout attn_implementation attn_pdrop
    bad_words_ids begin_suppress_tokens bos_token cache_implementation classifier_dropout
    decoder_start_token_id diversity_penalty do_sample dropout dtype early_stopping embd_pdrop
    embedding_dropout encoder_no_repeat_ngram_size eos_token exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout id2label init_std
    initializer_range is_decoder label2id layerdrop length_penalty max_length max_sequence_length
    max_window_layers min_length model_max_length n_ctx name_or_path neftune_noise_alpha no_repeat_ngram_size
    num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states
    output_scores pad_token pad_token_id prefix pretraining_tp problem_type remove_invalid_values
    repetition_penalty resid_pdrop residual_dropout return_dict return_dict_in_generate sep_token_id
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
    torchscript transformers.js_config transformers_version typical_p unk_token unk_token_id unsloth_fixed
    unsloth_version use_bfloat16 use_cache use_flash_attention use_flash_attention_2 use_flash_attn
    use_return_dict
    """.split()
)
