"""The hash of ``mojolearn verify`` as other processors would give it, each in a process of its own.

Numba compiles for the processor that is named to it, whatever the real one is, as long as that one can run the code.
"""

import json
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite.binding as llvm

import mojolearn
from mojolearn.cli.process import UsageError
from mojolearn.scalars import some
from mojolearn.threads import NUM_THREADS

V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

# Name, what a processor must have to run its code, and whether it is tried unless all are asked for. x86-64-v1 to v4
# in words of LLVM: without and with fused multiply-add, 8 and 16 lanes.
X86 = [
    ("generic", (), False),
    ("nehalem", ("sse4.2", "popcnt"), True),
    ("haswell", V3, False),
    ("skylake-avx512", V4, False),
]
ARM = [("generic", ("neon",), True), ("cortex-a76", ("neon", "dotprod", "fullfp16", "lse"), False)]
THREADS = f"{NUM_THREADS + 1} threads, workqueue"


def targets():
    """Find the processors that code can be compiled for and run here.

    Returns
    -------
    dict of str to tuple of dict and bool
        For each name what the environment of a process must set, and whether the name is tried by default. One is no
        processor: a thread more than there are processors, on another threading layer.
    """
    machine = platform.machine().lower()
    table = X86 if machine in ("x86_64", "amd64") else ARM if machine in ("arm64", "aarch64") else []
    host = llvm.get_host_cpu_features()
    found = {}
    for name, needs, usual in table:
        if all(host.get(feature) for feature in needs):
            features = ",".join(f"+{feature}" for feature in needs)
            found[name] = ({"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}, usual)
    layer = {"NUMBA_NUM_THREADS": str(NUM_THREADS + 1), "NUMBA_THREADING_LAYER": "workqueue"}
    return found | {THREADS: (layer, False)}


def chosen(named):
    """Turn the value of ``--targets`` into names.

    Parameters
    ----------
    named : str or None
        "all", "none", names with commas between them, or None for the usual ones.

    Returns
    -------
    list of str
        Keys of `targets`.
    """
    known = targets()
    if named in (None, "all"):
        return [name for name, (_, usual) in known.items() if usual or named]
    names = [] if named == "none" else [name.strip() for name in named.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--targets must be all, none or of {some(list(known))}, which can run here, but it has {name!r}"
            )
    return names


class Elsewhere:
    """`mojolearn verify` for other targets, in the background until the ``with`` statement ends.

    Parameters
    ----------
    names : list of str
        Of `targets`.
    arguments : list of str
        Those of the command.
    at_once : int
        How many processes.
    """

    def __init__(self, names, arguments, at_once):
        if names and not sys.executable:
            raise ValueError(
                "other targets need processes of their own, and this Python does not know its program"
            )
        self._arguments = arguments
        self._processes, self._lock, self._over = [], threading.Lock(), False
        self._pool = ThreadPoolExecutor(at_once)
        self._answers = {name: self._pool.submit(self._answer, name) for name in names}

    def answers(self):
        """Wait for the answers, one after the other.

        Yields
        ------
        tuple of str, str or None, and str or None
            The target, the hash, and what went wrong in a sentence.
        """
        for name, future in self._answers.items():
            yield name, *future.result()

    def _start(self, name):
        settings, _ = targets()[name]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_CPU", "NUMBA_THREADING"))}
        here = str(Path(mojolearn.__file__).parent.parent)
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._lock:
            if self._over:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "mojolearn", "verify", *self._arguments, "--targets", "none", "--json"],
                env=kept | {"PYTHONPATH": os.pathsep.join(paths)} | settings,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            )  # fmt: skip
            self._processes.append(process)
            return process

    def _answer(self, name):
        process = self._start(name)
        if process is None:
            return None, "the process was not started"
        with process:
            out, error = process.communicate()
        try:
            found = json.loads(out)
            return found["hash"], next(iter(found["differences"]), None)
        except (ValueError, LookupError, TypeError):
            code, last = process.returncode, (error.strip().splitlines() or ["it said nothing"])[-1]
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}: {last}"
            return None, f"the process {how}"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with self._lock:
            self._over = True
            for process in self._processes:
                if process.poll() is None:
                    process.kill()
        self._pool.shutdown(cancel_futures=True)
