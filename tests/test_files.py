"""Folders and files that are not what they should be: the message says what they are, and nothing hangs."""

import json
import os
import re

import pytest
from toy_models import config, write_model

from mojolearn.files import LFS
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.config import read_config
from mojolearn.models.tokenizer import Tokenizer

READ = {  # each file of a model, and what reads it
    "config.json": CausalLM.load,
    "generation_config.json": CausalLM.load,
    "model.safetensors": CausalLM.load,
    "model.safetensors.index.json": CausalLM.load,
    "tokenizer.json": Tokenizer.load,
}


@pytest.fixture
def model(tmp_path):
    """``model(name)``: a model's folder without this file, and the path where it should be."""

    def make(name):
        folder = write_model(tmp_path / "model")
        (folder / "tokenizer.json").write_text("{}")
        if name.endswith("index.json"):
            (folder / "model.safetensors").unlink()
        (folder / name).unlink(missing_ok=True)
        return folder, folder / name

    return make


def refused(load, folder, error):
    with pytest.raises(error, match=r"^(CausalLM|Tokenizer)\.load: [^\n]+$") as caught:
        load(folder)
    return str(caught.value)


@pytest.mark.parametrize("load", [CausalLM.load, Tokenizer.load, read_config])
@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        (None, TypeError, "path must be a str or a Path, not None"),
        (3, TypeError, "not int"),
        ("", ValueError, "path must name a folder, but it is empty"),
        ("/nowhere", FileNotFoundError, "the folder /nowhere does not exist$"),
        ("org/name", FileNotFoundError, "the folder org/name does not exist; models are not downloaded"),
        ("./name", FileNotFoundError, "the folder ./name does not exist$"),
        (__file__, FileNotFoundError, "test_files.py is a file; wanted is the folder"),
        ("a/b\0", FileNotFoundError, "does not exist"),
        ("x" * 10_000, FileNotFoundError, "the folder x{80}...x{80} does not exist"),
    ],
)
def test_no_folder(load, path, error, words):
    assert re.search(words, refused(load, path, error))


def test_link_to_no_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    message = refused(CausalLM.load, tmp_path / "link", FileNotFoundError)
    assert message.endswith(f"is a link to {tmp_path / 'gone'}, which does not exist")


@pytest.mark.parametrize(("name", "load"), READ.items())
class TestFiles:
    def test_pipe(self, model, name, load):
        folder, path = model(name)
        os.mkfifo(path)
        assert f"{path} cannot be read: it is no regular file" in refused(load, folder, ValueError)

    def test_folder(self, model, name, load):
        folder, path = model(name)
        path.mkdir()
        assert f"{path} cannot be read: it is a folder" in refused(load, folder, ValueError)

    def test_dangling_link(self, model, name, load):
        folder, path = model(name)
        path.symlink_to(folder / "gone")
        message = refused(load, folder, FileNotFoundError)
        assert f"{path} is a link to {folder / 'gone'}, which does not exist" in message

    def test_pointer_of_git_lfs(self, model, name, load):
        folder, path = model(name)
        path.write_bytes(LFS + b"v1\noid sha256:12\nsize 3\n")
        assert f"{path} is a pointer of Git LFS" in refused(load, folder, ValueError)


def test_no_such_file(tmp_path):
    assert refused(read_config, tmp_path, FileNotFoundError).endswith("does not exist; its folder is empty")
    (tmp_path / "other").touch()
    assert refused(read_config, tmp_path, FileNotFoundError).endswith("config.json does not exist")


def test_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert refused(CausalLM.load, tmp_path, FileNotFoundError).endswith("found neither")
