"""Text as its tokens come: whole characters only, and nothing that a later token could change."""

from mojolearn.models.foreign import in_words


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
            with in_words("TextStream.step: the tokenizer fails on the ids"):
                text = self._stream.step(self._tokenizer._backend, token)
        except (
            ValueError
        ):  # bytes that fit together until now, and no longer (huggingface/tokenizers issue 1666)
            self._restart()
            return self.flush()
        if text is None:
            return ""
        self._held.clear()
        return text

    def flush(self):
        """Return the text of the tokens still held back; incomplete characters become U+FFFD."""
        held, self._held = self._held, []
        if not held:
            return ""
        with in_words("TextStream.flush: the tokenizer fails on the ids"):
            return self._tokenizer._backend.decode(held, skip_special_tokens=True)
