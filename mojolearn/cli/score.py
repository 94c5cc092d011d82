"""``mojolearn score``: the log-probability of each line of a text."""

import argparse
import json
import math
import sys

from mojolearn.cli import options
from mojolearn.cli.generate import finite
from mojolearn.cli.process import bear_any_text, write

LONGEST_LINE = 1 << 24  # bytes
COLUMNS = ("line", "tokens", "logprob", "perplexity")
COLUMNS_OF_TOKENS = ("line", "position", "id", "token", "logprob")


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn score",
        description="Print the log-probability (natural logarithm) of each line of a text as a text of its own, as "
        "tab-separated values. The first token of a text has none, as nothing comes before it; where the model wants "
        "one, that is a token that begins every text.",
    )
    add = parser.add_argument
    add("file", help="UTF-8 text, a line for each text; - reads the standard input")
    add("--tokens", action="store_true", help="a row for each token instead of one for each line")
    add("--json", action="store_true", help="a JSON object for each line, with its tokens")
    options.add_model(parser)
    return parser


def run(arguments):
    """Score the lines as they are read."""
    options.check(arguments)
    if arguments.file == "-":
        if sys.stdin is None:
            raise options.UsageError("the text is to come from the standard input, which is closed")
        return _score(arguments, getattr(sys.stdin, "buffer", sys.stdin))  # a text in its place has none
    try:
        file = open(arguments.file, "rb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"the text {arguments.file} cannot be read ({why})") from None
    with file:
        return _score(arguments, file)


def _lines(file):
    """Number and text of each line of a binary file, judged when its turn comes."""
    number = 0
    while raw := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(raw) > LONGEST_LINE:
            raise ValueError(f"line {number} is longer than {LONGEST_LINE} bytes")
        try:
            text = raw if isinstance(raw, str) else raw.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"line {number} is not UTF-8 text") from None
        yield number, text.rstrip("\r\n")


def _score(arguments, file):
    lm = options.load(arguments)
    tokenizer = lm.tokenizer
    bear_any_text()
    if not arguments.json:
        write("\t".join(COLUMNS_OF_TOKENS if arguments.tokens else COLUMNS) + "\n")
    for number, line in _lines(file):
        try:
            ids = tokenizer.encode(line)
            logprobs = lm.score([ids])[0].tolist() if ids else []
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number}: {str(error).partition(': ')[2] or error}") from None
        write(_shown(arguments, tokenizer, number, ids, logprobs))
    return 0


def _shown(arguments, tokenizer, number, ids, logprobs):
    """The rows of one line."""
    total = math.fsum(logprobs)
    perplexity = math.exp(-total / len(logprobs)) if logprobs and total > -700 * len(logprobs) else None
    if arguments.json:
        return json.dumps({
            "line": number, "tokens": len(logprobs), "logprob": finite(total), "perplexity": perplexity, "ids": ids,
            "logprobs": [finite(logprob) for logprob in logprobs],
        }) + "\n"  # fmt: skip
    if not arguments.tokens:
        shown = "" if perplexity is None else repr(perplexity)
        return f"{number}\t{len(logprobs)}\t{total!r}\t{shown}\n"
    return "".join(
        f"{number}\t{position}\t{token}\t{json.dumps(tokenizer.decode([token]), ensure_ascii=False)}\t{logprob!r}\n"
        for position, (token, logprob) in enumerate(zip(ids[1:], logprobs, strict=True), 1)
    )
