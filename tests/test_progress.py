"""The progress bar: only on a terminal, only with tqdm, and a failure of neither."""

import sys
import types

import pytest

from mojolearn.models.progress import with_progress


class Terminal:
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """What a stand-in for tqdm was asked to show."""
    calls = []

    def tqdm(items, **options):
        calls.append(options)
        return iter(items)

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=tqdm))
    return calls


def test_on_a_terminal(monkeypatch, shown):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(with_progress(range(3), "layer")) == [0, 1, 2]
    assert shown == [{"desc": "loading", "unit": "layer", "leave": False, "file": sys.stderr}]


def test_not_into_a_file(monkeypatch, shown, tmp_path):
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        assert list(with_progress(range(3), "layer")) == [0, 1, 2]
    assert not shown


def test_without_an_error_stream(monkeypatch, shown):
    monkeypatch.setattr(sys, "stderr", None)
    assert list(with_progress(range(3), "layer")) == [0, 1, 2]
    assert not shown


def test_without_tqdm(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(with_progress(range(3), "layer")) == [0, 1, 2]
