"""What attention and MLP add to the residual, where that is more than a plain sum (numerics page, section 6).

A plain sum is made where the product is finished (``linear``); here it follows a norm of that product, or has a factor.
"""

from mojolearn._jit import kernel
from mojolearn.kernels.simd import get, put


@kernel
def add_scaled(residual, multiplier, t, out):
    """out = residual + multiplier * t: the product rounded, then the sum. Flat and of one size; out may be t."""
    for i in range(residual.size):
        put(out, i, get(residual, i) + multiplier * get(t, i))
