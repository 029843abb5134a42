"""Rows in the order of their customers' names, without a comparison of texts where eight bytes tell them apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opentab.periods import Int64s
from opentab.texts import WORD, Bools, Texts, UInt64s

PREFIX_MAX = 256


@dataclass(frozen=True, slots=True)
class Names:
    """The different names in the order of their bytes, and the rows in that order."""

    names: pa.Array  # binary
    rows: Int64s
    begins: Bools  # whether a row is the first of its name

    @property
    def name_at(self) -> Int64s:
        """The place of each row's name."""
        return np.cumsum(self.begins) - 1

    def where(self, mask: Bools) -> Names:
        """Some of the rows alone, with the names that those have."""
        name_at = self.name_at[mask]
        begins = np.diff(name_at, prepend=-1) > 0
        return Names(self.names.take(pa.array(name_at[begins])), self.rows[mask], begins)


def in_order(customers: pa.Array, *, nearly: bool = False) -> Names:
    """Put rows into the order of their customers' names. No name holds a byte 0, unless all of them end in one.

    They may be nearly in order: some stretches of them, each in order.
    """
    texts = Texts.of_array(customers)
    prefix = _prefix(texts)
    word = _word(texts, prefix)
    rows = np.argsort(word, kind="stable" if nearly else None)
    word = word[rows]
    same: Bools = word[1:] == word[:-1]
    if int(texts.size.max(initial=0)) > prefix + WORD:
        rows, same = _told_apart(texts, prefix + WORD, rows, same)
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = ~same
    return Names(_taken(customers, texts, rows[begins]), rows, begins)


def _taken(customers: pa.Array, texts: Texts, rows: Int64s) -> pa.Array:
    """Some of the names as bytes. Those of one size are taken as pieces of memory, which is many times quicker."""
    size = texts.even_size
    if not size:
        return customers.cast(pa.binary()).take(pa.array(rows))
    pieces = texts.data[: len(texts) * size].view(f"V{size}").take(rows)
    offsets = np.arange(0, len(pieces) * size + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(pieces), [None, pa.py_buffer(offsets), pa.py_buffer(pieces)])


def _prefix(texts: Texts) -> int:
    """How many bytes all of the names begin with."""
    shortest = int(texts.size.min(initial=PREFIX_MAX))
    for column in range(shortest):
        bytes_ = texts.byte(column)
        if (bytes_ != bytes_[0]).any():
            return column
    return shortest


def _word(texts: Texts, column: int) -> UInt64s:
    """The eight bytes from a column on as a number that orders as they do; what is beyond a name is 0."""
    size = texts.even_size
    if size is not None and size > column:
        words = texts.words[texts.start + column] & _MASKS[min(size - column, WORD)]
    else:
        there = np.clip(texts.size - column, 0, WORD)
        words = texts.words[np.minimum(texts.start + column, texts.end)] & _MASKS[there]
    found: UInt64s = words.byteswap(inplace=True)
    return found


def _told_apart(texts: Texts, column: int, rows: Int64s, same: Bools) -> tuple[Int64s, Bools]:
    """Rows in order by all before a column, in order by all of each name, and which are the same as the one before."""
    alike = _alike(texts, column, rows)
    if (same & ~alike).any():
        # Few begin alike and go on differently: those groups are sorted one by one.
        rows = rows.copy()
        begins = np.append(True, ~same)
        first = np.append(np.flatnonzero(begins), len(rows))
        group = np.cumsum(begins) - 1
        for number in np.unique(group[1:][same & ~alike]).tolist():
            here = slice(int(first[number]), int(first[number + 1]))
            rows[here] = sorted(rows[here].tolist(), key=texts.__getitem__)
        alike = _alike(texts, column, rows)
    return rows, same & alike


def _alike(texts: Texts, column: int, rows: Int64s) -> Bools:
    """Which of the rows are the same from a column on as the one before."""
    alike = np.ones(max(len(rows) - 1, 0), np.bool_)
    for at in range(column, int(texts.size.max()), WORD):
        word = _word(texts, at)[rows]
        alike &= word[1:] == word[:-1]
    return alike


_MASKS = np.array([256**size - 1 for size in range(WORD)] + [2**64 - 1], np.uint64)
