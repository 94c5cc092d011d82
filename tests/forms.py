"""The forms in which one and the same array may come to the boundary."""

import array

import numpy as np


class WithInterface:
    def __init__(self, wrapped):
        self.__array_interface__ = wrapped.__array_interface__
        self.wrapped = wrapped


class WithArray:
    """Hands out its own memory, like a tensor on the CPU."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __array__(self, dtype=None, copy=None):
        return self.wrapped


class WithCopies(WithArray):
    """Hands out a new copy each time."""

    def __array__(self, dtype=None, copy=None):
        return self.wrapped.copy()


class WithDLPack:
    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __dlpack__(self, **options):
        return self.wrapped.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.wrapped.__dlpack_device__()


class OnTheGPU(WithArray):
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("the tensor lives on device cuda:0")


def strided(a):
    wide = np.zeros((*a.shape, 2), np.float32)
    wide[..., 0] = a
    return wide[..., 0]


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def misaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(a.shape)
    raw[...] = a
    return raw


FORMS = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "strided": strided,
    "negative stride": lambda a: a[..., ::-1].copy()[..., ::-1],
    "read-only": read_only,
    "misaligned": misaligned,
    "broadcast": lambda a: np.broadcast_to(a, a.shape),
    "memoryview": memoryview,
    "strided memoryview": lambda a: memoryview(strided(a)),
    "array.array": lambda a: memoryview(array.array("f", a.ravel())).cast("B").cast("f", a.shape),
    "unmasked": np.ma.masked_array,
    "interface": WithInterface,
    "__array__": WithArray,
    "copies": WithCopies,
    "DLPack": WithDLPack,
}
