"""``mojolearn generate``: continue a text."""

import argparse
import json
import time

from mojolearn.cli import options
from mojolearn.cli.process import INTERRUPTED, bear_any_text, say, write
from mojolearn.models.config import read_config
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.scalars import counted


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn generate",
        description="Continue a text. Whether to sample and how defaults to what the model's generation_config.json "
        "says; without one, or where an option of sampling is given, tokens are drawn.",
    )
    add = parser.add_argument
    add("prompt", help="how the text begins; - reads it from standard input; put -- before one with a dash")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="at most so many tokens (default: 64)")
    options.add_choice(parser)
    options.add_model(parser)
    add("--json", action="store_true", help="print one JSON object with text, token ids and why it ended")
    add("--logprobs", type=int, metavar="N",
        help="with --json: the log-probability of each new token, and the N best tokens at its place")  # fmt: skip
    return parser


def run(arguments):
    """Continue the text, as it comes."""
    options.check(arguments)
    if arguments.logprobs is not None and not arguments.json:
        raise options.UsageError("--logprobs goes with --json")
    path = options.path_of(arguments)
    config = read_config(path)
    choice = options.how_to_choose(arguments, config)
    prompt = options.read_text(arguments.prompt, "the prompt")
    tokenizer = Tokenizer.load(path)
    ids = tokenizer.encode(prompt)
    _check_room(len(ids), arguments.max_new_tokens, config.max_position_embeddings)
    lm = options.load(arguments)
    bear_any_text()
    began = time.perf_counter()
    pieces = lm.stream_text(
        ids, arguments.max_new_tokens, tokenizer=tokenizer, eos_token_id=config.eos_token_ids or None,
        logprobs=arguments.logprobs, **choice,
    )  # fmt: skip
    ready = time.perf_counter()
    status, show = 0, (lambda text: None) if arguments.json else write
    show(prompt)
    text = ""
    try:
        for piece in pieces:
            show(piece)
            text += piece
    except KeyboardInterrupt:
        status = INTERRUPTED
    seconds = time.perf_counter() - ready
    rest = pieces.flush()
    if arguments.json:
        write(json.dumps(_answer(pieces.stream, tokenizer, prompt, text + rest, len(ids))) + "\n")
    else:
        write(rest + "\n")
    count = len(pieces.stream.ids[0]) - len(ids)
    rate = f", {count / seconds:.0f} tokens/s" if count else ""
    say(
        f"{counted(count, 'token')} in {seconds:.2f} s{rate} "
        f"(prompt {counted(len(ids), 'token')} in {ready - began:.2f} s), {options.describe_choice(pieces.stream)}"
    )
    return status


def _answer(stream, tokenizer, prompt, text, prompt_tokens):
    """What --json prints."""
    ids = stream.ids[0].tolist()
    answer = {
        "prompt": prompt,
        "text": text,
        "prompt_ids": ids[:prompt_tokens],
        "ids": ids[prompt_tokens:],
        "finish_reason": stream.finish_reasons[0],
        "seed": stream.seed,
    }
    if stream.logprobs is not None:
        answer["logprobs"] = _logprobs(stream.logprobs, ids[prompt_tokens:], tokenizer)
    return answer


def _logprobs(logprobs, ids, tokenizer):
    """Of each new token its log-probability, and the best ones in its place."""

    def entry(token, logprob):
        return {"id": int(token), "text": tokenizer.decode([token]), "logprob": finite(logprob)}

    return [
        entry(token, own) | {"top": [entry(*best) for best in zip(top_ids, top, strict=True)]}
        for token, own, top_ids, top in zip(
            ids, logprobs.chosen[0], logprobs.top_ids[0], logprobs.top[0], strict=True
        )
    ]


def finite(number):
    """Return a number for JSON, which knows no infinity: null stands for -inf."""
    return float(number) if abs(number) < float("inf") else None


def _check_room(prompt, new, most):
    """Refuse more tokens than the model has positions; the last new token needs none."""
    if not prompt:
        raise options.UsageError("the prompt must hold at least one token, but it is empty")
    if not new or most is None:
        return
    if prompt > most:
        raise ValueError(f"the prompt has {prompt} tokens, but the model has {most} positions")
    room = most - prompt + 1
    if new > room:
        raise ValueError(
            f"--max-new-tokens {new} is too many: the model has {most} positions and the prompt takes {prompt} of "
            f"them; at most {counted(room, 'new token')} can follow"
        )
