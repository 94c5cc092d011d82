"""Stop strings: found across tokens and characters, in new text only, and never shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.stopping import StopStrings


@pytest.fixture(scope="module")
def lm():
    return CausalLM.load(BUILT_IN)


@pytest.fixture(scope="module")
def emma(lm):
    """The ids of a prompt, and how the model goes on."""
    return lm.tokenizer.encode(
        "Emma was"
    ), " the first time of her being at home, and the first to be in the room"


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_pieces_are_the_text_before_the_first(pieces, strings):
    """Character by character the earliest end decides; held back is only what may be a beginning."""
    stop, out = StopStrings(strings), ""
    for i, piece in enumerate(pieces):
        out += stop.step(piece)
        text = "".join(pieces[: i + 1])
        found = any(string in text for string in strings)
        assert stop.found == found
        assert text.startswith(out)
        if found:
            assert any(text[len(out) :].startswith(string) for string in strings)
            assert not any(string in out for string in strings)
        else:
            held = text[len(out) :]
            assert held == "" or any(string.startswith(held) and string != held for string in strings)
    if not stop.found:
        assert out + stop.flush() == "".join(pieces)
    assert stop.flush() == ""


@pytest.mark.parametrize("stop", ["time of", "e of h", " being at home,", "t", "first"])
def test_text_ends_before_it(lm, emma, stop):
    ids, text = emma
    got = lm.generate_text("Emma was", 25, stop=stop)
    assert got == "Emma was" + text[: text.index(stop)]
    assert "".join(lm.stream_text(ids, 25, stop=[stop, "never"])) == text[: text.index(stop)]


def test_row_keeps_the_token_that_completes_it(lm, emma):
    ids, _ = emma
    free = lm.generate([ids], 25)[0]
    out = lm.generate([ids], 25, stop="being", pad_token_id=7)[0]
    end = next(n for n in range(len(free)) if "being" in lm.tokenizer.decode(free[: n + 1])) + 1
    assert out[:end].tolist() == free[:end].tolist()
    assert (out[end:] == 7).all()
    assert "being" in lm.tokenizer.decode(out[:end])


def test_prompt_does_not_count(lm):
    assert len(lm.generate_text("Emma was the first", 5, stop=["Emma", "first"])) > len("Emma was the first")


def test_each_row_for_itself(lm, emma):
    ids, _ = emma
    stream = lm.stream([ids, ids, ids, ids[:2]], 12, stop=[["first"], ["time"], [], []])
    list(stream)
    assert stream.finish_reasons == ["stop", "stop", "length", "length"]
    lengths = [len(row) for row in stream.ids]
    assert lengths[0] < lengths[1] < lengths[2]
    for row, stop in zip(range(3), (["first"], ["time"], [])):
        assert (
            lm.generate([ids], 12, stop=stop)[0].tolist()
            == lm.generate([ids] * 3, 12, stop=[["first"], ["time"], []])[row].tolist()
        )


def test_one_of_several(lm, emma):
    text = emma[1]
    assert lm.generate_text("Emma was", 25, stop=("home", "time")) == "Emma was" + text[: text.index("time")]


def test_held_back_while_it_may_be_one(lm):
    """No piece shows the beginning of a stop string that is then completed; one that is not comes out."""
    pieces = list(lm.stream_text("Emma was", 8, stop="time of his"))
    assert "".join(pieces) == " the first time of her being at home"
    assert pieces[:4] == [" the", " firs", "t ", "time of her"]


@pytest.mark.parametrize(
    ("stop", "error", "words"),
    [
        ("", ValueError, "an empty string"),
        (["a", ""], ValueError, "an empty string"),
        (3, TypeError, "stop must be a string or a list of strings, not 3"),
        ([3], TypeError, "stop must be a string or a list of strings, not 3"),
        ([["a"], ["b"]], ValueError, "stop has lists for 2 rows, but ids has 1"),
        ("<|endoftext|>", ValueError, r"is a special token, which is never part of a text; .*eos_token_id=0"),
    ],
)
def test_refused(lm, stop, error, words):
    with pytest.raises(error, match=rf"^CausalLM\.generate: .*{words}"):
        lm.generate([[5]], 2, stop=stop)


def test_nothing_to_look_for(lm, emma):
    ids, _ = emma
    assert lm.generate([ids], 5, stop=[]).tolist() == lm.generate([ids], 5).tolist()
