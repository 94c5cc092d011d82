"""``CausalLM``: embedding, blocks, final norm and head of a checkpoint, run on token ids."""

from functools import partial
from pathlib import Path

import numpy as np

from mojolearn.admission import settle
from mojolearn.buffers import first_nonfinite
from mojolearn.models.decode import CausalLMDecodeSession
from mojolearn.models.features import features
from mojolearn.models.fingerprint import fingerprint
from mojolearn.models.generate import generate, stream
from mojolearn.models.ids import admit_ids
from mojolearn.models.insides import DO_NOT_LOOK, admit_look, embed, unembed
from mojolearn.models.loading import load_parts
from mojolearn.models.model_state import admit_state, allocate, claim_layers
from mojolearn.models.resume import resume
from mojolearn.models.scoring import score
from mojolearn.models.text import chat, generate_text, stream_chat, stream_text
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.threads import Limit, admit_threads


class CausalLM:
    """A causal language model; made by `CausalLM.load`, and never changed afterwards.

    Attributes
    ----------
    config : ModelConfig
        What the checkpoint's ``config.json`` says.
    blocks : tuple of TransformerBlock
        The layers.
    max_positions : int or None
        Ceiling on the positions of tokens.
    weight_format : {"float32", "bfloat16", "float16"}
        How the matrices are stored. The arithmetic is float32 in every case.
    path : pathlib.Path or None
        Where the model was loaded from.
    threads : int or None
        Number of threads of its calls; None goes by `mojolearn.set_num_threads`.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> lm = CausalLM.load(BUILT_IN)
    >>> lm
    CausalLM(llama, layers=4, d_model=192, vocab_size=2048, float16, max_positions=512)
    >>> lm.generate([[0, 1818, 305]], 5)
    array([[   0, 1818,  305,  267,  670,  578,  282,  299]])
    """

    def __init__(self, *, config, blocks, embedding, norm, head, weight_format, max_positions, path=None,
                 threads=None):  # fmt: skip
        set_once = partial(object.__setattr__, self)
        set_once("config", config)
        set_once("blocks", tuple(blocks))
        set_once("weight_format", weight_format)
        set_once("max_positions", max_positions)
        set_once("path", path)
        set_once("_limit", Limit(threads))
        set_once("_embedding", embedding)
        set_once("_norm", norm)
        set_once("_head", head)

    def __setattr__(self, name, value):
        raise AttributeError(f"CausalLM: {name} cannot be set; a model never changes, load another one")

    def __deepcopy__(self, memo):
        return self  # as it never changes; what is cloned with a model in it shares the model

    @property
    def threads(self):
        """Number of threads of its calls, or None."""
        return self._limit.threads

    @property
    def n_layers(self):
        """Number of layers."""
        return self.config.n_layers

    @property
    def d_model(self):
        """Width of the model."""
        return self.config.d_model

    @property
    def vocab_size(self):
        """Number of token ids."""
        return self.config.vocab_size

    @property
    def tokenizer(self):
        """The tokenizer that lies with the checkpoint, loaded at first use; errors as `Tokenizer.load`."""
        if "_tokenizer" not in vars(self):
            if self.path is None:
                raise ValueError(
                    "CausalLM.tokenizer: the model was not loaded from a path; give a tokenizer yourself"
                )
            object.__setattr__(self, "_tokenizer", Tokenizer.load(self.path))
        return self._tokenizer

    @property
    def fingerprint(self):
        """A hash over the arithmetic and all weights, whatever their storage; computed at first use."""
        if "_fingerprint" not in vars(self):
            object.__setattr__(self, "_fingerprint", fingerprint(self))
        return self._fingerprint

    @classmethod
    def load(cls, path, *, weight_format=None, max_positions=None, threads=None):
        """Load a Hugging Face folder (``config.json`` and safetensors, whole or in shards), or a GGUF file.

        Parameters
        ----------
        path : str or path
            The folder or the file. The families are the rows of ``mojolearn.models.families.FAMILIES``, from arcee
            to starcoder2; docs/guide/checkpoints.md and docs/guide/gguf.md tell them apart.
        weight_format : {"float32", "bfloat16", "float16"}, optional
            How to keep matrices in memory; None keeps them as they are stored (as float32 where the checkpoint
            mixes formats). Nothing is ever rounded: a narrow format that cannot hold a weight is refused.
        max_positions : int, optional
            Ceiling on positions; None takes the length the model was made for, ``config.max_position_embeddings``.
        threads : int, optional
            How many threads calls of this model use, in whichever Python thread they are made; None goes by
            `mojolearn.set_num_threads`. No bit of a result depends on it.

        Returns
        -------
        CausalLM
            The model.

        Raises
        ------
        FileNotFoundError
            The folder, ``config.json`` or a file of weights is missing.
        ImportError
            The tensors of a GGUF file come in blocks, and the package gguf is not installed.
        ValueError
            Something in a file is malformed, not honoured, missing, left over, or not finite; the message names
            the file, what was found and what was wanted.
        """
        threads = admit_threads(threads, "threads", "CausalLM.load")
        parts = load_parts(path, weight_format, max_positions)
        return cls(**parts, path=Path(path).absolute(), threads=threads)

    def __repr__(self):
        return (
            f"CausalLM({self.config.model_type}, layers={self.n_layers}, d_model={self.d_model}, "
            f"vocab_size={self.vocab_size}, {self.weight_format}, max_positions={self.max_positions})"
        )

    def allocate_state(self, batch_size, max_tokens):
        """Make an empty state.

        Parameters
        ----------
        batch_size : int
            Number of rows B.
        max_tokens : int
            Room for tokens in each row. It may be more than ``max_positions``, which only a call that reaches so
            far meets.

        Returns
        -------
        CausalLMState
            Its ``blocks`` are the layers' states.

        Raises
        ------
        TypeError, ValueError
            For sizes that are no integers above 0.
        MemoryError
            If the buffers do not fit, naming the bytes of all layers.
        """
        return allocate(self.blocks, batch_size, max_tokens)

    def forward(self, ids, state=None, *, return_hidden=False, return_attention=False):
        """Compute the logits at every position.

        Parameters
        ----------
        ids : array or nested list of int, shape (B, L)
            Token ids.
        state : CausalLMState, optional
            Continue after the tokens it holds, and add these; None starts afresh and keeps nothing.
        return_hidden : bool or list, default False
            Return also hidden states: all, or those named: "embed" (before the first layer), "block_0" and so on (after
            a layer, which may be given as its number; before any norm of the next), "final_norm" (what the head reads),
            "block_2.context" and so on (inside a layer, see `mojolearn.insides.HIDDEN`).
        return_attention : bool or list of int, default False
            Return also the weights of attention, of all layers or of these.

        Returns
        -------
        logits : ndarray of float32, shape (B, L, vocab_size)
            ``[:, t]`` predicts the token after ``ids[:, t]``. Without ``return_...`` this alone.
        hidden : dict of str to ndarray of float32, shape (B, L, d_model)
            With ``return_hidden``. True gives "embed", those after all layers, and "final_norm" if the model has one.
        attention : dict of int to ndarray of float32, shape (B, n_heads, L, S + L)
            With ``return_attention``, by layer: what a token gives to positions 0, 1, ..., of which S were in the state
            before; 0 where it does not see one.

        Raises
        ------
        TypeError, ValueError, MemoryError
            The ids or the state are not usable, there is no room for L more tokens, or a name is not known. The state
            has then not changed, in any layer.
        """
        look = admit_look(self, return_hidden, return_attention, "CausalLM.forward")
        ids = admit_ids(ids, self.vocab_size, "CausalLM.forward")
        with claim_layers(state, "CausalLM.forward"):
            held = 0 if state is None else admit_state(state, self.n_layers, *ids.shape, "CausalLM.forward")
            return look.answer(self._run(ids, state, held, "CausalLM.forward", look=look))

    def step(self, ids, state):
        """Compute the logits after one more token per row.

        Parameters
        ----------
        ids : array or list of int, shape (B,) or (B, 1)
            Token ids.
        state : CausalLMState
            The tokens before.

        Returns
        -------
        ndarray of float32, shape (B, vocab_size)
            They predict the next token.

        Raises
        ------
        TypeError, ValueError
            As for `forward`.
        """
        ids = admit_ids(ids, self.vocab_size, "CausalLM.step", step=True)
        with claim_layers(state, "CausalLM.step"):
            held = admit_state(state, self.n_layers, *ids.shape, "CausalLM.step")
            return self._run(ids, state, held, "CausalLM.step")[:, 0]

    def decode_session(self, state):
        """Open a session on a state: the fast way to many single steps, see `TransformerDecodeSession`.

        Parameters
        ----------
        state : CausalLMState
            The tokens before; until the session is closed only the session advances it.

        Returns
        -------
        CausalLMDecodeSession
            A context manager with a ``step`` of its own, the same bits as the model's.

        Raises
        ------
        TypeError, ValueError
            For a state that does not fit, or is in a session already.

        Examples
        --------
        ``with lm.decode_session(state) as session: logits = session.step(ids)``
        """
        with self._limit:
            return CausalLMDecodeSession(self, state)

    def _run(self, ids, state, held, method, *, last=False, session=None, look=DO_NOT_LOOK):
        """Logits of all positions, or of the last only: every layer's state moves on, or none does.

        Each layer only reads its cache; all are written at the end. The caller holds the state, or nobody else
        knows it. session: the one that makes the call, if one does.
        """
        B, L = ids.shape
        self._check_positions(held + L, method)
        tokens = self._embedding(ids, held).reshape(-1)
        with self._limit:
            if session is not None:
                tokens, commit = session._advance(tokens, held, method)
                commits = [commit]
            else:
                commits = []
                for layer, block in enumerate(self.blocks):
                    block_state = None if state is None else state.blocks[layer]
                    tokens, commit = block._advance(
                        tokens, B, L, block_state, f"{method}: layer {layer}", look=look.at(layer)
                    )
                    commits.append(commit)
            rows = tokens.reshape(B, L, -1)[:, -1:] if last else tokens
            rows = np.ascontiguousarray(rows).reshape(-1, self.d_model)
            rows = rows if self._norm is None else self._norm(rows)
            look.final_norm(rows, B, L)
            logits = self._head(rows)
            if first_nonfinite(logits) is not None:
                raise ValueError(
                    f"{method}: a logit is too large for float32; the weights are too large (a state is unchanged)"
                )
            settle(commits)
        return logits.reshape(B, -1, self.vocab_size)

    def _check_positions(self, end, method):
        if self.max_positions is not None and end > self.max_positions:
            raise ValueError(
                f"{method}: the call reaches position {end - 1}, but max_positions={self.max_positions}; "
                "CausalLM.load(..., max_positions=...) sets another ceiling"
            )

    # The rest stands in files of its own; each is a function whose first argument is the model.
    embed = embed
    unembed = unembed
    features = features
    generate = generate
    stream = stream
    resume = resume
    generate_text = generate_text
    stream_text = stream_text
    chat = chat
    stream_chat = stream_chat
    score = score
