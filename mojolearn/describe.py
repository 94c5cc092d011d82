"""A block in one line, for its ``repr``."""

from mojolearn.options import BlockOptions


def described(options, nbytes):
    """Sizes, every option that is not at its default, and the memory of the packed weights."""
    o = options
    sizes = {
        name: getattr(o, name)
        for name in ("d_model", "n_heads", "n_kv_heads", "head_dim", "intermediate_size")
    }
    plain = {name: value for name, value in sizes.items() if name != "n_kv_heads"}
    defaults = BlockOptions(**plain).as_dict()
    special = {k: v for k, v in o.as_dict().items() if v != defaults[k] and k != "n_kv_heads"}
    told = ", ".join(f"{name}={value!r}" for name, value in {**sizes, **special}.items())
    return f"TransformerBlock({told}, {nbytes / 2**20:.1f} MiB)"
