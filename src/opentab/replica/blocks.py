"""The customers of each period in blocks: some dozen neighbours are one value of the store, as in a B-tree's leaf.

Where many customers are touched, what a store asks for each key is most of the work; a block asks it once. A batch of
768,420 entries of a million customers takes 0.4 s of a core, and 8 s with blocks of one customer; a customer takes 388
bytes and not 948; a point read takes 7.3 µs and not 6.4. The key of a block is its period and the last name that may
stand in it, so one look finds the block of any name; nothing is after the last block of a period. A block that grows
beyond BLOCK_MAX is cut into blocks of about BLOCK. It holds

    the rows
    the last name of the block before it, then the names, a byte 0 after each
    a checksum of each row
    how many rows, how many columns
    a checksum of the key and of all but the rows

in the order of the names. A read of one customer checks the last checksum and the one of the customer's row: to check
all rows would take as long as the rest of the read. The name before tells a customer that has no row from one whose
block was not found: a damaged B-tree page may lead to another block.

The simple version that it must agree with: one key for each period and customer, whose value is the customer's row.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.replica import row
from opentab.replica.cell import exact_sum
from opentab.replica.checksum import CHECKSUM_BYTES, RESIDUE, damaged, sealed
from opentab.replica.name_order import Listed, merge
from opentab.replica.row import Checksums, CustomerRows
from opentab.replica.store import BLOCKS, KEY_BYTES_MAX, Buffer, Change, Snapshot

TABLE = BLOCKS
BLOCK = 128  # customers, when one is cut
BLOCK_MAX = 256
END = b"\xff"  # no name holds it, and all are before it
BETWEEN = b"\0"  # no name holds it
SHAPE = struct.Struct("<II")
SUM = struct.Struct("<I")
END_BYTES = SHAPE.size + CHECKSUM_BYTES

Row = tuple[list[tuple[int, int]], int]  # micros and events of each column, and the latest event time of all


def find(snapshot: Snapshot, period: bytes, name: bytes) -> Row | None:
    """The row of one customer."""
    if len(period) + len(name) > KEY_BYTES_MAX or BETWEEN in name:
        return None  # nobody can have such a name
    found = snapshot.first_block(period + name, prefix=period)
    if found is None:
        # The last block of a period takes any name.
        if snapshot.get("periods", period) is not None:
            raise damaged(f"the customers of {period!r} are not found")
        return None
    key, block = found
    customers, columns, size = _shape(key, block)
    rest = bytes(block[customers * size :])
    sums_at = len(rest) - END_BYTES - CHECKSUM_BYTES * customers
    if sums_at <= 0 or crc32(rest, crc32(key)) != RESIDUE:
        raise damaged(f"the block {key!r} does not match its checksum")
    at = rest.find(BETWEEN + name + BETWEEN, 0, sums_at)
    if at < 0:
        _check_range(key, rest[: rest.index(BETWEEN)], name)
        return None
    index = rest.count(BETWEEN, 0, at)
    (wanted,) = SUM.unpack_from(rest, sums_at + CHECKSUM_BYTES * index)
    if row.checksum_of(block, index * size, row.width(columns)) != wanted:
        raise damaged(f"a row of the block {key!r} does not match its checksum")
    return row.read_row(block, index * size, columns)


def scan(
    snapshot: Snapshot, period: bytes, prefix: bytes = b"", *, after: bytes | None = None
) -> Iterator[tuple[bytes, Row]]:
    """The customers of a period whose names begin with a prefix, in order; `after` leaves out all up to that name."""
    start = prefix if after is None else max(prefix, after)
    for block in _blocks(snapshot, period, start):
        names, rows = block.names(), block.rows()
        for index in range(0 if after is None else bisect_right(names, after), len(names)):
            name = names[index]
            if name.startswith(prefix):
                yield name, row.read_row(rows.words[index].tobytes(), 0, rows.columns)
            elif name > prefix:
                return


def totals(snapshot: Snapshot, period: bytes) -> Iterator[tuple[bytes, int]]:
    """Every customer of a period with the total, in order."""
    for block in _blocks(snapshot, period):
        yield from zip(block.names(), block.rows().totals().tolist(), strict=True)


def sum_of(key: bytes, value: bytes) -> tuple[int, int]:
    """Micros and events of all customers of a block; raises ReplicaDamaged where it is not whole."""
    rows = _Block.read(key, value).rows()
    return exact_sum(rows.micros()), int(rows.events().sum())


def add(change: Change, period: bytes, names: pa.Array, added: CustomerRows) -> tuple[CustomerRows, int]:
    """Add a row to that of each customer. Names are bytes, sorted and different.

    Returns the rows as they are now, and how many customers are new.
    """
    touched = _touched(change, period, Listed(names), added.columns)
    known = _names([block.text for _, block, _ in touched])
    rows, sums = _side_by_side([block for _, block, _ in touched], added.columns)
    merged = merge(known, _ended(names))
    count = len(merged.names)
    if count > len(known):
        rows, old_sums = rows.spread(merged.known_at, count), sums
        sums = np.repeat(row.checksums(CustomerRows.blank(1, rows.columns)), count)
        sums[merged.known_at] = old_sums
    # Rows that are not touched keep their checksums, right or wrong: whoever reads them checks.
    before = rows.at(merged.new_at)
    _check_rows(before, sums[merged.new_at])
    now = row.added(before, added)
    rows.put(merged.new_at, now)
    sums[merged.new_at] = row.checksums(now)
    # A block begins with the first of its rows that were there, or with the first of the new ones before it.
    firsts = np.cumsum([(0, 0), *((block.customers, own) for _, block, own in touched)], axis=0)[:-1]
    bounds = np.minimum(np.append(merged.known_at, count)[firsts[:, 0]], merged.new_at[firsts[:, 1]]).tolist()
    keys = [(key, block.before) for key, block, _ in touched]
    change.put_blocks(list(_cut(period, keys, [*bounds, count], (rows, sums), merged.names)))
    return now, count - len(known)


class _Block(NamedTuple):
    """One block, as it was read."""

    customers: int
    columns: int
    words: memoryview  # of their rows
    text: memoryview  # each name with the byte behind it
    before: bytes  # the last name of the block before it
    sums: memoryview  # the checksum of each row

    @classmethod
    def read(cls, key: bytes, value: Buffer) -> _Block:
        """A block, of which all is checked but the rows."""
        customers, columns, size = _shape(key, value)
        past, sums_at = customers * size, len(value) - END_BYTES - CHECKSUM_BYTES * customers
        view = memoryview(value)
        text = bytes(view[past:sums_at])
        if past >= sums_at or crc32(view[past:], crc32(key)) != RESIDUE:
            raise damaged(f"the block {key!r} does not match its checksum")
        names_at = text.index(BETWEEN) + len(BETWEEN)
        names, before = memoryview(text)[names_at:], text[: names_at - len(BETWEEN)]
        return cls(customers, columns, view[:past], names, before, view[sums_at:-END_BYTES])

    def names(self) -> list[bytes]:
        return bytes(self.text[: -len(BETWEEN)]).split(BETWEEN)

    def rows(self) -> CustomerRows:
        """The rows, checked."""
        rows = CustomerRows.read(self.words, self.columns)
        _check_rows(rows, np.frombuffer(self.sums, np.uint32))
        return rows


def _check_rows(rows: CustomerRows, sums: Checksums) -> None:
    if (row.checksums(rows) != sums).any():
        raise damaged("rows of customers do not match their checksums")


def _shape(key: bytes, block: Buffer) -> tuple[int, int, int]:
    """How many customers and columns a block has, and how many bytes a row has. Not checked."""
    if len(block) < END_BYTES:
        raise damaged(f"the block {key!r} has {len(block)} bytes")
    customers, columns = SHAPE.unpack_from(block, len(block) - END_BYTES)
    return customers, columns, row.WORD_BYTES * row.width(columns)


def _check_range(key: bytes, before: bytes, name: bytes) -> None:
    """Raise ReplicaDamaged unless a name, if there were one, would stand in this block."""
    if before and name <= before:
        raise damaged(f"the block {key!r} is found in place of an earlier one, for {name!r}")


def _blocks(snapshot: Snapshot, period: bytes, start: bytes = b"") -> Iterator[_Block]:
    """The blocks of a period from the one on that a name belongs to: each follows the one before it, up to the last."""
    last: bytes | None = None
    for key, value in snapshot.scan_blocks(period, start=period + start):
        block = _Block.read(key, value)
        if last is None:
            _check_range(key, block.before, start)
        elif block.before != last:
            raise damaged(f"no block of {period!r} stands between {last!r} and {block.before!r}")
        last = key[len(period) :]
        yield block
    if last is not None and last != END:
        raise damaged(f"no block of {period!r} follows {last!r}")


def _touched(change: Change, period: bytes, names: Listed, columns: int) -> list[tuple[bytes, _Block, int]]:
    """The blocks that some names belong to, each with its key and how many of the names."""
    found, at = [], 0
    nothing = memoryview(b"")
    empty = _Block(0, columns, nothing, nothing, b"", nothing)
    first = partial(change.first_block, prefix=period)
    if len(names) and first(period + END) is None and first(period) is not None:
        raise damaged(f"the last block of {period!r} is not found")
    while at < len(names):
        known = first(period + names[at])
        key, block = (known[0], _Block.read(*known)) if known else (period + END, empty)
        _check_range(key, block.before, names[at])
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
    return pc.binary_join_element_wise(names, b"", BETWEEN)


def _side_by_side(blocks: Sequence[_Block], columns: int) -> tuple[CustomerRows, Checksums]:
    """Rows of blocks in one piece, all of one width, and the checksum of each."""
    if any(block.columns != columns for block in blocks):
        parts = [block.rows().with_columns(columns) for block in blocks]
        rows = CustomerRows(np.concatenate([part.words for part in parts]), columns)
        return rows, row.checksums(rows)
    rows = CustomerRows.read(memoryview(bytearray().join([block.words for block in blocks])), columns)
    return rows, np.frombuffer(bytearray().join([block.sums for block in blocks]), np.uint32)


def _cut(
    period: bytes,
    keys: Sequence[tuple[bytes, bytes]],
    bounds: Sequence[int],
    checked: tuple[CustomerRows, Checksums],
    names: pa.Array,
) -> Iterator[tuple[bytes, bytes]]:
    """Blocks to be written; one that has become too large is cut, and its last part keeps the key.

    With each key comes the last name of the block before it.
    """
    table, sums = checked
    past = np.frombuffer(names.buffers()[1], np.int32)  # and not as a list: few of them are needed
    text, words, size = memoryview(names.buffers()[2]), table.words.data.cast("B"), table.words.strides[0]
    for (key, before), (first, end) in zip(keys, pairwise(bounds), strict=True):
        parts = -(-(end - first) // BLOCK) if end - first > BLOCK_MAX else 1
        cuts = [first + (end - first) * part // parts for part in range(parts + 1)]
        for begin, stop in pairwise(cuts):
            own = key if stop == end else period + bytes(text[past[stop - 1] : past[stop] - 1])
            named, shape = text[past[begin] : past[stop]], SHAPE.pack(stop - begin, table.columns)
            rest = b"".join((before, BETWEEN, named, sums[begin:stop].tobytes(), shape))
            yield own, b"".join((words[begin * size : stop * size], sealed(own, rest)))
            before = own[len(period) :]
