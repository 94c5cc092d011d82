"""Generation: rows do not disturb each other, stop where they should, and a seed means one text."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import write_model

from mojolearn import threads
from mojolearn.log_softmax import log_softmax
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.logits import LogitRules

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
        (([[5, 6], [40]], 2), ValueError, ["ids[1, 0]", "40"]),
        (([[5, 6], [1.5]], 2), TypeError, ["ids[1, 0]", "1.5"]),
        (([[5], []], 2), ValueError, ["ids[1]", "at least one token"]),
        (([[5], [[6]]], 2), TypeError, ["ids[1, 0]", "[6]"]),
        (([[5]], 2, {"eos_token_id": [[1], [2]]}), ValueError, ["eos_token_id has lists for 2 rows", "1"]),
        (([[5]], 2, {"repetition_penalty": 0}), ValueError, ["repetition_penalty", "0"]),
        (([[5]], 2, {"repetition_penalty": "1"}), TypeError, ["repetition_penalty", "'1'"]),
        (([[5]], 2, {"logit_bias": [1]}), TypeError, ["logit_bias", "list"]),
        (([[5]], 2, {"logit_bias": {40: 1.0}}), ValueError, ["logit_bias", "40"]),
        (([[5]], 2, {"logit_bias": {"1": 1.0}}), TypeError, ["logit_bias", "'1'"]),
        (([[5]], 2, {"logit_bias": {1: "a"}}), TypeError, ["logit_bias[1]", "'a'"]),
        (([[5]], 2, {"logit_bias": {1: np.inf}}), ValueError, ["logit_bias[1]", "inf"]),
        (([[5]], 2, {"logit_bias": {1: np.nan}}), ValueError, ["logit_bias[1]", "nan"]),
        (([[5]], 2, {"logits_processor": 3}), TypeError, ["logits_processor", "int"]),
        (([[5]], 2, {"logprobs": -1}), ValueError, ["logprobs", "-1"]),
        (([[5]], 2, {"logprobs": 41}), ValueError, ["logprobs", "41"]),
        (([[5]], 2, {"logprobs": True}), TypeError, ["logprobs", "True"]),
        (([[5]], 2, {"state": 3}), TypeError, ["state", "int"]),
        (([[5]], 2, {"stop": "a", "tokenizer": 3}), TypeError, ["stop needs tokenizer", "int"]),
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


class TestRagged:
    """Prompts of several lengths: each row is that row alone."""

    PROMPTS = [[5, 6], [1], [7, 8, 9, 3], [2, 2], [4] * 9]  # noqa: RUF012 (never changed)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            DRAW,
            {"repetition_penalty": 1.3},
            {**DRAW, "logit_bias": {3: 2.0}, "top_k": 9, "eos_token_id": [11, 23]},
        ],
    )
    def test_rows_are_those_alone(self, lm, options):
        seeds = [3, 1, 4, 1, 5]
        out = lm.generate(self.PROMPTS, 9, **options, **({"seed": seeds} if "greedy" in options else {}))
        assert isinstance(out, list)
        for prompt, seed, row in zip(self.PROMPTS, seeds, out):
            own = {"seed": [seed]} if "greedy" in options else {}
            assert row.tolist() == lm.generate([prompt], 9, **options, **own)[0].tolist()

    def test_log_probabilities_too(self, lm, bits):
        out, logprobs = lm.generate(self.PROMPTS, 5, logprobs=3)
        for b, prompt in enumerate(self.PROMPTS):
            alone, own = lm.generate([prompt], 5, logprobs=3)
            assert out[b].tolist() == alone[0].tolist()
            np.testing.assert_array_equal(bits(logprobs.chosen[b]), bits(own.chosen[0]))
            np.testing.assert_array_equal(bits(logprobs.top[b]), bits(own.top[0]))
            np.testing.assert_array_equal(logprobs.top_ids[b], own.top_ids[0])

    @pytest.mark.parametrize("form", [tuple, np.array, lambda row: [np.int32(i) for i in row]])
    def test_rows_of_any_kind(self, lm, form):
        out = lm.generate([form(row) for row in self.PROMPTS], 3)
        assert [row.tolist() for row in out] == [row.tolist() for row in lm.generate(self.PROMPTS, 3)]

    def test_stream(self, lm):
        stream = lm.stream(self.PROMPTS, 4)
        new = np.column_stack(list(stream))
        whole = lm.generate(self.PROMPTS, 4)
        assert [row.tolist() for row in stream.ids] == [row.tolist() for row in whole]
        for prompt, row, full in zip(self.PROMPTS, new, whole):
            assert [*prompt, *row] == full.tolist()


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_rotations_by_length(tmp_path, bits, scaling):
    """They go by prompt and new tokens together, for each row alone; `score` by the text, as `forward` does."""
    fields = {"factor": 4.0, "original_max_position_embeddings": 8}
    if scaling == "longrope":
        fields |= {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
    lm = CausalLM.load(
        write_model(tmp_path, rope_scaling={"rope_type": scaling, **fields}, max_position_embeddings=8),
        max_positions=64,
    )
    prompts = [[5, 6], [1] * 6, [7, 8, 9]]
    rows = lm.generate(prompts, 5)
    stream = lm.stream(prompts, 5)
    next(stream), next(stream)
    stream.save(tmp_path / "s.npz")
    list(later := lm.resume(tmp_path / "s.npz"))
    for prompt, row, resumed in zip(prompts, rows, later.ids):
        assert row.tolist() == lm.generate([prompt], 5)[0].tolist() == resumed.tolist()
        state = lm.allocate_state(1, len(row) - 1)
        logits = [
            lm.forward([prompt], state)[0, -1],
            *(lm.step([i], state)[0] for i in row[len(prompt) : -1]),
        ]
        assert row[len(prompt) :].tolist() == [int(np.argmax(own)) for own in logits]
        wanted = log_softmax(lm.forward([row])[0], "m")
        scores = np.array([wanted[t, row[t + 1]] for t in range(len(row) - 1)])
        np.testing.assert_array_equal(bits(lm.score([row])[0]), bits(scores))


@pytest.mark.parametrize("options", [{}, {"seed": [3, 1, 4], **DRAW}])
def test_threads_do_not_matter(lm, monkeypatch, options):
    """Serial and parallel twins of all kernels."""
    prompts = [[5, 6], [1], [7, 8]]
    texts = []
    for small in (0, 2**60):
        monkeypatch.setattr(threads, "SMALL", small)
        out, logprobs = lm.generate(prompts, 8, logprobs=2, **options)
        texts.append(([row.tolist() for row in out], logprobs.chosen.view(np.uint32).tolist()))
    assert texts[0] == texts[1]


class TestFinishReasons:
    def test_each(self, lm, free):
        eos = [[int(free[0, 4])], [int(free[1, 6])], []]
        stream = lm.stream(free[:, :2], 10, seed=5, eos_token_id=eos, pad_token_id=39, **DRAW)
        assert stream.finish_reasons == [None] * 3
        list(stream)
        assert stream.finish_reasons == ["eos", "eos", "length"]
        first = [free[0, 2:].tolist().index(eos[0][0]) + 1, free[1, 2:].tolist().index(eos[1][0]) + 1, 10]
        assert [len(ids) - 2 for ids in stream.ids] == first

    def test_eos_of_one_row_is_a_token_of_another(self, lm, free):
        """A list of lists: each row has ids of its own, also none."""
        eos = int(free[0, 4])
        out = lm.generate(free[:1, :2].repeat(2, 0), 10, seed=[5, 5], eos_token_id=[[eos], []], **DRAW)
        assert out[1].tolist() == free[0].tolist()
        assert out[0].tolist() != free[0].tolist()


class TestRules:
    """Penalty, bias and hook, in this order; then the token is chosen."""

    @staticmethod
    def next_token(lm, **options):
        return int(lm.generate([[5, 6, 6, 9]], 1, **options)[0, -1])

    @pytest.fixture
    def logits(self, lm):
        return lm.forward([[5, 6, 6, 9]])[0, -1]

    def applied(self, logits, **options):
        return LogitRules("m", 40, **options).apply(logits, np.array([5, 6, 6, 9]))

    def test_penalty_weakens_both_signs_once(self):
        logits = np.float32([-2, 2, 0.5, 0, 1] + [7] * 35)
        got = LogitRules("m", 40, repetition_penalty=1.3).apply(logits, np.array([0, 1, 1, 3]))
        wanted = logits.copy()
        wanted[0], wanted[1] = np.float32(-2) * np.float32(1.3), np.float32(2) / np.float32(1.3)
        np.testing.assert_array_equal(got, wanted)
        assert logits[1] == 2  # the model's own are left alone

    def test_penalty_counts_prompt_and_new_tokens(self, lm):
        """A large one forbids what was there; without bias, no token comes twice as long as others are left."""
        out = lm.generate([[5, 6]], 30, repetition_penalty=1e30)[0].tolist()
        assert len(set(out)) == len(out)

    def test_bias(self, lm, logits):
        best = self.next_token(lm)
        assert self.next_token(lm, logit_bias={best: -np.inf}) == int(np.argsort(-logits)[1])
        assert self.next_token(lm, logit_bias={7: 1e6}) == 7
        assert self.next_token(lm, logit_bias={7: 1e6, 3: 2e6}) == 3
        np.testing.assert_array_equal(
            self.applied(logits, logit_bias={7: 0.1}),
            logits + np.float32([0.1 if i == 7 else 0 for i in range(40)]),
        )

    def test_order(self, logits):
        """Penalty before bias, bias before the hook."""

        def hook(ids, given):
            return given * np.float32(3)

        got = self.applied(logits, repetition_penalty=1.7, logit_bias={6: 0.3}, logits_processor=hook)
        wanted = logits.copy()
        for i in (5, 6, 9):
            wanted[i] = wanted[i] / np.float32(1.7) if wanted[i] > 0 else wanted[i] * np.float32(1.7)
        wanted[6] += np.float32(0.3)
        np.testing.assert_array_equal(got, wanted * np.float32(3))

    def test_hook_in_place_or_returned(self, lm):
        def in_place(ids, logits):
            logits[:] = -np.inf
            logits[17] = 0

        assert self.next_token(lm, logits_processor=in_place) == 17
        assert self.next_token(lm, logits_processor=lambda ids, logits: np.float32(np.arange(40) == 23)) == 23

    def test_hook_sees_its_row_so_far(self, lm):
        calls = []

        def hook(ids, logits):
            calls.append(ids.tolist())
            assert ids.dtype == np.int64
            assert logits.dtype == np.float32
            assert logits.shape == (40,)
            ids[:] = 0  # its own copy

        prompts = [[5, 6], [1]]
        out = lm.generate(prompts, 3, logits_processor=hook)
        assert [row.tolist() for row in out] == [row.tolist() for row in lm.generate(prompts, 3)]
        for row, text in enumerate(out):
            assert calls[row::2] == [text[: len(prompts[row]) + n].tolist() for n in range(3)]

    def test_hook_is_not_asked_for_ended_rows(self, lm, free):
        asked = []
        eos = [[int(free[0, 2])], [], []]
        hook = lambda ids, logits: asked.append(len(ids))  # noqa: E731
        lm.generate(free[:, :2], 4, seed=5, eos_token_id=eos, logits_processor=hook, **DRAW)
        assert asked == [2] * 3 + [3] * 2 + [4] * 2 + [5] * 2

    @pytest.mark.parametrize(
        ("answer", "error", "words"),
        [
            (3, TypeError, "must return None or an ndarray of float32, not int"),
            (np.zeros(40), TypeError, "not an array of float64"),
            (np.zeros(39, np.float32), ValueError, r"shape \(40,\), not \(39,\)"),
            (np.full(40, np.nan, np.float32), ValueError, "the largest logit must be finite"),
            (np.full(40, -np.inf, np.float32), ValueError, "no token is left to choose"),
        ],
    )
    def test_hook_that_answers_wrongly(self, lm, answer, error, words):
        with pytest.raises(error, match=rf"^CausalLM\.generate: .*{words}"):
            self.next_token(lm, logits_processor=lambda ids, logits: answer)

    def test_what_changes_nothing(self, lm):
        plain = lm.generate([[5, 6]], 9).tolist()
        same = {"repetition_penalty": 1, "logit_bias": {}, "logits_processor": lambda ids, logits: None}
        assert lm.generate([[5, 6]], 9, **same).tolist() == plain


class TestLogprobs:
    @pytest.mark.parametrize(
        "options", [{}, {"seed": 3, "temperature": 2.0, "repetition_penalty": 1.5, "greedy": False}]
    )
    def test_those_of_score(self, lm, bits, options):
        """The model's own, whatever the tokens were chosen by."""
        out, logprobs = lm.generate([[5, 6], [1, 2]], 7, logprobs=0, **options)
        np.testing.assert_array_equal(bits(logprobs.chosen), bits(lm.score(out)[:, 1:]))
        assert logprobs.top.shape == logprobs.top_ids.shape == (2, 7, 0)

    def test_best_ones(self, lm, bits):
        out, logprobs = lm.generate([[5, 6]], 4, logprobs=5)
        np.testing.assert_array_equal(logprobs.top_ids[:, :, 0], out[:, 2:])
        np.testing.assert_array_equal(bits(logprobs.top[:, :, 0]), bits(logprobs.chosen))
        logits = lm.forward(out[:, :-1])[0, 1:]
        for place, row in enumerate(logits):
            assert logprobs.top_ids[0, place].tolist() == np.argsort(-row, kind="stable")[:5].tolist()
            wanted = (row - row.max()).astype(np.float64)
            wanted -= np.log(np.exp(wanted).sum())
            np.testing.assert_allclose(logprobs.top[0, place], wanted[logprobs.top_ids[0, place]], atol=1e-6)

    def test_all_of_them_are_a_distribution(self, lm):
        logprobs = lm.generate([[5, 6]], 2, logprobs=40)[1]
        assert sorted(logprobs.top_ids[0, 0].tolist()) == list(range(40))
        np.testing.assert_allclose(np.exp(logprobs.top.astype(np.float64)).sum(-1), 1, atol=1e-6)

    def test_ended_rows_have_none(self, lm, free):
        stop = int(free[1, 4])
        logprobs = lm.generate(free[:, :2], 10, seed=5, eos_token_id=[[], [stop], []], logprobs=1, **DRAW)[1]
        end = free[1, 2:].tolist().index(stop) + 1
        assert np.isnan(logprobs.chosen[1, end:]).all()
        assert (logprobs.top_ids[1, end:] == -1).all()
        assert np.isfinite(logprobs.chosen[1, :end]).all()
        assert np.isfinite(logprobs.chosen[[0, 2]]).all()

    def test_as_they_come(self, lm):
        stream = lm.stream([[5, 6]], 4, logprobs=2)
        next(stream), next(stream)
        assert stream.logprobs.chosen.shape == (1, 2)
        assert stream.logprobs.top.shape == (1, 2, 2)
        assert lm.stream([[5, 6]], 4).logprobs is None


@pytest.fixture(scope="module", params=[{}, {"model_type": "mistral", "sliding_window": 4}])
def model(request, tmp_path_factory):
    """Without a window and with one."""
    return CausalLM.load(write_model(tmp_path_factory.mktemp("state"), **request.param))


class TestState:
    """Calls with one state continue one text."""

    @pytest.mark.parametrize("options", [{}, {"seed": 3, **DRAW}])
    @pytest.mark.parametrize("lengths", [(3, 4, 2, 5), (1, 1, 1, 1), (6, 0, 7, 1)])
    def test_turns_equal_one_text(self, model, options, lengths):
        first, n, second, m = lengths
        p1, p2 = np.arange(2 * first).reshape(2, -1) % 40, np.arange(2 * second).reshape(2, -1) % 7 + 9
        state = model.allocate_state(2, 40)
        one = model.generate(p1, n, state=state, **options)
        assert state.cached_tokens == one.shape[1]
        two = model.generate(p2, m, state=state, **options)
        whole = np.hstack([one, p2])
        np.testing.assert_array_equal(np.hstack([one, two]), model.generate(whole, m, **options))
        cold = model.allocate_state(2, 40)
        model.forward(np.hstack([one, two]), cold)
        assert state == cold

    def test_eos_is_in_it(self, model):
        free = model.generate([[5, 6]], 9, **DRAW, seed=1)
        eos = int(free[0, 5])
        state = model.allocate_state(1, 30)
        out = model.generate([[5, 6]], 9, state=state, eos_token_id=eos, **DRAW, seed=1)
        end = 3 + free[0, 2:].tolist().index(eos)
        assert state.cached_tokens == end
        np.testing.assert_array_equal(out[0, :end], free[0, :end])

    def test_stream_writes_at_its_end(self, model):
        state = model.allocate_state(1, 30)
        with model.stream([[5, 6]], 9, state=state) as stream:
            ids = [5, 6, *(int(next(stream)[0]) for _ in range(4))]
            assert state.cached_tokens == 0
        assert state.cached_tokens == 6
        cold = model.allocate_state(1, 30)
        model.forward([ids], cold)
        assert state == cold
        assert list(stream) == []

    def test_stream_that_is_never_used(self, model):
        state = model.allocate_state(1, 30)
        model.stream([[5, 6]], 9, state=state).close()
        assert state.cached_tokens == 2

    def test_failure_changes_nothing(self, model):
        state = model.allocate_state(1, 30)
        model.generate([[5, 6]], 3, state=state)
        before = state.copy()

        def fails(ids, logits):
            if len(ids) == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.generate([[7]], 9, state=state, logits_processor=fails)
        assert state == before
        with (
            pytest.raises(KeyboardInterrupt),
            model.stream([[7]], 9, state=state, logits_processor=fails) as stream,
        ):
            list(stream)
        assert state == before

    def test_room(self, model):
        """Room for what is returned, also for the last token; refused before anything is written."""
        state = model.allocate_state(1, 8)
        model.generate([[5, 6, 7]], 2, state=state)
        before = state.copy()
        for prompt, n in ([1, 2, 3], 1), ([1, 2, 3, 4], 0), ([1], 3):
            with pytest.raises(
                ValueError, match=r"holds 5 tokens and has room for max_tokens=8; \d more do not fit"
            ):
                model.generate([prompt], n, state=state)
            assert state == before
        model.generate([[1, 2]], 1, state=state)
        assert state.cached_tokens == 8

    def test_changed_meanwhile(self, model):
        state = model.allocate_state(1, 30)
        stream = model.stream([[5, 6]], 3, state=state)
        model.forward([[9]], state)
        with pytest.raises(
            ValueError, match="the state has changed since the stream began, from 0 tokens to 1"
        ):
            list(stream)
        assert state.cached_tokens == 1
        assert list(stream) == []

    def test_refused(self, model):
        state = model.allocate_state(2, 30)
        with pytest.raises(
            ValueError, match="with a state the prompts must have one length, but they have 1, 2"
        ):
            model.generate([[5, 6], [1]], 2, state=state)
        with pytest.raises(ValueError, match="has 2 rows, but ids has 1"):
            model.generate([[5, 6]], 2, state=state)
        model.forward([[1], [2]], state)
        with pytest.raises(ValueError, match="repetition_penalty needs all tokens of a row"):
            model.generate([[5], [6]], 2, state=state, repetition_penalty=1.1)
        with model.decode_session(state), pytest.raises(ValueError, match="in an open decode session"):
            model.generate([[5], [6]], 2, state=state)

    def test_state_of_another_shape(self, lm, tmp_path):
        other = CausalLM.load(write_model(tmp_path, num_key_value_heads=4))
        with pytest.raises(ValueError, match="layer 0: the state has n_kv_heads=4, but the block has 2"):
            lm.generate([[5]], 2, state=other.allocate_state(1, 9))


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
