"""Which keys a run certainly does not have, told by one bit each.

Keys are hashes, so their first words lie evenly. A run's marks cut the range of all words into 16 to 32 parts a key,
and say of each whether a key begins there: nineteen of twenty strange keys need no search. Asked in order, they are
read in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opentab.periods import Int64s

Marks = npt.NDArray[np.uint8]

_SIGN = np.uint64(1 << 63)
_SIXTEEN_TO_THIRTY_TWO = 4  # bits: two to this, and up to twice as many, are a key's parts
_BITS_MIN = 10
_BITS = np.left_shift(np.uint8(1), np.arange(8, dtype=np.uint8))


def marks_of(words: Int64s) -> Marks:
    """The marks of a run, given the first words of its keys in order."""
    bits = max(_BITS_MIN, len(words).bit_length() + _SIXTEEN_TO_THIRTY_TWO)
    marks = np.zeros(1 << (bits - 3), np.uint8)
    if len(words):
        parts = _parts(words, bits)
        cells = parts >> 3
        first = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
        marks[cells[first]] = np.bitwise_or.reduceat(_BITS[parts & 7], first)
    return marks


def marked(marks: Marks, words: Int64s) -> Int64s:
    """Which of the words may be first words of a key of the run; all others are not."""
    parts = _parts(words, len(marks).bit_length() + 2)
    return np.flatnonzero(marks[parts >> 3] & _BITS[parts & 7])


def _parts(words: Int64s, bits: int) -> Int64s:
    """The number of the part that each word lies in, among two to the power of `bits`, in the order of the words."""
    parts = (words.view(np.uint64) ^ _SIGN) >> np.uint64(64 - bits)
    return parts.view(np.int64)  # as an index numpy would convert the other kind
