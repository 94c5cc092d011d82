"""Whole models: right numbers, one result whatever the chunks, and a state that moves in all layers or in none."""

import copy
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import coarse, config, safetensors_bytes, tensors, to_bfloat16, write_model, write_shards

from mojolearn.block import TransformerBlock
from mojolearn.models import BUILT_IN
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.model_state import CausalLMState
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.state import TransformerState

DATA = Path(__file__).parent / "data"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """Layer 0 sees everything, layer 1 has a window of 4."""
    changes = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    return CausalLM.load(write_model(tmp_path_factory.mktemp("toy"), model_type="qwen2", **changes))


def rewrite(folder, change):
    """Change the tensors of a toy folder with a function of their dict."""
    named = tensors(json.loads((folder / "config.json").read_text()))
    change(named)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(named))
    return folder


class TestBuiltInModel:
    def test_logits_tokens_and_text(self):
        lm, tokenizer = CausalLM.load(BUILT_IN), Tokenizer.load(BUILT_IN)
        reference = np.load(DATA / "austen-2m" / "reference.npz")
        prompts = json.loads((DATA / "austen-2m" / "reference.json").read_text())["prompts"]
        for i, prompt in enumerate(prompts):
            wanted = reference[f"logits64_{i}"]
            logits = lm.forward([tokenizer.encode(prompt)])[0]
            np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
            new = lm.generate([tokenizer.encode(prompt)], 40)[0, -40:]
            np.testing.assert_array_equal(new, reference[f"gen_{i}"])
            text = lm.generate_text(prompt, 40, tokenizer=tokenizer)
            assert text == prompt + tokenizer.decode(new)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 3), st.randoms(use_true_random=False)
)
def test_any_chunks_give_the_bits_of_one_call(lm, chunks, batch_size, random):
    ids = np.array([[random.randrange(40) for _ in range(sum(chunks))] for _ in range(batch_size)])
    whole = lm.forward(ids)
    state, at, parts = lm.allocate_state(batch_size, 64), 0, []
    for length in chunks:
        part = ids[:, at : at + length]
        parts.append(lm.step(part, state)[:, None] if length == 1 else lm.forward(part, state))
        at += length
        assert state.cached_tokens == at
    np.testing.assert_array_equal(np.concatenate(parts, axis=1).view(np.uint32), whole.view(np.uint32))
    for row, alone in zip(ids, whole):
        np.testing.assert_array_equal(lm.forward([row])[0].view(np.uint32), alone.view(np.uint32))


class TestIds:
    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", ">i4"])
    def test_any_integers(self, lm, dtype, bits):
        ids = [[3, 1, 4], [1, 5, 9]]
        wanted = bits(lm.forward(np.array(ids)))
        np.testing.assert_array_equal(bits(lm.forward(np.array(ids, dtype=dtype))), wanted)
        np.testing.assert_array_equal(
            bits(lm.forward(np.array(ids, dtype=dtype)[:, ::-1])[:, ::-1])[:, :0], wanted[:, :0]
        )

    @pytest.mark.parametrize("ids", [[[3, 1, 4]], ((3, 1, 4),), [np.array([3, 1, 4])], [[np.int16(3), 1, 4]]])
    def test_nested_lists(self, lm, ids, bits):
        np.testing.assert_array_equal(bits(lm.forward(ids)), bits(lm.forward(np.array([[3, 1, 4]]))))

    @pytest.mark.parametrize("ids", [[3, 1], [[3], [1]], np.array([3, 1]), np.array([[3], [1]], np.uint8)])
    def test_one_per_row_for_a_step(self, lm, ids, bits):
        logits = lm.step(ids, lm.allocate_state(2, 4))
        assert logits.shape == (2, 40)
        np.testing.assert_array_equal(bits(logits), bits(lm.forward([[3], [1]])[:, 0]))

    @pytest.mark.parametrize(
        ("ids", "error", "words"),
        [
            ([[3, 40]], ValueError, ["ids[0, 1]", "from 0 to 39", "not 40"]),
            ([[3, -1]], ValueError, ["ids[0, 1]", "not -1"]),
            (np.array([[3], [2**63]], np.uint64), ValueError, ["ids[1, 0]", str(2**63)]),
            ([[2**70]], ValueError, ["ids[0, 0]", str(2**70)]),
            ([[3, 1.0]], TypeError, ["ids[0, 1]", "1.0"]),
            ([[True, 1]], TypeError, ["ids[0, 0]", "True"]),
            ([["3"]], TypeError, ["ids[0, 0]", "'3'"]),
            ([[[3]]], TypeError, ["ids[0, 0]", "[3]"]),
            ([[3, 1], [4]], ValueError, ["one length", "2, 1"]),
            ([[3, 1], 4], ValueError, ["one length"]),
            ([3, 1], ValueError, ["(2,)", "(B, L)", "[ids]"]),
            ([], ValueError, ["(0,)", "(B, L)"]),
            ([[]], ValueError, ["(1, 0)"]),
            (np.zeros((2, 0), int), ValueError, ["(2, 0)"]),
            (np.zeros((1, 2, 3), int), ValueError, ["(1, 2, 3)"]),
            (np.array(3), ValueError, ["()"]),
            (np.array([[3.0]]), TypeError, ["float64", "astype(np.int64)"]),
            (np.array([[True]]), TypeError, ["bool"]),
            (np.array([["a"]]), TypeError, ["<U1"]),
            (np.array([[3]], object), TypeError, ["object"]),
            (np.ma.masked_array([[3, 1]], mask=[[0, 1]]), TypeError, ["mask"]),
            ("31", TypeError, ["str"]),
            (None, TypeError, ["None"]),
            (3, TypeError, ["int"]),
        ],
    )
    def test_refused(self, lm, ids, error, words):
        with pytest.raises(error, match=r"^CausalLM\.forward: ") as caught:
            lm.forward(ids)
        for word in words:
            assert word in str(caught.value)

    @pytest.mark.parametrize("ids", [[[3, 1]], np.zeros((2, 2), int), []])
    def test_more_than_one_for_a_step(self, lm, ids):
        with pytest.raises(ValueError, match=r"^CausalLM\.step: ids has shape .*\(B,\) or \(B, 1\)"):
            lm.step(ids, lm.allocate_state(1, 4))


class TestState:
    def test_what_it_tells(self, lm):
        state = lm.allocate_state(2, 8)
        lm.forward([[1, 2, 3], [4, 5, 6]], state)
        assert (state.cached_tokens, state.position, state.positions.tolist()) == (3, 3, [3, 3])
        assert (state.batch_size, state.max_tokens, len(state.blocks)) == (2, 8, 2)
        assert [block.window for block in state.blocks] == [0, 4]
        assert state.nbytes == sum(block.nbytes for block in state.blocks) == 4 * 2 * 2 * 2 * 4 * (8 + 4)
        assert repr(state) == "CausalLMState(batch_size=2, cached_tokens=3/8, layers=2, 0.0 MiB)"

    @pytest.mark.parametrize(
        "make",
        [CausalLMState.copy, copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))],
    )
    def test_branches_are_independent(self, lm, make, bits):
        ids = np.arange(12)[None]
        state = lm.allocate_state(1, 16)
        lm.forward(ids[:, :6], state)
        branch = make(state)
        lm.forward([[30, 31, 32]], branch)
        rest = [lm.step(ids[:, i], state) for i in range(6, 12)]
        np.testing.assert_array_equal(bits(np.stack(rest, axis=1)), bits(lm.forward(ids)[:, 6:]))
        assert branch.cached_tokens == 9

    def test_saved_with_numpy_alone(self, lm, tmp_path, bits):
        """Flat buffers and a number per layer are all there is."""
        ids = np.arange(12)[None]
        state = lm.allocate_state(1, 16)
        lm.forward(ids[:, :7], state)
        buffers = {
            f"{kind}{i}": getattr(b, f"{kind}_cache") for i, b in enumerate(state.blocks) for kind in "kv"
        }
        np.savez(tmp_path / "state.npz", cached_tokens=state.cached_tokens, **buffers)
        saved, loaded = np.load(tmp_path / "state.npz"), lm.allocate_state(1, 16)
        for i, block in enumerate(loaded.blocks):
            block.k_cache[:], block.v_cache[:] = saved[f"k{i}"], saved[f"v{i}"]
            block.cached_tokens = int(saved["cached_tokens"])
        np.testing.assert_array_equal(bits(lm.forward(ids[:, 7:], loaded)), bits(lm.forward(ids)[:, 7:]))

    def test_equal_copied_and_pickled(self, lm):
        state = lm.allocate_state(1, 8)
        lm.forward([[1, 2, 3]], state)
        for twin in (state.copy(), copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
            assert twin == state
            lm.step([4], twin)
            assert twin != state
        assert state != lm.allocate_state(1, 8)
        assert state != state.blocks
        with pytest.raises(TypeError, match="unhashable"):
            hash(state)

    def test_session_over_a_layer_of_another_size(self, lm):
        state = lm.allocate_state(1, 8)
        state.blocks[1] = TransformerState(1, 2, 4, 8, *np.zeros((2, 40), np.float32), 0, 5)
        with pytest.raises(ValueError, match=r"^CausalLM\.decode_session: layer 1: the state has window=5"):
            lm.decode_session(state)
        assert state.blocks[0].session is None

    def test_layers_that_disagree(self, lm):
        state = lm.allocate_state(1, 8)
        state.blocks[1].cached_tokens = 2
        with pytest.raises(ValueError, match="layer 0 holds 0 and layer 1 holds 2"):
            state.cached_tokens
        with pytest.raises(
            ValueError, match=r"^CausalLM\.step: layer 1 of the state holds 2 tokens, but layer 0 holds 0"
        ):
            lm.step([1], state)

    def test_without_layers(self):
        with pytest.raises(ValueError, match="CausalLMState: blocks"):
            CausalLMState([])


def contents(state):
    """Every byte and number of a state."""
    return [(b.cached_tokens, b.k_cache.tobytes(), b.v_cache.tobytes()) for b in state.blocks]


class TestAllLayersOrNone:
    """Whatever a call meets, the state is the old one to the byte, spare room included."""

    @pytest.fixture
    def state(self, lm):
        """Three tokens of eight, and NaN in the spare room, which must neither be read nor touched."""
        state = lm.allocate_state(1, 8)
        for block in state.blocks:
            block.k_cache.fill(np.nan)
            block.v_cache.fill(np.nan)
        lm.forward([[1, 2, 3]], state)
        return state

    def poison(self, state):
        """A number in the used part of the last layer's cache that the block refuses."""
        state.blocks[1].v_cache[1] = np.inf

    @given(held=st.integers(0, 9), new=st.integers(1, 9), batch_size=st.integers(1, 3), data=st.data())
    def test_last_layer_fails(self, lm, held, new, batch_size, data):
        """Layer 0 (packed) or both layers (a ring too) have moved on when the failure comes."""
        rng = np.random.default_rng(0)
        state = lm.allocate_state(batch_size, 20)
        for block in state.blocks:
            for cache in (block.k_cache, block.v_cache):
                cache[:] = rng.random(cache.size, np.float32)
        if held:
            lm.forward(rng.integers(0, 40, (batch_size, held)), state)
        before = contents(state)
        broken = copy.copy(lm)
        place = data.draw(st.sampled_from(["_head", "_norm"]))
        object.__setattr__(broken, place, self.interrupt)
        ids = rng.integers(0, 40, (batch_size, new))
        with pytest.raises(KeyboardInterrupt):
            broken.forward(ids, state)
        assert contents(state) == before
        again = lm.forward(ids, state)
        assert state.cached_tokens == held + new
        assert np.isfinite(again).all()

    @staticmethod
    def interrupt(rows):
        raise KeyboardInterrupt

    def test_refused_by_the_last_layer(self, lm, state):
        self.poison(state)
        before = contents(state)
        for call in (lambda: lm.forward([[4, 5]], state), lambda: lm.step([4], state)):
            with pytest.raises(ValueError, match=r"^CausalLM\.(forward|step): layer 1: v_cache\[1\] is inf"):
                call()
            assert contents(state) == before

    @pytest.mark.parametrize(
        ("damage", "error", "words"),
        [
            (
                lambda s: setattr(s.blocks[1], "cached_tokens", 9),
                ValueError,
                ["layer 1", "cached_tokens", "9"],
            ),
            (lambda s: setattr(s.blocks[1], "cached_tokens", -1), ValueError, ["layer 1", "-1"]),
            (lambda s: setattr(s.blocks[1], "cached_tokens", 3.0), TypeError, ["layer 1", "3.0"]),
            (lambda s: setattr(s.blocks[1], "cached_tokens", None), TypeError, ["layer 1", "None"]),
            (lambda s: setattr(s.blocks[1], "cached_tokens", 2), ValueError, ["layer 1", "2", "3"]),
            (lambda s: s.blocks.pop(), ValueError, ["1 layer,", "2"]),
            (lambda s: s.blocks.__setitem__(1, s.blocks[0]), ValueError, ["one object", "own"]),
            (lambda s: s.blocks.__setitem__(0, s.blocks[1]), ValueError, ["one object", "own"]),
            (lambda s: s.blocks.reverse(), ValueError, ["layer 0", "window"]),
            (lambda s: s.blocks.__setitem__(1, "x"), TypeError, ["layer 1", "str"]),
        ],
    )
    def test_refused_before_the_first_layer(self, lm, state, damage, error, words):
        whole = copy.copy(state.blocks)
        damage(state)
        before = [(b.k_cache.tobytes(), b.v_cache.tobytes()) for b in whole]
        with pytest.raises(error, match=r"^CausalLM\.forward: [^\n]+$") as caught:
            lm.forward([[4, 5]], state)
        for word in words:
            assert word in str(caught.value)
        assert [(b.k_cache.tobytes(), b.v_cache.tobytes()) for b in whole] == before

    def test_no_room(self, lm, state):
        before = contents(state)
        with pytest.raises(
            ValueError, match="holds 3 tokens and has room for max_tokens=8; 6 more do not fit"
        ):
            lm.forward([[4] * 6], state)
        assert contents(state) == before
        lm.forward([[4] * 5], state)

    @pytest.mark.parametrize(
        ("other", "error", "match"),
        [
            (None, TypeError, r"^CausalLM\.step: state must be a CausalLMState, not None"),
            ([], TypeError, "not list"),
            (lambda lm: lm.blocks[0].allocate_state(1, 4), TypeError, "not TransformerState"),
            (
                lambda lm: lm.allocate_state(2, 4),
                ValueError,
                "layer 0 of the state has 2 rows, but ids has 1",
            ),
        ],
    )
    def test_another_kind_of_state(self, lm, other, error, match):
        with pytest.raises(error, match=match):
            lm.step([4], other(lm) if callable(other) else other)

    def test_ring_of_another_size(self, lm, state):
        wrong = TransformerState(1, 2, 4, 8, *np.zeros((2, 40), np.float32), 3, 5)
        state.blocks[1] = wrong
        before = contents(state)
        with pytest.raises(ValueError, match="layer 1: the state has window=5"):
            lm.forward([[4, 5]], state)
        assert contents(state) == before

    def test_last_position(self, tmp_path):
        lm = CausalLM.load(write_model(tmp_path, max_position_embeddings=5))
        state = lm.allocate_state(1, 64)
        lm.forward([[1, 2, 3]], state)
        before = contents(state)
        with pytest.raises(
            ValueError, match=r"^CausalLM\.forward: the call reaches position 5, but max_positions=5"
        ):
            lm.forward([[4, 5, 6]], state)
        assert contents(state) == before
        lm.forward([[4, 5]], state)

    def test_sizes_that_cannot_be_allocated(self, lm):
        for arguments, error in (((0, 4), ValueError), ((1, 0), ValueError), ((1, 2.0), TypeError)):
            with pytest.raises(error, match=r"^CausalLM\.allocate_state: "):
                lm.allocate_state(*arguments)
        total = (
            2 * 4 * 2**20 * (2**40 + 4) * 2 * 4
        )  # buffers, bytes, rows, slots of both layers, heads, head_dim
        with pytest.raises(MemoryError, match=rf"^CausalLM\.allocate_state: .* {total} bytes in 2 layers"):
            lm.allocate_state(2**20, 2**40)


class TestLoad:
    def test_attributes(self, tmp_path):
        lm = CausalLM.load(write_model(tmp_path))
        assert (lm.n_layers, lm.d_model, lm.vocab_size, lm.max_positions) == (2, 16, 40, 64)
        assert lm.weight_format == "float32"
        assert lm.config.model_type == "llama"
        assert all(isinstance(block, TransformerBlock) for block in lm.blocks)
        assert (lm.blocks[1].norm_eps, lm.blocks[1].max_positions) == (1e-6, 64)
        assert repr(lm) == "CausalLM(llama, layers=2, d_model=16, vocab_size=40, float32, max_positions=64)"
        with pytest.raises(AttributeError, match="never changes"):
            lm.weight_format = "float16"

    def test_str_and_path(self, tmp_path, bits):
        write_model(tmp_path)
        a, b = CausalLM.load(str(tmp_path)), CausalLM.load(tmp_path)
        np.testing.assert_array_equal(bits(a.forward([[1, 2]])), bits(b.forward([[1, 2]])))
        with pytest.raises(TypeError, match=r"^CausalLM\.load: path must be a str or a Path, not None"):
            CausalLM.load(None)

    def test_later_changes_of_the_file_have_no_effect(self, tmp_path, bits):
        lm = CausalLM.load(write_model(tmp_path))
        before = bits(lm.forward([[1, 2]]))
        path = tmp_path / "model.safetensors"
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
        np.testing.assert_array_equal(bits(lm.forward([[1, 2]])), before)

    def test_pickle(self, lm, bits):
        again = pickle.loads(pickle.dumps(lm))
        np.testing.assert_array_equal(bits(again.forward([[1, 2, 3]])), bits(lm.forward([[1, 2, 3]])))

    def test_theta_and_eps_reach_the_arithmetic(self, tmp_path):
        ids = np.arange(8)[None]
        plain = CausalLM.load(write_model(tmp_path / "0")).forward(ids)
        for i, changes in enumerate(
            [
                {"rope_theta": 100.0},
                {"rms_norm_eps": 1e-2},
                {"rope_scaling": {"type": "linear", "factor": 2.0}},
            ]
        ):
            other = CausalLM.load(write_model(tmp_path / f"1{i}", **changes)).forward(ids)
            assert np.abs(other - plain).max() > 1e-4

    def test_final_norm_has_the_eps_of_the_config(self, tmp_path):
        """Tiny embeddings and no layers to speak of: what is left is the final norm."""
        folder = write_model(tmp_path, rms_norm_eps=1e-5)

        def change(named):
            for name in named:
                if "proj" in name:
                    named[name][:] = 0
            named[EMBEDDING] *= np.float32(1e-3)

        lm, named = CausalLM.load(rewrite(folder, change)), tensors(config())
        x = named[EMBEDDING][7].astype(float) * 1e-3
        h = x / np.sqrt((x**2).mean() + 1e-5) * named["model.norm.weight"]
        np.testing.assert_allclose(lm.forward([[7]])[0, 0], named[HEAD] @ h, rtol=1e-4, atol=1e-6)

    def test_head_dim_of_its_own(self, tmp_path):
        lm = CausalLM.load(write_model(tmp_path, hidden_size=20, head_dim=8))
        assert lm.blocks[0].head_dim == 8
        assert lm.forward([[1, 2]]).shape == (1, 2, 40)


class TestTiedHead:
    def test_embedding_serves(self, tmp_path, bits):
        tied = CausalLM.load(write_model(tmp_path / "tied", tie_word_embeddings=True))
        own = rewrite(write_model(tmp_path / "own"), lambda named: named.update({HEAD: named[EMBEDDING]}))
        np.testing.assert_array_equal(
            bits(tied.forward([[1, 2]])), bits(CausalLM.load(own).forward([[1, 2]]))
        )

    def test_equal_head_is_accepted(self, tmp_path):
        folder = write_model(tmp_path, tie_word_embeddings=True)
        rewrite(folder, lambda named: named.update({HEAD: named[EMBEDDING]}))
        assert CausalLM.load(folder).vocab_size == 40

    @pytest.mark.parametrize("weight_format", ["float32", "bfloat16", "float16"])
    def test_embedding_is_held_once(self, tmp_path, weight_format, bits):
        """The rows come out of the packed head, whatever its format."""
        folder = write_model(tmp_path, tie_word_embeddings=True)
        rewrite(folder, lambda named: named.update({name: coarse(array) for name, array in named.items()}))
        lm = CausalLM.load(folder, weight_format=weight_format)
        assert lm._embedding.matrix is lm._head.linear
        ids = np.array([[3, 39, 0], [17, 16, 15]])
        np.testing.assert_array_equal(
            bits(lm._embedding(ids, 0)), bits(coarse(tensors(config())[EMBEDDING])[ids])
        )

    def test_another_head_is_refused(self, tmp_path):
        folder = write_model(tmp_path, tie_word_embeddings=True)
        rewrite(folder, lambda named: named.update({HEAD: named[EMBEDDING] * np.float32(2)}))
        with pytest.raises(ValueError, match=r"lm_head\.weight must equal model\.embed_tokens\.weight"):
            CausalLM.load(folder)

    def test_missing_head_is_refused(self, tmp_path):
        folder = rewrite(write_model(tmp_path), lambda named: named.pop(HEAD))
        with pytest.raises(ValueError, match=r"the tensor lm_head\.weight is missing"):
            CausalLM.load(folder)


FORMATS = {"float32": lambda a: a, "float16": lambda a: a.astype(np.float16), "bfloat16": to_bfloat16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One model in every storage format."""
    made = {}
    for name, convert in FORMATS.items():
        made[name] = write_model(tmp_path_factory.mktemp(name), attention_bias=True)
        named = tensors(config(attention_bias=True))
        named = {tensor: convert(coarse(array)) for tensor, array in named.items()}
        (made[name] / "model.safetensors").write_bytes(safetensors_bytes(named))
    return made


class TestFormats:
    """All weights are numbers that every format holds, so all roads lead to the same bits."""

    @pytest.mark.parametrize("stored", FORMATS)
    @pytest.mark.parametrize("wanted", [None, *FORMATS])
    def test_same_bits(self, folders, stored, wanted, bits):
        reference = CausalLM.load(folders["float32"])
        lm = CausalLM.load(folders[stored], weight_format=wanted)
        assert lm.weight_format == (wanted or stored)
        assert {block.weight_format for block in lm.blocks} == {wanted or stored}
        np.testing.assert_array_equal(bits(lm.forward([[1, 2, 3]])), bits(reference.forward([[1, 2, 3]])))

    def test_mixed_checkpoint_becomes_float32(self, folders, tmp_path, bits):
        def change(named):
            for i, name in enumerate(sorted(named)):
                named[name] = list(FORMATS.values())[i % 3](coarse(named[name]))

        lm = CausalLM.load(rewrite(write_model(tmp_path, attention_bias=True), change))
        assert lm.weight_format == "float32"
        reference = CausalLM.load(folders["float32"])
        np.testing.assert_array_equal(bits(lm.forward([[1, 2, 3]])), bits(reference.forward([[1, 2, 3]])))

    @pytest.mark.parametrize(
        ("name", "words"), [(GATE, ["layer 1", "gate_proj.weight[2, 3]"]), (HEAD, [HEAD])]
    )
    def test_nothing_is_rounded(self, tmp_path, name, words):
        folder = write_model(tmp_path)

        def change(named):
            named.update({n: coarse(a) for n, a in named.items()})
            named[name][2, 3] = 0.1

        rewrite(folder, change)
        with pytest.raises(ValueError, match=r"^CausalLM\.load: [^\n]*bfloat16") as caught:
            CausalLM.load(folder, weight_format="bfloat16")
        for word in words:
            assert word in str(caught.value)

    def test_shards(self, folders, tmp_path, bits):
        fields = json.loads((folders["float32"] / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(fields))
        named = {name: coarse(array) for name, array in tensors(fields).items()}
        names = sorted(named)
        write_shards(tmp_path, named, {"a.safetensors": names[:7], "b.safetensors": names[7:]})
        reference = CausalLM.load(folders["float32"])
        np.testing.assert_array_equal(
            bits(CausalLM.load(tmp_path).forward([[1, 2]])), bits(reference.forward([[1, 2]]))
        )


def put(name, array):
    return lambda folder: rewrite(folder, lambda named: named.update({name: array}))


def poison(name, index, value):
    return lambda folder: rewrite(folder, lambda named: named[name].__setitem__(index, value))


class TestBrokenFolders:
    @pytest.mark.parametrize(
        ("damage", "error", "words"),
        [
            (lambda f: shutil.rmtree(f), FileNotFoundError, ["the folder", "does not exist"]),
            (lambda f: (f / "config.json").unlink(), FileNotFoundError, ["config.json", "does not exist"]),
            (lambda f: (f / "config.json").write_text("{"), ValueError, ["config.json", "JSON"]),
            (
                lambda f: (f / "config.json").write_text('{"model_type": "bert"}'),
                ValueError,
                ["'bert'", "llama"],
            ),
            (
                lambda f: (f / "model.safetensors").unlink(),
                FileNotFoundError,
                ["no weights", "model.safetensors"],
            ),
            (
                lambda f: (f / "model.safetensors").write_bytes(b"x" * 99),
                ValueError,
                ["model.safetensors", "99 bytes"],
            ),
            (put(GATE, np.zeros((16, 24), np.float32)), ValueError, [GATE, "(16, 24)", "(24, 16)"]),
            (put(GATE, np.zeros((24, 16))), ValueError, [GATE, "F64", "BF16"]),
            (put(GATE, np.zeros((24, 16), np.int64)), ValueError, [GATE, "I64"]),
            (
                put("model.layers.1.self_attn.q_proj.bias", np.zeros(16, np.float32)),
                ValueError,
                ["no place", "q_proj.bias"],
            ),
            (
                put("model.layers.2.mlp.up_proj.weight", np.zeros((24, 16), np.float32)),
                ValueError,
                ["no place", "layers.2"],
            ),
            (lambda f: rewrite(f, lambda named: named.pop(GATE)), ValueError, [GATE, "missing", "(24, 16)"]),
            (poison(GATE, (2, 3), np.nan), ValueError, ["layer 1", "gate_proj.weight[2, 3]"]),
            (poison("model.norm.weight", 5, np.inf), ValueError, ["model.norm.weight[5]", "inf"]),
            (poison(EMBEDDING, (39, 1), np.nan), ValueError, [EMBEDDING + "[39, 1]", "nan"]),
            (poison(HEAD, (0, 2), -np.inf), ValueError, [HEAD + "[0, 2]", "-inf"]),
        ],
    )
    def test_one_line_says_what_and_where(self, tmp_path, damage, error, words):
        folder = write_model(tmp_path / "model")
        damage(folder)
        with pytest.raises(error, match=r"^CausalLM\.load: [^\n]+$") as caught:
            CausalLM.load(folder)
        assert str(folder) in str(caught.value)
        for word in words:
            assert word in str(caught.value)

    def test_bias_of_qwen2_must_be_there(self, tmp_path):
        """A missing bias is an error, not a zero or what the memory held."""
        folder = write_model(tmp_path, model_type="qwen2")
        rewrite(folder, lambda named: named.pop("model.layers.0.self_attn.k_proj.bias"))
        with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.k_proj\.bias is missing"):
            CausalLM.load(folder)

    def test_norm_over_the_full_width_is_not_broadcast(self, tmp_path):
        folder = write_model(tmp_path, model_type="qwen3", head_dim=4)
        put("model.layers.0.self_attn.q_norm.weight", np.ones(16, np.float32))(folder)
        with pytest.raises(ValueError, match=r"q_norm\.weight has shape \(16,\); wanted \(4,\)"):
            CausalLM.load(folder)

    def test_known_tables_are_ignored(self, tmp_path):
        folder = write_model(tmp_path)
        put("model.layers.0.self_attn.rotary_emb.inv_freq", np.zeros(2, np.float32))(folder)
        assert CausalLM.load(folder).n_layers == 2

    def test_stray_files_are_ignored(self, tmp_path):
        folder = write_model(tmp_path)
        (folder / "adapter.safetensors").write_bytes(b"rubbish")
        assert CausalLM.load(folder).n_layers == 2

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"weight_format": "int8"}, ValueError, ["weight_format", "'int8'", "'bfloat16'"]),
            ({"weight_format": 16}, TypeError, ["weight_format", "16"]),
            ({"max_positions": 0}, ValueError, ["max_positions", "0"]),
            ({"max_positions": 2**24 + 1}, ValueError, ["max_positions"]),
            ({"max_positions": 8.0}, TypeError, ["max_positions", "8.0"]),
        ],
    )
    def test_refused_options(self, tmp_path, options, error, words):
        write_model(tmp_path)
        with pytest.raises(error, match=r"^CausalLM\.load: ") as caught:
            CausalLM.load(tmp_path, **options)
        for word in words:
            assert word in str(caught.value)


class TestMaxPositions:
    def test_own_ceiling(self, tmp_path):
        write_model(tmp_path)
        assert CausalLM.load(tmp_path, max_positions=100).forward([[1] * 100]).shape == (1, 100, 40)
        with pytest.raises(ValueError, match="reaches position 64, but max_positions=64"):
            CausalLM.load(tmp_path).forward([[1] * 65])

    def test_none_in_the_config(self, tmp_path):
        lm = CausalLM.load(write_model(tmp_path, max_position_embeddings=None))
        assert lm.max_positions is None
        assert lm.forward([[1] * 65]).shape == (1, 65, 40)

    def test_more_than_float32_counts(self, tmp_path):
        assert CausalLM.load(write_model(tmp_path, max_position_embeddings=2**30)).max_positions == 2**24


@pytest.fixture(scope="module")
def austen():
    return CausalLM.load(BUILT_IN), Tokenizer.load(BUILT_IN)


class TestGenerateText:
    def test_stops_at_eos_without_showing_it(self, austen):
        lm, tokenizer = austen
        whole = lm.generate([tokenizer.encode("Emma")], 12)[0].tolist()
        text = lm.generate_text("Emma", 12, tokenizer=tokenizer, eos_token_id=whole[6])
        assert text == tokenizer.decode(whole[: whole.index(whole[6], 2) + 1])

    def test_seed_and_sampling(self, austen):
        lm, tokenizer = austen
        options = {"tokenizer": tokenizer, "greedy": False, "temperature": 0.8}
        texts = [lm.generate_text("Emma", 12, seed=seed, **options) for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]
        assert all(text.startswith("Emma") for text in texts)

    @pytest.mark.parametrize("tokenizer", [3, str(BUILT_IN)])
    def test_tokenizer_of_another_kind(self, austen, tokenizer):
        with pytest.raises(TypeError, match=r"^CausalLM\.generate_text: tokenizer must be a Tokenizer"):
            austen[0].generate_text("Emma", 2, tokenizer=tokenizer)

    def test_empty_prompt(self, austen):
        lm, tokenizer = austen
        silent = Tokenizer(tokenizer._backend)
        assert lm.generate_text("", 2, tokenizer=tokenizer)
        with pytest.raises(
            ValueError, match=r"^CausalLM\.generate_text: prompt must hold at least one token, not ''"
        ):
            lm.generate_text("", 2, tokenizer=silent)
