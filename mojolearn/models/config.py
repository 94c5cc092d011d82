"""``config.json`` of a Hugging Face folder, turned into the options of our blocks.

Every field is either honoured, or known to be harmless, or refused by name and value: a model that would
be computed differently from what its authors wrote is never loaded.
"""

import json
import os
from dataclasses import dataclass, field, replace

from mojolearn.models import families
from mojolearn.models.files import admit_folder
from mojolearn.models.sampling import OPTIONS, Sampling
from mojolearn.models.strict_json import Fields, read_json
from mojolearn.options import BlockOptions
from mojolearn.rope_scaling import admit_rope_scaling
from mojolearn.scalars import counted, shown

CALLER = "CausalLM.load"


@dataclass(frozen=True)
class ModelConfig:
    """What a checkpoint's ``config.json`` says, in our words.

    Attributes
    ----------
    layers : tuple of dict
        The keyword options of each layer's ``TransformerBlock``.
    norm, norm_eps : str, float
        Kind and epsilon of the norm after the last layer.
    eos_token_ids : tuple of int
        The ids that end a text; those of ``generation_config.json`` where it names any.
    generation : dict
        The other fields of ``generation_config.json``. The command line follows ``do_sample`` and the settings
        of sampling, which are checked; `CausalLM.generate` follows its arguments alone.
    """

    model_type: str
    vocab_size: int
    d_model: int
    intermediate_size: int
    n_layers: int
    norm: str
    norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int | None
    bos_token_id: int | None
    eos_token_ids: tuple
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
        A Hugging Face checkpoint folder.

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
    folder = admit_folder(folder, CALLER)
    path = folder / "config.json"
    config = parse_config(read_json(path, CALLER), f"{CALLER}: {path}")
    path = folder / "generation_config.json"
    if not os.path.lexists(path):
        return config
    fields = Fields(read_json(path, CALLER), f"{CALLER}: {path}")
    eos = fields.ids("eos_token_id", config.vocab_size) or config.eos_token_ids
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
    if not isinstance(model_type, str) or model_type not in families.FAMILIES:
        raise fields.wrong("model_type", model_type, "one of " + ", ".join(families.FAMILIES))
    family = families.FAMILIES[model_type]
    _check_architecture(fields, model_type)

    vocab_size = fields.integer("vocab_size")
    d_model = fields.integer("hidden_size")
    norm = {"norm": "rmsnorm", "norm_eps": fields.number("rms_norm_eps", 1e-6)}
    mlp = {"mlp": fields.choice("hidden_act", "silu", families.ACTIVATIONS)}
    block = {**_heads(fields, d_model), **_rope(fields), **norm, **mlp}
    switches = {name: fields.boolean(name) for name in set(family.options.values()) - {True}}
    for option, switch in family.options.items():
        block[option] = switch is True or switches[switch]
    windows = _windows(fields, family.window, fields.integer("num_hidden_layers", maximum=10_000))
    bos = fields.ids("bos_token_id", vocab_size)
    config = ModelConfig(
        model_type=model_type,
        vocab_size=vocab_size,
        d_model=d_model,
        intermediate_size=fields.integer("intermediate_size"),
        n_layers=len(windows),
        **norm,
        tie_word_embeddings=fields.boolean("tie_word_embeddings"),
        max_position_embeddings=fields.integer("max_position_embeddings", None),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=fields.ids("eos_token_id", vocab_size),
        layers=tuple({**block, "window": window} for window in windows),
    )
    _refuse_the_rest(fields, model_type)
    return config


def _check_architecture(fields, model_type):
    names = fields.take("architectures", [])
    wanted = f"{model_type}forcausallm"
    if not isinstance(names, list) or (names and wanted not in (str(name).lower() for name in names)):
        raise fields.wrong("architectures", names, f"that of {model_type} for causal language models")


def _heads(fields, d_model):
    n_heads = fields.integer("num_attention_heads")
    n_kv_heads = fields.integer("num_key_value_heads", n_heads)
    if n_heads % n_kv_heads:
        raise fields.wrong("num_key_value_heads", n_kv_heads, f"a divisor of num_attention_heads = {n_heads}")
    head_dim = fields.integer("head_dim", None)
    if head_dim is None:
        if d_model % n_heads:
            raise fields.wrong(
                "hidden_size", d_model, f"a multiple of num_attention_heads = {n_heads}, or head_dim given"
            )
        head_dim = d_model // n_heads
    if head_dim % 2:
        raise fields.wrong("head_dim", head_dim, "even")
    return {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}


def _rope(fields):
    """Read both spellings: ``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``."""
    thetas, scalings = {"rope_theta": fields.number("rope_theta", None)}, {}
    for name in ("rope_parameters", "rope_scaling"):
        entries = fields.inner(name)
        if entries is None:
            continue
        inside = Fields(entries, f"{fields.where}: {name}")
        thetas[f"{name}.rope_theta"] = inside.number("rope_theta", None)
        if inside.left.get("partial_rotary_factor") == 1:
            inside.take("partial_rotary_factor")
        if "type" not in inside.left:
            inside.left.setdefault("rope_type", "default")
        scalings[name] = admit_rope_scaling(inside.left, name, fields.where)
    thetas = {name: theta for name, theta in thetas.items() if theta is not None}
    return {
        "rope_theta": _agreed(thetas, 10000.0, fields.where),
        "rope_scaling": _agreed(scalings, None, fields.where),
    }


def _agreed(found, default, where):
    """Return the one value that several fields, by name, give."""
    if not found:
        return default
    (first, value), *others = found.items()
    for name, other in others:
        if other != value:
            raise ValueError(f"{where}: {first} = {value} and {name} = {other} contradict each other")
    return value


def _windows(fields, pattern, n_layers):
    """Return the window of each layer; 0 is full attention."""
    window, first, on = 0, 0, True
    if pattern == "by_layer":
        on = fields.boolean("use_sliding_window")
        first = fields.integer("max_window_layers", 28, minimum=0)
    if pattern != "none":
        absent = 0 if "sliding_window" in fields.left else 4096  # null is off; no such field means 4096
        window = fields.integer("sliding_window", absent) * on
    windows = [window if i >= first else 0 for i in range(n_layers)]

    kinds = fields.take("layer_types")
    if kinds is None:
        return windows
    if not isinstance(kinds, list):
        raise fields.wrong("layer_types", kinds, "a list with one entry per layer")
    if len(kinds) != n_layers:
        raise ValueError(
            f"{fields.where}: layer_types must have one entry per layer, num_hidden_layers = {n_layers}, "
            f"but it has {counted(len(kinds), 'entry', 'entries')}"
        )
    for i, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.wrong(f"layer_types[{i}]", kind, "full_attention or sliding_attention")
        if kind == "sliding_attention" and not window:
            raise ValueError(
                f"{fields.where}: layer_types[{i}] is sliding_attention, but the model has no sliding window"
            )
        if kind == "full_attention" and window and pattern != "by_layer":
            raise ValueError(
                f"{fields.where}: layer_types[{i}] is full_attention, but in this family every layer has the "
                f"sliding window, {window}"
            )
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def _refuse_the_rest(fields, model_type):
    for name, value in fields.left.items():
        allowed = families.FIXED.get(name, ())
        if value is None or name in families.HARMLESS:
            continue
        if not any(type(value) is type(v) and value == v for v in allowed):
            wanted = "".join(f"{json.dumps(v)} or " for v in allowed[:1])
            raise ValueError(
                f"{fields.where}: {name} = {shown(value)} is not honoured for {model_type}; wanted is "
                f"{wanted}no such field"
            )
