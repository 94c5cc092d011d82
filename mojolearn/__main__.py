"""The command line: ``mojolearn generate "Once upon a time"``, ``mojolearn info``."""

import argparse
import os
import re
import sys
import time

import numba

import mojolearn
from mojolearn._jit import cache_is_cold
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.config import read_config
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.scalars import counted

FAILURES = (ValueError, TypeError, OSError, ImportError, MemoryError)  # what the library says in a sentence
FOR_PYTHON = re.compile(
    r"^([A-Z]\w+(\.\w+)?: |\[Errno \d+\] )"
)  # "CausalLM.load: ", which says nothing in a shell

# Options with numbers: what is allowed, and how to say so.
NUMBERS = {
    "max_new_tokens": (lambda n: n >= 0, "at least 0"),
    "temperature": (
        lambda t: 1.4e-45 <= t <= 3.4e38,
        "above 0 and within float32 (--greedy takes the best token every time)",
    ),
    "top_k": (lambda k: 0 <= k < 2**63, "at least 0"),
    "top_p": (lambda p: 0 < p <= 1, "above 0 and at most 1"),
    "min_p": (lambda p: 0 <= p <= 1, "from 0 to 1"),
    "seed": (lambda n: 0 <= n < 2**64, "from 0 to 2**64 - 1"),
    "threads": (
        lambda n: 1 <= n <= numba.config.NUMBA_NUM_THREADS,
        f"from 1 to {numba.config.NUMBA_NUM_THREADS} on this machine",
    ),
}

# Fields of generation_config.json that change nothing here, or that are applied.
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
NEUTRAL = {
    *SAMPLING,
    *(
        "_from_model_config",
        "bos_token_id",
        "cache_implementation",
        "do_sample",
        "max_length",
        "max_new_tokens",
    ),
    *("pad_token_id", "transformers_version", "use_cache"),
}


def main(argv=None):
    """Run the command line.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; None takes those of the process.

    Returns
    -------
    int
        Exit status: 0, 2 after an error, 130 after Ctrl-C, 141 when nobody reads the output any more.
    """
    if sys.stdout is None:  # the shell's >&-
        _say("mojolearn: error: the standard output is closed")
        return 2
    arguments = _parser().parse_args(argv)
    try:
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return 141
    except KeyboardInterrupt:
        return 130
    except FAILURES as error:
        message = FOR_PYTHON.sub("", " ".join(str(error).split())) or type(error).__name__
        _say(f"mojolearn: error: {message}")
        try:
            sys.stdout.flush()
        except OSError:  # a full disk, for example
            _drop_output()
        return 2


def _drop_output():
    """Lead the output nowhere, or Python's own flush at exit fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser():
    parser = argparse.ArgumentParser(
        prog="mojolearn", description="Language models on the CPU with exactly fixed bits."
    )
    parser.add_argument("--version", action="version", version=f"mojolearn {mojolearn.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="versions of everything that matters, for bug reports")
    info.set_defaults(run=_info)

    generate = commands.add_parser(
        "generate",
        help="continue a text",
        description="Continue a text. Whether to sample and how defaults to what the model's generation_config.json "
        "says; without one, or where an option of sampling is given, tokens are drawn.",
    )
    generate.set_defaults(run=_generate)
    add = generate.add_argument
    add(
        "prompt",
        help="how the text begins; - reads it from standard input; put -- before one that begins with a dash",
    )
    add(
        "--model", metavar="PATH", help="a Hugging Face folder (default: the small model inside this package)"
    )
    add("--max-new-tokens", type=int, default=64, metavar="N", help="at most so many tokens (default: 64)")
    add(
        "--greedy",
        action="store_true",
        help="take the best token every time; goes with no option of sampling, nor --seed",
    )
    add("--temperature", type=float, metavar="T", help="below 1 keeps to likely tokens, above 1 strays")
    add("--top-k", type=int, metavar="K", help="draw from the K best tokens; 0 = all")
    add("--top-p", type=float, metavar="P", help="draw from the best tokens that make up this share")
    add("--min-p", type=float, metavar="P", help="draw from tokens with this share of the best one's weight")
    add("--seed", type=int, metavar="N", help="the same seed gives the same text, on every machine")
    add("--threads", type=int, metavar="N", help="how many threads; the text does not depend on it")
    add("--weight-format", choices=("float32", "bfloat16", "float16"), help="default: as stored")
    return parser


def _info(arguments):
    mojolearn.show_versions()
    return 0


def _generate(arguments):
    _check(arguments)
    if arguments.threads is not None:
        numba.set_num_threads(arguments.threads)
    path = BUILT_IN if arguments.model is None else arguments.model
    config = read_config(path)
    options = _options(arguments, config)
    prompt = _prompt(arguments.prompt)
    tokenizer = Tokenizer.load(path)
    ids = tokenizer.encode(prompt)
    _check_room(len(ids), arguments.max_new_tokens, config.max_position_embeddings)
    lm = CausalLM.load(path, weight_format=arguments.weight_format)
    if cache_is_cold():
        _say("compiling kernels for this machine, once ...")
    mojolearn.warmup(lm.weight_format)

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows "?"
    began = time.perf_counter()
    stream = lm.stream([ids], arguments.max_new_tokens, **options)
    ready = time.perf_counter()
    text, count, status = tokenizer.decode_stream(ids), 0, 0
    _write(prompt)
    try:
        for new in stream:
            count += 1
            _write(text.step(int(new[0])))
    except KeyboardInterrupt:
        status = 130
    seconds = time.perf_counter() - ready
    _write(text.flush() + "\n")
    rate = f", {count / seconds:.0f} tokens/s" if count else ""
    how = "greedy" if stream.seed is None else f"seed {stream.seed}"
    _say(
        f"{counted(count, 'token')} in {seconds:.2f} s{rate} "
        f"(prompt {counted(len(ids), 'token')} in {ready - began:.2f} s), {how}"
    )
    return status


def _check(arguments):
    """Judge the options by themselves, in the words of the command line."""
    if arguments.model == "":
        raise ValueError("--model must name a folder, but it is empty")
    for name, (allowed, wanted) in NUMBERS.items():
        value = getattr(arguments, name)
        if value is not None and not allowed(value):
            raise ValueError(f"{_flag(name)} must be {wanted}, not {value}")
        if arguments.greedy and value is not None and name in (*SAMPLING, "seed"):
            raise ValueError(f"{_flag(name)} has no effect with --greedy; leave out one of the two")


def _flag(name):
    return "--" + name.replace("_", "-")


def _prompt(given):
    """Return the prompt; that of ``-`` stands in the standard input, where one line break at the end is not text."""
    try:
        if given == "-":
            if sys.stdin is None:
                raise ValueError("the prompt is to come from the standard input, which is closed")
            given = sys.stdin.read().removesuffix("\n")
        given.encode()
    except UnicodeError:
        raise ValueError("the prompt must be text in the encoding of the terminal, usually UTF-8") from None
    return given


def _check_room(prompt, new, most):
    """Refuse more tokens than the model has positions; the last new token needs none."""
    if not prompt:
        raise ValueError("the prompt must hold at least one token, but it is empty")
    if not new or most is None:
        return
    if prompt > most:
        raise ValueError(f"the prompt has {prompt} tokens, but the model has {most} positions")
    room = most - prompt + 1
    if new > room:
        raise ValueError(
            f"--max-new-tokens {new} is too many: the model has {most} positions and the prompt takes {prompt} of "
            f"them; at most {counted(room, 'new token')} can follow"
        )


def _options(arguments, config):
    """What to pass to ``stream``: options given, then those of the model."""
    given = {name: getattr(arguments, name) for name in (*SAMPLING, "seed")}
    given = {name: value for name, value in given.items() if value is not None}
    asked = {name: value for name, value in config.generation.items() if value is not None}
    for name, value in asked.items():
        if name not in NEUTRAL:
            _say(f"note: generation_config.json asks for {name} = {value!r}, which is not applied")
    options = {"eos_token_id": config.eos_token_ids or None}
    if arguments.greedy or (asked.get("do_sample") is False and not given):
        return options | {"greedy": True}
    return options | {"greedy": False} | {name: asked[name] for name in SAMPLING if name in asked} | given


def _write(text):
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _say(line):
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
