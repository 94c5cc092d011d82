"""``mojolearn verify``: what is crossed with what, the hash, other targets, and how a difference is said."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_models import write_model

import mojolearn.models.decode
from mojolearn.__main__ import main
from mojolearn.cli import elsewhere
from mojolearn.cli import options as cli_options
from mojolearn.models import BUILT_IN, verification, ways
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.verification import KNOWN, Verdict, verify

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command in this process, without other targets: exit status, stdout, stderr."""
    monkeypatch.setattr(cli_options, "cache_is_cold", lambda: False)

    def call(*arguments):
        status = main(["verify", *map(str, arguments), "--targets", "none"])
        return status, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def lm():
    return CausalLM.load(BUILT_IN)


def test_built_in_model(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    *lines, last = out.splitlines()
    assert all(line.startswith("same ") for line in lines)
    for word in ("float16", "float32", "serial kernels", "1 thread"):
        assert any(word in line for line in lines)
    assert last == f"hash {KNOWN}, as expected"


def test_every_two_values_meet(run):
    """Of storage, threads, batches and cuts: in the report, each pair of values stands in one way at the least."""
    report = json.loads(run("--json")[1])
    assert report["good"]
    assert all(report["ways"].values())
    crossed = [
        name.replace(", without a", " without a") for name in report["ways"] if "tokens of" not in name
    ]
    axes = [["float16", "float32"], [*ways.threads_axis()], [*ways.batches_axis(3)], [*ways.cuts_axis(20)]]
    for one, other in itertools.combinations(axes, 2):
        for pair in itertools.product(one, other):
            wanted = [value.replace(", without a", " without a") for value in pair]
            assert any(all(value in name for value in wanted) for name in crossed), pair
    assert len(axes[1]) >= 2
    assert len(crossed) < 80


@pytest.mark.long
def test_all_ways(lm):
    *checks, verdict = verify(lm, [CausalLM.load(BUILT_IN, weight_format="float32")], "all")
    assert verdict == Verdict(KNOWN)
    assert not [check for check in checks if check.difference]
    names = {check.name for check in checks}
    assert len(names) == len(checks) > 500
    assert {
        ("float32", "serial kernels", "rows together", f"{at} and {20 - at}") for at in range(1, 20)
    } <= names


@pytest.mark.parametrize("how", ["first", "pairs", "all"])
def test_cross(how):
    axes = [range(2), range(4), range(5), range(3)]
    chosen = ways.cross(axes, how)
    assert len(set(chosen)) == len(chosen) == {"first": 1, "pairs": len(chosen), "all": 120}[how]
    assert chosen == sorted(chosen) == ways.cross(axes, how)
    if how == "pairs":
        assert 20 <= len(chosen) < 40
        for a, b in itertools.combinations(range(4), 2):
            assert {(c[a], c[b]) for c in chosen} == set(itertools.product(axes[a], axes[b]))


def test_batches_hold_every_row():
    for rows in (1, 2, 3):
        for name, calls in ways.batches_axis(rows).items():
            assert {row for call in calls for row in call} == set(range(rows)), name


def test_another_model(run, tmp_path):
    folder = write_model(tmp_path, model_type="mistral", sliding_window=4)
    status, out, _ = run(folder, "--json")
    answer = json.loads(out)
    assert (status, answer["good"], answer["expected"]) == (0, True, None)
    assert run(folder, "--expect", answer["hash"].upper())[0] == 0
    status, out, err = run(folder, "--expect", "0" * 64)
    assert status == 1
    assert out.endswith(f"hash {answer['hash']}, but {'0' * 64} was expected\n")
    assert "another model or another version of the numerics (fp32.v1 here)" in err
    assert err.count("\n") == 1


def test_a_model_of_few_positions(run, tmp_path):
    folder = write_model(tmp_path, max_position_embeddings=8)
    assert run(folder)[0] == 0


def test_the_built_in_model_is_known_by_its_place(run, tmp_path):
    (tmp_path / "link").symlink_to(BUILT_IN)
    assert run(tmp_path / "link", "--ways", "first")[1].endswith(f"hash {KNOWN}, as expected\n")


@pytest.mark.parametrize("way", ["forward", "step", "session", "generate", "resume", "copy"])
def test_a_difference_is_found(run, monkeypatch, way):
    """Whichever way goes wrong, from its fourth call on, by one unit in the last place: status 1, and a sentence."""
    place = {
        "session": mojolearn.models.decode.CausalLMDecodeSession,
        "copy": mojolearn.models.model_state.CausalLMState,
    }.get(way, CausalLM)
    name = {"session": "step"}.get(way, way)
    right, calls = getattr(place, name), []

    def wrong(self, *arguments, **named):
        answer = right(self, *arguments, **named)
        calls.append(way)
        if way == "resume":
            list(answer)
            answer._new[0, -1] += 1
        elif way == "copy":
            answer.blocks[0].k_cache.view(np.uint32)[3] ^= 1 << 20
        elif way == "generate" and len(calls) > 3:
            answer[0][-1] += 1
        elif len(calls) > 3:
            answer.reshape(-1).view(np.uint32)[-1] ^= 1
        return answer

    monkeypatch.setattr(place, name, wrong)
    status, out, err = run()
    assert status == 1
    assert "\nDIFFERENT " in "\n" + out
    assert err.count("\n") == 1
    assert " ways to compute differ from the first; float16, " in err
    assert (" instead of " in err) and ("row " in err)


def test_difference_says_where():
    wanted = np.float32([[1, 2], [3, 4]])
    got = wanted.copy()
    got.view(np.uint32)[1, 0] += 1
    assert verification.difference(got, wanted, "row 2, ") == (
        "row 2, token 1, logit 0: 0x40400001 (3.000000238418579) instead of 0x40400000 (3.0)"
    )
    assert "shape is (1, 2) instead of (2, 2)" in verification.difference(got[:1], wanted)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--targets", "z80"], "--targets must be all, none or of "),
        (["--full", "--ways", "first"], "--full says --ways and --targets already"),
        (["--expect", "12"], "--expect must be 64 hexadecimal digits, not '12'"),
    ],
)
def test_wrong_arguments(capsys, arguments, words):
    assert main(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.long
def test_other_targets():
    """All that can run here, and one thread more than there are processors: the known hash from each."""
    done = subprocess.run(
        [sys.executable, "-m", "mojolearn", "verify", "--ways", "first", "--targets", "all", "--json"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["targets"]
    assert set(found) == set(elsewhere.targets()) and len(found) >= 2
    assert {target["hash"] for target in found.values()} == {KNOWN}


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "was ended by signal 4"),
        ("import sys; sys.exit('no such thing')", "ended with status 1: no such thing"),
        ("print('{}')", "ended with status 0: it said nothing"),
        ('print(\'{"hash": "12", "differences": []}\')', "the hash is 12 instead of"),
        ('print(\'{"hash": "12", "differences": ["row 3"]}\')', "row 3"),
    ],
)
def test_a_target_that_fails(capsys, monkeypatch, tmp_path, program, what):
    """A process that crashes, says nothing, or gives another hash: named, and the status is 1."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'program.py'}\n")
    python.chmod(0o755)
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(elsewhere.sys, "executable", str(python))
    name = next(iter(elsewhere.targets()))
    assert main(["verify", "--ways", "first", "--targets", name]) == 1
    captured = capsys.readouterr()
    assert f"DIFFERENT  target {name}: " in captured.out
    assert f"1 of 4 ways to compute differ from the first; target {name}: " in captured.err
    assert what in captured.err


def test_processes_end_with_the_command(monkeypatch, tmp_path):
    """Where it fails meanwhile, no process is left, and none is started any more."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    monkeypatch.setattr(elsewhere.sys, "executable", str(python))
    names = list(elsewhere.targets())[:2]
    with elsewhere.Elsewhere(names, [], 1) as processes:
        while not processes._processes:
            pass
    (process,) = processes._processes
    assert process.returncode == -9
