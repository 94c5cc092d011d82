"""The command line: ``mojolearn generate "Once upon a time"``, ``mojolearn info``."""

import argparse
import os
import sys
import time

import numba

import mojolearn
from mojolearn._jit import cache_is_cold
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.tokenizer import Tokenizer

FAILURES = (ValueError, TypeError, OSError, ImportError, MemoryError)  # what the library says in a sentence

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
    arguments = _parser().parse_args(argv)
    try:
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        return 141
    except KeyboardInterrupt:
        return 130
    except FAILURES as error:
        _say(f"mojolearn: error: {' '.join(str(error).split()) or type(error).__name__}")
        return 2


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
        description="Continue a text. Options of sampling default to what the model's generation_config.json says.",
    )
    generate.set_defaults(run=_generate)
    add = generate.add_argument
    add("prompt", help="how the text begins")
    add(
        "--model", metavar="PATH", help="a Hugging Face folder (default: the small model inside this package)"
    )
    add("--max-new-tokens", type=int, default=64, metavar="N", help="at most so many tokens (default: 64)")
    add("--greedy", action="store_true", help="take the best token every time")
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
    path = arguments.model or BUILT_IN
    if arguments.threads is not None:
        most = numba.config.NUMBA_NUM_THREADS
        if not 1 <= arguments.threads <= most:
            raise ValueError(f"--threads must be from 1 to {most} on this machine, not {arguments.threads}")
        numba.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.load(path)
    ids = tokenizer.encode(arguments.prompt)
    if not ids:
        raise ValueError("the prompt must hold at least one token, but it is empty")
    lm = CausalLM.load(path, weight_format=arguments.weight_format)
    options = _options(arguments, lm.config)
    if cache_is_cold():
        _say("compiling kernels for this machine, once ...")
    mojolearn.warmup(lm.weight_format)

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows "?"
    began = time.perf_counter()
    stream = lm.stream([ids], arguments.max_new_tokens, **options)
    ready = time.perf_counter()
    text, count, status = tokenizer.decode_stream(ids), 0, 0
    _write(arguments.prompt)
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
        f"{count} tokens in {seconds:.2f} s{rate} (prompt {len(ids)} tokens in {ready - began:.2f} s), {how}"
    )
    return status


def _options(arguments, config):
    """What to pass to ``stream``: options given, then those of the model."""
    options = {
        "eos_token_id": config.eos_token_ids or None,
        "seed": arguments.seed,
        "greedy": arguments.greedy,
    }
    if not arguments.greedy:
        options |= {
            name: config.generation[name] for name in SAMPLING if config.generation.get(name) is not None
        }
    options |= {name: getattr(arguments, name) for name in SAMPLING if getattr(arguments, name) is not None}
    for name, value in config.generation.items():
        if name not in NEUTRAL and value is not None:
            _say(f"note: generation_config.json asks for {name} = {value!r}, which is not applied")
    return options


def _write(text):
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _say(line):
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
