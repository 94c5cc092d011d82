"""``CausalLM``: embedding, blocks, final norm and head of a checkpoint, run on token ids."""

from functools import partial

import numpy as np

from mojolearn.admission import settle
from mojolearn.claims import Claim
from mojolearn.models.decode import CausalLMDecodeSession
from mojolearn.models.generation import TokenStream
from mojolearn.models.ids import admit_ids
from mojolearn.models.loading import load_parts
from mojolearn.models.model_state import admit_state, allocate
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.scalars import kind


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

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> lm = CausalLM.load(BUILT_IN)
    >>> lm
    CausalLM(llama, layers=4, d_model=192, vocab_size=2048, float16, max_positions=512)
    >>> lm.generate([[0, 1818, 305]], 5)
    array([[   0, 1818,  305,  267,  670,  578,  282,  299]])
    """

    def __init__(self, *, config, blocks, embedding, norm, head, weight_format, max_positions):
        set_once = partial(object.__setattr__, self)
        set_once("config", config)
        set_once("blocks", tuple(blocks))
        set_once("weight_format", weight_format)
        set_once("max_positions", max_positions)
        set_once("_embedding", embedding)
        set_once("_norm", norm)
        set_once("_head", head)

    def __setattr__(self, name, value):
        raise AttributeError(f"CausalLM: {name} cannot be set; a model never changes, load another one")

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

    @classmethod
    def load(cls, path, *, weight_format=None, max_positions=None):
        """Load a Hugging Face folder: ``config.json`` and ``model.safetensors``, or shards and their index.

        Parameters
        ----------
        path : str or path
            The folder. The families are the rows of ``mojolearn.models.families.FAMILIES``, from arcee to starcoder2;
            docs/guide/checkpoints.md tells them apart.
        weight_format : {"float32", "bfloat16", "float16"}, optional
            How to keep matrices in memory; None keeps them as they are stored (as float32 where the checkpoint
            mixes formats). Nothing is ever rounded: a narrow format that cannot hold a weight is refused.
        max_positions : int, optional
            Ceiling on positions; None takes the length the model was made for, ``config.max_position_embeddings``.

        Returns
        -------
        CausalLM
            The model.

        Raises
        ------
        FileNotFoundError
            The folder, ``config.json`` or a file of weights is missing.
        ValueError
            Something in a file is malformed, not honoured, missing, left over, or not finite; the message names
            the file, what was found and what was wanted.
        """
        return cls(**load_parts(path, weight_format, max_positions))

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

    def forward(self, ids, state=None):
        """Compute the logits at every position.

        Parameters
        ----------
        ids : array or nested list of int, shape (B, L)
            Token ids.
        state : CausalLMState, optional
            Continue after the tokens it holds, and add these; None starts afresh and keeps nothing.

        Returns
        -------
        ndarray of float32, shape (B, L, vocab_size)
            ``[:, t]`` predicts the token after ``ids[:, t]``.

        Raises
        ------
        TypeError, ValueError
            The ids or the state are not usable, or there is no room for L more tokens. The state has then not
            changed, in any layer.
        """
        ids = admit_ids(ids, self.vocab_size, "CausalLM.forward")
        held = 0 if state is None else admit_state(state, self.n_layers, *ids.shape, "CausalLM.forward")
        return self._run(ids, state, held, "CausalLM.forward")

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
        return CausalLMDecodeSession(self, state)

    def _run(self, ids, state, held, method, *, last=False, session=None):
        """Logits of all positions, or of the last only: every layer's state moves on, or none does.

        Each layer only reads its cache; all are written at the end. session: the one that makes the call, if one does.
        """
        B, L = ids.shape
        self._check_positions(held + L, method)
        tokens = self._embedding(ids, held).reshape(-1)
        with Claim(() if state is None or session is not None else state.blocks, method):
            if session is not None:
                tokens, commit = session._advance(tokens, held, method)
                commits = [commit]
            else:
                commits = []
                for layer, block in enumerate(self.blocks):
                    block_state = None if state is None else state.blocks[layer]
                    tokens, commit = block._advance(tokens, B, L, block_state, f"{method}: layer {layer}")
                    commits.append(commit)
            rows = tokens.reshape(B, L, -1)[:, -1:] if last else tokens
            rows = np.ascontiguousarray(rows).reshape(-1, self.d_model)
            logits = self._head(rows if self._norm is None else self._norm(rows))
            settle(commits)
        return logits.reshape(B, -1, self.vocab_size)

    def _check_positions(self, end, method):
        if self.max_positions is not None and end > self.max_positions:
            raise ValueError(
                f"{method}: the call reaches position {end - 1}, but max_positions={self.max_positions}; "
                "CausalLM.load(..., max_positions=...) sets another ceiling"
            )

    def generate(self, ids, max_new_tokens, *, greedy=True, seed=None, temperature=1.0, top_k=0, top_p=1.0,
                 min_p=0.0, eos_token_id=None, pad_token_id=None):  # fmt: skip
        """Continue every row of a batch of prompts.

        Parameters
        ----------
        ids : array or nested list of int, shape (B, L)
            Prompts of one length.
        max_new_tokens : int
            How many tokens to add to each row; 0 adds none.
        greedy : bool, default True
            Take the best token every time (the lowest id of equals). False draws from the distribution.
        seed : int or sequence of int, optional
            One for all rows, which then still differ from each other, or one per row: a row's tokens depend on its
            seed and prompt alone. None takes a new seed each time; `stream` can tell which. Only with greedy=False.
        temperature, top_k, top_p, min_p
            What to draw from, see `mojolearn.models.sampling.Sampling`.
        eos_token_id : int or sequence of int, optional
            A row ends after any of these; None: no row ends early. ``lm.config.eos_token_ids`` has the model's own.
        pad_token_id : int, optional
            Fills up rows that have ended; None takes the first eos id.

        Returns
        -------
        ndarray of int64, shape (B, L + max_new_tokens)
            Prompt and continuation.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, and for more positions than ``max_positions``.
        """
        options = {
            name: value for name, value in locals().items() if name not in ("self", "ids", "max_new_tokens")
        }
        ids = admit_ids(ids, self.vocab_size, "CausalLM.generate")
        stream = TokenStream(self, ids, max_new_tokens, "CausalLM.generate", **options)
        out = np.full((len(ids), ids.shape[1] + stream.max_new_tokens), stream.pad_token_id, np.int64)
        out[:, : ids.shape[1]] = ids
        for n, new in enumerate(stream, ids.shape[1]):
            out[:, n] = new
        return out

    def stream(self, ids, max_new_tokens, **options):
        """Continue every row of a batch of prompts, token by token.

        Parameters
        ----------
        ids : array or nested list of int, shape (B, L)
            Prompts of one length; they are run before `stream` returns.
        max_new_tokens : int
            At most so many tokens per row.
        **options
            As for `generate`.

        Returns
        -------
        TokenStream
            An iterator over the new ids, each time an int64 array of shape (B,), until all rows have ended. Its
            attribute ``seed`` tells the seed in use.

        Raises
        ------
        TypeError, ValueError
            As for `generate`.
        """
        return TokenStream(self, ids, max_new_tokens, "CausalLM.stream", **options)

    def generate_text(self, prompt, max_new_tokens, *, tokenizer, **options):
        """Continue a text.

        Parameters
        ----------
        prompt : str
            Its beginning.
        max_new_tokens : int
            How many tokens to add at most.
        tokenizer : Tokenizer
            That of the model.
        **options
            As for `generate`.

        Returns
        -------
        str
            Prompt and continuation.

        Raises
        ------
        TypeError, ValueError
            As for `generate`, and for a prompt without any token.

        Examples
        --------
        >>> from mojolearn.models import BUILT_IN
        >>> from mojolearn.models.tokenizer import Tokenizer
        >>> CausalLM.load(BUILT_IN).generate_text("Emma was", 5, tokenizer=Tokenizer.load(BUILT_IN))
        'Emma was the first time of her'
        """
        method = "CausalLM.generate_text"
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(
                f"{method}: tokenizer must be a Tokenizer, not {kind(tokenizer)}; see Tokenizer.load"
            )
        ids = tokenizer.encode(prompt)
        if not ids:
            raise ValueError(f"{method}: prompt must hold at least one token, not {prompt!r}")
        stream = TokenStream(self, [ids], max_new_tokens, method, **options)
        text = tokenizer.decode_stream(ids)
        return prompt + "".join(text.step(int(new[0])) for new in stream) + text.flush()
