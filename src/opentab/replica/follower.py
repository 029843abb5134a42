"""Follows the ledger: folds each batch, and the invoices issued with it, into the replica's own copy.

Killed anywhere it goes on exactly, because a fold and its position are one transaction. A copy that is torn,
of another home or of another history is thrown away and made anew from the balances.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from opentab.core.errors import ReplicaDamaged
from opentab.core.periods import Period, month_number, period_of_month
from opentab.core.records import BatchRecord
from opentab.ledger import balances
from opentab.ledger.billed_in import last_final_period
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import read_statement, statement_texts
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.rows import balance_rows, journal_rows
from opentab.replica import blocks, store
from opentab.replica.batches import keep_batches
from opentab.replica.cell import exact_sum, read_cell
from opentab.replica.flags import clear_damage, reported_damage
from opentab.replica.fold import Fold, Tally, check_all
from opentab.replica.period_statistics import PeriodStatistics, issued, statistics_of
from opentab.replica.store import BY_PERIOD, FORMAT, SEPARATOR, Change, Meta, Store
from opentab.runtime import crash
from opentab.runtime.config import Home
from opentab.runtime.logs import fields
from opentab.tables.table import news_of

FOLD_ROWS_MAX = 4_000_000  # entries in one step; a larger backlog takes several
PIECE_ROWS = 2_000_000  # of them at a time in memory
PROBE = [sys.executable, "-m", "opentab.replica.probe"]
SILENCE_SECONDS_MAX = 60.0  # of a probe, which says every second that it makes progress

Number = TypeVar("Number", int, float)

logger = logging.getLogger("opentab.replica")


@dataclass(frozen=True, slots=True)
class Step:
    """What one look at the ledger brought."""

    position: int
    batches: int
    rows: int  # of the ledger
    invoices: int
    rebuilt: bool = False


class Follower:
    """The one writer of a replica."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = home.replica_path
        if not is_whole(self.path):
            store.remove(self.path)
        self.store = Store(self.path, writable=True)
        self.store.clear_dead_readers()
        self._invoices: Invoices | None = None
        self._invoices_news: object = None
        self._inode = inode_of(self.path)

    def close(self) -> None:
        self.store.close()

    def begin_anew(self) -> None:
        """Throw a damaged copy away. The next step makes another one from the ledger."""
        self.store.close()
        store.remove(self.path)
        self.store = Store(self.path, writable=True)
        self._inode = inode_of(self.path)

    def check_reports(self) -> None:
        """Raise ReplicaDamaged if a reader has found this copy to be damaged."""
        damage = reported_damage(self.path)
        if damage is None:
            return
        if damage.inode == self._inode:
            raise ReplicaDamaged(damage.text)
        clear_damage(self.path)

    @property
    def position(self) -> int:
        """The last batch that was folded."""
        with self.store.read() as snapshot:
            meta = snapshot.meta()
        return meta.position if meta else 0

    def step(self) -> Step | None:
        """Fold what the ledger has and the replica has not; None if that is nothing."""
        journal = Journal.open(self.home.ledger, self.home.identity)
        with self.store.read() as snapshot:
            meta = snapshot.meta()
        if journal is None:
            if meta is None:
                self._begin_empty()
            return None
        if meta is None or meta.position > journal.position:
            return self._rebuild(journal, "there is no copy" if meta is None else "it is ahead of the ledger")
        # The last batch that was folded comes along: it decides what is late in the next one.
        records = journal.batches(after=max(0, meta.position - 1))
        if not self._belongs(meta, records):
            return self._rebuild(journal, "it is of another ledger, of other settings or of another version")
        new = _next_step([record for record in records if record.batch > meta.position])
        upto = new[-1].batch if new else meta.position
        invoices = self._latest_invoices()
        if not new and (invoices is None or min(invoices.position, upto) <= meta.invoices_position):
            return None
        began = time.perf_counter()
        with self.store.write() as change:
            fold = Fold(change, meta.types)
            tally = Tally(meta.position, upto)
            known = [record for record in records if record.batch <= upto]
            for rows in journal_rows(journal, self.home.calendar, known, after=meta.position, rows_max=PIECE_ROWS):
                tally.add(rows)
                fold.add(rows)
            tally.check(new)
            count = self._finish(change, meta, new, fold, invoices, began)
        crash.moment("folded")
        return Step(upto, upto - meta.position, fold.rows, count)

    def _latest_invoices(self) -> Invoices | None:
        """The invoices as they are now. Their log is long, so they are opened only when it has changed."""
        news = news_of(self.home.ledger / "invoices")
        if self._invoices is None or news != self._invoices_news:
            self._invoices, self._invoices_news = Invoices.open(self.home.ledger), news
        return self._invoices

    def _begin_empty(self) -> None:
        """Say that there is nothing yet. A copy that says nothing at all is still being made, and is not read."""
        with self.store.write() as change:
            change.set_meta(self._blank())

    def _blank(self) -> Meta:
        return Meta(0, 0, "", self.home.identity, None, list(self.home["billing.types"]), "", {})

    def _rebuild(self, journal: Journal, reason: str) -> Step:
        """Begin anew, from the balances."""
        snapshot = balances.latest(self.home.ledger)
        if not snapshot.belongs_to(journal):
            snapshot = balances.empty()
        records = journal.batches(upto=snapshot.batch) if snapshot.batch else []
        began = time.perf_counter()
        with self.store.write() as change:
            change.clear()
            blank = self._blank()
            fold = Fold(change, blank.types)
            if records:
                self._fold_balances(fold, journal, snapshot, records)
                check_all(fold, records)
            count = self._finish(change, blank, records, fold, self._latest_invoices(), began)
        told = fields(position=snapshot.batch, reason=reason, seconds=round(time.perf_counter() - began, 3))
        logger.info("replica rebuilt", extra=told)
        crash.moment("folded")
        return Step(snapshot.batch, 0, fold.rows, count, rebuilt=True)

    def _fold_balances(
        self, fold: Fold, journal: Journal, snapshot: balances.Snapshot, records: Sequence[BatchRecord]
    ) -> None:
        """Fold a snapshot, and what was final by then: that is in the journal alone."""
        micros = events = 0
        for rows in balance_rows(snapshot.rows, rows_max=PIECE_ROWS):
            micros += exact_sum(rows.micros)
            events += int(rows.events.sum())
            fold.add(rows)
        snapshot.check(fold.rows, events, micros)
        last_final = last_final_period(records[-1], self.home.calendar)
        if last_final is None:
            return
        tally = Tally(0, records[-1].batch)
        for rows in journal_rows(journal, self.home.calendar, records, after=0, rows_max=PIECE_ROWS):
            tally.add(rows)
            fold.add(rows.where(rows.month <= month_number(last_final)))
        tally.check(records)

    def _finish(
        self,
        change: Change,
        before: Meta,
        new: Sequence[BatchRecord],
        fold: Fold,
        invoices: Invoices | None,
        began: float,
    ) -> int:
        """What is left of a step: the invoices, what has become cold, and the position. Returns how many invoices."""
        upto = new[-1].batch if new else before.position
        cold_upto = max(before.cold_upto, self._cold_upto(new))
        count = self._fold_invoices(change, invoices, after=before.invoices_position, upto=upto, cold_upto=cold_upto)
        for period, customers in fold.new_customers.items():
            _add_statistics(change, period, PeriodStatistics(customers=customers))
        for period, cell in fold.adjusted.items():
            _add_statistics(
                change, period, PeriodStatistics(adjusted_micros=str(cell.micros), adjusted_events=cell.events)
            )
        keep_batches(change, new)
        if cold_upto > before.cold_upto:
            _take_out(change, cold_upto, fold)
        crash.moment("folding")
        change.set_meta(
            Meta(
                position=upto,
                invoices_position=min(invoices.position if invoices else 0, upto),
                run=new[-1].run if new else before.run,
                identity=self.home.identity,
                record=msgspec.json.encode(new[-1]).decode() if new else before.record,
                types=fold.types,
                cold_upto=cold_upto,
                sums=_added_sums(before.sums, fold.sums),
                events=before.events + sum(record.event_count for record in new),
                late_events=before.late_events + sum(record.late_events for record in new),
                duplicates=before.duplicates + sum(record.duplicates for record in new),
                without_id=before.without_id + sum(record.without_id for record in new),
                rejections=_added(before.rejections, (record.rejections for record in new)),
                input_bytes=before.input_bytes + sum(record.input_bytes for record in new),
                steps_ms=_added(before.steps_ms, (record.steps_ms for record in new)),
                fold_seconds=time.perf_counter() - began,
            )
        )
        return count

    def _belongs(self, meta: Meta, records: Sequence[BatchRecord]) -> bool:
        """Whether the copy is one of this very ledger, and holds all that it should."""
        if meta.format != FORMAT or meta.identity != self.home.identity:
            return False
        if meta.cold_upto > self._cold_upto(records):
            return False
        return meta.position == 0 or records[0].run == meta.run

    def _cold_upto(self, records: Sequence[BatchRecord]) -> Period:
        """The last period that is left to the ledger; none where all are to be kept."""
        hot = self.home["server.hot_periods"]
        last_final = last_final_period(records[-1], self.home.calendar) if records else None
        if hot is None or last_final is None:
            return ""
        return period_of_month(max(0, month_number(last_final) - hot))

    def _fold_invoices(
        self, change: Change, invoices: Invoices | None, *, after: int, upto: int, cold_upto: Period
    ) -> int:
        """Take up the invoices of the positions behind `after`, up to `upto`."""
        files = [file for file in invoices.files if after < file.position <= upto] if invoices else []
        count = 0
        for file in sorted(files, key=lambda file: file.position):
            assert invoices is not None
            with connect(threads=1) as connection:
                rows = invoices.rows_of([file])
                connection.register("invoices", rows)
                facts = issued(connection)
                _add_statistics(change, file.period, facts)
                count += facts.invoices + facts.revisions
                if file.period > cold_upto:
                    currency = self.home["billing.currency"]
                    texts = statement_texts(connection, rows, currency=currency, all_revisions=True)
                    change.put("invoices", [(invoice_key(text), text.encode()) for text in texts])
        return count


def invoice_key(text: str) -> bytes:
    """Where a statement stands: by period, customer and revision."""
    statement = read_statement(text)
    return f"{statement.period}{statement.customer}{SEPARATOR}".encode() + statement.revision.to_bytes(4, "big")


def inode_of(path: Path) -> int:
    """Tells a copy from the ones before it."""
    return (path / store.DATA_NAME).stat().st_ino


def is_whole(path: Path) -> bool:
    """Whether a copy can be read from end to end and adds up. A process of its own looks: a torn file may kill it."""
    if not (path / store.DATA_NAME).exists():
        return True
    with subprocess.Popen([*PROBE, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as probe:
        assert probe.stdout is not None
        while select.select([probe.stdout], [], [], SILENCE_SECONDS_MAX)[0]:
            if not os.read(probe.stdout.fileno(), 4096):
                return probe.wait() == 0
        probe.kill()  # it hangs
    return False


def _next_step(records: Sequence[BatchRecord]) -> Sequence[BatchRecord]:
    """As many of them as one step takes, and at least one."""
    rows = 0
    for count, record in enumerate(records):
        rows += record.entry_rows
        if rows > FOLD_ROWS_MAX and count:
            return records[:count]
    return records


def _add_statistics(change: Change, period: Period, new: PeriodStatistics) -> None:
    facts = statistics_of(change, period) + new
    change.put("facts", [(period.encode(), msgspec.json.encode(facts))])


def _take_out(change: Change, cold_upto: Period, fold: Fold) -> None:
    """Leave periods to the ledger: their customers, and what goes with them."""
    for table in BY_PERIOD:
        micros, events = fold.sums.get(table, (0, 0))
        for key, value in change.take_out(table, cold_upto.encode()):
            if table == blocks.TABLE:
                amount, count = blocks.sum_of(key, value)
                micros, events = micros - amount, events - count
            elif table == "adjustments":
                amount, count, _ = read_cell(value)
                micros, events = micros - amount, events - count
        if table in fold.sums:
            fold.sums[table] = (micros, events)


def _added_sums(before: dict[str, tuple[str, int]], added: dict[str, tuple[int, int]]) -> dict[str, tuple[str, int]]:
    after = {}
    for table, (micros, events) in added.items():
        old_micros, old_events = before.get(table, ("0", 0))
        after[table] = (str(int(old_micros) + micros), old_events + events)
    return after


def _added(before: Mapping[str, Number], more: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    after = dict(before)
    for one in more:
        for name, value in one.items():
            after[name] = after.get(name, 0) + value
    return after
