"""Which period an entry is billed in, decided from the journal alone, in one place.

An entry of batch N in period P is usage of P while P was not final after batch N-1, that is while the
watermark had not passed the end of P plus the allowed lateness. Beyond that it is an adjustment, billed
in the period that contains W(N-1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from opentab.core.periods import (
    DAY_MAX,
    DAY_MIN,
    Calendar,
    Int64s,
    Period,
    month_number,
    period_of_day,
    period_of_month,
    previous_period,
)
from opentab.core.records import ENTRY, BatchRecord
from opentab.ledger.engine import Engine
from opentab.ledger.journal import Journal
from opentab.ledger.sums import BatchSums, check_batches

# W(0): before the first batch nothing is late.
BEFORE_ALL_US = -(2**62)

OWN_PERIOD = "printf('%04d-%02d', year(day), month(day))"
# The same as a number, many times faster.
OWN_MONTH = "(year(day) * 12 + month(day) - 1)"
PERIOD_OF_MONTH = (
    "lpad(cast(cast(floor(own_month / 12) as int) as string), 4, '0') || '-' || "
    "lpad(cast(own_month % 12 + 1 as string), 2, '0')"
)

BILLED = f"""
    select {{columns}}, case when p.end_us <= b.final_before_us then b.watermark_period else p.period end as period
    from {{entries}} e
    join batch_facts b on b.batch = e.batch
    join period_ends p on p.own_month = {OWN_MONTH.replace("day", "e.day")}
"""
DAYS = """
    select batch, day, count(*) as row_count, cast(sum(event_count) as bigint) as event_count,
        sum(cast(amount_micros as decimal(38, 0))) as micros
    from entries_since group by batch, day
"""
ENTRY_COLUMNS = "e.batch, e.day, e.customer, e.type, e.amount_micros, e.event_count, e.last_at"


def register(
    engine: Engine, journal: Journal, calendar: Calendar, *, after: int, upto: int
) -> dict[Period, tuple[int, int]]:
    """Let `billed` be the entries with the period that they are billed in; their events and micros by period.

    All entries are read for it once, and each batch must come to what its record says.
    """
    before = journal.batches(after=after - 1, upto=upto) if after else journal.batches(upto=upto)
    files = journal.entry_files(after=after, upto=upto)
    engine.files("entries_since", journal.root, files, ENTRY, where=f"batch > {after} and batch <= {upto}")
    days = engine.rows(DAYS)
    check_batches(_sums_of(days), [record for record in before if record.batch > after])
    facts = batch_facts(before, calendar)
    own_months = sorted({day.year * 12 + day.month - 1 for _, day, *_ in days})
    engine.table("batch_facts", facts)
    engine.table("period_ends", period_ends(own_months, calendar))
    engine.view("billed", BILLED.format(entries="entries_since", columns=ENTRY_COLUMNS))
    sums: dict[Period, tuple[int, int]] = {}
    if days:
        months = np.array([day.year * 12 + day.month - 1 for _, day, *_ in days], np.int64)
        batches = np.array([batch for batch, *_ in days], np.int64)
        for month, (*_, events, micros) in zip(billed_months(months, batches, before, calendar), days, strict=True):
            had = sums.get(period := period_of_month(int(month)), (0, 0))
            sums[period] = (had[0] + events, had[1] + int(micros))
    return sums


def _sums_of(days: Iterable[tuple[Any, ...]]) -> dict[int, BatchSums]:
    sums: dict[int, BatchSums] = {}
    for batch, _, rows, events, micros in days:
        had = sums.get(batch, BatchSums(0, 0, 0))
        sums[batch] = BatchSums(had.rows + rows, had.event_count + events, had.sum_micros + int(micros))
    return sums


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
