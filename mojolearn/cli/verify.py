"""``mojolearn verify``: whether this machine gives the bits that every other gives."""

import argparse
import contextlib
import itertools
import json
import os
import re
from pathlib import Path

from mojolearn import _jit
from mojolearn._version import NUMERICS_VERSION
from mojolearn.cli import options
from mojolearn.cli.elsewhere import Elsewhere, chosen
from mojolearn.cli.process import UsageError, nothing_to_tidy, write
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.verification import KNOWN, Verdict, verify
from mojolearn.models.ways import WAYS
from mojolearn.options import WEIGHT_FORMATS
from mojolearn.scalars import counted


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn verify",
        description="Compute the same logits with one thread and several, rows alone and together, at once, in chunks "
        "and token by token, with weights stored in other formats, and compiled for other processors; compare every "
        "bit, and print one hash. It is the same on every machine; that of the built-in model is known.",
    )
    parser.add_argument("path", nargs="?", help="a checkpoint (default: the small model inside this package)")
    parser.add_argument("--expect", metavar="HASH", help="fail unless the hash is this one (64 digits)")
    parser.add_argument("--full", action="store_true", help="the same as --ways all --targets all")
    parser.add_argument("--ways", choices=WAYS, help="how threads, storage, batches and cuts are crossed: not at all, "
                        "every two values (default), or all with all")  # fmt: skip
    parser.add_argument("--targets", metavar="NAMES", help="processors to compile for, each in a process of its "
                        "own, with commas between them; or all, or none (default: one without fused "
                        "multiply-add)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(model=None, weight_format=None)
    return parser


def run(arguments):
    """Compare, group by group; the exit status is 1 where something differs."""
    arguments.model = arguments.path
    options.check(arguments)
    if arguments.full and (arguments.ways or arguments.targets):
        raise UsageError("--full says --ways and --targets already; leave out one or the other")
    if arguments.expect is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", arguments.expect):
        raise UsageError(f"--expect must be 64 hexadecimal digits, not {arguments.expect!r}")
    ways = "all" if arguments.full else arguments.ways or "pairs"
    names = chosen("all" if arguments.full else arguments.targets)
    wanted = arguments.expect.lower() if arguments.expect else KNOWN if _is_built_in(arguments.path) else None
    given = [] if arguments.path is None else [arguments.path]
    there = [*given, "--ways", "pairs" if ways == "all" else "first"]
    with Elsewhere(names, there, max(1, (os.cpu_count() or 1) - 1)) as processes:
        report = _here(arguments, ways)
        report["expected"] = wanted
        _elsewhere(arguments, processes, report)
    problem = _problem(report)
    report["good"] = problem is None
    if arguments.json:
        write(json.dumps(report) + "\n")
    else:
        known = (
            ""
            if wanted is None
            else ", as expected"
            if report["hash"] == wanted
            else f", but {wanted} was expected"
        )
        write(f"hash {report['hash']}{known}\n")
    if problem is not None:
        raise ValueError(problem)
    return 0


def _is_built_in(path):
    return path is None or Path(os.path.realpath(path)) == Path(os.path.realpath(BUILT_IN))


def _here(arguments, ways):
    """All checks in this process: the beginning of the report."""
    if ways == "first":  # a part of the kernels will do
        with nothing_to_tidy():
            lm = CausalLM.load(options.path_of(arguments))
    else:
        lm = options.load(arguments)
    others = []
    for name in WEIGHT_FORMATS if ways != "first" else ():
        if name != lm.weight_format:
            with contextlib.suppress(ValueError):  # a format that cannot hold the weights
                others.append(CausalLM.load(options.path_of(arguments), weight_format=name))
    report = {
        "numerics": NUMERICS_VERSION,
        "processor": f"{_jit.CPU_NAME}, {_jit.LANES} lanes",
        "ways": {},
        "differences": [],
        "targets": {},
    }
    checks = verify(lm, others, ways)
    for group, members in itertools.groupby(checks, lambda check: getattr(check, "name", ())[:2]):
        count, wrong = 0, 0
        for check in members:
            if isinstance(check, Verdict):
                report["hash"] = check.hash
                continue
            count += 1
            name = ", ".join(check.name)
            report["ways"][name] = check.difference is None
            if check.difference is not None:
                wrong += 1
                report["differences"].append(f"{name}: {check.difference}")
                _show(arguments, "DIFFERENT", report["differences"][-1])
        if count > wrong:
            _show(arguments, "same", f"{', '.join(group)}: {counted(count - wrong, 'way')} to compute")
    return report


def _elsewhere(arguments, processes, report):
    """Add what other targets say to the report."""
    for name, digest, problem in processes.answers():
        if problem is None and digest != report["hash"]:
            problem = f"the hash is {digest} instead of {report['hash']}"
        report["targets"][name] = {"hash": digest, "good": problem is None}
        if problem is None:
            _show(arguments, "same", f"target {name}")
        else:
            report["differences"].append(f"target {name}: {problem}")
            _show(arguments, "DIFFERENT", report["differences"][-1])


def _problem(report):
    """The sentence for the last line, or None."""
    differences = report["differences"]
    if differences:
        total = len(report["ways"]) + len(report["targets"])
        return f"{len(differences)} of {counted(total, 'way')} to compute differ from the first; {differences[0]}"
    wanted = report["expected"]
    if wanted not in (None, report["hash"]):
        return (
            f"all ways to compute agree here, but on another hash than was expected: this is another model or another "
            f"version of the numerics ({NUMERICS_VERSION} here), or this machine differs from the others"
        )
    return None


def _show(arguments, word, what):
    if not arguments.json:
        write(f"{word:10} {what}\n")
