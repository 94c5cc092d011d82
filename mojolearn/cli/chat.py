"""``mojolearn chat``: talk with a model, line by line, or have one question answered."""

import argparse
import json
import sys

from mojolearn.cli import options
from mojolearn.cli.process import INTERRUPTED, bear_any_text, say, write
from mojolearn.models.text import TextPieces
from mojolearn.models.tokenizer import Tokenizer
from mojolearn.rope_scaling import BY_LENGTH

ROOM = 2048  # tokens of a conversation that are remembered at first


def parser():
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mojolearn chat",
        description="Talk with a model that has a chat template. Each line of the standard input is a message, until "
        "the input ends (Ctrl-D). Ctrl-C stops an answer. Whether to sample and how defaults to what the model's "
        "generation_config.json says.",
    )
    add = parser.add_argument
    add("message", nargs="?", help="have this answered, and no more; - reads it from standard input")
    add("--system", metavar="TEXT", help="what the model is told before the conversation")
    add("--template", metavar="NAME", help="which of the model's chat templates, or a template")
    add(
        "--max-new-tokens",
        type=int,
        default=512,
        metavar="N",
        help="at most so many per answer (default: 512)",
    )
    options.add_choice(parser)
    options.add_model(parser)
    add("--json", action="store_true", help="print a JSON object for each answer")
    return parser


def run(arguments):
    """Answer messages."""
    options.check(arguments)
    once = None if arguments.message is None else options.read_text(arguments.message, "the message")
    tokenizer = Tokenizer.load(options.path_of(arguments))
    if arguments.template is None and not tokenizer.chat_templates:
        whose = "the built-in model" if arguments.model is None else arguments.model
        raise ValueError(
            f"{whose} has no chat template; --model names another one, --template gives a template"
        )
    lm = options.load(arguments)
    bear_any_text()
    conversation = Conversation(lm, tokenizer, arguments, options.how_to_choose(arguments, lm.config))
    if once is not None:
        return conversation.answer(once)
    terminal = sys.stdin is not None and sys.stdin.isatty()
    for line in _lines(terminal):
        status = conversation.answer(line)
        if status and not terminal:
            return status
    return 0


def _lines(terminal):
    """The messages as they are typed, or the lines of a file."""
    if sys.stdin is None:
        raise options.UsageError("the messages are to come from the standard input, which is closed")
    if not terminal:
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    say("Ctrl-D ends the conversation")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            write("\n")
            return
        if line:
            yield line


class Conversation:
    """The messages so far, and a state that holds their tokens.

    Parameters
    ----------
    lm : CausalLM
        The model.
    tokenizer : Tokenizer
        Its tokenizer.
    arguments : argparse.Namespace
        Those of the command.
    choice : dict
        How tokens are chosen.
    """

    def __init__(self, lm, tokenizer, arguments, choice):
        self._lm, self._tokenizer, self._arguments, self._choice = lm, tokenizer, arguments, choice
        self._messages = []
        if arguments.system is not None:
            self._messages.append(
                {"role": "system", "content": options.read_text(arguments.system, "--system")}
            )
        ends = {*lm.config.eos_token_ids, tokenizer.eos_token_id} - {None}
        self._ends = sorted(ends) or None
        self._state, self._held = None, []
        by_length = any((block.rope_scaling or {}).get("type") in BY_LENGTH for block in lm.blocks)
        # A penalty needs all tokens, and some rotations go by the room of a state: then everything is run each time.
        self._remembers = choice.get("repetition_penalty", 1) == 1 and not by_length

    def answer(self, message):
        """Answer one more message; returns an exit status."""
        messages = [*self._messages, {"role": "user", "content": message}]
        ids = self._tokenizer.encode_chat(messages, template=self._arguments.template)
        new = self._new_part(ids)
        stream = self._lm.stream(
            [new], self._room_for_answer(len(ids)), tokenizer=self._tokenizer, state=self._state,
            eos_token_id=self._ends, **self._choice,
        )  # fmt: skip
        pieces = TextPieces(stream, self._tokenizer, ids, self._choice.get("stop", ()))
        text, status = "", 0
        show = (lambda text: None) if self._arguments.json else write
        try:
            for piece in pieces:
                show(piece)
                text += piece
        except KeyboardInterrupt:
            status = INTERRUPTED
        rest = pieces.flush()
        show(rest + "\n")
        text += rest
        answer = {"role": "assistant", "content": text}
        if self._arguments.json:
            more = {"finish_reason": stream.finish_reasons[0], "seed": stream.seed}
            write(json.dumps({**answer, "ids": stream.ids[0].tolist()[len(new) :], **more}) + "\n")
        self._messages = [*messages, answer]
        if status or self._state is None:
            self._state, self._held = None, []
        else:
            self._held = [*self._held, *stream.ids[0].tolist()]
        return status

    def _new_part(self, ids):
        """The tokens that are not in the state yet: all of them, with a new state, where it does not fit."""
        held = self._held
        begins = self._state is not None and len(ids) > len(held) and ids[: len(held)] == held
        if begins and len(ids) + self._arguments.max_new_tokens <= self._state.max_tokens:
            return ids[len(held) :]
        self._held, self._state = [], None
        if self._remembers:
            room = max(ROOM, 2 * (len(ids) + self._arguments.max_new_tokens))
            most = self._lm.max_positions
            self._state = self._lm.allocate_state(1, room if most is None else max(min(room, most), 1))
        return ids

    def _room_for_answer(self, length):
        """How many tokens the answer may have."""
        most, new = self._lm.max_positions, self._arguments.max_new_tokens
        if most is None:
            return new
        if length >= most:
            raise ValueError(f"the conversation has {length} tokens, but the model has {most} positions")
        return min(new, most - length)
