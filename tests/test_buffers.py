"""buffers.py: every form of array that is admitted or refused, and the words of the refusal."""

import array
import warnings

import numpy as np
import pytest
from forms import FORMS, OnTheGPU, WithArray, WithCopies, WithDLPack, WithInterface, misaligned, read_only
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import bits, uniform

from mojolearn.buffers import (
    admit_array,
    admit_cache,
    admit_input,
    admit_integer,
    admit_lengths,
    check_disjoint,
    first_nonfinite,
    first_where,
)

FORWARD, STEP = "TransformerBlock.forward", "TransformerBlock.step"


# --- input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 1, 8), (5, 1, 8)])
def test_input_in_any_form(form, shape, rng):
    x = uniform(rng, shape)
    given_form = FORMS[form](x)
    admitted = admit_input(given_form, 8, FORWARD)
    assert type(admitted) is np.ndarray
    assert admitted.flags.carray
    assert np.array_equal(bits(admitted), bits(x))
    assert np.array_equal(np.asarray(admit_array(given_form, "x", FORWARD)), x)  # not modified


def test_input_as_a_memory_map(tmp_path, rng):
    x = uniform(rng, (2, 3, 8))
    np.save(tmp_path / "x.npy", x)
    for mode in ("r", "r+", "c"):
        admitted = admit_input(np.load(tmp_path / "x.npy", mmap_mode=mode), 8, FORWARD)
        assert type(admitted) is np.ndarray
        assert np.array_equal(bits(admitted), bits(x))


def test_ordinary_input_is_not_copied(rng):
    x = uniform(rng, (2, 3, 8))
    assert admit_input(x, 8, FORWARD) is x
    assert np.shares_memory(admit_input(WithDLPack(x), 8, FORWARD), x)
    assert not np.shares_memory(admit_input(read_only(x), 8, FORWARD), x)


def test_input_is_not_scanned():
    x = np.full((1, 1, 8), np.nan, np.float32)
    assert admit_input(x, 8, FORWARD) is x


@pytest.mark.parametrize("form", FORMS)
def test_step_input_in_both_ranks(form, rng):
    x = uniform(rng, (5, 8))
    for shape in ((5, 8), (5, 1, 8)):
        admitted = admit_input(FORMS[form](x.reshape(shape)), 8, STEP, step=True)
        assert admitted.shape == (5, 1, 8)
        assert admitted.flags.carray
        assert np.array_equal(bits(admitted[:, 0]), bits(x))


DTYPES = [np.float64, np.float16, np.int32, np.uint8, np.bool_, np.complex64, ">f4", ">f8", object, "V4"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [False, True])
def test_input_of_another_dtype(dtype, step):
    with pytest.raises(
        TypeError, match=r"^TransformerBlock: x must be float32, not .*x\.astype\(np\.float32\)$"
    ):
        admit_input(np.zeros((2, 1, 8), dtype), 8, "TransformerBlock", step=step)


def test_input_in_the_other_byte_order_is_not_called_float32():
    with pytest.raises(TypeError, match="not float32 in the other byte order; cast"):
        admit_input(np.zeros((2, 1, 8), np.dtype(np.float32).newbyteorder()), 8, FORWARD)


@pytest.mark.parametrize(
    "wrong", [None, [[[1.0]]], ((1.0,),), "x", b"xxxx", 1.0, {}, object(), np.ndarray, iter([1.0]), range(3)]
)
def test_input_that_is_no_array(wrong):
    with pytest.raises(TypeError, match=r"^TransformerBlock\.forward: x must be a float32 array, not "):
        admit_input(wrong, 8, FORWARD)


def test_input_on_another_device():
    with pytest.raises(TypeError, match=r"x .of type OnTheGPU. cannot be read .*cuda:0"):
        admit_input(OnTheGPU(None), 8, FORWARD)


def test_input_in_released_memory():
    view = memoryview(np.zeros((1, 1, 8), np.float32))
    view.release()
    with pytest.raises(TypeError, match=r"x .of type memoryview. cannot be read .*released"):
        admit_input(view, 8, FORWARD)


def test_a_masked_input():
    x = np.ma.masked_array(np.zeros((1, 2, 8), np.float32))
    assert admit_input(x, 8, FORWARD).shape == (1, 2, 8)
    x[0, 1, 3] = np.ma.masked
    with pytest.raises(TypeError, match="x is a masked array with masked values"):
        admit_input(x, 8, FORWARD)


@pytest.mark.parametrize(
    "shape", [(), (8,), (2, 8), (2, 3, 7), (8, 3, 2), (1, 2, 3, 8), (0, 3, 8), (2, 0, 8), (2, 3, 0)]
)
def test_input_of_a_wrong_shape(shape):
    with pytest.raises(
        ValueError, match=r"^TransformerBlock\.forward: x has shape .*wanted is \(B, L, 8\)"
    ) as caught:
        admit_input(np.zeros(shape, np.float32), 8, FORWARD)
    assert str(shape) in str(caught.value)


def test_one_sequence_without_its_batch_axis():
    with pytest.raises(ValueError, match=r"for a batch of one sequence: x\[None\]"):
        admit_input(np.zeros((5, 8), np.float32), 8, FORWARD)


@pytest.mark.parametrize("shape", [(), (8,), (2, 7), (2, 1, 7), (1, 2, 1, 8), (0, 8), (0, 1, 8), (2, 0)])
def test_step_input_of_a_wrong_shape(shape):
    with pytest.raises(
        ValueError, match=r"^TransformerBlock\.step: x has shape .*wanted is \(B, 8\) or \(B, 1, 8\)"
    ):
        admit_input(np.zeros(shape, np.float32), 8, STEP, step=True)


@pytest.mark.parametrize("L", [0, 2, 7])
def test_a_step_of_another_number_of_tokens(L):
    with pytest.raises(ValueError, match=f"one token per row; use forward for {L}$"):
        admit_input(np.zeros((2, L, 8), np.float32), 8, STEP, step=True)


# --- cache -------------------------------------------------------------------------------------------------

WRITABLE = {
    "C": lambda a: a,
    "memoryview": memoryview,
    "interface": WithInterface,
    "__array__": WithArray,
    "DLPack": WithDLPack,
}


@pytest.mark.parametrize("form", WRITABLE)
def test_cache_shares_the_memory(form):
    memory = np.zeros(12, np.float32)
    admit_cache(WRITABLE[form](memory), 12, "k_cache", "TransformerState")[:] = np.arange(12)
    assert np.array_equal(memory, np.arange(12))


def test_cache_in_an_array_of_the_standard_library():
    memory = array.array("f", [0] * 12)
    admit_cache(memory, 12, "k_cache", "TransformerState")[3] = 5
    assert memory[3] == 5


def test_cache_in_a_memory_map(tmp_path):
    mapped = np.memmap(tmp_path / "cache", np.float32, "w+", shape=12)
    admitted = admit_cache(mapped, 12, "k_cache", "TransformerState")
    assert type(admitted) is np.ndarray
    admitted[:] = 7
    mapped.flush()
    assert np.array_equal(np.fromfile(tmp_path / "cache", np.float32), np.full(12, 7))


def test_cache_as_a_piece_of_a_larger_buffer():
    memory = np.zeros(24, np.float32)
    admit_cache(memory[12:], 12, "v_cache", "TransformerState")[:] = 1
    assert memory.sum() == memory[12:].sum() == 12


ZEROS = np.zeros(12, np.float32)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (None, TypeError, "is None"),
        ([0.0] * 12, TypeError, "is list"),
        ("x" * 12, TypeError, "is str"),
        (bytes(48), TypeError, "is bytes"),
        (12, TypeError, "is int"),
        (bytearray(48), TypeError, "holds uint8"),
        (array.array("d", [0] * 12), TypeError, "holds float64"),
        (ZEROS.astype(np.float16), TypeError, "holds float16"),
        (ZEROS.view(np.int32), TypeError, "holds int32"),
        (
            ZEROS.astype(np.dtype(np.float32).newbyteorder()),
            TypeError,
            "holds float32 in the other byte order",
        ),
        (np.ma.masked_array(ZEROS), TypeError, "masked"),
        (WithCopies(ZEROS), TypeError, "gives only copies"),
        (OnTheGPU(None), TypeError, "cuda:0"),
        (np.zeros(11, np.float32), ValueError, "holds 11 values"),
        (np.zeros(13, np.float32), ValueError, "holds 13 values"),
        (np.zeros(0, np.float32), ValueError, "holds 0 values"),
        (ZEROS.reshape(3, 4), ValueError, r"has shape \(3, 4\)"),
        (np.zeros((), np.float32), ValueError, r"has shape \(\)"),
        (np.zeros(24, np.float32)[::2], ValueError, "is strided, in steps of 8 bytes"),
        (ZEROS[::-1], ValueError, "is strided, in steps of -4 bytes"),
        (np.broadcast_to(np.float32(0), 12), ValueError, "is strided, in steps of 0 bytes"),
        (read_only(ZEROS), ValueError, "is read-only"),
        (memoryview(ZEROS).toreadonly(), ValueError, "is read-only"),
        (misaligned(ZEROS), ValueError, "multiple of 4 bytes"),
    ],
)
def test_cache_refused(wrong, kind, words):
    with pytest.raises(kind, match=rf"^TransformerState: k_cache .*{words}"):
        admit_cache(wrong, 12, "k_cache", "TransformerState")


def test_a_refused_cache_says_what_is_wanted():
    with pytest.raises(
        ValueError, match="wanted is a flat, writable, contiguous float32 buffer of 12 values"
    ):
        admit_cache(ZEROS[:5], 12, "k_cache", "TransformerState")


def test_caches_that_overlap():
    memory = np.zeros(20, np.float32)
    check_disjoint(memory[:10], memory[10:], "TransformerState")
    for k, v in ((memory[:10], memory[:10]), (memory[:10], memory[9:19]), (memory[5:15], memory[:10])):
        with pytest.raises(ValueError, match=r"^TransformerState: k_cache and v_cache overlap"):
            check_disjoint(k, v, "TransformerState")


# --- lengths and integers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3]),
        np.array([1, 2, 3], np.uint8),
        np.array([1, 2, 3], ">i4"),
        np.array([1, 2, 3], object),
        np.array([1, 0, 2, 0, 3])[::2],
        [np.int8(1), np.array(2), np.uint64(3)],
    ],
)
def test_lengths(lengths):
    admitted = admit_lengths(lengths, 3, 3, FORWARD)
    assert admitted.dtype == np.int64
    assert admitted.tolist() == [1, 2, 3]


def test_lengths_are_a_copy():
    lengths = np.array([1, 2], np.int64)
    admit_lengths(lengths, 2, 2, FORWARD)[0] = 2
    assert lengths.tolist() == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "12",
        3,
        {1, 2},
        {1: 2},
        iter([1, 2]),
        (n for n in (1, 2)),
        [1, 2.0],
        [True, 1],
        [np.True_, 1],
        [1, None],
        [1, "2"],
        [1, [2]],
        np.array([1.0, 2.0]),
        np.array([True, True]),
        np.array(["1", "2"]),
        np.array([1, 2.5], object),
        np.array([1, 2], "m8[s]"),
        np.ma.masked_array([1, 2], [False, True]),
    ],
)
def test_lengths_of_a_wrong_kind(wrong):
    with pytest.raises(TypeError, match=r"^TransformerBlock\.forward: lengths"):
        admit_lengths(wrong, 2, 4, FORWARD)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([1], "has 1 entry, but x has 2 rows"),
        ([], "has 0 entries"),
        ([1, 2, 3], "has 3 entries"),
        (range(10**12), "has 1000000000000 entries"),
        (np.array([[1, 2]]), r"has shape \(1, 2\); wanted is \(2,\)"),
        (np.array(1), r"has shape \(\)"),
        ([1, 0], r"\[1\] must be from 1 to 4, not 0"),
        ([5, 1], r"\[0\] must be from 1 to 4, not 5"),
        ([1, -1], r"\[1\] must be from 1 to 4, not -1"),
        (np.array([1, 2**63], np.uint64), r"\[1\] must be from 1 to 4, not 9223372036854775808"),
    ],
)
def test_lengths_of_a_wrong_value(wrong, words):
    with pytest.raises(ValueError, match=rf"^TransformerBlock\.forward: lengths ?{words}"):
        admit_lengths(wrong, 2, 4, FORWARD)


@given(st.integers(-(2**80), 2**80), st.integers(-5, 5), st.integers(-5, 5))
def test_integers_and_their_range(value, low, high):
    if low <= value <= high:
        assert admit_integer(value, "n", "f", low, high) == value
    else:
        with pytest.raises(ValueError, match=f"^f: n must be from {low} to {high}, not {value}$"):
            admit_integer(value, "n", "f", low, high)


def test_integers_without_limits():
    assert admit_integer(-3, "n", "f") == -3
    for value in (2**63, -(2**63)):
        with pytest.raises(
            ValueError, match=r"^f: n must be from -9223372036854775807 to 9223372036854775807"
        ):
            admit_integer(value, "n", "f")
    with pytest.raises(ValueError, match=r"^f: n must be at least 1, not 0$"):
        admit_integer(0, "n", "f", 1)


@pytest.mark.parametrize(
    "wrong", [True, np.True_, 1.0, np.float64(1), "1", None, [1], np.array([1]), np.array(1.0)]
)
def test_what_is_no_integer(wrong):
    with pytest.raises(TypeError, match=r"^f: n must be an integer, not "):
        admit_integer(wrong, "n", "f")


# --- search ------------------------------------------------------------------------------------------------


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, min_side=0), elements=st.floats(width=32)))
def test_first_nonfinite(x):
    found = np.flatnonzero(~np.isfinite(x))
    assert first_nonfinite(x) == (found[0] if found.size else None)


@pytest.mark.parametrize("at", [0, 2**16 - 1, 2**16, 2**17 + 1, 199_999])
def test_first_nonfinite_in_any_piece(at):
    x = np.zeros((2, 100_000), np.float32)
    assert first_nonfinite(x) is None
    x.flat[at] = x.flat[-1] = np.inf
    assert first_nonfinite(x) == at
    assert first_nonfinite(x.astype(np.float16)) == at


def test_first_where_gives_the_first():
    assert first_where(np.arange(10), lambda piece: piece > 3) == 4


def test_no_warning_reaches_the_user():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        admit_input(WithArray(np.zeros((1, 1, 8), np.float32)), 8, FORWARD)
        admit_cache(WithArray(ZEROS), 12, "k_cache", "TransformerState")
