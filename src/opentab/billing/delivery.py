"""Takes invoices on to their files and rejections to their topic, beside the stream; waits for a place that is gone."""

from __future__ import annotations

import threading
from functools import partial

from opentab.core.errors import OpentabError
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.runtime.config import Home
from opentab.sinks.files import export_missing
from opentab.sinks.rejections import DeadLetters, dead_letters
from opentab.tables.error_text import reading

LOOK_SECONDS = 10.0  # how soon a folder that was moved away is filled again
RETRY_SECONDS_MAX = 60.0


class Delivery:
    """A thread that delivers what is missing whenever it is woken, and now and then looks by itself."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="delivery", daemon=True)
        self.trouble: OpentabError | None = None  # why nothing can be delivered right now
        self.bug: BaseException | None = None  # what must stop the pipeline

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Say that there is something new to deliver."""
        self._wake.set()

    def stop(self) -> None:
        """Finish what is under way, and no more."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _loop(self) -> None:
        failures = 0
        letters = dead_letters(self._home)
        while not self._stopping:
            troubles: list[OpentabError] = []
            try:
                # One that is gone does not hold up the other.
                for what in (deliver, partial(publish_rejections, letters=letters)):
                    try:
                        with reading(self._home.ledger):
                            what(self._home)
                    except OpentabError as error:
                        troubles.append(error)
            except BaseException as error:
                self.bug = error
                return
            self.trouble, failures = (troubles[0], failures + 1) if troubles else (None, 0)
            self._wake.wait(min(LOOK_SECONDS * 2 ** max(failures - 1, 0), RETRY_SECONDS_MAX))
            self._wake.clear()


def deliver(home: Home) -> int:
    """Write every invoice file that is missing; returns how many sets of files that were."""
    invoices = Invoices.open(home.ledger)
    if invoices is None:
        return 0
    return len(export_missing(home.invoices_path, invoices, currency=home["billing.currency"]))


def publish_rejections(home: Home, letters: DeadLetters | None) -> int:
    """Publish what was rejected and is not in its topic yet, where the home has one; returns how many."""
    journal = Journal.open(home.ledger, home.identity) if letters is not None else None
    return letters.publish(journal) if letters is not None and journal is not None else 0
