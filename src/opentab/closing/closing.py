"""Closing at a position: what is due there is computed from the batches up to it, and issued as one commit.

The balances are the ground that a closing stands on: it adds the entries since. Who is revised is known
from the late entries alone, so a revision does not look at everyone again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from opentab.closing.schedule import Round
from opentab.core.errors import FileDamaged, LedgerError
from opentab.core.periods import Calendar, Period, month_number, to_us
from opentab.core.records import BALANCE, ENTRY
from opentab.ledger import balances
from opentab.ledger.billed_in import OWN_MONTH, PERIOD_OF_MONTH, register
from opentab.ledger.engine import CUT, Engine, LocalEngine, OpenEngine
from opentab.ledger.invoice_lines import DUE, DUE_ORDER, FIRST, INVOICE_OF_PERIOD, invoices_of, priced
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.runtime import crash
from opentab.runtime.storage import Place
from opentab.tables.damage import damage_behind
from opentab.tables.error_text import unwritable
from opentab.tables.files import LedgerFile, StagedFile, stage

NO_PERIOD = "0001-01"
PART_ROWS = 500_000  # about how many entries and balances become one file of invoices

USED = f"""
    select period, customer, {OWN_MONTH} as own_month, type, sum_micros as micros, event_count from snapshot
    union all
    select period, customer, {OWN_MONTH}, type, cast(amount_micros as decimal(38, 0)), event_count from billed
"""
LINES = f"""
    select period, customer, {PERIOD_OF_MONTH} as line_period, type,
        cast(sum(micros) as decimal(38, 0)) as amount_micros, cast(sum(event_count) as bigint) as event_count
    from (select {CUT} * from used where {{wanted}}) cut
    group by period, customer, own_month, type
"""
CONCERNED = f"""
    select distinct r.period, e.customer
    from late e join revised r on r.own_month = {OWN_MONTH.replace("day", "e.day")} and e.batch > r.issued_at
"""
IS_CONCERNED = "exists (select 1 from concerned c where c.period = used.period and c.customer = used.customer)"
# What the latest invoices of the concerned say.
ISSUED = """
    select period, customer, line_period, type, amount_micros, revision, total_minor
    from (
        select i.*, max(i.revision) over (partition by i.period, i.customer) as last_revision
        from invoices i
        where exists (select 1 from concerned c where c.period = i.period and c.customer = i.customer)
    ) latest
    where revision = last_revision
"""
INVOICE_COLUMNS = ["period", "customer", "line_period", "type", "amount_micros", "revision", "total_minor"]
NOTHING_ISSUED = """
    select period, customer, line_period, type, amount_micros, cast(0 as bigint) as revision,
        amount_micros as total_minor
    from lines where false
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


class ClosingSpec(msgspec.Struct, frozen=True):
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
    event_count: dict[Period, int] = {}
    sum_micros: dict[Period, str] = {}  # decimal integers: JSON readers may not hold more than 64 bits

    def __add__(self, other: Staged) -> Staged:
        micros = Counter({period: int(text) for period, text in self.sum_micros.items()})
        for period, text in other.sum_micros.items():
            micros[period] += int(text)
        return Staged(
            [*self.files, *other.files],
            self.invoice_count + other.invoice_count,
            dict(Counter(self.event_count) + Counter(other.event_count)),
            {period: str(value) for period, value in micros.items()},
        )


class Closing:
    """The invoices of one position, from the journal and the invoices before it."""

    def __init__(
        self, engine: Engine, journal: Journal, invoices: Invoices | None, calendar: Calendar, *, upto: int
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._invoices = invoices
        self._calendar = calendar
        self._upto = upto
        snapshot = ground(journal, upto)
        billed = register(engine, journal, calendar, after=snapshot.batch, upto=upto)
        before = balances.register_snapshot(engine, snapshot)
        engine.view("used", USED)
        # What the lines of each period must come to: what the entries and the balances do.
        self._sums = balances.added(billed, before)

    def ends_us(self) -> dict[Period, int]:
        """The ends of the periods that anything is billed in, but of those that were final at the snapshot."""
        return {period: self._calendar.end_us(period) for period in self._sums}

    def due(self, round_: Round) -> Due:
        """Which of the periods have invoices due at a round."""
        ends_us = self.ends_us()
        return Due(
            closed=tuple(period for period, end_us in ends_us.items() if round_.closes(end_us)),
            revised=tuple(period for period, end_us in ends_us.items() if round_.revises(end_us)),
        )

    def stage(self, due: Due, spec: ClosingSpec, *, parts: int) -> Staged:
        """Write the invoices that are due aside, a file for each range of customers and period."""
        staged = Staged([], 0)
        if due.closed:
            self.prepare_first(due.closed, parts=parts)
            staged += self._stage(FIRST, spec, parts=parts)
            self._check(staged, due.closed)
        if due.revised:
            self.prepare_revisions(due.revised, parts=parts)
            staged += self._stage(DUE.format(parts=parts), spec, parts=parts)
        return staged

    def prepare_first(self, periods: Sequence[Period], *, parts: int = 1) -> None:
        """Let `lines` be what was used in periods that have no invoices yet."""
        names = ", ".join(f"'{period}'" for period in periods)
        self._engine.view("lines", LINES.format(wanted=f"period in ({names})", parts=parts))

    def is_anything_revised(self, periods: Sequence[Period]) -> bool:
        """Whether anyone's invoice of these periods would be issued again."""
        self.prepare_revisions(periods)
        return bool(self._engine.rows(f"select 1 from ({DUE.format(parts=1)}) due limit 1"))

    def prepare_revisions(self, periods: Sequence[Period], *, parts: int = 1) -> None:
        """Let `lines` be what was used by all who may be revised, and `issued` what their latest invoices say.

        Who that is, is known from the late entries alone: a revision does not look at everyone again.
        """
        invoices = self._invoices
        issued_at = [invoices.latest_position(period) if invoices else 0 for period in periods]
        months = [month_number(period) for period in periods]
        since, upto = min(issued_at), self._upto
        late = self._journal.entry_files(after=since, upto=upto)
        columns = ["batch", "day", "customer"]
        where = f"batch > {since} and batch <= {upto}"
        self._engine.files("late", self._journal.root, late, ENTRY, columns=columns, where=where)
        self._engine.table("revised", pa.table({"period": list(periods), "own_month": months, "issued_at": issued_at}))
        self._engine.view("concerned", CONCERNED)
        self._engine.view("lines", LINES.format(wanted=IS_CONCERNED, parts=parts))
        if invoices is None:
            self._engine.view("issued", NOTHING_ISSUED)
            return
        files = [LedgerFile(file.path, file.rows, file.period) for file in invoices.files if file.period in periods]
        self._engine.files("invoices", invoices.root, files, INVOICE_OF_PERIOD, columns=INVOICE_COLUMNS)
        self._engine.view("issued", ISSUED)

    def _stage(self, sql: str, spec: ClosingSpec, *, parts: int) -> Staged:
        answers = self._engine.work(sql, partial(stage_invoices, spec=spec), parts=parts, order=DUE_ORDER)
        staged = Staged([], 0)
        for answer in answers:
            staged += msgspec.json.decode(answer, type=Staged)
        return staged

    def _check(self, staged: Staged, periods: Iterable[Period]) -> None:
        """Raise unless the first invoices of some periods come to what the ledger holds for them."""
        for period in periods:
            found = (staged.event_count.get(period, 0), int(staged.sum_micros.get(period, "0")))
            if found != self._sums[period]:
                events, micros = self._sums[period]
                raise FileDamaged(
                    f"the invoices of {period} would come to {found[0]} events and {found[1]} micros, but the ledger "
                    f"holds {events} events and {micros} micros",
                    hint="run opentab verify: nothing was issued",
                )


def rehearse(engine: Engine, journal: Journal, calendar: Calendar) -> None:
    """Let an engine do what a first closing does, with one line of nobody's: nothing is staged.

    Java compiles it meanwhile, and so the first closing takes half its time beside the stream.
    """
    register(engine, journal, calendar, after=journal.position, upto=journal.position)
    nobody = {"batch": 0, "period": NO_PERIOD, "customer": "", "type": "", "sum_micros": 0, "event_count": 0}
    engine.table("snapshot", pa.Table.from_pylist([nobody], schema=BALANCE))
    engine.view("used", USED)
    engine.view("lines", LINES.format(wanted="true", parts=1))
    engine.work(FIRST, look_through, parts=1, order=DUE_ORDER)


def look_through(_: int, rows: Iterable[pa.RecordBatch]) -> None:
    """A task that keeps nothing of its rows."""
    for _rows in rows:
        pass


def ground(journal: Journal, upto: int) -> balances.Snapshot:
    """The balances that a closing at `upto` may stand on.

    Those drawn at `upto` itself already lack the periods that become final there.
    """
    snapshot = balances.latest(journal.root.parent)
    return snapshot if snapshot.batch < upto and snapshot.belongs_to(journal) else balances.empty()


def row_count(journal: Journal, upto: int) -> int:
    """About how many rows a closing has to read."""
    snapshot = ground(journal, upto)
    return snapshot.row_count + journal.entry_rows(after=snapshot.batch)


def close_round(
    round_: Round,
    journal: Journal,
    invoices: Invoices,
    calendar: Calendar,
    *,
    currency: str,
    run: str,
    open_engine: OpenEngine,
    before_commit: Callable[[], None] = lambda: None,
) -> Issued | None:
    """Issue all invoices that are due at a round; None if there are none.

    1. which periods are due, 2. who is concerned, 3. stage the invoices, 4. one commit
    """
    spec = ClosingSpec(invoices.root, run, round_.position, currency, to_us(datetime.now(UTC)))
    rows = row_count(journal, round_.position)
    try:
        with open_engine(f"closing at batch {round_.position}", rows) as engine:
            closing = Closing(engine, journal, invoices, calendar, upto=round_.position)
            due = closing.due(round_)
            if not due:
                return None
            crash.moment("closing")
            staged = closing.stage(due, spec, parts=rows // PART_ROWS + 1)
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


def stage_invoices(part: int, rows: Iterable[pa.RecordBatch], *, spec: ClosingSpec) -> bytes | None:
    """What a task does with its range of customers: it writes their invoices aside, a file for each period.

    The files' names keep the order of the parts, and so that of the customers.
    """
    kept = [batch for batch in rows if batch.num_rows]
    if not kept:
        return None
    invoices = priced(
        pa.Table.from_batches(kept), currency=spec.currency, position=spec.position, issued_us=spec.issued_us
    )
    files, invoice_count = [], 0
    event_count: dict[Period, int] = {}
    sum_micros: dict[Period, str] = {}
    for period in pc.unique(invoices["period"]).to_pylist():
        lines = invoices.filter(pc.equal(invoices["period"], period)).drop_columns(["period"])
        name, positions = f"{spec.run}-{part:05d}", (spec.position, spec.position)
        files.append(stage(spec.root, period, lines, run=name, batches=positions, column="period"))
        invoice_count += pc.count_distinct(lines["customer"]).as_py()
        event_count[period] = pc.sum(lines["event_count"]).as_py()
        sum_micros[period] = str(int(pc.sum(lines["amount_micros"].cast(pa.decimal256(76, 0))).as_py()))
    return msgspec.json.encode(Staged(files, invoice_count, event_count, sum_micros))


def preview(
    journal: Journal, invoices: Invoices | None, calendar: Calendar, period: Period, *, currency: str
) -> pa.Table:
    """What would be issued for a period if it were closed or revised right now, for a reader."""
    with LocalEngine() as engine:
        closing = Closing(engine, journal, invoices, calendar, upto=journal.position)
        has_invoices = invoices is not None and invoices.latest_position(period) > 0
        if has_invoices:
            closing.prepare_revisions([period])
        else:
            closing.prepare_first([period])
        sql = DUE.format(parts=1) if has_invoices else FIRST
        return invoices_of(engine, sql, currency=currency, position=journal.position, issued_us=None)
