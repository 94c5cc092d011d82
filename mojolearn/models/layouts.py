"""Where a checkpoint keeps the tensors of a model, by family.

A layout says, for every module of a layer as the checkpoint names it, which parts of our block its tensors
hold. A part alone means the tensors as they are; the classes below are for those that are stored otherwise.
"""

from typing import NamedTuple


class Stacked(NamedTuple):
    """Several parts in one tensor, one after the other along the outputs."""

    parts: tuple


class Transposed(NamedTuple):
    """The same with matrices stored (in, out)."""

    parts: tuple


class PerHead(NamedTuple):
    """Several parts in one tensor, head by head: the rows of all parts for head 0, then for head 1, ..."""

    parts: tuple


class Folded(NamedTuple):
    """One vector for all heads, stored as a matrix (heads, width of a head)."""

    part: str


class Shared(NamedTuple):
    """One vector of a head's width that serves all heads."""

    part: str


class Listed(NamedTuple):
    """One vector per head, each a tensor of its own; ``{}`` in the name of the module is the head."""

    part: str


class Layout(NamedTuple):
    """Names in a checkpoint.

    ``roots`` are prefixes of which a checkpoint has one, ``heads`` names of the output head of which it has at
    most one.
    ``layers`` is the prefix of a layer, after the root. ``ignored`` are patterns of tensors that are not looked at:
    tables and masks that the config determines, and other parts than the language model.
    """

    modules: dict
    roots: tuple = ("model.", "")
    layers: str = "layers.{}."
    embedding: str = "embed_tokens"
    positions: str | None = None
    norm: str = "norm"
    heads: tuple = ("lm_head",)
    ignored: tuple = ("*rotary_emb.inv_freq",)


QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")
MASKS = ("*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias")


def under(prefix, *names):
    """The modules ``prefix.name`` that hold the part of the same name."""
    return {f"{prefix}.{name}": name for name in names}


NORMS = {"input_layernorm": "input_layernorm", "post_attention_layernorm": "post_attention_layernorm"}
ATTENTION = under("self_attn", *QKV, "o_proj")
QK_NORM = under("self_attn", "q_norm", "k_norm")
MLP = under("mlp", *GATE_UP, "down_proj")
FUSED_MLP = {"mlp.gate_up_proj": Stacked(GATE_UP), "mlp.down_proj": "down_proj"}
OUTPUT_NORMS = {
    "post_attention_layernorm": "attention_output_norm",
    "post_feedforward_layernorm": "mlp_output_norm",
}

LLAMA = Layout({**NORMS, **ATTENTION, **QK_NORM, **MLP})
COHERE = Layout(
    {
        **NORMS,
        **ATTENTION,
        "self_attn.q_norm": Folded("q_norm"),
        "self_attn.k_norm": Folded("k_norm"),
        **MLP,
    }
)
OLMO2 = Layout({**OUTPUT_NORMS, **ATTENTION, **QK_NORM, **MLP})
GEMMA2 = Layout(
    {
        "input_layernorm": "input_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        **OUTPUT_NORMS,
        **ATTENTION,
        **QK_NORM,
        **MLP,
    }
)
GEMMA3 = GEMMA2._replace(
    roots=("model.", "language_model.model.", "model.language_model.", "language_model.", ""),
    heads=("lm_head", "language_model.lm_head"),
    ignored=(*LLAMA.ignored, "*vision_tower.*", "*multi_modal_projector.*"),
)
GLM = Layout({**NORMS, **ATTENTION, **FUSED_MLP})
GLM4 = Layout(
    {
        **NORMS,
        "post_self_attn_layernorm": "attention_output_norm",
        "post_mlp_layernorm": "mlp_output_norm",
        **ATTENTION,
        **FUSED_MLP,
    }
)
PHI3 = Layout({**NORMS, "self_attn.qkv_proj": Stacked(QKV), "self_attn.o_proj": "o_proj", **FUSED_MLP})
PHI = Layout(
    {
        "input_layernorm": "input_layernorm",
        **under("self_attn", *QKV),
        "self_attn.dense": "o_proj",
        "self_attn.q_layernorm": Shared("q_norm"),
        "self_attn.k_layernorm": Shared("k_norm"),
        "mlp.fc1": "up_proj",
        "mlp.fc2": "down_proj",
    },
    norm="final_layernorm",
)
STABLELM = Layout(
    {
        **NORMS,
        **ATTENTION,
        "self_attn.q_layernorm.norms.{}": Listed("q_norm"),
        "self_attn.k_layernorm.norms.{}": Listed("k_norm"),
        **MLP,
    }
)
STARCODER2 = Layout({**NORMS, **ATTENTION, "mlp.c_fc": "up_proj", "mlp.c_proj": "down_proj"})
GPT2 = Layout(
    {
        "ln_1": "input_layernorm",
        "attn.c_attn": Transposed(QKV),
        "attn.c_proj": Transposed(("o_proj",)),
        "ln_2": "post_attention_layernorm",
        "mlp.c_fc": Transposed(("up_proj",)),
        "mlp.c_proj": Transposed(("down_proj",)),
    },
    roots=("transformer.", ""),
    layers="h.{}.",
    embedding="wte",
    positions="wpe",
    norm="ln_f",
    ignored=MASKS,
)
GPTJ = Layout(
    {
        "ln_1": "input_layernorm",
        **under("attn", *QKV),
        "attn.out_proj": "o_proj",
        "mlp.fc_in": "up_proj",
        "mlp.fc_out": "down_proj",
    },
    roots=("transformer.", ""),
    layers="h.{}.",
    embedding="wte",
    norm="ln_f",
    ignored=MASKS,
)
GPT_NEOX = Layout(
    {
        **NORMS,
        "attention.query_key_value": PerHead(QKV),
        "attention.dense": "o_proj",
        "mlp.dense_h_to_4h": "up_proj",
        "mlp.dense_4h_to_h": "down_proj",
    },
    roots=("gpt_neox.", ""),
    embedding="embed_in",
    norm="final_layer_norm",
    heads=("embed_out", "lm_head"),
    ignored=("*rotary_emb.inv_freq", *MASKS),
)
OPT = Layout(
    {
        "self_attn_layer_norm": "input_layernorm",
        **under("self_attn", *QKV),
        "self_attn.out_proj": "o_proj",
        "final_layer_norm": "post_attention_layernorm",
        "fc1": "up_proj",
        "fc2": "down_proj",
    },
    roots=("model.decoder.", "decoder.", ""),
    positions="embed_positions",
    norm="final_layer_norm",
)
