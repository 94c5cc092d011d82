"""Faults of batches, padding, chunks and threads that users of other libraries reported (docs/trust.md, group D)."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from support import bits, make_block, uniform
from toy_models import config, tensors, write_model

import mojolearn
from mojolearn import CausalLM, threads
from mojolearn.kernels.linear import BLOCK_ROWS, MANY_TILES, TILE_ROWS
from mojolearn.layers import Linear, Norm
from mojolearn.log_softmax import log_softmax
from mojolearn.models import scoring
from mojolearn.models.embedding import Embedding
from mojolearn.models.head import Head

PACKAGE = Path(mojolearn.__file__).parent
MIXED = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}


@pytest.fixture(scope="module", params=[{}, MIXED], ids=["full", "mixed"])
def lm(request, tmp_path_factory):
    """Without windows, and with one in layer 1."""
    return CausalLM.load(write_model(tmp_path_factory.mktemp("toy"), **request.param))


def texts(rng, lengths):
    return [rng.integers(0, 40, n).tolist() for n in lengths]


# --- a row and its neighbours ------------------------------------------------------------------------------


def test_a_row_at_every_place_of_every_batch(lm, rng):
    """Batches of 1 to 8 rows: prompt, a plain step, and a step in a session."""
    ids = rng.integers(0, 40, (8, 7))

    def run(rows):
        state = lm.allocate_state(len(rows), 7)
        logits = [lm.forward(rows[:, :5], state), lm.step(rows[:, 5], state)[:, None]]
        with lm.decode_session(state) as session:
            logits.append(session.step(rows[:, 6])[:, None])
        return bits(np.concatenate(logits, axis=1))

    wanted = run(ids[:1])[0]
    for B in range(1, 9):
        for place in range(B):
            batch = np.roll(ids[:B], place, axis=0)
            np.testing.assert_array_equal(run(batch)[place], wanted)


def test_eight_equal_rows_give_one_text(lm):
    out, logprobs = lm.generate([[5, 6, 7]] * 8, 12, logprobs=2)
    assert len({tuple(row) for row in out.tolist()}) == 1
    assert (
        len({row.tobytes() for row in logprobs.chosen}) == len({row.tobytes() for row in logprobs.top}) == 1
    )


def test_the_filler_is_no_token(lm):
    """Ended rows are filled with eos, with id 0 or with another id, which also stand in the prompts: no change."""
    prompts = [[0, 6], [1, 39], [39, 0]]
    free = lm.generate(prompts, 10)
    eos = int(free[0, 4])
    ends = [10 if eos not in row else row.index(eos) + 1 for row in free[:, 2:].tolist()]
    assert min(ends) < 10
    for filler in (None, eos, 0, 39):
        out = lm.generate(prompts, 10, eos_token_id=eos, pad_token_id=filler)
        for row, wanted, end in zip(out, free, ends, strict=True):
            np.testing.assert_array_equal(row[: 2 + end], wanted[: 2 + end])
            assert (row[2 + end :] == (eos if filler is None else filler)).all()


@pytest.mark.parametrize("lengths", [[4, 9, 7], [5, 5], [2, 15], [9, 3]], ids=str)
@pytest.mark.parametrize("width", [15, 40])
def test_padding_of_any_width(rng, lengths, width):
    """Every row begins at position 0, and has the bits that it has alone, whatever stands behind its end."""
    block = make_block(d_model=32, intermediate=48, n_heads=4, n_kv_heads=2)
    x = uniform(rng, (len(lengths), width, 32))
    alone = [bits(block(row[None, :n])) for row, n in zip(x, lengths, strict=True)]
    for junk in (0.0, np.nan, np.inf, 3e38):
        for row, n in zip(x, lengths, strict=True):
            row[n:] = junk
        y = bits(block.forward(x, lengths=lengths))
        for row, n, wanted in zip(y, lengths, alone, strict=True):
            np.testing.assert_array_equal(row[:n], wanted[0])
            assert not row[n:].any()


@pytest.mark.parametrize("lowest", [3, 17])
def test_exact_ties_go_to_the_lowest_id(tmp_path, monkeypatch, lowest):
    """Three rows of the head are equal and the best: the first of them is taken, in every batch, on all threads."""
    fields = config()
    named = tensors(fields)
    lm = CausalLM.load(write_model(tmp_path / "free", named))
    prompts = [[5, 6]] * 8
    best = int(lm.generate(prompts[:1], 1)[0, -1])
    head = named["lm_head.weight"]
    for i in (lowest, 31, 39):
        head[i] = head[best]
    lm = CausalLM.load(write_model(tmp_path / "tied", named))
    first = min(lowest, best)
    for small in (threads.SMALL, 0):
        monkeypatch.setattr(threads, "SMALL", small)
        for B in range(1, 9):
            logits = lm.forward(prompts[:B])[:, -1]
            assert (bits(logits[:, [lowest, best, 31, 39]]) == bits(logits.max(1))[:, None]).all()
            assert (lm.generate(prompts[:B], 1)[:, -1] == first).all()


# --- numbers of rows at which a kernel takes another way ---------------------------------------------------

SWITCHES = {1, *range(2, 18), *range(31, 34)}
SWITCHES |= {n + i for n in (TILE_ROWS * MANY_TILES, 2 * TILE_ROWS, BLOCK_ROWS) for i in (-1, 0, 1)}


@pytest.mark.parametrize("k", [1, 7, 8, 9, 1000, 4097])
def test_a_product_has_one_order_for_every_number_of_rows(rng, k):
    layer, x = Linear(uniform(rng, (40, k)), uniform(rng, 40)), uniform(rng, (max(SWITCHES), k))
    alone = np.concatenate([bits(layer(x[i : i + 1])) for i in range(len(x))])
    for n in sorted(SWITCHES):
        np.testing.assert_array_equal(bits(layer(x[:n])), alone[:n])
        np.testing.assert_array_equal(bits(layer(x[-n:])), alone[-n:])


def row_operations(rng, size):
    """Every operation on rows of ``size`` numbers beside the matrix product, by name."""
    gain, bias = uniform(rng, (2, size))
    yield "log_softmax", lambda x: log_softmax(x, "m")
    for kind in ("rmsnorm", "rmsnorm_offset", "layernorm", "layernorm_offset"):
        yield kind, Norm(kind, gain, bias if kind.startswith("layernorm") else None)
    head = Head(uniform(rng, (7, size)), multiplier=0.5, divisor=3.0, softcap=2.0)
    yield "head", head
    matrix = uniform(rng, (9, size))
    embedding = Embedding(matrix, 1.7)
    yield "embedding", lambda x: embedding(np.arange(len(x))[:, None], 0)[:, 0]


@pytest.mark.parametrize("size", [50, 50257])
def test_every_operation_on_rows(rng, size):
    """One row, and the same among nine."""
    x = uniform(rng, (9, size), 4.0)
    for name, operation in row_operations(rng, size):
        together = bits(operation(x))
        for n in range(1, 9):
            np.testing.assert_array_equal(bits(operation(x[:n])), together[:n], err_msg=name)
        if name != "embedding":  # which goes by the ids
            for i in range(9):
                np.testing.assert_array_equal(
                    bits(operation(x[i : i + 1])), together[i : i + 1], err_msg=name
                )


PRODUCTS = {
    "dot",
    "vdot",
    "matmul",
    "matvec",
    "vecmat",
    "vecdot",
    "inner",
    "outer",
    "tensordot",
    "einsum",
    "linalg",
}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "reference.py"],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_no_product_is_left_to_another_library(path):
    """The order of a sum in BLAS goes by the shape; only the reference, which promises no bits, may use it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        assert not isinstance(node, ast.MatMult), path
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np", "numpy", "np.linalg"):
            assert node.attr not in PRODUCTS, f"{path} line {node.lineno}"


# --- cold and warm, steps and chunks -----------------------------------------------------------------------


def test_a_prefix_by_any_way_is_the_same_prefix(lm, rng):
    """Seven tokens at once, by steps, by chunks, in a session, or as a copy; then four more, at once and by steps."""
    ids = rng.integers(0, 40, (1, 11))
    wanted = bits(lm.forward(ids)[:, 7:])

    def prefix(lengths, session=False):
        state = lm.allocate_state(1, 11)
        parts = np.split(ids[:, :7], np.cumsum(lengths)[:-1], axis=1)
        if session:
            with lm.decode_session(state) as opened:
                for part in parts:
                    opened.step(part)
        else:
            for part in parts:
                lm.forward(part, state)
        return state

    cold = prefix([7])
    for state in (prefix([1] * 7), prefix([2, 4, 1]), prefix([1] * 7, session=True), cold.copy()):
        assert state == cold
        np.testing.assert_array_equal(bits(lm.forward(ids[:, 7:], state.copy())), wanted)
        steps = [lm.step(ids[:, t], state)[:, None] for t in range(7, 11)]
        np.testing.assert_array_equal(bits(np.concatenate(steps, axis=1)), wanted)


def test_twelve_prefixes_each_a_copy_of_the_one_before(lm, rng):
    ids = rng.integers(0, 40, (1, 36))
    state = lm.allocate_state(1, 36)
    for first in range(0, 36, 3):
        state = state.copy()
        logits = lm.forward(ids[:, first : first + 3], state)
        np.testing.assert_array_equal(bits(logits), bits(lm.forward(ids[:, : first + 3])[:, first:]))


# --- scores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 16])
def test_scores_do_not_depend_on_chunks(lm, rng, monkeypatch, chunk):
    ids = texts(rng, [40, 17])
    whole = lm.score(ids)
    monkeypatch.setattr(scoring, "CHUNK", chunk)
    for one, other in zip(lm.score(ids), whole, strict=True):
        np.testing.assert_array_equal(bits(one), bits(other))


def test_scores_of_a_hundred_texts(lm, rng):
    """Lengths from 1, which leaves nothing to predict, to 40; each text has the numbers that it has alone."""
    ids = texts(rng, [1, 40, *rng.integers(1, 41, 98)])
    scores = lm.score(ids)
    for text, score in zip(ids, scores, strict=True):
        assert score.shape == (len(text) - 1,)
        np.testing.assert_array_equal(bits(score), bits(lm.score([text])[0]))
    with pytest.raises(
        ValueError, match=r"^CausalLM\.score: ids\[1\] must be a sequence of at least one token, not \[\]"
    ):
        lm.score([[1, 2], []])


def test_the_sum_over_many_texts_does_not_depend_on_their_batches(lm, rng):
    """Twenty texts and four equal ones, in batches of 1, 3, 4, 5, 7 and all, sorted or not: one perplexity."""
    ids = texts(rng, rng.integers(2, 20, 20))
    ids += [ids[3]] * 4
    orders = [ids, sorted(ids, key=len), [ids[i] for i in rng.permutation(len(ids))]]
    sums = set()
    for order in orders:
        for B in (1, 3, 4, 5, 7, len(ids)):
            batches = [order[first : first + B] for first in range(0, len(ids), B)]
            sums.add(math.fsum(float(n) for batch in batches for score in lm.score(batch) for n in score))
    assert len(sums) == 1
