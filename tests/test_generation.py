"""Generation: rows do not disturb each other, stop where they should, and a seed means one text."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import write_model

from mojolearn.models.causal_lm import CausalLM

DRAW = {"greedy": False, "temperature": 1.3}
IDS = st.lists(st.integers(0, 39), min_size=3, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def lm(folder):
    return CausalLM.load(folder)


def by_hand(lm, ids, n):
    """Greedy tokens by running the whole text again for each."""
    ids = list(ids)
    for _ in range(n):
        ids.append(int(np.argmax(lm.forward([ids])[0, -1])))
    return ids


@given(st.lists(IDS, min_size=1, max_size=3))
def test_greedy_is_the_best_token_every_time(lm, ids):
    out = lm.generate(ids, 4)
    assert out.dtype == np.int64
    assert out.tolist() == [by_hand(lm, row, 4) for row in ids]


@given(st.lists(IDS, min_size=1, max_size=4), st.integers(0, 2**64 - 1))
def test_a_row_of_a_batch_is_that_row_alone(lm, ids, seed):
    seeds = [(seed + 3 * i) % 2**64 for i in range(len(ids))]
    out = lm.generate(ids, 5, seed=seeds, **DRAW)
    for row, own, text in zip(ids, seeds, out):
        assert lm.generate([row], 5, seed=[own], **DRAW).tolist() == [text.tolist()]
        assert lm.generate([row], 5, seed=own, **DRAW).tolist() == [text.tolist()]


def test_place_and_neighbours_do_not_matter(lm):
    alone = lm.generate([[5, 6]], 12, seed=7, **DRAW)[0]
    batch = lm.generate([[1, 2]] * 5 + [[5, 6]] + [[3, 4]] * 2, 12, seed=[9, 8, 9, 8, 9, 7, 1, 2], **DRAW)
    np.testing.assert_array_equal(batch[5], alone)


def test_neighbour_that_stops_early_does_not_matter(lm):
    prompts = [[5, 6], [1, 2]]
    free = lm.generate(prompts, 12, seed=[7, 8], **DRAW)
    stop = int(next(i for i in free[1, 2:] if i not in free[0, 2:]))
    stopped = lm.generate(prompts, 12, seed=[7, 8], eos_token_id=stop, **DRAW)
    np.testing.assert_array_equal(stopped[0], free[0])
    assert stopped[1].tolist() != free[1].tolist()


def test_one_seed_gives_rows_of_their_own(lm):
    out = lm.generate([[5, 6]] * 4, 12, seed=7, **DRAW)
    assert len({tuple(row) for row in out.tolist()}) == 4
    np.testing.assert_array_equal(out, lm.generate([[5, 6]] * 4, 12, seed=7, **DRAW))


def test_seeds_differ_and_repeat_also_in_another_process(lm, folder):
    texts = {seed: lm.generate([[5, 6]], 12, seed=seed, **DRAW).tolist() for seed in range(5)}
    assert len({str(text) for text in texts.values()}) == 5
    source = (
        f"from mojolearn.models.causal_lm import CausalLM; lm = CausalLM.load({str(folder)!r}); "
        f"print([lm.generate([[5, 6]], 12, seed=s, **{DRAW}).tolist() for s in range(5)])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(list(texts.values()))


def test_without_a_seed_every_text_is_new_and_can_be_repeated(lm):
    streams = [lm.stream([[5, 6]], 20, **DRAW) for _ in range(3)]
    texts = [[int(new[0]) for new in stream] for stream in streams]
    assert len({tuple(text) for text in texts}) == 3
    for stream, text in zip(streams, texts):
        assert lm.generate([[5, 6]], 20, seed=stream.seed, **DRAW)[0, 2:].tolist() == text


@pytest.mark.parametrize("options", [{}, {"seed": 3, **DRAW}])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_stream_gives_what_generate_gives(lm, options, batch_size):
    ids = np.arange(2 * batch_size).reshape(batch_size, 2)
    pieces = list(lm.stream(ids, 6, **options))
    assert all(new.shape == (batch_size,) and new.dtype == np.int64 for new in pieces)
    np.testing.assert_array_equal(np.column_stack([ids, *pieces]), lm.generate(ids, 6, **options))


def test_options_take_effect(lm):
    """Of each option, two values give two texts; so none is dropped on the way."""
    plain = lm.generate([[5, 6]], 30, seed=1, greedy=False).tolist()
    for options in ({"temperature": 0.1}, {"top_k": 2}, {"top_p": 0.2}, {"min_p": 0.9}):
        assert lm.generate([[5, 6]], 30, seed=1, greedy=False, **options).tolist() != plain
    greedy = lm.generate([[5, 6]], 30).tolist()
    for options in ({"top_k": 1}, {"top_p": 1e-8}, {"min_p": 1.0}, {"temperature": 1e-30}):
        assert lm.generate([[5, 6]], 30, seed=1, greedy=False, **options).tolist() == greedy


@pytest.fixture(scope="module")
def free(lm):
    """Three texts that nothing has stopped."""
    return lm.generate([[5, 6], [1, 2], [3, 9]], 10, seed=5, **DRAW)


class TestStopping:
    @pytest.mark.parametrize("form", [list, tuple, np.array])
    def test_every_eos_id_stops_its_row(self, lm, free, form):
        """Row 0 ends at one id, row 1 at another; both ids are kept, and pads follow."""
        eos = [int(free[0, 4]), int(free[1, 6])]
        out = lm.generate(free[:, :2], 10, seed=5, eos_token_id=form(eos), pad_token_id=39, **DRAW)
        for row, text in zip(out, free):
            ends = [n for n in range(2, 12) if text[n] in eos]
            end = ends[0] + 1 if ends else 12
            np.testing.assert_array_equal(row[:end], text[:end])
            assert (row[end:] == 39).all()
        assert (out == 39).any()

    def test_one_id_and_its_own_padding(self, lm, free):
        eos = int(free[0, 4])
        out = lm.generate(free[:1, :2], 10, seed=5, eos_token_id=eos, **DRAW)
        first = free[0, 2:].tolist().index(eos)
        assert out[0, 2 + first :].tolist() == [eos] * (10 - first)

    def test_stream_ends_when_all_rows_have(self, lm, free):
        eos = [int(i) for i in free[:, 3]]
        assert len(list(lm.stream(free[:, :2], 10, seed=5, eos_token_id=eos, **DRAW))) <= 2

    def test_none_never_stops(self, lm):
        assert lm.generate([[5, 6]], 40).shape == (1, 42)

    def test_eos_in_the_prompt_does_not_count(self, lm):
        assert len(list(lm.stream([[7, 7]], 3, eos_token_id=7, seed=1, **DRAW))) > 0


def test_no_new_tokens(lm):
    assert lm.generate([[5, 6]], 0).tolist() == [[5, 6]]
    assert list(lm.stream([[5, 6]], 0)) == []


def test_up_to_the_last_position(lm):
    """64 positions: the last token is given out, not run."""
    assert lm.generate([[5] * 60], 5).shape == (1, 65)
    assert lm.generate([[5] * 64], 1).shape == (1, 65)
    with pytest.raises(
        ValueError, match=r"^CausalLM\.generate: the call reaches position 64, but max_positions=64"
    ):
        lm.generate([[5] * 60], 6)
    with pytest.raises(ValueError, match="max_positions=64"):
        lm.generate([[5] * 65], 1)
    with pytest.raises(ValueError, match=r"^CausalLM\.stream: the call reaches position 64"):
        lm.stream([[5]], 65)  # at the call, not 64 tokens later


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([[5]], -1), ValueError, ["max_new_tokens", "-1"]),
        (([[5]], 2.0), TypeError, ["max_new_tokens", "2.0"]),
        (([[5]], True), TypeError, ["max_new_tokens", "True"]),
        (([5], 2), ValueError, ["ids", "(1,)"]),
        (([[40]], 2), ValueError, ["ids[0, 0]", "40"]),
        (([[5]], 2, {"eos_token_id": 40}), ValueError, ["eos_token_id", "40"]),
        (([[5]], 2, {"eos_token_id": [1, -1]}), ValueError, ["eos_token_id", "-1"]),
        (([[5]], 2, {"eos_token_id": 1.0}), TypeError, ["eos_token_id", "1.0"]),
        (([[5]], 2, {"pad_token_id": 40}), ValueError, ["pad_token_id", "40"]),
        (([[5]], 2, {"seed": [1, 2], **DRAW}), ValueError, ["seed has 2 entries", "1 row;"]),
        (([[5]], 2, {"seed": 1}), ValueError, ["seed=1", "greedy"]),
        (([[5, 2**70]], 2), ValueError, ["ids[0, 1]", "from 0 to 39", str(2**70)]),
        (([[5]], 2, {"temperature": 0.5}), ValueError, ["temperature=0.5", "greedy"]),
        (([[5]], 2, {"temprature": 0.5}), TypeError, ["temprature"]),
    ],
)
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_refused_at_the_call(lm, method, arguments, error, words):
    *positional, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(error) as caught:
        getattr(lm, method)(*positional, **options)
    for word in words:
        assert word in str(caught.value)


def test_prompt_makes_no_logits_for_all_positions(tmp_path):
    """2000 tokens times 50 000 ids would be 400 MB."""
    lm = CausalLM.load(write_model(tmp_path, vocab_size=50_000, max_position_embeddings=4096, hidden_size=8))
    ids = np.arange(2000)[None]
    lm.generate(ids[:, :2], 1)
    tracemalloc.start()
    lm.generate(ids, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
