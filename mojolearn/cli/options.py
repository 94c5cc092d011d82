"""Arguments that several commands share: the model, how tokens are chosen, threads, text from standard input."""

import sys

import numba

from mojolearn._jit import cache_is_cold
from mojolearn.cli.process import UsageError, nothing_to_tidy, say
from mojolearn.machine import warmup
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.scalars import admit_positive, brief, named
from mojolearn.threads import NUM_THREADS

# Options with numbers: what is allowed, and how to say so.
NUMBERS = {
    "max_new_tokens": (lambda n: n >= 0, "at least 0"),
    "temperature": (lambda t: t == 0 or 1.4e-45 <= t <= 3.4e38, "0 or more, and within float32"),
    "top_k": (lambda k: 0 <= k < 2**63, "at least 0"),
    "top_p": (lambda p: 0 < p <= 1, "above 0 and at most 1"),
    "min_p": (lambda p: 0 <= p <= 1, "from 0 to 1"),
    "repetition_penalty": (lambda r: 1.4e-45 <= r <= 3.4e38, "above 0 and within float32"),
    "seed": (lambda n: 0 <= n < 2**64, "from 0 to 2**64 - 1"),
    "logprobs": (lambda n: n >= 0, "at least 0"),
    "threads": (
        lambda n: 1 <= n <= NUM_THREADS,
        f"from 1 to {NUM_THREADS} on this machine",
    ),
}
SAMPLING = ("temperature", "top_k", "top_p", "min_p")

# Fields of generation_config.json that change nothing here, or that are applied.
NEUTRAL = {
    *SAMPLING,
    *("_from_model_config", "bos_token_id", "cache_implementation", "do_sample", "max_length"),
    *("max_new_tokens", "pad_token_id", "repetition_penalty", "transformers_version", "use_cache"),
}


def add_model(parser):
    """Add the options about the model."""
    add = parser.add_argument
    add("--model", metavar="PATH", help="a checkpoint (default: the small model inside this package)")
    add("--weight-format", choices=("float32", "bfloat16", "float16"), help="default: as stored")
    add("--threads", type=int, metavar="N", help="how many threads; results do not depend on it")


def add_choice(parser):
    """Add the options about how tokens are chosen."""
    add = parser.add_argument
    add("--greedy", action="store_true", help="take the best token every time")
    add("--temperature", type=float, metavar="T",
        help="below 1 keeps to likely tokens, above 1 strays, 0 is greedy")  # fmt: skip
    add("--top-k", type=int, metavar="K", help="draw from the K best tokens; 0 = all")
    add("--top-p", type=float, metavar="P", help="draw from the best tokens that make up this share")
    add("--min-p", type=float, metavar="P", help="draw from tokens with this share of the best one's weight")
    add("--repetition-penalty", type=float, metavar="R", help="above 1 weakens tokens that were there before")
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be given several times")
    add("--seed", type=int, metavar="N", help="the same seed gives the same text, on every machine")


def check(arguments):
    """Judge the options by themselves, in the words of the command line; sets the number of threads."""
    given = {name: getattr(arguments, name, None) for name in NUMBERS}
    greedy = "--greedy" if getattr(arguments, "greedy", False) else None
    if given["temperature"] == 0:  # another way to say so
        greedy, given["temperature"] = greedy or "--temperature 0", None
        arguments.greedy, arguments.temperature = True, None
    if arguments.model == "":
        raise UsageError("--model must name a checkpoint, but it is empty")
    for name, (allowed, wanted) in NUMBERS.items():
        value = given[name]
        if value is not None and not allowed(value):
            raise UsageError(f"{flag(name)} must be {wanted}, not {value}")
        if greedy and value is not None and name in (*SAMPLING, "seed"):
            raise UsageError(f"{flag(name)} has no effect with {greedy}; leave out one of the two")
    if "" in (getattr(arguments, "stop", None) or []):
        raise UsageError("--stop must name a text, but it is empty")
    if given["threads"] is not None:
        numba.set_num_threads(given["threads"])


def flag(name):
    """Return how an option is written."""
    return "--" + name.replace("_", "-")


def path_of(arguments):
    """Return the checkpoint that is meant."""
    return BUILT_IN if arguments.model is None else arguments.model


def read_text(given, what):
    """Return a text given on the command line; that of ``-`` is in the standard input, less one line break at its end.

    Parameters
    ----------
    given : str
        The argument.
    what : str
        What it is, for messages.

    Returns
    -------
    str
        The text.
    """
    try:
        if given == "-":
            if sys.stdin is None:
                raise UsageError(f"{what} is to come from the standard input, which is closed")
            given = sys.stdin.read().removesuffix("\n")
        given.encode()
    except UnicodeError:
        encoding = sys.getfilesystemencoding()
        raise UsageError(f"{what} must be text, but it holds bytes that are not {encoding.upper()}") from None
    return given


def load(arguments):
    """Load the model and have its kernels ready; says so if that takes long."""
    with nothing_to_tidy():
        lm = CausalLM.load(path_of(arguments), weight_format=arguments.weight_format)
        if cache_is_cold():
            say("compiling kernels for this machine, once ...")
        warmup(lm.weight_format)
    return lm


def how_to_choose(arguments, config):
    """Turn arguments into options of `CausalLM.stream`; what is not given, the model's generation_config.json decides.

    Parameters
    ----------
    arguments : argparse.Namespace
        With the options of `add_choice`.
    config : ModelConfig
        That of the model.

    Returns
    -------
    dict
        The options.
    """
    given = {name: getattr(arguments, name) for name in (*SAMPLING, "seed")}
    given = {name: value for name, value in given.items() if value is not None}
    asked = {name: value for name, value in config.generation.items() if value is not None}
    for name, value in asked.items():
        if name not in NEUTRAL:
            say(f"note: generation_config.json asks for {named(name)} = {brief(value)}, which is not applied")
    options = {"stop": arguments.stop, "repetition_penalty": arguments.repetition_penalty}
    if arguments.repetition_penalty is None and "repetition_penalty" in asked:
        options["repetition_penalty"] = admit_positive(
            asked["repetition_penalty"], "repetition_penalty", "generation_config.json"
        )
    options = {name: value for name, value in options.items() if value is not None}
    if arguments.greedy or (asked.get("do_sample") is False and not given):
        return options | {"greedy": True}
    return options | {"greedy": False} | {name: asked[name] for name in SAMPLING if name in asked} | given


def describe_choice(stream):
    """Say how a stream chose its tokens: enough to have them again."""
    return "greedy" if stream.seed is None else f"seed {stream.seed}"
