"""Parquet files of the ledger, written before anyone may see them.

A name carries the run that wrote it and is never used again; a file counts only once a commit names it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from opentab.disk import sync

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
    root: Path, kind: str, table: pa.Table, *, run: str, batches: tuple[int, int], column: str = "kind"
) -> StagedFile:
    """Write a table aside for a later commit; on return it is on the disk."""
    directory = root / f"{column}={kind}"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{batches[1]:09d}-{run}-{secrets.token_hex(4)}.parquet"
    try:
        with path.open("xb") as file:
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
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    sync(directory)
    return StagedFile(
        kind=kind,
        path=f"{column}={kind}/{path.name}",
        rows=table.num_rows,
        bytes=size,
        batch_min=batches[0],
        batch_max=batches[1],
        column=column,
    )


def read_back(root: Path, file: StagedFile, columns: list[str]) -> pa.Table:
    """Some columns of a staged file as they lie on the disk."""
    return pq.read_table(root / file.path, columns=columns, partitioning=None)


def new_run() -> str:
    """A name for one run of a program, never used twice."""
    return secrets.token_hex(6)
