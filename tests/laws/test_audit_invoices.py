"""Every invoice and balance that the ledger holds is worked out again; whatever is changed is found."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from law_examples import examples
from ledgers import batch_of_segments, log_of, names_of, open_job
from opentab.audit import Check, NoInvoices, Report, invoice_of, trace, verify
from opentab.audit.rounding import DECIMALS_BY_CURRENCY, half_even, half_even_sql, minor_micros
from opentab.cli import commands
from opentab.closing.closer import Closer
from opentab.core import money
from opentab.core.errors import InputError, LedgerError
from opentab.core.periods import to_us
from opentab.core.records import BALANCE
from opentab.ledger import balances
from opentab.ledger.invoice_lines import INVOICE_OF_PERIOD
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.log import Producer
from opentab.runtime import config
from product import event

ARRIVAL = datetime(2026, 9, 1, tzinfo=UTC)
Row = dict[str, Any]


class Books:
    """A home with the real job and closer, in this process; each step is what the pipeline would do."""

    def __init__(self, path: Path, **billing: Any) -> None:
        path.mkdir()
        lines = [f"{key} = {value!r}".replace("'", '"') for key, value in billing.items()]
        (path / "opentab.toml").write_text("[billing]\n" + "\n".join(lines))
        self.home = config.load(path)
        self.job = open_job(self.home, "run")
        self.closer = Closer(self.home, run="run")
        self.now = ARRIVAL

    def append(self, *lines: str, partition: str = "default", minutes: int = 1) -> None:
        self.now += timedelta(minutes=minutes)
        Producer(log_of(self.job), partition, clock=lambda: self.now).append("\n".join(lines).encode())

    def bill(self, *lines: str) -> int:
        """Bill what is waiting as one batch, with some lines more."""
        if lines:
            self.append(*lines)
        unread = log_of(self.job).unread(self.job.offsets)
        self.job.bill(batch_of_segments(self.job, names_of(log_of(self.job), unread, 100), 1))
        return self.job.journal.position

    def close(self) -> None:
        self.closer.close_due(self.job.journal)

    def snapshot(self) -> None:
        balances.write_snapshot(self.job.journal, self.home.calendar)

    @property
    def journal(self) -> Journal:
        journal = Journal.open(self.home.ledger, self.home.identity)
        assert journal is not None
        return journal

    @property
    def invoices(self) -> Invoices | NoInvoices:
        return Invoices.open(self.home.ledger) or NoInvoices()

    def verify(self, invoices: Any = None, snapshot: Any = None) -> Report:
        return verify(
            self.home,
            self.journal,
            invoices=invoices or self.invoices,
            balances=snapshot or balances.latest(self.home.ledger),
        )


@dataclass(frozen=True)
class FakeInvoices:
    """Invoices of which a test may change any one thing."""

    position: int
    table: list[Row]

    def rows(self) -> ds.Dataset:
        return ds.dataset(pa.Table.from_pylist(self.table, schema=INVOICE_OF_PERIOD))


def rows_of(invoices: Invoices | NoInvoices) -> list[Row]:
    rows = invoices.rows().to_table().to_pylist()
    return sorted(rows, key=lambda r: tuple(str(r[c]) for c in ("period", "customer", "revision", "kind", "type")))


def check_of(report: Report, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def failing(report: Report) -> dict[str, list[str]]:
    return {check.name: check.samples for check in report.checks if not check.agrees}


# --- any ledger --------------------------------------------------------------------------------

# Many of them are half of a minor unit, of one currency or another.
AMOUNTS = ["0.0005", "0.005", "0.025", "0.5", "2.5", "-0.005", "-2.5", "1", "0", "999999999.999999", "0.004999"]
ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "America/Havana"]
FIRST = datetime(2026, 1, 27, tzinfo=UTC)


@dataclass(frozen=True)
class Plan:
    """What happens to a home, and by which rules."""

    billing: dict[str, Any]
    steps: list[tuple[str, Any]]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Time goes on by days from one month into the next ones; what arrives is of now, of last month, or older."""
    billing = {
        "zone": draw(st.sampled_from(ZONES)),
        "currency": draw(st.sampled_from(["EUR", "JPY", "KWD"])),
        "out_of_orderness": draw(st.sampled_from(["0s", "12h", "2d"])),
        "allowed_lateness": draw(st.sampled_from(["0s", "3d", "20d", "20d", "40d", "40d"])),
        "revision_step": draw(st.sampled_from(["0s", "6h", "1d", "7d", "60d"])),
    }
    steps: list[tuple[str, Any]] = []
    at = FIRST
    for _ in range(draw(st.integers(3, 10))):
        at += timedelta(hours=draw(st.sampled_from([1, 7, 24, 48, 72, 120, 120, 500])))
        lines = []
        for _ in range(draw(st.integers(1, 4))):
            of_last_month = at - at.replace(day=1, hour=0) + timedelta(hours=draw(st.integers(1, 200)))
            back = draw(st.sampled_from([timedelta(), timedelta(), of_last_month, of_last_month, timedelta(days=70)]))
            customer, type_ = draw(st.sampled_from(["ann", "bob", "céd"])), draw(st.sampled_from(["CALL", "DATA"]))
            amount = draw(st.sampled_from(AMOUNTS))
            lines.append(event(customer, amount, (at - back).isoformat(), type_))
            if draw(st.integers(0, 3)) == 0:  # and its opposite, so that nothing changes
                lines.append(event(customer, str(-Decimal(amount)), (at - back).isoformat(), type_))
        steps.append(("append", (lines, draw(st.sampled_from(["a", "a", "b"])), draw(st.sampled_from([1, 1, 30])))))
        for name in draw(st.lists(st.sampled_from(["close", "snapshot", "round off", "mark", "wait"]), max_size=3)):
            steps.append((name, None))
    if draw(st.integers(0, 5)) == 0:
        steps.append(("tick", None))
    return Plan(billing, steps)


def carry_out(books: Books, plan: Plan) -> None:
    job = books.job
    for name, what in plan.steps:
        if name == "append":
            lines, partition, minutes = what
            books.append(*lines, partition=partition, minutes=minutes)
            books.bill()
        elif name == "close":
            books.close()
        elif name == "snapshot":
            books.snapshot()
        elif name == "mark":
            books.close()
            books.closer.mark()
        elif name == "round off":
            job.round_off(to_us(books.now))
        elif name == "tick":
            job.tick(to_us(books.now + timedelta(days=2)))


@examples(20)
@given(plans())
def test_the_audit_agrees_with_every_ledger(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as directory:
        books = Books(Path(directory) / "home", **plan.billing)
        carry_out(books, plan)
        assert failing(books.verify()) == {}, "also where something is not yet issued"
        books.close()
        books.snapshot()
        report = books.verify()
        assert failing(report) == {}
        rows = rows_of(books.invoices)
        checked = check_of(report, "invoices")
        assert checked.compared == len({(r["period"], r["customer"], r["revision"]) for r in rows})
        assert checked.note == ""
        last = balances.latest(books.home.ledger)
        assert check_of(report, "balances").compared == last.rows.count_rows()
        for row in rows:
            invoice = invoice_of(books.invoices, row["period"], row["customer"], row["revision"])
            found = trace(books.home, books.journal, row["period"], row["customer"], upto=invoice.position)
            assert found.total_minor(books.home["billing.currency"]) == invoice.total_minor == row["total_minor"]


@examples(8)
@given(plans(), st.randoms(use_true_random=False))
def test_any_one_change_is_found(plan: Plan, chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as directory:
        books = Books(Path(directory) / "home", **plan.billing)
        carry_out(books, plan)
        books.close()
        rows = rows_of(books.invoices)
        if not rows:
            return
        at = chance.randrange(len(rows))
        column = chance.choice(["amount_micros", "event_count", "total_minor", "position", "revision"])
        changed = [r | {column: r[column] + chance.choice([-1, 1])} if i == at else r for i, r in enumerate(rows)]
        for table in (changed, rows[:at] + rows[at + 1 :], [*rows, rows[at]]):
            assert set(failing(books.verify(FakeInvoices(books.invoices.position, table)))) == {"invoices"}


# --- one ledger, by hand -----------------------------------------------------------------------

RULES = {"out_of_orderness": "0s", "allowed_lateness": "3d", "revision_step": "1d"}


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """January is closed, revised twice and final; February is closed; March is open.

    1  ann and bob in January
    2  February begins: January closes
    3  ann is late; nothing is due
    4  a step on: ann is revised
    5  bob is late twice, and it cancels out; dan is late for the first time
    6  January is final: dan gets his invoice, bob keeps his
    7  beyond: ann's January is an adjustment of February
    8  March begins: February closes
    """
    made = Books(tmp_path_factory.mktemp("books") / "home", **RULES)
    made.bill(event("ann", "5.00", "2026-01-10T00:00:00Z"), event("bob", "1.005", "2026-01-31T23:00:00Z", "DATA"))
    made.bill(event("ann", "0.25", "2026-02-01T00:00:00Z"))
    made.close()
    made.bill(event("ann", "2.00", "2026-01-31T00:00:00Z"), event("ann", "0.000001", "2026-01-30T00:00:00Z", "DATA"))
    made.bill(event("ann", "0.25", "2026-02-02T06:00:00Z"))
    made.close()
    made.bill(event("bob", "3", "2026-01-31T00:00:00Z", "DATA"), event("bob", "-3", "2026-01-31T00:00:00Z", "DATA"),
              event("dan", "-0.015", "2026-01-31T00:00:00Z"))  # fmt: skip
    made.bill(event("ann", "0.25", "2026-02-04T06:00:00Z"))
    made.snapshot()
    made.bill(event("ann", "0.125", "2026-01-05T00:00:00Z"))
    made.bill(event("ann", "7", "2026-03-01T00:00:00Z"))
    made.close()
    made.snapshot()
    return made


def test_the_story_is_right(books: Books) -> None:
    report = books.verify()
    assert failing(report) == {}
    issued = [
        (r["period"], r["customer"], r["revision"], r["kind"], r["type"], int(r["amount_micros"]), int(r["total_minor"]),
         r["previous_total_minor"] and int(r["previous_total_minor"]), r["position"])
        for r in rows_of(books.invoices)
    ]  # fmt: skip
    assert issued == [
        ("2026-01", "ann", 1, "usage", "CALL", 5_000_000, 500, None, 2),
        ("2026-01", "ann", 2, "usage", "CALL", 7_000_000, 700, 500, 4),
        ("2026-01", "ann", 2, "usage", "DATA", 1, 700, 500, 4),
        ("2026-01", "bob", 1, "usage", "DATA", 1_005_000, 100, None, 2),
        ("2026-01", "dan", 1, "usage", "CALL", -15_000, -2, None, 6),
        ("2026-02", "ann", 1, "adjustment", "CALL", 125_000, 88, None, 8),
        ("2026-02", "ann", 1, "usage", "CALL", 750_000, 88, None, 8),
    ]
    assert [(c.name, c.compared) for c in report.checks[-2:]] == [("invoices", 5), ("balances", 5)]


def changed(column: str, change: Callable[[Any], Any], **which: Any) -> Callable[[list[Row]], list[Row]]:
    """Change one column of the rows that have these values."""

    def tamper(rows: list[Row]) -> list[Row]:
        hit = [all(row[name] == value for name, value in which.items()) for row in rows]
        assert any(hit)
        return [row | {column: change(row[column])} if is_hit else row for row, is_hit in zip(rows, hit, strict=True)]

    return tamper


def without(**which: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [row for row in rows if any(row[name] != value for name, value in which.items())]


def twice(**which: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: rows + [row for row in rows if all(row[name] == value for name, value in which.items())]


def too_early(rows: list[Row]) -> list[Row]:
    """March is open: ann's invoice of February, as if it were one of March."""
    return rows + [row | {"period": "2026-03", "kind": "usage"} for row in rows if row["period"] == "2026-02"][:1]


def plus(step: int) -> Callable[[Any], Any]:
    return lambda value: value + step


ANN_2 = {"period": "2026-01", "customer": "ann", "revision": 2}
FEBRUARY = {"period": "2026-02"}


@pytest.mark.parametrize(
    ("tamper", "differences", "says"),
    [
        (changed("amount_micros", plus(1), type="DATA", **ANN_2), 1,
         "2026-01, customer 'ann', revision 2, position 4; usage 2026-01 DATA: the ledger says 0.000002 in 1 events,"
         " the log says 0.000001 in 1 events"),
        (changed("event_count", plus(1), type="DATA", **ANN_2), 1, "the ledger says 0.000001 in 2 events"),
        (changed("total_minor", plus(-1), **ANN_2), 1,
         "revision 2, position 4; total: the ledger says 6.99 EUR, the log says 7.00 EUR"),
        (changed("total_minor", plus(1), type="DATA", **ANN_2), 1, "total: the ledger says 7.01 EUR"),
        (changed("previous_total_minor", plus(1), **ANN_2), 1,
         "previous total: the ledger says 5.01 EUR, the log says 5.00 EUR"),
        (changed("previous_total_minor", lambda _: 0, customer="bob"), 1,
         "previous total: the ledger says 0.00 EUR, the log says nothing"),
        (changed("position", plus(-1), **ANN_2), 1,
         "issued at position: the ledger says 3, the log says 4"),
        (changed("position", plus(-2), **FEBRUARY), 2, "issued at position: the ledger says 6, the log says 8"),
        (changed("position", plus(5), **FEBRUARY), 1, "issued at position: the ledger says 13, the log says 8"),
        (without(**ANN_2), 1,
         "2026-01, customer 'ann', revision 2, position 4: the ledger says nothing, the log says 7.00 EUR (7.000001)"),
        (without(customer="dan"), 1, "customer 'dan', revision 1, position 6: the ledger says nothing, the log says -0.02"),
        (without(type="DATA", **ANN_2), 1, "usage 2026-01 DATA: the ledger says nothing, the log says 0.000001"),
        (lambda rows: [], 5, "customer 'bob', revision 1, position 2: the ledger says nothing"),
        (twice(**ANN_2), 1, "usage 2026-01 CALL: the ledger says it 2 times, the log once"),
        (twice(type="DATA", **ANN_2), 1, "usage 2026-01 DATA: the ledger says it 2 times"),
        (changed("revision", plus(1), **ANN_2), 2,
         "revision 3, position 4: the ledger says 7.00 EUR, the log says nothing"),
        (changed("kind", lambda _: "usage", **FEBRUARY), 1, "usage 2026-01 CALL: the ledger says 0.125000"),
        (changed("line_period", lambda _: "2026-02", kind="adjustment"), 1, "adjustment 2026-02 CALL"),
        (changed("customer", lambda _: "ann ", **FEBRUARY), 2, "customer 'ann '"),
        (changed("kind", lambda _: None, **FEBRUARY), 1, "nothing"),
        (too_early, 1, "2026-03, customer 'ann', revision 1, position 8: the ledger says 0.88 EUR, the log says nothing"),
        (changed("issued_at", plus(timedelta(seconds=1)), customer="bob"), 1, "position 2: the ledger says issued from"),
        (changed("issued_at", lambda _: None, customer="dan"), 1, "position 6: the ledger says issued at no time"),
    ],
)  # fmt: skip
def test_each_change_of_an_invoice_is_found(
    books: Books, tamper: Callable[[list[Row]], list[Row]], differences: int, says: str
) -> None:
    report = books.verify(FakeInvoices(books.invoices.position, tamper(rows_of(books.invoices))))
    found = failing(report)
    assert set(found) == {"invoices"}
    assert any(says in sample for sample in found["invoices"]), found["invoices"]
    assert check_of(report, "invoices").differences == differences


def test_an_invoice_before_its_time(books: Books) -> None:
    """February, issued by a ledger that has come to position 7, is due at position 8."""
    rows = [row | {"position": min(row["position"], 7)} for row in rows_of(books.invoices)]
    (sample,) = failing(books.verify(FakeInvoices(7, rows)))["invoices"]
    assert sample == (
        "2026-02, customer 'ann', revision 1, position 7: the ledger says 0.88 EUR, the log says 0.88 EUR at position 8"
    )


def test_what_is_not_yet_issued_is_a_note(books: Books) -> None:
    rows = rows_of(books.invoices)
    for position, waiting in ((0, 5), (1, 5), (2, 3), (3, 3), (4, 2), (5, 2), (6, 1), (7, 1), (8, 0)):
        issued = FakeInvoices(position, [row for row in rows if row["position"] <= position])
        report = books.verify(issued)
        assert failing(report) == {}
        assert check_of(report, "invoices").compared == 5 - waiting
        assert check_of(report, "invoices").note == (f"{waiting} are due and not yet issued" if waiting else "")
    assert check_of(books.verify(NoInvoices()), "invoices").note == "5 are due and not yet issued"


def test_what_was_issued_behind_the_batches_looked_at_is_left_out(books: Books) -> None:
    """A pipeline may be at work: the journal that we hold ends at batch 5, the invoices go on."""

    class Earlier:
        def batches(self) -> list[Any]:
            return books.journal.batches(upto=5)

        def entries(self) -> ds.Dataset:
            return books.journal.entries(upto=5)

        def rejections(self) -> ds.Dataset:
            return books.journal.rejections(upto=5)

        def seen(self) -> ds.Dataset:
            return books.journal.seen(upto=5)

    snapshot = balances.latest(books.home.ledger)
    report = verify(books.home, Earlier(), invoices=books.invoices, balances=snapshot)
    assert failing(report) == {}
    assert (check_of(report, "invoices").compared, check_of(report, "balances").compared) == (3, 0)
    assert check_of(report, "invoices").note == "2 of positions after batch 5 are left out"
    assert check_of(report, "balances").note == "the snapshot of batch 8 is not of the batches looked at"


# --- balances ----------------------------------------------------------------------------------


def last_snapshot(books: Books, rows: list[Row] | None = None) -> balances.Snapshot:
    found = balances.latest(books.home.ledger)
    return found if rows is None else replace(found, rows=ds.dataset(pa.Table.from_pylist(rows, schema=BALANCE)))


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (changed("sum_micros", plus(1), period="2026-03"),
         "2026-03, 2026-03-01, customer 'ann', CALL: the snapshot of batch 8 says 7.000001 in 1 events"
         " (last 2026-03-01T00:00:00.000000Z), the log says 7.000000 in 1 events"),
        (changed("event_count", plus(1), period="2026-03"), "says 7.000000 in 2 events"),
        (changed("last_at", plus(timedelta(microseconds=1)), period="2026-03"), "(last 2026-03-01T00:00:00.000001Z)"),
        (without(period="2026-03"), "2026-03, 2026-03-01, customer 'ann', CALL: the snapshot of batch 8 says nothing"),
        (twice(period="2026-03"), "the snapshot of batch 8 says it 2 times, the log says it once"),
        (changed("batch", plus(1), period="2026-03"), "the log says nothing"),
        (changed("period", lambda _: "2026-02", period="2026-03"), "2026-02, 2026-03-01"),
        (lambda rows: [*rows, rows[0] | {"period": "2026-01"}], "2026-01, "),
    ],
)  # fmt: skip
def test_each_change_of_a_balance_is_found(books: Books, tamper: Callable[[list[Row]], list[Row]], says: str) -> None:
    rows = last_snapshot(books).rows.to_table().to_pylist()
    found = failing(books.verify(snapshot=last_snapshot(books, tamper(rows))))
    assert set(found) == {"balances"}
    assert any(says in sample for sample in found["balances"]), found["balances"]


def test_a_snapshot_of_another_history_is_left_out(books: Books) -> None:
    other = replace(last_snapshot(books, []), run="another")
    report = books.verify(snapshot=other)
    assert failing(report) == {}
    assert check_of(report, "balances").compared == 0
    assert check_of(books.verify(snapshot=balances.empty()), "balances").note == "there is no snapshot yet"


# --- rounding ----------------------------------------------------------------------------------


@examples(300)
@given(
    st.one_of(st.integers(-(10**8), 10**8), st.integers(-(10**30), 10**30)),
    st.sampled_from(["EUR", "JPY", "KWD", "CLF"]),
)
def test_totals_are_rounded_half_to_even(micros: int, currency: str) -> None:
    unit = minor_micros(currency)
    assert half_even(micros, unit) == round(Fraction(micros, unit)), "Python rounds a fraction half to even"
    row = duckdb.execute(
        f"SELECT {half_even_sql('m', 'u')} FROM (SELECT {micros}::HUGEINT AS m, {unit}::BIGINT AS u)"
    ).fetchone()
    assert row == (half_even(micros, unit),)


@pytest.mark.parametrize(
    ("micros", "cents"), [(5_000, 0), (15_000, 2), (-5_000, 0), (-15_000, -2), (15_001, 2), (-25_001, -3)]
)
def test_a_half_goes_to_the_even_cent(micros: int, cents: int) -> None:
    assert half_even(micros, 10_000) == cents
    assert half_even(micros + 10**30, 10_000) == cents + 10**26


def test_both_know_the_same_minor_units() -> None:
    assert {code: money.minor_digits(code) for code in DECIMALS_BY_CURRENCY} == DECIMALS_BY_CURRENCY
    assert set(money.MINOR_DIGITS) == set(DECIMALS_BY_CURRENCY)


# --- trace -------------------------------------------------------------------------------------


def ask(books: Books, *args: str) -> tuple[int, str]:
    """A command as main() runs it, in this process."""
    result = CliRunner().invoke(commands, [*args, "--home", str(books.home.path)], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


def test_trace_of_a_revision(books: Books) -> None:
    found = trace(books.home, books.journal, "2026-01", "ann", upto=2)
    assert [(line.batch, line.amount_micros) for line in found.lines] == [(1, 5_000_000)]
    code, shown = ask(books, "trace", "--period", "2026-01", "--customer", "ann", "--revision", "2")
    header, _, *lines, footer = shown.splitlines()
    assert header.startswith("invoice of 2026-01 for ann, revision 2: 7.00 EUR, position 4, issued at 2")
    assert [line.split()[0] for line in lines] == ["1", "3", "3"]
    assert footer == "3 events, 7.000001 EUR in 2026-01 for ann; rounded 7.00, as the invoice says"
    assert code == 0
    _, first = ask(books, "trace", "--period", "2026-01", "--customer", "ann", "--revision", "1")
    assert first.splitlines()[-1] == "1 event, 5.000000 EUR in 2026-01 for ann; rounded 5.00, as the invoice says"
    _, csv = ask(books, "trace", "--period", "2026-01", "--customer", "ann", "--revision", "1", "--format", "csv")
    assert len(csv.splitlines()) == 2
    _, events = ask(
        books, "trace", "--period", "2026-02", "--customer", "ann", "--revision", "1", "--events", "--format", "csv"
    )
    assert [line.split(",")[4] for line in events.splitlines()[1:]] == ["usage", "usage", "usage", "adjustment"]


def test_trace_without_a_revision_is_as_before(books: Books) -> None:
    code, shown = ask(books, "trace", "--period", "2026-01", "--customer", "ann")
    assert shown.splitlines()[0].startswith("batch")
    assert shown.splitlines()[-1] == "3 events, 7.000001 EUR in 2026-01 for ann"
    assert code == 0


def test_a_revision_that_does_not_exist(books: Books) -> None:
    with pytest.raises(InputError, match=r"there is no revision 3 of the invoice of 2026-01 for 'ann'") as error:
        ask(books, "trace", "--period", "2026-01", "--customer", "ann", "--revision", "3")
    assert error.value.hint == "there are: 1, 2"
    with pytest.raises(InputError) as error:
        ask(books, "trace", "--period", "2026-03", "--customer", "ann", "--revision", "1")
    assert error.value.hint == "none has been issued yet; leave out --revision"


def test_verify_as_a_command(books: Books) -> None:
    code, shown = ask(books, "verify")
    assert code == 0
    assert "agrees   invoices                  5 compared\n" in shown
    assert "agrees   balances                  5 compared\n" in shown


def test_an_invoice_that_its_cents_do_not_add_up_to(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row | {"total_minor": row["total_minor"] + 1} for row in rows_of(books.invoices)]
    monkeypatch.setattr(Invoices, "open", lambda _: FakeInvoices(8, rows))
    code, shown = ask(books, "trace", "--period", "2026-01", "--customer", "bob", "--revision", "1")
    assert code == 1
    assert "revision 1: 1.01 EUR" in shown
    assert shown.splitlines()[-1].endswith("1.005000 EUR in 2026-01 for bob; rounded 1.00, NOT what the invoice says")


def test_invoices_of_another_backup(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Invoices, "open", lambda _: FakeInvoices(9, []))
    with pytest.raises(LedgerError, match="invoices were issued at position 9, but the journal ends at 8"):
        ask(books, "verify")
