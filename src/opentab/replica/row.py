"""Rows of customers as lines of words: the latest event time, then the micros of each column, then the events.

Every word has 64 bits, which hold 9.2 trillion currency units. Whatever leaves them raises OverflowError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul
from struct import Struct

import numpy as np
import numpy.typing as npt

from opentab.core.periods import Int64s
from opentab.replica.cell import HALF, NEVER_US, added_at, halves_at
from opentab.replica.store import Buffer

Checksums = npt.NDArray[np.uint32]
WORD_BYTES = 8
INT64_MAX = 2**63 - 1
_BASE = 0x9E3779B97F4A7C15  # odd, and its powers differ


@dataclass(frozen=True, slots=True)
class CustomerRows:
    """Some rows of the same width."""

    words: Int64s
    columns: int

    @classmethod
    def blank(cls, count: int, columns: int) -> CustomerRows:
        """Rows that nothing was added to."""
        words = np.zeros((count, width(columns)), np.int64)
        words[:, 0] = NEVER_US
        return cls(words, columns)

    @classmethod
    def read(cls, words: Buffer, columns: int) -> CustomerRows:
        """The rows that stand somewhere."""
        return cls(np.frombuffer(words, np.int64).reshape(-1, width(columns)), columns)

    def __len__(self) -> int:
        return len(self.words)

    def at(self, index: Int64s) -> CustomerRows:
        """Only some of them."""
        return CustomerRows(self.words.take(index, axis=0), self.columns)

    def spread(self, index: Int64s, count: int) -> CustomerRows:
        """So many rows: these in their places, and blank ones between them."""
        found = CustomerRows.blank(count, self.columns)
        found.put(index, self)
        return found

    def put(self, index: Int64s, rows: CustomerRows) -> None:
        """Set some of them."""
        self._lines()[index] = rows._lines()

    def _lines(self) -> npt.NDArray[np.void]:
        return self.words.view(f"V{self.words.strides[0]}")[:, 0]

    def micros(self) -> Int64s:
        return self.words[:, 1 : 1 + self.columns]

    def events(self) -> Int64s:
        return self.words[:, 1 + self.columns :]

    def totals(self) -> Int64s:
        """The amount of each row, over all of its columns."""
        micros = self.micros()
        fits = _bound(micros) * self.columns <= INT64_MAX
        found: Int64s = np.einsum("ij->i", micros) if fits else reduce(plus, micros.T)
        return found

    def with_columns(self, columns: int) -> CustomerRows:
        """The same rows with more columns, for types that came later."""
        found = CustomerRows.blank(len(self), columns)
        found.words[:, 0] = self.words[:, 0]
        found.micros()[:, : self.columns] = self.micros()
        found.events()[:, : self.columns] = self.events()
        return found


def width(columns: int) -> int:
    """How many words a row of so many columns has."""
    return 1 + 2 * columns


def plus(one: Int64s, other: Int64s) -> Int64s:
    """The sums of two arrays; raises OverflowError where one would wrap."""
    total: Int64s = one + other
    # A sum that wraps has another sign than both of its parts. Mostly all are so small that it need not be asked.
    if _bound(one) + _bound(other) > INT64_MAX and ((one ^ total) & (other ^ total)).min(initial=0) < 0:
        raise OverflowError
    return total


def _bound(numbers: Int64s) -> int:
    """None of them is further from 0."""
    return max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)))


def summed(
    columns: int, begins: Int64s, column: Int64s, micros: Int64s, events: Int64s, last_us: Int64s
) -> CustomerRows:
    """A row for each customer. The entries come customer by customer, one beginning at each of `begins`."""
    found = CustomerRows.blank(len(begins), columns)
    entries, cells = np.diff(begins, append=len(micros)), len(begins) * columns
    at = np.repeat(np.arange(0, cells, columns), entries) + column
    high, low = halves_at(at, cells, micros)
    if (high != (high << HALF) >> HALF).any():
        raise OverflowError
    found.words[:, 0] = np.maximum.reduceat(last_us, begins)
    found.micros()[:] = (high << HALF | low).reshape(-1, columns)
    found.events()[:] = added_at(at, cells, events).reshape(-1, columns)
    return found


def added(one: CustomerRows, other: CustomerRows) -> CustomerRows:
    """The sum of two columns of rows of the same width."""
    words = plus(one.words, other.words)
    words[:, 0] = np.maximum(one.words[:, 0], other.words[:, 0])
    return CustomerRows(words, one.columns)


def read_row(value: Buffer, at: int, columns: int) -> tuple[list[tuple[int, int]], int]:
    """Micros and events of each column of the row that begins at a byte, and the latest event time of all."""
    last_us, *words = _layout(columns).unpack_from(value, at)
    return list(zip(words[:columns], words[columns:], strict=True)), last_us


def checksums(rows: CustomerRows) -> Checksums:
    """The checksum of each row: 32 bits of a polynomial hash, words times powers of an odd number.

    A flipped bit changes the 64-bit sum, for the powers are odd; 32 bits of it are the same by a chance of one in four
    billion. It is not a CRC because numpy makes those of many rows at once, in a tenth of the time.
    """
    sums = rows.words.view(np.uint64) @ np.array(_powers(rows.words.shape[1]), np.uint64)
    return (sums >> np.uint64(32)).astype(np.uint32)


def checksum_of(value: Buffer, at: int, words: int) -> int:
    """The same of the one row that begins at a byte and has so many words."""
    total: int = sum(map(mul, Struct(f"<{words}Q").unpack_from(value, at), _powers(words)))
    return (total >> 32) & 0xFFFFFFFF


@lru_cache
def _powers(count: int) -> tuple[int, ...]:
    return tuple(pow(_BASE, power, 1 << 64) for power in range(1, count + 1))


@lru_cache
def _layout(columns: int) -> Struct:
    return Struct(f"<{width(columns)}q")
