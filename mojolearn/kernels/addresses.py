"""Arrays by their address: what lets one kernel call reach the weights and caches of many layers.

Python hands a kernel one record per layer (see ``step``). A record cannot hold an array, but it can say where one lies
and how long it is. Whoever fills a record keeps the arrays alive.
"""

import numpy as np
from numba import config, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from mojolearn._jit import helper

PLACE = np.dtype([("address", np.int64), ("size", np.int64)])  # where a flat array lies, and its length


def place_of(array):
    """The record of a flat array (plain Python)."""
    return array.__array_interface__["data"][0], array.size


@intrinsic
def array_from(typingctx, address, size, like):
    """The flat array of ``size`` numbers at an address, of the type of ``like``."""
    if not (isinstance(like, types.Array) and like.ndim == 1 and like.layout == "C"):
        return None

    def codegen(context, builder, sig, args):
        array = make_array(like)(context, builder)
        itemsize = context.get_constant(types.intp, np.dtype(like.dtype.name).itemsize)
        data = builder.inttoptr(args[0], array.data.type)
        populate_array(array, data, [args[1]], [itemsize], itemsize, meminfo=None)
        return array._getvalue()

    return signature(like, types.int64, types.int64, like), codegen


@helper
def array_at(place, like):
    """The array that a ``PLACE`` record speaks of; ``like``: any array of its type."""
    return array_from(place["address"], place["size"], like)


if config.DISABLE_JIT:
    import ctypes

    def array_from(address, size, like):
        """The same in plain NumPy."""
        size, address = int(size), int(address)
        raw = (ctypes.c_byte * (size * like.itemsize)).from_address(address) if size else b""
        return np.frombuffer(raw, like.dtype)
