"""``mojolearn verify``: whether this machine gives the bits that every other gives."""

import argparse
import json

from mojolearn.cli import options
from mojolearn.cli.process import FAILED, write
from mojolearn.models.verification import KNOWN, verify


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn verify",
        description="Compute the same logits with one thread and several, rows alone and together, at once, in chunks "
        "and token by token, with weights stored in other formats; compare every bit, and print one hash. It is the "
        "same on every machine; that of the built-in model is known.",
    )
    parser.add_argument("path", nargs="?", help="a checkpoint (default: the small model inside this package)")
    parser.add_argument("--expect", metavar="HASH", help="fail unless the hash is this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(model=None, weight_format=None)
    return parser


def run(arguments):
    """Compare, line by line; the exit status is 1 where something differs."""
    arguments.model = arguments.path
    options.check(arguments)
    wanted = arguments.expect or (KNOWN if arguments.path is None else None)
    lm = options.load(arguments)
    wide = None
    if lm.weight_format != "float32":
        arguments.weight_format = "float32"
        wide = options.load(arguments)
    show = (lambda text: None) if arguments.json else write
    checks, digest = {}, None
    for name, answer in verify(lm, wide):
        if name == "hash":
            digest = answer
        else:
            checks[name] = answer
            show(f"{'same' if answer else 'DIFFERENT':10} {name}\n")
    fits = wanted is None or digest == wanted
    good = fits and all(checks.values())
    if arguments.json:
        write(json.dumps({"hash": digest, "expected": wanted, "checks": checks, "good": good}) + "\n")
    else:
        known = "" if wanted is None else ", as expected" if fits else f", but {wanted} was expected"
        write(f"hash {digest}{known}\n")
    return 0 if good else FAILED
