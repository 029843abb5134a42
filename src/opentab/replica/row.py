"""Rows of customers as lines of words: the latest event time, then the micros of each column, then the events.

Sixty-two bits are enough for nearly every amount and thirty for every count, which is not below 0, so two counts share
a word, and two rows are added word by word: nothing carries over. Half the bytes of 128-bit sums are half the time.
Rows of which one does not fit are wide: the lines of `wide`, with low word, high word and events of each column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from struct import Struct

import numpy as np
import numpy.typing as npt

from opentab.replica import wide
from opentab.replica.store import Buffer
from opentab.replica.wide import AMOUNT, NEVER_US, WORD, Cells, Ints, Sums, Words, row_type

MICROS_PAST = 1 << 62
EVENTS_PAST = 1 << 30
_TOO_MANY = np.int64(-0x3FFFFFFF40000000)  # the two topmost bits of both counts of a word
_BASE = 0x9E3779B97F4A7C15  # odd, and its powers differ
_LONE = np.int64(EVENTS_PAST - 1)

Lines = npt.NDArray[np.int64]
Checksums = npt.NDArray[np.uint32]
Index = Ints | slice


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of the same width, all narrow or all wide."""

    words: Lines
    columns: int
    is_wide: bool

    @classmethod
    def blank(cls, count: int, columns: int, *, is_wide: bool = False) -> Rows:
        """Rows that nothing was added to."""
        words = np.zeros((count, width(columns, is_wide=is_wide)), np.int64)
        words[:, 0] = NEVER_US
        return cls(words, columns, is_wide)

    @classmethod
    def read(cls, words: Buffer, columns: int, *, is_wide: bool) -> Rows:
        """The rows that stand somewhere."""
        return cls(np.frombuffer(words, np.int64).reshape(-1, width(columns, is_wide=is_wide)), columns, is_wide)

    def __len__(self) -> int:
        return len(self.words)

    def at(self, index: Index) -> Rows:
        """Only some of them."""
        words = self.words[index] if isinstance(index, slice) else self.words.take(index, axis=0)
        return Rows(words, self.columns, self.is_wide)

    def spread(self, index: Ints, count: int) -> Rows:
        """So many rows: these in their places, and blank ones between them."""
        words = np.empty((count, self.words.shape[1]), np.int64)
        is_blank = np.ones(count, np.bool_)
        is_blank[index] = False
        words[is_blank] = Rows.blank(1, self.columns, is_wide=self.is_wide).words
        found = Rows(words, self.columns, self.is_wide)
        found.put(index, self)
        return found

    def put(self, index: Ints, rows: Rows) -> None:
        """Set some of them."""
        self._lines()[index] = rows._lines()

    def _lines(self) -> npt.NDArray[np.void]:
        return self.words.view(f"V{8 * self.words.shape[1]}")[:, 0]

    def totals(self) -> Cells:
        """The amount of each row, over all of its columns."""
        if self.is_wide or not _are_below(self.words, self.columns, (1 << 63) // self.columns):
            return wide.across(self.widened()._cells())
        found = np.empty(len(self), AMOUNT)
        sums = np.einsum("ij->i", self.words[:, 1 : 1 + self.columns])
        found["low"], found["high"] = sums.view(np.uint64), sums >> 63
        return found

    def events(self) -> Lines:
        """The counts of each column."""
        if self.is_wide:
            return self.words[:, 3::3]
        pairs = self.words[:, 1 + self.columns :]
        found = np.empty((len(self), 2 * pairs.shape[1]), np.int64)
        found[:, ::2], found[:, 1::2] = pairs & _LONE, pairs >> 32
        return found[:, : self.columns]

    def widened(self) -> Rows:
        """The same rows, wide."""
        if self.is_wide:
            return self
        words = np.empty((len(self), width(self.columns, is_wide=True)), np.int64)
        words[:, 0] = self.words[:, 0]
        words[:, 1::3] = self.words[:, 1 : 1 + self.columns]
        words[:, 2::3] = words[:, 1::3] >> 63
        words[:, 3::3] = self.events()
        return Rows(words, self.columns, is_wide=True)

    def packed(self) -> Rows:
        """The same rows, narrow where all of them fit."""
        if not self.is_wide:
            return self
        micros, high, events = (self.words[:, at::3] for at in (1, 2, 3))
        counts_fit = events.min(initial=0) >= 0 and events.max(initial=0) < EVENTS_PAST
        if (high != micros >> 63).any() or _bound(micros) >= MICROS_PAST or not counts_fit:
            return self
        return _narrow(self.words[:, 0], micros, events)

    def with_columns(self, columns: int) -> Rows:
        """The same rows with more columns, for types that came later."""
        if self.columns == columns:
            return self
        found = Rows.blank(len(self), columns, is_wide=True)
        one = self.widened()
        found.words[:, : one.words.shape[1]] = one.words
        return found.packed() if not self.is_wide else found

    def _cells(self) -> Cells:
        return self.words.view(row_type(self.columns))[:, 0]


def width(columns: int, *, is_wide: bool) -> int:
    """How many words a row of so many columns has."""
    return 1 + 3 * columns if is_wide else 1 + columns + -(-columns // 2)


@lru_cache
def size(columns: int, is_wide: int) -> int:
    """How many bytes a row of so many columns has."""
    return 8 * width(columns, is_wide=bool(is_wide))


def checksums(words: Lines) -> Checksums:
    """The checksum of each line of words: 32 bits of a polynomial hash, words times powers of an odd number.

    A flipped bit changes the 64-bit sum, for the powers are odd; 32 bits of it are the same by a chance of one in four
    billion. It is not a CRC because numpy makes those of many rows at once, in a tenth of the time.
    """
    sums = words.view(np.uint64) @ np.array(_powers(words.shape[1]), np.uint64)
    return (sums >> np.uint64(32)).astype(np.uint32)


def checksum_of(value: Buffer, at: int, size: int) -> int:
    """The same of the one line that begins at a byte and has so many words."""
    line, powers = _line(size)
    total: int = sum(map(mul, line.unpack_from(value, at), powers))
    return (total >> 32) & 0xFFFFFFFF


def summed(
    columns: int, begins: Ints, column: Ints, low: Words, high: Ints | None, events: Ints, last_us: Ints
) -> Rows:
    """A row for each customer. The entries come customer by customer, one beginning at each of `begins`.

    Without `high` all amounts are in `low`, with their signs.
    """
    count, entries = len(begins), np.diff(begins, append=len(low))
    micros = low.view(np.int64)
    # No sum of several is larger than the largest times as many as the longest customer has.
    most = int(entries.max(initial=0))
    fits = _bound(micros) * most < MICROS_PAST and _bound(events) * most < EVENTS_PAST
    # Entries that take repeats back have counts below 0, and may come apart from what they take back.
    if fits and int(events.min(initial=0)) >= 0 and (high is None or wide.are_narrow(low, high)):
        size = width(columns, is_wide=False)
        words = np.zeros((count, size), np.int64)
        words[:, 0] = np.maximum.reduceat(last_us, begins)
        first = np.repeat(np.arange(1, 1 + count * size, size), entries)  # the first column of each entry's row
        np.add.at(words.reshape(-1), first + column, micros)
        np.add.at(words.reshape(-1), first + columns + (column >> 1), events << ((column & 1) << 5))
        return Rows(words, columns, is_wide=False)
    sums = Sums(count * columns)
    at = np.repeat(np.arange(0, count * columns, columns), entries) + column
    sums.add(at, low, micros >> 63 if high is None else high, events, last_us)
    words = sums.rows(columns).view(np.int64).reshape(count, -1)
    return Rows(words, columns, is_wide=True).packed()


def added(one: Rows, other: Rows) -> Rows:
    """The sum of two columns of rows of the same width, exact."""
    if not (one.is_wide or other.is_wide):
        words = one.words + other.words
        words[:, 0] = np.maximum(one.words[:, 0], other.words[:, 0])
        pairs = words[:, 1 + one.columns :]
        if _are_below(words, one.columns, MICROS_PAST) and not (pairs & _TOO_MANY).any():
            return Rows(words, one.columns, is_wide=False)
    cells = wide.add(one.widened()._cells(), other.widened()._cells())
    return Rows(cells.view(np.int64).reshape(len(cells), -1), one.columns, is_wide=True)


def read_row(value: Buffer, at: int, columns: int, *, is_wide: bool) -> tuple[list[tuple[int, int]], int]:
    """Micros and events of each column of the row that begins at a byte, and the latest event time of all."""
    last_us, *words = _layout(columns, is_wide).unpack_from(value, at)
    if is_wide:
        return [(words[i + 1] * WORD + words[i], words[i + 2]) for i in range(0, len(words), 3)], last_us
    return list(zip(words[:columns], words[columns:], strict=False)), last_us


@lru_cache
def _powers(count: int) -> tuple[int, ...]:
    return tuple(pow(_BASE, power, WORD) for power in range(1, count + 1))


@lru_cache
def _line(size: int) -> tuple[Struct, tuple[int, ...]]:
    return Struct(f"<{size}Q"), _powers(size)


@lru_cache
def _layout(columns: int, is_wide: bool) -> Struct:
    return Struct("<q" + "Qqq" * columns) if is_wide else Struct(f"<q{columns}q{columns + columns % 2}i")


def _narrow(last_us: Ints, micros: Lines, events: Lines) -> Rows:
    count, columns = micros.shape
    words = np.empty((count, width(columns, is_wide=False)), np.int64)
    words[:, 0] = last_us
    words[:, 1 : 1 + columns] = micros
    pairs = words[:, 1 + columns :]
    pairs[:] = events[:, ::2]
    pairs[:, : columns // 2] |= events[:, 1::2] << 32
    return Rows(words, columns, is_wide=False)


def _are_below(words: Lines, columns: int, past: int) -> bool:
    """Whether all amounts of narrow rows are nearer to 0. A look at all words is quicker, and mostly enough."""
    return _bound(words) < past or _bound(words[:, 1 : 1 + columns]) < past


def _bound(numbers: Lines) -> int:
    """None of them is further from 0."""
    return max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)))
