"""Numbers of a Parquet file that lie there as they are, and may be changed for as long as no commit names the file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from opentab.disk import write_at
from opentab.periods import Int64s

_BYTES = 8


def overwrite(path: Path, column: str, rows: Int64s, *, before: Int64s, after: int) -> bool:
    """Change some values of a column of 64 bits; on return they are durable.

    False, and nothing is changed, where the values before are not found in their places: the column must be plain,
    not compressed, without statistics, and of each row group in one page.
    """
    metadata = pq.read_metadata(path)
    at = metadata.schema.names.index(column)
    places = np.zeros(len(rows), np.int64)
    first = 0
    for number in range(metadata.num_row_groups):
        count, chunk = metadata.row_group(number).num_rows, metadata.row_group(number).column(at)
        mine = (rows >= first) & (rows < first + count)
        is_plain = chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page and chunk.statistics is None
        if mine.any() and not is_plain:
            return False
        # The values are the end of the page, whatever stands before them.
        first += count
        places[mine] = chunk.data_page_offset + chunk.total_compressed_size - _BYTES * (first - rows[mine])
    with path.open("r+b") as file:
        found = b"".join(os.pread(file.fileno(), _BYTES, place) for place in places.tolist())
        if found != before.astype("<i8").tobytes():
            return False
        for place in places.tolist():
            write_at(file.fileno(), place, np.int64(after).tobytes())
        os.fsync(file.fileno())
    return True
