"""Issues what is due, beside the stream: it follows the journal and never holds a batch up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from opentab.closing.closing import Closing, Issued, close_round, rehearse
from opentab.closing.schedule import rounds
from opentab.core.errors import Fenced, LedgerError
from opentab.ledger.engine import OpenEngine, open_local
from opentab.ledger.invoices import Invoices, fenced
from opentab.ledger.journal import Journal
from opentab.runtime.config import Home
from opentab.runtime.logs import fields

logger = logging.getLogger("opentab.closing")


class Closer:
    """Closes and revises at every position where something is due, one position after the other."""

    def __init__(
        self,
        home: Home,
        *,
        run: str,
        is_ours: Callable[[], bool] = lambda: True,
        tell: Callable[[Issued], None] = lambda issued: None,
        open_engine: OpenEngine = open_local,
    ) -> None:
        self._home = home
        self._run = run
        self._is_ours = is_ours  # asked before each commit: has another pipeline claimed the home?
        self._tell = tell
        self.open_engine = open_engine  # where closings are computed: the pipeline's are Spark's
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

    def rehearse(self, journal: Journal) -> None:
        """Do once what a closing does, and issue nothing: the first one holds the stream up less then."""
        with self.open_engine("warm-up of closings", 0) as engine:
            rehearse(engine, journal, self._home.calendar)

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
        with self.open_engine(f"looking for what is late at batch {journal.position}", 0) as engine:
            closing = Closing(engine, journal, invoices, calendar, upto=journal.position)
            ends_us = closing.ends_us()
            late = tuple(period for period, end_us in ends_us.items() if last.final_us < end_us <= last.watermark_us)
            return bool(late) and closing.is_anything_revised(late)

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
            began = time.monotonic()
            result = close_round(
                round_,
                journal,
                invoices,
                self._home.calendar,
                currency=self._home["billing.currency"],
                run=self._run,
                open_engine=self.open_engine,
                before_commit=self._check_ours,
            )
            self.position = round_.position
            if result is not None:
                issued.append(result)
                told = fields(
                    position=result.position,
                    closed=result.due.closed,
                    revised=result.due.revised,
                    invoices=result.invoice_count,
                    seconds=round(time.monotonic() - began, 3),
                )
                logger.info("invoices issued", extra=told)
                self._tell(result)
        self.position = max(self.position, journal.position)
        return issued

    def _check_ours(self) -> None:
        if not self._is_ours():
            raise fenced(self.position)
