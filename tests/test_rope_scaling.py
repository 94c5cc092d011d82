"""rope_scaling.py: one form of the option, every way to write it wrongly, and what chooses by the length."""

import pickle

import numpy as np
import pytest
from support import bits, make_block, make_weights, uniform

from mojolearn import TransformerBlock
from mojolearn.options import BlockOptions
from mojolearn.reference import reference_block
from mojolearn.rope_scaling import admit_rope_scaling

LLAMA3 = {
    "type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
DYNAMIC = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.5, 4.0, 8.0],
    "original_max_position_embeddings": 8,
    "factor": 4.0,
}


def admit(given):
    return admit_rope_scaling(given, "rope_scaling", "TransformerBlock")


def test_both_spellings_give_one_form():
    shuffled = dict(reversed(LLAMA3.items()))
    spelt = {"rope_type": shuffled.pop("type")} | shuffled
    for given_form in (LLAMA3, shuffled | {"type": "llama3"}, spelt, spelt | {"type": "llama3"}):
        assert list(admit(given_form).items()) == list(LLAMA3.items())


def test_numbers_become_those_of_python():
    admitted = admit(
        {
            "type": "llama3",
            "factor": np.float32(8),
            "low_freq_factor": 1,
            "high_freq_factor": np.int64(4),
            "original_max_position_embeddings": np.int32(64),
        }
    )
    assert [type(value) for value in admitted.values()] == [str, float, float, float, int]


@pytest.mark.parametrize("nothing", [None, {"type": "default"}, {"rope_type": "default"}])
def test_default_means_none(nothing):
    assert admit(nothing) is None


def without(key, scaling=LLAMA3):
    return {k: v for k, v in scaling.items() if k != key}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["lacks", "type"]),
        ({"factor": 2.0}, ["lacks", "type", "2.0"]),
        ({"type": "ntk", "factor": 2.0}, ["'ntk'", "'linear'", "'llama3'", "'yarn'", "'longrope'"]),
        ({"type": 3}, ["3", "'linear'"]),
        ({"type": ["linear"], "factor": 2.0}, ["['linear']"]),
        ({"type": "linear", "rope_type": "llama3", "factor": 2.0}, ["'linear'", "'llama3'", "spellings"]),
        ({"type": "linear"}, ["'linear'", "lacks", "'factor'"]),
        ({"type": "linear", "factor": 2.0, "factr": 3.5}, ["'factr'", "3.5", "did you mean 'factor'"]),
        ({"type": "default", "factor": 2.0}, ["'factor'", "2.0", "'default'"]),
        ({"type": "linear", "factor": 0.0}, ['"factor"', "0.0"]),
        ({"type": "linear", "factor": -2}, ['"factor"', "-2"]),
        ({"type": "linear", "factor": float("nan")}, ['"factor"', "nan"]),
        ({"type": "linear", "factor": 1e39}, ['"factor"', "1e+39"]),
        ({"type": "linear", "factor": True}, ['"factor"', "True"]),
        ({"type": "linear", "factor": "2"}, ['"factor"', "'2'"]),
        ({"type": "linear", "factor": None}, ['"factor"', "None"]),
        *((without(key), ["lacks", repr(key)]) for key in LLAMA3 if key != "type"),
        (LLAMA3 | {"original_max_position_embeddings": 0}, ["original_max_position_embeddings", "0"]),
        (LLAMA3 | {"original_max_position_embeddings": -8}, ["original_max_position_embeddings", "-8"]),
        (
            LLAMA3 | {"original_max_position_embeddings": 8192.0},
            ["original_max_position_embeddings", "8192.0"],
        ),
        (
            LLAMA3 | {"original_max_position_embeddings": "8192"},
            ["original_max_position_embeddings", "'8192'"],
        ),
        (LLAMA3 | {"original_max_position_embeddings": True}, ["original_max_position_embeddings", "True"]),
        (LLAMA3 | {"high_freq_factor": 1.0}, ["high_freq_factor", "low_freq_factor", "1.0"]),
        (LLAMA3 | {"high_freq_factor": 0.5}, ["high_freq_factor", "low_freq_factor", "0.5"]),
        (LLAMA3 | {"high_freq_factor": 1 + 1e-9}, ["high_freq_factor", "float32"]),
        *(
            (without(key, YARN), ["lacks", repr(key)])
            for key in ("factor", "original_max_position_embeddings")
        ),
        (YARN | {"beta_fast": 1}, ["beta_fast", "beta_slow", "1.0"]),
        (YARN | {"beta_slow": 0}, ['"beta_slow"', "0"]),
        (YARN | {"truncate": 1}, ['"truncate"', "1"]),
        (YARN | {"mscale": "1"}, ['"mscale"', "'1'"]),
        (YARN | {"attention_factor": -1.0}, ['"attention_factor"', "-1.0"]),
        (YARN | {"low_freq_factor": 1.0}, ["'low_freq_factor'", "unknown key"]),
        ({"type": "dynamic", "factor": 2.0}, ["lacks", "'original_max_position_embeddings'"]),
        *(
            (without(key, LONGROPE), ["lacks", repr(key)])
            for key in ("short_factor", "long_factor", "original_max_position_embeddings", "factor")
        ),
        (LONGROPE | {"factor": None}, ["lacks", "'attention_factor'", "'factor'"]),
        (LONGROPE | {"short_factor": 1.0}, ['"short_factor"', "1.0", "list"]),
        (LONGROPE | {"short_factor": "1234"}, ['"short_factor"', "'1234'"]),
        (LONGROPE | {"long_factor": [1.0, 0.0, 1.0, 1.0]}, ['"long_factor"][1]', "0.0"]),
        (LONGROPE | {"long_factor": [1.0, 1.0, "2", 1.0]}, ['"long_factor"][2]', "'2'"]),
        (LONGROPE | {"long_factor": [1.0, 1.0, True, 1.0]}, ['"long_factor"][2]', "True"]),
        (
            LONGROPE | {"original_max_position_embeddings": 1},
            ["original_max_position_embeddings", "attention_factor"],
        ),
    ],
)
def test_wrong_entries_are_named(given, words):
    with pytest.raises(ValueError, match=r"^TransformerBlock: rope_scaling") as caught:
        admit(given)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("given", ["linear", 2.0, ["linear"], [("type", "linear")], True])
def test_other_kinds_are_refused(given):
    with pytest.raises(TypeError, match=r"^TransformerBlock: rope_scaling must be None or a dict"):
        admit(given)


def test_the_given_dict_stays_as_it_is():
    given_form = {"rope_type": "linear", "factor": 2}
    admit(given_form)
    assert given_form == {"rope_type": "linear", "factor": 2}


def test_what_is_left_out_gets_its_published_value():
    assert admit(YARN) == YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
    assert admit(YARN | {"beta_fast": None, "attention_factor": None}) == admit(YARN)
    given_all = YARN | {
        "beta_fast": 8,
        "beta_slow": 2,
        "truncate": np.False_,
        "mscale": 1,
        "mscale_all_dim": 0.5,
    }
    assert admit(given_all) == given_all
    assert admit(admit(given_all)) == admit(given_all)


def test_lists_of_factors_are_kept_as_plain_numbers():
    as_arrays = LONGROPE | {
        "short_factor": np.array(LONGROPE["short_factor"]),
        "long_factor": (1.5, 2.5, 4, 8),
    }
    admitted = admit(as_arrays)
    assert admitted["short_factor"] == (1.0, 1.1, 1.2, 1.3)
    assert {type(value) for value in admitted["short_factor"] + admitted["long_factor"]} == {float}
    assert admit(LONGROPE) == admitted


def test_factors_for_another_number_of_columns_are_refused():
    with pytest.raises(ValueError, match=r'4 numbers in "short_factor", but rope_dim=16 has 8 pairs'):
        make_block(head_dim=16, rope_scaling=LONGROPE)
    with pytest.raises(ValueError, match=r'4 numbers in "short_factor", but rope_dim=4 has 2 pairs'):
        make_block(head_dim=16, rope_dim=4, rope_scaling=LONGROPE)
    assert make_block(head_dim=16, rope_dim=8, rope_scaling=LONGROPE).rope_dim == 8
    assert make_block(head_dim=16, rope_dim=0, rope_scaling=LONGROPE).rope_dim == 0


def test_scalings_that_would_divide_by_zero_are_refused():
    with pytest.raises(ValueError, match=r"'dynamic' divides by rope_dim - 2; with rope_dim=2"):
        make_block(rope_dim=2, rope_scaling=DYNAMIC)
    with pytest.raises(ValueError, match=r"'yarn' divides by the logarithm of rope_theta; with rope_theta=1"):
        make_block(rope_theta=1.0, rope_scaling=YARN)


BY_LENGTH = pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=lambda s: s["type"])


@BY_LENGTH
def test_a_call_without_a_state_goes_by_its_own_length(rng, scaling):
    """Up to the original context nothing changes; one token more turns all of them, the first ones too, otherwise."""
    block, x = make_block(rope_scaling=scaling), uniform(rng, (2, 20, 32), 2.0)
    weights = make_weights(n_heads=4)
    for L in (1, 7, 8, 9, 20):
        wanted, _, _ = reference_block(x[:, :L], weights, {"n_heads": 4, "rope_scaling": scaling})
        assert np.abs(block(x[:, :L]) - wanted).max() <= 2e-6 * np.abs(wanted).max()
    np.testing.assert_array_equal(bits(block(x[:, :8])[:, :5]), bits(block(x[:, :5])))
    assert not np.array_equal(block(x[:, :9])[:, :8], block(x[:, :8]))


@BY_LENGTH
def test_a_state_goes_by_its_max_tokens(rng, scaling):
    """From the first token on, however many there are: so chunks, steps and sessions agree."""
    block, x = make_block(rope_scaling=scaling), uniform(rng, (2, 20, 32), 2.0)
    options = {"n_heads": 4, "rope_scaling": scaling}
    for max_tokens in (6, 8, 9, 20):
        state, other = (block.allocate_state(2, max_tokens) for _ in range(2))
        y = np.concatenate([block.forward(x[:, :4], state), block.step(x[:, 4], state)], axis=1)
        with block.decode_session(other) as session:
            in_session = np.concatenate([session.step(x[:, t]) for t in range(5)], axis=1)
        np.testing.assert_array_equal(bits(in_session), bits(y))
        assert state == other
        wanted, _, _ = reference_block(x[:, :5], make_weights(n_heads=4), options, max_tokens=max_tokens)
        assert np.abs(y - wanted).max() <= 2e-6 * np.abs(wanted).max()
        same = np.array_equal(y, block(x[:, :5]))
        assert same == (max_tokens <= 8)


@BY_LENGTH
def test_rows_of_a_ragged_batch_go_by_their_own_lengths(rng, scaling):
    block, x = make_block(rope_scaling=scaling), uniform(rng, (4, 20, 32), 2.0)
    lengths = [3, 20, 9, 9]
    y = block.forward(x, lengths=lengths)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(bits(y[row, :length]), bits(block(x[row : row + 1, :length])[0]))


def test_equal_factors_of_both_lists_make_no_difference(rng):
    """Apart from the attention factor, which does not depend on the length."""
    scaling = LONGROPE | {"long_factor": LONGROPE["short_factor"]}
    block, x = make_block(rope_scaling=scaling), uniform(rng, (1, 12, 32), 2.0)
    np.testing.assert_array_equal(bits(block(x)[:, :5]), bits(block(x[:, :5])))


def test_blocks_with_such_a_scaling_travel(rng):
    block, x = make_block(rope_scaling=LONGROPE), uniform(rng, (1, 12, 32), 2.0)
    other = pickle.loads(pickle.dumps(block))
    assert other.options == block.options
    np.testing.assert_array_equal(bits(other(x)), bits(block(x)))
    again = TransformerBlock(block.weights(), **block.options.as_dict())
    np.testing.assert_array_equal(bits(again(x)), bits(block(x)))


def test_options_with_lists_are_hashable():
    o = BlockOptions(d_model=32, intermediate_size=48, n_heads=4, rope_scaling=LONGROPE)
    assert hash(o) == hash(BlockOptions(d_model=32, intermediate_size=48, n_heads=4, rope_scaling=LONGROPE))
