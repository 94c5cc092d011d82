"""The activations of an MLP, on vector registers (numerics page, section 7)."""

from mojolearn._jit import helper
from mojolearn.kernels.simd import select, splat
from mojolearn.kernels.vmath import ZERO, gelu_erf, gelu_tanh, silu

NO_ACTIVATION, SILU, GELU_ERF, GELU_TANH, RELU, RELU2 = range(6)
ACTIVATIONS = {"silu": SILU, "gelu_erf": GELU_ERF, "gelu_tanh": GELU_TANH, "relu": RELU, "relu2": RELU2}


@helper
def relu(x):
    """0 for negative x, otherwise x: a NaN stays one."""
    return select(x < splat(ZERO), splat(ZERO), x)


@helper
def activate(activation, x):
    """The activation of this number, one of ``ACTIVATIONS``."""
    if activation == SILU:
        return silu(x)
    if activation == GELU_ERF:
        return gelu_erf(x)
    if activation == GELU_TANH:
        return gelu_tanh(x)
    y = relu(x)
    return y if activation == RELU else y * y
