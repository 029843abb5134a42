"""An invoice as people and programs read it; the one place that knows its JSON shape."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from opentab.core.money import minor_digits

FETCH_ROWS = 10_000


class StatementLine(msgspec.Struct, frozen=True):
    """One line: usage of the invoice's own period, or an adjustment that names its period."""

    kind: str
    type: str
    amount: str  # six decimals
    events: int
    period: str | None = None

    def as_json(self) -> dict[str, object]:
        own = {} if self.period is None else {"period": self.period}
        return {"kind": self.kind, **own, "type": self.type, "amount": self.amount, "events": self.events}


class Statement(msgspec.Struct, frozen=True):
    """One revision of one customer's invoice for one period."""

    period: str
    customer: str
    revision: int
    currency: str
    total: str
    previous_total: str | None
    delta: str
    lines: list[StatementLine]
    position: int
    issued_at: str | None  # None: a preview

    def as_json(self) -> dict[str, object]:
        return {**msgspec.structs.asdict(self), "lines": [line.as_json() for line in self.lines]}


# In the order of the JSON object.
COLUMNS = """
    select period, customer, revision, '{currency}' as currency, {total} as total, {previous} as previous_total,
        {delta} as delta, lines, position, issued_at
    from (
        select period, customer, revision,
            any_value(total_minor) as total_minor, any_value(previous_total_minor) as previous_total_minor,
            list(
                case when kind = 'usage'
                    then to_json({{'kind': kind, 'type': type, 'amount': {amount}, 'events': event_count}})
                    else to_json({{'kind': kind, 'period': line_period, 'type': type, 'amount': {amount},
                                   'events': event_count}})
                end
                order by kind desc, line_period, type
            ) as lines,
            any_value(position) as position,
            strftime(any_value(issued_at), '%Y-%m-%dT%H:%M:%S.%gZ') as issued_at
        from (from invoices where {wanted} {newest}) i
        group by period, customer, revision
    )
    order by period, customer, revision
"""
NEWEST = "qualify revision = max(revision) over (partition by period, customer)"
LINE_COLUMNS = """
    select period, customer, revision, kind, line_period, type, {amount} as amount, event_count as events
    from invoices order by period, customer, revision, kind desc, line_period, type
"""
AMOUNT = "(amount_micros::decimal(32, 0) * 0.000001::decimal(6, 6))::varchar"


def statements_sql(currency: str, *, wanted: str = "true", all_revisions: bool = True) -> str:
    """A query over the view `invoices` that yields statements, a row each, in the shape of the JSON object."""
    return COLUMNS.format(
        currency=currency,
        total=_minor("total_minor", currency),
        previous=_minor("previous_total_minor", currency),
        delta=_minor("total_minor - coalesce(previous_total_minor, 0)", currency),
        amount=AMOUNT,
        wanted=wanted,
        newest="" if all_revisions else NEWEST,
    )


def lines_sql() -> str:
    """A query over the view `invoices` that yields the lines of all statements."""
    return LINE_COLUMNS.format(amount=AMOUNT)


def statement_texts(
    connection: duckdb.DuckDBPyConnection,
    invoices: ds.Dataset | pa.Table,
    *,
    currency: str,
    customer: str | None = None,
    all_revisions: bool = False,
) -> Iterator[str]:
    """Statements as JSON, one object a line, in the order of period, customer and revision."""
    connection.register("invoices", invoices)
    query = statements_sql(currency, wanted="$customer is null or customer = $customer", all_revisions=all_revisions)
    result = connection.execute(f"select to_json(s)::varchar from ({query}) s", {"customer": customer})
    while rows := result.fetchmany(FETCH_ROWS):
        for (text,) in rows:
            yield text


def read_statement(text: str) -> Statement:
    return msgspec.json.decode(text, type=Statement)


def changes(statement: Statement, before: Statement | None) -> list[StatementLine]:
    """What a statement adds to each line of the one before it; lines that stay the same are left out."""
    old = {(line.kind, line.period, line.type): line for line in before.lines} if before else {}
    changed = []
    for line in statement.lines:
        was = old.get((line.kind, line.period, line.type))
        amount = Decimal(line.amount) - Decimal(was.amount if was else 0)
        events = line.events - (was.events if was else 0)
        if amount or events:
            changed.append(StatementLine(line.kind, line.type, f"{amount:.6f}", events, line.period))
    return changed


def _minor(minor: str, currency: str) -> str:
    """Minor units as a text with the currency's decimals."""
    digits = minor_digits(currency)
    if digits == 0:
        return f"({minor})::varchar"
    return f"(({minor})::decimal({38 - digits}, 0) * {10**-digits:.{digits}f}::decimal({digits}, {digits}))::varchar"
