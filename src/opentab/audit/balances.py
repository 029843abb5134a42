"""The snapshot of the running totals, held against the raw log up to its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import duckdb
import pyarrow.dataset as ds

from opentab.audit.bills import OWN_MONTH, Billed, billed_table
from opentab.audit.check import SAMPLES_MAX, Check, Tally, count, instant, money, shown
from opentab.audit.differences import find_differences
from opentab.audit.lateness import Mark
from opentab.audit.recompute import days_in
from opentab.core.records import BatchRecord

KEY = ("batch", "period", "day", "customer", "type")
FACTS = ("amount_micros", "event_count", "last_us")


class Balances(Protocol):
    """What the audit needs of a snapshot: the batch it was drawn at, that batch's run, its rows (records.BALANCE)."""

    @property
    def batch(self) -> int: ...
    @property
    def run(self) -> str: ...
    @property
    def rows(self) -> ds.Dataset: ...


def check_balances(
    con: duckdb.DuckDBPyConnection,
    balances: Balances,
    batches: Sequence[BatchRecord],
    marks: Mapping[int, Mark],
    billed: Sequence[Billed],
) -> Check:
    """Compare the snapshot with the table `recounted`: all that was not final at its batch, and nothing else.

    A snapshot that no batch of ours made is not looked at: readers pass over it, too.
    """
    tally = Tally("balances")
    record = next((r for r in batches if r.batch == balances.batch), None)
    if balances.batch == 0:
        return tally.done("there is no snapshot yet")
    if record is None or record.run != balances.run:
        return tally.done(f"the snapshot of batch {balances.batch} is not of the batches looked at")
    days, final_us = days_in(record.rules.zone), marks[record.batch].final_us
    wanted = [
        b for b in billed if b.batch <= record.batch and (final_us is None or final_us < days.month_end_us(b.month))
    ]
    con.register("billed", billed_table(wanted))
    con.register("snapshot", balances.rows)
    _make_sides(con, record.batch)
    find_differences(con, ledger="drawn", log="running", key=KEY, facts=FACTS)
    tally.compared = count(con, "SELECT count(*) FROM running")
    tally.compared += count(con, "SELECT count(*) FROM different WHERE NOT in_log")
    tally.differences = count(con, "SELECT count(*) FROM different")
    rows = con.execute(
        f"SELECT batch, period, CAST(day AS VARCHAR), customer, type, times, {_sides('ledger')}, {_sides('log')}"
        f" FROM different ORDER BY ALL LIMIT {SAMPLES_MAX}"
    ).fetchall()
    for batch, period, day, customer, type_, times, *sides in rows:
        ledger = _balance(*sides[: len(FACTS)]) if times == 1 else f"it {times} times"
        log = _balance(*sides[len(FACTS) :]) if times == 1 else "it once"
        tally.samples.append(
            f"{period}, {day}, customer {customer!r}, {type_}: the snapshot of batch {batch} says {ledger},"
            f" the log says {log}"
        )
    for table in ("running", "different"):
        con.execute(f"DROP TABLE {table}")
    con.unregister("billed")
    con.unregister("snapshot")
    return tally.done()


def _make_sides(con: duckdb.DuckDBPyConnection, batch: int) -> None:
    """Make `drawn`, what the snapshot says, and `running`, what it should say."""
    con.execute(
        """
        CREATE OR REPLACE TEMP VIEW drawn AS
        SELECT batch, period, day, customer, type, CAST(sum_micros AS HUGEINT) AS amount_micros, event_count,
            epoch_us(last_at) AS last_us
        FROM snapshot
        """
    )
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE running AS
        SELECT CAST({batch} AS BIGINT) AS batch, period, day, customer, type,
            sum(amount_micros) AS amount_micros, CAST(sum(event_count) AS BIGINT) AS event_count,
            max(last_us) AS last_us
        FROM (SELECT *, {OWN_MONTH} AS own_month FROM recounted) e JOIN billed USING (batch, own_month)
        GROUP BY period, day, customer, type
        """
    )


def _sides(side: str) -> str:
    return ", ".join(f"{side}_{name}" for name in FACTS)


def _balance(amount: int | None, events: int | None, last_us: int | None) -> str:
    if amount is None and events is None:
        return "nothing"
    return f"{money(amount)} in {events} events (last {shown(instant(last_us))})"
