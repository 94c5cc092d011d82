"""Every Python block of README.md runs as it stands, in an empty folder, one after the other."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    assert blocks("python")
    for source in blocks("python"):
        exec(compile(source, "README.md", "exec"), names)


def test_setup_is_two_single_lines():
    """`.ci/run` runs these two lines as they stand."""
    setup = [line for block in blocks("sh") for line in block.splitlines() if "-m venv" in line]
    assert len(setup) == 2
    assert "mojolearn generate" in setup[0]
    assert "pytest" in setup[1]
