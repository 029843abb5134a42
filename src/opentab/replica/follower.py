"""Follows the ledger: folds each batch, and the invoices issued with it, into the replica's own copy.

Killed anywhere it goes on exactly, because a fold and its position are one transaction. A copy that is torn,
of another home or of another history is thrown away and made anew from the balances.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opentab import crash
from opentab.config import Home
from opentab.ledger import balances
from opentab.ledger.billed import connect
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.statement import read_statement, statement_texts
from opentab.replica import store
from opentab.replica.fold import SEPARATOR, Added, fold_batches, fold_snapshot
from opentab.replica.store import FORMAT, Change, Meta, Store

FOLD_ROWS_MAX = 2_000_000  # entries in one step; a larger backlog takes several
PROBE_SECONDS_MAX = 300


@dataclass(frozen=True, slots=True)
class Step:
    """What one look at the ledger brought."""

    position: int
    batches: int
    rows: int
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

    def close(self) -> None:
        self.store.close()

    def step(self) -> Step | None:
        """Fold what the ledger has and the replica has not; None if that is nothing."""
        journal = Journal.open(self.home.ledger_path, self.home.identity)
        if journal is None:
            return None
        with self.store.read() as snapshot:
            meta = snapshot.meta()
        if meta is None or not self._belongs(meta, journal):
            return self._rebuild(journal)
        invoices = Invoices.open(self.home.ledger_path)
        upto = self._upto(journal, meta.position)
        if upto == meta.position and not self._new_invoices(invoices, meta, upto):
            return None
        began = time.perf_counter()
        with self.store.write() as change:
            added = Added({}, 0)
            if upto > meta.position:
                added = fold_batches(change, journal, self.home.calendar, after=meta.position, upto=upto)
            count = self._fold_invoices(change, invoices, after=meta.invoices_position, upto=upto)
            crash.moment("folding")
            change.set_meta(self._meta(journal, upto, invoices, meta, added, began))
        crash.moment("folded")
        return Step(upto, upto - meta.position, added.rows, count)

    def _rebuild(self, journal: Journal) -> Step:
        """Begin anew, from the balances."""
        snapshot = balances.latest(self.home.ledger_path)
        if not snapshot.belongs_to(journal):
            snapshot = balances.empty()
        invoices = Invoices.open(self.home.ledger_path)
        began = time.perf_counter()
        with self.store.write() as change:
            change.clear()
            added = Added({}, 0)
            if snapshot.batch:
                added = fold_snapshot(change, journal, self.home.calendar, snapshot)
            count = self._fold_invoices(change, invoices, after=0, upto=snapshot.batch)
            crash.moment("folding")
            change.set_meta(self._meta(journal, snapshot.batch, invoices, None, added, began))
        crash.moment("folded")
        return Step(snapshot.batch, 0, added.rows, count, rebuilt=True)

    def _belongs(self, meta: Meta, journal: Journal) -> bool:
        """Whether the copy is one of this very ledger."""
        if meta.format != FORMAT or meta.identity != self.home.identity or meta.position > journal.position:
            return False
        return meta.position == 0 or journal.batches(meta.position - 1, meta.position)[0].run == meta.run

    def _upto(self, journal: Journal, position: int) -> int:
        """How far to go in one step."""
        rows = 0
        for record in journal.batches(after=position):
            rows += record.entry_rows
            if rows > FOLD_ROWS_MAX and record.batch > position + 1:
                return record.batch - 1
        return journal.position

    def _meta(
        self,
        journal: Journal,
        position: int,
        invoices: Invoices | None,
        before: Meta | None,
        added: Added,
        began: float,
    ) -> Meta:
        """What the copy is after a step."""
        records = journal.batches(after=before.position if before else 0, upto=position)
        last = records[-1] if records else None
        rejections = Counter(before.rejections if before else {})
        for batch in records:
            rejections.update(batch.rejections)
        sums = dict(before.sums) if before else {}
        for table, (micros, events) in added.sums.items():
            old_micros, old_events = sums.get(table, ("0", 0))
            sums[table] = (str(int(old_micros) + micros), old_events + events)
        return Meta(
            position=position,
            invoices_position=min(invoices.position if invoices else 0, position),
            run=last.run if last else before.run if before else "",
            identity=self.home.identity,
            record=msgspec.json.encode(last).decode() if last else before.record if before else None,
            sums=sums,
            events=(before.events if before else 0) + sum(batch.event_count for batch in records),
            rejections=dict(rejections),
            fold_seconds=time.perf_counter() - began,
        )

    def _new_invoices(self, invoices: Invoices | None, meta: Meta, upto: int) -> bool:
        return invoices is not None and min(invoices.position, upto) > meta.invoices_position

    def _fold_invoices(self, change: Change, invoices: Invoices | None, *, after: int, upto: int) -> int:
        """Take up the invoices of the positions behind `after`, up to `upto`."""
        files = [file for file in invoices.files if after < file.position <= upto] if invoices else []
        count = 0
        for file in files:
            assert invoices is not None
            with connect(threads=1) as connection:
                rows = invoices.rows_of([file])
                texts = statement_texts(connection, rows, currency=self.home["billing.currency"], all_revisions=True)
                items = [(invoice_key(text), text.encode()) for text in texts]
            change.put("invoices", items)
            count += len(items)
        return count


def invoice_key(text: str) -> bytes:
    """Where a statement stands: by period, customer and revision."""
    statement = read_statement(text)
    return f"{statement.period}{statement.customer}{SEPARATOR}".encode() + statement.revision.to_bytes(4, "big")


def is_whole(path: Path) -> bool:
    """Whether a copy can be read from end to end and adds up. A process of its own looks: a torn file may kill it."""
    if not (path / "data.mdb").exists():
        return True
    probe = subprocess.run(
        [sys.executable, "-m", "opentab.replica.probe", str(path)],
        capture_output=True,
        timeout=PROBE_SECONDS_MAX,
        check=False,
    )
    return probe.returncode == 0
