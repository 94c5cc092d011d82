"""Choosing tokens: the written rules, compared with a direct transcription, and the random numbers."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mojolearn.float32 import exp
from mojolearn.models import sampling
from mojolearn.models.sampling import MASK, ROW, Sampling, fresh_seed, row_bases, sort_keys, uniform

FINITE = hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(-50, 50, width=32))
COARSE = hnp.arrays(
    np.float32, st.integers(1, 30), elements=st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 2.5])
)
OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.01, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 2, 5, 100]),
        "top_p": st.sampled_from([1e-9, 0.1, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    }
)


def sampler(**options):
    return Sampling("CausalLM.generate", greedy=False, **options)


def logits_of(*shares):
    """Logits whose weights are in these proportions (powers of two are exact)."""
    return np.log(np.array(shares, np.float32))


def kept(logits, **options):
    """The ids that may be drawn."""
    return sampler(**options).kept(np.asarray(logits, np.float32))[0].tolist()


def by_the_book(logits, base, n, temperature, top_k, top_p, min_p):
    """Section 8 of the numerics page, sentence by sentence."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weight = {i: exp((logits[i : i + 1] - logits.max()) / np.float32(temperature))[0] for i in order}
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        total = 0.0
        for i in order:
            total += float(weight[i])
        prefix, cumulative = [], 0.0
        for i in order:
            prefix.append(i)
            cumulative += float(weight[i])
            if cumulative >= top_p * total:
                break
        order = prefix
    order = [i for i in order if float(weight[i]) >= min_p * float(weight[order[0]])]
    total = 0.0
    for i in order:
        total += float(weight[i])
    u, cumulative = uniform(base, n), 0.0
    for i in order:
        cumulative += float(weight[i])
        if cumulative > u * total:
            return i
    raise AssertionError("no token found")


@given(FINITE | COARSE, st.integers(0, MASK), st.integers(0, 1000), OPTIONS)
def test_is_what_the_page_says(logits, base, n, options):
    assert sampler(**options).choose(logits, base, n) == by_the_book(logits, base, n, **options)


@given(FINITE | COARSE)
def test_greedy_is_the_first_of_the_largest(logits):
    assert Sampling("CausalLM.generate").choose(logits, 0, 0) == logits.tolist().index(max(logits.tolist()))


@given(hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(width=32, allow_nan=False)) | COARSE)
def test_sort_keys_order_by_logit_then_id(logits):
    """Of any floats, subnormal and infinite ones too; the two zeros are equal."""
    order = np.argsort(sort_keys(logits))
    assert order.tolist() == sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def test_generator_is_splitmix64():
    """The published test vector for the seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [uniform(1234567, n) for n in range(5)] == [(x >> 11) * 2.0**-53 for x in published]


@pytest.mark.parametrize(("u", "token"), [(0.0, 2), (0.25, 2), (0.5, 0), (0.75, 1), (1 - 2.0**-53, 1)])
def test_weight_equal_to_the_draw_goes_on(monkeypatch, u, token):
    """Cumulative weights 2, 3, 4: the first *above* 4 u is taken."""
    monkeypatch.setattr(sampling, "uniform", lambda base, n: u)
    assert sampler().choose(logits_of(1, 1, 2), 0, 0) == token


def test_numbers_are_uniform():
    for base in (0, MASK, 7, 7 + ROW):
        draws = np.array([uniform(base, n) for n in range(4000)])
        assert draws.min() >= 0
        assert draws.max() < 1
        counts = np.histogram(draws, bins=20, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 50  # chi-square with 19 degrees: p = 1e-4


def test_frequencies_follow_the_weights():
    logits = logits_of(4, 2, 1, 1)
    ids = [sampler().choose(logits, 99, n) for n in range(4000)]
    np.testing.assert_allclose(np.bincount(ids) / 4000, [0.5, 0.25, 0.125, 0.125], atol=0.03)


EXACT = {  # options, and the exact probabilities they ask for, of tokens with these
    "plain": ({}, [8, 4, 2, 1, 1]),
    "hot": ({"temperature": 2.0}, [8**0.5, 2, 2**0.5, 1, 1]),
    "cold": ({"temperature": 0.5}, [64, 16, 4, 1, 1]),
    "top_k": ({"top_k": 3}, [8, 4, 2, 0, 0]),
    "top_p": ({"top_p": 0.75}, [8, 4, 0, 0, 0]),
    "min_p": ({"min_p": 0.25}, [8, 4, 2, 0, 0]),
    "all": ({"temperature": 0.5, "top_k": 4, "top_p": 0.99, "min_p": 0.05}, [64, 16, 4, 0, 0]),
    "temperature comes before top_p": ({"temperature": 0.5, "top_p": 0.74}, [64, 0, 0, 0, 0]),
    "top_k comes before top_p": ({"top_k": 2, "top_p": 0.6}, [8, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1]])
def test_frequencies_are_the_exact_ones(name, order):
    """Chi-square over 5000 draws of a fixed seed; what has probability zero never comes."""
    options, weights = EXACT[name]
    weights = np.array(weights)[order]
    logits = logits_of(*np.array([8, 4, 2, 1, 1])[order])
    n, choose = 5000, sampler(**options).choose
    counts = np.bincount([choose(logits, 2026, i) for i in range(n)], minlength=5)
    assert not counts[weights == 0].any()
    seen = weights > 0
    if seen.sum() > 1:
        wanted = weights[seen] / weights.sum() * n
        assert scipy.stats.chisquare(counts[seen], wanted).pvalue > 1e-3


def test_draws_of_one_row_and_of_rows_are_independent():
    """Chi-square over pairs: this draw and the next, this row and its neighbour under one seed."""
    logits, choose = logits_of(2, 1, 1), sampler().choose
    wanted = np.outer([2, 1, 1], [2, 1, 1]).ravel() / 16 * 8000
    mine = [choose(logits, 7, n) for n in range(8001)]
    theirs = [choose(logits, 7 + ROW, n) for n in range(8000)]
    for others in (mine[1:], theirs):
        pairs = np.bincount([3 * a + b for a, b in zip(mine, others)], minlength=9)
        assert scipy.stats.chisquare(pairs, wanted).pvalue > 1e-3


class TestTopP:
    def test_mass_equal_to_the_threshold_suffices(self):
        assert kept(logits_of(2, 1, 1), top_p=0.5) == [0]
        assert kept(logits_of(2, 1, 1), top_p=0.75) == [0, 1]

    def test_token_that_crosses_stays(self):
        assert kept(logits_of(0.4, 0.35, 0.25), top_p=0.5) == [0, 1]

    def test_never_none(self):
        assert kept(logits_of(1, 2, 1), top_p=1e-8) == [1]
        assert kept(np.zeros(5), top_p=5e-324) == [0]

    def test_one_keeps_all(self):
        assert kept(logits_of(1, 4, 2), top_p=1.0) == [1, 2, 0]

    def test_counts_what_top_k_has_left(self):
        assert kept(logits_of(2, 1, 1, 1, 1, 1, 1), top_k=2, top_p=0.6) == [0]
        assert kept(logits_of(2, 1, 1, 1, 1, 1, 1), top_p=0.6) == [0, 1, 2, 3]


def test_ties_go_to_the_lowest_id():
    assert Sampling("x").choose(np.zeros(9, np.float32), 0, 0) == 0
    assert kept(np.zeros(9), top_k=1) == [0]
    assert kept([1, 3, 2, 3, 3], top_k=2) == [1, 3]
    assert kept([-0.0, 0.0, -0.0], top_k=2) == [0, 1]


def test_min_p_is_relative_to_the_best():
    assert kept(logits_of(1, 8, 2, 4), min_p=0.5) == [1, 3]
    assert kept(logits_of(1, 8, 2, 4), min_p=1.0) == [1]


@pytest.mark.parametrize("options", [{}, {"greedy": True}, {"greedy": False, "top_k": 3, "top_p": 0.5}])
@pytest.mark.parametrize("zero", [0, 0.0, -0.0, np.float32(0)])
def test_temperature_zero_takes_the_best(zero, options):
    choose = Sampling("x", **{"greedy": False, "temperature": zero} | options).choose
    assert {choose(np.array([1, 3, 2, 3], np.float32), 5, n) for n in range(20)} == {1}


@pytest.mark.parametrize("temperature", [1e-30, 1e-44, 1e38])
def test_extreme_temperatures(temperature):
    logits = np.array([1, 3, 2], np.float32)
    ids = {sampler(temperature=temperature).choose(logits, 5, n) for n in range(50)}
    assert ids == ({1} if temperature < 1 else {0, 1, 2})


@given(FINITE, st.integers(0, MASK))
def test_minus_infinity_is_never_chosen(logits, base):
    banned = np.arange(len(logits)) % 2 == 1
    logits[banned] = -np.inf
    assert not banned[sampler().choose(logits, base, 0)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"greedy": False}, {"greedy": False, "top_k": 1}])
def test_logits_that_are_no_numbers(bad, options):
    logits = np.array([1, bad, 9], np.float32)
    with pytest.raises(ValueError, match=r"^CausalLM\.generate: the largest logit must be finite.*token 1"):
        Sampling("CausalLM.generate", **options).choose(logits, 0, 0)


def test_nothing_to_choose_from():
    with pytest.raises(ValueError, match="no token is left to choose"):
        sampler().choose(np.full(3, -np.inf, np.float32), 0, 0)


@given(FINITE, st.integers(0, MASK), st.integers(0, 100), OPTIONS)
def test_what_is_cut_off_does_not_matter(logits, base, n, options):
    """With top_k the tokens behind may have any lower logits."""
    assume(0 < options["top_k"] < len(logits))
    changed = logits.copy()
    for i in sorted(range(len(logits)), key=lambda i: (-logits[i], i))[options["top_k"] :]:
        changed[i] = -60
    assert sampler(**options).choose(logits, base, n) == sampler(**options).choose(changed, base, n)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": -1}, ValueError, ["temperature", "-1"]),
        ({"temperature": math.nan}, ValueError, ["temperature", "nan"]),
        ({"temperature": math.inf}, ValueError, ["temperature", "inf"]),
        ({"temperature": 1e-46}, ValueError, ["temperature", "1e-46"]),
        ({"temperature": "1"}, TypeError, ["temperature", "'1'"]),
        ({"temperature": None}, TypeError, ["temperature", "None"]),
        ({"temperature": True}, TypeError, ["temperature", "True"]),
        ({"top_k": -1}, ValueError, ["top_k", "-1"]),
        ({"top_k": 2.0}, TypeError, ["top_k", "2.0"]),
        ({"top_k": True}, TypeError, ["top_k", "True"]),
        ({"top_p": 0}, ValueError, ["top_p", "0"]),
        ({"top_p": -1}, ValueError, ["top_p", "-1"]),
        ({"top_p": 1.5}, ValueError, ["top_p", "1.5"]),
        ({"top_p": math.nan}, ValueError, ["top_p", "nan"]),
        ({"top_p": "all"}, TypeError, ["top_p", "'all'"]),
        ({"min_p": -0.1}, ValueError, ["min_p", "-0.1"]),
        ({"min_p": 1.1}, ValueError, ["min_p", "1.1"]),
        ({"min_p": math.nan}, ValueError, ["min_p", "nan"]),
        ({"greedy": 1}, TypeError, ["greedy", "1"]),
        ({"greedy": True, "temperature": 0.7}, ValueError, ["temperature=0.7", "greedy=True"]),
        ({"greedy": True, "top_k": 5}, ValueError, ["top_k=5", "greedy=True"]),
    ],
)
def test_refused_options(options, error, words):
    with pytest.raises(error, match=r"^CausalLM\.generate: [^\n]*$") as caught:
        Sampling("CausalLM.generate", **{"greedy": False} | options)
    for word in words:
        assert word in str(caught.value)


class TestSeeds:
    def test_one_for_all_rows(self):
        assert row_bases(7, 3, "m") == [7, 7 + ROW, (7 + 2 * ROW) & MASK]

    @pytest.mark.parametrize("seed", [[7, 9], (7, 9), np.array([7, 9]), range(7, 10, 2)])
    def test_one_for_each_row(self, seed):
        assert row_bases(seed, 2, "m") == [7, 9]

    def test_row_of_a_batch_is_the_seed_of_its_own(self):
        assert row_bases(row_bases(7, 6, "m")[5:], 1, "m") == row_bases(7, 6, "m")[5:]

    @pytest.mark.parametrize(
        ("seed", "error"),
        [
            (-1, ValueError),
            (2**64, ValueError),
            ([1, 2, 3], ValueError),
            ([], ValueError),
            (1.0, TypeError),
            (True, TypeError),
            ("1", TypeError),
            ([1, None], TypeError),
            (np.array([1.0, 2.0]), TypeError),
        ],
    )
    def test_refused(self, seed, error):
        with pytest.raises(error, match=r"^CausalLM\.generate: seed"):
            row_bases(seed, 2, "CausalLM.generate")

    def test_fresh_ones_differ_and_survive_a_float(self):
        seeds = [fresh_seed() for _ in range(50)]
        assert len(set(seeds)) == 50
        assert all(int(float(seed)) == seed and 0 <= seed < 2**53 for seed in seeds)
