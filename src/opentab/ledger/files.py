"""Parquet files of the ledger, written before anyone may see them.

A name carries the run that wrote it and is never used again; a file counts only once a commit names it.
"""

from __future__ import annotations

import secrets

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from opentab.place import Place

ROW_GROUP_ROWS = 131_072
# Neighbours differ little: smaller, and quicker to write than plain numbers.
DELTA_COLUMNS = {"batch", "amount_micros", "event_count", "first_at", "last_at", "revision", "position", "issued_at"}
STATISTICS = ("batch", "day", "customer", "period", "position")


class StagedFile(msgspec.Struct, frozen=True):
    """A file on the disk that a commit may take up."""

    kind: str  # the value of the table's partition column
    path: str  # below the table's root
    rows: int
    bytes: int
    batch_min: int
    batch_max: int
    column: str = "kind"


def stage(
    root: Place, kind: str, table: pa.Table, *, run: str, batches: tuple[int, int], column: str = "kind"
) -> StagedFile:
    """Write a table aside for a later commit; on return it is on the disk."""
    path = f"{column}={kind}/{batches[1]:09d}-{run}-{secrets.token_hex(4)}.parquet"
    with (root / path).create() as file:
        pq.write_table(
            table,
            file,
            compression="lz4",
            use_dictionary=["type", "day", "reason", "period", "kind", "line_period"],
            column_encoding={
                field.name: "DELTA_BINARY_PACKED"
                for field in table.schema
                if field.name in DELTA_COLUMNS and not pa.types.is_decimal(field.type)
            },
            write_statistics=[name for name in STATISTICS if name in table.column_names],
            row_group_size=ROW_GROUP_ROWS,
        )
        size = file.tell()
    return StagedFile(
        kind=kind,
        path=path,
        rows=table.num_rows,
        bytes=size,
        batch_min=batches[0],
        batch_max=batches[1],
        column=column,
    )


def read_back(root: Place, file: StagedFile, columns: list[str]) -> pa.Table:
    """Some columns of a staged file as they lie on the disk."""
    return read_parquet(root / file.path, columns=columns)


def read_parquet(place: Place, columns: list[str] | None = None) -> pa.Table:
    """A file of the ledger, or some of its columns."""
    return pq.read_table(place.inside, columns=columns, partitioning=None, filesystem=place.filesystem)


def new_run() -> str:
    """A name for one run of a program, never used twice."""
    return secrets.token_hex(6)
