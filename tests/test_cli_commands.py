"""The commands beside ``generate``: chat, score, info, verify, cache, bench."""

import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from gguf_files import convert, metadata_of, tensors_of, write
from toy_models import config, tensors, write_model

import mojolearn
from mojolearn import _jit
from mojolearn.__main__ import main
from mojolearn.cli import chat as chat_command
from mojolearn.cli import options as cli_options
from mojolearn.kernels import bandwidth
from mojolearn.models import BUILT_IN, describe
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.generation import TokenStream

MODELS = sorted(path.parent for path in (Path(__file__).parent / "data" / "models").glob("*/config.json"))
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line in this process: exit status, stdout, lines of stderr."""
    monkeypatch.setattr(cli_options, "cache_is_cold", lambda: False)
    before = numba.get_num_threads()

    def call(*arguments, text=None):
        with monkeypatch.context() as patch:
            if text is not None:
                patch.setattr(sys, "stdin", io.StringIO(text))
            status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err.splitlines()

    yield call
    numba.set_num_threads(before)


@pytest.fixture(scope="module")
def lm():
    return CausalLM.load(BUILT_IN)


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """The built-in model with a chat template: what it says is nonsense, but always the same."""
    folder = tmp_path_factory.mktemp("talker") / "model"
    shutil.copytree(BUILT_IN, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "do_sample": False}))
    return folder


class TestChat:
    """Each line of the standard input is a message."""

    def answers(self, talker, *messages, system=None, **options):
        """What the library says, run afresh for each answer."""
        lm, said, answers = CausalLM.load(talker), [], []
        if system:
            said.append({"role": "system", "content": system})
        for message in messages:
            said.append({"role": "user", "content": message})
            answers.append(lm.chat(said, 20, **options))
            said.append({"role": "assistant", "content": answers[-1]})
        return answers

    def test_one_message(self, run, talker):
        wanted = self.answers(talker, "Who is Emma?")[0] + "\n"
        base = ("chat", "--model", talker, "--max-new-tokens", 20)
        assert run(*base, "Who is Emma?") == (0, wanted, [])
        assert run(*base, "-", text="Who is Emma?\n") == (0, wanted, [])

    @pytest.mark.parametrize("penalty", [1, 1.2])
    def test_turns_equal_the_whole_conversation(self, run, talker, penalty):
        """With the tokens of former turns in a state, or, under a penalty, all again."""
        messages = ["Who is Emma?", "And Harriet?", "Why?"]
        status, out, _ = run(
            *("chat", "--model", talker, "--max-new-tokens", 20, "--repetition-penalty", penalty),
            *("--system", "Be brief."),
            text="\n".join(messages) + "\n\n",
        )
        assert status == 0
        answers = self.answers(talker, *messages, system="Be brief.", repetition_penalty=penalty)
        assert out == "".join(answer + "\n" for answer in answers)

    def test_former_turns_are_not_run_again(self, run, talker, monkeypatch):
        lengths = []
        new_part = chat_command.Conversation._new_part

        def noted(self, ids):
            lengths.append((len(ids), len(new := new_part(self, ids))))
            return new

        monkeypatch.setattr(chat_command.Conversation, "_new_part", noted)
        run("chat", "--model", talker, "--max-new-tokens", 20, text="Who is Emma?\nAnd Harriet?\n")
        (whole, new), (longer, short) = lengths
        assert whole == new
        assert short < longer - whole

    def test_conversation_outgrows_the_state(self, run, talker, monkeypatch):
        monkeypatch.setattr(chat_command, "ROOM", 8)
        messages = ["Who is Emma?"] + ["And Harriet?"] * 4
        out = run("chat", "--model", talker, "--max-new-tokens", 20, text="\n".join(messages))[1]
        assert out == "".join(answer + "\n" for answer in self.answers(talker, *messages))

    def test_conversation_outgrows_the_model(self, run, talker):
        text = "\n".join(["Who is Emma, and what is she to Harriet? " * 3] * 40)
        status, out, err = run("chat", "--model", talker, "--max-new-tokens", 20, text=text)
        assert (status, len(err)) == (1, 1)
        assert "tokens, but the model has 512 positions" in err[0]
        assert out

    def test_json(self, run, talker):
        base = ("chat", "--model", talker, "--max-new-tokens", 20, "--json")
        status, out, err = run(*base, "--temperature", 1, "--seed", 3, text="Who is Emma?\nWhy?\n")
        answers = [json.loads(line) for line in out.splitlines()]
        assert (status, err, len(answers)) == (0, [], 2)
        lm = CausalLM.load(talker)
        for answer in answers:
            assert (answer["role"], answer["seed"]) == ("assistant", 3)
            assert lm.tokenizer.decode(answer["ids"]) == answer["content"]
            assert answer["finish_reason"] in ("eos", "length")

    def test_stop_and_template(self, run, talker):
        options = {"template": "{{ bos_token }}{{ messages[0].content }}", "stop": "time"}
        out = run("chat", "--model", talker, "--template", options["template"], "--stop", "time", "Emma was")[
            1
        ]
        assert out == CausalLM.load(talker).chat([{"role": "user", "content": "Emma was"}], **options) + "\n"

    def test_no_template(self, run):
        status, out, err = run("chat", "Hello")
        assert (status, out, len(err)) == (1, "", 1)
        assert "the built-in model has no chat template" in err[0]

    def test_closed_input(self, run, talker, monkeypatch):
        monkeypatch.setattr(sys, "stdin", None)
        status, _, err = run("chat", "--model", talker)
        assert (status, len(err)) == (2, 1)
        assert "standard input, which is closed" in err[0]

    def test_interrupt_keeps_what_was_said(self, run, talker, monkeypatch):
        following = TokenStream.__next__

        def interrupted(self):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return following(self)

        monkeypatch.setattr(TokenStream, "__next__", interrupted)
        status, out, err = run("chat", "--model", talker, "Who is Emma?")
        assert (status, err) == (130, [])
        assert out.endswith("\n")
        assert len(out) > 1


class TestTerminal:
    """With a terminal there is a prompt, and Ctrl-C stops an answer, not the conversation."""

    @pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo terminals")
    def test_conversation(self, talker):
        ours, theirs = os.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "mojolearn", "chat", "--model", talker, "--max-new-tokens", "5"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(theirs)
        os.write(ours, b"Who is Emma?\n\x04")
        seen = b""
        try:
            while part := os.read(ours, 1000):
                seen += part
        except OSError:  # the other side has gone
            pass
        os.close(ours)
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait() == 0, err
        answer = CausalLM.load(talker).chat([{"role": "user", "content": "Who is Emma?"}], 5)
        assert answer.strip() in seen.decode()
        assert err.startswith("Ctrl-D ends the conversation\n> ")


class TestScore:
    TEXTS = ("Emma was", "", "It is a truth universally acknowledged, – é", "  she")

    def of_library(self, lm, text):
        ids = lm.tokenizer.encode(text)
        return ids, lm.score([ids])[0].tolist()

    @pytest.mark.parametrize("ending", ["", "\n"])
    def test_table(self, run, lm, tmp_path, ending):
        (tmp_path / "texts").write_text("\n".join(self.TEXTS) + ending, "utf-8")
        status, out, err = run("score", tmp_path / "texts")
        assert (status, err) == (0, [])
        header, *rows = out.splitlines()
        assert header == "line\ttokens\tlogprob\tperplexity"
        for number, (row, text) in enumerate(zip(rows, self.TEXTS, strict=True), 1):
            ids, logprobs = self.of_library(lm, text)
            line, tokens, total, perplexity = row.split("\t")
            assert (int(line), int(tokens)) == (number, len(ids) - 1)
            assert float(total) == math.fsum(logprobs)
            assert perplexity == ("" if not logprobs else repr(math.exp(-float(total) / len(logprobs))))

    def test_standard_input_and_json(self, run, lm):
        status, out, err = run("score", "-", "--json", text="\n".join(self.TEXTS))
        assert (status, err) == (0, [])
        for number, (line, text) in enumerate(zip(out.splitlines(), self.TEXTS, strict=True), 1):
            row = json.loads(line)
            assert (row["ids"], row["logprobs"]) == self.of_library(lm, text)
            assert (row["line"], row["tokens"]) == (number, len(row["logprobs"]))
            assert row["logprob"] == math.fsum(row["logprobs"])

    def test_tokens(self, run, lm):
        status, out, err = run("score", "-", "--tokens", text="Emma was\n\nEmma")
        assert (status, err) == (0, [])
        header, *rows = out.splitlines()
        assert header == "line\tposition\tid\ttoken\tlogprob"
        ids, logprobs = self.of_library(lm, "Emma was")
        assert rows[:2] == [
            f"1\t{n}\t{ids[n]}\t{json.dumps(lm.tokenizer.decode([ids[n]]))}\t{logprobs[n - 1]!r}"
            for n in (1, 2)
        ]
        assert [row.split("\t")[0] for row in rows] == ["1", "1", "3"]

    def test_rows_come_as_lines_are_read(self, run):
        """What was scored before a line that cannot be is there."""
        status, out, err = run("score", "-", text="Emma\n" + "Emma " * 600 + "\nEmma")
        assert (status, len(err)) == (1, 1)
        assert "line 2: the call reaches position" in err[0]
        assert len(out.splitlines()) == 2

    def test_no_text(self, run, tmp_path):
        (tmp_path / "texts").write_bytes(b"Emma\nMr.\n\xff\nJane\n")
        status, out, err = run("score", tmp_path / "texts")
        assert (status, len(err), len(out.splitlines())) == (1, 1, 3)
        assert "line 3 is not UTF-8 text" in err[0]

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no endless file on this system")
    def test_a_line_without_end(self, run):
        status, _, err = run("score", "/dev/full")
        assert (status, len(err)) == (1, 1)
        assert "line 1 is longer than 16777216 bytes" in err[0]

    def test_no_file(self, run):
        status, _, err = run("score", "/no/such/file")
        assert (status, len(err)) == (1, 1)
        assert "/no/such/file" in err[0]

    def test_threads_and_format_do_not_matter(self, run):
        plain = run("score", "-", text="Emma was")[1]
        assert run("score", "-", "--threads", 1, "--weight-format", "float32", text="Emma was")[1] == plain


class TestInfo:
    def test_versions(self, run):
        status, out, err = run("info")
        assert (status, err) == (0, [])
        assert mojolearn.__version__ in out
        assert "numba" in out
        assert json.loads(run("info", "--json")[1])["mojolearn"].startswith(mojolearn.__version__)

    def test_model(self, run, lm):
        status, out, err = run("info", BUILT_IN)
        assert (status, err) == (0, [])
        rows = {line[:26].strip(): line[26:] for line in out.splitlines()}
        assert rows["family"] == "llama"
        assert rows["runs"] == "yes"
        assert rows["tokenizer"] == "2048 tokens"
        assert rows["n_kv_heads"] == "2"
        assert rows["chat templates"] == "none"

    def test_numbers_are_those_of_the_model(self, run, lm):
        rows = json.loads(run("info", BUILT_IN, "--json")[1])
        counted = sum(w.size for block in lm.blocks for w in block.weights().values())
        assert rows["parameters"] == counted + lm.d_model + lm.vocab_size * lm.d_model
        assert rows["memory per token and row"] == lm.allocate_state(1, 1).nbytes
        assert rows["weight format"] == lm.weight_format

    @pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
    def test_every_family(self, folder):
        """What is said without reading the weights is what the model has once it is loaded."""
        rows, lm = describe.describe(folder), CausalLM.load(folder)
        assert rows["runs"], rows["reason"]
        held = [*(w for block in lm.blocks for w in block.weights().values()), lm._head.linear.matrix()]
        if not lm.config.tie_word_embeddings:
            held.append(lm._embedding.matrix)
        if not lm.config.plain_norms:
            held += [] if lm._norm is None else [lm._norm.weight, lm._norm.bias]
        else:
            held = [w for w in held if w.ndim > 1]
        held += [lm._head.linear.vector(), lm._embedding.positions]
        offset = lm.config.position_offset or 0
        assert rows["parameters"] == sum(w.size for w in held if w is not None) + offset * lm.d_model
        windows = rows.get("memory of windows per row", 0)
        assert lm.allocate_state(1, 5).nbytes == 5 * rows["memory per token and row"] + windows

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda named: named.pop("model.norm.weight"), "the tensor model.norm.weight is missing"),
            (lambda named: named.pop("model.layers.1.self_attn.k_proj.weight"), "k_proj.weight is missing"),
            (lambda named: named.update(more=np.zeros(3, np.float32)), "has no place in the model: more"),
            (
                lambda named: named.update({"lm_head.weight": np.zeros((39, 16), np.float32)}),
                "has shape (39, 16)",
            ),
        ],
    )
    def test_tensors_that_do_not_fit(self, run, tmp_path, change, words):
        named = tensors(config())
        change(named)
        status, out, _ = run("info", write_model(tmp_path, named=named))
        assert status == 1
        assert words in out.splitlines()[-1]
        with pytest.raises(ValueError, match=re.escape(words)):  # loading says the same
            CausalLM.load(tmp_path)

    def test_gguf(self, run, tmp_path):
        """The same numbers as for the folder; a tensor that is missing is found without reading any."""
        folder = Path(__file__).parent / "data" / "models" / "llama_bias"
        path = convert(folder, tmp_path / "model.gguf")
        rows, theirs = (json.loads(run("info", where, "--json")[1]) for where in (path, folder))
        assert (rows["runs"], rows["parameters"]) == (True, theirs["parameters"])
        config = json.loads((folder / "config.json").read_text())
        named = tensors_of(folder, config)
        del named["output_norm.weight"]
        write(tmp_path / "less.gguf", metadata_of(config), named)
        status, out, _ = run("info", tmp_path / "less.gguf")
        assert status == 1
        assert "output_norm.weight is missing" in out

    def test_windows(self, run, tmp_path):
        folder = write_model(tmp_path, model_type="mistral", sliding_window=4)
        rows = json.loads(run("info", folder, "--json")[1])
        state = CausalLM.load(folder).allocate_state(1, 50)
        assert rows["memory per token and row"] == 0
        assert rows["memory of windows per row"] == state.nbytes
        assert rows["window"] == 4
        assert rows["tokenizer"].startswith("none: ")

    @pytest.mark.parametrize(
        ("break_it", "words"),
        [
            (lambda folder: (folder / "config.json").unlink(), "config.json does not exist"),
            (lambda folder: (folder / "model.safetensors").unlink(), "no weights found"),
            (
                lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 9),
                "is cut short or no safetensors file",
            ),
            (lambda folder: (folder / "config.json").write_text('{"model_type": "strange"}'), "'strange'"),
        ],
    )
    def test_model_that_cannot_run(self, run, tmp_path, break_it, words):
        folder = write_model(tmp_path)
        break_it(folder)
        status, out, err = run("info", folder)
        assert (status, err) == (1, [])
        assert "runs                      no\n" in out
        assert words in out.splitlines()[-1]

    def test_model_that_is_too_large(self, run, monkeypatch):
        monkeypatch.setattr(describe, "available_memory", lambda: 1000)
        status, out, _ = run("info", BUILT_IN, "--json")
        rows = json.loads(out)
        assert (status, rows["runs"]) == (1, False)
        assert "bytes, but 1000 are available" in rows["reason"]

    def test_memory_of_this_machine(self):
        available = describe.available_memory()
        assert available is None or 10**6 < available < 10**15


class TestCache:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        folder = tmp_path / "mojolearn" / "now"
        old = tmp_path / "mojolearn" / "old"
        for place, size in (folder, 100), (old, 1000):
            place.mkdir(parents=True)
            for name in ("a.nbi", "a.1.nbc", "b.nbi"):
                (place / name).write_bytes(b"x" * size)
        (old / "mine.txt").write_text("not a kernel")
        monkeypatch.setattr(_jit, "CACHE_FOLDER", folder)
        return folder

    def test_info(self, run, folder):
        rows = json.loads(run("cache", "info", "--json")[1])
        assert rows == {
            "folder": str(folder),
            "kernels": 2,
            "bytes": 300,
            "other folders": 1,
            "bytes of others": 3000,
            "can be written": True,
        }
        status, out, err = run("cache", "info")
        assert (status, err) == (0, [])
        assert str(folder) in out

    def test_clear(self, run, folder):
        status, out, err = run("cache", "clear")
        assert (status, err) == (0, [])
        assert out.startswith("removed 6 files")
        assert not folder.exists()
        assert [path.name for path in folder.with_name("old").iterdir()] == [
            "mine.txt"
        ]  # no file of somebody else
        assert run("cache", "clear")[1] == "removed 0 files, 0.0 MiB\n"
        assert json.loads(run("cache", "info", "--json")[1])["kernels"] == 0

    def test_clear_old(self, run, folder):
        assert run("cache", "clear", "--old")[1].startswith("removed 3 files")
        assert len(list(folder.iterdir())) == 3

    def test_switched_off(self, run, monkeypatch):
        monkeypatch.setattr(_jit, "CACHE_FOLDER", None)
        assert run("cache", "info")[1] == "The compile cache is switched off.\n"
        assert run("cache", "info", "--json")[1] == "null\n"


@pytest.mark.parametrize("n_workers", [1, 3])
def test_plain_read_leaves_nothing_out(n_workers):
    """What a bandwidth is measured with adds up every number once."""
    share = 8 * _jit.LANES * 5
    x = np.arange(n_workers * share, dtype=np.float32) % 7
    out = np.zeros(n_workers * _jit.LANES, np.float32)
    read = bandwidth.read_serial if n_workers == 1 else bandwidth.read_parallel
    read(n_workers, x, out)
    assert out.sum() == x.sum()


@pytest.mark.long
class TestBench:
    def test_figures(self, run):
        status, out, err = run("bench", "--json", "--threads", 1)
        figures = json.loads(out)
        assert (status, err) == (0, [])
        assert set(figures) == {
            *("read GB/s", "prompt of 128, tokens/s", "prompt of 512, tokens/s"),
            *("decoding, tokens/s", "decoding, GB/s", "decoding, share of the read"),
        }
        assert all(np.isfinite(figure) and figure > 0 for figure in figures.values())
        assert figures["decoding, share of the read"] == figures["decoding, GB/s"] / figures["read GB/s"]

    def test_table_of_a_short_model(self, run, tmp_path):
        status, out, _ = run("bench", write_model(tmp_path, max_position_embeddings=16))
        assert status == 0
        assert "prompt of 128" not in out
        assert "fit a cache" in out
