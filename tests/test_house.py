"""The rules of the house, checked on the syntax trees: who may import whom, and what nobody writes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mojolearn"
FILES = {  # "block", "kernels.linear", "models" for models/__init__.py
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text("utf-8"), str(path)) for name, path in FILES.items()}
KERNELS = [name for name in FILES if name.startswith("kernels.")]
MODELS = [name for name in FILES if name == "models" or name.startswith("models.")]
CLI = [name for name in FILES if name in ("__main__", "cli") or name.startswith("cli.")]
INTEGRATIONS = [name for name in FILES if name.partition(".")[0] == "integrations"]
OUTSIDE_MODELS = [name for name in FILES if name not in (*MODELS, *CLI, *INTEGRATIONS, "__init__")]

# These run, and can be read, without Numba.
NO_NUMBA = [
    "options",
    "rules",
    "tensors",
    "weights",
    "buffers",
    "rope",
    "rope_scaling",
    "float32",
    "reference",
]
NO_NUMBA += ["models.config", "models.checkpoint", "models.tokenizer", "models.sampling", "models.logits"]
NO_NUMBA += ["models.chat_template", "models.sandbox", "cli.commands", "cli.process"]
NO_NUMBA += ["models.gguf", "models.gguf_tokenizer"]
NO_NUMBA += ["archive", "npz", "safetensors_file", "strict_json", "files", "fingerprint"]

# What only models/ may know: model types, and names of checkpoint tensors and settings ("llama3" is a RoPE scaling).
HUGGING_FACE = re.compile(
    r"\b(llama|mistral|mixtral|qwen\d\w*|smollm\d?|gemma\d?|phi\d?|olmo\d?|gpt_neox|gptj|gpt2|cohere|glm|granite|nemotron"
    r"|opt|stablelm|starcoder2)\b|model\.layers|embed_tokens|lm_head\.|model_type|num_hidden_layers|hidden_act",
    re.IGNORECASE,
)


def jit_twins(tree):
    """Nodes under ``if config.DISABLE_JIT``: plain twins for the debugger, outside the rules on imports."""
    return {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "DISABLE_JIT" in ast.unparse(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }


def imports(name):
    """Full names of all modules that a module imports, wherever in the file the statement stands."""
    package = ["mojolearn", *FILES[name].parent.relative_to(PACKAGE).parts]
    twins, found = jit_twins(TREES[name]), set()
    for node in ast.walk(TREES[name]):
        if id(node) in twins:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                member = f"{module}.{alias.name}"
                found.add(member if member.removeprefix("mojolearn.") in FILES else module)
    return found


def inner(name):
    """Modules of the package that a module imports, by their short names."""
    return {module.removeprefix("mojolearn.") for module in imports(name) if module.startswith("mojolearn.")}


def reachable(name):
    """The module and everything of the package that it imports, directly or not."""
    seen, todo = set(), [name]
    while todo:
        current = todo.pop()
        if current not in seen and current in FILES:
            seen.add(current)
            todo.extend(inner(current))
    return seen


def outer(name):
    """Top-level names of the foreign packages that a module imports."""
    return {module.partition(".")[0] for module in imports(name)} - {"mojolearn"}


def calls_of(tree, *names):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            yield node


def docstrings(tree):
    """Nodes of strings that stand as a statement of their own."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


# What a kernel file may import: the layer below it. Every other one imports the vector layer only.
VECTOR_LAYER = {"_jit", "kernels.simd", "kernels.vmath", "kernels.sums"}
BELOW = {
    "kernels.simd": {"_jit", "kernels.simd_numpy"},
    "kernels.simd_numpy": {"_jit", "float32", "weights"},
    "kernels.vmath": {"_jit", "kernels.simd"},
    "kernels.sums": {"_jit", "kernels.simd"},
    "kernels.attention_weights": {"_jit", "kernels.attention", "kernels.simd"},
    "kernels.linear": VECTOR_LAYER | {"kernels.activation"},
    "kernels.rotary": VECTOR_LAYER | {"kernels.norm"},
    "kernels.decode": VECTOR_LAYER | {"kernels.resident"},
    "kernels.step": {"_jit", "kernels.vmath"}
    | {
        f"kernels.{name}"
        for name in (
            *(
                "activation",
                "addresses",
                "attention",
                "cache",
                "decode",
                "linear",
                "norm",
                "residual",
                "resident",
                "rotary",
            ),
        )
    },
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_import_only_what_is_below_them(name):
    """Kernels share registers, elementary functions and the order of sums; a step is made of them."""
    assert inner(name) <= BELOW.get(name, VECTOR_LAYER)
    assert outer(name) <= {"numpy", "numba", "llvmlite", "math", "operator", "functools"}


@pytest.mark.parametrize("name", [name for name in NO_NUMBA if name in FILES])
def test_plain_modules_reach_no_numba(name):
    for module in reachable(name):
        assert not outer(module) & {"numba", "llvmlite"}, f"{name} reaches Numba through {module}"


def test_reference_shares_nothing_with_the_kernels():
    """It is the judge of the kernels, so it may share the reading of options with them but no arithmetic."""
    assert not reachable("reference") & {"_jit", *KERNELS}


@pytest.mark.parametrize("name", OUTSIDE_MODELS)
def test_blocks_do_not_know_models(name):
    assert not inner(name) & set(MODELS)


@pytest.mark.parametrize("name", [name for name in FILES if name not in CLI])
def test_the_library_does_not_know_its_command_line(name):
    assert not inner(name) & set(CLI)


@pytest.mark.parametrize("name", [name for name in FILES if name not in INTEGRATIONS])
def test_the_library_does_not_know_its_integrations(name):
    assert not inner(name) & set(INTEGRATIONS)
    assert not outer(name) & {"sklearn", "pandas", "scipy", "dask", "distributed"}


@pytest.mark.parametrize("name", ["integrations.corpus", "integrations.model_at", "integrations.records"])
def test_corpora_need_no_cluster(name):
    for module in reachable(name):
        assert not outer(module) & {"dask", "distributed", "joblib", "submitit"}, module


@pytest.mark.parametrize("name", FILES)
def test_no_other_framework(name):
    assert not outer(name) & {"torch", "transformers", "jax", "tensorflow"}


@pytest.mark.parametrize("name", OUTSIDE_MODELS)
def test_hugging_face_names_stay_in_models(name):
    prose = docstrings(TREES[name])
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            assert not HUGGING_FACE.search(node.value), f"{name}.py line {node.lineno}: {node.value!r}"


@pytest.mark.parametrize("name", FILES)
def test_no_print(name):
    functions = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.FunctionDef)]
    speaks = [function for function in functions if function.name == "show_versions"]
    allowed = {id(call) for function in speaks for call in calls_of(function, "print")}
    assert not [call.lineno for call in calls_of(TREES[name], "print") if id(call) not in allowed]


@pytest.mark.parametrize("name", FILES)
def test_no_fastmath(name):
    for node in ast.walk(TREES[name]):
        assert not (isinstance(node, ast.keyword) and node.arg == "fastmath"), (
            f"{name}.py line {node.value.lineno}"
        )
        assert not (isinstance(node, ast.Constant) and node.value == "fastmath"), (
            f"{name}.py line {node.lineno}"
        )


@pytest.mark.parametrize("name", FILES)
def test_no_bare_except(name):
    assert not [
        n.lineno for n in ast.walk(TREES[name]) if isinstance(n, ast.ExceptHandler) and n.type is None
    ]


@pytest.mark.parametrize("name", FILES)
def test_one_idea_to_a_file(name):
    assert len(FILES[name].read_text("utf-8").splitlines()) <= 350


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_hold_no_float64_literal(name):
    """``0.5`` in a kernel is a float64 and drags the arithmetic with it: write ``np.float32(0.5)``."""
    wrapped = {
        id(node)
        for call in calls_of(TREES[name], "np.float32", "float32", "ir.Constant")
        for node in ast.walk(call)
    }
    literals = [
        n for n in ast.walk(TREES[name]) if isinstance(n, ast.Constant) and isinstance(n.value, float)
    ]
    assert not [f"line {n.lineno}: {n.value}" for n in literals if id(n) not in wrapped]


def test_import_waits_for_numba_until_it_is_needed():
    """The package alone is there at once, and all its public names and modules are found in it."""
    source = """
import sys
import mojolearn
assert not {"numba", "numpy", "tokenizers", "jinja2"} & set(sys.modules)
assert {name for name in mojolearn.__all__} <= set(dir(mojolearn))
assert mojolearn.weights.narrow and mojolearn.CausalLM.load and mojolearn.TransformerBlock
assert not hasattr(mojolearn, "nothing") and not hasattr(mojolearn, "_nothing")
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


def test_import_compiles_nothing():
    """All kernels are there after the import, and none has been compiled."""
    source = """
import sys
from mojolearn import *
from numba.core.dispatcher import Dispatcher
kernels = {id(k): k for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith("mojolearn")
           for k in vars(m).values() if isinstance(k, Dispatcher)}
assert kernels, "no kernel found"
compiled = [k.py_func.__qualname__ for k in kernels.values() if k.signatures]
assert not compiled, f"compiled at import: {compiled}"
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
