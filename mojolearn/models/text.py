"""The methods of `CausalLM` that give text: ``generate_text``, ``stream_text``, ``chat``, ``stream_chat``."""

import numpy as np

from mojolearn.models.generation import TokenStream
from mojolearn.models.stopping import StopStrings
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.scalars import kind, shown

MOST_OF_AN_ANSWER = 256  # tokens, where nothing is said


class TextPieces:
    """New text as it comes; made by `CausalLM.stream_text` and `CausalLM.stream_chat`.

    Parameters
    ----------
    stream : TokenStream
        Of one row.
    tokenizer : Tokenizer
        That of the model.
    prompt : sequence of int
        The tokens before, whose text is not given out.
    stop : sequence of str
        The text ends before any of these.

    Attributes
    ----------
    stream : TokenStream
        The tokens behind the text: its ``ids``, ``seed``, ``logprobs`` and so on.
    """

    def __init__(self, stream, tokenizer, prompt, stop):
        self.stream = stream
        self._text = tokenizer.decode_stream(prompt)
        self._stop = StopStrings(stop)
        self._pieces = self._run()

    def _run(self):
        for new in self.stream:
            yield self._stop.step(self._text.step(int(new[0])))
        yield self.flush()

    def flush(self):
        """Return the text that was held back so far: of a character whose end has not come, or of a stop string."""
        return self._stop.step(self._text.flush()) + self._stop.flush()

    def __iter__(self):
        return self

    def __next__(self):
        return next(piece for piece in self._pieces if piece)


def generate_text(self, prompt, max_new_tokens, *, tokenizer=None, **options):
    """Continue a text.

    Parameters
    ----------
    prompt : str or sequence of int
        Its beginning, as text or as token ids.
    max_new_tokens : int
        How many tokens to add at most.
    tokenizer : Tokenizer, optional
        That of the model; None takes the one that lies with the checkpoint.
    **options
        As for `generate`.

    Returns
    -------
    str
        Prompt and continuation, which ends before a string of ``stop``.

    Raises
    ------
    TypeError, ValueError
        As for `generate`, and for a prompt without any token.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> lm = CausalLM.load(BUILT_IN)
    >>> lm.generate_text("Emma was", 5)
    'Emma was the first time of her'
    >>> lm.generate_text("Emma was", 5, stop=" of")
    'Emma was the first time'
    """
    method = "CausalLM.generate_text"
    tokenizer, ids = _admit_prompt(self, prompt, tokenizer, method)
    _check_text_only(options, method, "stream_text")
    beginning = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
    return beginning + "".join(_pieces(self, ids, max_new_tokens, tokenizer, method, options))


def stream_text(self, prompt, max_new_tokens, *, tokenizer=None, **options):
    """Continue a text, piece by piece.

    Parameters
    ----------
    prompt, max_new_tokens, tokenizer, **options
        As for `generate_text`.

    Returns
    -------
    TextPieces
        An iterator over pieces of the new text, as soon as they are certain: no part of a character, nor of a string
        of ``stop``.

    Raises
    ------
    TypeError, ValueError
        As for `generate_text`, at the call.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> list(CausalLM.load(BUILT_IN).stream_text("Emma was", 3))
    [' the', ' first', ' time']
    """
    method = "CausalLM.stream_text"
    tokenizer, ids = _admit_prompt(self, prompt, tokenizer, method)
    return _pieces(self, ids, max_new_tokens, tokenizer, method, options)


def chat(self, messages, max_new_tokens=None, *, tokenizer=None, tools=None, template=None, variables=None,
         **options):  # fmt: skip
    """Answer a conversation.

    Parameters
    ----------
    messages : list of dict
        The conversation: ``{"role": "user", "content": "Hello"}`` and so on.
    max_new_tokens : int, optional
        How long the answer may be; None: up to 256 tokens, and no more than the model has positions left.
    tokenizer : Tokenizer, optional
        That of the model; None takes the one that lies with the checkpoint.
    tools, template
        As for `Tokenizer.render_chat`.
    variables : dict, optional
        Further variables of the template.
    **options
        As for `generate`. ``eos_token_id`` defaults to the ids that the checkpoint names.

    Returns
    -------
    str
        The answer, without special tokens.

    Raises
    ------
    TypeError, ValueError
        As for `generate` and `Tokenizer.render_chat`; there is no chat template, for example.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> lm = CausalLM.load(BUILT_IN)  # a model of novels, which has no template
    >>> template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: “{{ m.content }}”\\n{% endfor %}Emma: “"
    >>> lm.chat([{"role": "Harriet", "content": "Do you love him?"}], 8, template=template)
    ', and a very stable, and'
    """
    _check_text_only(options, "CausalLM.chat", "stream_chat")
    return "".join(_answer(self, "CausalLM.chat", messages, max_new_tokens, tokenizer, tools, template, variables,
                           options))  # fmt: skip


def stream_chat(self, messages, max_new_tokens=None, *, tokenizer=None, tools=None, template=None, variables=None,
                **options):  # fmt: skip
    """Answer a conversation, piece by piece.

    Parameters
    ----------
    messages, max_new_tokens, tokenizer, tools, template, variables, **options
        As for `chat`.

    Returns
    -------
    TextPieces
        An iterator over pieces of the answer.

    Raises
    ------
    TypeError, ValueError
        As for `chat`, at the call.

    Examples
    --------
    ``for piece in lm.stream_chat(messages): print(piece, end="", flush=True)``
    """
    return _answer(self, "CausalLM.stream_chat", messages, max_new_tokens, tokenizer, tools, template, variables,
                   options)  # fmt: skip


def _answer(lm, method, messages, max_new_tokens, tokenizer, tools, template, variables, options):
    tokenizer = _admit_tokenizer(lm, tokenizer, method)
    if variables is not None and not isinstance(variables, dict):
        raise TypeError(f"{method}: variables must be a dict, not {kind(variables)}")
    ids = tokenizer.encode_chat(messages, tools=tools, template=template, **(variables or {}))
    if not ids:
        raise ValueError(f"{method}: messages must give at least one token; the template has written nothing")
    if max_new_tokens is None:
        room = MOST_OF_AN_ANSWER if lm.max_positions is None else lm.max_positions - len(ids) + 1
        max_new_tokens = max(1, min(MOST_OF_AN_ANSWER, room))
    ends = {*lm.config.eos_token_ids, tokenizer.eos_token_id} - {None}
    options = {"eos_token_id": sorted(ends) or None, **options}
    return _pieces(lm, ids, max_new_tokens, tokenizer, method, options)


def _check_text_only(options, method, other):
    """Refuse what a plain text cannot answer."""
    if options.get("logprobs") is not None:
        raise TypeError(
            f"{method}: logprobs must be None, as only text is returned; the stream of {other} keeps them"
        )


def _admit_tokenizer(lm, tokenizer, method):
    if tokenizer is None:
        return lm.tokenizer
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"{method}: tokenizer must be a Tokenizer, not {kind(tokenizer)}; see Tokenizer.load")
    return tokenizer


def _admit_prompt(lm, prompt, tokenizer, method):
    tokenizer = _admit_tokenizer(lm, tokenizer, method)
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    if not isinstance(ids, (list, tuple, np.ndarray)):
        raise TypeError(f"{method}: prompt must be a str or a sequence of ids, not {kind(prompt)}")
    if any(isinstance(entry, (str, list, tuple, np.ndarray)) for entry in ids):
        raise TypeError(
            f"{method}: prompt must be one text, as a str or as its ids, not several ({shown(prompt)}); "
            "CausalLM.generate continues several at once"
        )
    if len(ids) == 0:
        raise ValueError(f"{method}: prompt must hold at least one token, not {prompt!r}")
    return tokenizer, ids


def _pieces(lm, ids, max_new_tokens, tokenizer, method, options):
    stream = TokenStream(lm, [ids], max_new_tokens, method, tokenizer=tokenizer, **options)
    return TextPieces(stream, tokenizer, ids, stream.stop_strings(0))
