"""Whole language models from Hugging Face folders; the only place that knows their names."""

from pathlib import Path

# A small real model that comes with the package; its README says where it is from.
BUILT_IN = Path(__file__).parent.parent / "data" / "austen-2m"
