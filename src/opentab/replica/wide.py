"""Sums of 128 bits in numpy: money over many events may leave 64 bits, and must not wrap."""

from __future__ import annotations

from struct import Struct

import numpy as np
import numpy.typing as npt

# An amount: micros as 128 bits.
AMOUNT = np.dtype([("low", "<u8"), ("high", "<i8")])
# A sum: an amount, and how many events it is of.
SUM = np.dtype([*AMOUNT.descr, ("events", "<i8")])
# One cell of a replica: such a sum, and the latest event time.
CELL = np.dtype([("last_us", "<i8"), ("sum", SUM)])

Cells = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
WORD = 1 << 64
HALF = np.uint64(32)
LOW_HALF = np.uint64(0xFFFFFFFF)
NEVER_US = -(2**63)


def row_type(columns: int) -> np.dtype[np.void]:
    """A row of sums, one for each column, and the latest event time of all."""
    return np.dtype([("last_us", "<i8"), ("sum", SUM, (columns,))])


class Sums:
    """Many sums at once, exact: halves of words are added apart, so that nothing wraps."""

    def __init__(self, count: int) -> None:
        self._low = np.zeros(count, np.uint64)
        self._middle = np.zeros(count, np.uint64)
        self._high = np.zeros(count, np.int64)
        self._events = np.zeros(count, np.int64)
        self._last_us = np.full(count, NEVER_US, np.int64)

    def add(self, at: Ints, low: Words, high: Ints, events: Ints, last_us: Ints) -> None:
        """Add each amount, count and time to the sum at its place."""
        if len(self._low) == 1:  # no look at places that are all the same: many times quicker
            self._low += (low & LOW_HALF).sum(dtype=np.uint64)
            self._middle += (low >> HALF).sum(dtype=np.uint64)
            self._high += high.sum(dtype=np.int64)
            self._events += events.sum(dtype=np.int64)
            self._last_us[0] = last_us.max(initial=self._last_us[0])
            return
        np.add.at(self._low, at, low & LOW_HALF)
        np.add.at(self._middle, at, low >> HALF)
        np.add.at(self._high, at, high)
        np.add.at(self._events, at, events)
        np.maximum.at(self._last_us, at, last_us)

    def cells(self) -> Cells:
        """All of them."""
        found = np.empty(len(self._low), CELL)
        self._write(found["sum"])
        found["last_us"] = self._last_us
        return found

    def rows(self, columns: int) -> Cells:
        """All of them as rows; `columns` sums are one row."""
        found = np.empty(len(self._low) // columns, row_type(columns))
        self._write(found["sum"])
        found["last_us"] = self._last_us.reshape(-1, columns).max(axis=1)
        return found

    def _write(self, sums: Cells) -> None:
        middle = self._middle + (self._low >> HALF)
        sums["low"] = ((middle << HALF) | (self._low & LOW_HALF)).reshape(sums.shape)
        sums["high"] = (self._high + (middle >> HALF).astype(np.int64)).reshape(sums.shape)
        sums["events"] = self._events.reshape(sums.shape)


def add(one: Cells, other: Cells) -> Cells:
    """The sum of two columns of cells, or of rows of the same width, exact."""
    mine, its = _words(one), _words(other)
    total = mine + its  # it wraps, and the carry says so
    total[:, _HIGHS] += total[:, _LOWS] < mine[:, _LOWS]
    total[:, 0] = np.maximum(one["last_us"], other["last_us"]).view(np.uint64)
    return total.view(one.dtype)[:, 0]


def across(rows: Cells) -> Cells:
    """The amount of each row, over all of its columns."""
    words = _words(rows)
    low = words[:, 1].copy()
    high = words[:, 2].copy()
    for at in range(4, words.shape[1], 3):
        low += words[:, at]
        high += words[:, at + 1]
        high += low < words[:, at]
    total = np.empty(len(rows), AMOUNT)
    total["low"], total["high"] = low, high.view(np.int64)
    return total


def micros_of(one: np.void) -> int:
    """The amount of one sum."""
    return int(one["high"]) * WORD + int(one["low"])


def sum_micros(low: Words, high: Ints) -> int:
    """Many amounts together, exact."""
    halves = int((low & LOW_HALF).sum(dtype=np.uint64)) + (int((low >> HALF).sum(dtype=np.uint64)) << 32)
    return int(high.sum(dtype=np.int64)) * WORD + halves


def are_narrow(low: Words, high: Ints) -> bool:
    """Whether all amounts fit into one word, with their signs."""
    return bool((high == low.view(np.int64) >> 63).all())


def read_cell(value: bytes) -> tuple[int, int, int]:
    """Micros, events and the latest event time of one cell."""
    last_us, low, high, events = _cell.unpack(value)
    return high * WORD + low, events, last_us


_LOWS, _HIGHS = slice(1, None, 3), slice(2, None, 3)  # of such a line
_cell = Struct("<qQqq")


def _words(cells: Cells) -> Words:
    """Cells or rows as lines of words: the latest event time, then low, high and events of each sum."""
    return np.ascontiguousarray(cells).view(np.uint64).reshape(len(cells), cells.dtype.itemsize // 8)
