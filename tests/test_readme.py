"""The Python blocks of README.md and of every page of docs run as they stand, page by page, in an empty folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for source in blocks(page, "python"):
        exec(compile(source, str(page), "exec"), names)


@pytest.mark.parametrize("name", ["README.md", "docs/guide/state.md"])
def test_there_are_blocks(name):
    assert len(blocks(ROOT / name, "python")) > 1


def test_setup_is_two_single_lines():
    """`.ci/run` runs these two lines as they stand."""
    setup = [
        line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines() if "-m venv" in line
    ]
    assert len(setup) == 2
    assert "mojolearn generate" in setup[0]
    assert "pytest" in setup[1]
