"""The kernels: Numba over flat arrays, in the order that the arithmetic contract writes down."""
