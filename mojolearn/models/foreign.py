"""Calls into the library ``tokenizers``, whose errors are of no kind of their own."""

import contextlib

from mojolearn.scalars import reason


@contextlib.contextmanager
def in_words(sentence):
    """Inside, whatever the library raises becomes a ``ValueError`` of one sentence.

    It raises plain exceptions. What it does not foresee is a panic of Rust, of which it writes lines of its own to the
    standard error before Python hears of it, as an exception that is no `Exception`.

    Parameters
    ----------
    sentence : str
        What went wrong, with the public name in front; the library's reason follows in brackets.

    Examples
    --------
    ``with in_words("Tokenizer.encode: the tokenizer fails on the text"): ...``
    """
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{sentence} ({reason(error)})") from None
