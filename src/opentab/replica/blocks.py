"""The customers of each period, some dozen neighbours in one value of the store.

Where many customers are touched, what a store asks for each key is most of the work; a block asks it once. The key of
a block is its period and the last name that may stand in it; nothing is behind the last block of a period. A block
holds

    how many rows, how many columns, whether they are wide  |  the rows  |  the names, a byte 0 around each

in the order of the names.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.errors import ReplicaDamaged
from opentab.replica import row
from opentab.replica.names import Listed, evenly, merge
from opentab.replica.row import Rows
from opentab.replica.store import Buffer, Change, Snapshot
from opentab.replica.wide import micros_of
from opentab.texts import Texts

TABLE = "customers"
BLOCK = 128  # customers, when one is cut
BLOCK_MAX = 256
END = b"\xff"  # no name holds it, and all are before it
BETWEEN = b"\0"  # no name holds it
HEADER = struct.Struct("<IHH")  # eight bytes, so that the rows behind it lie evenly

Row = tuple[list[tuple[int, int]], int]  # micros and events of each column, and the latest event time of all


def find(snapshot: Snapshot, period: bytes, name: bytes) -> Row | None:
    """The row of one customer."""
    found = snapshot.first(TABLE, period + name, prefix=period)
    if found is None:
        return None
    block = found[1]
    count, columns, is_wide = HEADER.unpack_from(block)
    size = 8 * row.width(columns, is_wide=is_wide)
    names = bytes(block[HEADER.size + count * size :])
    at = names.find(BETWEEN + name + BETWEEN)
    if at < 0:
        return None
    return row.read_row(block, HEADER.size + names.count(BETWEEN, 0, at) * size, columns, is_wide=is_wide)


def scan(
    snapshot: Snapshot, period: bytes, prefix: bytes = b"", *, after: bytes | None = None
) -> Iterator[tuple[bytes, Row]]:
    """The customers of a period whose names begin with a prefix, in order; `after` leaves out all up to that name."""
    start = prefix if after is None else max(prefix, after)
    for _, value in snapshot.scan(TABLE, period, start=period + start):
        block = Block.read(value)
        names, rows = block.names(), block.rows()
        for index in range(0 if after is None else bisect_right(names, after), len(names)):
            name = names[index]
            if name.startswith(prefix):
                yield name, row.read_row(rows.words[index].tobytes(), 0, rows.columns, is_wide=rows.is_wide)
            elif name > prefix:
                return


def totals(snapshot: Snapshot, period: bytes) -> Iterator[tuple[bytes, int]]:
    """Every customer of a period with the total, in order."""
    for _, value in snapshot.scan(TABLE, period):
        block = Block.read(value)
        for name, total in zip(block.names(), block.rows().totals(), strict=True):
            yield name, micros_of(total)


def sum_of(value: bytes) -> tuple[int, int]:
    """Micros and events of all customers of a block; raises ReplicaDamaged where names or rows are missing."""
    block = Block.read(value)
    if bytes(block.text).count(BETWEEN) != block.customers:
        raise ReplicaDamaged(f"a block of {block.customers} customers does not have the name of each")
    rows = block.rows()
    return sum(map(micros_of, rows.totals())), int(rows.events().sum())


def add(change: Change, period: bytes, names: pa.Array, added: Rows) -> tuple[Rows, int]:
    """Add a row to that of each customer. Names are bytes, sorted and different.

    Returns the rows as they are now, and how many customers are new.
    """
    touched = _touched(change, period, Listed(names), added.columns)
    known = _names([block.text for _, block, _ in touched])
    rows = _side_by_side([block for _, block, _ in touched], added.columns)
    merged = merge(known, _ended(names))
    count = len(merged.names)
    if count > len(known):
        table = rows.spread(merged.known_at, count)
    else:
        table = rows
    now = row.added(table.at(merged.new_at), added)
    if now.is_wide:
        table = table.widened()
    table.put(merged.new_at, now)
    # A block begins with the first of its rows that were there, or with the first of the new ones before it.
    firsts = np.cumsum([(0, 0), *((block.customers, own) for _, block, own in touched)], axis=0)[:-1]
    bounds = np.minimum(np.append(merged.known_at, count)[firsts[:, 0]], merged.new_at[firsts[:, 1]]).tolist()
    keys = [key for key, _, _ in touched]
    change.put(TABLE, list(_cut(period, keys, [*bounds, count], table, merged.names)))
    return now, count - len(known)


class Block(NamedTuple):
    """One block, as it was read."""

    customers: int
    columns: int
    is_wide: bool
    words: memoryview  # of their rows
    text: memoryview  # each name with the byte behind it

    @classmethod
    def read(cls, value: Buffer) -> Block:
        if len(value) >= HEADER.size:
            count, columns, is_wide = HEADER.unpack_from(value)
            past = HEADER.size + 8 * count * row.width(columns, is_wide=is_wide)
            if len(value) > past:
                view = memoryview(value)
                return cls(count, columns, bool(is_wide), view[HEADER.size : past], view[past + len(BETWEEN) :])
        raise ReplicaDamaged(f"a block of {len(value)} bytes cannot be read")

    def names(self) -> list[bytes]:
        return bytes(self.text[: -len(BETWEEN)]).split(BETWEEN)

    def rows(self) -> Rows:
        return Rows.read(self.words, self.columns, is_wide=self.is_wide)


def _touched(change: Change, period: bytes, names: Listed, columns: int) -> list[tuple[bytes, Block, int]]:
    """The blocks that some names belong to, each with its key and how many of the names."""
    found, at = [], 0
    empty = Block(0, columns, False, memoryview(b""), memoryview(b""))
    first = change.finder(TABLE, prefix=period)
    while at < len(names):
        known = first(period + names[at])
        key, block = (known[0], Block.read(known[1])) if known else (period + END, empty)
        last, near = key[len(period) :], min(at + BLOCK_MAX, len(names))
        past = bisect_right(names, last, at, near)
        if past == near:  # many new ones
            past = bisect_right(names, last, near)
        found.append((key, block, past - at))
        at = past
    return found


def _names(texts: Sequence[memoryview | bytes]) -> pa.Array:
    """The names of blocks side by side, each with the byte behind it."""
    text = b"".join(texts)
    past = np.flatnonzero(np.frombuffer(text, np.uint8) == 0) + 1
    offsets = np.append(0, past).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(past), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _ended(names: pa.Array) -> pa.Array:
    """The same names, each with the byte behind it."""
    texts = Texts.of_array(names)
    size = texts.even_size
    if size is None:
        return pc.binary_join_element_wise(names, b"", BETWEEN)
    ended = np.zeros((len(texts), size + len(BETWEEN)), np.uint8)
    ended[:, :size] = texts.data[: len(texts) * size].reshape(-1, size)
    return evenly(ended)


def _side_by_side(blocks: Sequence[Block], columns: int) -> Rows:
    """Rows of blocks in one piece, all of one form."""
    words = [block.words for block in blocks]
    is_wide = any(block.is_wide for block in blocks)
    if is_wide or any(block.columns != columns for block in blocks):
        parts = [block.rows().with_columns(columns) for block in blocks]
        words = [(part.widened() if is_wide else part).words.data for part in parts]
    return Rows.read(memoryview(bytearray().join(words)), columns, is_wide=is_wide)


def _cut(
    period: bytes, keys: Sequence[bytes], bounds: Sequence[int], table: Rows, names: pa.Array
) -> Iterator[tuple[bytes, bytes]]:
    """Blocks to be written; one that has become too large is cut, and its last part keeps the key."""
    past = np.frombuffer(names.buffers()[1], np.int32)  # and not as a list: few of them are needed
    text, words, size = memoryview(names.buffers()[2]), table.words.data.cast("B"), table.words.strides[0]
    for key, (first, end) in zip(keys, pairwise(bounds), strict=True):
        parts = -(-(end - first) // BLOCK) if end - first > BLOCK_MAX else 1
        cuts = [first + (end - first) * part // parts for part in range(parts + 1)]
        for begin, stop in pairwise(cuts):
            own = key if stop == end else period + bytes(text[past[stop - 1] : past[stop] - 1])
            rows, is_wide = words[begin * size : stop * size], table.is_wide
            if is_wide:  # as a whole, which need not be so of its parts
                part = table.at(slice(begin, stop)).packed()
                rows, is_wide = part.words.data.cast("B"), part.is_wide
            header = HEADER.pack(stop - begin, table.columns, is_wide)
            yield own, b"".join((header, rows, BETWEEN, text[past[begin] : past[stop]]))
