"""Which period an entry is billed in, decided from the journal alone, in one place.

An entry of batch N in period P is usage of P while P was not final after batch N-1, that is while the
watermark had not passed the end of P plus the allowed lateness. Beyond that it is an adjustment, billed
in the period that contains W(N-1).
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from opentab.ledger.journal import Journal
from opentab.ledger.sums import BatchSums, check_batches
from opentab.periods import (
    DAY_MAX,
    DAY_MIN,
    Calendar,
    Int64s,
    month_number,
    period_of_day,
    period_of_month,
    previous_period,
)
from opentab.records import BatchRecord

# W(0): before the first batch nothing is late.
BEFORE_ALL_US = -(2**62)

OWN_PERIOD = "printf('%04d-%02d', year(day), month(day))"
# The same as a number, many times faster.
OWN_MONTH = "(year(day) * 12 + month(day) - 1)"
PERIOD_OF_MONTH = "printf('%04d-%02d', own_month // 12, own_month % 12 + 1)"

BILLED = f"""
    select {{columns}}, case when p.end_us <= b.final_before_us then b.watermark_period else p.period end as period
    from {{entries}} e
    join batch_facts b on b.batch = e.batch
    join period_ends p on p.own_month = {OWN_MONTH.replace("day", "e.day")}
"""
DAYS = """
    select batch, day, count(*) as rows, sum(event_count)::bigint as event_count, sum(amount_micros) as micros
    from entries_since group by batch, day
"""
ENTRY_COLUMNS = "e.batch, e.day, e.customer, e.type, e.amount_micros, e.event_count, e.last_at"


def connect(*, threads: int | None = None, memory_limit: str | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB that lives in memory and speaks UTC; beyond the limit it goes to the system's scratch space."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.execute("set temp_directory = ?", [str(Path(tempfile.gettempdir()) / f"opentab-{secrets.token_hex(6)}")])
    if threads is not None:
        connection.execute(f"set threads = {threads}")
    if memory_limit is not None:
        connection.execute(f"set memory_limit = '{memory_limit}'")
    return connection


def register(
    connection: duckdb.DuckDBPyConnection, journal: Journal, calendar: Calendar, *, after: int, upto: int
) -> None:
    """Give the connection the view `billed`: entries with the period that they are billed in.

    And the view `billed_days`: the same for the days of each batch, which are few. All entries are read for it, and
    each batch must come to what its record says.
    """
    before = journal.batches(after=after - 1, upto=upto) if after else journal.batches(upto=upto)
    connection.register("entries_since", journal.entries(after=after, upto=upto))
    connection.register("batch_facts", batch_facts(before, calendar))
    connection.execute(f"create or replace temp table days as {DAYS}")
    sums = connection.execute(
        "select batch, sum(rows)::bigint, sum(event_count)::bigint, sum(micros) from days group by batch"
    ).fetchall()
    found = {batch: BatchSums(rows, events, int(micros)) for batch, rows, events, micros in sums}
    check_batches(found, [record for record in before if record.batch > after])
    months = connection.execute(f"select distinct {OWN_MONTH} from days").fetchall()
    connection.register("period_ends", period_ends([month for (month,) in months], calendar))
    for name, entries, columns in (
        ("billed", "entries_since", ENTRY_COLUMNS),
        ("billed_days", "days", "e.batch, e.day"),
    ):
        query = BILLED.format(entries=entries, columns=columns)
        connection.execute(f"create or replace temp view {name} as {query}")


def period_ends(own_months: Sequence[int], calendar: Calendar) -> pa.Table:
    """For months as OWN_MONTH numbers them: their name and the first instant after them."""
    names = [period_of_month(month) for month in own_months]
    return pa.table(
        {
            "own_month": pa.array(own_months, pa.int64()),
            "period": pa.array(names, pa.string()),
            "end_us": pa.array([calendar.end_us(name) for name in names], pa.int64()),
        }
    )


def batch_facts(records: Sequence[BatchRecord], calendar: Calendar) -> pa.Table:
    """For each batch N: which periods were final after N-1, and the period that contains W(N-1)."""
    before: list[BatchRecord | None] = [None, *records[:-1]]
    facts = list(records)
    if records and records[0].batch > 1:
        before, facts = before[1:], facts[1:]
    final_us = np.array([_or_never(r.final_us if r else None) for r in before[: len(facts)]], np.int64)
    watermark_us = np.array([_or_never(r.watermark_us if r else None) for r in before[: len(facts)]], np.int64)
    days = np.clip(calendar.days_of(np.where(watermark_us == BEFORE_ALL_US, 0, watermark_us)), DAY_MIN, DAY_MAX)
    names = {int(day): period_of_day(int(day)) for day in np.unique(days)}
    return pa.table(
        {
            "batch": pa.array([r.batch for r in facts], pa.int64()),
            "final_before_us": pa.array(final_us),
            "watermark_period": pa.array([names[int(day)] for day in days], pa.string()),
        }
    )


def billed_months(own_months: Int64s, batches: Int64s, records: Sequence[BatchRecord], calendar: Calendar) -> Int64s:
    """The same decision for columns: the month that each entry is billed in.

    The records reach from the batch before the first of `batches` to the last one, without a gap.
    """
    if len(own_months) == 0:
        return own_months
    facts = batch_facts(records, calendar)
    first = facts["batch"][0].as_py()
    final_us = facts["final_before_us"].to_numpy()
    if calendar.end_us(period_of_month(int(own_months.min()))) > final_us.max():
        return own_months
    final_before_us = final_us[batches - first]
    known, at = different(own_months)
    ends_us = np.array([calendar.end_us(period_of_month(int(month))) for month in known], np.int64)
    is_final = ends_us[at] <= final_before_us
    if not is_final.any():
        return own_months
    watermark_months = np.array([month_number(name) for name in facts["watermark_period"].to_pylist()], np.int64)
    return np.where(is_final, watermark_months[batches - first], own_months)


def months_of_days(days: Int64s) -> Int64s:
    """The months of days counted from 1970-01-01, as OWN_MONTH numbers them."""
    if len(days) == 0:
        return days
    few, at = different(days)
    months: Int64s = few.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) + 1970 * 12
    return months[at]


def different(numbers: Int64s) -> tuple[Int64s, Int64s]:
    """The different ones of many days or months in order, and for each its place among them."""
    low, past = int(numbers.min()), int(numbers.max()) + 1
    there = np.zeros(past - low, np.bool_)
    at = numbers - low
    there[at] = True
    present = np.flatnonzero(there)
    return present + low, at if len(present) == len(there) else (np.cumsum(there) - 1)[at]


def _or_never(us: int | None) -> int:
    return BEFORE_ALL_US if us is None else us


def status_of(period: str, record: BatchRecord | None, calendar: Calendar) -> str:
    """open, closed or final: where the watermark stands against the period's end."""
    if record is None or record.watermark_us is None or record.watermark_us < calendar.end_us(period):
        return "open"
    return "final" if record.final_us is not None and record.final_us >= calendar.end_us(period) else "closed"


def last_final_period(record: BatchRecord, calendar: Calendar) -> str | None:
    """The last period that was final after a batch: it and all before it never change again."""
    if record.final_us is None:
        return None
    return previous_period(calendar.period_of(record.final_us))
