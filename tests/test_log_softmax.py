"""Log-probabilities: the written order, bit for bit, near the exact values, whatever the rows and threads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import write_model

from mojolearn import threads
from mojolearn.float32 import exp, log
from mojolearn.log_softmax import log_softmax, normalizers
from mojolearn.models.causal_lm import CausalLM

SIZES = [1, 2, 15, 16, 17, 40, 2047, 2048, 2049, 2064, 5000, 49152]


def logits_of(rng, *shape):
    return (4 * rng.standard_normal(shape)).astype(np.float32)


def folded(parts):
    """Neighbours added until one is left; an odd last one moves up."""
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2])]
        parts = pairs + parts[-1:] if len(parts) % 2 else pairs
    return parts[0]


def by_the_page(row):
    """Section 8 of the numerics page, sentence by sentence."""
    largest = row.max()
    terms = (
        [exp(row[i : i + 1] - largest)[0] for i in range(len(row))] if len(row) < 50 else exp(row - largest)
    )
    sums = []
    for j in range(16):
        mine = terms[j::16]
        k = -(-len(row) // 16)
        leaf = k if k <= 128 else 128 if -(-k // 128) <= 1024 else -(-k // 1024)
        leaves = [np.float32(0)] * -(-k // leaf)
        for i, term in enumerate(mine):
            leaves[i // leaf] = leaves[i // leaf] + term
        sums.append(folded(leaves))
    return (row - largest) - log(np.float32(folded(sums)))


@pytest.mark.parametrize("size", [*SIZES, 16 * 128 * 1025 + 5])
def test_written_order(rng, bits, size):
    logits = logits_of(rng, 1 if size > 10**6 else 2, size)
    np.testing.assert_array_equal(
        bits(log_softmax(logits, "m")), bits(np.stack([by_the_page(row) for row in logits]))
    )


@pytest.mark.parametrize("size", SIZES)
def test_near_the_exact_values(rng, size):
    logits = logits_of(rng, 3, size)
    wide = logits.astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    exact = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    np.testing.assert_allclose(log_softmax(logits, "m"), exact, rtol=2e-7, atol=1e-6)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_rows_and_threads_do_not_matter(n_rows, size, seed):
    logits = logits_of(np.random.default_rng(seed), n_rows, size)
    together = log_softmax(logits, "m").view(np.uint32)
    alone = np.vstack([log_softmax(row[None], "m") for row in logits]).view(np.uint32)
    small = threads.SMALL
    try:
        threads.SMALL = 0
        parallel = log_softmax(logits, "m").view(np.uint32)
    finally:
        threads.SMALL = small
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, parallel)


def test_extremes():
    row = np.float32([[3e38, -3e38, 0], [-3e38, -3e38, -3e38], [1e-45, 0, -0.0], [100, -100, 100]])
    got = log_softmax(row, "m")
    np.testing.assert_array_equal(got[0], np.float32([0, -np.inf, -3e38]))
    np.testing.assert_allclose(got[1:3], -np.log(3), rtol=1e-6)
    np.testing.assert_allclose(got[3], [-np.log(2), -200 - np.log(2), -np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad):
    logits = np.zeros((3, 40), np.float32)
    logits[1, 17] = bad
    with pytest.raises(ValueError, match=r"^m: logit 17 of row 1 is (nan|inf), not a finite number$"):
        normalizers(logits, "m")


class TestScore:
    @pytest.fixture(scope="class", params=[{}, {"model_type": "mistral", "sliding_window": 4}])
    @classmethod
    def lm(cls, request, tmp_path_factory):
        path = tmp_path_factory.mktemp("score")
        return CausalLM.load(write_model(path, **request.param, max_position_embeddings=1024))

    @pytest.mark.parametrize("length", [1, 2, 9, 256, 257, 258, 600])
    def test_is_log_softmax_of_forward(self, lm, rng, bits, length):
        """Also where a text is computed in several chunks."""
        ids = rng.integers(0, 40, (2, length))
        scores = lm.score(ids)
        assert scores.shape == (2, length - 1)
        assert scores.dtype == np.float32
        whole = log_softmax(lm.forward(ids).reshape(-1, 40), "m").reshape(2, length, 40)
        wanted = np.take_along_axis(whole[:, :-1], ids[:, 1:, None], 2)[:, :, 0]
        np.testing.assert_array_equal(bits(scores), bits(np.ascontiguousarray(wanted)))

    def test_texts_of_several_lengths(self, lm, bits):
        texts = [[5, 6, 7], [1], [2, 2]]
        scores = lm.score(texts)
        assert [score.shape for score in scores] == [(2,), (0,), (1,)]
        for text, score in zip(texts, scores):
            np.testing.assert_array_equal(bits(score), bits(lm.score([text])[0]))

    def test_refused(self, lm):
        with pytest.raises(ValueError, match=r"^CausalLM\.score: the call reaches position 1024"):
            lm.score([[1] * 1025])
        with pytest.raises(ValueError, match=r"^CausalLM\.score: ids has shape"):
            lm.score([1, 2])
        with pytest.raises(ValueError, match=r"ids\[1, 0\] must be from 0 to 39, not 40"):
            lm.score([[1, 2], [40]])


def test_soft_capped_logits_are_scored_as_they_are(tmp_path, bits):
    """The numbers come from what `forward` returns, so whatever is done to logits is in them."""
    lm = CausalLM.load(write_model(tmp_path))
    run = CausalLM._run
    try:
        CausalLM._run = lambda self, *args, **named: np.tanh(run(self, *args, **named))
        scores = lm.score([[5, 6, 7]])[0]
        wanted = log_softmax(lm.forward([[5, 6, 7]])[0], "m")
    finally:
        CausalLM._run = run
    np.testing.assert_array_equal(bits(scores), bits(np.float32([wanted[0, 6], wanted[1, 7]])))
