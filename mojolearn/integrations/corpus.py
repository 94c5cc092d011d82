"""A corpus, scored or continued in pieces by any number of processes: the same records in the same order.

Nothing here knows who starts the processes: `mojolearn.integrations.dask`, joblib, Slurm or a loop of your own. A
record depends on its text, the model and the options alone, so it does not matter how a corpus is cut, which process
has which piece, or how often a piece that was lost is computed again.
"""

import hashlib
import itertools
import math
import struct

import numpy as np

from mojolearn.integrations.model_at import ModelAt, admit_model, forget_models
from mojolearn.integrations.records import Continuation, Prompt, Score, digest
from mojolearn.models.ids import admit_prompts
from mojolearn.models.stopping import StopStrings
from mojolearn.scalars import admit_choice, admit_integer, brief, kind

__all__ = [
    "Continuation", "ModelAt", "Prompt", "Score", "digest", "forget_models", "generate_texts", "score_texts", "split",
]  # fmt: skip

ERRORS = ("raise", "keep")
CHOICE = ("greedy", "seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "logit_bias",
          "logits_processor", "eos_token_id", "stop")  # fmt: skip
NOTHING = np.empty(0, np.int64)


def score_texts(texts, model, *, errors="raise"):
    """Score texts.

    Parameters
    ----------
    texts : iterable of str or sequence of int
        Texts, or their token ids. They come first, as in ``bag.map_partitions(score_texts, path)``.
    model : path, ModelAt or CausalLM
        By its place it is loaded once in each process.
    errors : {"raise", "keep"}
        What becomes of a text that cannot be scored, such as one with more tokens than the model has positions.

    Returns
    -------
    list of Score
        One for each text, in their order. A text without any token has a sum of 0.

    Raises
    ------
    TypeError, ValueError
        For what is no text, and with ``errors="raise"`` for a text that cannot be scored, naming its place.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> [round(score.perplexity, 1) for score in score_texts(["Emma was the first.", "First the was Emma."], BUILT_IN)]
    [58.8, 921.4]
    """
    caller = "score_texts"
    admit_choice(errors, "errors", caller, ERRORS)
    model = admit_model(model, caller)
    texts = _admit_texts(texts, caller)
    lm = model.load() if isinstance(model, ModelAt) else model
    found = []
    for at, text in enumerate(texts):
        try:
            found.append(_score(lm, _ids(lm, text)))
        except (TypeError, ValueError) as error:
            _raise_or_keep(error, errors, caller, at, text)
            found.append(Score(NOTHING, NOTHING.astype(np.float32), 0.0, 0, math.nan, _reason(error)))
    return found


def _score(lm, ids):
    logprobs = lm.score([ids])[0] if len(ids) else NOTHING.astype(np.float32)
    total, count = math.fsum(logprobs.tolist()), len(logprobs)
    try:
        perplexity = math.exp(-total / count) if count else math.nan
    except OverflowError:
        perplexity = math.inf
    return Score(ids, logprobs, total, count, perplexity)


def generate_texts(texts, model, max_new_tokens, *, batch_size=8, errors="raise", **options):
    """Continue texts.

    Parameters
    ----------
    texts : iterable of str, sequence of int, or Prompt
        Prompts as text, as token ids, or with seeds of their own.
    model : path, ModelAt or CausalLM
        By its place it is loaded once in each process.
    max_new_tokens : int
        At most so many tokens for each.
    batch_size : int, default 8
        How many run together; no token depends on it.
    errors : {"raise", "keep"}
        What becomes of a prompt that cannot be continued.
    **options
        Those of `CausalLM.generate` that choose tokens and ends: ``greedy`` (the default is True), ``seed``,
        ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty``, ``logit_bias``, ``logits_processor``,
        ``eos_token_id`` and ``stop``, each for all prompts. Tokens are drawn with one ``seed``, an int: the seed of a
        prompt is made of it and of the prompt's ids, so that equal prompts get equal texts; a `Prompt` has its own.

    Returns
    -------
    list of Continuation
        One for each prompt, in their order.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and with ``errors="raise"`` for a prompt that cannot be continued, naming its
        place.

    Examples
    --------
    >>> from mojolearn.models import BUILT_IN
    >>> [found.text for found in generate_texts(["Emma was", "Anne had"], BUILT_IN, 3)]
    [' the first time', ' been the first']
    """
    caller = "generate_texts"
    check_generation(max_new_tokens, batch_size, errors, options, caller)
    model = admit_model(model, caller)
    texts = _admit_texts(texts, caller, seeds=True)
    lm = model.load() if isinstance(model, ModelAt) else model
    found = []
    for first in range(0, len(texts), batch_size):
        batch = texts[first : first + batch_size]
        try:
            found += _continue(lm, batch, max_new_tokens, options)
        except (TypeError, ValueError):  # of which?
            for at, text in enumerate(batch, first):
                try:
                    found += _continue(lm, [text], max_new_tokens, options)
                except (TypeError, ValueError) as error:
                    _raise_or_keep(error, errors, caller, at, text)
                    found.append(Continuation(NOTHING, NOTHING, None, None, None, _reason(error)))
    return found


def check_generation(max_new_tokens, batch_size, errors, options, caller):
    """Refuse arguments of `generate_texts` that fit no model; what a model decides is seen where it is loaded."""
    admit_integer(max_new_tokens, "max_new_tokens", caller, 0)
    admit_integer(batch_size, "batch_size", caller, 1)
    admit_choice(errors, "errors", caller, ERRORS)
    for name in options:
        if name not in CHOICE:
            raise TypeError(f"{caller}: {name} is no option for a corpus; wanted are {', '.join(CHOICE)}")
    for name in ("eos_token_id", "stop"):
        value = options.get(name)
        if isinstance(value, (list, tuple)) and any(isinstance(part, (list, tuple)) for part in value):
            raise ValueError(f"{caller}: {name} must be the same for all texts, not a list for each")
    if options.get("seed") is not None:
        admit_integer(options["seed"], "seed", caller, 0, 2**64 - 1)
    elif options.get("greedy", True) is False:
        raise ValueError(
            f"{caller}: seed must be given with greedy=False, or a piece that is computed again would be another"
        )


def _continue(lm, texts, max_new_tokens, options):
    prompts = [_ids(lm, text.prompt if isinstance(text, Prompt) else text) for text in texts]
    for ids in prompts:
        if not len(ids):
            raise ValueError("generate_texts: a prompt must hold at least one token")
    drawn = options.get("greedy", True) is False
    if drawn:
        own = [text.seed if isinstance(text, Prompt) else None for text in texts]
        seeds = [_seed(options["seed"], ids) if seed is None else seed for seed, ids in zip(own, prompts)]
        options = options | {"seed": seeds}
    stream = lm.stream(prompts, max_new_tokens, **options)
    for _ in stream:
        pass
    records = []
    for row, (text, ids, whole) in enumerate(zip(texts, prompts, stream.ids, strict=True)):
        new = whole[len(ids) :]
        given = text.prompt if isinstance(text, Prompt) else text
        shown = _text(lm, ids, new, stream.stop_strings(row)) if isinstance(given, str) else None
        seed = int(seeds[row]) if drawn else None
        records.append(Continuation(ids, new, shown, stream.finish_reasons[row], seed))
    return records


def _text(lm, prompt, new, stop):
    decoded, ends = lm.tokenizer.decode_stream(prompt), StopStrings(stop)
    pieces = [ends.step(decoded.step(int(token))) for token in new]
    return "".join([*pieces, ends.step(decoded.flush()), ends.flush()])


def _seed(seed, ids):
    """The seed of a prompt: the first 64 bits of SHA-256 over the seed of all and the prompt's ids."""
    digest = hashlib.sha256(struct.pack("<Q", int(seed)) + ids.astype("<i8").tobytes())
    return int.from_bytes(digest.digest()[:8], "little")


def _ids(lm, text):
    ids = lm.tokenizer.encode(text) if isinstance(text, str) else text
    return admit_prompts([ids], lm.vocab_size, "ids")[0] if len(ids) else NOTHING


def _admit_texts(texts, caller, seeds=False):
    if isinstance(texts, (str, bytes, dict)) or not hasattr(texts, "__iter__"):
        raise TypeError(f"{caller}: texts must be an iterable of texts, not {kind(texts)}")
    texts = list(texts)
    for at, text in enumerate(texts):
        if isinstance(text, Prompt):
            if not seeds:
                raise TypeError(f"{caller}: texts[{at}] must be a str or a sequence of ids, not a Prompt")
            admit_integer(text.seed, f"texts[{at}].seed", caller, 0, 2**64 - 1)
            text = text.prompt
        if not isinstance(text, (str, list, tuple, np.ndarray)):
            raise TypeError(f"{caller}: texts[{at}] must be a str or a sequence of ids, not {kind(text)}")
    return texts


def _reason(error):
    return str(error).partition(": ")[2] or str(error)


def _raise_or_keep(error, errors, caller, at, text):
    if errors == "raise":
        raise type(error)(f"{caller}: texts[{at}] ({brief(text)}): {_reason(error)}") from error


def split(items, parts):
    """Cut a sequence into pieces that follow each other, for as many workers.

    Parameters
    ----------
    items : sequence
        Such as a list of texts.
    parts : int
        How many pieces; some are empty where there are fewer items.

    Returns
    -------
    list
        Slices of the sequence, whose lengths differ by one at the most.

    Raises
    ------
    TypeError, ValueError
        For a number that is no integer above 0.

    Examples
    --------
    >>> split("abcdefg", 3)
    ['ab', 'cd', 'efg']
    """
    parts = admit_integer(parts, "parts", "split", 1)
    ends = [len(items) * part // parts for part in range(parts + 1)]
    return [items[first:last] for first, last in itertools.pairwise(ends)]
