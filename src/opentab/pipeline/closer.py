"""Issues what is due, beside the stream: it follows the journal and never holds a batch up."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentab.config import Home
from opentab.errors import Fenced, LedgerError
from opentab.ledger.closing import Closing, Due, Issued, Order, Staged, close_round, closing_at
from opentab.ledger.invoices import Invoices, fenced
from opentab.ledger.journal import Journal
from opentab.ledger.rounds import rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Half of the cores at most: the other half keeps up with the stream.
THREADS = max(1, (os.cpu_count() or 1) // 2)


class Closer:
    """Closes and revises at every position where something is due, one position after the other."""

    def __init__(
        self,
        home: Home,
        *,
        run: str,
        is_ours: Callable[[], bool] = lambda: True,
        tell: Callable[[Issued], None] = lambda issued: None,
        spark: SparkSession | None = None,
    ) -> None:
        self._home = home
        self._run = run
        self._is_ours = is_ours  # asked before each commit: has another pipeline claimed the home?
        self._tell = tell
        self.spark = spark  # None: everything is computed here
        self.position = 0  # all that was due up to here is out

    def close_due(self, journal: Journal) -> list[Issued]:
        """Issue all that is due up to the journal's position. Running it again issues nothing twice."""
        while True:
            try:
                return self._close_due(journal)
            except Fenced:
                if not self._is_ours():
                    raise
                # The one we took over from issued once more before it noticed: go on behind that.

    def mark(self) -> None:
        """Record how far we looked, so that nobody looks again. Snapshots go beyond it from then on."""
        invoices = Invoices.create(self._home.ledger)
        if invoices.position < self.position:
            try:
                invoices.commit(self.position, [])
            except Fenced:
                # Someone issued meanwhile; what we looked at is looked at once more.
                if not self._is_ours():
                    raise

    def anything_late(self, journal: Journal) -> bool:
        """Whether a round at the journal's position would revise anything."""
        last = journal.last()
        if last is None or last.revise or last.watermark_us is None or last.final_us is None:
            return False
        calendar = self._home.calendar
        invoices = Invoices.open(self._home.ledger)
        with closing_at(journal, invoices, calendar, upto=journal.position, threads=THREADS) as closing:
            ends = {period: calendar.end_us(period) for period in closing.periods()}
            late = tuple(p for p, end_us in ends.items() if last.final_us < end_us <= last.watermark_us)
            if not late or not closing.prepare(Due((), late)):
                return False
            currency = self._home["billing.currency"]
            return any(True for _ in closing.issue(currency=currency, issued_us=None))

    def _close_due(self, journal: Journal) -> list[Issued]:
        invoices = Invoices.open(self._home.ledger)
        done = max(self.position, invoices.position if invoices else 0)
        if invoices is not None and invoices.position > journal.position:
            journal.refresh()
        if invoices is not None and invoices.position > journal.position:
            raise LedgerError(
                f"invoices were issued at position {invoices.position}, but the journal ends at {journal.position}",
                hint="restore the whole ledger from one backup",
            )
        issued = []
        for round_ in rounds(journal.batches(after=max(done - 1, 0)), self._home.calendar):
            if round_.position <= done:
                continue
            invoices = invoices or Invoices.create(self._home.ledger)
            result = close_round(
                round_,
                journal,
                invoices,
                self._home.calendar,
                currency=self._home["billing.currency"],
                run=self._run,
                threads=THREADS,
                before_commit=self._check_ours,
                stage_elsewhere=self._stage_here_or_on_spark,
            )
            self.position = round_.position
            if result is not None:
                issued.append(result)
                self._tell(result)
        self.position = max(self.position, journal.position)
        return issued

    def _stage_here_or_on_spark(self, closing: Closing, due: Due, order: Order) -> Staged | None:
        """Let Spark's tasks close what is too large for this process; None: it is not."""
        if self.spark is None or closing.row_count() < self._home["pipeline.closing_rows_max"]:
            return None
        from opentab.pipeline.closing_tasks import stage_on_spark

        return stage_on_spark(self.spark, closing, due, order)

    def _check_ours(self) -> None:
        if not self._is_ours():
            raise fenced(self.position)
