"""Rows in the order of their customers' names: a sort by abbreviated keys.

Blocks (blocks.py) hold customers in the order of their names' bytes. To compare texts one by one is slow. So the eight
bytes after the prefix that all names share are read as one number, an abbreviated key as databases have it in their
sorts, and the numbers are sorted. Names that agree in these bytes and go on differently are compared as texts: few.

Measured with 768,420 rows of a million names, on one core: 0.03 to 0.08 s, where pyarrow's sort_indices takes 0.14 to
0.19 s and sorted() 0.3 s.

The simple version that it must agree with: sorted(range(len(customers)), key=lambda row: customers[row].encode()).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from opentab.core.periods import Int64s
from opentab.wire.byte_columns import WORD, Bools, Texts, UInt64s

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

    def split(self, group: Int64s, groups: int) -> Iterator[Names]:
        """The rows of each group alone, with the names that those have; `group` says which each row belongs to."""
        if groups == 1:
            yield self
            return
        name_at, group = self.name_at, group[self.rows]
        by_group = np.argsort(group, kind="stable")
        edges = np.searchsorted(group[by_group], np.arange(groups + 1))
        for first, past in pairwise(edges.tolist()):
            here = by_group[first:past]
            own = name_at[here]
            begins = np.diff(own, prepend=-1) > 0
            yield Names(self.names.take(pa.array(own[begins])), self.rows[here], begins)


class Listed:
    """The names of an array of bytes, each made when somebody asks for it: of many, few are asked for."""

    def __init__(self, names: pa.Array) -> None:
        first, past = names.offset, names.offset + len(names)
        self._edges = memoryview(names.buffers()[1]).cast("i")[first : past + 1]
        self._text = memoryview(names.buffers()[2] or b"")

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._text[self._edges[index] : self._edges[index + 1]])


@dataclass(frozen=True, slots=True)
class Merged:
    """The names of two arrays together, in order, and where those of each stand among them."""

    names: pa.Array
    known_at: Int64s
    new_at: Int64s


def in_order(customers: pa.Array) -> Names:
    """Put rows into the order of their customers' names. No name holds a byte 0, unless all of them end in one."""
    texts = Texts.of_array(customers)
    prefix = _prefix(texts)
    word = _word(texts, prefix)
    rows: Int64s = np.argsort(word)  # not stable, which is quicker: rows of one name may come in any order
    word = word[rows]
    same: Bools = word[1:] == word[:-1]
    if int(texts.size.max(initial=0)) > prefix + WORD:
        rows, same = _told_apart(texts, prefix + WORD, rows, same)
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = ~same
    return Names(customers.cast(pa.binary()).take(pa.array(rows[begins])), rows, begins)


def merge(known: pa.Array, names: pa.Array) -> Merged:
    """Put names between those that are known. Each array has different names, in order, that all end in a byte 0."""
    both = pa.concat_arrays([known, names])
    if not (len(known) and len(names)):
        return Merged(both, np.arange(len(known)), np.arange(len(names)))
    ordered = in_order(both)
    at = np.empty(len(both), np.int64)
    at[ordered.rows] = ordered.name_at
    return Merged(ordered.names, at[: len(known)], at[len(known) :])


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
    if size is not None and size > column:  # they lie side by side, as they do in an array
        words = texts.words[column::size][: len(texts)] & _MASKS[min(size - column, WORD)]
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
