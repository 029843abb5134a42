"""Closing the month: who gets an invoice, when, and what it says.

The stories are written as a ledger: on the left a batch, on the right the invoices it brings.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_examples import examples
from ledgers import bill, new_home, open_job
from opentab.billing.upkeep import keep_up
from opentab.closing.closer import Closer
from opentab.closing.closing import preview
from opentab.core.errors import Fenced
from opentab.core.money import round_to_minor
from opentab.core.periods import to_us
from opentab.ledger import balances
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import Statement, changes, read_statement, statement_texts
from opentab.ledger.invoice_lines import INVOICE_OF_PERIOD, ISSUED, LINES, issue
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.period_status import standings
from opentab.runtime import crash
from opentab.runtime.config import Home
from product import event

MONTHS = dict(zip("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), range(1, 13), strict=True))
NO_DISORDER = '[billing]\nout_of_orderness = "0s"\nallowed_lateness = "3d"\n'


def issued(home: Home) -> list[Statement]:
    """Every revision that was ever issued, in the order of position, period and customer."""
    table = Invoices.open(home.ledger)
    if table is None:
        return []
    with connect() as connection:
        texts = statement_texts(connection, table.rows(), currency=home["billing.currency"], all_revisions=True)
        statements = [read_statement(text) for text in texts]
    return sorted(statements, key=lambda s: (s.position, s.period, s.customer))


def without_time(statements: list[Statement]) -> list[dict[str, object]]:
    return [{**s.as_json(), "issued_at": None} for s in statements]


def check(home: Home, story: str) -> None:
    """Play a story: a batch a line, `→` what it issues; `once` ends a run with that batch."""
    for line in filter(None, map(str.strip, story.splitlines())):
        left, _, right = line.partition("→")
        revise = left.rstrip().endswith("once")
        events = []
        for use in left.removesuffix("once").replace("once", "").split(","):
            customer, day, kind, amount = use.split()
            month, _, number = day.partition("-")
            events.append(event(customer, amount, f"2026-{MONTHS[month]:02d}-{number}T00:00:00Z", kind))
        before = len(issued(home))
        bill(home, *events, revise=revise)
        found = [f"{s.period[5:]} {s.customer} r{s.revision} {s.total}" for s in issued(home)[before:]]
        wanted = [f"{MONTHS[w.split()[0]]:02d} {' '.join(w.split()[1:])}" for w in right.split(",") if w.strip()]
        assert found == wanted, line


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return new_home(tmp_path / "home", NO_DISORDER)


def test_a_month_closes_when_the_watermark_reaches_its_end(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00
        bob Jan-31 DATA 2.00
        ann Feb-01 CALL 1.00    → Jan ann r1 5.00, Jan bob r1 2.00
        ann Mar-01 CALL 1.00    → Feb ann r1 1.00
    """)  # fmt: skip


def test_events_of_the_closing_batch_are_on_time(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00
        ann Feb-01 CALL 1.00, ann Jan-11 CALL 2.00    → Jan ann r1 7.00
    """)  # fmt: skip


def test_late_events_revise_at_a_step_of_the_watermark_and_many_make_one(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00
        bob Feb-01 CALL 1.00     → Jan ann r1 5.00
        ann Jan-11 CALL 2.00
        ann Jan-12 DATA 1.00
        cat Jan-12 DATA 9.00
        bob Feb-02 CALL 1.00     → Jan ann r2 8.00, Jan cat r1 9.00
        bob Feb-03 CALL 1.00
        ann Jan-12 DATA 1.00
        bob Feb-04 CALL 1.00     → Jan ann r3 9.00
    """)  # fmt: skip


def test_the_end_of_once_revises(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00
        bob Feb-01 CALL 1.00         → Jan ann r1 5.00
        ann Jan-11 CALL 2.00
        ann Jan-12 CALL 3.00 once    → Jan ann r2 10.00
        ann Jan-12 CALL 3.00
    """)  # fmt: skip


def test_beyond_the_lateness_it_is_an_adjustment_of_the_month_the_watermark_is_in(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00
        bob Feb-04 CALL 1.00     → Jan ann r1 5.00
        ann Jan-11 CALL 2.00
        bob Jan-11 CALL 4.00
        bob Mar-01 CALL 1.00     → Feb ann r1 2.00, Feb bob r1 5.00
    """)  # fmt: skip
    adjusted = [s for s in issued(home) if s.period == "2026-02"]
    assert [[line.as_json() for line in s.lines] for s in adjusted] == [
        [{"kind": "adjustment", "period": "2026-01", "type": "CALL", "amount": "2.000000", "events": 1}],
        [
            {"kind": "usage", "type": "CALL", "amount": "1.000000", "events": 1},
            {"kind": "adjustment", "period": "2026-01", "type": "CALL", "amount": "4.000000", "events": 1},
        ],
    ]


def test_what_cancels_out_is_revised_only_if_a_line_changed(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00, bob Jan-10 CALL 5.00
        zoe Feb-01 CALL 1.00                           → Jan ann r1 5.00, Jan bob r1 5.00
        ann Jan-11 CALL 3.00, bob Jan-11 CALL 3.00
        ann Jan-11 CALL -3.00, bob Jan-11 DATA -3.00, cat Jan-11 DATA 1.00, cat Jan-11 DATA -1.00
        zoe Feb-02 CALL 1.00                           → Jan bob r2 5.00, Jan cat r1 0.00
        ann Jan-12 CALL 1.00
        zoe Feb-03 CALL 1.00                           → Jan ann r2 6.00
    """)  # fmt: skip
    (ann,) = [s for s in issued(home) if s.customer == "ann" and s.revision == 2]
    assert ann.lines[0].events == 4, "a revision carries all events, also those that cancelled out"


def test_a_revision_carries_the_total_before_and_the_difference(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.005
        bob Feb-01 CALL 1.00          → Jan ann r1 5.00
        ann Jan-11 CALL -2.01 once    → Jan ann r2 3.00
    """)  # fmt: skip
    first, second = issued(home)
    assert (first.previous_total, first.delta) == (None, "5.00")
    assert (second.previous_total, second.delta) == ("5.00", "-2.00")
    assert second.lines[0].amount == "2.995000"


def test_a_watermark_that_jumps_closes_all_months_it_passes(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00
        ann Feb-10 CALL 6.00, bob May-01 CALL 1.00     → Jan ann r1 5.00, Feb ann r1 6.00
        ann Feb-11 CALL 1.00
        ann Jan-11 CALL 1.00
        bob Jun-01 CALL 1.00     → May ann r1 2.00, May bob r1 1.00
    """)  # fmt: skip


def test_late_usage_of_a_month_that_had_none_gets_revision_1(home: Home) -> None:
    check(home, """
        ann Mar-01 CALL 1.00
        bob Feb-28 CALL 3.00
        ann Mar-02 CALL 1.00     → Feb bob r1 3.00
    """)  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "before", "after"),
    [
        ("UTC", "2024-02-29T23:59:59.999Z", "2024-03-01T00:00:00Z"),
        ("Europe/Berlin", "2026-03-31T21:59:59Z", "2026-03-31T22:00:00Z"),  # summer time since two days
        ("Europe/Berlin", "2026-10-31T22:59:59Z", "2026-10-31T23:00:00Z"),
        ("America/New_York", "2026-12-31T23:59:59-05:00", "2027-01-01T05:00:00Z"),
        ("Asia/Kathmandu", "2026-02-28T18:14:59Z", "2026-02-28T18:15:00Z"),
        ("Africa/Cairo", "2023-04-30T20:59:59Z", "2023-04-30T21:00:00Z"),  # clocks jumped over a midnight on the 28th
    ],
)
def test_months_end_by_the_zones_own_clocks(tmp_path: Path, zone: str, before: str, after: str) -> None:
    home = new_home(tmp_path / "home", f'{NO_DISORDER}zone = "{zone}"\nfuture_skew = "36500d"\n')
    bill(home, event("ann", "1.00", before))
    assert issued(home) == []
    bill(home, event("bob", "1.00", after))
    (invoice,) = issued(home)
    assert (invoice.customer, invoice.total) == ("ann", "1.00")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
def test_months_at_the_calendars_ends(tmp_path: Path, zone: str) -> None:
    home = new_home(tmp_path / "home", f'[billing]\nzone = "{zone}"\nfuture_skew = "36500d"\n')
    bill(home, event("ann", "1.00", "0001-01-02T00:00:00Z"))
    bill(home, event("ann", "2.00", "0001-01-03T00:00:00Z"))
    bill(home, event("ann", "4.00", "0001-03-03T00:00:00Z"))
    assert [(s.period, s.total) for s in issued(home)] == [("0001-01", "3.00")]
    bill(home, event("ann", "8.00", "2100-12-30T00:00:00Z"))
    assert [(s.period, s.total) for s in issued(home)] == [("0001-01", "3.00"), ("0001-03", "4.00")]


def test_what_was_issued_is_not_issued_again(home: Home) -> None:
    check(home, """
        ann Jan-10 CALL 5.00
        bob Feb-01 CALL 1.00     → Jan ann r1 5.00
    """)  # fmt: skip
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    assert Closer(home, run="again").close_due(journal) == []
    assert len(issued(home)) == 1


def test_the_slower_of_two_closers_is_fenced(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"))
    bill(home, event("bob", "1.00", "2026-02-01T00:00:00Z"), close=False)
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    ours = True

    def overtaken(name: str) -> None:
        if name == "closing_staged":
            monkeypatch.setattr(crash, "moment", lambda name: None)
            Closer(home, run="faster").close_due(journal)

    monkeypatch.setattr(crash, "moment", overtaken)
    slower = Closer(home, run="slower", is_ours=lambda: ours)
    # It still owns the home: it goes on behind what the other one issued.
    assert slower.close_due(journal) == []
    assert len(issued(home)) == 1

    bill(home, event("bob", "1.00", "2026-03-01T00:00:00Z"), close=False)
    journal.refresh()

    def overtaken_for_good(name: str) -> None:
        nonlocal ours
        if name == "closing_staged":
            monkeypatch.setattr(crash, "moment", lambda name: None)
            Closer(home, run="faster").close_due(journal)
            ours = False

    monkeypatch.setattr(crash, "moment", overtaken_for_good)
    with pytest.raises(Fenced):
        slower.close_due(journal)
    assert len(issued(home)) == 2


def test_the_preview_shows_what_would_be_issued_and_what_changed(home: Home) -> None:
    def previewed() -> list[Statement]:
        journal = Journal.open(home.ledger, home.identity)
        assert journal is not None
        rows = preview(journal, Invoices.open(home.ledger), home.calendar, "2026-01", currency="EUR")
        with connect() as connection:
            return [read_statement(text) for text in statement_texts(connection, rows, currency="EUR")]

    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"))
    (open_,) = previewed()
    assert (open_.revision, open_.total, open_.issued_at) == (1, "5.00", None)
    bill(home, event("bob", "1.00", "2026-02-01T00:00:00Z"))
    assert previewed() == []
    bill(home, event("ann", "2.00", "2026-01-11T00:00:00Z"))
    (revised,) = previewed()
    assert (revised.revision, revised.total, revised.previous_total, revised.delta) == (2, "7.00", "5.00", "2.00")
    assert [line.amount for line in changes(revised, issued(home)[0])] == ["2.000000"]
    assert len(issued(home)) == 1, "a preview issues nothing"


def test_standings_say_what_each_period_waits_for(home: Home) -> None:
    def standing() -> dict[str, tuple[str, str, int]]:
        journal = Journal.open(home.ledger, home.identity)
        found = standings(journal, Invoices.open(home.ledger), home.calendar)
        return {s.period: (s.status, s.missing.as_text() if s.missing else "", s.revisions) for s in found}

    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"))
    assert standing() == {
        "2026-01": ("open", "closes with an event of 2026-02-01 00:00Z or later: default is at 2026-01-10 00:00Z", 0)
    }
    bill(home, event("ann", "5.00", "2026-02-01T00:00:00Z"))
    bill(home, event("ann", "5.00", "2026-01-11T00:00:00Z"), revise=True)
    status, missing, revisions = standing()["2026-01"]
    assert (status, revisions) == ("closed", 1)
    assert missing == "is final with an event of 2026-02-04 00:00Z or later: default is at 2026-02-01 00:00Z"
    bill(home, event("ann", "5.00", "2026-02-04T00:00:00Z"))
    assert standing()["2026-01"] == ("final", "", 1)


# ------------------------------------------------------------------------------- the pure closing function

amounts = st.one_of(st.integers(-(10**16), 10**16), st.integers(-20_000, 20_000), st.just(0))
lines_of_a_round = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cat"]),
        st.sampled_from(["2026-01", "2025-12"]),
        st.sampled_from(["CALL", "DATA"]),
        amounts,
    ),
    max_size=6,
)


@examples(150)
@given(st.lists(lines_of_a_round, min_size=1, max_size=5), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_revisions_count_without_gaps_and_deltas_sum_to_the_last_total(
    rounds: list[list[tuple[str, str, str, int]]], currency: str
) -> None:
    sums: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    latest: dict[str, list[dict[str, object]]] = {}
    totals: dict[str, list[int]] = defaultdict(list)
    for position, added in enumerate(rounds, start=1):
        for customer, own, kind, micros in added:
            sums[customer, own, kind] += micros
            counts[customer, own, kind] += 1
        lines = pa.Table.from_pylist(
            [
                {"period": "2026-01", "customer": c, "line_period": o, "type": k, "amount_micros": Decimal(sums[c, o, k]),
                 "event_count": counts[c, o, k]}
                for c, o, k in counts
            ],
            schema=LINES,
        )  # fmt: skip
        before = pa.Table.from_pylist([row for rows in latest.values() for row in rows], schema=ISSUED)
        table = issue(lines, before, currency=currency, position=position, issued_us=0)
        assert table.schema == INVOICE_OF_PERIOD
        found: dict[str, list[dict[str, object]]] = defaultdict(list)
        for row in table.to_pylist():
            found[row["customer"]].append(row)
        for customer in {c for c, _, _ in counts}:
            own_lines = {(o, k): sums[c, o, k] for c, o, k in counts if c == customer}
            old = {(r["line_period"], r["type"]): r["amount_micros"] for r in latest.get(customer, [])}
            changed = any(old.get(key, 0) != amount for key, amount in own_lines.items())
            assert (customer in found) == (customer not in latest or changed)
            if customer not in found:
                continue
            rows = found[customer]
            exact = Decimal(sum(own_lines.values()))
            digits = {"EUR": 4, "JPY": 6, "KWD": 3}[currency]
            rounded = int((exact / 10**digits).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))
            assert {(r["line_period"], r["type"]): r["amount_micros"] for r in rows} == own_lines
            assert {int(r["total_minor"]) for r in rows} == {rounded}  # type: ignore[call-overload]
            previous = totals[customer][-1] if totals[customer] else None
            assert {r["previous_total_minor"] for r in rows} == {previous}
            totals[customer].append(rounded)
            assert {r["revision"] for r in rows} == {len(totals[customer])}
            latest[customer] = rows


@given(st.integers(-(10**30), 10**30), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_rounding_is_half_even_and_exact(micros: int, currency: str) -> None:
    digits = {"EUR": 4, "JPY": 6, "KWD": 3}[currency]
    wanted = (Decimal(micros) / 10**digits).quantize(Decimal(1), rounding=ROUND_HALF_EVEN)
    assert round_to_minor(micros, currency) == wanted


# --------------------------------------------------------------------------------------- any batches, any crash

DAYS = st.integers(1, 110)
uses = st.tuples(
    st.sampled_from(["ann", "bob"]), DAYS, st.sampled_from(["CALL", "DATA"]), st.integers(-5_000_000, 5_000_000)
)
batches = st.lists(st.tuples(st.lists(uses, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=7)
moments = st.lists(
    st.sampled_from([None, "closing", "closing_staged", "issued", "snapshot", "snapshotted"]), min_size=8, max_size=8
)


class Crash(Exception):
    """The process died here."""


def line_of(use: tuple[str, int, str, int]) -> str:
    customer, day, kind, micros = use
    month, number = divmod(day - 1, 28)
    return event(customer, f"{Decimal(micros) / 10**6:.6f}", f"2026-{month + 1:02d}-{number + 1:02d}T12:00:00Z", kind)


def play(home: Home, script: list[tuple[list[tuple[str, int, str, int]], bool]], dies_at: list[str | None]) -> None:
    """Bill batch after batch with all that comes behind, dying and starting again as the script says."""
    with pytest.MonkeyPatch.context() as patched:
        for number, (batch, revise) in enumerate(script):
            wanted = dies_at[number] if number < len(dies_at) else None

            def moment(name: str, wanted: str | None = wanted) -> None:
                if name == wanted:
                    raise Crash(name)

            bill(home, *map(line_of, batch), revise=revise, close=False)
            for attempt in (moment, lambda name: None):
                patched.setattr(crash, "moment", attempt)
                journal = Journal.open(home.ledger, home.identity)
                assert journal is not None
                try:
                    keep_up(journal, home, Closer(home, run=f"run{number}"), run=f"run{number}")
                    break
                except Crash:
                    continue


@pytest.mark.slow
@examples(25)
@given(batches, moments)
def test_invoices_and_adjustments_equal_the_events_whatever_dies(
    script: list[tuple[list[tuple[str, int, str, int]], bool]], dies_at: list[str | None]
) -> None:
    # Two more batches let all months and all adjustments be final.
    end = [([("zoe", 1, "CALL", 0)], False)]
    far = event("zoe", "0", "2026-06-01T00:00:00Z"), event("zoe", "0", "2026-08-01T00:00:00Z")
    with tempfile.TemporaryDirectory() as directory:
        settings_ = '[billing]\nout_of_orderness = "1d"\nallowed_lateness = "3d"\n[pipeline]\nsnapshot_batches = 2\n'
        homes = [new_home(Path(directory) / name, settings_) for name in ("crashed", "smooth")]
        for home, crashes in zip(homes, (dies_at, []), strict=True):
            play(home, [*script, *end], crashes)
            for line in far:
                bill(home, line)
        crashed, smooth = homes
        statements = issued(crashed)
        assert without_time(statements) == without_time(issued(smooth)), "given the same batches, the same invoices"

        events: Counter[tuple[str, str, str]] = Counter()
        for batch, _ in [*script, *end]:
            for customer, day, kind, micros in batch:
                events[customer, f"2026-{(day - 1) // 28 + 1:02d}", kind] += micros
        billed: Counter[tuple[str, str, str]] = Counter()
        revisions: dict[tuple[str, str], list[Statement]] = defaultdict(list)
        for statement in statements:
            revisions[statement.period, statement.customer].append(statement)
        for (period, customer), own in revisions.items():
            assert [s.revision for s in own] == list(range(1, len(own) + 1))
            assert sum(Decimal(s.delta) for s in own) == Decimal(own[-1].total)
            for line in own[-1].lines:
                billed[customer, line.period or period, line.type] += int(Decimal(line.amount).scaleb(6))
        assert {k: v for k, v in billed.items() if v} == {k: v for k, v in events.items() if v}


def test_a_closing_stands_on_the_balances_it_may_use(home: Home) -> None:
    """A snapshot drawn at the closing's own position lacks what is final there: it must not be used."""
    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"))
    bill(home, event("ann", "5.00", "2026-02-10T00:00:00Z"), close=False)
    job = open_job(home, "run")
    balances.write_snapshot(job.journal, home.calendar)
    Closer(home, run="run").close_due(job.journal)
    assert [s.total for s in issued(home)] == ["5.00"]


def test_an_empty_batch_ends_a_run_that_had_nothing_to_read(home: Home) -> None:
    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"))
    bill(home, event("ann", "5.00", "2026-02-01T00:00:00Z"))
    job = open_job(home, "run")
    closer = Closer(home, run="run")
    assert not closer.anything_late(job.journal)
    bill(home, event("ann", "2.00", "2026-01-11T00:00:00Z"))
    job.reload()
    assert closer.anything_late(job.journal)
    record = job.round_off(to_us(datetime.now(UTC)))
    assert record is not None
    assert (record.batch, record.event_count, record.revise) == (4, 0, True)
    closer.close_due(job.journal)
    assert not closer.anything_late(job.journal)
    assert [(s.revision, s.total, s.position) for s in issued(home)] == [(1, "5.00", 2), (2, "7.00", 4)]
