"""`opentab verify`: the journal held against the raw log, down to the customer and the micro."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from opentab.audit.balances import Balances, check_balances
from opentab.audit.bills import bill
from opentab.audit.check import SAMPLES_MAX, Check, Tally, count, instant, money, sums
from opentab.audit.clock import own_restart, restarts_so_far
from opentab.audit.days import DAY_US, FIRST_DAY
from opentab.audit.facts import Recomputed
from opentab.audit.ids import check_ids
from opentab.audit.invoices import Invoices, check_invoices
from opentab.audit.lateness import Mark
from opentab.audit.logs import Logs, open_logs
from opentab.audit.recompute import Progress, recompute
from opentab.audit.trusted import in_gone, trust_rows
from opentab.core.money import format_micros
from opentab.core.records import BatchRecord, PartitionState
from opentab.runtime.config import Home

MEMORY_LIMIT = "1GB"


class Journal(Protocol):
    """What the audit needs of a journal."""

    def batches(self) -> list[BatchRecord]: ...
    def entries(self) -> ds.Dataset: ...
    def rejections(self) -> ds.Dataset: ...
    def seen(self) -> ds.Dataset: ...


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict, and what the raw log adds up to."""

    checks: list[Check]
    batches: int
    events: int
    rejections: int
    duplicates: int
    amount_micros: int
    not_yet_billed_segments: int
    seconds: float
    gone: Sequence[str] = ()  # which batches could not be recomputed because their log is gone
    totals: pa.Table | None = None  # period, customer, type, own_period, amount_micros, events

    @property
    def agrees(self) -> bool:
        return all(check.agrees for check in self.checks)

    @property
    def agrees_otherwise(self) -> bool:
        """Whether nothing differs besides logs that are gone."""
        return sum(check.differences for check in self.checks) == len(self.gone)


def verify(
    home: Home,
    journal: Journal,
    *,
    invoices: Invoices | None = None,
    balances: Balances | None = None,
    expected: bool = True,
    keep_totals: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Recompute everything from the raw log and compare it with the journal, and what was made of it.

    1. read and count every batch's segments again (log, batches)
    2. compare the sums, the refused lines and the ids that were counted (entries, rejections, ids)
    3. recompute the watermarks, and with them what is billed where (watermarks, totals)
    4. recompute what was due when, and the running totals (invoices, balances), where they are given
    5. compare with the bills that the simulator knew beforehand, if there are any
    """
    began = time.monotonic()
    batches = journal.batches()
    logs = open_logs(home, batches)
    with tempfile.TemporaryDirectory(prefix="opentab-verify-") as scratch, _connect(scratch) as con:
        recount = recompute(con, logs, batches, progress, seen=journal.seen())
        waiting = logs.current.waiting(_positions(batches)) if logs.is_current else 0
        _register(con, journal, max((record.batch for record in batches), default=0), logs)
        trust_rows(con, logs)
        marks: dict[int, Mark] = {}
        checks = [
            _check_log(batches, recount, logs, waiting),
            _check_batches(batches, recount),
            _check_entries(con),
            _check_rejections(con),
            check_ids(con, batches, recount),
            _check_watermarks(batches, recount, marks, logs),
        ]
        billed = bill(con, batches, marks, entries="recounted", name="log_bills")
        checks.append(_check_totals(con, batches))
        if invoices is not None:
            checks.append(check_invoices(con, invoices, batches, marks, billed))
        if balances is not None:
            checks.append(check_balances(con, balances, batches, marks, billed))
        bills = home.expected_path / "bills.csv"
        if expected and bills.exists():
            checks.append(_check_expected(con, bills, waiting, logs.current.unit))
        facts = recount.facts.values()
        return Report(
            checks=checks,
            batches=len(batches),
            events=sum(f.events for f in facts),
            rejections=sum(f.rejections.total() for f in facts),
            duplicates=sum(f.duplicates for f in facts),
            amount_micros=sum(f.amount_micros for f in facts),
            not_yet_billed_segments=waiting,
            seconds=time.monotonic() - began,
            gone=[stretch.sentence for stretch in logs.gone],
            totals=_totals(con) if keep_totals else None,
        )


def _connect(scratch: str) -> duckdb.DuckDBPyConnection:
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": scratch,
        "preserve_insertion_order": "false",
    }
    return duckdb.connect(":memory:", config=settings)


def _register(con: duckdb.DuckDBPyConnection, journal: Journal, last: int, logs: Logs) -> None:
    """Make the views `journal_entries`, `journal_rejections` and `journal_seen`.

    A pipeline may be at work: what it has committed since we read the batches is left out. Rows of
    a batch that has no record at all stay, to be found. Ids of a log that is gone cannot be compared with anything.
    """
    con.register("entries_now", journal.entries())
    con.register("rejections_now", journal.rejections())
    con.register("seen_now", journal.seen())
    last_now = max((record.batch for record in journal.batches()), default=0)
    for kind in ("entries", "rejections", "seen"):
        hidden = in_gone(logs) if kind == "seen" else "false"
        con.execute(
            f"CREATE TEMP VIEW journal_{kind} AS SELECT * FROM {kind}_now"
            f" WHERE (batch <= {last} OR batch > {last_now}) AND NOT ({hidden})"
        )


def _positions(batches: Sequence[BatchRecord]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for record in batches:
        if record.adopted == "beginning":
            positions = {}
        for partition, (_, last) in record.taken.items():
            positions[partition] = max(last, positions.get(partition, 0))
    return positions


def _check_log(batches: Sequence[BatchRecord], recount: Recomputed, logs: Logs, waiting: int) -> Check:
    tally = Tally("log", compared=recount.numbers)
    positions: dict[str, int] = {}
    is_first = True  # of those that took anything of their log
    for record in batches:
        if record.adopted == "beginning":
            positions, is_first = {}, True
        log = logs.of(record.batch) or logs.current
        for partition, (first, last) in sorted(record.taken.items()):
            before = positions.get(partition, 0)
            where = f"batch {record.batch}, log partition {partition!r}"
            if first > before + 1 and not (is_first and log.begins_anywhere):
                tally.differ(f"{where}: no batch took the {log.unit} {before + 1} to {first - 1}")
            if first <= before:
                tally.differ(f"{where}: the {log.unit} {first} to {min(before, last)} were taken twice")
            if last < first:
                tally.differ(f"{where}: the range {first} to {last} is no range")
            positions[partition] = max(before, last)
        is_first = is_first and not record.taken
    for stretch in logs.gone:
        tally.differ(stretch.sentence)
    for batch, trouble in recount.troubles:
        tally.differ(f"batch {batch}: {trouble}")
    notes = [f"{waiting} {logs.current.unit} not yet billed"] if waiting else []
    if recount.unchecked:
        notes.append(f"{recount.unchecked} {logs.current.unit} of earlier versions, whose headers have no checksum")
    return tally.done(", ".join(notes))


def _check_batches(batches: Sequence[BatchRecord], recount: Recomputed) -> Check:
    tally = Tally("batches", compared=len(batches))
    restarts = restarts_so_far(batches)
    for number, record in enumerate(batches, start=1):
        facts = recount.facts[record.batch]
        where = f"batch {record.batch}"
        if record.batch != number:
            tally.differ(f"{where} stands where batch {number} should")
        recorded_rejections = {reason: n for reason, n in record.rejections.items() if n}
        tally.compare(f"{where}, events", journal=record.event_count, log=facts.events)
        tally.compare(f"{where}, rejections", journal=recorded_rejections, log=dict(facts.rejections))
        tally.compare(
            f"{where}, amount",
            journal=format_micros(record.amount_micros),
            log=format_micros(facts.amount_micros),
        )
        tally.compare(f"{where}, duplicates", journal=record.duplicates, log=facts.duplicates)
        if record.rules.dedupe_us:
            # Without dedupe nobody asks for ids, and journals of earlier versions did not count this.
            tally.compare(f"{where}, events without an id", journal=record.without_id, log=facts.without_id)
        if record.restarts != restarts[record.batch]:
            tally.differ(f"{where} does not carry on the restarts of the clock before it")
        if own_restart(record) is not None and record.taken:
            tally.differ(f"{where} restarts the clock while events came")
        lines = record.event_count + record.rejection_count + record.duplicates
        tally.compare(f"{where}, input lines", journal=lines, log=facts.lines)
    return tally.done()


def _check_entries(con: duckdb.DuckDBPyConnection) -> Check:
    # One side's sums against the other's; NULL where a side has nothing.
    con.execute(
        """
        CREATE OR REPLACE TEMP TABLE compared AS
        SELECT coalesce(j.batch, r.batch) AS batch, coalesce(j.day, r.day) AS day,
            coalesce(j.customer, r.customer) AS customer, coalesce(j.type, r.type) AS type,
            j.amount_micros AS j_amount, r.amount_micros AS r_amount,
            j.event_count AS j_events, r.event_count AS r_events,
            j.first_us AS j_first, r.first_us AS r_first, j.last_us AS j_last, r.last_us AS r_last
        FROM (
            SELECT batch, day, customer, type, sum(amount_micros) AS amount_micros,
                sum(event_count) AS event_count, min(epoch_us(first_at)) AS first_us,
                max(epoch_us(last_at)) AS last_us
            FROM journal_entries GROUP BY ALL
        ) j
        FULL OUTER JOIN (
            SELECT batch, day, customer, type, sum(amount_micros) AS amount_micros,
                sum(event_count) AS event_count, min(first_us) AS first_us, max(last_us) AS last_us
            FROM recounted GROUP BY ALL
        ) r
        ON j.batch = r.batch AND j.day IS NOT DISTINCT FROM r.day
            AND j.customer IS NOT DISTINCT FROM r.customer AND j.type IS NOT DISTINCT FROM r.type
        """
    )
    differs = (
        "j_amount IS DISTINCT FROM r_amount OR j_events IS DISTINCT FROM r_events"
        " OR j_first IS DISTINCT FROM r_first OR j_last IS DISTINCT FROM r_last"
    )
    tally = Tally("entries", compared=count(con, "SELECT count(*) FROM compared"))
    tally.differences = count(con, f"SELECT count(*) FROM compared WHERE {differs}")
    rows = con.execute(
        f"SELECT batch, CAST(day AS VARCHAR), customer, type, j_amount, r_amount, j_events, r_events,"
        f" j_first, r_first, j_last, r_last FROM compared WHERE {differs} ORDER BY ALL LIMIT {SAMPLES_MAX}"
    ).fetchall()
    for batch, day, customer, type_, *sides in rows:
        journal, raw = sides[0::2], sides[1::2]
        tally.samples.append(
            f"batch {batch}, {day}, customer {customer!r}, {type_}:"
            f" the journal says {sums(journal)}, the log says {sums(raw)}"
        )
    con.execute("DROP TABLE compared")
    return tally.done()


def _check_rejections(con: duckdb.DuckDBPyConnection) -> Check:
    # A place holds one line, so it may be rejected once.
    side = "SELECT batch, place, count(*) AS n, min(reason) AS reason, min(raw) AS raw FROM {} GROUP BY ALL"
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE compared AS
        SELECT coalesce(j.batch, r.batch) AS batch, coalesce(j.place, r.place) AS place,
            j.n AS j_n, r.n AS r_n, j.reason AS j_reason, r.reason AS r_reason,
            j.raw IS NOT DISTINCT FROM r.raw AS same_raw
        FROM ({side.format("journal_rejections")}) j FULL OUTER JOIN ({side.format("refused")}) r
        ON j.batch = r.batch AND j.place = r.place
        """
    )
    differs = "j_n IS DISTINCT FROM r_n OR j_reason IS DISTINCT FROM r_reason OR NOT same_raw"
    tally = Tally("rejections", compared=count(con, "SELECT count(*) FROM compared"))
    tally.differences = count(con, f"SELECT count(*) FROM compared WHERE {differs}")
    rows = con.execute(
        f"SELECT batch, place, j_n, j_reason, r_n, r_reason FROM compared WHERE {differs}"
        f" ORDER BY ALL LIMIT {SAMPLES_MAX}"
    ).fetchall()
    for batch, place, j_n, j_reason, r_n, r_reason in rows:
        text = f"batch {batch}, {place}: the journal says {_times(j_reason, j_n)}, the log says"
        other = "" if j_reason != r_reason or j_n != r_n else ", with other bytes"
        tally.samples.append(f"{text} {_times(r_reason, r_n)}{other}")
    con.execute("DROP TABLE compared")
    return tally.done()


def _check_watermarks(batches: Sequence[BatchRecord], recount: Recomputed, marks: dict[int, Mark], logs: Logs) -> Check:
    """Recompute the watermark after each batch into `marks`, and compare."""
    tally = Tally("watermarks", compared=len(batches))
    latest_us: dict[str, int] = {}
    watermark_us: int | None = None
    final_us: int | None = None
    newest_us: int | None = None
    for record in batches:
        if record.adopted == "beginning":  # of another log
            latest_us = {}
        facts = recount.facts[record.batch]
        for name, at_us in facts.latest_us.items():
            latest_us[name] = max(at_us, latest_us.get(name, at_us))
        states = {
            name: PartitionState(partition.number, latest_us.get(name), partition.arrived_us, partition.idle)
            for name, partition in recount.partitions[record.batch].items()
        }
        holding = [s.latest_us for s in states.values() if s.latest_us is not None and not s.idle]
        if holding:
            reached_us = min(holding) - record.rules.out_of_orderness_us
            watermark_us = _later(watermark_us, max(reached_us, FIRST_DAY * DAY_US))
        if record.clock_us is not None:
            # A batch of the clock: no events, later than all that had arrived.
            if record.taken or any(record.clock_us < state.arrived_us for state in states.values()):
                tally.differ(f"batch {record.batch} was moved by the clock while events came")
            watermark_us = _later(watermark_us, record.clock_us - record.rules.out_of_orderness_us)
        if watermark_us is not None:
            final_us = _later(final_us, watermark_us - record.rules.allowed_lateness_us)
        for state in states.values():
            newest_us = _later(newest_us, state.latest_us)
        if logs.of(record.batch) is None:
            watermark_us, final_us, newest_us = record.watermark_us, record.final_us, record.newest_us
        marks[record.batch] = Mark(watermark_us, final_us)

        where = f"batch {record.batch}"
        tally.compare(f"{where}, watermark", journal=instant(record.watermark_us), log=instant(watermark_us))
        if record.final_us != final_us:
            tally.compare(f"{where}, final up to", journal=record.final_us, log=final_us)
        tally.compare(f"{where}, newest event", journal=instant(record.newest_us), log=instant(newest_us))
        _compare_states(tally, where, record.partitions, states)
    return tally.done()


def _compare_states(
    tally: Tally, where: str, journal: Mapping[str, PartitionState], log: Mapping[str, PartitionState]
) -> None:
    for partition in sorted({*journal, *log}):
        theirs, ours = journal.get(partition), log.get(partition)
        if theirs != ours:
            tally.compare(f"{where}, log partition {partition!r}", journal=theirs, log=ours)


def _check_totals(con: duckdb.DuckDBPyConnection, batches: Sequence[BatchRecord]) -> Check:
    """What each customer owes for each period: from the log alone, and from the journal alone."""
    recorded = {record.batch: Mark(record.watermark_us, record.final_us) for record in batches}
    bill(con, batches, recorded, entries="journal_entries", name="journal_bills")
    side = "SELECT period, customer, sum(amount_micros) AS amount, sum(events) AS events FROM {} GROUP BY ALL"
    check = _compare_bills(
        con,
        "totals",
        f"({side.format('journal_bills')})",
        f"({side.format('log_bills')})",
        differs="j.amount IS DISTINCT FROM r.amount OR j.events IS DISTINCT FROM r.events",
        says="the journal says",
    )
    con.execute("DROP TABLE journal_bills")
    return check


def _check_expected(con: duckdb.DuckDBPyConnection, bills: Path, waiting: int, unit: str) -> Check:
    con.execute(
        "CREATE OR REPLACE TEMP TABLE expected_bills AS SELECT period,"
        # An apostrophe keeps spreadsheets from taking a name for a formula; it is no part of the name.
        r" regexp_replace(customer, '^''(''*[=+\-@\t\r])', '\1') AS customer,"
        " sum(if(regexp_full_match(total, '-?[0-9]+[.][0-9]{6}'),"
        " try_cast(replace(total, '.', '') AS HUGEINT), NULL)) AS amount, count(total) AS events"
        " FROM read_csv(?, header = true, all_varchar = true, delim = ',', quote = '\"', escape = '\"',"
        " strict_mode = true, auto_detect = false,"
        " columns = {'period': 'VARCHAR', 'customer': 'VARCHAR', 'total': 'VARCHAR'})"
        " GROUP BY ALL",
        [str(bills)],
    )
    ours = "(SELECT own_period AS period, customer, sum(amount_micros) AS amount FROM log_bills GROUP BY ALL)"
    return _compare_bills(
        con,
        "expected bills",
        "expected_bills",
        ours,
        differs="coalesce(j.amount, 0) <> coalesce(r.amount, 0)",
        says="the expected bill says",
        note=f"{waiting} {unit} are not yet billed" if waiting else "",
    )


def _compare_bills(
    con: duckdb.DuckDBPyConnection,
    name: str,
    theirs: str,
    ours: str,
    *,
    differs: str,
    says: str,
    note: str = "",
) -> Check:
    joined = f"{theirs} j FULL OUTER JOIN {ours} r ON j.period = r.period AND j.customer = r.customer"
    tally = Tally(name, compared=count(con, f"SELECT count(*) FROM {joined}"))
    tally.differences = count(con, f"SELECT count(*) FROM {joined} WHERE {differs}")
    rows = con.execute(
        f"SELECT coalesce(j.period, r.period), coalesce(j.customer, r.customer), j.amount, r.amount"
        f" FROM {joined} WHERE {differs} ORDER BY ALL LIMIT {SAMPLES_MAX}"
    ).fetchall()
    for period, customer, theirs_micros, ours_micros in rows:
        tally.samples.append(
            f"{period}, customer {customer!r}: {says} {money(theirs_micros)}, the log says {money(ours_micros)}"
        )
    return tally.done(note)


def _totals(con: duckdb.DuckDBPyConnection) -> pa.Table:
    return con.sql(
        "SELECT period, customer, type, own_period, CAST(amount_micros AS DECIMAL(38, 0)) AS amount_micros,"
        " events FROM log_bills ORDER BY period, customer, own_period, type"
    ).to_arrow_table()


def _later(a: int | None, b: int | None) -> int | None:
    known = [x for x in (a, b) if x is not None]
    return max(known) if known else None


def _times(reason: str | None, count: int | None) -> str:
    if count is None:
        return "nothing"
    return f"{reason}" if count == 1 else f"{reason}, {count} times"
