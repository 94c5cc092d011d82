"""The version of the library, and of the arithmetic it promises."""

__version__ = "0.1.0"

NUMERICS_VERSION = "fp32.v1"  # names the arithmetic contract; changes when any output bit may change
