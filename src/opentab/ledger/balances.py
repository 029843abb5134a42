"""The balances: all running totals at a batch, so that readers need not add up the whole journal.

A snapshot holds the periods that are not final: what is final never changes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from opentab import crash
from opentab.ledger.billed import connect, register, status_of
from opentab.ledger.files import stage
from opentab.ledger.journal import Journal
from opentab.ledger.table import (
    TABLE_CONFIGURATION,
    add_action,
    check_version,
    create_table,
    look_at,
    open_table,
    sweep,
    write_actions,
)
from opentab.ledger.trouble import unreadable, unwritable
from opentab.periods import Calendar
from opentab.place import Place
from opentab.records import BALANCE

APP = "opentab-balances"
CHUNK_ROWS = 1_000_000
MEMORY_LIMIT = "1GB"  # the rest goes to the disk

RUNNING = """
    select period, day, customer, type, sum(micros)::decimal(38, 0) as sum_micros,
           sum(event_count)::bigint as event_count, max(last_at) as last_at
    from (
        select period, day, customer, type, sum_micros as micros, event_count, last_at from snapshot
        union all
        select period, day, customer, type, amount_micros::decimal(38, 0), event_count, last_at from billed
    )
    group by period, day, customer, type
"""


@dataclass(frozen=True)
class Snapshot:
    """All balances that were not final at a batch."""

    batch: int
    rows: ds.Dataset
    run: str = ""  # of the batch it was drawn at

    def belongs_to(self, journal: Journal) -> bool:
        """Whether the journal holds the very batch that the snapshot was drawn at.

        A ledger restored to an earlier batch may number other batches alike.
        """
        if self.batch == 0:
            return True
        return self.batch <= journal.position and self.run == journal.batches(self.batch - 1, self.batch)[0].run


def empty() -> Snapshot:
    """The balances before the first batch."""
    return Snapshot(0, ds.dataset(BALANCE.empty_table()))


def latest(ledger: Place) -> Snapshot:
    """The newest snapshot; at batch 0 and empty where none was written."""
    root = ledger / "balances"
    try:
        return look_at(root, partial(_snapshot, root))
    except TableNotFoundError:
        return empty()
    except (DeltaError, OSError) as error:
        raise unreadable(root, error) from error


def _snapshot(root: Place, table: DeltaTable) -> Snapshot:
    check_version(root, table.metadata().configuration)
    batch = table.transaction_version(APP) or 0
    names = sorted(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())
    if not names:
        return Snapshot(batch, ds.dataset(BALANCE.empty_table()))
    files = [(root / name).inside for name in names]
    rows = ds.dataset(files, schema=BALANCE, format="parquet", partitioning=None, filesystem=root.filesystem)
    return Snapshot(batch, rows, run=names[0].rpartition("/")[2].split("-")[1])


def running(
    journal: Journal, calendar: Calendar, snapshot: Snapshot, *, upto: int, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection with the view `running`: the balances at batch `upto`, less what the snapshot left out."""
    connection = connect(threads=threads, memory_limit=MEMORY_LIMIT)
    register(connection, journal, calendar, after=snapshot.batch, upto=upto)
    connection.register("snapshot", snapshot.rows)
    connection.execute(f"create or replace temp view running as {RUNNING}")
    return connection


def final_view(
    connection: duckdb.DuckDBPyConnection,
    journal: Journal,
    calendar: Calendar,
    snapshot: Snapshot,
    *,
    period: str | None = None,
    customer: str | None = None,
) -> str:
    """Name a view of the entries billed in periods that were final at the snapshot."""
    nothing = "(select * from running where false)"
    if snapshot.batch == 0:
        return nothing
    at_snapshot = journal.batches(after=snapshot.batch - 1, upto=snapshot.batch)[0]
    if period is not None and status_of(period, at_snapshot, calendar) != "final":
        return nothing
    with connect() as older:
        register(older, journal, calendar, after=0, upto=snapshot.batch)
        periods = [p for (p,) in older.execute("select distinct period from billed").fetchall()]
        final = [p for p in periods if status_of(p, at_snapshot, calendar) == "final"]
        if not final:
            return nothing
        rows = older.sql(
            """
            select period, customer, day, type, sum(amount_micros::decimal(38, 0)) as sum_micros,
                   sum(event_count)::bigint as event_count, max(last_at) as last_at
            from billed where list_contains($final, period) and ($customer is null or customer = $customer)
            group by period, customer, day, type
            """,
            params={"final": final, "customer": customer},
        ).to_arrow_table()
    connection.register("final_billed", rows)
    return "final_billed"


def write_snapshot(journal: Journal, calendar: Calendar) -> int | None:
    """Write the balances at the journal's position. Returns that batch, or None if nothing was to do."""
    root = journal.root.parent / "balances"
    before = latest(journal.root.parent)
    upto = journal.position
    if upto == 0 or (before.batch >= upto and before.belongs_to(journal)):
        return None
    if not before.belongs_to(journal):
        before = empty()
    record = journal.batches(after=upto - 1, upto=upto)[0]
    connection = running(journal, calendar, before, upto=upto, threads=1)
    periods = [p for (p,) in connection.execute("select distinct period from running").fetchall()]
    keep = [period for period in periods if status_of(period, record, calendar) != "final"]
    crash.moment("snapshot")
    try:
        table = _create(root)
        reader = connection.sql(
            f"select {upto}::bigint as batch, * from running where list_contains(?, period)"
            " order by customer, day, type",
            params=[keep],
        ).to_arrow_reader(CHUNK_ROWS)
        # There is always a file: its name tells which batch the snapshot was drawn at.
        chunks = _tables(reader) if keep else iter([BALANCE.empty_table()])
        files = [stage(root, "balance", chunk, run=record.run, batches=(upto, upto)) for chunk in chunks]
        if (table.transaction_version(APP) or 0) > upto and latest(journal.root.parent).belongs_to(journal):
            return None
        write_actions(table, [add_action(file, new=True) for file in files], (APP, upto), mode="overwrite")
        crash.moment("snapshotted")
        sweep(open_table(root))
    except CommitFailedError as error:
        if "Concurrent transaction" in str(error):
            return None  # someone else was faster
        raise unwritable(root, error) from error
    except (DeltaError, OSError) as error:
        raise unwritable(root, error) from error
    return upto


def _create(root: Place) -> DeltaTable:
    fields = [pa.field("kind", pa.string()), *(field.with_nullable(True) for field in BALANCE)]
    return create_table(root, pa.schema(fields), configuration=TABLE_CONFIGURATION)


def _tables(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    for batch in reader:
        if batch.num_rows:
            yield pa.Table.from_batches([batch]).cast(BALANCE)
