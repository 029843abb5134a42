"""Which keys a run certainly does not have, told by three bits each.

Keys are hashes, so their first words lie evenly. A run's marks cut the range of all words into blocks of one or two
keys each. A block is a number of 64 bits, and each key that begins there sets three of them, told by the last bits of
its first word: of a thousand strange keys two need a search. Asked in order, marks are read in order.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from opentab.core.periods import Int64s
from opentab.wire.byte_columns import UInt64s

Marks = npt.NDArray[np.uint64]

_SIGN = np.uint64(1 << 63)
_TOLD_BY = 18  # last bits of a word that tell its three
_ONE_OR_TWO = 1  # bits: two to this, and down to half as many, are a block's keys
_BITS_MIN = 6
_AT_ONCE = 32_768  # words that stay in a processor's cache


class Words:
    """First words of keys, in order, that many runs are asked for."""

    def __init__(self, words: Int64s) -> None:
        self._words = words
        self._masks = _masks(words)
        self._blocks: dict[int, Int64s] = {}  # runs of about the same size share them

    def marked(self, marks: Marks) -> Int64s:
        """Which of the words may be first words of a key of the run with these marks; all others are not."""
        bits = len(marks).bit_length() - 1
        if bits not in self._blocks:
            self._blocks[bits] = _blocks(self._words, bits)
        blocks, masks = self._blocks[bits], self._masks
        found = []
        for first in range(0, len(masks), _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            known = marks.take(blocks[here])
            known &= masks[here]
            found.append(np.flatnonzero(known == masks[here]) + first)
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def marks_of(words: Int64s) -> Marks:
    """The marks of a run, given the first words of its keys in order."""
    marks = no_marks(len(words))
    add_marks(marks, words)
    return marks


def no_marks(rows: int) -> Marks:
    """The marks of a run of so many keys, as long as none of them is told."""
    return np.zeros(1 << max(_BITS_MIN, rows.bit_length() - _ONE_OR_TWO), np.uint64)


def add_marks(marks: Marks, words: Int64s) -> None:
    """Set the marks of some more first words."""
    np.bitwise_or.at(marks, _blocks(words, len(marks).bit_length() - 1), _masks(words))


def _blocks(words: Int64s, bits: int) -> Int64s:
    """The number of the block that each word lies in, among two to the power of `bits`, in the order of the words."""
    blocks = (words.view(np.uint64) ^ _SIGN) >> np.uint64(64 - bits)
    return blocks.view(np.int64)  # as an index numpy would convert the other kind


def _masks(words: Int64s) -> UInt64s:
    """The three bits of each word in its block; two of them may be one."""
    return _all_masks().take(words & ((1 << _TOLD_BY) - 1))


@cache
def _all_masks() -> UInt64s:
    """The masks of all words that differ in what tells them: to look one up is quicker than to make it."""
    places = np.arange(1 << _TOLD_BY, dtype=np.uint64)
    masks = np.zeros(len(places), np.uint64)
    for shift in range(0, _TOLD_BY, 6):
        masks |= np.uint64(1) << (places >> np.uint64(shift) & np.uint64(63))
    return masks
