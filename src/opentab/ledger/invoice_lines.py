"""From what a customer used to what the invoice says: the pure heart of a closing.

`lines` is what the journal says now of the customers and periods in question; `issued` is what their
latest invoices say. Who has no invoice yet gets revision 1; whoever has a line with another amount gets
the next revision; all others keep the invoice they have. Late events that cancel each other out within
a line change no amount, and so no invoice.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.core.money import round_to_minor
from opentab.core.records import INSTANT, INVOICE, SUM
from opentab.ledger.engine import CUT, LocalEngine

# What the journal says now.
LINES = pa.schema(
    [
        pa.field("period", pa.string()),
        pa.field("customer", pa.string()),
        pa.field("line_period", pa.string()),
        pa.field("type", pa.string()),
        pa.field("amount_micros", SUM),
        pa.field("event_count", pa.int64()),
    ]
)
# What the latest invoices say.
ISSUED = pa.schema(
    [
        *(field for field in LINES if field.name != "event_count"),
        pa.field("revision", pa.int64()),
        pa.field("total_minor", SUM),
    ]
)
INVOICE_OF_PERIOD = pa.schema([pa.field("period", pa.string()), *INVOICE])
# Invoices of periods that have none yet: one row for each line.
FIRST = """
    select period, customer, cast(1 as bigint) as revision,
        case when line_period = period then 'usage' else 'adjustment' end as kind, line_period, type,
        amount_micros, event_count,
        cast(sum(amount_micros) over (partition by period, customer) as decimal(38, 0)) as total_micros,
        cast(null as decimal(38, 0)) as previous_total_minor
    from lines
"""
# Invoices that are due beside those in `issued`. The two sides meet in one grouping; a window then sees each invoice.
DUE = f"""
    with sides as (
        select period, customer, line_period, type, amount_micros, event_count,
            cast(0 as decimal(38, 0)) as issued_micros, cast(null as bigint) as revision,
            cast(null as decimal(38, 0)) as total_minor, 1 as is_line
        from lines
        union all
        select period, customer, line_period, type, cast(0 as decimal(38, 0)), cast(0 as bigint),
            amount_micros, revision, total_minor, 0
        from issued
    ),
    cut as (select {CUT} * from sides),
    cells as (
        select period, customer, line_period, type, sum(amount_micros) as amount_micros,
            sum(event_count) as event_count, sum(issued_micros) as issued_micros, max(revision) as revision,
            max(total_minor) as total_minor, max(is_line) as is_line
        from cut group by period, customer, line_period, type
    ),
    customers as (
        select *,
            max(revision) over (partition by period, customer) as last_revision,
            max(total_minor) over (partition by period, customer) as previous_total_minor,
            sum(amount_micros) over (partition by period, customer) as total_micros,
            max(case when amount_micros <> issued_micros then 1 else 0 end)
                over (partition by period, customer) as is_changed
        from cells
    )
    select period, customer, coalesce(last_revision, 0) + 1 as revision,
        case when line_period = period then 'usage' else 'adjustment' end as kind, line_period, type,
        cast(amount_micros as decimal(38, 0)) as amount_micros, cast(event_count as bigint) as event_count,
        cast(total_micros as decimal(38, 0)) as total_micros, previous_total_minor
    from customers where is_line = 1 and (is_changed = 1 or last_revision is null)
"""
DUE_ORDER = ("period", "customer", "kind desc", "line_period", "type")


def issue(lines: pa.Table, issued: pa.Table, *, currency: str, position: int, issued_us: int | None) -> pa.Table:
    """The invoices that are due, a row for each line, in the order of period and customer."""
    with LocalEngine(threads=1) as engine:
        engine.table("lines", lines)
        engine.table("issued", issued)
        sql = DUE.format(parts=1)
        return invoices_of(engine, sql, currency=currency, position=position, issued_us=issued_us)


def invoices_of(engine: LocalEngine, sql: str, *, currency: str, position: int, issued_us: int | None) -> pa.Table:
    """What FIRST or DUE say, for a reader."""
    rows = engine.connection.sql(f"{sql} order by {', '.join(DUE_ORDER)}").to_arrow_table()
    return priced(rows, currency=currency, position=position, issued_us=issued_us)


def priced(rows: pa.Table, *, currency: str, position: int, issued_us: int | None) -> pa.Table:
    """Rows of DUE as an invoice says them, with totals in minor units."""
    rows = rows.append_column("total_minor", rounded(rows["total_micros"], currency))
    rows = rows.append_column("position", pa.array(np.full(len(rows), position)))
    rows = rows.append_column("issued_at", pa.array([issued_us] * len(rows), INSTANT))
    return rows.select(INVOICE_OF_PERIOD.names).cast(INVOICE_OF_PERIOD)


def rounded(total_micros: pa.ChunkedArray, currency: str) -> pa.Array:
    """Totals in minor units. This is where an invoice is rounded, once."""
    try:
        micros = pc.cast(total_micros, pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        # More than 64 bits: one by one, and as exact.
        wide = [round_to_minor(int(value), currency) for value in total_micros.to_pylist()]
        return pa.array(wide, SUM)
    return pa.array(round_to_minor(micros, currency)).cast(SUM)
