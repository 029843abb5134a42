"""What a stretch of the journal adds to a replica: keys and cells, ready to be added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from opentab.errors import ReplicaMismatch
from opentab.ledger import balances
from opentab.ledger.billed import OWN_MONTH, PERIOD_OF_MONTH, connect, register
from opentab.ledger.journal import Journal
from opentab.periods import Calendar
from opentab.replica.store import PERIOD_BYTES, Change
from opentab.replica.tops import Tops, found_anew, too_few, touched
from opentab.replica.wide import CELL, Cells, cells, micros_of, sum_micros

MEMORY_LIMIT = "1GB"
CHUNK_ROWS = 200_000
# No customer and no type holds a control character.
SEPARATOR = "\x01"

LINES = f"""
    select {{key}} as key, sum(micros)::decimal(38, 0) as micros, sum(event_count)::bigint as events,
        max(epoch_us(last_at)) as last_us
    from (
        select period, customer, {PERIOD_OF_MONTH} as own, type,
            sum(micros) as micros, sum(event_count) as event_count, max(last_at) as last_at
        from added group by period, customer, own_month, type
    )
    group by 1 order by 1
"""
KEYS = {
    "lines": f"encode(period || customer || '{SEPARATOR}' || own || type)",
    "customers": "encode(period || customer)",
    "types": "encode(own || type)",
    "periods": "encode(period)",
}
ADDED = f"""
    select period, customer, {OWN_MONTH} as own_month, type,
        amount_micros::decimal(38, 0) as micros, event_count, last_at
    from billed
"""
SINCE_THE_START = f"""
    select period, customer, {OWN_MONTH} as own_month, type, sum_micros as micros, event_count, last_at from running
    union all
    select period, customer, {OWN_MONTH}, type, sum_micros, event_count, last_at from {{final}}
"""


@dataclass(frozen=True, slots=True)
class Added:
    """What a fold brought, by table: micros and events."""

    sums: dict[str, tuple[int, int]]
    rows: int


def fold_batches(change: Change, journal: Journal, calendar: Calendar, *, after: int, upto: int) -> Added:
    """Add the batches behind `after`, up to `upto`; each is held against its own record first."""
    with connect(threads=1, memory_limit=MEMORY_LIMIT) as connection:
        register(connection, journal, calendar, after=after, upto=upto)
        check_batches(connection, journal, after=after, upto=upto)
        connection.execute(f"create temp view added as {ADDED}")
        return _fold(change, connection)


def fold_snapshot(change: Change, journal: Journal, calendar: Calendar, snapshot: balances.Snapshot) -> Added:
    """Add all that was billed up to the snapshot's batch, to an empty replica."""
    with balances.running(journal, calendar, snapshot, upto=snapshot.batch, threads=1) as connection:
        final = balances.final_view(connection, journal, calendar, snapshot)
        connection.execute(f"create temp view added as {SINCE_THE_START.format(final=final)}")
        return _fold(change, connection)


def check_batches(connection: duckdb.DuckDBPyConnection, journal: Journal, *, after: int, upto: int) -> None:
    """Stop if a batch's entries are not what its record says."""
    found = {
        batch: (int(micros), events)
        for batch, micros, events in connection.execute(
            "select batch, sum(amount_micros::decimal(38, 0)), sum(event_count)::bigint from entries_since group by 1"
        ).fetchall()
    }
    for record in journal.batches(after=after, upto=upto):
        wanted = (record.amount_micros, record.event_count)
        if found.get(record.batch, (0, 0)) != wanted:
            raise ReplicaMismatch(
                f"batch {record.batch} holds {found.get(record.batch, (0, 0))} micros and events, "
                f"but its record says {wanted}",
                hint="the ledger is damaged: opentab verify says where",
            )


def _fold(change: Change, connection: duckdb.DuckDBPyConnection) -> Added:
    sums = {}
    rows = 0
    for table, key in KEYS.items():
        micros = events = 0
        for chunk in _chunks(connection, LINES.format(key=key)):
            keys = chunk["key"].to_pylist()
            added = cells(*(chunk[name].combine_chunks() for name in ("micros", "events", "last_us")))
            now = change.add(table, keys, added)
            if table == "customers":
                _keep_tops(change, keys, now)
            micros += sum_micros(added)
            events += int(added["events"].sum())
            rows += len(keys)
        sums[table] = (micros, events)
    return Added(sums, rows)


def _keep_tops(change: Change, keys: Sequence[bytes], totals: Cells) -> None:
    """Take new totals into the tops of their periods; the keys are sorted, so a period's stand together."""
    periods = [key[:PERIOD_BYTES] for key in keys]
    first = 0
    for period, group in groupby(periods):
        last = first + sum(1 for _ in group)
        known = change.get("tops", period)
        tops = msgspec.json.decode(known, type=Tops) if known else Tops(members={})
        touched(tops, [key[PERIOD_BYTES:] for key in keys[first:last]], totals[first:last])
        if too_few(tops):
            tops = found_anew(_everyone(change, period))
        change.put("tops", [(period, msgspec.json.encode(tops))])
        first = last


def _everyone(change: Change, period: bytes) -> Iterator[tuple[str, int]]:
    for key, value in change.scan("customers", period):
        yield key[PERIOD_BYTES:].decode(), micros_of(np.frombuffer(value, CELL)[0])


def _chunks(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[pa.Table]:
    for batch in connection.sql(query).to_arrow_reader(CHUNK_ROWS):
        if batch.num_rows:
            yield pa.Table.from_batches([batch])
