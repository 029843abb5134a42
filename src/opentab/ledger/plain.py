"""Numbers of a Parquet file that lie there as they are, and may be changed for as long as no commit names the file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from opentab.periods import Int64s

_BYTES = 8


def overwrite(path: Path, column: str, rows: Int64s, *, before: Int64s, after: int) -> bool:
    """Change some values of a column of 64 bits; on return they are durable.

    False, and nothing is changed, where the values before are not found in their places: the column must be plain,
    not compressed, without statistics, and of each row group in one page.
    """
    metadata = pq.read_metadata(path)
    at = metadata.schema.names.index(column)
    changed = []
    with path.open("r+b") as file:
        first = 0
        for number in range(metadata.num_row_groups):
            count, chunk = metadata.row_group(number).num_rows, metadata.row_group(number).column(at)
            here = (rows >= first) & (rows < first + count)
            mine = rows[here] - first
            first += count
            if not len(mine):
                continue
            # The values are the end of the page, whatever stands before them.
            begin = chunk.data_page_offset + chunk.total_compressed_size - _BYTES * count
            if chunk.compression != "UNCOMPRESSED" or chunk.has_dictionary_page or chunk.statistics is not None:
                return False
            file.seek(begin)
            values = np.frombuffer(file.read(_BYTES * count), np.int64).copy()
            if (values[mine] != before[here]).any():
                return False
            values[mine] = after
            changed.append((begin, values))
        for begin, values in changed:
            file.seek(begin)
            file.write(values.data)
        file.flush()
        os.fsync(file.fileno())
    return True
