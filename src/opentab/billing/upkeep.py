"""What happens behind the stream, off its path: closings, then compaction, snapshots, sweeping."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from opentab.closing.closer import Closer
from opentab.core.errors import OpentabError
from opentab.ledger import balances
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.runtime.config import Home
from opentab.runtime.logs import fields
from opentab.tables.error_text import reading

SWEEP_SECONDS = 600
RETRY_SECONDS = 5.0
GIVE_UP_SECONDS = 1.0
COUNT_SECONDS = 10
PAUSE_SECONDS = 1.0  # small batches come faster than upkeep is worth

logger = logging.getLogger("opentab.billing")


class Upkeep:
    """A thread that works whenever enough batches have come in, and never holds one up."""

    def __init__(self, home: Home, closer: Closer, *, run: str, is_behind: Callable[[], bool], rehearses: bool) -> None:
        self._home = home
        self._closer = closer
        self._run = run
        self._is_behind = is_behind
        self._rehearses = rehearses  # whether to warm closings up, once
        self._wake = threading.Event()
        self._pause = threading.Event()
        self._stopping = False
        self._swept = time.monotonic()
        self._batches = 0
        self._thread = threading.Thread(target=self._loop, name="upkeep", daemon=True)
        self._counted = float("-inf")
        self.small_files: int | None = None  # of the journal, counted now and then
        self.trouble: OpentabError | None = None  # what is tried again
        self.bug: BaseException | None = None  # what must stop the pipeline

    def start(self) -> None:
        """Begin with a look at what an earlier run may have left to do."""
        self.batch_committed()
        self._thread.start()

    def batch_committed(self) -> None:
        """Say that there is one more batch."""
        self._batches += 1
        self._wake.set()

    def stop(self, seconds_max: float | None = None, *, give_up: Callable[[], None] = lambda: None) -> None:
        """Finish what is under way, and no more; where it takes longer than so many seconds, give it up."""
        self._stopping = True
        self._pause.set()
        self._wake.set()
        if self._thread.ident is None:
            return
        self._thread.join(seconds_max)
        while self._thread.is_alive():
            give_up()
            self._thread.join(GIVE_UP_SECONDS)

    def _loop(self) -> None:
        seen = 0
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            if self._stopping or self._batches == seen:
                continue
            seen = self._batches
            try:
                with reading(self._home.ledger):
                    self._work()
                self.trouble = None
            except OpentabError as error:
                if not error.retry_helps:
                    self.bug = error
                    return
                # Nothing is lost, and the stream goes on meanwhile.
                self.trouble, seen = error, -1
                self._pause.wait(RETRY_SECONDS)
                self._wake.set()
            except BaseException as error:
                self.bug = error
                return
            self._pause.wait(PAUSE_SECONDS)

    def _work(self) -> None:
        journal = Journal.open(self._home.ledger, self._home.identity)
        if journal is None:
            return
        if time.monotonic() - self._counted > COUNT_SECONDS:
            self.small_files = journal.small_files()
            self._counted = time.monotonic()
        is_behind = self._is_behind()
        keep_up(journal, self._home, self._closer, run=self._run, is_behind=is_behind)
        if self._rehearses and self._batches > 1 and not is_behind:  # the first batch goes first
            self._closer.rehearse(journal)
            self._rehearses = False
        if time.monotonic() - self._swept > SWEEP_SECONDS:
            journal.sweep()
            invoices = Invoices.open(self._home.ledger)
            if invoices is not None:
                invoices.sweep()
            self._swept = time.monotonic()


def keep_up(journal: Journal, home: Home, closer: Closer, *, run: str, is_behind: bool = False) -> None:
    """Issue what is due, compact if there are many files, and write the balances if the last ones are old.

    What can wait does while the pipeline is behind. The order matters: a closing stands on balances that are older
    than its position.
    """
    issued = closer.close_due(journal)
    files_max: int = home["pipeline.compact_files"]
    began = time.monotonic()
    merged = journal.compact(run=run, files_max=files_max, is_behind=is_behind, open_engine=closer.open_engine)
    if merged:
        told = fields(position=journal.position, files=merged, seconds=round(time.monotonic() - began, 3))
        logger.info("files compacted", extra=told)
    snapshot = balances.latest(home.ledger)
    age = journal.position - snapshot.batch
    closed = any(result.due.closed for result in issued)
    if closed or not snapshot.belongs_to(journal) or age >= home["pipeline.snapshot_batches"]:
        closer.mark()
        began = time.monotonic()
        if balances.write_snapshot(journal, home.calendar, open_engine=closer.open_engine) is not None:
            told = fields(position=journal.position, seconds=round(time.monotonic() - began, 3))
            logger.info("balances written", extra=told)
