"""The Python blocks of README.md and of every page of docs run as they stand, page by page, in an empty folder."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of processes that a page starts
    names = {"__name__": "page"}
    for source in blocks(page, "python"):
        exec(compile(source, str(page), "exec"), names)


@pytest.mark.long
def test_shell_blocks_of_the_command_line_run(tmp_path):
    """Line by line, each alone, as the page says."""
    page = ROOT / "docs" / "guide" / "command-line.md"
    (tmp_path / "mojolearn").write_text(f'#!/bin/sh\nexec {sys.executable} -m mojolearn "$@"\n')
    (tmp_path / "mojolearn").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert len(lines) > 10
    for line in lines:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout or ">" in line


@pytest.mark.parametrize(
    "name", ["README.md", *(f"docs/guide/{page}.md" for page in ("state", "generation", "insides"))]
)
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


def names_in(file):
    """Names of the tests in a file of tests/: "test_name", or "TestClass::test_name"."""
    for node in ast.parse((ROOT / "tests" / file).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)
            )
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def test_every_row_of_the_page_on_trust_names_tests_that_exist():
    lines = (ROOT / "docs" / "trust.md").read_text("utf-8").splitlines()
    tables = [line for line in lines if line.startswith("| ")]
    rows = [row for row in tables if not row.endswith((" Tests |", " --- |"))]
    assert len(rows) > 70
    for row in rows:
        *_, last, _ = row.split("|")
        named = re.findall(r"`([^`]+)`", last)
        assert named, f"no test in the last column of {row}"
        for name in named:
            file, _, test = name.partition("::")
            assert test in names_in(file), f"{name} does not exist"
