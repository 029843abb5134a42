"""The keys that tell events apart: 128 bits of their ids, many at once.

It is MurmurHash3 (x64, 128 bits) over columns. Two different ids of n have the same key with a probability of about
n² / 2¹²⁹: for ten billion ids 1.5e-19.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from opentab.core.periods import Int64s
from opentab.wire.byte_columns import WORD, Texts, UInt64s

LONG_BYTES = 512  # from here on one by one, by another hash: a long text must not make many slow
BLOCK = 16  # bytes that are taken at a time
ID, ID_OF_SOURCE, REVERSAL, REVERSAL_OF_SOURCE = range(4)  # seeds: what a key is of

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_ADD1, _ADD2, _FIVE = np.uint64(0x52DCE729), np.uint64(0x38495AB5), np.uint64(5)
_HALF = np.uint64(33)
_SIGN = np.uint16(1 << 15)
_WRONG_MAX = 1_000  # words that are put right one by one; more of them come of nobody's chance
# Which bytes of a word belong to a tail of 0 to 15 bytes, for its first word and for its second.
_MASK_LOW = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(16)], np.uint64)
_MASK_HIGH = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(16)], np.uint64)


def keys_of(texts: Sequence[str] | pa.Array | Texts, seed: int = ID) -> tuple[Int64s, Int64s]:
    """The two words of each text's key."""
    if not isinstance(texts, Texts):
        texts = Texts.of_array(texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string()))
    if len(texts) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    is_long = texts.size >= LONG_BYTES
    long = np.flatnonzero(is_long).tolist()
    high, low = _murmur(Texts(texts.data, texts.start, np.where(is_long, 0, texts.size)) if long else texts, seed)
    for at in long:
        digest = hashlib.blake2b(texts[at], digest_size=16, salt=bytes([seed])).digest()
        high[at], low[at] = np.frombuffer(digest, np.uint64)
    return high.view(np.int64), low.view(np.int64)


def key_of(id_: str, source: str | None = None, *, reversal: bool = False) -> tuple[int, int]:
    """The key of one id, with the source where there is one; or that of the reversal of what has this id."""
    text = id_ if source is None else text_of(id_, source)
    seed = (REVERSAL if reversal else ID) + (source is not None)
    high, low = keys_of([text], seed)
    return int(high[0]), int(low[0])


def text_of(id_: str, source: str) -> str:
    """An id and its source as one text; no other two make the same."""
    return f"{len(source)}:{source}{id_}"


def payloads_of(
    at_us: Int64s, amount_micros: Int64s, customer: pa.Array | Texts, types: Sequence[str], type_at: Int64s
) -> Int64s:
    """64 bits of each event's values, never 0: the same values make the same, others almost certainly others.

    The types are given once each, and for each event the place of its own.
    """
    if len(customer) == 0:
        return np.zeros(0, np.int64)
    mixed, _ = keys_of(customer)
    words = mixed.view(np.uint64)
    for column in (at_us, amount_micros, _first_words(tuple(types))[type_at]):
        words = words * _C1
        words ^= column.view(np.uint64)
        words = _mixed(words)
    words[words == 0] = 1
    return words.view(np.int64)


def ordered(words: Int64s) -> tuple[Int64s, Int64s]:
    """The places of first words of keys in their order, and the words in it; equal ones stay as they stand.

    Numbers of 16 bits are sorted by counting. So words are sorted by their second 16 bits and then by their first,
    and the few that are alike in both are put right: that takes as long on every processor, and on some a third of
    what it takes to sort numbers of 64 bits.
    """
    second, first = ((words >> shift).astype(np.uint16) for shift in (32, 48))
    first ^= _SIGN  # negative ones come first
    order: Int64s = np.argsort(second, kind="stable")
    order = order.take(np.argsort(first.take(order), kind="stable"))
    found = words.take(order)
    wrong = np.flatnonzero(found[1:] < found[:-1])
    if len(wrong) > _WRONG_MAX:
        order = np.argsort(words, kind="stable")
        return order, words.take(order)
    begins = found >> 32
    alike = np.unique(begins[wrong])
    for begin, end in zip(np.searchsorted(begins, alike), np.searchsorted(begins, alike, "right"), strict=True):
        right = begin + np.argsort(found[begin:end], kind="stable")
        order[begin:end], found[begin:end] = order[right], found[right]
    return order, found


def with_key(payload: int, key: tuple[int, int]) -> int:
    """The values of a reversal: an event's, and the key of what it takes back."""
    words = np.array([payload, *key], np.int64).view(np.uint64)
    mixed = _mixed(_mixed(words[:1] * _C1 ^ words[1:2]) * _C2 ^ words[2:])
    return int(np.where(mixed == 0, np.uint64(1), mixed).view(np.int64)[0])


@lru_cache(maxsize=16)
def _first_words(texts: tuple[str, ...]) -> Int64s:
    return keys_of(texts)[0]


def _murmur(texts: Texts, seed: int) -> tuple[UInt64s, UInt64s]:
    size = texts.even_size
    return _murmur_of_any(texts, seed) if size is None else _murmur_of_even(texts, size, seed)


def _murmur_of_even(texts: Texts, size: int, seed: int) -> tuple[UInt64s, UInt64s]:
    """Of texts that have as many bytes each, as ids of one producer do."""
    words = texts.words_at(texts.start, max(1, -(-size // WORD))).T
    h1 = h2 = np.full(len(texts), seed, np.uint64)
    blocks, tail = divmod(size, BLOCK)
    for block in range(blocks):
        h1, h2 = _after_block(h1, h2, words[2 * block], words[2 * block + 1])
    if tail > WORD:
        h2 = h2 ^ _scrambled(words[2 * blocks + 1] & _MASK_HIGH[tail], _C2, 33, _C1)
    if tail:
        h1 = h1 ^ _scrambled(words[2 * blocks] & _MASK_LOW[tail], _C1, 31, _C2)
    return _finished(h1, h2, np.uint64(size))


def _murmur_of_any(texts: Texts, seed: int) -> tuple[UInt64s, UInt64s]:
    words, start, size = texts.words, texts.start, texts.size
    h1 = np.full(len(size), seed, np.uint64)
    h2 = h1.copy()
    blocks, tail = size // BLOCK, size % BLOCK
    for block in range(int(blocks.max())):
        rows = np.flatnonzero(blocks > block)
        first, second = texts.words_at(start[rows] + block * BLOCK, 2).T
        h1[rows], h2[rows] = _after_block(h1[rows], h2[rows], first, second)
    at = start + blocks * BLOCK
    h2 ^= _scrambled(words[at + WORD] & _MASK_HIGH[tail], _C2, 33, _C1)
    h1 ^= _scrambled(words[at] & _MASK_LOW[tail], _C1, 31, _C2)
    return _finished(h1, h2, size.view(np.uint64))


def _after_block(h1: UInt64s, h2: UInt64s, first: UInt64s, second: UInt64s) -> tuple[UInt64s, UInt64s]:
    h1 = _rotated(h1 ^ _scrambled(first, _C1, 31, _C2), 27)
    h1 += h2
    h1 *= _FIVE
    h1 += _ADD1
    h2 = _rotated(h2 ^ _scrambled(second, _C2, 33, _C1), 31)
    h2 += h1
    h2 *= _FIVE
    h2 += _ADD2
    return h1, h2


def _finished(h1: UInt64s, h2: UInt64s, size: UInt64s | np.uint64) -> tuple[UInt64s, UInt64s]:
    h1, h2 = h1 ^ size, h2 ^ size
    h1 += h2
    h2 += h1
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 += h2
    h2 += h1
    return h1, h2


def _scrambled(words: UInt64s, first: np.uint64, bits: int, second: np.uint64) -> UInt64s:
    words = _rotated(words * first, bits)
    words *= second
    return words


def _mixed(words: UInt64s) -> UInt64s:
    mixed = words >> _HALF
    mixed ^= words
    for factor in (_F1, _F2):
        mixed *= factor
        mixed ^= mixed >> _HALF
    return mixed


def _rotated(words: UInt64s, bits: int) -> UInt64s:
    rotated = words << np.uint64(bits)
    rotated |= words >> np.uint64(64 - bits)
    return rotated
