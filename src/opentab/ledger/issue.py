"""From what a customer used to what the invoice says: the pure heart of a closing.

`lines` is what the journal says now of the customers and periods in question; `issued` is what their
latest invoices say. Who has no invoice yet gets revision 1; whoever has a line with another amount gets
the next revision; all others keep the invoice they have. Late events that cancel each other out within
a line change no amount, and so no invoice.
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.ledger.billed import connect
from opentab.money import round_to_minor
from opentab.records import INSTANT, INVOICE, SUM

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
CHUNK_ROWS = 1_000_000

DUE = """
    with heads as (
        select period, customer, max(revision) as revision, any_value(total_minor) as total_minor
        from issued group by period, customer
    ),
    changed as (
        select distinct period, customer from (
            select coalesce(l.period, i.period) as period, coalesce(l.customer, i.customer) as customer
            from lines l full outer join issued i
                on l.period = i.period and l.customer = i.customer
                and l.line_period = i.line_period and l.type = i.type
            where coalesce(l.amount_micros, 0) <> coalesce(i.amount_micros, 0)
        )
        union
        select distinct period, customer from lines l
        where not exists (from heads h where h.period = l.period and h.customer = l.customer)
    )
    select l.period, l.customer, coalesce(h.revision, 0) + 1 as revision,
        if(l.line_period = l.period, 'usage', 'adjustment') as kind, l.line_period, l.type,
        l.amount_micros, l.event_count,
        sum(l.amount_micros) over (partition by l.period, l.customer)::decimal(38, 0) as total_micros,
        h.total_minor as previous_total_minor
    from lines l
    semi join changed c on c.period = l.period and c.customer = l.customer
    left join heads h on h.period = l.period and h.customer = l.customer
    order by l.period, l.customer, kind desc, l.line_period, l.type
"""


def issue(lines: pa.Table, issued: pa.Table, *, currency: str, position: int, issued_us: int | None) -> pa.Table:
    """The invoices that are due, a row for each line, in the order of period and customer."""
    with connect(threads=1) as connection:
        connection.register("lines", lines)
        connection.register("issued", issued)
        chunks = list(issue_over(connection, currency=currency, position=position, issued_us=issued_us))
    return pa.concat_tables(chunks) if chunks else INVOICE_OF_PERIOD.empty_table()


def issue_over(
    connection: duckdb.DuckDBPyConnection, *, currency: str, position: int, issued_us: int | None
) -> Iterator[pa.Table]:
    """The same over the views `lines` and `issued` of a connection, some rows at a time."""
    for batch in connection.sql(DUE).to_arrow_reader(CHUNK_ROWS):
        if not batch.num_rows:
            continue
        rows = pa.Table.from_batches([batch])
        rows = rows.append_column("total_minor", rounded(rows["total_micros"], currency))
        rows = rows.append_column("position", pa.array(np.full(len(rows), position)))
        rows = rows.append_column("issued_at", pa.array([issued_us] * len(rows), INSTANT))
        yield rows.select(INVOICE_OF_PERIOD.names).cast(INVOICE_OF_PERIOD)


def rounded(total_micros: pa.ChunkedArray, currency: str) -> pa.Array:
    """Totals in minor units. This is where an invoice is rounded, once."""
    try:
        micros = pc.cast(total_micros, pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        # More than 64 bits: one by one, and as exact.
        wide = [round_to_minor(int(value), currency) for value in total_micros.to_pylist()]
        return pa.array(wide, SUM)
    return pa.array(round_to_minor(micros, currency)).cast(SUM)
