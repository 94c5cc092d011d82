"""One block at the shapes of real models: a decode step behind some context, and a prefill."""

import numpy as np

from mojolearn import TransformerBlock

SHAPES = {
    "SmolLM2-135M": {"d_model": 576, "intermediate": 1536, "n_heads": 9, "n_kv_heads": 3},
    "Llama-3.2-1B": {"d_model": 2048, "intermediate": 8192, "n_heads": 32, "n_kv_heads": 8},
}
FORMATS = ["float32", "bfloat16"]


def random_block(shape, weight_format):
    """A block with random weights that bfloat16 can hold: their lower 16 bits are zero."""
    d_model, intermediate, n_heads, n_kv_heads = SHAPES[shape].values()
    kv_width = d_model // n_heads * n_kv_heads
    rng = np.random.default_rng(0)

    def matrix(n_out, n_in):
        w = rng.standard_normal((n_out, n_in), np.float32) / np.float32(n_in**0.5)
        return (w.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    weights = {
        "input_layernorm.weight": np.ones(d_model, np.float32),
        "q_proj.weight": matrix(d_model, d_model),
        "k_proj.weight": matrix(kv_width, d_model),
        "v_proj.weight": matrix(kv_width, d_model),
        "o_proj.weight": matrix(d_model, d_model),
        "post_attention_layernorm.weight": np.ones(d_model, np.float32),
        "gate_proj.weight": matrix(intermediate, d_model),
        "up_proj.weight": matrix(intermediate, d_model),
        "down_proj.weight": matrix(d_model, intermediate),
    }
    return TransformerBlock(weights, n_heads=n_heads, n_kv_heads=n_kv_heads, weight_format=weight_format)


class Decode:
    """A single ``step`` behind ``context`` cached tokens: mostly one reading of the weights."""

    param_names = ("shape", "weight_format", "context")
    params = (list(SHAPES), FORMATS, [128, 1024])

    def setup(self, shape, weight_format, context):
        self.block = random_block(shape, weight_format)
        self.state = self.block.allocate_state(batch_size=1, max_tokens=context + 1)
        rng = np.random.default_rng(1)
        self.block.forward(rng.standard_normal((1, context, self.block.d_model), np.float32), self.state)
        self.x = rng.standard_normal((1, self.block.d_model), np.float32)
        self.time_step(shape, weight_format, context)  # compile, touch

    def time_step(self, shape, weight_format, context):
        self.block.step(self.x, self.state)
        # The next call finds the same length. Other tokens than before, but the same work: the buffer is
        # packed at the used length, so lowering it reads the same numbers as other positions.
        self.state.cached_tokens = context


class Prefill:
    """One stateless ``forward`` of a prompt: mostly arithmetic."""

    param_names = ("shape", "weight_format", "prompt")
    params = (list(SHAPES), FORMATS, [128, 512])

    def setup(self, shape, weight_format, prompt):
        self.block = random_block(shape, weight_format)
        self.x = np.random.default_rng(1).standard_normal((1, prompt, self.block.d_model), np.float32)
        self.block.forward(self.x)  # compile, touch

    def time_forward(self, shape, weight_format, prompt):
        self.block.forward(self.x)
