"""``config.json`` of a Hugging Face folder, turned into the options of our blocks.

Every field is either honoured, or known to be harmless, or refused by name and value: a model that would
be computed differently from what its authors wrote is never loaded.
"""

import json
import math
import os
import re
from dataclasses import dataclass, field, replace

from mojolearn.models.defaults import DEFAULTS
from mojolearn.models.families import FAMILIES, ROOT_OF_WIDTH
from mojolearn.models.family import InverseRoot, Number, Switch
from mojolearn.models.files import admit_folder
from mojolearn.models.gguf import GGUFCheckpoint
from mojolearn.models.gguf_file import check_no_files, is_gguf
from mojolearn.models.irrelevant import FIXED, HARMLESS
from mojolearn.models.layer_types import FULL, SLIDING, read_layer_types
from mojolearn.models.rope_fields import read_rope
from mojolearn.models.sampling import OPTIONS, Sampling
from mojolearn.models.strict_json import Fields, read_json
from mojolearn.models.text_part import text_part
from mojolearn.options import BlockOptions
from mojolearn.scalars import named, shown

CALLER = "CausalLM.load"


@dataclass(frozen=True)
class ModelConfig:
    """What a checkpoint's ``config.json`` says, in our words.

    Attributes
    ----------
    layers : tuple of dict
        The keyword options of each layer's ``TransformerBlock``.
    norm, norm_eps, norm_bias : str, float, bool
        Kind of the norm after the last layer, its epsilon, and whether it has a bias; ``norm`` is None where there
        is no such norm.
    plain_norms : bool
        Whether no norm has a gain or bias of its own: the gains are then ones.
    max_position_embeddings : int or None
        The length that the model was made for, of which the scaling of rotary positions has been taken account.
    embedding_multiplier : float
        Factor of the embeddings.
    position_offset : int or None
        With learned positions, the row of their matrix for position 0; None: there are none.
    head_bias : bool
        Whether the output head has a bias.
    logit_multiplier, logit_divisor, logit_softcap : float or None
        Factor of the logits, or what they are divided by, and then their soft ceiling.
    eos_token_ids : tuple of int
        The ids that end a text; those of ``generation_config.json`` where it names any. Ids beyond the
        vocabulary, which some files list, are left out.
    generation : dict
        The other fields of ``generation_config.json``. The command line follows ``do_sample`` and the settings
        of sampling, which are checked; `CausalLM.generate` follows its arguments alone.
    """

    model_type: str
    vocab_size: int
    d_model: int
    intermediate_size: int
    n_layers: int
    norm: str | None
    norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int | None
    bos_token_id: int | None
    eos_token_ids: tuple
    norm_bias: bool = False
    plain_norms: bool = False
    embedding_multiplier: float = 1.0
    position_offset: int | None = None
    head_bias: bool = False
    logit_multiplier: float | None = None
    logit_divisor: float | None = None
    logit_softcap: float | None = None
    generation: dict = field(default_factory=dict)
    layers: tuple = field(default=(), repr=False)

    def tensor_shapes(self, layer):
        """Name and shape of every tensor of one layer.

        Parameters
        ----------
        layer : int
            Which layer.

        Returns
        -------
        dict of str to tuple of int
            Under the names of ``TransformerBlock``, such as "q_proj.weight".
        """
        sizes = {"d_model": self.d_model, "intermediate_size": self.intermediate_size}
        return BlockOptions.checked(**sizes, **self.layers[layer]).weight_shapes()


def read_config(folder):
    """Read ``config.json`` and, where there is one, ``generation_config.json``.

    Parameters
    ----------
    folder : str or path
        A Hugging Face checkpoint folder, or a GGUF file.

    Returns
    -------
    ModelConfig
        The model's shape and the options of its blocks.

    Raises
    ------
    FileNotFoundError
        No such folder, or no ``config.json`` in it.
    ValueError
        A field is malformed, missing, or asks for something that is not honoured: file, field and value.
    """
    if is_gguf(folder):
        checkpoint = GGUFCheckpoint(folder)
        return parse_config(checkpoint.raw_config, checkpoint.where)
    folder = admit_folder(folder, CALLER)
    check_no_files(folder, CALLER)
    path = folder / "config.json"
    config = parse_config(read_json(path, CALLER), f"{CALLER}: {path}")
    path = folder / "generation_config.json"
    if not os.path.lexists(path):
        return config
    fields = Fields(read_json(path, CALLER), f"{CALLER}: {path}")
    eos = _in_vocabulary(fields.ids("eos_token_id"), config.vocab_size) or config.eos_token_ids
    return replace(config, eos_token_ids=eos, generation={**_sampling(fields), **fields.left})


def _sampling(fields):
    """Take ``do_sample`` and the settings of sampling; those that are absent, or null, are left out."""
    settings = {"do_sample": fields.boolean("do_sample", None)}
    settings |= {name: fields.take(name) for name in OPTIONS if name != "greedy"}
    settings = {name: value for name, value in settings.items() if value is not None}
    if settings.get("do_sample") is False and settings.get("temperature") == 0:
        del settings["temperature"]  # another way to say that nothing is drawn
    try:
        Sampling(fields.where, greedy=False, **{n: v for n, v in settings.items() if n != "do_sample"})
    except TypeError as error:  # of the file, our argument, this is a wrong value
        raise ValueError(str(error)) from None
    return settings


def parse_config(raw, where):
    """Turn the fields of a ``config.json`` into a ModelConfig; messages start with `where`."""
    fields = Fields(raw, where)
    model_type = fields.take("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise fields.wrong("model_type", model_type, "one of " + ", ".join(FAMILIES))
    family, defaults = FAMILIES[model_type], DEFAULTS[model_type]
    fields = Fields(fields.left, where, _spellings(family))
    _check_architecture(fields, family, model_type)
    if family.text_type is not None:
        fields = text_part(fields, family.text_type, _spellings(family))

    vocab_size = fields.integer("vocab_size", defaults["vocab_size"])
    d_model = fields.integer("hidden_size", defaults["hidden_size"])
    heads = _heads(fields, family, defaults, d_model)
    positions = fields.integer(
        "max_position_embeddings", _unless_null(fields, "max_position_embeddings", defaults)
    )
    if positions is None and "position_offset" in family.model:
        raise fields.wrong(
            fields.spelt("max_position_embeddings")[0], None, "an integer", "positions are learned"
        )
    n_layers = fields.integer("num_hidden_layers", defaults["num_hidden_layers"], maximum=10_000)
    windows, turned = read_layer_types(fields, family, defaults["sliding_window"], n_layers)
    rope = read_rope(fields, family, defaults, heads["head_dim"], positions)
    options, model = _options(fields, family, d_model)
    plain_norms = model.pop("plain_norms")
    norm = {
        "norm": family.norm,
        "norm_eps": fields.number("norm_eps", defaults["norm_eps"]) if family.eps else defaults["norm_eps"],
        "norm_bias": family.norm_bias and not plain_norms,
    }
    mlp = {"mlp": fields.choice("hidden_act", defaults["hidden_act"], family.activations)}
    block = {**heads, **norm, **mlp, **options}
    inner = fields.integer("intermediate_size", defaults["intermediate_size"] or 4 * d_model)
    bos = fields.integer("bos_token_id", None, minimum=0)
    by_layer = model.pop("scale_by_layer", False)
    if not model.pop("final_norm", True):
        norm["norm"] = None
    config = ModelConfig(
        model_type=model_type,
        vocab_size=vocab_size,
        d_model=d_model,
        intermediate_size=inner,
        n_layers=n_layers,
        **norm,
        plain_norms=plain_norms,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", defaults["tie_word_embeddings"]),
        max_position_embeddings=_longest(positions, rope),
        bos_token_id=bos if bos is not None and bos < vocab_size else None,
        eos_token_ids=_in_vocabulary(fields.ids("eos_token_id"), vocab_size),
        layers=tuple(
            _layer(
                block,
                windows[i],
                rope[SLIDING if windows[i] else FULL] if turned[i] else {"rope_dim": 0},
                by_layer * (i + 1),
            )
            for i in range(n_layers)
        ),
        **model,
    )
    _refuse_the_rest(fields, family, model_type)
    return config


def _spellings(family):
    """Names of fields in a family that differ from those used here."""
    own = {"norm_eps": (family.eps,)} if family.eps else {}
    return {**own, "hidden_act": (family.act,), **family.spellings}


def _check_architecture(fields, family, model_type):
    """Accept the class with the output head and the model without it, whose head is then the embedding."""
    names = fields.take("architectures", [])
    stem = re.sub("(ForCausalLM|LMHeadModel|ForConditionalGeneration)$", "", family.architecture)
    wanted = {name.lower() for name in (family.architecture, f"{stem}Model")}
    if not isinstance(names, list) or (names and not wanted & {str(name).lower() for name in names}):
        raise fields.wrong("architectures", names, f"that of {model_type} for causal language models")
    for name, code in (
        fields.inner("auto_map") or {}
    ).items():  # its own copy of the code, which is never run
        if not str(code).rpartition(".")[2].startswith(stem):
            raise fields.wrong(f"auto_map.{name}", code, f"a class of {model_type}, {stem}...")


def _unless_null(fields, name, defaults):
    return None if fields.is_null(name) else defaults[name]


def _in_vocabulary(ids, vocab_size):
    return tuple(i for i in ids if i < vocab_size)


def _heads(fields, family, defaults, d_model):
    n_heads = fields.integer("num_attention_heads", defaults["num_attention_heads"])
    n_kv_heads = n_heads
    if family.kv_heads:
        null = fields.is_null("num_key_value_heads")
        n_kv_heads = fields.integer(
            "num_key_value_heads", (not null and defaults["num_key_value_heads"]) or n_heads
        )
    if n_heads % n_kv_heads:
        raise fields.wrong("num_key_value_heads", n_kv_heads, f"a divisor of num_attention_heads = {n_heads}")
    default = None if fields.is_null("head_dim") else defaults["head_dim"]
    head_dim = fields.integer("head_dim", default)
    if head_dim is None:
        if d_model % n_heads:
            hint = ", or head_dim given" if family.head_dim else ""
            wanted = f"a multiple of num_attention_heads = {n_heads}{hint}"
            raise fields.wrong("hidden_size", d_model, wanted)
        head_dim = d_model // n_heads
    if not family.head_dim and head_dim * n_heads != d_model:
        raise fields.wrong("head_dim", head_dim, f"hidden_size / num_attention_heads = {d_model} / {n_heads}")
    if head_dim % 2:
        raise fields.wrong("head_dim", head_dim, "even")
    return {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}


def _options(fields, family, d_model):
    """Return what the family's row says of the options of its blocks and of the model."""
    read = {}

    def value(source):
        if source == ROOT_OF_WIDTH:
            return math.sqrt(d_model)
        if not isinstance(source, (Switch, Number, InverseRoot)):
            return source
        if source.field not in read:
            read[source.field] = _field(fields, source)
        found = read[source.field]
        if isinstance(source, Switch):
            return source.on if found else source.off
        return 1 / math.sqrt(found) if isinstance(source, InverseRoot) else found

    options = {name: value(source) for name, source in family.options.items()}
    model = {name: value(source) for name, source in family.model.items()}
    return options, {**model, "plain_norms": value(family.plain_norms)}


def _field(fields, source):
    if isinstance(source, Switch):
        return fields.boolean(source.field, source.default)
    off = isinstance(source, Number) and source.off and fields.is_null(source.field)
    return fields.number(source.field, None if off else source.default)


def _layer(block, window, rope, divisor):
    """Options of one layer; a `divisor` above 0 divides the scale of the scores once more."""
    options = {**block, **rope, "window": window}
    if divisor:
        scale = options.get("attn_scale") or 1 / math.sqrt(options["head_dim"])
        options["attn_scale"] = scale / divisor
    return options


def _longest(positions, rope):
    """Return how long a text the model was made for: some kinds of scaling reach beyond the field."""
    scaling = rope[FULL].get("rope_scaling") or {}
    if scaling.get("type") == "dynamic":
        return None
    if scaling.get("type") == "yarn" and positions is not None:
        return max(positions, int(scaling["factor"] * scaling["original_max_position_embeddings"]))
    return positions


def _refuse_the_rest(fields, family, model_type):
    for name in ("dtype", "torch_dtype"):  # the tensors themselves say how they are stored
        if not isinstance(fields.left.get(name), (str, type(None))):
            raise fields.wrong(name, fields.left[name], 'the name of a type, such as "float32"')
    for name, value in fields.left.items():
        if value is None or name in HARMLESS or name in family.ignored:
            continue
        if name in family.echoes:
            wanted = fields.taken[family.echoes[name]]
            if value != wanted:
                raise fields.wrong(name, value, f"{wanted}, as {family.echoes[name]} says")
            continue
        allowed = family.only.get(name, FIXED.get(name, ()))
        if not any(type(value) is type(v) and value == v for v in allowed):
            wanted = "".join(f"{json.dumps(v)} or " for v in allowed)
            raise ValueError(
                f"{fields.where}: {named(name)} = {shown(value)} is not honoured for {model_type}; wanted is "
                f"{wanted}no such field"
            )
