"""Every invoice and revision worked out again from the raw log, and held against those that were issued.

Each entry belongs to the first position, from its own batch on, at which its month is due. So an invoice
is the sum of what belongs to the positions up to its own, and a customer's next revision is due where
what was added since changes the amount of any line. (If it changes none, the invoice from before still
says what is owed.) All customers are worked out at once, in DuckDB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from opentab.audit.bills import OWN_MONTH, Billed
from opentab.audit.check import SAMPLES_MAX, Check, Tally, count, instant, money, shown
from opentab.audit.days import period_of_month
from opentab.audit.differences import find_differences
from opentab.audit.due import due_positions
from opentab.audit.lateness import Mark
from opentab.audit.rounding import half_even_sql, minor_micros
from opentab.audit.rows import to_table
from opentab.core.money import format_micros, format_minor
from opentab.core.records import INVOICE, BatchRecord

LINES_SHOWN_MAX = 3  # of one invoice
ROW = pa.schema([pa.field("period", pa.string()), *INVOICE])
SCHEMA_DUE = pa.schema(
    [
        ("batch", pa.int64()),
        ("own_month", pa.int64()),
        ("line_period", pa.string()),
        ("period", pa.string()),
        ("position", pa.int64()),
    ]
)
SCHEMA_POSITION = pa.schema([("position", pa.int64()), ("unit", pa.int64())])
KEY = ("period", "customer", "revision", "kind", "line_period", "type")
FACTS = ("amount_micros", "event_count", "total_minor", "previous_total_minor", "position")


class Invoices(Protocol):
    """What the audit needs of the invoices: how far they go, and a row for each line (records.INVOICE)."""

    @property
    def position(self) -> int: ...
    def rows(self) -> ds.Dataset: ...


class NoInvoices:
    """The invoices of a ledger in which none was ever issued."""

    position = 0

    def rows(self) -> ds.Dataset:
        return ds.dataset(ROW.empty_table())


def check_invoices(
    con: duckdb.DuckDBPyConnection,
    invoices: Invoices,
    batches: Sequence[BatchRecord],
    marks: Mapping[int, Mark],
    billed: Sequence[Billed],
) -> Check:
    """Compare what was issued with what was due, as the table `recounted` has it.

    What is due behind the invoices' own position is not yet issued; what was issued behind the last batch
    that we look at is left for the next time: a pipeline may be at work. Neither is a difference.
    """
    last = max((record.batch for record in batches), default=0)
    upto = min(last, invoices.position)
    due = due_positions(batches, marks, {b.month for b in billed})
    _work_out(con, batches, billed, due)
    con.register("issued_now", invoices.rows())
    con.execute(
        f"""
        CREATE OR REPLACE TEMP VIEW issued AS
        SELECT * REPLACE (CAST(amount_micros AS HUGEINT) AS amount_micros, CAST(total_minor AS HUGEINT) AS total_minor,
            CAST(previous_total_minor AS HUGEINT) AS previous_total_minor)
        FROM issued_now WHERE NOT coalesce(position > {last} AND position <= {invoices.position}, false)
        """
    )
    con.execute(
        f"""
        CREATE OR REPLACE TEMP VIEW due AS
        SELECT d.*, h.total_minor, h.previous_total_minor
        FROM due_lines d JOIN heads h USING (period, customer, revision) WHERE d.position <= {upto}
        """
    )
    find_differences(con, ledger="issued", log="due", key=KEY, facts=FACTS)
    ours = f"SELECT period, customer, revision FROM heads WHERE position <= {upto}"
    theirs = "SELECT DISTINCT period, customer, revision FROM different"
    tally = Tally("invoices", differences=count(con, f"SELECT count(*) FROM ({theirs})"))
    tally.compared = count(con, f"SELECT count(*) FROM ({ours} UNION {theirs})")
    currency = batches[-1].rules.currency if batches else ""
    tally.samples += _samples(con, upto, currency)
    for position, from_us, to_us in _odd_instants(con):
        when = "at no time" if from_us is None else f"from {instant(from_us)} to {instant(to_us)}"
        tally.differ(f"position {position}: the ledger says issued {when}; a position has one instant")
    note = _note(con, last, upto, invoices.position)
    for table in ("due_lines", "heads", "different"):
        con.execute(f"DROP TABLE {table}")
    con.unregister("issued_now")
    return tally.done(note)


def _work_out(
    con: duckdb.DuckDBPyConnection,
    batches: Sequence[BatchRecord],
    billed: Sequence[Billed],
    due: Mapping[int, Sequence[int]],
) -> None:
    """Make the tables `heads`, one row for each invoice, and `due_lines`."""
    _register_due(con, batches, billed, due)
    _add_up(con)
    _number_revisions(con)
    _make_lines(con)
    _make_heads(con)
    con.execute("DROP TABLE added")
    con.execute("DROP TABLE revisions")
    con.unregister("due_entries")
    con.unregister("due_units")


def _register_due(
    con: duckdb.DuckDBPyConnection,
    batches: Sequence[BatchRecord],
    billed: Sequence[Billed],
    due: Mapping[int, Sequence[int]],
) -> None:
    """Register `due_entries`, which batch's months are due where, and `due_units`, what each position rounds to."""
    where = []
    for b in billed:
        at = bisect_left(due[b.month], b.batch)
        if at < len(due[b.month]):
            row = (b.batch, b.own_month, period_of_month(b.own_month), period_of_month(b.month), due[b.month][at])
            where.append(row)
    con.register("due_entries", to_table(where, SCHEMA_DUE))
    positions = {position for *_, position in where}
    units = [(record.batch, minor_micros(record.rules.currency)) for record in batches if record.batch in positions]
    con.register("due_units", to_table(units, SCHEMA_POSITION))


def _add_up(con: duckdb.DuckDBPyConnection) -> None:
    """Make the table `added`: what each position adds to a customer's lines of a period."""
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE added AS
        SELECT period, customer, line_period, type, position,
            sum(amount_micros) AS amount_micros, CAST(sum(event_count) AS BIGINT) AS event_count
        FROM (SELECT *, {OWN_MONTH} AS own_month FROM recounted) e JOIN due_entries USING (batch, own_month)
        GROUP BY period, customer, line_period, type, position
        """
    )


def _number_revisions(con: duckdb.DuckDBPyConnection) -> None:
    """Make the table `revisions`: the positions at which a customer's invoice is issued, counted."""
    con.execute(
        """
        CREATE OR REPLACE TEMP TABLE revisions AS
        SELECT period, customer, position,
            row_number() OVER (PARTITION BY period, customer ORDER BY position) AS revision
        FROM (
            SELECT period, customer, position, bool_or(amount_micros <> 0) AS changes,
                position = min(position) OVER (PARTITION BY period, customer) AS is_first
            FROM added GROUP BY period, customer, position
        )
        WHERE is_first OR changes
        """
    )


def _make_lines(con: duckdb.DuckDBPyConnection) -> None:
    """Make the table `due_lines`. A first invoice, as nearly all are, has only what its own position adds."""
    con.execute(
        """
        CREATE OR REPLACE TEMP TABLE due_lines AS
        SELECT period, customer, revision, if(line_period = period, 'usage', 'adjustment') AS kind, line_period, type,
            amount_micros, event_count, position
        FROM (
            SELECT a.*, r.revision FROM added a JOIN revisions r USING (period, customer, position)
            WHERE r.revision = 1
            UNION ALL BY NAME
            SELECT r.period, r.customer, r.revision, r.position, a.line_period, a.type,
                sum(a.amount_micros) AS amount_micros, CAST(sum(a.event_count) AS BIGINT) AS event_count
            FROM revisions r JOIN added a
                ON a.period = r.period AND a.customer = r.customer AND a.position <= r.position
            WHERE r.revision > 1
            GROUP BY r.period, r.customer, r.revision, r.position, a.line_period, a.type
        )
        """
    )


def _make_heads(con: duckdb.DuckDBPyConnection) -> None:
    """Make the table `heads`: the total of each invoice, rounded, and the one before it."""
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE heads AS
        SELECT *, lag(total_minor) OVER (PARTITION BY period, customer ORDER BY revision) AS previous_total_minor
        FROM (
            SELECT period, customer, revision, position, total_micros, line_count,
                {half_even_sql("total_micros", "unit")} AS total_minor
            FROM (
                SELECT period, customer, revision, position,
                    sum(amount_micros) AS total_micros, count(*) AS line_count
                FROM due_lines GROUP BY period, customer, revision, position
            ) JOIN due_units USING (position)
        )
        """
    )


def _odd_instants(con: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    """The positions whose invoices were not all issued at one instant: all of them are one commit."""
    return con.execute(
        f"""
        SELECT position, epoch_us(min(issued_at)), epoch_us(max(issued_at)) FROM issued GROUP BY position
        HAVING count(*) > count(issued_at) OR min(issued_at) <> max(issued_at) ORDER BY position LIMIT {SAMPLES_MAX}
        """
    ).fetchall()


def _note(con: duckdb.DuckDBPyConnection, last: int, upto: int, position: int) -> str:
    waiting = count(con, f"SELECT count(*) FROM heads WHERE position > {upto}")
    notes = [f"{waiting:,} are due and not yet issued"] if waiting else []
    if position > last:
        newer = "SELECT count(DISTINCT (period, customer, revision)) FROM issued_now WHERE position"
        later = count(con, f"{newer} > {last} AND position <= {position}")
        notes += [f"{later:,} of positions after batch {last} are left out"] if later else []
    return "; ".join(notes)


@dataclass(frozen=True, slots=True)
class _Head:
    """An invoice as it was due."""

    position: int
    line_count: int
    total_micros: int
    total_minor: int


@dataclass(frozen=True, slots=True)
class _Side:
    """What the ledger, or the log, says of a line and of its invoice."""

    amount_micros: int | None
    event_count: int | None
    total_minor: int | None
    previous_total_minor: int | None
    position: int | None


@dataclass(frozen=True, slots=True)
class _Line:
    """A line on which the two do not agree; None where one of them does not have it."""

    name: str
    times: int
    ledger: _Side | None
    log: _Side | None


def _samples(con: duckdb.DuckDBPyConnection, upto: int, currency: str) -> list[str]:
    """The first invoices that differ, each with what is different about it."""
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE sampled AS
        SELECT DISTINCT period, customer, revision FROM different
        ORDER BY period, customer, revision LIMIT {SAMPLES_MAX}
        """
    )
    heads = {
        (period, customer, revision): _Head(*facts)
        for period, customer, revision, *facts in con.execute(
            "SELECT period, customer, revision, position, line_count, total_micros, total_minor"
            " FROM heads SEMI JOIN sampled USING (period, customer, revision)"
        ).fetchall()
    }
    sides = ", ".join(f"{side}_{name}" for side in ("ledger", "log") for name in FACTS)
    lines: dict[tuple[str, str, int], list[_Line]] = {}
    for period, customer, revision, kind, own, type_, times, in_ledger, in_log, *facts in con.execute(
        f"SELECT {', '.join(KEY)}, times, in_ledger, in_log, {sides}"
        " FROM different SEMI JOIN sampled USING (period, customer, revision)"
        " ORDER BY period, customer, revision, times, kind DESC, line_period, type"
    ).fetchall():
        ledger = _Side(*facts[: len(FACTS)]) if in_ledger else None
        log = _Side(*facts[len(FACTS) :]) if in_log else None
        lines.setdefault((period, customer, revision), []).append(_Line(f"{kind} {own} {type_}", times, ledger, log))
    return [
        f"{period}, customer {customer!r}, revision {revision}, "
        + "; ".join(_described(found, heads.get((period, customer, revision)), upto, currency))
        for (period, customer, revision), found in lines.items()
    ]


def _described(lines: Sequence[_Line], head: _Head | None, upto: int, currency: str) -> Iterator[str]:
    """What is different about one invoice."""
    total = partial(_total, currency=currency)
    issued = next((line.ledger for line in lines if line.ledger), None)
    if head is None or head.position > upto:
        due = "nothing" if head is None else f"{total(head.total_minor)} at position {head.position}"
        said = "nothing" if issued is None else total(issued.total_minor)
        yield f"position {issued and issued.position}: the ledger says {said}, the log says {due}"
        return
    where = f"position {head.position}"
    if issued is None and len(lines) == head.line_count:
        amount = f"{total(head.total_minor)} ({format_micros(head.total_micros)})"
        yield f"{where}: the ledger says nothing, the log says {amount}"
        return
    yield where
    once = [line for line in lines if line.times == 1]
    for name, field, form in (
        ("issued at position", "position", shown),
        ("total", "total_minor", total),
        ("previous total", "previous_total_minor", total),
    ):
        pairs = [(getattr(x.ledger, field), getattr(x.log, field)) for x in once if x.ledger and x.log]
        wrong = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if wrong:
            yield f"{name}: the ledger says {form(wrong[0])}, the log says {form(wrong[1])}"
    wrong_lines = [line for line in once if _amounts(line.ledger) != _amounts(line.log)]
    for line in wrong_lines[:LINES_SHOWN_MAX]:
        yield f"{line.name}: the ledger says {_amounts(line.ledger)}, the log says {_amounts(line.log)}"
    if len(wrong_lines) > LINES_SHOWN_MAX:
        yield f"and {len(wrong_lines) - LINES_SHOWN_MAX} more lines"
    for line in [line for line in lines if line.times > 1][:LINES_SHOWN_MAX]:
        yield f"{line.name}: the ledger says it {line.times} times, the log once"


def _total(minor: int | None, *, currency: str) -> str:
    return "nothing" if minor is None else f"{format_minor(int(minor), currency)} {currency}"


def _amounts(side: _Side | None) -> str:
    return "nothing" if side is None else f"{money(side.amount_micros)} in {side.event_count} events"
