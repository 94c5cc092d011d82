"""States in files: what follows has the bits that would have followed, and nothing else is taken for a state."""

import array
import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from support import bits, elsewhere, goes_by_length, make_block, make_weights, random_options, uniform
from toy_models import config, tensors, write_model

from mojolearn import TransformerBlock, TransformerState, archive
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.model_state import CausalLMState

SUFFIXES = [".npz", ".safetensors"]
suffixes = pytest.mark.parametrize("suffix", SUFFIXES)
W = 4
SHAPE = {"d_model": 32, "intermediate": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8}


def filled(block, rng, held, batch_size=2, max_tokens=20):
    state = block.allocate_state(batch_size, max_tokens)
    if held:
        block.forward(uniform(rng, (batch_size, held, block.d_model)), state)
    return state


def same(a, b):
    np.testing.assert_array_equal(bits(a), bits(b))


# Round trips.


@suffixes
@pytest.mark.parametrize("with_model", [False, True])
@pytest.mark.parametrize("window", [0, 1, W])
@pytest.mark.parametrize("held", [0, 1, 3, 4, 5, 8, 11])
def test_what_follows_has_the_same_bits(rng, tmp_path, suffix, with_model, window, held):
    block = make_block(**SHAPE, window=window)
    state, model = filled(block, rng, held), block if with_model else None
    state.save(tmp_path / f"s{suffix}", model)
    loaded = TransformerState.load(tmp_path / f"s{suffix}", model)
    assert loaded == state and type(loaded) is TransformerState
    assert (loaded.cached_tokens, loaded.max_tokens, loaded.window) == (held, 20, window)
    x = uniform(rng, (2, 6, 32))
    for t in range(3):
        same(block.step(x[:, t], loaded), block.step(x[:, t], state))
    same(block.forward(x[:, 3:5], loaded), block.forward(x[:, 3:5], state))
    with block.decode_session(loaded) as one, block.decode_session(state) as two:
        same(one.step(x[:, 5]), two.step(x[:, 5]))
    assert loaded == state


@pytest.mark.parametrize("seed", range(12))
def test_any_options(tmp_path, seed):
    rng = np.random.default_rng([77, seed])
    block = make_block(**random_options(rng))
    path = tmp_path / f"s{SUFFIXES[seed % 2]}"
    state = filled(block, rng, int(rng.integers(1, 9)), int(rng.integers(1, 4)))
    state.save(str(path), block)
    loaded = TransformerState.load(str(path), pickle.loads(pickle.dumps(block)))
    assert loaded == state
    x = uniform(rng, (state.batch_size, 2, block.d_model))
    same(block.forward(x, loaded), block.forward(x, state))
    if goes_by_length(block):
        assert loaded.max_tokens == state.max_tokens  # which decides how its keys are rotated


@suffixes
def test_in_another_process(rng, tmp_path, suffix):
    """Nothing but the path is told: position, sizes and window come out of the file."""
    block = make_block(**SHAPE, window=W)
    state, x = filled(block, rng, 11), uniform(rng, (2, 3, 32))
    state.save(tmp_path / f"s{suffix}", block)
    (tmp_path / "block").write_bytes(pickle.dumps(block))
    np.save(tmp_path / "x.npy", x)
    source = (
        "import pickle, numba, numpy as np; from mojolearn import TransformerState; numba.set_num_threads(1)\n"
        f"block = pickle.load(open('block', 'rb')); state = TransformerState.load('s{suffix}', block)\n"
        "print(state.cached_tokens); np.save('y.npy', block.forward(np.load('x.npy'), state))"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": root})  # fmt: skip
    assert done.stdout == "11\n", done.stderr
    same(np.load(tmp_path / "y.npy"), block.forward(x, state))


@suffixes
def test_saved_again_it_is_the_same_file(rng, tmp_path, suffix):
    block = make_block(**SHAPE, window=W)
    a, b = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    filled(block, rng, 7).save(a, block)
    TransformerState.load(a, block).save(b, block)
    assert a.read_bytes() == b.read_bytes()


@suffixes
def test_a_shorter_state_over_a_longer_one(rng, tmp_path, suffix):
    """Nothing of what stood there before is left."""
    block = make_block(**SHAPE)
    short = filled(block, rng, 3)
    short.save(tmp_path / f"fresh{suffix}")
    filled(block, rng, 9).save(tmp_path / f"used{suffix}")
    short.save(tmp_path / f"used{suffix}")
    assert (tmp_path / f"used{suffix}").read_bytes() == (tmp_path / f"fresh{suffix}").read_bytes()
    assert TransformerState.load(tmp_path / f"used{suffix}") == short


@suffixes
@pytest.mark.parametrize(("window", "held", "slots"), [(0, 3, 3), (0, 0, 0), (64, 5, 5), (W, 11, W)])
def test_size_follows_what_is_used(rng, tmp_path, suffix, window, held, slots):
    path = tmp_path / f"s{suffix}"
    filled(make_block(**SHAPE, window=window), rng, held, 1, 4096).save(path)
    assert path.stat().st_size < 4 * (2 * 2 * slots * 8 * 4) + 4096
    assert TransformerState.load(path).cached_tokens == held


@suffixes
def test_spare_room_is_not_kept(rng, tmp_path, suffix):
    """It is zero afterwards, which is all that can differ; for a ring that is not full too."""
    for window in (0, W):
        block = make_block(**SHAPE, window=window)
        state = filled(block, rng, 3)
        clean = state.copy()
        for buffer in (state.k_cache, state.v_cache):
            spare = buffer.reshape(2, 2, W, 8)[:, :, 3] if window else buffer[2 * 2 * 3 * 8 :]
            spare[...] = 7
        state.save(tmp_path / f"s{suffix}")
        loaded = TransformerState.load(tmp_path / f"s{suffix}")
        assert loaded == clean != state
        x = uniform(rng, (2, 2, 32))
        same(block.forward(x, loaded), block.forward(x, state))


@suffixes
def test_buffers_of_the_caller(rng, tmp_path, suffix):
    """Whatever they are, those of the loaded state are its own."""
    block = make_block(**SHAPE)
    k, v = array.array("f", bytes(4 * 2 * 2 * 6 * 8)), np.memmap(tmp_path / "v", np.float32, "w+", shape=192)
    state = TransformerState(2, 2, 8, 6, k, v)
    block.forward(uniform(rng, (2, 4, 32)), state)
    state.save(tmp_path / f"s{suffix}", block)
    loaded = TransformerState.load(tmp_path / f"s{suffix}")
    assert loaded == state and type(loaded.k_cache) is type(loaded.v_cache) is np.ndarray
    before = loaded.copy()
    k[0] += 1
    assert loaded == before != state


@suffixes
@pytest.mark.parametrize("window", [0, W])
def test_in_an_open_session_every_token_is_saved(rng, tmp_path, suffix, window):
    block = make_block(**SHAPE, window=window)
    state, x = filled(block, rng, 3), uniform(rng, (2, 6, 32))
    with block.decode_session(state) as session:
        for t in range(3):
            session.step(x[:, t])
        state.save(tmp_path / f"s{suffix}", block)
        assert session.is_open and state.session is session
        loaded = TransformerState.load(tmp_path / f"s{suffix}", block)
        assert loaded.session is None and loaded.cached_tokens == 6
        assert loaded == state
        wanted = [session.step(x[:, t]) for t in range(3, 6)]
    for t, y in zip(range(3, 6), wanted, strict=True):
        same(block.step(x[:, t], loaded), y)
    assert loaded == state


# Refusals.

FIELDS = (
    "format numerics model batch_size n_kv_heads head_dim window max_tokens cached_tokens keys values".split()
)


@pytest.fixture
def block():
    return make_block(**SHAPE, window=W, max_positions=64)


@pytest.fixture
def saved(block, rng, tmp_path, suffix):
    path = tmp_path / f"s{suffix}"
    filled(block, rng, 6).save(path, block)
    return path


def fields_of(path):
    """Arrays and digests as they stand in a file."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    with safetensors.safe_open(path, "numpy") as file:
        return {**file.metadata(), **{name: file.get_tensor(name) for name in file.keys()}}


def put(path, fields):
    """Write them as they are, with another library."""
    if path.suffix == ".npz":
        np.savez(path, **fields)
    else:
        metadata = {name: value for name, value in fields.items() if isinstance(value, str)}
        rest = {name: np.ascontiguousarray(value) for name, value in fields.items() if name not in metadata}
        safetensors.numpy.save_file(rest, path, metadata)


def forge(path, **changes):
    """Change fields, and make the checksums right again; None leaves one out."""
    fields = archive.read_fields(path, "test", "a file")._left | changes
    archive.write_fields(path, {name: value for name, value in fields.items() if value is not None}, "test")


def refused(path, model=None, error=ValueError, load=TransformerState.load):
    """The message with which a file is refused."""
    with pytest.raises(error, match=rf"^{load.__qualname__}: [^\n]+$") as caught:
        load(path, model)
    return str(caught.value)


@suffixes
def test_these_are_the_fields(saved):
    assert sorted(fields_of(saved)) == sorted([*FIELDS, "digests"])


@suffixes
@pytest.mark.parametrize("name", [*FIELDS, "digests"])
def test_every_missing_field_is_named(saved, name):
    fields = fields_of(saved)
    del fields[name]
    put(saved, fields)
    assert f"{saved}: the field {name} is missing" in refused(saved)


@suffixes
@pytest.mark.parametrize("name", FIELDS)
def test_every_field_left_out_when_it_was_written_is_named(saved, name):
    forge(saved, **{name: None})
    assert f"{saved}: the field {name} is missing" in refused(saved)


@suffixes
@pytest.mark.parametrize("name", [*FIELDS, "digests"])
def test_every_changed_field_is_named(saved, name):
    fields = fields_of(saved)
    value = fields[name]
    if isinstance(value, str):
        fields[name] = (
            f'"{value[1:-1]}x"' if value[0] == '"' else value[:-1] if value[0] == "{" else f"{value}1"
        )
    elif value.dtype.kind == "U":
        fields[name] = np.array(f"{value}x")
    else:
        fields[name] = value.copy()
        fields[name].reshape(-1)[:1] += 1
    put(saved, fields)
    assert f"{saved}: the field {name} was changed, or is damaged" in refused(saved)


@suffixes
@pytest.mark.parametrize("name", ["keys", "values"])
@pytest.mark.parametrize("change", [lambda a: a.astype(np.float64), lambda a: a.reshape(-1), lambda a: a[:1]])
def test_form_counts_too(saved, name, change):
    fields = fields_of(saved)
    fields[name] = change(fields[name])
    put(saved, fields)
    assert f"the field {name} was changed" in refused(saved)


def spoilt(value):
    array = np.ones((2, 2, 4, 8), np.float32)
    array[1, 0, 3, 2] = value
    return array


@suffixes
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("format", "mojolearn block state 2", "is 'mojolearn block state 2', but that of the state of a block is"),
        ("format", "mojolearn model state 1", "is 'mojolearn model state 1', but that of the state of a block is"),
        ("format", 1, "has dtype int64; wanted is a text"),
        ("numerics", "fp32.v0", "is 'fp32.v0', but that of this version of mojolearn is 'fp32.v1'"),
        ("model", "0" * 64, f"is '{'0' * 64}', but that of this model is"),
        ("model", "", "is empty, as the state was saved without its model, so it cannot be compared"),
        ("batch_size", 0, "holds numbers from 0 to 0; wanted is 1 to"),
        ("batch_size", 3, r"keys has shape (2, 2, 4, 8); wanted is (3, 2, 4, 8)"),
        ("batch_size", True, "has dtype bool; wanted is int64"),
        ("n_kv_heads", -1, "holds numbers from -1 to -1"),
        ("n_kv_heads", 1, "keys has shape"),
        ("head_dim", 4, "keys has shape"),
        ("head_dim", "8", "has dtype <U1; wanted is int64"),
        ("window", -1, "holds numbers from -1 to -1; wanted is 0 to"),
        ("window", 3, "keys has shape (2, 2, 4, 8); wanted is (2, 2, 3, 8)"),
        ("window", 5, "keys has shape (2, 2, 4, 8); wanted is (2, 2, 5, 8)"),
        ("window", 0, "keys has shape (2, 2, 4, 8); wanted is (2, 2, 6, 8)"),
        ("max_tokens", 0, "holds numbers from 0 to 0"),
        ("max_tokens", 5, "cached_tokens holds numbers from 6 to 6; wanted is 0 to 5"),
        ("cached_tokens", -1, "holds numbers from -1 to -1; wanted is 0 to 20"),
        ("cached_tokens", 21, "holds numbers from 21 to 21; wanted is 0 to 20"),
        ("cached_tokens", 3, "keys has shape (2, 2, 4, 8); wanted is (2, 2, 3, 8)"),
        ("cached_tokens", np.array([6]), "has shape (1,); wanted is ()"),
        ("keys", np.zeros((2, 2, 4, 8)), "has dtype float64; wanted is float32"),
        ("values", np.zeros((2, 4, 2, 8), np.float32), "has shape (2, 4, 2, 8); wanted is (2, 2, 4, 8)"),
        ("keys", spoilt(np.nan), "holds nan at [1, 0, 3, 2], which is not finite"),
        ("values", spoilt(-np.inf), "holds -inf at [1, 0, 3, 2], which is not finite"),
        ("more", 1, "does not belong there"),
    ],
)  # fmt: skip
def test_values_that_no_state_has(saved, block, name, value, words):
    """Though every checksum is right."""
    forge(saved, **{name: value})
    message = refused(saved, block)
    assert message.startswith(f"TransformerState.load: {saved}: the field ") and words in message
    assert name in message or "keys" in message or "cached_tokens" in message


@suffixes
def test_another_window_with_the_same_slots(saved, block):
    """A window that no longer fits the block, where the file alone is in order."""
    forge(saved, window=0, cached_tokens=4)
    assert TransformerState.load(saved).cached_tokens == 4
    assert "the state has window=0, but the model has 4" in refused(saved, block)


@suffixes
@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"hello", lambda b: b[:-1]]
)
def test_no_state(saved, damage):
    saved.write_bytes(damage(saved.read_bytes()))
    assert str(saved) in refused(saved)


def test_other_files(tmp_path):
    np.savez(tmp_path / "s.npz", a=np.zeros(3))
    assert "the field digests is missing; it is not a saved state" in refused(tmp_path / "s.npz")
    np.save(tmp_path / "s.npy", np.zeros(3))
    assert "s.npy is not a saved state, or was cut short (File is not a zip file)" in refused(
        tmp_path / "s.npy"
    )
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "a.safetensors")
    assert "the field digests is missing" in refused(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("path", "error"),
    [(3, TypeError), (None, TypeError), ("", TypeError), ("no/such.npz", FileNotFoundError), (".", ValueError),
     ("no.safetensors", FileNotFoundError), ("/dev/null", ValueError)],
)  # fmt: skip
def test_paths_to_load_from(path, error):
    refused(path, error=error)
    refused(path, error=error, load=CausalLMState.load)


@pytest.mark.parametrize(
    ("path", "error"),
    [(3, TypeError), (None, TypeError), ("", TypeError), ("no/such.npz", FileNotFoundError),
     (".", IsADirectoryError), ("/dev/full", OSError)],
)  # fmt: skip
def test_paths_to_save_to(block, path, error):
    for state, method in ((block.allocate_state(1, 4), "TransformerState.save"),
                          (CausalLMState([block.allocate_state(1, 4)]), "CausalLMState.save")):  # fmt: skip
        with pytest.raises(error, match=rf"^{method}: [^\n]+$"):
            state.save(path)


@suffixes
class TestRoom:
    def test_that_no_machine_has(self, rng, tmp_path, suffix):
        path = tmp_path / f"s{suffix}"
        filled(make_block(**SHAPE), rng, 3).save(path)
        for room in (2**45, 2**62):
            forge(path, max_tokens=room)
            message = refused(path, error=MemoryError)
            assert (
                f"{path}: batch_size=2 and max_tokens={room} ask for two buffers of {room * 128} bytes"
                in message
            )

    def test_of_any_size_without_a_token(self, tmp_path, suffix):
        """Then nothing but the sizes is there to go by."""
        path = tmp_path / f"s{suffix}"
        make_block(**SHAPE).allocate_state(1, 4).save(path)
        forge(path, batch_size=2**60, head_dim=2**60, keys=None, values=None)
        shape = (2**60, 2, 0, 2**60)
        assert "the field keys is missing" in refused(path)
        if suffix == ".npz":  # NumPy has no array of that shape, so it takes a forged header
            return
        text = json.dumps({"__metadata__": fields_of(path)} | {
            name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name in ("keys", "values")
        }).encode()  # fmt: skip
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        assert "the field keys is damaged" in refused(path)


class TestWhatIsNotSaved:
    """What could not be loaded again, or is no state at the moment."""

    @pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (21, ValueError), (2.0, TypeError)])
    def test_length_out_of_range(self, block, rng, tmp_path, value, error):
        state = filled(block, rng, 6)
        state.cached_tokens = value
        with pytest.raises(error, match=r"^TransformerState\.save: cached_tokens of the state must be"):
            state.save(tmp_path / "s.npz")
        assert not os.listdir(tmp_path)

    @pytest.mark.parametrize("name", ["k_cache", "v_cache"])
    @pytest.mark.parametrize("window", [0, W])
    def test_not_finite(self, rng, tmp_path, name, window):
        state = filled(make_block(**SHAPE, window=window), rng, 3)
        getattr(state, name)[2] = np.nan
        with pytest.raises(
            ValueError, match=rf"^TransformerState\.save: {name} holds nan, which is not finite$"
        ):
            state.save(tmp_path / "s.npz")
        getattr(state, name)[2] = 0
        getattr(state, name)[-1] = np.nan  # in the spare room
        state.save(tmp_path / "s.npz")

    @suffixes
    def test_while_another_thread_has_a_call_running(self, saved, block, rng):
        before, state = saved.read_bytes(), filled(block, rng, 9)
        with elsewhere([state]), pytest.raises(
            RuntimeError, match=r"^TransformerState\.save: another thread has a call running on this state"
        ):  # fmt: skip
            state.save(saved)
        assert saved.read_bytes() == before and os.listdir(saved.parent) == [saved.name]
        state.save(saved)
        assert TransformerState.load(saved) == state


@suffixes
class TestModel:
    def test_another_one(self, saved, block, rng):
        other = make_block(**SHAPE, window=W, seed=1)
        message = refused(saved, other)
        assert re.search(r"the field model is '\w{64}', but that of this model is '\w{64}'$", message)
        assert TransformerState.load(saved) == TransformerState.load(saved, block)  # without one, any will do

    def test_the_same_one_stored_otherwise(self, rng, tmp_path, suffix):
        weights = make_weights(**SHAPE, weight_format="bfloat16")
        options = {name: SHAPE[name] for name in ("n_heads", "n_kv_heads", "head_dim")}
        narrow = TransformerBlock(weights, **options, weight_format="bfloat16", max_positions=9)
        wide = TransformerBlock(weights, **options)
        state = filled(narrow, rng, 3)
        state.save(tmp_path / f"s{suffix}", narrow)
        assert TransformerState.load(tmp_path / f"s{suffix}", wide) == state

    def test_saved_without_one(self, block, rng, tmp_path, suffix):
        state = filled(block, rng, 3)
        state.save(tmp_path / f"s{suffix}")
        assert TransformerState.load(tmp_path / f"s{suffix}") == state
        assert "it cannot be compared with one; load it with model=None" in refused(
            tmp_path / f"s{suffix}", block
        )

    def test_a_state_that_is_not_of_it(self, rng, tmp_path, suffix):
        state = filled(make_block(**SHAPE), rng, 3)
        for change, words in (({"window": W}, "window=0, but the model has 4"),
                              ({"n_kv_heads": 4}, "n_kv_heads=2, but the model has 4"),
                              ({"head_dim": 6}, "head_dim=8, but the model has 6")):  # fmt: skip
            with pytest.raises(ValueError, match=rf"^TransformerState\.save: the state has {words}$"):
                state.save(tmp_path / f"s{suffix}", make_block(**SHAPE | change))
        assert not os.listdir(tmp_path)

    @pytest.mark.parametrize("model", ["block", 3, TransformerBlock])
    def test_something_else(self, saved, block, model):
        with pytest.raises(
            TypeError, match=r"^TransformerState\.save: model must be a TransformerBlock or None"
        ):
            block.allocate_state(1, 4).save(saved, model)
        refused(saved, model, TypeError)

    def test_lower_ceiling(self, saved, suffix):
        """It is no part of the arithmetic: only the call that reaches beyond it meets it."""
        low = make_block(**SHAPE, window=W, max_positions=7)
        state = TransformerState.load(saved, low)
        x = uniform(np.random.default_rng(3), (2, 32))
        low.step(x, state)
        with pytest.raises(ValueError, match=r"^TransformerBlock\.step: .*position 7, but max_positions=7"):
            low.step(x, state)


class TestFingerprint:
    def test_every_weight_and_option_matters(self):
        prints = {make_block(**SHAPE).fingerprint, make_block(**SHAPE, seed=1).fingerprint}
        weights = make_weights(**SHAPE)
        options = {name: SHAPE[name] for name in ("n_heads", "n_kv_heads", "head_dim")}
        for name in weights:
            changed = {key: value.copy() for key, value in weights.items()}
            changed[name].reshape(-1)[-1] += np.float32(0.001)
            prints.add(TransformerBlock(changed, **options).fingerprint)
        changes = ({"window": 9}, {"rope_theta": 9999.0}, {"norm_eps": 2e-6}, {"attn_softcap": 30.0}, {"mlp": "geglu"},
                   {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_dim": 4}, {"qkv_clip": 8.0})  # fmt: skip
        for change in changes:
            prints.add(TransformerBlock(weights, **options, **change).fingerprint)
        assert len(prints) == 2 + len(weights) + len(changes)
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in prints)

    @pytest.mark.parametrize("weight_format", ["bfloat16", "float16"])
    def test_storage_ceilings_and_spelling_do_not(self, weight_format):
        weights = make_weights(**SHAPE, weight_format=weight_format)
        narrow = TransformerBlock(
            weights, n_heads=4, n_kv_heads=2, weight_format=weight_format, max_positions=9
        )
        wide = TransformerBlock(weights, n_heads=4, n_kv_heads=np.int8(2), head_dim=8, rope_theta=10000)
        assert narrow.fingerprint == wide.fingerprint == pickle.loads(pickle.dumps(narrow)).fingerprint

    def test_is_computed_once(self, monkeypatch):
        block = make_block(**SHAPE)
        first = block.fingerprint
        monkeypatch.setattr(type(block), "weights", None)
        assert block.fingerprint == first


# Whole models.


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A model whose second layer has a window."""
    return CausalLM.load(
        write_model(
            tmp_path_factory.mktemp("mixed"), model_type="qwen2", use_sliding_window=True, sliding_window=W,
            max_window_layers=1,
        )
    )  # fmt: skip


def read_tokens(lm, n, batch_size=2, max_tokens=30):
    state = lm.allocate_state(batch_size, max_tokens)
    if n:
        lm.forward((np.arange(batch_size * n) * 7 % lm.vocab_size).reshape(batch_size, n), state)
    return state


@suffixes
class TestWholeModels:
    @pytest.mark.parametrize("held", [0, 1, 4, 11])
    @pytest.mark.parametrize("with_model", [False, True])
    def test_what_follows_has_the_same_bits(self, mixed, tmp_path, suffix, held, with_model):
        assert [block.window for block in mixed.blocks] == [0, W]
        state, model = read_tokens(mixed, held), mixed if with_model else None
        state.save(tmp_path / f"s{suffix}", model)
        loaded = CausalLMState.load(tmp_path / f"s{suffix}", model)
        assert loaded == state and loaded.position == held and loaded.max_tokens == 30
        for ids in ([1, 2], [3, 4], [5, 6]):
            same(mixed.step(ids, loaded), mixed.step(ids, state))
        assert loaded == state
        loaded.save(tmp_path / f"again{suffix}", model)
        state.save(tmp_path / f"s{suffix}", model)
        assert (tmp_path / f"again{suffix}").read_bytes() == (tmp_path / f"s{suffix}").read_bytes()

    def test_text_goes_on(self, tmp_path, suffix):
        lm, path = CausalLM.load(BUILT_IN), tmp_path / f"s{suffix}"
        state = lm.allocate_state(1, 60)
        first = lm.generate([[0, 1818, 305]], 8, state=state)
        state.save(path, lm)
        second = lm.generate(
            [[7]], 8, state=CausalLMState.load(path, CausalLM.load(BUILT_IN, weight_format="float32"))
        )
        whole = lm.generate([[*first[0], 7]], 8)
        assert whole[0, -8:].tolist() == second[0, -8:].tolist()

    def test_in_an_open_session(self, mixed, tmp_path, suffix):
        state = read_tokens(mixed, 3)
        with mixed.decode_session(state) as session:
            for ids in ([1, 2], [3, 4]):
                session.step(ids)
            state.save(tmp_path / f"s{suffix}", mixed)
            assert session.is_open
            logits = session.step([5, 6])
        loaded = CausalLMState.load(tmp_path / f"s{suffix}", mixed)
        assert loaded.cached_tokens == 5
        same(mixed.step([5, 6], loaded), logits)
        assert loaded == state

    def test_size_follows_what_is_used(self, mixed, tmp_path, suffix):
        read_tokens(mixed, 3, 1, 4096).save(tmp_path / f"s{suffix}", mixed)
        exact = 2 * (2 * 2 * 3 * 4 * 4)  # layers, keys and values, kv heads, slots, head_dim, bytes
        assert (tmp_path / f"s{suffix}").stat().st_size < 4 * exact + 2 * 4096

    def test_every_field(self, mixed, tmp_path, suffix):
        path = tmp_path / f"s{suffix}"
        read_tokens(mixed, 5).save(path, mixed)
        fields = fields_of(path)
        layers = [f"layer{i}.{name}" for i in range(2) for name in FIELDS[3:]]
        assert sorted(fields) == sorted([*FIELDS[:3], "layers", *layers, "digests"])
        for name in [name for name in fields if name != "digests"]:
            put(path, {key: value for key, value in fields.items() if key != name})
            assert f"the field {name} is missing" in refused(path, load=CausalLMState.load)
            put(path, fields)
            forge(path, **{name: None})
            assert f"the field {name} is missing" in refused(path, load=CausalLMState.load)

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("layers", 0, "the field layers holds numbers from 0 to 0"),
            ("layers", 1, r"the field layer1\.batch_size does not belong there"),
            ("layers", 3, r"the field layer2\.batch_size is missing"),
            ("layers", 2**60, r"the field layer2\.batch_size is missing"),
            ("format", "mojolearn block state 1", "that of the state of a whole model is 'mojolearn model state 1'"),
            ("numerics", "fp32.v0", "the field numerics is 'fp32.v0'"),
            ("layer1.cached_tokens", 4, "layer 1 of the state holds 4 tokens, but layer 0 .* the file is damaged"),
            ("layer1.keys", np.full((2, 2, 4, 4), np.inf, np.float32), r"layer1\.keys holds inf at \[0, 0, 0, 0\]"),
        ],
    )  # fmt: skip
    def test_values_that_no_state_has(self, mixed, tmp_path, suffix, name, value, words):
        path = tmp_path / f"s{suffix}"
        read_tokens(mixed, 5).save(path, mixed)
        forge(path, **{name: value})
        assert re.search(words, refused(path, mixed, load=CausalLMState.load))

    def test_rows_that_disagree(self, mixed, tmp_path, suffix):
        path = tmp_path / f"s{suffix}"
        read_tokens(mixed, 0).save(path, mixed)
        none = np.zeros((1, 2, 0, 4), np.float32)
        forge(path, **{"layer1.batch_size": 1, "layer1.keys": none, "layer1.values": none})
        assert "layer 1 of the state has 1 row, but layer 0 has 2" in refused(path, load=CausalLMState.load)

    def test_another_model(self, mixed, tmp_path, suffix):
        path = tmp_path / f"s{suffix}"
        read_tokens(mixed, 5).save(path, mixed)
        other = CausalLM.load(write_model(tmp_path / "other", named=tensors(config(), seed=5)))
        assert re.search(
            r"the field model is '\w{64}', but that", refused(path, other, load=CausalLMState.load)
        )
        refused(path, mixed.blocks[0], TypeError, CausalLMState.load)
        state = read_tokens(mixed, 5)
        for given, model, error, words in (
            (
                state,
                other,
                ValueError,
                "CausalLMState.save: layer 1 of the state has window=4, but the model has 0",
            ),
            (
                CausalLMState(state.blocks[:1]),
                mixed,
                ValueError,
                "CausalLMState.save: the state has 1 layer, but",
            ),
            (
                state,
                mixed.blocks[0],
                TypeError,
                "CausalLMState.save: model must be a CausalLM or None, not Transf",
            ),
            (
                state.blocks[0],
                mixed,
                TypeError,
                "TransformerState.save: model must be a TransformerBlock or None",
            ),
        ):
            with pytest.raises(error, match=f"^{re.escape(words)}"):
                given.save(path, model)

    def test_states_that_are_none(self, mixed, tmp_path, suffix):
        path = tmp_path / f"s{suffix}"
        state = read_tokens(mixed, 5)
        state.blocks[1].cached_tokens = 4
        with pytest.raises(
            ValueError, match=r"^CausalLMState\.save: layer 1 of the state holds 4 tokens, but layer 0"
        ):
            state.save(path)
        state.blocks[1] = state.blocks[0]
        with pytest.raises(ValueError, match=r"^CausalLMState\.save: two layers of the state are one object"):
            state.save(path)
        state.blocks[1] = None
        with pytest.raises(
            TypeError, match=r"^CausalLMState\.save: layer 1 of the state must be a TransformerState"
        ):
            state.save(path)
        state.blocks.clear()
        with pytest.raises(ValueError, match=r"^CausalLMState\.save: the state has no layers"):
            state.save(path)
        assert not os.listdir(tmp_path)

    def test_while_another_thread_has_a_call_running(self, mixed, tmp_path, suffix):
        state = read_tokens(mixed, 5)
        with (
            elsewhere(state.blocks[1:]),
            pytest.raises(RuntimeError, match=r"^CausalLMState\.save: another thread"),
        ):
            state.save(tmp_path / f"s{suffix}")
        assert not os.listdir(tmp_path)

    def test_room_that_no_machine_has(self, mixed, tmp_path, suffix):
        path = tmp_path / f"s{suffix}"
        read_tokens(mixed, 5).save(path, mixed)
        forge(path, **{"layer0.max_tokens": 2**50})
        assert "which this machine does not have" in refused(path, error=MemoryError, load=CausalLMState.load)


KILLED = """
import os, random, signal, sys, time
from test_saved_state import TransformerState, np
path, seed = sys.argv[1:]
chance = random.Random(int(seed))
states = [TransformerState(1, 2, 64, 2000, *np.full((2, 256000), i, "f4"), n) for i, n in ((1, 1900), (2, 700))]
states[0].save(path)
found, left = set(), 0
for _ in range(40):
    begun, tell = os.pipe()
    child = os.fork()
    if not child:
        states[0].save(path)
        os.write(tell, b".")
        while True:
            for state in states:
                state.save(path)
    os.read(begun, 1)
    os.close(begun), os.close(tell)
    time.sleep(chance.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    state = TransformerState.load(path)
    assert state.cached_tokens in (1900, 700)
    (value,) = np.unique(state.keys())
    assert value == {1900: 1, 700: 2}[state.cached_tokens] and (state.values() == value).all()
    found.add(state.cached_tokens)
    parts = [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".part")]
    left += len(parts)
    for name in parts:
        os.unlink(os.path.join(os.path.dirname(path), name))
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
print(sorted(found), left > 0)
"""


@suffixes
def test_killed_at_any_moment(tmp_path, suffix):
    """Forty times, in the midst of saving one state over another: the file is always one of the two."""
    here = os.path.dirname(__file__)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([here, os.path.dirname(here)])}
    command = [sys.executable, "-c", KILLED, str(tmp_path / f"s{suffix}"), "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.stdout == "[700, 1900] True\n", done.stderr
