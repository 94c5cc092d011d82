"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import mojolearn

MODULES = ["mojolearn"] + [
    module.name
    for module in pkgutil.walk_packages(mojolearn.__path__, "mojolearn.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
