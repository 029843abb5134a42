"""Where the ledger's SQL runs: on Spark for the pipeline (`closing/spark_engine.py`), in DuckDB for readers.

Both read the same files through `files.py`, which checks every page, and both take the same texts. So a query is
written in what the two dialects have in common.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from opentab.runtime.permissions import scratch_directory
from opentab.runtime.storage import Place
from opentab.tables.files import LedgerFile, dataset_of

MEMORY_LIMIT = "1GB"  # the rest goes to the disk
CHUNK_ROWS = 1_000_000

# Rows that Spark cuts into ranges of customers, so that all that follows sees each invoice whole without another
# shuffle. To DuckDB the hint is a comment.
CUT = "/*+ repartition_by_range({parts}, customer) */"

# Takes its number and its rows; what it returns goes back to whoever asked.
Task = Callable[[int, Iterable[pa.RecordBatch]], bytes | None]


class Engine(Protocol):
    """Names for the ledger's files, and queries over them."""

    def files(
        self, name: str, root: Place, files: Sequence[LedgerFile], schema: pa.Schema, *,
        columns: Sequence[str] | None = None, where: str = "true",
    ) -> None:  # fmt: skip
        """Let `name` be the rows of some files of a table, or some of their columns."""
        ...

    def table(self, name: str, table: pa.Table) -> None:
        """Let `name` be a small table."""
        ...

    def view(self, name: str, sql: str) -> None:
        """Let `name` be a query."""
        ...

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer to a query that has few rows."""
        ...

    def work(self, sql: str, task: Task, *, parts: int, order: Sequence[str]) -> list[bytes]:
        """Let a task work on the rows of a query, cut into so many ranges of customers, each in order.

        The query itself says where Spark is to cut its rows (CUT).
        """
        ...

    def each(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        """Let so many tasks work, each by its number; the answers of all of them, in order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


# Says what for, for people, and about how many rows will be read.
OpenEngine = Callable[[str, int], Engine]


def connect(*, threads: int | None = None, memory_limit: str | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB that lives in memory and speaks UTC; beyond the limit it goes to the system's scratch space."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.execute("set temp_directory = ?", [str(scratch_directory() / f"duckdb-{secrets.token_hex(6)}")])
    if threads is not None:
        connection.execute(f"set threads = {threads}")
    if memory_limit is not None:
        connection.execute(f"set memory_limit = '{memory_limit}'")
    return connection


class LocalEngine:
    """DuckDB in this process."""

    def __init__(self, *, threads: int | None = None) -> None:
        self.connection = connect(threads=threads, memory_limit=MEMORY_LIMIT)

    def files(
        self, name: str, root: Place, files: Sequence[LedgerFile], schema: pa.Schema, *,
        columns: Sequence[str] | None = None, where: str = "true",
    ) -> None:  # fmt: skip
        self.connection.register(f"{name}_files", dataset_of(root, files, schema))
        self.view(name, f"select {', '.join(columns or schema.names)} from {name}_files where {where}")

    def table(self, name: str, table: pa.Table) -> None:
        self.connection.register(name, table)

    def view(self, name: str, sql: str) -> None:
        self.connection.execute(f"create or replace temp view {name} as {sql}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def work(self, sql: str, task: Task, *, parts: int, order: Sequence[str]) -> list[bytes]:
        rows = self.connection.sql(f"{sql} order by {', '.join(order)}").to_arrow_table()
        customers = pc.unique(rows["customer"]).sort()
        size = max(1, -(-len(customers) // parts))
        ranges = [customers[at : at + size] for at in range(0, len(customers), size)]
        shares = [rows.filter(pc.is_in(rows["customer"], value_set=one)) for one in ranges]
        answers = (task(part, share.to_batches()) for part, share in enumerate(shares))
        return [answer for answer in answers if answer is not None]

    def each(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        return [task(number) for number in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.connection.close()


def open_local(what: str, rows: int) -> LocalEngine:
    """An engine for readers; what they ask is theirs to say."""
    return LocalEngine()
