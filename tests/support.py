"""What tests share: equal bits, random numbers that are the same on every machine, random blocks, a second thread."""

import threading

import numpy as np

GATED = ("swiglu", "geglu", "geglu_tanh", "reglu", "relu2glu")


def bits(a):
    """The bit patterns of a float32 array: equal bits tell -0 from +0, and NaN equals itself."""
    a = np.ascontiguousarray(a)
    assert a.dtype == np.float32, f"bits() compares float32 arrays, not {a.dtype}"
    return a.view(np.uint32)


def uniform(rng, shape, scale=1.0):
    """float32 numbers in [-scale, scale). Integer steps only: normal draws go through the system's math library."""
    return (rng.random(shape, np.float32) - np.float32(0.5)) * np.float32(2 * scale)


def weight_shapes(d_model, intermediate, options):
    """Name and shape of every weight that a block with these options wants (docs/numerics.md, section 1)."""
    n_heads = options["n_heads"]
    head_dim = options.get("head_dim") or d_model // n_heads
    q_width, k_width = n_heads * head_dim, (options.get("n_kv_heads") or n_heads) * head_dim
    gated = options.get("mlp", "swiglu") in GATED

    # In this order: random weights are drawn one after the other.
    shapes = {
        "input_layernorm.weight": (d_model,),
        "q_proj.weight": (q_width, d_model),
        "k_proj.weight": (k_width, d_model),
        "v_proj.weight": (k_width, d_model),
        "o_proj.weight": (d_model, q_width),
        "post_attention_layernorm.weight": (d_model,),
        "up_proj.weight": (intermediate, d_model),
        "down_proj.weight": (d_model, intermediate),
    }
    if gated:
        shapes["gate_proj.weight"] = (intermediate, d_model)
    if options.get("qkv_bias"):
        shapes |= {"q_proj.bias": (q_width,), "k_proj.bias": (k_width,), "v_proj.bias": (k_width,)}
    if options.get("o_bias"):
        shapes["o_proj.bias"] = (d_model,)
    if options.get("mlp_bias"):
        shapes |= {"up_proj.bias": (intermediate,), "down_proj.bias": (d_model,)}
        if gated:
            shapes["gate_proj.bias"] = (intermediate,)
    if options.get("norm_bias"):
        shapes |= {"input_layernorm.bias": (d_model,), "post_attention_layernorm.bias": (d_model,)}
    qk_norm = options.get("qk_norm", False)
    for name, width in (("q_norm", q_width), ("k_norm", k_width)):
        if qk_norm:
            shapes[f"{name}.weight"] = (head_dim,) if qk_norm is True else (width,)
        if options.get("qk_norm_bias"):
            shapes[f"{name}.bias"] = (width,)
    placement = options.get("norm_placement", "pre")
    if placement != "pre":
        for name in ("attention_output_norm", "mlp_output_norm"):
            shapes[f"{name}.weight"] = (d_model,)
            if options.get("norm_bias"):
                shapes[f"{name}.bias"] = (d_model,)
    absent = ["input_layernorm", "post_attention_layernorm"] if placement == "post" else []
    absent += ["post_attention_layernorm"] if options.get("residual") == "parallel_shared" else []
    return {name: shape for name, shape in shapes.items() if name.split(".")[0] not in absent}


def representable(weights, weight_format):
    """The matrix rounded to what `weight_format` holds exactly, as float32."""
    if weight_format == "bfloat16":
        return (bits(weights) & np.uint32(0xFFFF0000)).view(np.float32)
    if weight_format == "float16":
        return weights.astype(np.float16).astype(np.float32)
    return weights


def make_weights(d_model=32, intermediate=48, seed=0, weight_format="float32", **options):
    """Random float32 weights that `weight_format` can hold, of ordinary size: outputs are of the order of one."""
    rng = np.random.default_rng([seed, d_model, intermediate])
    weights = {}
    for name, shape in weight_shapes(d_model, intermediate, options).items():
        if name.endswith("norm.weight"):
            centre = 0.0 if options.get("norm", "").endswith("offset") else 1.0
            weights[name] = np.float32(centre) + uniform(rng, shape, 0.25)
        elif name.endswith(".bias"):
            weights[name] = uniform(rng, shape, 0.25)
        else:
            matrix = uniform(rng, shape, (3 / shape[1]) ** 0.5)  # variance 1 / fan-in
            weights[name] = representable(matrix, weight_format)
    return weights


def make_block(d_model=32, intermediate=48, seed=0, n_heads=4, **options):
    """A block with random weights; every other keyword is an option of `TransformerBlock`."""
    from mojolearn import TransformerBlock

    weights = make_weights(d_model, intermediate, seed, n_heads=n_heads, **options)
    return TransformerBlock(weights, n_heads=n_heads, **options)


def choose(rng, *choices):
    return choices[int(rng.integers(len(choices)))]


def first_options(rng):
    """Keyword arguments of `make_block`: a random mixture of the options that blocks had first.

    Draws and their order stay as they are: a hash of such blocks is kept in check_bits.py.
    """
    n_kv_heads = choose(rng, 1, 2, 3)
    head_dim = choose(rng, 2, 4, 8, 10, 16, 24)
    norm = choose(rng, "rmsnorm", "layernorm", "rmsnorm_offset")
    scaling = choose(
        rng,
        None,
        {"type": "linear", "factor": 1.7},
        {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16},
    )  # fmt: skip
    return {
        "d_model": choose(rng, 8, 17, 32, 130),
        "intermediate": choose(rng, 8, 31, 48, 300),
        "seed": int(rng.integers(2**31)),
        "n_heads": n_kv_heads * choose(rng, 1, 2, 3),
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "window": choose(rng, 0, 0, 1, 3, 5, 40),
        "rope_theta": choose(rng, 10000.0, 500000.0, 100.0),
        "rope_scaling": scaling,
        "rope_dim": choose(rng, None, 2, head_dim),
        "qkv_bias": choose(rng, False, True),
        "o_bias": choose(rng, False, True),
        "norm": norm,
        "norm_eps": choose(rng, 1e-6, 1e-5),
        "norm_bias": norm == "layernorm" and choose(rng, False, True),
        "mlp": choose(rng, "swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh"),
        "mlp_bias": choose(rng, False, True),
        "qk_norm": choose(rng, False, True),
        "attn_softcap": choose(rng, None, None, 0.9, 30.0),
        "attn_scale": choose(rng, None, None, 0.3),
        "weight_format": choose(rng, "float32", "float32", "bfloat16", "float16"),
    }


def random_scaling(rng, rope_dim):
    """A rope_scaling that joined later, for so many rotated columns; contexts of 8 tokens are already long."""
    pairs = max(1, rope_dim // 2)
    return choose(
        rng,
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5,
         "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.0},
        {"type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 8},
        {"type": "longrope", "factor": 4.0, "original_max_position_embeddings": 8,
         "short_factor": [1.0 + 0.1 * i for i in range(pairs)], "long_factor": [1.5 + i for i in range(pairs)]},
    )  # fmt: skip


def random_options(rng):
    """Keyword arguments of `make_block`: every option of a block, in a random valid mixture of small sizes."""
    options = first_options(rng)
    norm = choose(rng, options["norm"], options["norm"], "layernorm_offset")
    rope_dim = choose(rng, options["rope_dim"], options["rope_dim"], options["rope_dim"], 0)
    residual = choose(rng, "sequential", "sequential", "parallel", "parallel_shared")
    qk_norm = choose(rng, options["qk_norm"], "full", "layernorm")
    scaling = random_scaling(rng, options["head_dim"] if rope_dim is None else rope_dim)
    if scaling["type"] == "dynamic" and 2 in (rope_dim, options["head_dim"]):  # it divides by rope_dim - 2
        scaling = None
    return options | {
        "rope_dim": rope_dim,
        "rope_interleaved": choose(rng, False, True),
        "rope_scaling": choose(rng, options["rope_scaling"], scaling, scaling),
        "qkv_clip": choose(rng, None, None, 0.5),
        "norm": norm,
        "norm_bias": norm.startswith("layernorm") and choose(rng, False, True),
        "norm_placement": choose(rng, "pre", "post", "both") if residual == "sequential" else "pre",
        "residual": residual,
        "residual_multiplier": choose(rng, 1.0, 1.0, 0.22, 1.7),
        "mlp": choose(rng, options["mlp"], options["mlp"], "relu", "relu2", "reglu", "relu2glu", "silu"),
        "qk_norm": qk_norm,
        "qk_norm_bias": qk_norm == "layernorm" and choose(rng, False, True),
    }


def goes_by_length(block):
    """Do the block's frequencies depend on the length of the sequence?"""
    scaling = block.rope_scaling
    return block.rope_dim > 0 and scaling is not None and scaling["type"] in ("dynamic", "longrope")


def elsewhere(states):
    """A context in which another thread has a call running on these states."""
    from mojolearn.claims import Claim

    begun, end = threading.Event(), threading.Event()

    def hold():
        with Claim(states, "other"):
            begun.set()
            end.wait()

    class Elsewhere:
        def __enter__(self):
            self.thread = threading.Thread(target=hold)
            self.thread.start()
            assert begun.wait(10)

        def __exit__(self, *exception):
            end.set()
            self.thread.join()

    return Elsewhere()
