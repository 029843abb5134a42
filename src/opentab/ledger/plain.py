"""Numbers of a Parquet file that lie there as they are.

They are read where they lie, a few out of many without the rest; and they may be changed for as long as no commit
names the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from opentab.disk import write_at
from opentab.periods import Int64s

GROUP_ROWS_MAX = 16_384  # so many numbers of a row group are one page
COPIED_ROWS_MAX = 1_000_000  # up to so many it is quicker to copy all of them than to look one by one
_BYTES = 8


class Column(Protocol):
    """Numbers in a known order, of which some are asked for: an array, or one that stays on the disk."""

    def __len__(self) -> int: ...

    def take(self, rows: Int64s, /) -> Int64s: ...

    def searchsorted(self, words: Int64s, /) -> Int64s: ...


class PlainColumn:
    """A column of 64 bits of a file that is mapped."""

    def __init__(self, mapped: npt.NDArray[np.uint8], first_rows: Int64s, rows: int, first_bytes: Int64s) -> None:
        self._mapped = mapped
        self._first_rows = first_rows  # of each row group
        self._rows = rows
        # Numbers begin anywhere: to numpy eight bytes are a piece of memory, which it copies as it is.
        self._pieces: npt.NDArray[Any] = np.ndarray((len(mapped) - _BYTES + 1,), "V8", buffer=mapped, strides=(1,))
        self._row_0 = first_bytes - _BYTES * first_rows  # where it would lie, if its row group began with it
        self._firsts = self.take(first_rows)

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: Int64s, /) -> Int64s:
        """The numbers in these rows."""
        group = self._first_rows.searchsorted(rows, "right") - 1
        found: Int64s = self._pieces[self._row_0[group] + _BYTES * rows].view("<i8")
        return found

    def searchsorted(self, words: Int64s, /) -> Int64s:
        """Of a column that is in order, the first row of each that is not below a word."""
        if self._rows <= COPIED_ROWS_MAX:
            return self.all().searchsorted(words)
        ends = np.append(self._first_rows[1:], self._rows)
        group = np.maximum(self._firsts.searchsorted(words) - 1, 0)
        low, high = self._first_rows[group], ends[group]
        while (open_ := np.flatnonzero(low < high)).size:
            middle = (low[open_] + high[open_]) // 2
            below = self.take(middle) < words[open_]
            low[open_] = np.where(below, middle + 1, low[open_])
            high[open_] = np.where(below, high[open_], middle)
        return low

    def all(self) -> Int64s:
        """Every number."""
        groups = range(len(self._first_rows))
        return np.concatenate([self.group(number) for number in groups]) if groups else np.zeros(0, np.int64)

    def group(self, number: int) -> Int64s:
        """The numbers of a row group, where they lie."""
        first_row = int(self._first_rows[number])
        past_row = int(self._first_rows[number + 1]) if number + 1 < len(self._first_rows) else self._rows
        first, past = (int(self._row_0[number]) + _BYTES * row for row in (first_row, past_row))
        return self._mapped[first:past].view("<i8")


def plain_columns(path: Path, names: Sequence[str]) -> list[PlainColumn] | None:
    """Columns of a file on the disk, mapped; None where one of them does not lie there plainly."""
    with pq.ParquetFile(path) as file:
        layouts = _layouts(file.metadata, names)
        if layouts is None:
            return None
        mapped = np.asarray(np.memmap(path, np.uint8, mode="r"))
        columns = [PlainColumn(mapped, *layout) for layout in layouts]
        return columns if _agree(file, names, columns) else None


def overwrite(path: Path, column: str, rows: Int64s, *, before: Int64s, after: int) -> bool:
    """Change some values of a column of 64 bits; on return they are durable.

    False, and nothing is changed, where the values before are not found in their places: the column must lie there
    plainly and have no statistics.
    """
    layouts = _layouts(pq.read_metadata(path), [column], statistics=False)
    if layouts is None:
        return False
    ((first_rows, _, first_bytes),) = layouts
    group = first_rows.searchsorted(rows, "right") - 1
    places = first_bytes[group] + _BYTES * (rows - first_rows[group])
    with path.open("r+b") as file:
        found = b"".join(os.pread(file.fileno(), _BYTES, place) for place in places.tolist())
        if found != before.astype("<i8").tobytes():
            return False
        for place in places.tolist():
            write_at(file.fileno(), place, np.int64(after).tobytes())
        os.fsync(file.fileno())
    return True


def _layouts(
    metadata: pq.FileMetaData, names: Sequence[str], *, statistics: bool = True
) -> list[tuple[Int64s, int, Int64s]] | None:
    """Of each column the first row of each row group, how many rows there are, and where each group's numbers begin."""
    at = [metadata.schema.names.index(name) for name in names]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    counts = np.array([group.num_rows for group in groups], np.int64)
    if (counts > GROUP_ROWS_MAX).any():
        return None
    layouts = []
    for column in at:
        chunks = [group.column(column) for group in groups]
        if not all(_is_plain(chunk) and (statistics or chunk.statistics is None) for chunk in chunks):
            return None
        # The values are the end of the page, whatever stands before them.
        ends = np.array([chunk.data_page_offset + chunk.total_compressed_size for chunk in chunks], np.int64)
        layouts.append((np.cumsum(counts) - counts, metadata.num_rows, ends - _BYTES * counts))
    return layouts


def _agree(file: pq.ParquetFile, names: Sequence[str], columns: Sequence[PlainColumn]) -> bool:
    """Whether the largest row group says the same to one who reads it by the book: no other has more pages."""
    counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    if not counts:
        return True
    largest = counts.index(max(counts))
    table = file.read_row_group(largest, list(names), use_threads=False)
    pairs = zip(names, columns, strict=True)
    return all(np.array_equal(column.group(largest), table[name].to_numpy()) for name, column in pairs)


def _is_plain(chunk: pq.ColumnChunkMetaData) -> bool:
    return (
        chunk.physical_type == "INT64"
        and chunk.compression == "UNCOMPRESSED"
        and not chunk.has_dictionary_page
        and set(chunk.encodings) <= {"PLAIN", "RLE"}  # the second is of levels, if there are any
    )
