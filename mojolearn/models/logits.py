"""What may change a row's logits before a token is chosen: repetition penalty, bias, and a function of the user's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real

import numpy as np

from mojolearn.scalars import admit_integer, admit_positive, as_float, kind, shown


@dataclass(frozen=True)
class LogitRules:
    """The checked rules of one call, applied in the order of the fields (numerics page, section 8).

    Parameters
    ----------
    method : str
        The public name that messages start with.
    vocab_size : int
        Number of token ids.
    repetition_penalty : float
        Above 0. Tokens that the row holds already lose by it: a logit above zero is divided by it, others are
        multiplied, each once. 1 changes nothing.
    logit_bias : dict of int to float, optional
        Added to the logits of these ids; ``-inf`` bans one.
    logits_processor : callable, optional
        ``logits_processor(ids, logits)`` gets the ids of one row so far, prompt and new ones, and its logits, float32
        of shape (vocab_size,); it changes these in place, or returns others.

    Raises
    ------
    TypeError, ValueError
        For a rule of the wrong kind or out of range.
    """

    method: str
    vocab_size: int
    repetition_penalty: float = 1.0
    logit_bias: dict | None = None
    logits_processor: object = None

    def __post_init__(self):
        admit_positive(self.repetition_penalty, "repetition_penalty", self.method)
        bias = self.logit_bias
        if bias is not None and not isinstance(bias, Mapping):
            raise TypeError(f"{self.method}: logit_bias must be a dict from id to number, not {kind(bias)}")
        table = dict(self._admit_bias(token, value) for token, value in (bias or {}).items())
        object.__setattr__(self, "logit_bias", table)
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise TypeError(
                f"{self.method}: logits_processor must be a function of ids and logits, "
                f"not {kind(self.logits_processor)}"
            )

    def _admit_bias(self, token, value):
        token = admit_integer(token, "an id in logit_bias", self.method, 0, self.vocab_size - 1)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise TypeError(f"{self.method}: logit_bias[{token}] must be a number, not {shown(value)}")
        number = as_float(value)
        if not (value == -math.inf or abs(number) <= np.finfo(np.float32).max):
            raise ValueError(
                f"{self.method}: logit_bias[{token}] must be within float32, or -inf to ban the token, "
                f"not {shown(value)}"
            )
        return token, number

    def apply(self, logits, ids):
        """Return the logits to choose from; those given stay as they are.

        Parameters
        ----------
        logits : ndarray of float32, shape (vocab_size,)
            Those of the model.
        ids : ndarray of int64, shape (n,)
            The row so far.

        Returns
        -------
        ndarray of float32, shape (vocab_size,)
            The same array if no rule applies.
        """
        if self.repetition_penalty == 1 and not self.logit_bias and self.logits_processor is None:
            return logits
        logits = logits.copy()
        with np.errstate(over="ignore", under="ignore"):
            if self.repetition_penalty != 1:
                penalty, seen = np.float32(self.repetition_penalty), np.unique(ids)
                held = logits[seen]
                logits[seen] = np.where(held > 0, held / penalty, held * penalty)
            for token, value in self.logit_bias.items():
                logits[token] += np.float32(value)
        return logits if self.logits_processor is None else self._process(logits, ids.copy())

    def _process(self, logits, ids):
        answer = self.logits_processor(ids, logits)
        if answer is None:
            return logits
        if not isinstance(answer, np.ndarray) or answer.dtype != np.float32:
            what = f"an array of {answer.dtype}" if isinstance(answer, np.ndarray) else kind(answer)
            raise TypeError(
                f"{self.method}: logits_processor must return None or an ndarray of float32, not {what}"
            )
        if answer.shape != logits.shape:
            raise ValueError(
                f"{self.method}: logits_processor must return logits of shape {logits.shape}, not {answer.shape}"
            )
        return np.ascontiguousarray(answer)


RULES = {field.name: field.default for field in fields(LogitRules)[2:]}
