"""A stream in a file: the same tokens afterwards, in this process or another, and nothing else is taken for one."""

import json
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from support import elsewhere
from toy_models import config, tensors, write_model

from mojolearn import archive
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.generation import TokenStream
from mojolearn.models.tokenizer import Tokenizer

DRAW = {"greedy": False, "temperature": 1.3}
RAGGED = [[5, 6], [1], [7, 8, 9, 3], [2, 2]]
KINDS = {
    "greedy": {},
    "drawn": {"seed": 11, **DRAW},
    "seeds": {"seed": [3, 1, 4, 1], **DRAW, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "rules": {"repetition_penalty": 1.3, "logit_bias": {3: 2.0, 5: -np.inf}},
    "eos": {"seed": 11, **DRAW, "eos_token_id": [[11], [], [23, 4], []], "pad_token_id": 39},
    "logprobs": {"logprobs": 3},
}


@pytest.fixture(
    scope="module", params=[{}, {"model_type": "mistral", "sliding_window": 4}], ids=["full", "window"]
)
def folder(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("toy"), **request.param)


@pytest.fixture(scope="module")
def lm(folder):
    return CausalLM.load(folder)


def taken(stream, n):
    return [next(stream).tolist() for _ in range(n)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "name"), [(0, "s.npz"), (1, "s.npz"), (5, "s.npz"), (5, "s.safetensors")])
def test_goes_on_with_the_same_tokens(lm, tmp_path, kind, n, name):
    whole = lm.stream(RAGGED, 9, **KINDS[kind])
    tokens = [new.tolist() for new in whole]
    stream = lm.stream(RAGGED, 9, **KINDS[kind])
    before = taken(stream, n)
    stream.save(tmp_path / name)
    later = lm.resume(tmp_path / name)
    assert later.seed == stream.seed
    assert [ids.tolist() for ids in later.ids] == [ids.tolist() for ids in stream.ids]
    assert before + [new.tolist() for new in later] == tokens
    assert later.finish_reasons == whole.finish_reasons
    assert [ids.tolist() for ids in later.ids] == [ids.tolist() for ids in whole.ids]
    for mine, theirs in zip(later.logprobs or [], whole.logprobs or [], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert before + [new.tolist() for new in stream] == tokens  # saving has not disturbed the stream itself


def test_in_another_process(lm, folder, tmp_path):
    """Another format of the weights and another number of threads do not matter either."""
    stream = lm.stream(RAGGED, 9, seed=11, **DRAW)
    taken(stream, 4)
    stream.save(tmp_path / "s.npz")
    source = (
        f"from mojolearn.models.causal_lm import CausalLM; import numba; numba.set_num_threads(1); "
        f"print([new.tolist() for new in CausalLM.load({str(folder)!r}).resume({str(tmp_path / 's.npz')!r})])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout.strip() == str([new.tolist() for new in stream]), done.stderr


def test_saved_again_it_is_the_same_file(lm, tmp_path):
    stream = lm.stream(RAGGED, 9, **KINDS["eos"], logprobs=2)
    taken(stream, 3)
    stream.save(tmp_path / "a.npz")
    lm.resume(tmp_path / "a.npz").save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_place_where_no_file_can_be(lm, tmp_path):
    stream = lm.stream([[5, 6]], 4)
    with pytest.raises(
        IsADirectoryError, match=r"^TokenStream\.save: .* is a folder; wanted is the name of a file"
    ):
        stream.save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^TokenStream\.save: there is no folder .*gone"):
        stream.save(tmp_path / "gone" / "s.npz")
    assert list(tmp_path.iterdir()) == []


def test_size_follows_what_is_used(lm, tmp_path):
    """Not the room: 60 tokens of it here."""
    stream = lm.stream([[5, 6]], 60)
    taken(stream, 2)
    stream.save(tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as file:
        sizes = [array.nbytes for name, array in file.items() if "layer" in name]
    slots = 3  # of a window of 4 too
    assert sizes == [4 * slots * 2 * 4] * 4  # two layers, keys and values: slots, kv heads, head_dim


class TestState:
    def test_stands_in_for_the_one_given(self, lm, tmp_path):
        state = lm.allocate_state(1, 30)
        lm.generate([[9, 9, 4]], 2, state=state)
        stream = lm.stream([[5, 6]], 6, state=state)
        taken(stream, 3)
        stream.save(tmp_path / "s.npz")
        later = lm.resume(tmp_path / "s.npz")
        assert later.state.cached_tokens == 0
        assert [new.tolist() for new in later] == [new.tolist() for new in stream]
        assert later.state == state
        assert state.cached_tokens == 13

    def test_before_anything_was_taken(self, lm, tmp_path):
        state = lm.allocate_state(1, 30)
        lm.stream([[5, 6]], 6, state=state).save(tmp_path / "s.npz")
        later = lm.resume(tmp_path / "s.npz")
        later.close()
        assert later.state.cached_tokens == 2


@pytest.fixture(scope="module")
def austen():
    return CausalLM.load(BUILT_IN)


class TestText:
    """Streams with stop strings need their tokenizer."""

    def test_in_the_middle_of_a_stop_string(self, austen, tmp_path):
        ids = austen.tokenizer.encode("Emma was")
        whole = austen.stream([ids], 20, stop="of her being")
        tokens = [new.tolist() for new in whole]
        assert whole.finish_reasons == ["stop"]
        for n in range(len(tokens)):
            stream = austen.stream([ids], 20, stop="of her being")
            before = taken(stream, n)
            stream.save(tmp_path / "s.npz")
            later = austen.resume(tmp_path / "s.npz")
            assert before + [new.tolist() for new in later] == tokens
            assert later.finish_reasons == ["stop"]

    def test_another_tokenizer(self, austen, tmp_path):
        austen.stream([[0, 5]], 20, stop="x").save(tmp_path / "s.npz")
        text = json.loads((BUILT_IN / "tokenizer.json").read_text())
        text["added_tokens"] = []
        (tmp_path / "tokenizer.json").write_text(json.dumps(text))
        with pytest.raises(
            ValueError, match=r"s\.npz: the field tokenizer is '\w+', but that of the tokenizer is"
        ):
            austen.resume(tmp_path / "s.npz", tokenizer=Tokenizer.load(tmp_path))


class TestHook:
    @staticmethod
    def hook(ids, logits):
        logits[ids[-1]] = -np.inf

    def test_is_given_again(self, lm, tmp_path):
        stream = lm.stream([[5, 6]], 9, logits_processor=self.hook)
        taken(stream, 4)
        stream.save(tmp_path / "s.npz")
        later = lm.resume(tmp_path / "s.npz", logits_processor=self.hook)
        assert [new.tolist() for new in later] == [new.tolist() for new in stream]
        with pytest.raises(ValueError, match="the field logits_processor does not fit: none was given"):
            lm.resume(tmp_path / "s.npz")

    def test_is_not_given_where_there_was_none(self, lm, tmp_path):
        lm.stream([[5, 6]], 9).save(tmp_path / "s.npz")
        with pytest.raises(ValueError, match="the field logits_processor does not fit: one was given"):
            lm.resume(tmp_path / "s.npz", logits_processor=self.hook)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return CausalLM.load(write_model(tmp_path_factory.mktemp("plain")))


@pytest.fixture
def saved(plain, tmp_path):
    """The path of a stream, and its fields."""
    stream = plain.stream([[5, 6], [1]], 9, seed=11, logprobs=1, **DRAW)
    taken(stream, 3)
    path = tmp_path / "s.npz"
    stream.save(path)
    with np.load(path) as file:
        return path, dict(file)


FIELDS = (
    "format numerics model tokenizer options max_new_tokens logits_processor keeps_state lengths prompts new digests "
    "logprobs.chosen logprobs.top_ids logprobs.top "
    + " ".join(
        f"group{g}.{name}"
        for g in range(2)
        for name in (
            "rows position max_tokens pending layer0.keys layer0.values layer1.keys layer1.values".split()
        )
    )
).split()


def test_these_are_the_fields(saved):
    assert sorted(saved[1]) == sorted(FIELDS)
    assert not any(array.dtype == object for array in saved[1].values())


@pytest.mark.parametrize("name", FIELDS)
def test_every_missing_field_is_named(plain, saved, name):
    path, fields = saved
    del fields[name]
    np.savez(path, **fields)
    with pytest.raises(ValueError, match=rf"^CausalLM\.resume: .*s\.npz: the field {name} is missing"):
        plain.resume(path)


@pytest.mark.parametrize("name", FIELDS)
def test_every_changed_field_is_named(plain, saved, name):
    path, fields = saved
    array = fields[name]
    if array.dtype.kind == "U":
        fields[name] = np.array(str(array)[:-1] + "x")
    elif array.dtype == bool:
        fields[name] = ~array
    else:
        fields[name] = array.copy()
        fields[name].reshape(-1)[:1] += 1
    np.savez(path, **fields)
    with pytest.raises(
        ValueError, match=rf"^CausalLM\.resume: .*s\.npz: the field {name} was changed, or is damaged$"
    ):
        plain.resume(path)


@pytest.mark.parametrize("change", [lambda a: a[..., None], lambda a: a.astype(">i8")])
def test_form_counts_too(plain, saved, change):
    path, fields = saved
    fields["prompts"] = change(fields["prompts"])
    np.savez(path, **fields)
    with pytest.raises(ValueError, match="the field prompts was changed"):
        plain.resume(path)


def test_strange_field(plain, saved):
    path, fields = saved
    np.savez(path, **fields, more=np.zeros(3))
    with pytest.raises(ValueError, match="the field more does not belong there"):
        plain.resume(path)


class TestWhatItBelongsTo:
    def rewritten(self, saved, **changes):
        path, fields = saved
        del fields["digests"]
        archive.write_fields(path, fields | changes, "test")
        return path

    def test_another_model(self, saved, tmp_path):
        other = CausalLM.load(write_model(tmp_path / "other", seed=5))
        with pytest.raises(
            ValueError, match=r"the field model is '\w{64}', but that of this model is '\w{64}'"
        ):
            other.resume(saved[0])

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"format": "mojolearn stream 99"}, "the field format is 'mojolearn stream 99'"),
            (
                {"numerics": "fp32.v0"},
                "the field numerics is 'fp32.v0', but that of this version of mojolearn is",
            ),
        ],
    )
    def test_another_version(self, plain, saved, changes, words):
        with pytest.raises(ValueError, match=rf"^CausalLM\.resume: .*s\.npz: {words}"):
            plain.resume(self.rewritten(saved, **changes))

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("lengths", np.zeros(0, np.int64), "the field lengths is empty; wanted is a length for each row"),
            ("lengths", np.array([2, 0]), "the field lengths holds numbers from 0 to 2; wanted is 1 to "),
            ("lengths", np.array([2, 2**62]), r"the field prompts has shape \(3,\); wanted is \(46"),
            ("lengths", np.float32([2, 1]), "the field lengths has dtype float32; wanted is int64"),
            ("prompts", np.array([5, 40, 1]), "the field prompts holds numbers from 1 to 40; wanted is 0 to 39"),
            ("new", np.full((2, 3), -1), "the field new holds numbers from -1 to -1; wanted is 0 to 39"),
            ("new", np.zeros((2, 10), np.int64), "the field new has 10 tokens; wanted is at most 9"),
            ("max_new_tokens", 0, "the field max_new_tokens holds numbers from 0 to 0"),
            ("max_new_tokens", 2**40, r"the field group0\.max_tokens is 10; wanted is room for"),
            ("max_new_tokens", "9", "the field max_new_tokens has dtype <U1; wanted is int64"),
            ("options", "[1]", "the field options is damaged; wanted is a table of options"),
            ("options", '{"logit_bias": {"x": 1}}', "the field options is damaged"),
            ("options", '{"tokenizer": 1}', "the field options is damaged"),
            ("options", "{" * 9999, "the field options is damaged"),
            ("options", np.uint32([[0x110000]]).view("<U1")[0, 0:1].reshape(()), "the field options is damaged"),
            ("keeps_state", 1, "the field keeps_state has dtype int64; wanted is bool"),
            ("keeps_state", True, "the field keeps_state is True; wanted is False, as the prompts"),
            ("logprobs.top", np.zeros((2, 9, 2), np.float32), r"the field logprobs\.top has shape \(2, 9, 2\)"),
            ("group0.rows", np.array([2]), r"the field group0\.rows holds numbers from 2 to 2; wanted is 0 to 1"),
            ("group0.rows", np.array([1]), "the fields rows of the groups do not name each of 2 rows once"),
            ("group1.rows", np.zeros(0, np.int64), r"the field group1\.rows is empty"),
            ("group1.position", 0, r"the field group1\.position holds numbers from 0 to 0"),
            ("group1.position", 99, r"the field group1\.position holds numbers from 99 to 99"),
            ("group1.position", 2, r"the field group1\.layer0\.keys has shape \(1, 2, 3, 4\)"),
            ("group1.max_tokens", 5, r"the field group1\.max_tokens is 5; wanted is room for 8 tokens"),
            ("group1.pending", np.array([40]), r"the field group1\.pending holds numbers from 40 to 40"),
            ("group1.layer1.keys", np.full((1, 2, 3, 4), np.nan, np.float32),
             r"the field group1\.layer1\.keys holds nan at \[0, 0, 0, 0\], which is not finite"),
            ("more", 1, "the field more does not belong there"),
        ],
    )  # fmt: skip
    def test_values_that_no_stream_has(self, plain, saved, name, value, words):
        """Though every checksum is right."""
        with pytest.raises(ValueError, match=rf"^CausalLM\.resume: .*s\.npz: {words}"):
            plain.resume(self.rewritten(saved, **{name: value}))

    @pytest.mark.parametrize("name", [name for name in FIELDS if name != "digests"])
    def test_fields_left_out_when_it_was_written(self, plain, saved, name):
        path, fields = saved
        del fields["digests"], fields[name]
        archive.write_fields(path, fields, "test")
        with pytest.raises(ValueError, match=r"^CausalLM\.resume: .*s\.npz: the fields? .*(missing|rows)"):
            plain.resume(path)

    def test_room_that_no_machine_has(self, plain, saved):
        with pytest.raises(MemoryError, match="which this machine does not have"):
            plain.resume(self.rewritten(saved, **{"group0.max_tokens": 2**50}))

    def test_lower_ceiling(self, plain, saved, tmp_path):
        low = CausalLM.load(write_model(tmp_path / "same"), max_positions=9)
        with pytest.raises(
            ValueError, match=r"^CausalLM\.resume: the call reaches position 9, but max_positions=9"
        ):
            low.resume(saved[0])
        CausalLM.load(tmp_path / "same", max_positions=10).resume(saved[0])


class TestFile:
    @pytest.mark.parametrize(
        "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"hello", lambda b: b[:-30]]
    )
    def test_no_stream(self, plain, saved, damage):
        path = saved[0]
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(
            ValueError, match=r"^CausalLM\.resume: .*s\.npz is not a saved stream, or was cut short"
        ):
            plain.resume(path)

    def test_every_flipped_byte_is_refused_or_means_nothing(self, plain, saved):
        """Means nothing: the dates and rights that a zip archive notes of its members."""
        path = saved[0]
        whole, goes_on = path.read_bytes(), [new.tolist() for new in plain.resume(path)]
        refused = meaningless = 0
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                later = plain.resume(path)
            except ValueError as error:
                refused += bool(re.match(r"CausalLM\.resume: [^\n]*s\.npz[^\n]+$", str(error)))
            else:
                meaningless += 1
                assert [new.tolist() for new in later] == goes_on
        assert refused + meaningless == len(range(0, len(whole), 7)) and refused > meaningless

    def test_other_arrays(self, plain, tmp_path):
        np.savez(tmp_path / "s.npz", a=np.zeros(3))
        with pytest.raises(ValueError, match="the field digests is missing; it is not a saved stream"):
            plain.resume(tmp_path / "s.npz")
        np.save(tmp_path / "s.npy", np.zeros(3))
        with pytest.raises(ValueError, match="is not a saved stream"):
            plain.resume(tmp_path / "s.npy")

    def test_pickles_are_never_opened(self, plain, saved):
        path, fields = saved
        fields["options"] = np.array([{"a": 1}], object)
        np.savez(path, **fields)
        with pytest.raises(ValueError, match=r"the field options is damaged .*objects are never read"):
            plain.resume(path)

    def test_member_that_is_no_array(self, plain, saved):
        path, _ = saved
        with zipfile.ZipFile(path, "a") as file:
            file.writestr("note.txt", "hello")
        with pytest.raises(ValueError, match=r"the field note\.txt is damaged"):
            plain.resume(path)

    @pytest.mark.parametrize(
        ("path", "error"),
        [(3, TypeError), ("", TypeError), ("no/such.npz", FileNotFoundError), (".", ValueError)],
    )
    def test_no_file(self, plain, path, error):
        with pytest.raises(error, match=r"^CausalLM\.resume: "):
            plain.resume(path)

    def test_path_that_is_none(self, plain):
        with pytest.raises(TypeError, match=r"^TokenStream\.save: path must be a str or a Path"):
            plain.stream([[7]], 3).save(3)

    @pytest.mark.parametrize(
        ("n", "take", "words"),
        [
            (3, list, "the stream has ended, its rows by 'length'"),
            (3, TokenStream.close, "the stream was closed before its end"),
            (0, list, r"the stream was asked for no tokens \(max_new_tokens=0\)"),
        ],
    )
    def test_stream_that_is_over(self, plain, tmp_path, n, take, words):
        stream = plain.stream([[7]], n)
        take(stream)
        with pytest.raises(ValueError, match=rf"^TokenStream\.save: {words}; there is nothing to resume$"):
            stream.save(tmp_path / "s.npz")
        assert not list(tmp_path.iterdir())

    def test_while_another_thread_has_a_call_running(self, plain, saved, tmp_path):
        stream = plain.resume(saved[0])
        with (
            elsewhere(stream._groups[0].state.blocks[1:]),
            pytest.raises(RuntimeError, match=r"^TokenStream\.save: another thread has a call running"),
        ):
            stream.save(tmp_path / "other.npz")
        stream.save(tmp_path / "other.npz")
        assert (tmp_path / "other.npz").read_bytes() == saved[0].read_bytes()


def test_interrupted_between_token_and_logits(plain, tmp_path, monkeypatch):
    """What cannot be known to be whole is not gone on with, nor saved."""
    stream = plain.stream([[7]], 5)
    next(stream), next(stream)
    step = type(stream._groups[0].session).step

    def interrupted(self, ids):
        step(self, ids)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(stream._groups[0].session), "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    for call in (lambda: next(stream), lambda: stream.save(tmp_path / "s.npz")):
        with pytest.raises(ValueError, match="the stream was interrupted while it ran a token"):
            call()
    assert not list(tmp_path.iterdir())


class TestFingerprint:
    def test_storage_does_not_matter(self, tmp_path):
        folder = write_model(tmp_path)
        narrow = {name: a.astype(np.float16) for name, a in tensors(config()).items()}
        half = write_model(tmp_path / "half", named=narrow)
        wide = write_model(
            tmp_path / "wide", named={name: a.astype(np.float32) for name, a in narrow.items()}
        )
        prints = [CausalLM.load(path).fingerprint for path in (folder, half, wide)]
        assert prints[1] == prints[2] == CausalLM.load(half, weight_format="float32").fingerprint
        assert prints[0] != prints[1]

    def test_names_and_ceilings_do_not_matter(self, tmp_path):
        changes = [
            {},
            {"eos_token_id": 3},
            {"max_position_embeddings": 99},
            {"model_type": "mistral", "sliding_window": None},
        ]
        folders = [write_model(tmp_path / str(i), **change) for i, change in enumerate(changes)]
        assert len({CausalLM.load(folder).fingerprint for folder in folders}) == 1

    def test_embedding_packed_for_the_head_or_not(self, tmp_path):
        """The same numbers: once for both, or once for each."""
        tied = {"tie_word_embeddings": True}
        named = tensors(config(**tied))
        once = write_model(tmp_path / "once", named=named, **tied)
        twice = write_model(
            tmp_path / "twice", named=named | {"lm_head.weight": named["model.embed_tokens.weight"]}
        )
        assert CausalLM.load(once).fingerprint == CausalLM.load(twice).fingerprint

    def test_every_weight_and_option_matters(self, tmp_path):
        named = tensors(config())
        folders = [write_model(tmp_path / "plain")]
        for name in named:
            changed = {key: array.copy() for key, array in named.items()}
            changed[name].reshape(-1)[-1] += np.float32(0.001)
            folders.append(write_model(tmp_path / name, named=changed))
        for change in (
            {"rms_norm_eps": 2e-6},
            {"rope_theta": 9999.0},
            {"model_type": "mistral", "sliding_window": 9},
        ):
            folders.append(write_model(tmp_path / str(change), named=named, **change))
        assert len({CausalLM.load(folder).fingerprint for folder in folders}) == len(folders)

    def test_what_it_does_not_know_is_refused(self, tmp_path):
        lm = CausalLM.load(write_model(tmp_path))
        object.__setattr__(lm, "_positions", {1, 2})
        with pytest.raises(TypeError, match="_positions is of a kind that has no fingerprint, set"):
            lm.fingerprint
