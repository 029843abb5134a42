"""Rows of Python as tables that DuckDB reads, and DuckDB's rows one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa

FETCH_ROWS = 50_000


def to_table(rows: Iterable[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """A table of rows in the order of the schema's columns."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, item.type) for column, item in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def fetched(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """The rows of what was executed, some in memory at a time."""
    while rows := cursor.fetchmany(FETCH_ROWS):
        yield from rows
