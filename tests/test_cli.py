"""The command line: text on stdout, one line about it on stderr, and errors in one line."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from toy_models import write_model

import mojolearn
from mojolearn.__main__ import main
from mojolearn.cli import options as cli_options
from mojolearn.models import BUILT_IN
from mojolearn.models.generation import TokenStream
from mojolearn.models.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data" / "austen-2m"
COMMAND = [sys.executable, "-m", "mojolearn"]


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line in this process: exit status, stdout, lines of stderr."""
    monkeypatch.setattr(cli_options, "cache_is_cold", lambda: False)

    def call(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err.splitlines()

    return call


def test_greedy_text_of_the_reference(run):
    prompt = json.loads((DATA / "reference.json").read_text())["prompts"][0]
    new = np.load(DATA / "reference.npz")["gen_0"]
    status, out, err = run("generate", prompt, "--greedy", "--max-new-tokens", 40)
    assert status == 0
    assert out == prompt + Tokenizer.load(BUILT_IN).decode(new) + "\n"
    assert len(err) == 1
    assert re.fullmatch(
        r"40 tokens in \d+\.\d\d s, \d+ tokens/s \(prompt 14 tokens in \d+\.\d\d s\), greedy", err[0]
    )


def test_default_is_sampled_and_tells_its_seed(run):
    status, out, err = run("generate", "Once upon a time")
    assert status == 0
    assert out.startswith("Once upon a time")
    count, seed = re.fullmatch(r"(\d+) tokens in .*, seed (\d+)", err[-1]).groups()
    assert 1 <= int(count) <= 64
    assert run("generate", "Once upon a time", "--seed", seed)[1] == out
    assert run("generate", "Once upon a time", "--seed", int(seed) + 1)[1] != out


def test_options_of_the_model_are_the_defaults(run):
    """generation_config.json of the built-in model says temperature 0.8, top_p 0.95."""
    plain = run("generate", "Emma", "--seed", 1)[1]
    assert run("generate", "Emma", "--seed", 1, "--temperature", 0.8, "--top-p", 0.95)[1] == plain
    greedy = run("generate", "Emma", "--greedy")[1]
    assert plain != greedy
    for options in (["--temperature", 0.001], ["--top-k", 1], ["--top-p", 1e-9], ["--min-p", 1]):
        assert run("generate", "Emma", "--seed", 1, *options)[1] == greedy


def test_threads_and_format_do_not_change_the_text(run):
    plain = run("generate", "Emma", "--seed", 1)[1]
    assert run("generate", "Emma", "--seed", 1, "--threads", 1)[1] == plain
    assert run("generate", "Emma", "--seed", 1, "--weight-format", "float32")[1] == plain


def test_another_model(run, tmp_path):
    folder = write_model(tmp_path, vocab_size=2048, eos_token_id=0)
    shutil.copyfile(BUILT_IN / "tokenizer.json", folder / "tokenizer.json")
    status, out, err = run("generate", "Emma", "--model", folder, "--max-new-tokens", 3, "--seed", 2)
    assert (status, len(err)) == (0, 1)
    assert out != run("generate", "Emma", "--max-new-tokens", 3, "--seed", 2)[1]


def test_stops_at_the_models_eos(run, tmp_path):
    """Every token of this vocabulary but one ends the text."""
    folder = tmp_path / "model"
    shutil.copytree(BUILT_IN, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(1, 2048))}))
    status, _, err = run("generate", "Emma", "--model", folder, "--seed", 1)
    assert status == 0
    assert err[0].startswith("1 token in ")


def test_what_generation_config_asks_in_vain_is_said(run, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(BUILT_IN, folder)
    asked = {"temperature": 0.5, "no_repeat_ngram_size": 3, "do_sample": True, "top_k": None}
    (folder / "generation_config.json").write_text(json.dumps(asked))
    _, _, err = run("generate", "Emma", "--model", folder, "--max-new-tokens", 1)
    assert err[0] == "note: generation_config.json asks for no_repeat_ngram_size = 3, which is not applied"
    assert len(err) == 2


@pytest.fixture
def model(tmp_path):
    """``model(**fields)``: the built-in model with another generation_config.json."""

    def make(**fields):
        folder = tmp_path / "model"
        shutil.copytree(BUILT_IN, folder)
        (folder / "generation_config.json").write_text(json.dumps(fields))
        return folder

    return make


def test_do_sample_of_the_model_is_followed(run, model):
    folder = model(do_sample=False, temperature=0.0)
    base = ("generate", "Emma", "--model", folder, "--max-new-tokens", 8)
    greedy, seeded = run(*base), run(*base, "--seed", 3)
    assert greedy[2][-1].endswith(", greedy")
    assert greedy[1] == run(*base, "--greedy")[1]
    assert seeded[2][-1].endswith(", seed 3")
    assert run(*base, "--top-k", 1)[1] == greedy[1]


def test_wrong_setting_of_the_model(run, model):
    status, _, err = run("generate", "Emma", "--model", model(do_sample="no"))
    assert (status, len(err)) == (1, 1)
    assert "generation_config.json: do_sample must be True or False" in err[0]


def test_unsupported_model_comes_before_its_tokenizer(run, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "no such family"}')
    status, _, err = run("generate", "Emma", "--model", tmp_path)
    assert (status, len(err)) == (1, 1)
    assert "'no such family'" in err[0]


@pytest.mark.parametrize("arguments", [["--greedy", "--", "-5 or"], ["--greedy", "--", "--seed"]])
def test_prompt_that_begins_with_a_dash(run, arguments):
    status, out, _ = run("generate", "--max-new-tokens", 1, *arguments)
    assert status == 0
    assert out.startswith(arguments[-1])


def test_prompt_from_standard_input(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("- Emma,\nshe\n"))
    status, out, _ = run("generate", "-", "--max-new-tokens", 1, "--greedy")
    assert status == 0
    assert out.startswith("- Emma,\nshe")
    monkeypatch.setattr(sys, "stdin", None)
    status, _, err = run("generate", "-")
    assert (status, len(err)) == (2, 1)
    assert "closed" in err[0]


def test_prompt_that_is_no_text(run):
    status, _, err = run("generate", "Emma \udcff")
    assert (status, len(err)) == (2, 1)
    assert "the prompt must be text" in err[0]


def test_cold_cache_is_said_once(run, monkeypatch):
    monkeypatch.setattr(cli_options, "cache_is_cold", lambda: True)
    _, _, err = run("generate", "Emma", "--max-new-tokens", 1)
    assert err[0] == "compiling kernels for this machine, once ..."
    assert len(err) == 2


def test_no_new_tokens(run):
    status, out, err = run("generate", "Emma", "--max-new-tokens", 0, "--greedy")
    assert (status, out) == (0, "Emma\n")
    assert err[0].startswith("0 tokens in 0.00 s (prompt 2 tokens")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere"], ["the folder /nowhere does not exist"]),
        (["--model", "HuggingFaceTB/SmolLM2-135M"], ["does not exist", "not downloaded"]),
        (["--model", BUILT_IN / "config.json"], ["config.json is a file", "folder"]),
        (["--model", "x" * 5000], ["does not exist"]),
        (["--max-new-tokens", "512"], ["--max-new-tokens 512", "512 positions", "takes 2", "511 new tokens"]),
        (["--weight-format", "bfloat16"], ["bfloat16", "model.embed_tokens.weight"]),
        (["--stop", "<|endoftext|>"], ["is a special token", "eos_token_id=0"]),
    ],
)
def test_failures_in_one_line(run, arguments, words):
    status, out, err = run("generate", "Emma", *arguments)
    assert (status, out, len(err)) == (1, "", 1)
    assert err[0].startswith("mojolearn: error: ")
    assert not re.search(r"CausalLM|Tokenizer|=True|max_positions", err[0])
    assert len(err[0]) < 500
    for word in words:
        assert word in err[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", ""], ["--model must name a checkpoint"]),
        (["--max-new-tokens", "-1"], ["--max-new-tokens must be at least 0, not -1"]),
        (["--temperature", "-0.5"], ["--temperature must be 0 or more", "-0.5"]),
        (["--temperature", "nan"], ["--temperature", "nan"]),
        (["--top-p", "1.5"], ["--top-p", "1.5"]),
        (["--min-p", "-1"], ["--min-p", "-1"]),
        (["--top-k", "-2"], ["--top-k", "-2"]),
        (["--repetition-penalty", "0"], ["--repetition-penalty", "0"]),
        (["--seed", "-3"], ["--seed", "-3"]),
        (["--seed", 2**64], ["--seed", str(2**64)]),
        (["--greedy", "--seed", "3"], ["--seed has no effect with --greedy"]),
        (["--threads", "0"], ["--threads", "0"]),
        (["--threads", "100000"], ["--threads", "100000"]),
        (["--greedy", "--temperature", "0.5"], ["--temperature has no effect with --greedy"]),
        (["--logprobs", "2"], ["--logprobs goes with --json"]),
        (["--json", "--logprobs", "-2"], ["--logprobs must be at least 0"]),
        (["--stop", ""], ["--stop must name a text"]),
    ],
)
def test_wrong_arguments_in_one_line(run, arguments, words):
    status, out, err = run("generate", "Emma", *arguments)
    assert (status, out, len(err)) == (2, "", 1)
    assert err[0].startswith("mojolearn: error: ")
    for word in words:
        assert word in err[0]


def test_prompt_longer_than_the_model(run):
    status, _, err = run("generate", "Emma " * 600, "--max-new-tokens", 1)
    assert (status, len(err)) == (1, 1)
    assert re.search(r"the prompt has \d+ tokens, but the model has 512 positions", err[0])


def test_missing_package_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    status, _, err = run("generate", "Emma")
    assert (status, len(err)) == (1, 1)
    assert "pip install tokenizers" in err[0]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["genrate"],
        ["generate"],
        ["generate", "a", "--bogus"],
        ["generate", "a", "--top-k", "x"],
        ["--bogus"],
        ["chat", "a", "b"],
        ["score"],
        ["info", "a", "b"],
        ["verify", "--bogus"],
        ["cache"],
        ["cache", "empty"],
        ["bench", "--threads", "x"],
    ],
)
def test_misuse(run, capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert "usage: mojolearn" in capsys.readouterr().err


def test_version(run, capsys):
    with pytest.raises(SystemExit) as caught:
        run("--version")
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"mojolearn {mojolearn.__version__}\n"


@pytest.mark.parametrize("command", ["generate", "chat", "score", "info", "verify", "cache", "bench"])
def test_help_of_each(run, capsys, command):
    for arguments in (["--help"], [command, "--help"]):
        with pytest.raises(SystemExit) as caught:
            run(*arguments)
        assert caught.value.code == 0
        assert command in capsys.readouterr().out


def test_temperature_zero_is_greedy(run):
    greedy = run("generate", "Emma", "--greedy", "--max-new-tokens", 9)[1]
    assert run("generate", "Emma", "--temperature", 0, "--max-new-tokens", 9)[1] == greedy


def test_repetition_penalty_of_the_model_and_of_the_option(run, model):
    folder = model(repetition_penalty=1e6, do_sample=False)
    plain = run("generate", "Emma", "--greedy", "--max-new-tokens", 40)[1]
    of_model = run("generate", "Emma", "--model", folder, "--max-new-tokens", 40)[1]
    assert of_model != plain
    assert (
        run("generate", "Emma", "--greedy", "--repetition-penalty", 1e6, "--max-new-tokens", 40)[1]
        == of_model
    )
    assert (
        run("generate", "Emma", "--model", folder, "--repetition-penalty", 1, "--max-new-tokens", 40)[1]
        == plain
    )


def test_wrong_repetition_penalty_of_the_model(run, model):
    status, _, err = run("generate", "Emma", "--model", model(repetition_penalty=-1))
    assert (status, len(err)) == (1, 1)
    assert "generation_config.json: repetition_penalty must be above 0" in err[0]


def test_stop(run):
    status, out, err = run("generate", "Emma was", "--greedy", "--stop", "being", "--stop", "never")
    assert (status, out) == (0, "Emma was the first time of her \n")
    assert re.match(r"\d tokens in ", err[0])


def test_json(run):
    status, out, err = run(
        "generate", "Emma was", "--greedy", "--max-new-tokens", 3, "--json", "--logprobs", 2
    )
    answer = json.loads(out)
    assert (status, len(err)) == (0, 1)
    assert answer["prompt"] + answer["text"] == "Emma was the first time"
    assert (answer["finish_reason"], answer["seed"]) == ("length", None)
    lm = mojolearn.CausalLM.load(BUILT_IN)
    ids, logprobs = lm.generate([answer["prompt_ids"]], 3, logprobs=2)
    assert answer["prompt_ids"] + answer["ids"] == ids[0].tolist()
    assert [entry["logprob"] for entry in answer["logprobs"]] == logprobs.chosen[0].tolist()
    assert [[best["id"] for best in entry["top"]] for entry in answer["logprobs"]] == logprobs.top_ids[
        0
    ].tolist()
    assert "".join(entry["text"] for entry in answer["logprobs"]) == answer["text"]


def test_interrupt_finishes_the_line(run, monkeypatch):
    """Ctrl-C while the text comes: what is there stays, and the numbers are told."""
    following = TokenStream.__next__

    def interrupted(self):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 4:
            raise KeyboardInterrupt
        return following(self)

    monkeypatch.setattr(TokenStream, "__next__", interrupted)
    status, out, err = run("generate", "Emma", "--greedy")
    assert status == 130
    assert out.startswith("Emma")
    assert out.endswith("\n")
    assert err[0].startswith("3 tokens in ")


def test_interrupt_elsewhere(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tokenizer, "load", interrupted)
    assert run("generate", "Emma") == (130, "", [])


class TestProcess:
    """As a shell sees it."""

    def test_offline_with_the_built_in_model(self, tmp_path):
        done = subprocess.run(
            [*COMMAND, "generate", "Once upon a time", "--seed", "1", "--max-new-tokens", "8"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(Path(mojolearn.__file__).parent.parent), "HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Once upon a time")
        assert done.stderr.splitlines()[-1].endswith("seed 1")

    def test_reader_that_goes_away(self):
        """``mojolearn generate ... | head -c 5``: no traceback."""
        process = subprocess.Popen(
            [*COMMAND, "generate", "Once upon a time", "--max-new-tokens", "400", "--greedy"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdout.read(5)
        process.stdout.close()
        err = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait() == 141
        assert "Traceback" not in err
        assert "Error" not in err

    @pytest.mark.parametrize(
        ("redirection", "words"),
        [(">&-", b"standard output is closed"), (">/dev/full", b"No space left"), (">&- 2>&-", b"")],
    )
    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
    def test_output_that_cannot_be_written(self, redirection, words):
        command = f"{sys.executable} -m mojolearn generate Emma --greedy --max-new-tokens 2 {redirection}"
        done = subprocess.run(command, shell=True, capture_output=True)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == bool(words)
        assert words in done.stderr

    @pytest.mark.long
    @pytest.mark.skipif(
        not os.path.exists("/proc/self/maps"), reason="no /proc, which tells how far a process is"
    )
    def test_ctrl_c_at_any_time(self):
        """While modules are imported, the model is loaded or tokens come: no traceback, ever."""
        for delay in np.linspace(0, 1.2, 20):
            process = subprocess.Popen(
                [*COMMAND, "generate", "Emma", "--max-new-tokens", "400", "--greedy"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            maps = Path(f"/proc/{process.pid}/maps")
            while (
                process.poll() is None and "llvmlite" not in maps.read_text()
            ):  # in the middle of the imports
                time.sleep(0.001)
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
            assert process.returncode in (0, 130, -signal.SIGINT), (delay, err)
            assert b"Traceback" not in err
            assert b"Exception ignored" not in err

    def test_ctrl_c(self):
        process = subprocess.Popen(
            [*COMMAND, "generate", "Once upon a time", "--max-new-tokens", "490", "--greedy"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode in (0, 130)  # 0 where the text was finished before the signal came
        assert out.endswith(b"\n")
        assert b"Traceback" not in err
        assert b" tokens in " in err

    def test_terminal_without_unicode(self, tmp_path):
        done = subprocess.run(
            [*COMMAND, "generate", "Émma", "--max-new-tokens", "2", "--greedy"],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(b"?mma")
