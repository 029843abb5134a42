"""Parquet files of the ledger, written before anyone may see them.

A name carries the run that wrote it and is never used again; a file counts only once a commit names it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from opentab.place import Place

ROW_GROUP_ROWS = 131_072
# Of these a single row is asked for, and it costs what its row group does.
ROW_GROUP_ROWS_OF = {"batch": 1_024, "rejection": 4_096}
# Neighbours differ little: smaller, and quicker to write than plain numbers.
DELTA_COLUMNS = {
    "batch", "amount_micros", "event_count", "first_at", "last_at", "revision", "position", "issued_at", "byte",
    "number",
}  # fmt: skip
DICTIONARY_COLUMNS = {"type", "day", "reason", "period", "kind", "line_period", "partition", "arrived_us"}
HASHES = {"key_high", "key_low", "payload"}
STATISTICS = ("batch", "day", "customer", "period", "position", "key_high", "arrived_us")
NOT_TOLD_OF = {"entry": {"customer"}}  # its files have customers of all names, so the first and the last tell nothing


class StagedFile(msgspec.Struct, frozen=True):
    """A file on the disk that a commit may take up."""

    kind: str  # the value of the table's partition column
    path: str  # below the table's root
    rows: int
    bytes: int
    batch_min: int
    batch_max: int
    column: str = "kind"


class StagedWriter:
    """Writes a file aside, table by table; `finish` says what was written."""

    def __init__(self, file: Any, schema: pa.Schema, staged: StagedFile, row_group_rows: int) -> None:
        self._file = file
        self._staged = staged
        self._row_group_rows = row_group_rows
        self._rows = 0
        differences = {f.name for f in schema if f.name in DELTA_COLUMNS and not pa.types.is_decimal(f.type)}
        dense = differences | HASHES  # nothing makes them smaller
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression={name: "none" if name in dense else "lz4" for name in schema.names},
            use_dictionary=[name for name in schema.names if name in DICTIONARY_COLUMNS],
            column_encoding=dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
            write_statistics=[
                name for name in STATISTICS if name in schema.names and name not in NOT_TOLD_OF.get(staged.kind, ())
            ],
            store_schema=False,  # a dictionary is our way to write texts, and none of a reader's business
        )

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        self._writer.write_table(table, row_group_size=self._row_group_rows)
        self._rows += table.num_rows

    def finish(self) -> StagedFile:
        """The file as a commit may take it up."""
        self._writer.close()
        return msgspec.structs.replace(self._staged, rows=self._rows, bytes=self._file.tell())


@contextmanager
def staged_writer(
    root: Place, kind: str, schema: pa.Schema, *, run: str, batches: tuple[int, int], column: str = "kind",
    row_group_rows: int = ROW_GROUP_ROWS,
) -> Iterator[StagedWriter]:  # fmt: skip
    """Write a file aside for a later commit, table by table; in the end it is on the disk."""
    path = f"{column}={kind}/{batches[1]:09d}-{run}-{secrets.token_hex(4)}.parquet"
    with (root / path).create() as file:
        yield StagedWriter(file, schema, StagedFile(kind, path, 0, 0, *batches, column), row_group_rows)


def stage(
    root: Place, kind: str, table: pa.Table, *, run: str, batches: tuple[int, int], column: str = "kind"
) -> StagedFile:
    """Write a table aside for a later commit; on return it is on the disk."""
    row_group_rows = ROW_GROUP_ROWS_OF.get(kind, ROW_GROUP_ROWS)
    with staged_writer(
        root, kind, table.schema, run=run, batches=batches, column=column, row_group_rows=row_group_rows
    ) as writer:
        writer.write(table)
        return writer.finish()


def read_back(root: Place, file: StagedFile, columns: list[str]) -> pa.Table:
    """Some columns of a staged file as they lie on the disk."""
    place = root / file.path
    with pq.ParquetFile(place.inside, filesystem=place.filesystem) as parquet:
        return parquet.read(columns, use_threads=False)


def read_parquet(place: Place, columns: list[str] | None = None) -> pa.Table:
    """A file of the ledger, or some of its columns."""
    return pq.read_table(place.inside, columns=columns, partitioning=None, filesystem=place.filesystem)


def new_run() -> str:
    """A name for one run of a program, never used twice."""
    return secrets.token_hex(6)
