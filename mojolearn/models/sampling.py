"""From logits to the next token: greedy, or drawn with a seed (section 8 of the numerical contract).

Everything is written down: the order of the sums, ties (the lowest id wins), and the random numbers, which
depend on a row's seed and on how many it has drawn, never on its neighbours.
"""

import math
import os
from dataclasses import dataclass, fields
from numbers import Real

import numpy as np

from mojolearn.float32 import exp
from mojolearn.scalars import admit_integer, admit_positive, admit_switch, as_float, brief, counted, shown

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
ROW = 0xD2B74407B1CE6E93  # distance between the generators of two rows under one seed


@dataclass(frozen=True)
class Sampling:
    """The checked options of ``generate``.

    Parameters
    ----------
    method : str
        The public name that messages start with.
    greedy : bool
        Take the best token; the other options must then keep their defaults.
    temperature : float
        Logits are divided by it; 0 takes the best token, as greedy does.
    top_k : int
        Keep the k best tokens; 0 keeps all.
    top_p : float
        In (0, 1]: of these keep the fewest best whose weights reach this share of their sum.
    min_p : float
        In [0, 1]: of these keep those with at least this share of the largest weight.

    Raises
    ------
    TypeError, ValueError
        For an option of the wrong kind, out of range, or without effect.
    """

    method: str
    greedy: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self):
        admit_switch(self.greedy, "greedy", self.method)
        if self._number("temperature") != 0:
            admit_positive(self.temperature, "temperature", self.method)
        admit_integer(self.top_k, "top_k", self.method, 0)
        if not 0 < self._number("top_p") <= 1:
            raise ValueError(f"{self.method}: top_p must be above 0 and at most 1, not {shown(self.top_p)}")
        if not 0 <= self._number("min_p") <= 1:
            raise ValueError(f"{self.method}: min_p must be from 0 to 1, not {shown(self.min_p)}")
        if self.greedy:
            for name, default in OPTIONS.items():
                same_thing = name == "temperature" and self.temperature == 0
                if name != "greedy" and getattr(self, name) != default and not same_thing:
                    raise ValueError(
                        f"{self.method}: {name}={brief(getattr(self, name))} has no effect with greedy=True; "
                        "give greedy=False to sample"
                    )

    def _number(self, name):
        value = getattr(self, name)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise TypeError(f"{self.method}: {name} must be a number, not {shown(value)}")
        return as_float(value)

    def choose(self, logits, base, n):
        """Choose the next token of one row.

        Parameters
        ----------
        logits : ndarray of float32, shape (vocab,)
            Finite, or -inf for a token that must not be chosen.
        base : int
            Where the row's random numbers start, from `row_bases`.
        n : int
            How many tokens the row has drawn before.

        Returns
        -------
        int
            The id.

        Raises
        ------
        ValueError
            If the logits hold NaN or +inf, or nothing but -inf.
        """
        best = int(np.argmax(logits))  # the first of the largest; a NaN comes before all
        if logits[best] == -math.inf:
            raise ValueError(
                f"{self.method}: no token is left to choose: all logits are -inf, by logit_bias or a logits_processor"
            )
        if not math.isfinite(logits[best]):
            raise ValueError(
                f"{self.method}: the largest logit must be finite, but that of token {best} is {logits[best]}"
            )
        if self.greedy or self.temperature == 0:
            return best
        ids, weights = self.kept(logits)
        cumulative = np.cumsum(weights, dtype=np.float64)
        # uniform < 1, so the product is below the last sum and a token is always found.
        return int(ids[np.searchsorted(cumulative, uniform(base, n) * cumulative[-1], side="right")])

    def kept(self, logits):
        """Return the ids that may be drawn, best first, and their float32 weights."""
        keys = sort_keys(logits)
        k = int(self.top_k)
        if 0 < k < keys.size:
            keys = np.partition(keys, k - 1)[:k]
        keys = np.sort(keys)
        ids = (keys & np.uint64(0xFFFFFFFF)).astype(np.intp)
        weights = self.weights(logits[ids])
        if self.top_p < 1:
            cumulative = np.cumsum(weights, dtype=np.float64)
            enough = float(self.top_p) * cumulative[-1]
            count = int(np.searchsorted(cumulative, enough, side="left")) + 1
            ids, weights = ids[:count], weights[:count]
        if self.min_p > 0:
            large = weights.astype(np.float64) >= float(self.min_p) * float(weights[0])
            ids, weights = ids[large], weights[large]
        return ids, weights

    def weights(self, logits):
        """exp((l − l_max) / temperature) in float32, for logits whose first is the largest."""
        with np.errstate(over="ignore", under="ignore"):
            return exp((logits - logits[0]) / np.float32(self.temperature))


OPTIONS = {field.name: field.default for field in fields(Sampling)[1:]}


def sort_keys(logits):
    """One integer per token that sorts by logit descending, then by id ascending.

    The bits of a float, all flipped if negative and only the sign otherwise, order like the floats; adding
    +0 makes both zeros the same.
    """
    bits = (logits + np.float32(0)).view(np.int32)
    flips = ~(bits >> 31) & np.int32(0x7FFFFFFF)  # for the falling order: the lower bits of what is positive
    return (bits ^ flips).view(np.uint32).astype(np.uint64) << np.uint64(32) | np.arange(
        bits.size, dtype=np.uint64
    )


def uniform(base, n):
    """Draw number `n` of the generator at `base`: a multiple of 2**-53 in [0, 1).

    Examples
    --------
    >>> uniform(1234567, 0)  # the first output of SplitMix64 is 6457827717110365317
    0.3500795420214081
    """
    z = (base + (n + 1) * GOLDEN) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return ((z ^ z >> 31) >> 11) * 2.0**-53


def row_bases(seed, batch_size, method):
    """Where the generator of each row starts.

    Parameters
    ----------
    seed : int or sequence of int
        One for all rows (each row then has a stream of its own), or one per row.
    batch_size : int
        Number of rows.
    method : str
        The public name that messages start with.

    Returns
    -------
    list of int
        One per row.

    Raises
    ------
    TypeError, ValueError
        For anything but integers from 0 to 2**64 - 1, or a wrong number of them.
    """
    if isinstance(seed, np.ndarray) and seed.ndim:
        seed = list(seed)
    if not isinstance(seed, (list, tuple, range)):
        seed = admit_integer(seed, "seed", method, 0, MASK)
        return [(seed + row * ROW) & MASK for row in range(batch_size)]
    if len(seed) != batch_size:
        raise ValueError(
            f"{method}: seed has {counted(len(seed), 'entry', 'entries')}, but ids has "
            f"{counted(batch_size, 'row')}; give one per row"
        )
    return [admit_integer(s, f"seed[{i}]", method, 0, MASK) for i, s in enumerate(seed)]


def fresh_seed():
    """Draw a new seed from the operating system: 53 bits, which every number format holds exactly."""
    return int.from_bytes(os.urandom(8), "little") >> 11
