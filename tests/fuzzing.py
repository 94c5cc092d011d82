"""Hostile files: small valid ones, changed in nasty ways, and the judge of what may come of reading them.

A case is a target and a number: ``run_case(target, 7)`` does the same every time. Run as a program it goes on for some
minutes (``make fuzz``), in processes of their own that may crash, and prints a table.
"""

import argparse
import contextlib
import copy
import faulthandler
import io
import json
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import gguf_files
import numpy as np
import toy_models
from fuzzing_states import check_saved, make_saved
from fuzzing_templates import random_template

from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.tokenizer import Tokenizer

try:
    import resource
except ImportError:  # Windows
    resource = None

DATA = Path(__file__).parent / "data"
SECONDS = 60  # that only a hang takes
MEMORY = 1280 << 20  # bytes by which the peak may grow, beside what the files have: a template may take 1 GiB
ADDRESSES = 3 << 30  # bytes beyond those of a process that has everything loaded
MEMORY_OF_FILES = 256 << 20  # the same where no template is run
LONGEST_MESSAGE = 2000  # characters, without the path
OWNERS = ("CausalLM", "CausalLMDecodeSession", "CausalLMState", "TextStream", "TokenStream", "Tokenizer")
OWNERS += ("TransformerBlock", "TransformerState")
PREFIX = re.compile(rf"({'|'.join(OWNERS)})\.\w+: ")
HELLO = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}]

# Values to stand in a JSON file, as they are written.
NASTY = (
    *("0", "1", "-1", "2", "3", "7", "64", "255", "2147483647", "2147483648", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551615", "1" + "0" * 400, "9" * 4299, "9" * 5000),
    *(
        "0.0",
        "-0.0",
        "0.5",
        "1.0",
        "1e-300",
        "1e-46",
        "3.5e38",
        "1e308",
        "-1e308",
        "1e999",
        "NaN",
        "-Infinity",
    ),
    *("true", "false", "null", '""', '"x"', '"0"', '"default"', '"full_attention"', '"\\ud800"', '"\\u0000"'),
    *('"a\\nb"', '"\\u2028"', f'"{"x" * 5000}"', '"../x"', '"/etc/passwd"', '"float32"', '"\\u202e"'),
    *("[]", "{}", "[[]]", "[null]", '{"a": 1}', "[0]", "[1, 2, 3]", '["x"]', "[-1]", "[1e999]", '{"": {}}'),
    *("[" * 90 + "]" * 90, "[" * 5000 + "]" * 5000, '{"a": ' * 200 + "1" + "}" * 200, "[" * 100_000),
    *('{"type": "linear", "factor": 1e38}', '{"rope_type": "yarn", "factor": 1e-38}', '{"a": 1, "a": 2}'),
    *("'x'", "1,", "+1", "01", "\\", "//", "1e", "\u00e9"),
)
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


class Fault(AssertionError):
    """Something came of a file that must not."""


# --- the judge ----------------------------------------------------------------------------------------------


def judge(call, where=""):
    """Run a call: returns its result and None, or None and the message of a refusal; anything else is a `Fault`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return call(), None
    except Fault:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        kind = type(error)
        allowed = kind in (ValueError, TypeError, MemoryError, ImportError) or isinstance(error, OSError)
        message = str(error)
        if not allowed:
            raise Fault(f"{kind.__name__}: {message[:500]}") from error
        if not PREFIX.match(message):
            raise Fault(f"{kind.__name__} without a public name in front: {message[:500]}") from error
        check_line(message.replace(str(where), "PATH"))
        return None, message


def check_line(message):
    """A message is one line that a terminal shows."""
    if not message.isprintable():
        raise Fault(f"a message that is no line: {message[:500]!r}")
    if len(message) > LONGEST_MESSAGE:
        raise Fault(f"a message of {len(message)} characters: {message[:500]}")


def check_model(path):
    """Load a model and compute one token."""
    lm, refusal = judge(lambda: CausalLM.load(path), path)
    if lm is None:
        return refusal
    logits, refusal = judge(lambda: lm.forward([[0]]), path)
    if logits is not None and not np.isfinite(logits).all():  # of huge weights; no token is chosen then
        if judge(lambda: lm.generate([[0]], 1), path)[0] is not None and not np.isfinite(logits.max()):
            raise Fault("a token chosen by logits that are not finite")
    return refusal


def check_tokenizer(path):
    """Load a tokenizer, and turn text into ids and back."""
    tokenizer, refusal = judge(lambda: Tokenizer.load(path), path)
    if tokenizer is None:
        return refusal
    for text in ("Emma was", "  é\n1234 <s> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", ""):
        ids, refusal = judge(lambda text=text: tokenizer.encode(text), path)
        if ids is None:
            return refusal
        ids = [i for i in ids if i < tokenizer.vocab_size]
        for call in (lambda ids=ids: tokenizer.decode(ids), lambda ids=ids: streamed(tokenizer, ids)):
            if judge(call, path)[0] is None:
                return "refused while decoding"
    if tokenizer.chat_templates:
        return judge(lambda: tokenizer.render_chat(HELLO), path)[1]
    return None


def streamed(tokenizer, ids):
    stream = tokenizer.decode_stream()
    return "".join(stream.step(i) for i in ids) + stream.flush()


def check_template(path):
    """Run a template, as a file and as an argument."""
    text = path.read_text("utf-8", "surrogateescape")
    return judge(lambda: built_in_tokenizer().render_chat(HELLO, template="{{''}}" + text), path)[1]


def check_stream(path):
    """Resume a stream, and let it go on."""
    stream, refusal = judge(lambda: toy_lm().resume(path), path)
    if stream is not None:
        judge(lambda: list(stream), path)
    return refusal


def check_command_line(path):
    """Commands on a folder: one line on the standard error, and the exit status says that it failed."""
    from mojolearn.__main__ import main
    from mojolearn.cli import options

    options.cache_is_cold = lambda: False
    refusals = []
    for arguments in (
        ["info", path],
        ["verify", path],
        ["generate", "Emma", "--greedy", "--max-new-tokens", "2", "--model", path],
        ["score", DATA / "smollm2" / "README.md", "--model", path],
    ):
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main([str(argument) for argument in arguments])
            except BaseException as error:
                raise Fault(f"{arguments[0]}: {type(error).__name__}: {str(error)[:300]}") from error
        lines = [
            line for line in err.getvalue().splitlines() if not line.startswith(("note: ", "compiling "))
        ]
        if status not in (0, 1, 2):
            raise Fault(f"{arguments[0]}: exit status {status}")
        if status and arguments[0] != "info" and [line[:18] for line in lines] != ["mojolearn: error: "]:
            raise Fault(f"{arguments[0]}: exit status {status} and {lines}")
        for line in lines:
            check_line(line.replace(str(path), "PATH"))
        if status:
            refusals.append(arguments[0])
    return None if len(refusals) < 4 else "all commands fail"


# --- valid files --------------------------------------------------------------------------------------------


@cache
def built_in_tokenizer():
    return Tokenizer.load(BUILT_IN)


@cache
def workshop():
    """The folder of this process; what is in it goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="fuzzing")
    workshop.keep = folder
    return Path(folder.name)


@cache
def toy_lm():
    return CausalLM.load(toy_models.write_model(workshop() / "toy"))


@cache
def models():
    """Folders of every family, with one JSON file each that may be changed."""
    found = [path.parent for path in sorted((DATA / "models").glob("*/model.safetensors"))]
    return [folder for folder in found if (folder / "model.safetensors").stat().st_size < 1 << 20]


@cache
def all_fields():
    """Names of fields of all configs, to be put where they do not belong, with a value that they have."""
    fields = {}
    for folder in models():
        for path in folder.glob("config*.json"):
            fields |= json.loads(path.read_text())
    fields |= json.loads((DATA / "smollm2" / "tokenizer_config.json").read_text())
    fields |= {"temperature": 0.5, "top_k": 3, "do_sample": True, "eos_token_id": [2], "bos_token_id": 1}
    return sorted(fields.items())


@cache
def gguf_seeds():
    """GGUF files of several families, plain and in blocks, with small vocabularies of both kinds."""
    seeds = []
    bytes_ = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    pairs = {"model": "gpt2", "pre": "llama-bpe", "tokens": [*bytes_, "he", "<s>", "</s>"], "merges": ["h e"]}
    pieces = {"model": "llama", "tokens": ["<unk>", "<s>", "</s>", "▁", "a", "▁a"]}
    pieces["scores"] = [0.0, 0.0, 0.0, -1.0, -2.0, -3.0]
    for vocabulary in (pairs, pieces):
        n = len(vocabulary["tokens"])
        vocabulary["token_type"] = [np.int32(1)] * n
        vocabulary |= {"bos_token_id": n - 2, "eos_token_id": n - 1, "add_bos_token": True}
    for i, (folder, kind) in enumerate((f, k) for f in models()[::5] for k in ("F32", "F16")):
        path = workshop() / f"seed{i}.gguf"
        try:
            gguf_files.convert(folder, path, kind)
        except (KeyError, ValueError, StopIteration, TypeError):
            continue  # what the format does not have
        seeds.append(path.read_bytes())
    for vocabulary in (pairs, pieces):
        n = len(vocabulary["tokens"])
        fields = toy_models.config(vocab_size=n)
        folder = workshop() / f"vocabulary{n}"
        toy_models.write_model(folder, vocab_size=n)
        keys = {f"tokenizer.ggml.{name}": value for name, value in vocabulary.items()}
        keys["tokenizer.chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
        metadata = gguf_files.metadata_of(fields | {"rope_parameters": None}) | keys
        whole = gguf_files.gguf_bytes(metadata, gguf_files.tensors_of(folder, fields))
        seeds += [whole, whole]
    return seeds


@cache
def tokenizer_seeds():
    """Contents of tokenizer.json: the built-in one, and small ones of every kind of part."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, normalizers, pre_tokenizers, processors
    from tokenizers import models as kinds

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: i for i, text in enumerate([*alphabet, "em", "<unk>", "<s>"])}
    found = [(Path(BUILT_IN) / "tokenizer.json").read_bytes()]
    for model in (
        kinds.BPE(vocabulary, [("e", "m")], unk_token="<unk>"),
        kinds.BPE(vocabulary, [("e", "m")], byte_fallback=True, fuse_unk=True),
        kinds.WordPiece(vocabulary, unk_token="<unk>"),
        kinds.WordLevel(vocabulary, unk_token="<unk>"),
        kinds.Unigram([(text, -float(i)) for text, i in vocabulary.items()], 257, False),
    ):
        backend = Backend(model)
        backend.add_special_tokens(["<s>"])
        backend.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Strip()]
        )
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split("x", "isolated"),
                pre_tokenizers.Digits(True),
                pre_tokenizers.Metaspace(),
                pre_tokenizers.ByteLevel(),
            ]
        )
        backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 258)])
        steps = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
        backend.decoder = decoders.Sequence([*steps, decoders.ByteLevel()])
        found.append(backend.to_str().encode())
    return found


@cache
def stream_seeds():
    """Files of streams that were saved on their way."""
    lm, seeds = toy_lm(), []
    for i, (ending, options) in enumerate(
        [(".npz", {}), (".safetensors", {}), (".npz", {"greedy": False, "seed": 3, "logprobs": 2})]
    ):
        stream = lm.stream([[1, 2, 3], [4]], 6, **options)
        next(stream)
        path = workshop() / f"stream{i}{ending}"
        stream.save(path)
        seeds.append((ending, path.read_bytes()))
    return seeds


# --- what is done to them -----------------------------------------------------------------------------------


def broken_json(rng, text):
    """A JSON file with some values replaced, fields added, keys repeated, and now and then a few bytes changed."""
    tree = json.loads(text)
    raw = []

    def hostile():
        raw.append(rng.choice(NASTY))
        return f"@@{len(raw) - 1}@@"

    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        parent, key = tree, None
        while isinstance(parent, (dict, list)) and parent:
            keys = list(parent) if isinstance(parent, dict) else range(len(parent))
            key = rng.choice(keys)
            if not isinstance(parent[key], (dict, list)) or not parent[key] or rng.random() < 0.4:
                break
            parent = parent[key]
        if key is None:
            return b""
        action = rng.random()
        if action < 0.6:
            parent[key] = hostile()
        elif action < 0.7:
            del parent[key]
        elif action < 0.8 and isinstance(parent, dict):
            raw.append(f"{json.dumps(parent[key])}, {json.dumps(key)}: {rng.choice(NASTY)}")
            parent[key] = f"@@{len(raw) - 1}@@"
        elif isinstance(parent, dict):
            name, value = rng.choice(all_fields())
            parent[rng.choice((name, "a\nb", "\x1b[31m", "x" * 3000, ""))] = rng.choice(
                (copy.deepcopy(value), hostile())
            )
        else:
            parent.insert(key, hostile())
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    text = re.sub(r'"@@(\d+)@@"', lambda match: raw[int(match[1])], text).encode("utf-8", "surrogatepass")
    return text if rng.random() < 0.85 else broken_bytes(rng, text)


def broken_bytes(rng, data):
    """Some bytes of a file flipped, cut off, repeated, or replaced by a hostile number."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        if rng.random() < 0.5:
            at = min(at, rng.randrange(200))  # headers stand at the beginning
        action = rng.randrange(8)
        if action == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif action == 1:
            del data[at:]
        elif action == 2:
            data[at:at] = rng.choice((b"\xff", b"\xef\xbb\xbf", b"\0", b"[" * 2000, b"\xed\xa0\x80", b"{"))
        elif action == 3:
            other = rng.randrange(len(data) + 1)
            data[at:at] = data[other : other + rng.randrange(64)]
        elif action == 4:
            data[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif action == 5:
            data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
        elif action == 6:
            del data[at : at + rng.randrange(16)]
        elif data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
    return bytes(data)


def broken_safetensors(rng, data):
    """A safetensors file with another length, another header, or other bytes."""
    length = struct.unpack("<Q", data[:8])[0]
    header, rest = data[8 : 8 + length], data[8 + length :]
    action = rng.random()
    if action < 0.15:
        return struct.pack("<Q", rng.choice((*NUMBERS, length - 1, length + 1))) + header + rest
    if action < 0.3:
        return broken_bytes(rng, data)
    if action < 0.5:
        return toy_models.raw_file(swapped(rng, json.loads(header)), rest)
    return toy_models.raw_file(broken_json(rng, header), rest)


def swapped(rng, header):
    """Entries of a header exchange their dtypes, shapes or offsets, or become hostile ones."""
    names = [name for name in header if name != "__metadata__"]
    first, second, key = rng.choice(names), rng.choice(names), rng.choice(("dtype", "shape", "data_offsets"))
    value = header[first][key]
    header[first][key] = header[second][key]
    if key == "dtype":
        value = rng.choice(("F64", "I64", "BOOL", "F16", "BF16", "F32", "F4", "C64", ""))
    elif rng.random() < 0.7:
        value = [rng.choice((*NUMBERS, *value)) for _ in range(rng.choice((len(value), 2, 3, 65, 500)))]
    header[second][key] = value
    return header


def numbers_of_gguf(data):
    """Place and size of every count, length, type, dimension and offset in a valid file."""
    places = [(4, 4), (8, 8), (16, 8)]
    at = 24
    tensors, keys = struct.unpack_from("<QQ", data, 8)

    def text():
        nonlocal at
        places.append((at, 8))
        at += 8 + struct.unpack_from("<Q", data, at)[0]

    def value(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            places.extend([(at, 4), (at + 4, 8)])
            at += 12
            for _ in range(count):
                value(inner)
        else:
            size = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1}.get(kind, 8)
            places.append((at, size))
            at += size

    for _ in range(keys):
        text()
        places.append((at, 4))
        at += 4
        value(struct.unpack_from("<I", data, at - 4)[0])
    for _ in range(tensors):
        text()
        dimensions = struct.unpack_from("<I", data, at)[0]
        places += [(at, 4), *((at + 4 + 8 * i, 8) for i in range(dimensions))]
        at += 4 + 8 * dimensions
        places += [(at, 4), (at + 4, 8)]
        at += 12
    return places, at


@cache
def _numbers_of_seed(index):
    return numbers_of_gguf(gguf_seeds()[index])


def broken_gguf(rng):
    """A GGUF file with numbers replaced or exchanged, names changed, or any bytes."""
    index = rng.randrange(len(gguf_seeds()))
    data = bytearray(gguf_seeds()[index])
    places, end = _numbers_of_seed(index)
    if rng.random() < 0.25:
        return broken_bytes(rng, bytes(data))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, size = rng.choice(places)
        other, _ = rng.choice([place for place in places if place[1] == size])
        number = rng.choice((*NUMBERS, *range(13)))
        floats = struct.pack("<f", rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e-45, 3e38)))
        new = number.to_bytes(8, "little")[:size]
        if size == 4 and rng.random() < 0.3:
            new = floats
        if rng.random() < 0.25:
            new, data[other : other + size] = data[other : other + size], data[at : at + size]
        data[at : at + size] = new
    if rng.random() < 0.15:
        at = rng.randrange(24, end)
        data[at] = rng.choice((0, 10, 27, 255, 0x80))
    return bytes(data)


# --- targets ------------------------------------------------------------------------------------------------


def copy_of(folder, rng, names):
    """A folder like this one in which one of the files may be replaced; links to the others."""
    target = workshop() / "case"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in folder.iterdir():
        if path.name in ("config.json", "model.safetensors", "tokenizer.json"):
            (target / path.name).symlink_to(path)
    name = rng.choice(names)
    return target, target / name


def replace(path, data):
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def make_config(rng):
    folder = rng.choice(models())
    target, path = copy_of(folder, rng, ["config.json"])
    source = rng.choice(sorted(folder.glob("config*.json")))
    replace(path, broken_json(rng, source.read_bytes()))
    return target


def make_generation_config(rng):
    target, path = copy_of(workshop() / "toy", rng, ["generation_config.json"])
    text = (DATA / "smollm2" / "generation_config.json").read_bytes()
    fields = json.loads(text) | {"temperature": 0.7, "top_p": 0.9, "do_sample": True, "eos_token_id": [2, 3]}
    replace(path, broken_json(rng, json.dumps(fields)))
    return target


def make_safetensors(rng):
    folder = rng.choice([workshop() / "toy", *models()])
    target, path = copy_of(folder, rng, ["model.safetensors"])
    replace(path, broken_safetensors(rng, (folder / "model.safetensors").read_bytes()))
    return target


def make_weights(rng):
    """Only the numbers are strange: NaN, infinities, huge and tiny ones."""
    folder = workshop() / "toy"
    target, path = copy_of(folder, rng, ["model.safetensors"])
    named = toy_models.tensors(toy_models.config(), rng.randrange(100))
    array = named[rng.choice(sorted(named))].reshape(-1)
    array[rng.randrange(array.size) :] = rng.choice((np.nan, np.inf, 3e38, -3e38, 1e-45, 0.0))
    replace(path, toy_models.safetensors_bytes(named))
    return target


def make_index(rng):
    target, path = copy_of(workshop() / "toy", rng, ["model.safetensors.index.json"])
    (target / "model.safetensors").unlink()
    named = toy_models.tensors(toy_models.config())
    half = sorted(named)[: len(named) // 2]
    rest = sorted(set(named) - set(half))
    toy_models.write_shards(target, named, {"a.safetensors": half, "b.safetensors": rest})
    text = broken_json(rng, path.read_bytes())
    for _ in range(rng.randrange(3)):
        strange = rng.choice(
            ("../a.safetensors", "/etc/passwd", "", ".", "a\0", "b.safetensors ", "x" * 9000)
        )
        text = text.replace(b"a.safetensors", json.dumps(strange)[1:-1].encode(), 1)
    replace(path, text)
    return target


def make_gguf(rng):
    path = workshop() / "case.gguf"
    path.write_bytes(broken_gguf(rng))
    return path


def make_tokenizer(rng):
    target, _ = copy_of(workshop() / "toy", rng, ["x"])
    seed = rng.choice(tokenizer_seeds()) if rng.random() < 0.95 else tokenizer_seeds()[0]
    settings = (DATA / "smollm2" / "tokenizer_config.json").read_bytes()
    if rng.random() < 0.6:
        replace(target / "tokenizer.json", broken_json(rng, seed))
    else:
        replace(target / "tokenizer.json", tokenizer_seeds()[0])
        fields = {
            "bos_token": "<|endoftext|>",
            "eos_token": {"content": "<|endoftext|>"},
            "add_bos_token": True,
        }
        fields["chat_template"] = [{"name": "default", "template": "{{ bos_token }}x"}]
        text = rng.choice((settings, json.dumps(fields)))
        name = rng.choice(("tokenizer_config.json", "special_tokens_map.json"))
        replace(target / name, broken_json(rng, text))
    return target


def make_template(rng):
    path = workshop() / "case.jinja"
    text = random_template(rng)
    if rng.random() < 0.2:
        known = (DATA / "smollm2" / "chat_template.jinja").read_bytes()
        text = broken_bytes(rng, known).decode("utf-8", "replace")
    path.write_text(text, "utf-8", "surrogatepass")
    return path


def make_stream(rng):
    ending, data = rng.choice(stream_seeds())
    path = workshop() / f"case{ending}"
    path.write_bytes(broken_safetensors(rng, data) if ending == ".safetensors" else broken_bytes(rng, data))
    return path


def make_saved_state(rng):
    return make_saved(rng, workshop(), broken_bytes)


def check_saved_state(path):
    return check_saved(path, judge)


def make_built_in(rng):
    """The built-in model with one of its files changed, or one added."""
    target, path = copy_of(
        Path(BUILT_IN),
        rng,
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"],
    )
    source = Path(BUILT_IN) / path.name
    data = source.read_bytes() if source.exists() else b'{"do_sample": true, "top_k": 3, "eos_token_id": 0}'
    replace(path, broken_json(rng, data))
    return target


def make_folder(rng):
    """Of any kind, for the command line."""
    if rng.random() < 0.5:
        return make_built_in(rng)
    make = rng.choice(
        (make_config, make_generation_config, make_safetensors, make_index, make_gguf, make_tokenizer)
    )
    target = make(rng)
    if target.is_dir() and not (target / "tokenizer.json").exists():
        replace(target / "tokenizer.json", tokenizer_seeds()[1])
    return target


TARGETS = {  # how a case is made, and how it is tried
    "config": (make_config, check_model),
    "generation config": (make_generation_config, check_model),
    "safetensors": (make_safetensors, check_model),
    "weights": (make_weights, check_model),
    "index": (make_index, check_model),
    "gguf": (make_gguf, check_model),
    "gguf tokenizer": (make_gguf, check_tokenizer),
    "tokenizer": (make_tokenizer, check_tokenizer),
    "template": (make_template, check_template),
    "stream": (make_stream, check_stream),
    "saved state": (make_saved_state, check_saved_state),
    "command line": (make_folder, check_command_line),
}


def run_case(target, number):
    """Make a case and try it; returns the message of a refusal, None where the file was accepted."""
    make, check = TARGETS[target]
    toy_lm()
    path = make(random.Random(f"{target} {number}"))
    before = peak_memory()
    with alarm():
        refusal = check(path)
    limit = MEMORY if target in ("template", "tokenizer", "command line") else MEMORY_OF_FILES
    size = (
        path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.iterdir() if p.exists())
    )
    if peak_memory() - before > limit + 16 * size:
        raise Fault(f"the peak of memory has grown by {(peak_memory() - before) >> 20} MiB")
    return refusal


def peak_memory():
    """Bytes that this process has held at most."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextlib.contextmanager
def alarm():
    """Inside, what hangs is ended: in Python by an exception, elsewhere with the process."""

    def ring(*_):
        raise Fault(f"no end within {SECONDS} seconds")

    faulthandler.dump_traceback_later(4 * SECONDS, exit=True)
    before = signal.signal(signal.SIGALRM, ring) if hasattr(signal, "SIGALRM") else None
    if before is not None:
        signal.alarm(SECONDS)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        if before is not None:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)


# --- for minutes --------------------------------------------------------------------------------------------


def limit_addresses():
    """Bound the addresses of this process, where the system tells what it has and can hold it to that."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def work(target, first, seconds, cases):
    """Run cases of one target until the time is over; prints a line of JSON for each fault, and the counts at last."""
    with contextlib.suppress(Fault):
        run_case(target, first)  # with all that it imports and compiles
    limit_addresses()
    counts, number, end = Counter(), first, time.monotonic() + seconds
    while time.monotonic() < end and counts["inputs"] < cases:
        print(json.dumps({"at": number}), flush=True)
        try:
            refusal = run_case(target, number)
            counts["accepted" if refusal is None else "refused"] += 1
        except Fault as fault:
            counts["faults"] += 1
            print(json.dumps({"fault": str(fault), "number": number}), flush=True)
        counts["inputs"] += 1
        number += 1
        if counts["inputs"] % 50 == 0:
            print(json.dumps({"counts": counts}), flush=True)
    print(json.dumps({"counts": counts}), flush=True)


def supervise(target, first, seconds, cases, folder):
    """Run a target in processes of its own, and again after a crash; returns the counts."""
    total, end = Counter(), time.monotonic() + seconds
    while time.monotonic() < end - 1 and total["inputs"] < cases:
        arguments = ["--work", target, "--first", str(first), "--minutes", str((end - time.monotonic()) / 60)]
        arguments += ["--cases", str(cases - total["inputs"])]
        done = subprocess.run(
            [sys.executable, __file__, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        counts, at = {}, first
        for line in done.stdout.splitlines():
            event = json.loads(line)
            at, counts = event.get("at", at), event.get("counts", counts)
            if "fault" in event:
                print(f"{target} {event['number']}: {event['fault']}", flush=True)
                save(target, event["number"], event["fault"], folder)
        total.update(counts)
        if done.returncode:
            fault = f"the process has ended with status {done.returncode}"
            print(f"{target} {at}: {fault}", flush=True)
            save(target, at, fault, folder)
            total.update(faults=1, inputs=1)
        first = at + 1
    return total


def save(target, number, fault, folder):
    """Keep a failing input: the files themselves, and how to have it again."""
    place = folder / f"{target.replace(' ', '_')}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    toy_lm()
    path = TARGETS[target][0](random.Random(f"{target} {number}"))
    if path.is_dir():
        shutil.copytree(path, place / path.name)
    else:
        shutil.copy(path, place)
    (place / "fault.txt").write_text(f"{fault}\nfuzzing.run_case({target!r}, {number})\n")


def main():
    """Spend some minutes on all targets in turn, or on some, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="all in all (default: 10)")
    parser.add_argument(
        "--only", action="append", choices=sorted(TARGETS), help="this target; may be repeated"
    )
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="of each target at most")
    parser.add_argument("--first", type=int, help="the number of the first case (default: by the clock)")
    parser.add_argument("--save", type=Path, default=Path("fuzz_failures"), help="where failing inputs go")
    parser.add_argument("--work", choices=sorted(TARGETS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    first = int(time.time()) % 10**6 * 1000 if arguments.first is None else arguments.first
    if arguments.work:
        work(arguments.work, first, 60 * arguments.minutes, arguments.cases)
        return 0
    names = arguments.only or list(TARGETS)
    totals = {}
    for name in names:
        seconds = 60 * arguments.minutes / len(names)
        totals[name] = supervise(name, first, seconds, arguments.cases, arguments.save)
    columns = ("inputs", "accepted", "refused", "faults")
    print(f"{'target':20}" + "".join(f"{column:>10}" for column in columns))
    for name, counts in totals.items():
        print(f"{name:20}" + "".join(f"{counts[column]:10}" for column in columns))
    faults = sum(counts["faults"] for counts in totals.values())
    if faults:
        print(f"failing inputs are in {arguments.save}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
