"""Faults of Numba and of libraries on it that users reported, tried on this one (docs/trust.md, group H)."""

import ast
import io
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forms import FORMS
from numba.core import event
from numba.core.dispatcher import Dispatcher
from support import bits, make_block, make_weights, uniform
from toy_models import write_model

import mojolearn
from mojolearn import CausalLM, TransformerBlock, threads

PACKAGE = Path(mojolearn.__file__).parent
SHAPE = {"n_heads": 4, "n_kv_heads": 2}


def script(source, path=None, **environment):
    """Run Python source in a process; what it printed, and what came on stderr. None removes a variable."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *sys.path] if path else sys.path)}
    variables = {k: v for k, v in (variables | environment).items() if v is not None}
    done = subprocess.run([sys.executable, "-P", "-c", source], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


# --- where compiled kernels are kept -----------------------------------------------------------------------

NORM = """
import numpy as np
import mojolearn
from mojolearn import _jit
from mojolearn.layers import Norm
print(mojolearn.__file__)
print(_jit.CACHE_FOLDER)
print(Norm("rmsnorm", np.ones(2, np.float32))(np.array([[3, 4]], np.float32)).tolist())
"""
RESULT = "[[0.8485280871391296, 1.1313707828521729]]"


def copy_of_the_package(folder):
    shutil.copytree(PACKAGE, folder / "mojolearn", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.long
def test_an_edit_in_another_file_is_seen(tmp_path):
    """A kernel is compiled anew when something that it takes from another file has changed."""
    home = copy_of_the_package(tmp_path / "home")
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for _ in range(2):
        first = script(NORM, home, **cache)[0].splitlines()
    assert first[0].startswith(str(home))
    assert first[2] == RESULT
    other = home / "mojolearn" / "kernels" / "vmath.py"
    source, one = other.read_text("utf-8"), "np.float32(0.5), np.float32(1), np.float32(2)"
    assert source.count(one) == 1
    other.write_text(source.replace(one, one.replace("(1)", "(2)")), "utf-8")  # the numerator of the norm
    second = script(NORM, home, **cache)[0].splitlines()
    assert second[1] != first[1]
    assert second[2] == str([[2 * x for x in row] for row in ast.literal_eval(RESULT)])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["archive", "bytecode"])
def test_a_package_without_sources_in_a_folder(tmp_path, kind):
    """Imported from an archive, or with its bytecode alone: kernels are compiled and kept all the same."""
    home = copy_of_the_package(tmp_path / "home")
    if kind == "archive":
        home = shutil.make_archive(tmp_path / "package", "zip", home)
    else:
        subprocess.run([sys.executable, "-m", "compileall", "-q", "-b", home], check=True)
        for path in home.rglob("*.py"):
            path.unlink()
    for _ in range(2):
        file, folder, result = script(NORM, home, NUMBA_CACHE_DIR=str(tmp_path / "cache"))[0].splitlines()
        assert file.startswith(str(home))
        assert result == RESULT
    assert len(list(Path(folder).glob("*.nbi"))) == 1


@pytest.mark.long
def test_no_place_of_its_own(tmp_path):
    """Without a home that can be written the package works, says so once, and leaves the folder it lies in alone."""
    home = copy_of_the_package(tmp_path / "home")
    before = sorted(home.rglob("*"))
    no_place = {"HOME": "/dev/null", "NUMBA_CACHE_DIR": None, "XDG_CACHE_HOME": None}
    printed, warning = script(NORM, home, PYTHONDONTWRITEBYTECODE="1", **no_place)
    file, _, result = printed.splitlines()
    assert file.startswith(str(home))
    assert result == RESULT
    assert warning.count("RuntimeWarning") == 1
    assert "/dev/null/.cache" in warning
    assert sorted(home.rglob("*")) == before


# --- threads -----------------------------------------------------------------------------------------------

AFTER_THE_IMPORT = """
import os
import mojolearn
from mojolearn import threads  # and Numba with it
os.environ["NUMBA_NUM_THREADS"] = os.environ["LATER"]
import numpy as np
from support import make_block, uniform
threads.SMALL = 0
block = make_block()
block.step(uniform(np.random.default_rng(0), (1, 32)), block.allocate_state(1, 3))
print(mojolearn.get_num_threads())
for more in (3, 8):
    try:
        mojolearn.set_num_threads(more)
    except ValueError as error:
        print("ceiling" in str(error))
mojolearn.set_num_threads(1)
block(uniform(np.random.default_rng(0), (1, 3, 32)))
"""


@pytest.mark.long
@pytest.mark.parametrize("cache", ["0", "1"])
@pytest.mark.parametrize("later", ["1", "8"])
def test_number_of_threads_in_the_environment_after_the_import(later, cache):
    """Too late to count, with stored kernels and without; and no harm."""
    printed, warning = script(AFTER_THE_IMPORT, NUMBA_NUM_THREADS="2", LATER=later, MOJOLEARN_CACHE=cache)
    assert printed.split() == ["2", "True", "True"]
    assert warning == ""


AFTER_THE_FIRST_CALL = """
import os
import numpy as np
from support import make_block, uniform
import mojolearn
from mojolearn import threads
threads.SMALL = 0
block = make_block()
state = block.allocate_state(1, 4)
x = uniform(np.random.default_rng(0), (1, 3, 32))
block.forward(x, state)
before = state.copy()
os.environ["NUMBA_NUM_THREADS"] = "1"
try:
    block.step(x[:, 0], state)
except RuntimeError as error:
    print(error)
print(state == before)
os.environ["NUMBA_NUM_THREADS"] = "2"
mojolearn.set_num_threads(1)
block.step(x[:, 0], state)
print(state.cached_tokens)
"""


@pytest.mark.long
def test_number_of_threads_in_the_environment_after_the_first_call():
    """Numba then compiles nothing more: the call says what to do, and nothing is lost."""
    printed, _ = script(AFTER_THE_FIRST_CALL, NUMBA_NUM_THREADS="2", MOJOLEARN_CACHE="0")
    message, same, held = printed.splitlines()
    assert message.startswith("NUMBA_NUM_THREADS was 2 when the threads started and is 1 now")
    assert "mojolearn.set_num_threads" in message
    assert (same, held) == ("True", "4")


def test_nothing_in_the_package_sets_the_environment():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                assert ast.unparse(node.value) != "os.environ", f"{path} line {node.lineno}"
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in (
                    "os.putenv",
                    "os.environ.update",
                    "os.environ.setdefault",
                )


@pytest.mark.long
def test_the_number_of_threads_where_there_can_be_one_only():
    """A layer that is not installed, and a forked child: 1, as calls have it."""
    ask = "import mojolearn; print(mojolearn.get_num_threads())"
    assert script(ask, NUMBA_NUM_THREADS="2", NUMBA_THREADING_LAYER="tbb")[0] == "1"
    fork = """
import os
import mojolearn
print(mojolearn.get_num_threads(), flush=True)
child = os.fork()
if child == 0:
    print(mojolearn.get_num_threads(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert script(fork, NUMBA_NUM_THREADS="2")[0].split() == ["2", "1"]


@pytest.mark.long
def test_a_tokenizer_before_and_after_a_fork():
    """It may have threads of its own: the child answers the same, and nothing is said."""
    source = """
import os
from mojolearn import Tokenizer
from mojolearn.models import BUILT_IN
tokenizer = Tokenizer.load(BUILT_IN)
wanted = tokenizer.encode("Emma was handsome, clever and rich" * 50)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode("Emma was handsome, clever and rich" * 50) == wanted else 1)
print(os.waitpid(child, 0)[1], tokenizer.encode("Emma was handsome, clever and rich" * 50) == wanted)
"""
    assert script(source, TOKENIZERS_PARALLELISM=None) == ("0 True", "")


# --- what is compiled --------------------------------------------------------------------------------------


def parallel_kernels():
    """Syntax trees of all kernels that are compiled with parallel=True."""
    found = []
    for path in sorted((PACKAGE / "kernels").glob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                if any("parallel=True" in ast.unparse(decorator) for decorator in node.decorator_list):
                    found.append(node)
    return found


@pytest.mark.parametrize("function", parallel_kernels(), ids=lambda function: function.name)
def test_a_parallel_loop_is_one_call(function):
    """One ``prange`` over the workers, and in it one call with the worker's number: nothing that the compiler may fuse,
    share, reduce or hoist. Numba runs code in parallel that it finds alike, so there is no array expression either."""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    assert [ast.unparse(loop.iter) for loop in loops] == ["prange(n_workers)"]
    (statement,) = loops[0].body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    assert ast.unparse(statement.value.func).endswith("_share")
    assert ast.unparse(statement.value.args[0]) == "np.int64(index)"
    assert not [node for node in ast.walk(function) if isinstance(node, ast.AugAssign)]
    calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    assert {name for name in calls if name.startswith("np.")} == {"np.int64"}


def test_every_parallel_kernel_is_found():
    assert len(parallel_kernels()) > 9


def signatures():
    """How many versions of each kernel there are."""
    modules = [module for name, module in sys.modules.items() if name.startswith("mojolearn.")]
    kernels = {id(k): k for module in modules for k in vars(module).values() if isinstance(k, Dispatcher)}
    return {f"{k.__module__}.{k.__name__}": len(k.signatures) for k in kernels.values()}


@pytest.mark.parametrize("small", [threads.SMALL, 0])
def test_no_form_of_an_array_is_compiled_for(rng, tmp_path, monkeypatch, small):
    """Inputs, weights and caches in every form of memory: the versions that ordinary arrays have, and no more."""
    monkeypatch.setattr(threads, "SMALL", small)
    weights = make_weights(32, 48, **SHAPE)
    x = uniform(rng, (2, 5, 32))

    def run(weights, form, state=None):
        block = TransformerBlock(weights, **SHAPE)
        state = block.allocate_state(2, 5) if state is None else state
        y = [block.forward(form(x[:, :3]), state), block.step(form(x[:, 3]), state)]
        with block.decode_session(state) as session:
            y.append(session.step(form(x[:, 4:])))
        block.forward(form(x), lengths=[2, 5])
        return bits(np.concatenate(y, axis=1))

    wanted = run(weights, FORMS["C"])
    before = signatures()
    assert before
    for name, form in FORMS.items():
        np.testing.assert_array_equal(run(weights, form), wanted, err_msg=name)
        given = {key: form(w) for key, w in weights.items()}
        np.testing.assert_array_equal(run(given, FORMS["C"]), wanted, err_msg=name)
    np.savez(tmp_path / "weights.npz", **weights)
    for key, w in weights.items():
        w.tofile(tmp_path / key)
    mapped = {key: np.memmap(tmp_path / key, np.float32, "r", shape=w.shape) for key, w in weights.items()}
    np.testing.assert_array_equal(run(mapped, FORMS["C"]), wanted)
    k, v = (np.memmap(tmp_path / name, np.float32, "w+", shape=2 * 2 * 5 * 8) for name in "kv")
    state = mojolearn.TransformerState(2, 2, 8, 5, k, v)
    np.testing.assert_array_equal(run(weights, FORMS["C"], state), wanted)
    assert signatures() == before


def test_more_layers_are_nothing_more_to_compile(tmp_path):
    """Every layer runs the same kernels: after a model of one layer, one of 32 compiles nothing."""

    def run(n_layers):
        lm = CausalLM.load(write_model(tmp_path / str(n_layers), num_hidden_layers=n_layers))
        state = lm.allocate_state(2, 9)
        lm.forward([[1, 2, 3], [4, 5, 6]], state)
        lm.step([7, 8], state)
        lm.score([[1, 2, 3]])
        return lm.generate([[1, 2], [3, 4]], 3)

    run(1)
    with event.install_recorder("numba:compile") as recorder:
        assert run(32).shape == (2, 5)
    assert recorder.buffer == []


@pytest.mark.parametrize("what", ["block", "state", "model", "model state"])
def test_a_pickle_holds_arrays_and_options(tmp_path, what):
    """No compiled function is in it, which another version of Numba could not read or would compile again."""
    lm = CausalLM.load(write_model(tmp_path))
    block = make_block()
    thing = {
        "block": block,
        "state": block.allocate_state(1, 3),
        "model": lm,
        "model state": lm.allocate_state(1, 3),
    }[what]
    modules = set()

    class Watched(pickle.Unpickler):
        def find_class(self, module, name):
            modules.add(module)
            return super().find_class(module, name)

    Watched(io.BytesIO(pickle.dumps(thing))).load()
    assert {module.split(".")[0] for module in modules} <= {
        "mojolearn",
        "numpy",
        "builtins",
        "copyreg",
        "pathlib",
    }
    assert not {module for module in modules if module.startswith(("mojolearn._", "mojolearn.kernels"))}
