"""``generate_text``: the method of `CausalLM` that continues a text."""

from mojolearn.models.generation import TokenStream
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.scalars import kind


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
    >>> from mojolearn.models.causal_lm import CausalLM
    >>> CausalLM.load(BUILT_IN).generate_text("Emma was", 5, tokenizer=Tokenizer.load(BUILT_IN))
    'Emma was the first time of her'
    """
    method = "CausalLM.generate_text"
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"{method}: tokenizer must be a Tokenizer, not {kind(tokenizer)}; see Tokenizer.load")
    ids = tokenizer.encode(prompt)
    if not ids:
        raise ValueError(f"{method}: prompt must hold at least one token, not {prompt!r}")
    stream = TokenStream(self, [ids], max_new_tokens, method, **options)
    text = tokenizer.decode_stream(ids)
    return prompt + "".join(text.step(int(new[0])) for new in stream) + text.flush()
