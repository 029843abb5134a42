"""Takes issued invoices on to their files, beside the stream; waits for a place that is gone, and tells."""

from __future__ import annotations

import threading

from opentab.config import Home
from opentab.errors import OpentabError
from opentab.ledger.invoices import Invoices
from opentab.ledger.trouble import reading
from opentab.sinks.files import export_missing

LOOK_SECONDS = 10.0  # how soon a folder that was moved away is filled again
RETRY_SECONDS_MAX = 60.0


class Delivery:
    """A thread that writes what is missing whenever invoices were issued, and now and then looks by itself."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="delivery", daemon=True)
        self.trouble: OpentabError | None = None  # why nothing can be delivered right now
        self.bug: BaseException | None = None  # what must stop the pipeline

    def start(self) -> None:
        self._thread.start()

    def issued(self) -> None:
        """Say that there are new invoices."""
        self._wake.set()

    def stop(self) -> None:
        """Finish what is under way, and no more."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _loop(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                with reading(self._home.ledger):
                    deliver(self._home)
                self.trouble, failures = None, 0
            except OpentabError as error:
                self.trouble, failures = error, failures + 1
            except BaseException as error:
                self.bug = error
                return
            self._wake.wait(min(LOOK_SECONDS * 2 ** max(failures - 1, 0), RETRY_SECONDS_MAX))
            self._wake.clear()


def deliver(home: Home) -> int:
    """Write every invoice file that is missing; returns how many sets of files that were."""
    invoices = Invoices.open(home.ledger)
    if invoices is None:
        return 0
    return len(export_missing(home.invoices_path, invoices, currency=home["billing.currency"]))
