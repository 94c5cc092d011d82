"""Text to token ids and back, by the library ``tokenizers``, imported when the first tokenizer is loaded."""

import hashlib
import os
from collections.abc import Iterable

from mojolearn.files import admit_file
from mojolearn.models.chat_template import (
    admit_dicts,
    admit_messages,
    choose_template,
    plain_data,
    read_templates,
    render_template,
)
from mojolearn.models.files import admit_folder
from mojolearn.models.foreign import in_words
from mojolearn.models.gguf_file import is_gguf
from mojolearn.models.gguf_tokenizer import load_tokenizer
from mojolearn.models.strict_json import read_json
from mojolearn.models.text_stream import TextStream
from mojolearn.scalars import admit_integer, admit_switch, kind, shown

CALLER = "Tokenizer.load"
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of a checkpoint; made by `Tokenizer.load`, or of parts that come from elsewhere.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        Does the work; without truncation and padding.
    bos_token_id, eos_token_id : int, optional
        The tokens that begin and end a text.
    add_bos : bool, optional
        Whether `encode` begins with the former; None leaves it to the backend's own post-processor.
    chat_templates : dict of str to str, optional
        Templates for conversations by name; that of every day is called "default".
    special_tokens : dict of str to str, optional
        What templates may write, such as ``{"bos_token": "<s>"}``; None takes the texts of the two ids above.

    Attributes
    ----------
    vocab_size : int
        Number of tokens, special ones included.
    bos_token_id, eos_token_id, add_bos, chat_templates, special_tokens
        As given; `load` takes them from ``tokenizer_config.json`` and the files of templates, or from a GGUF file.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> tokenizer = Tokenizer.load(BUILT_IN)
    >>> tokenizer.encode("Emma was")
    [0, 1818, 305]
    >>> tokenizer.decode([1818, 305])
    'Emma was'
    """

    def __init__(self, backend, *, bos_token_id=None, eos_token_id=None, add_bos=None, chat_templates=None,
                 special_tokens=None):  # fmt: skip
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.add_bos = add_bos
        self.chat_templates = dict(chat_templates or {})
        if special_tokens is None:
            named = {"bos_token": bos_token_id, "eos_token": eos_token_id}
            special_tokens = {name: backend.id_to_token(i) for name, i in named.items() if i is not None}
        self.special_tokens = dict(special_tokens)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, folder):
        """Load ``tokenizer.json`` and, where they are, ``tokenizer_config.json`` and chat templates; or a GGUF file.

        Parameters
        ----------
        folder : str or path
            A Hugging Face folder, or a GGUF file.

        Returns
        -------
        Tokenizer
            With truncation and padding switched off, whatever the file says.

        Raises
        ------
        ImportError
            The package tokenizers is not installed.
        FileNotFoundError
            There is no ``tokenizer.json``, or no such GGUF file.
        ValueError
            One of the files is malformed.
        """
        try:
            import tokenizers
        except ImportError:
            raise ImportError(
                f"{CALLER}: the package tokenizers is not installed; `pip install tokenizers` does it"
            ) from None
        if is_gguf(folder):
            backend, settings = load_tokenizer(folder, CALLER)
            return cls(backend, **settings)
        folder = admit_folder(folder, CALLER)
        path = folder / "tokenizer.json"
        admit_file(path, CALLER)
        with in_words(f"{CALLER}: {path} is not a tokenizer"):
            backend = tokenizers.Tokenizer.from_file(str(path))
            backend.no_truncation()
            backend.no_padding()
        settings = {}
        for name in (
            "special_tokens_map.json",
            "tokenizer_config.json",
        ):  # the former is older, the latter decides
            path = folder / name
            settings |= read_json(path, CALLER) if os.path.lexists(path) else {}
        bos, eos = (_special(settings, name, backend, path) for name in ("bos_token", "eos_token"))
        add_bos = settings.get("add_bos_token")
        if add_bos is not None and not isinstance(add_bos, bool):
            raise ValueError(f"{CALLER}: {path}: add_bos_token must be true or false, not {shown(add_bos)}")
        if add_bos is None and bos is not None and bos == eos:
            add_bos = True  # one token separates the texts of the training data: every text begins after it
        texts = {name: _content(settings.get(name)) for name in SPECIAL}
        return cls(
            backend,
            bos_token_id=bos,
            eos_token_id=eos,
            add_bos=add_bos,
            chat_templates=read_templates(folder, settings, path, CALLER),
            special_tokens={name: text for name, text in texts.items() if isinstance(text, str)},
        )

    def __repr__(self):
        return f"Tokenizer(vocab_size={self.vocab_size}, bos={self.bos_token_id}, eos={self.eos_token_id})"

    def encode(self, text, *, add_bos=None):
        """Turn text into token ids.

        Parameters
        ----------
        text : str
            Special tokens written out in it, such as ``<|im_start|>``, are recognised.
        add_bos : bool, optional
            Begin with the bos token, exactly once even where the text does so already; None follows the
            attribute `add_bos`.

        Returns
        -------
        list of int
            The ids.

        Raises
        ------
        TypeError, ValueError
            The text is no str or holds a lone surrogate; a bos token is asked for that does not exist.
        """
        if not isinstance(text, str):
            raise TypeError(f"Tokenizer.encode: text must be a str, not {kind(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"Tokenizer.encode: text must be valid Unicode, but character {error.start} is half a surrogate pair"
            ) from None
        wanted = self.add_bos if add_bos is None else admit_switch(add_bos, "add_bos", "Tokenizer.encode")
        bos = self.bos_token_id
        if add_bos and bos is None:
            raise ValueError("Tokenizer.encode: add_bos must be False, as the tokenizer names no bos token")
        with in_words("Tokenizer.encode: the tokenizer fails on the text"):
            ids = list(self._backend.encode(text, add_special_tokens=wanted is not False).ids)
        while bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        if wanted and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids):
        """Turn token ids into text, without the special tokens.

        Parameters
        ----------
        ids : iterable of int
            For example a row of what ``generate`` returns.

        Returns
        -------
        str
            The text; bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        TypeError, ValueError
            Something in it is no integer, or no token of this tokenizer.
        """
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise TypeError(f"Tokenizer.decode: ids must be a sequence of ids, not {shown(ids)}")
        ids = [self._admit(i, "Tokenizer.decode") for i in ids]
        with in_words("Tokenizer.decode: the tokenizer fails on the ids"):
            return self._backend.decode(ids, skip_special_tokens=True)

    def decode_stream(self, prompt=()):
        """Decode token by token, giving out whole characters only.

        Parameters
        ----------
        prompt : iterable of int
            Tokens that come before; their text is not given out again.

        Returns
        -------
        TextStream
            Its ``step(id)`` returns the text that is complete by now, ``flush()`` what is left at the end.

        Examples
        --------
        >>> from mojolearn.models import BUILT_IN
        >>> tokenizer = Tokenizer.load(BUILT_IN)
        >>> stream = tokenizer.decode_stream()
        >>> [stream.step(i) for i in tokenizer.encode("é!", add_bos=False)], stream.flush()
        (['', 'é', '!'], '')
        """
        stream = TextStream(self)
        for token in prompt:
            stream.step(token)
        return stream

    def render_chat(self, messages, *, add_generation_prompt=True, tools=None, documents=None, template=None,
                    **variables):  # fmt: skip
        """Write a conversation as the text that the model was trained on.

        Parameters
        ----------
        messages : list of dict
            The conversation: ``{"role": "user", "content": "Hello"}`` and so on.
        add_generation_prompt : bool, default True
            End with what introduces an answer.
        tools, documents : list of dict, optional
            What the template may describe to the model.
        template : str, optional
            Name of one of `chat_templates`, or a template; None takes "tool_use" for tools, if there is one,
            otherwise "default".
        **variables
            Further variables of the template, such as ``enable_thinking=False``.

        Returns
        -------
        str
            The text, special tokens written out.

        Raises
        ------
        ImportError
            The package jinja2 is not installed.
        TypeError, ValueError
            There is no such template, the messages are no plain data, or the template refuses them, fails, does
            something that is not safe, or does not end.

        Examples
        --------
        >>> from mojolearn.models import BUILT_IN
        >>> tokenizer = Tokenizer.load(BUILT_IN)
        >>> template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
        >>> tokenizer.render_chat([{"role": "Emma", "content": "Indeed!"}], template=template)
        'Emma: Indeed!\\n'
        """
        return self._render(
            "Tokenizer.render_chat", messages, add_generation_prompt, tools, documents, template, variables
        )

    def encode_chat(self, messages, *, add_generation_prompt=True, tools=None, documents=None, template=None,
                    **variables):  # fmt: skip
        """Turn a conversation into token ids: those of the text that `render_chat` gives.

        The template alone decides about the bos token; one that it writes stands there once.

        Parameters
        ----------
        messages, add_generation_prompt, tools, documents, template, **variables
            As for `render_chat`.

        Returns
        -------
        list of int
            The ids.

        Raises
        ------
        ImportError, TypeError, ValueError
            As for `render_chat`.

        Examples
        --------
        ``ids = tokenizer.encode_chat([{"role": "user", "content": "Hello"}])``
        """
        text = self._render(
            "Tokenizer.encode_chat", messages, add_generation_prompt, tools, documents, template, variables
        )
        return self.encode(text, add_bos=False)

    def _render(self, method, messages, add_generation_prompt, tools, documents, template, variables):
        messages = admit_messages(messages, method)
        source = choose_template(self.chat_templates, template, tools is not None, method)
        given = {
            **self.special_tokens,
            **plain_data(variables, "variables", method),
            "messages": messages,
            "tools": admit_dicts(tools, "tools", method),
            "documents": admit_dicts(documents, "documents", method),
            "add_generation_prompt": admit_switch(add_generation_prompt, "add_generation_prompt", method),
        }
        return render_template(source, given, method)

    @property
    def fingerprint(self):
        """A hash over all that turns ids into text."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    def special_id(self, text):
        """Return the id of a special token, which `decode` leaves out; None if the text is none."""
        number = self._backend.token_to_id(text)
        added = {} if number is None else self._backend.get_added_tokens_decoder()
        return number if number in added and added[number].special else None

    def _admit(self, token, method):
        return admit_integer(token, "id", method, 0, self.vocab_size - 1)


def _special(settings, name, backend, path):
    """Return the id of the token that tokenizer_config.json names, as a string or as {"content": string}."""
    token = _content(settings.get(name))
    if token is None:
        return None
    number = backend.token_to_id(token) if isinstance(token, str) else None
    if number is None:
        raise ValueError(f"{CALLER}: {path}: {name} must be a token of tokenizer.json, not {shown(token)}")
    return number


def _content(token):
    return token.get("content") if isinstance(token, dict) else token
