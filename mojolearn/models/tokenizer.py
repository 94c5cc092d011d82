"""Text to token ids and back, by the library ``tokenizers``, imported when the first tokenizer is loaded."""

import os

from mojolearn.models.files import admit_file, admit_folder
from mojolearn.models.strict_json import read_json
from mojolearn.scalars import admit_integer, admit_switch, kind, shown

CALLER = "Tokenizer.load"


class Tokenizer:
    """The tokenizer of a checkpoint folder; made by `Tokenizer.load`.

    Attributes
    ----------
    vocab_size : int
        Number of tokens, special ones included.
    bos_token_id, eos_token_id : int or None
        The tokens that begin and end a text, as ``tokenizer_config.json`` names them.
    add_bos : bool or None
        Whether `encode` begins with the former; None leaves it to the tokenizer's own post-processor.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> tokenizer = Tokenizer.load(BUILT_IN)
    >>> tokenizer.encode("Emma was")
    [0, 1818, 305]
    >>> tokenizer.decode([1818, 305])
    'Emma was'
    """

    def __init__(self, backend, *, bos_token_id=None, eos_token_id=None, add_bos=None):
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.add_bos = add_bos
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, folder):
        """Load ``tokenizer.json`` and, where there is one, ``tokenizer_config.json``.

        Parameters
        ----------
        folder : str or path
            A Hugging Face folder.

        Returns
        -------
        Tokenizer
            With truncation and padding switched off, whatever the file says.

        Raises
        ------
        ImportError
            The package tokenizers is not installed.
        FileNotFoundError
            There is no ``tokenizer.json``.
        ValueError
            One of the files is malformed.
        """
        try:
            import tokenizers
        except ImportError:
            raise ImportError(
                f"{CALLER}: the package tokenizers is not installed; `pip install tokenizers` does it"
            ) from None
        folder = admit_folder(folder, CALLER)
        path = folder / "tokenizer.json"
        admit_file(path, CALLER)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{CALLER}: {path} is not a tokenizer ({error})") from None
        backend.no_truncation()
        backend.no_padding()

        path = folder / "tokenizer_config.json"
        settings = read_json(path, CALLER) if os.path.lexists(path) else {}
        bos, eos = (_special(settings, name, backend, path) for name in ("bos_token", "eos_token"))
        add_bos = settings.get("add_bos_token")
        if add_bos is not None and not isinstance(add_bos, bool):
            raise ValueError(f"{CALLER}: {path}: add_bos_token must be true or false, not {shown(add_bos)}")
        if add_bos is None and bos is not None and bos == eos:
            add_bos = True  # one token separates the texts of the training data: every text begins after it
        return cls(backend, bos_token_id=bos, eos_token_id=eos, add_bos=add_bos)

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
        return self._backend.decode(
            [self._admit(i, "Tokenizer.decode") for i in ids], skip_special_tokens=True
        )

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

    def _admit(self, token, method):
        return admit_integer(token, "id", method, 0, self.vocab_size - 1)


class TextStream:
    """Text as its tokens come; made by `Tokenizer.decode_stream`."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._held = []  # tokens whose text is not out yet
        self._restart()

    def _restart(self):
        from tokenizers.decoders import DecodeStream

        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token):
        """Take the next token and return the text that has become complete, often "".

        Parameters
        ----------
        token : int
            The next id.

        Returns
        -------
        str
            No part of a character, and no character that later tokens could still change.
        """
        token = self._tokenizer._admit(token, "TextStream.step")
        self._held.append(token)
        try:
            text = self._stream.step(self._tokenizer._backend, token)
        except (
            Exception
        ):  # bytes that fit together until now, and no longer (huggingface/tokenizers issue 1666)
            self._restart()
            return self.flush()
        if text is None:
            return ""
        self._held.clear()
        return text

    def flush(self):
        """Return the text of the tokens still held back; incomplete characters become U+FFFD."""
        text = self._tokenizer._backend.decode(self._held, skip_special_tokens=True) if self._held else ""
        self._held.clear()
        return text


def _special(settings, name, backend, path):
    """Return the id of the token that tokenizer_config.json names, as a string or as {"content": string}."""
    token = settings.get(name)
    token = token.get("content") if isinstance(token, dict) else token
    if token is None:
        return None
    number = backend.token_to_id(token) if isinstance(token, str) else None
    if number is None:
        raise ValueError(f"{CALLER}: {path}: {name} must be a token of tokenizer.json, not {shown(token)}")
    return number
