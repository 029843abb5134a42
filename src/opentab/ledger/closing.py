"""Closing at a position: what is due there is computed from the batches up to it, and issued as one commit.

The balances are the ground that a closing stands on: it adds the entries since. Who is revised is known
from the late entries alone, so a revision does not look at everyone again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from opentab import crash
from opentab.errors import LedgerError
from opentab.ledger import balances
from opentab.ledger.billed import OWN_MONTH, PERIOD_OF_MONTH, connect, register
from opentab.ledger.damage import damage_behind
from opentab.ledger.files import StagedFile, stage
from opentab.ledger.invoices import Invoices
from opentab.ledger.issue import INVOICE_OF_PERIOD, issue_over
from opentab.ledger.journal import Journal
from opentab.ledger.rounds import Round
from opentab.ledger.trouble import unwritable
from opentab.periods import Calendar, Period, month_number, to_us
from opentab.place import Place

MEMORY_LIMIT = "1GB"  # of a closing; the rest goes to the disk
PART_ROWS = 500_000  # how many lines are made into invoices in one go
SAMPLE_ROWS = 20_000

USED = f"""
    select period, customer, {OWN_MONTH} as own_month, type, sum_micros as micros, event_count from snapshot
    union all
    select period, customer, {OWN_MONTH}, type, amount_micros::decimal(38, 0), event_count from billed
"""
LINES = f"""
    select period, customer, {PERIOD_OF_MONTH} as line_period, type,
        sum(micros)::decimal(38, 0) as amount_micros, sum(event_count)::bigint as event_count
    from used
    where {{wanted}}
    group by period, customer, own_month, type
"""
CONCERNED = "insert into concerned select distinct ?, customer from late where {own_month} = ?"
IS_CONCERNED = "exists (from concerned c where c.period = used.period and c.customer = used.customer)"
ISSUED = """
    select period, customer, line_period, type, amount_micros, revision, total_minor
    from invoices i
    semi join concerned c on c.period = i.period and c.customer = i.customer
    qualify revision = max(revision) over (partition by period, customer)
"""


@dataclass(frozen=True, slots=True)
class Due:
    """The periods that are closed and those that are revised at a position."""

    closed: tuple[Period, ...]
    revised: tuple[Period, ...]

    def __bool__(self) -> bool:
        return bool(self.closed or self.revised)


@dataclass(frozen=True, slots=True)
class Issued:
    """What one commit of the invoices brought."""

    position: int
    due: Due
    invoice_count: int
    line_count: int


class Order(msgspec.Struct, frozen=True):
    """What whoever stages invoices must know."""

    root: Place  # of the invoices table
    run: str
    position: int
    currency: str
    issued_us: int


class Staged(msgspec.Struct, frozen=True):
    """Invoices on the disk that a commit may take up."""

    files: list[StagedFile]
    invoice_count: int

    def __add__(self, other: Staged) -> Staged:
        return Staged([*self.files, *other.files], self.invoice_count + other.invoice_count)


class Closing:
    """The invoices of one position, from the journal and the invoices before it. Close it after use."""

    def __init__(
        self, journal: Journal, invoices: Invoices | None, calendar: Calendar, *, upto: int, threads: int | None = None
    ) -> None:
        self.journal = journal
        self.calendar = calendar
        self._invoices = invoices
        self.upto = upto
        self.snapshot = ground(journal, upto)
        self.connection = connect(threads=threads, memory_limit=MEMORY_LIMIT)
        register(self.connection, journal, calendar, after=self.snapshot.batch, upto=upto)
        balances.register_snapshot(self.connection, self.snapshot)
        self.connection.execute(f"create temp view used as {USED}")

    def close(self) -> None:
        self.connection.close()

    def periods(self) -> list[Period]:
        """The periods that anything is billed in, less those that were final at the snapshot."""
        periods = "select period from snapshot union select period from billed_days order by 1"
        found = self.connection.execute(periods).fetchall()
        return [period for (period,) in found]

    def row_count(self) -> int:
        """About how many rows have to be read."""
        return self.snapshot.row_count + self.journal.entry_rows(after=self.snapshot.batch)

    def due(self, round_: Round) -> Due:
        """Which of the periods have invoices due at a round."""
        ends = {period: self.calendar.end_us(period) for period in self.periods()}
        return Due(
            closed=tuple(period for period, end_us in ends.items() if round_.closes(end_us)),
            revised=tuple(period for period, end_us in ends.items() if round_.revises(end_us)),
        )

    def prepare(self, due: Due) -> bool:
        """Gather the lines and the latest invoices of all who may have something due; False if nobody has."""
        self.connection.execute("create or replace temp table concerned (period varchar, customer varchar)")
        for period in due.revised:
            issued_at = self._invoices.latest_position(period) if self._invoices else 0
            self.connection.register("late", self.journal.entries(after=issued_at, upto=self.upto))
            self.connection.execute(CONCERNED.format(own_month=OWN_MONTH), [period, month_number(period)])
            self.connection.unregister("late")
        anyone = self.connection.execute("select count(*) from concerned").fetchone()
        if not due.closed and anyone == (0,):
            return False
        closed = ", ".join(f"'{period}'" for period in due.closed) or "null"
        wanted = f"period in ({closed}) or {IS_CONCERNED}" if due.revised else f"period in ({closed})"
        self.connection.execute(f"create or replace temp table all_lines as {LINES.format(wanted=wanted)}")
        files = [file for file in self._invoices.files if file.period in due.revised] if self._invoices else []
        before = self._invoices.rows_of(files) if self._invoices else INVOICE_OF_PERIOD.empty_table()
        self.connection.register("invoices", before)
        self.connection.execute(f"create or replace temp table all_issued as {ISSUED}")
        return True

    def issue(self, *, currency: str, issued_us: int | None) -> Iterator[pa.Table]:
        """The invoices that are due, some customers at a time and in their order: memory stays bounded."""
        for wanted in self._parts():
            for name in ("lines", "issued"):
                self.connection.execute(f"create or replace temp view {name} as from all_{name} where {wanted}")
            part = list(issue_over(self.connection, currency=currency, position=self.upto, issued_us=issued_us))
            if part:
                yield pa.concat_tables(part)

    def _parts(self) -> list[str]:
        """Conditions that cut the customers into ranges of about PART_ROWS lines."""
        (rows,) = self.connection.execute("select count(*) from all_lines").fetchone() or (0,)
        count = rows // PART_ROWS + 1
        if count == 1:
            return ["true"]
        sample = self.connection.execute(f"select customer from all_lines using sample {SAMPLE_ROWS} order by 1")
        customers = [customer for (customer,) in sample.fetchall()]
        bounds = sorted({customers[len(customers) * part // count] for part in range(1, count)})
        texts = ["'" + bound.replace("'", "''") + "'" for bound in bounds]
        below = [f"customer < {text}" for text in texts] + ["true"]
        above = ["true"] + [f"customer >= {text}" for text in texts]
        return [f"{low} and {high}" for low, high in zip(above, below, strict=True)]


def ground(journal: Journal, upto: int) -> balances.Snapshot:
    """The balances that a closing at `upto` may stand on.

    Those drawn at `upto` itself already lack the periods that become final there.
    """
    snapshot = balances.latest(journal.root.parent)
    return snapshot if snapshot.batch < upto and snapshot.belongs_to(journal) else balances.empty()


@contextmanager
def closing_at(
    journal: Journal, invoices: Invoices | None, calendar: Calendar, *, upto: int, threads: int | None = None
) -> Iterator[Closing]:
    """A closing at a position, tidied up afterwards."""
    closing = Closing(journal, invoices, calendar, upto=upto, threads=threads)
    try:
        yield closing
    finally:
        closing.close()


def close_round(
    round_: Round,
    journal: Journal,
    invoices: Invoices,
    calendar: Calendar,
    *,
    currency: str,
    run: str,
    threads: int | None = None,
    before_commit: Callable[[], None] = lambda: None,
    stage_elsewhere: Callable[[Closing, Due, Order], Staged | None] = lambda closing, due, order: None,
) -> Issued | None:
    """Issue all invoices that are due at a round; None if there are none.

    1. which periods are due, 2. who is concerned, 3. stage the invoices, 4. one commit

    `stage_elsewhere` may take the periods that are closed, onto a cluster for example, or say None.
    """
    order = Order(invoices.root, run, round_.position, currency, to_us(datetime.now(UTC)))
    staged = Staged([], 0)
    try:
        with closing_at(journal, invoices, calendar, upto=round_.position, threads=threads) as closing:
            due = here = closing.due(round_)
            if due:
                crash.moment("closing")
            if due.closed and (elsewhere := stage_elsewhere(closing, due, order)) is not None:
                staged, here = elsewhere, Due((), due.revised)
            if here and closing.prepare(here):
                staged += stage_invoices(closing.issue(currency=currency, issued_us=order.issued_us), order)
    except duckdb.OutOfMemoryException as error:
        raise LedgerError(
            f"closing at position {round_.position} ran out of memory or scratch space",
            hint="give TMPDIR a place with more room",
            retry_helps=True,
        ) from error
    except (OSError, duckdb.IOException, duckdb.InvalidInputException) as error:
        raise damage_behind(journal.root.parent, error) or unwritable(invoices.root, error) from error
    if not staged.files:
        return None
    crash.moment("closing_staged")
    before_commit()
    invoices.commit(round_.position, staged.files)
    crash.moment("issued")
    return Issued(round_.position, due, staged.invoice_count, sum(file.rows for file in staged.files))


def stage_invoices(chunks: Iterable[pa.Table], order: Order, *, part: int = 0) -> Staged:
    """Write invoices aside, a file for each chunk and period, no invoice in two of them.

    The files' names keep the order of the parts and chunks, and so that of the customers.
    """
    files: list[StagedFile] = []
    invoice_count = 0
    positions = (order.position, order.position)
    for number, chunk in enumerate(chunks):
        name = f"{order.run}-{part:05d}-{number:05d}"
        for period in pc.unique(chunk["period"]).to_pylist():
            lines = chunk.filter(pc.equal(chunk["period"], period)).drop_columns(["period"])
            files.append(stage(order.root, period, lines, run=name, batches=positions, column="period"))
            invoice_count += pc.count_distinct(lines["customer"]).as_py()
    return Staged(files, invoice_count)


def preview(
    journal: Journal, invoices: Invoices | None, calendar: Calendar, period: Period, *, currency: str
) -> pa.Table:
    """What would be issued for a period if it were closed or revised right now."""
    with closing_at(journal, invoices, calendar, upto=journal.position) as closing:
        has_invoices = invoices is not None and invoices.latest_position(period) > 0
        due = Due(closed=(), revised=(period,)) if has_invoices else Due(closed=(period,), revised=())
        if not closing.prepare(due):
            return INVOICE_OF_PERIOD.empty_table()
        chunks = list(closing.issue(currency=currency, issued_us=None))
        return pa.concat_tables(chunks) if chunks else INVOICE_OF_PERIOD.empty_table()
