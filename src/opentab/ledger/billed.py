"""Which period an entry is billed in, decided from the journal alone, in one place.

An entry of batch N in period P is usage of P while W(N-1) has not passed the end of P plus the allowed
lateness. Beyond that it is an adjustment, billed in the period that contains W(N-1).
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from opentab.ledger.journal import Journal
from opentab.periods import Calendar, period_of_day
from opentab.records import BatchRecord

# W(0): before the first batch nothing is late.
BEFORE_ALL_US = -(2**62)

OWN_PERIOD = "printf('%04d-%02d', year(day), month(day))"

BILLED = f"""
    select e.batch, e.day, e.customer, e.type, e.amount_micros, e.event_count, e.last_at,
           case when b.watermark_before_us >= p.end_us + b.allowed_lateness_us
                then b.watermark_period else p.period end as period
    from {{entries}} e
    join batch_facts b on b.batch = e.batch
    join period_ends p on p.period = {OWN_PERIOD.replace("day", "e.day")}
"""


def connect(*, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB that lives in memory and speaks UTC."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    if threads is not None:
        connection.execute(f"set threads = {threads}")
    return connection


def register(
    connection: duckdb.DuckDBPyConnection, journal: Journal, calendar: Calendar, *, after: int, upto: int
) -> None:
    """Give the connection the view `billed`: entries with the period that they are billed in."""
    before = journal.batches(after=after - 1, upto=upto) if after else journal.batches(upto=upto)
    connection.register("entries_since", journal.entries(after=after, upto=upto))
    connection.register("batch_facts", batch_facts(before, calendar))
    days = connection.execute(f"select distinct {OWN_PERIOD} from entries_since").fetchall()
    ends = {
        "period": [period for (period,) in days],
        "end_us": [calendar.end_us(period) for (period,) in days],
    }
    connection.register(
        "period_ends", pa.table(ends, schema=pa.schema([("period", pa.string()), ("end_us", pa.int64())]))
    )
    connection.execute(f"create or replace temp view billed as {BILLED.format(entries='entries_since')}")


def batch_facts(records: Sequence[BatchRecord], calendar: Calendar) -> pa.Table:
    """For each batch N: W(N-1), the period that contains it, and the lateness that was allowed."""
    watermarks = [BEFORE_ALL_US if r.watermark_us is None else r.watermark_us for r in records]
    if not records or records[0].batch == 1:
        facts, before = list(records), [BEFORE_ALL_US, *watermarks[:-1]]
    else:
        facts, before = list(records[1:]), watermarks[:-1]
    known = np.array(before[: len(facts)], np.int64)
    days = calendar.days_of(np.where(known == BEFORE_ALL_US, 0, known))
    names = {int(day): period_of_day(int(day)) for day in np.unique(days)}
    return pa.table(
        {
            "batch": pa.array([r.batch for r in facts], pa.int64()),
            "watermark_before_us": pa.array(known),
            "watermark_period": pa.array([names[int(day)] for day in days], pa.string()),
            "allowed_lateness_us": pa.array([r.rules.allowed_lateness_us for r in facts], pa.int64()),
        }
    )


def status_of(period: str, record: BatchRecord | None, calendar: Calendar) -> str:
    """open, closed or final: where the watermark stands against the period's end."""
    if record is None or record.watermark_us is None or record.watermark_us < calendar.end_us(period):
        return "open"
    final_us = calendar.end_us(period) + record.rules.allowed_lateness_us
    return "final" if record.watermark_us >= final_us else "closed"
