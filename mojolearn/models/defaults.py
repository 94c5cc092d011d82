"""What a field means that ``config.json`` leaves out: the defaults of the reference implementation, by family.

They are those of transformers 5.24.0. ``SAME`` stands for None: then ``num_key_value_heads`` is
``num_attention_heads``, ``head_dim`` is ``hidden_size / num_attention_heads``, and ``intermediate_size`` is
``4 * hidden_size``. A window of None is no window.
"""

SAME = None
TANH = "gelu_pytorch_tanh"

COLUMNS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "hidden_act", "norm_eps", "rope_theta"),
    *("tie_word_embeddings", "sliding_window"),
)

# fmt: off
ROWS = {
    # family         vocab  width  inner  layers  heads    kv   dim  length  activation        eps  theta   tied   win
    "arcee":       ( 32000,  2560, 18432,     32,    32, SAME, SAME,   4096, "relu2",         1e-5,   1e4, False, None),
    "cohere":      (256000,  8192, 22528,     40,    64, SAME, SAME,   8192, "silu",          1e-5,   5e5,  True, None),
    "cohere2":     (256000,  8192, 22528,     40,    64, SAME, SAME,   8192, "silu",          1e-5,   1e4,  True, 4096),
    "exaone4":     (102400,  4096, 16384,     32,    32,   32, SAME,   2048, "silu",          1e-5,   1e4, False, 4096),
    "gemma":       (256000,  3072, 24576,     28,    16,   16,  256,   8192, TANH,            1e-6,   1e4,  True, None),
    "gemma2":      (256000,  2304,  9216,     26,     8,    4,  256,   8192, TANH,            1e-6,   1e4,  True, 4096),
    "gemma3_text": (262208,  2304,  9216,     26,     8,    4,  256, 131072, TANH,            1e-6,   1e6,  True, 4096),
    "glm":         (151552,  4096, 13696,     40,    32,    2,  128, 131072, "silu",     1.5625e-7,   1e4, False, None),
    "glm4":        (151552,  4096, 13696,     40,    32,    2,  128, 131072, "silu",     1.5625e-7,   1e4, False, None),
    "gpt2":        ( 50257,   768,  SAME,     12,    12, SAME, SAME,   1024, "gelu_new",      1e-5,  None,  True, None),
    "gpt_neox":    ( 50432,  6144, 24576,     44,    64, SAME, SAME,   2048, "gelu",          1e-5,   1e4, False, None),
    "gptj":        ( 50400,  4096,  SAME,     28,    16, SAME, SAME,   2048, "gelu_new",      1e-5,   1e4, False, None),
    "granite":     ( 32000,  4096, 11008,     32,    32, SAME, SAME,   2048, "silu",          1e-6,   1e4, False, None),
    "helium":      ( 48000,  2560,  7040,     24,    20,   20,  128,   4096, "silu",          1e-8,   1e5, False, None),
    "llama":       ( 32000,  4096, 11008,     32,    32, SAME, SAME,   2048, "silu",          1e-6,   1e4, False, None),
    "ministral":   ( 32000,  4096, 14336,     32,    32,    8, SAME, 131072, "silu",          1e-6,   1e4, False, 4096),
    "mistral":     ( 32000,  4096, 14336,     32,    32,    8, SAME, 131072, "silu",          1e-6,   1e4, False, 4096),
    "nemotron":    (256000,  6144, 24576,     32,    48, SAME, SAME,   4096, "relu2",         1e-5,   1e4, False, None),
    "olmo":        ( 50304,  4096, 11008,     32,    32, SAME, SAME,   2048, "silu",          1e-5,   1e4, False, None),
    "olmo2":       ( 50304,  4096, 11008,     32,    32, SAME, SAME,   2048, "silu",          1e-5,   1e4, False, None),
    "olmo3":       ( 50304,  4096, 11008,     32,    32, SAME, SAME,   2048, "silu",          1e-5,   5e5, False, 4096),
    "opt":         ( 50272,   768,  3072,     12,    12, SAME, SAME,   2048, "relu",          1e-5,  None,  True, None),
    "phi":         ( 51200,  2048,  8192,     24,    32, SAME, SAME,   2048, "gelu_new",      1e-5,   1e4, False, None),
    "phi3":        ( 32064,  3072,  8192,     32,    32, SAME, SAME,   4096, "silu",          1e-5,   1e4, False, None),
    "qwen2":       (151936,  4096, 22016,     32,    32,   32, SAME,  32768, "silu",          1e-6,   1e4, False, 4096),
    "qwen3":       (151936,  4096, 22016,     32,    32,   32,  128,  32768, "silu",          1e-6,   1e4, False, 4096),
    "smollm3":     (128256,  2048, 11008,     36,    16,    4, SAME,  32768, "silu",          1e-6,   2e6,  True, None),
    "stablelm":    ( 50304,  2560,  6912,     32,    32,   32, SAME,   4096, "silu",          1e-5,   1e4, False, None),
    "starcoder2":  ( 49152,  3072, 12288,     30,    24,    2, SAME,   4096, TANH,            1e-5,   1e4,  True, None),
}
# fmt: on

DEFAULTS = {family: dict(zip(COLUMNS, row, strict=True)) for family, row in ROWS.items()}
DEFAULTS["gemma3"] = DEFAULTS["gemma3_text"]
