"""What is billed where: each batch's entries of a month in that month, or in another as adjustments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from opentab.audit.days import period_of_month
from opentab.audit.lateness import Mark, billed_month
from opentab.audit.recompute import days_in
from opentab.audit.rows import to_table
from opentab.core.records import BatchRecord

OWN_MONTH = "year(day) * 12 + month(day) - 1"
SCHEMA_BILLED = pa.schema(
    [("batch", pa.int64()), ("own_month", pa.int64()), ("own_period", pa.string()), ("period", pa.string())]
)


@dataclass(frozen=True, slots=True)
class Billed:
    """The month that a batch's entries of a month are billed in."""

    batch: int
    own_month: int
    month: int


def billed_table(billed: Iterable[Billed]) -> pa.Table:
    """The same for DuckDB: batch, own_month, own_period, period."""
    rows = ((b.batch, b.own_month, period_of_month(b.own_month), period_of_month(b.month)) for b in billed)
    return to_table(rows, SCHEMA_BILLED)


def bill(
    con: duckdb.DuckDBPyConnection,
    batches: Sequence[BatchRecord],
    marks: Mapping[int, Mark],
    *,
    entries: str,
    name: str,
) -> list[Billed]:
    """Make the table `name` (period, customer, type, own_period, amount_micros, events) of some entries."""
    rules = {record.batch: record.rules for record in batches}
    rows = con.execute(f"SELECT DISTINCT batch, {OWN_MONTH} FROM {entries} WHERE day IS NOT NULL").fetchall()
    billed = []
    for batch, own_month in rows:
        month = own_month
        if batch in rules:
            days = days_in(rules[batch].zone)
            month = billed_month(own_month, before=marks.get(batch - 1, Mark()), days=days)
        billed.append(Billed(batch, own_month, month))
    con.register("billed", billed_table(billed))
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE {name} AS
        SELECT period, customer, type, own_period,
            sum(amount_micros) AS amount_micros, CAST(sum(event_count) AS BIGINT) AS events
        FROM (SELECT *, {OWN_MONTH} AS own_month FROM {entries}) e
        JOIN billed USING (batch, own_month)
        GROUP BY period, customer, type, own_period
        """
    )
    con.unregister("billed")
    return billed
