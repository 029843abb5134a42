"""Sums that never wrap: over all customers they may leave 64 bits, and numpy's integers wrap in silence.

A cell is one such sum as a replica keeps it. Its amount is Python's integer, and 128 bits in the store.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np

from opentab.core.periods import Int64s

NEVER_US = -(2**62)  # before all times, and not so far that adding one to it would wrap
AMOUNT_BYTES = 16
HALF, LOW_HALF = 32, 2**32 - 1
_LAYOUT = Struct(f"<q{AMOUNT_BYTES}sq")


class Cell(NamedTuple):
    """An amount, how many events it is of, and the latest of their times."""

    micros: int = 0
    events: int = 0
    last_us: int = NEVER_US

    def plus(self, other: Cell) -> Cell:
        return Cell(self.micros + other.micros, self.events + other.events, max(self.last_us, other.last_us))

    def packed(self) -> bytes:
        """As it stands in the store."""
        return _LAYOUT.pack(self.last_us, self.micros.to_bytes(AMOUNT_BYTES, "little", signed=True), self.events)


def read_cell(value: bytes) -> Cell:
    """A cell from the store."""
    last_us, micros, events = _LAYOUT.unpack(value)
    return Cell(int.from_bytes(micros, "little", signed=True), events, last_us)


def cells_at(at: Int64s, count: int, micros: Int64s, events: Int64s, last_us: Int64s) -> list[Cell]:
    """The sum at each of so many places; `at` says which place each number belongs to."""
    latest = np.full(count, NEVER_US, np.int64)
    np.maximum.at(latest, at, last_us)
    amounts = exact_sums(*halves_at(at, count, micros))
    return list(map(Cell, amounts, added_at(at, count, events).tolist(), latest.tolist()))


def halves_at(at: Int64s, count: int, micros: Int64s) -> tuple[Int64s, Int64s]:
    """The sum at each place as high * 2³² + low, with low below 2³²: neither wraps before 2³¹ numbers are added."""
    low = added_at(at, count, micros & LOW_HALF)
    return added_at(at, count, micros >> HALF) + (low >> HALF), low & LOW_HALF


def exact_sums(high: Int64s, low: Int64s) -> list[int]:
    """Such sums as Python's integers."""
    return [(one << HALF) + other for one, other in zip(high.tolist(), low.tolist(), strict=True)]


def exact_sum(micros: Int64s) -> int:
    """All of some amounts together."""
    return (int((micros >> HALF).sum()) << HALF) + int((micros & LOW_HALF).sum())


def added_at(at: Int64s, count: int, numbers: Int64s) -> Int64s:
    """The sum at each place; it must fit into 64 bits."""
    found = np.zeros(count, np.int64)
    if count == 1:  # many times quicker than to look at places that are all the same
        found += numbers.sum()
    else:
        np.add.at(found, at, numbers)
    return found
