"""A blocked Bloom filter: which keys a run of the dedupe index certainly does not hold.

Nearly every id of a batch is new, and a binary search in each run would say so at 0.18 µs a key. The filter says it at
0.01 µs, and only two in a thousand new keys still need the search.

A plain Bloom filter sets k bits anywhere in one large bit array: k cache misses a key. A blocked one picks one machine
word a key, the block, and sets all k bits inside of it: one miss. Keys are hashes, so their first words are uniform:
their leading bits pick the block (one or two keys share it), their trailing 18 bits the k = 3 bits. Keys that are asked
for in order read the blocks in order, so most looks do not miss the cache at all.

It must agree with the plain search: a filter may say "maybe" of any key, and never "no" of one that is there.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from opentab.core.periods import Int64s
from opentab.wire.byte_columns import UInt64s

BloomFilter = npt.NDArray[np.uint64]

_SIGN = np.uint64(1 << 63)
_TOLD_BY = 18  # last bits of a word that tell its three
_ONE_OR_TWO = 1  # bits: two to this, and down to half as many, are a block's keys
_BITS_MIN = 6
_AT_ONCE = 32_768  # words that stay in a processor's cache


class Probe:
    """First words of keys, in order, that many runs are searched for."""

    def __init__(self, words: Int64s) -> None:
        self._words = words
        self._masks = _masks(words)
        self._blocks: dict[int, Int64s] = {}  # runs of about the same size share them

    def may_be_in(self, bloom: BloomFilter) -> Int64s:
        """Which of the words the run with this filter may hold; it holds none of the others."""
        bits = len(bloom).bit_length() - 1
        if bits not in self._blocks:
            self._blocks[bits] = _blocks(self._words, bits)
        blocks, masks = self._blocks[bits], self._masks
        found = []
        for first in range(0, len(masks), _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            known = bloom.take(blocks[here])
            known &= masks[here]
            found.append(np.flatnonzero(known == masks[here]) + first)
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def bloom_filter(words: Int64s) -> BloomFilter:
    """The filter of a run, given the first words of its keys in order."""
    bloom = empty_filter(len(words))
    add_words(bloom, words)
    return bloom


def empty_filter(rows: int) -> BloomFilter:
    """The filter of a run of so many keys, before any of them is added."""
    return np.zeros(1 << max(_BITS_MIN, rows.bit_length() - _ONE_OR_TWO), np.uint64)


def add_words(bloom: BloomFilter, words: Int64s) -> None:
    """Add some more first words."""
    np.bitwise_or.at(bloom, _blocks(words, len(bloom).bit_length() - 1), _masks(words))


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
