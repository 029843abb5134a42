"""Reads that go to the ledger take turns: they may take seconds, and whoever asks the replica must not wait for them.

They run in the framework's 40 threads. At most RUNNING_MAX + WAITING_MAX of these are ever here, those included whose
callers have gone. Others are refused at once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from opentab.server.problem import Problem

RUNNING_MAX = 2
WAITING_MAX = 22
HOLDER_MAX = 8  # running or waiting, of one token; without tokens, of one address. A browser asks five at once
WAIT_SECONDS_MAX = 10.0
RETRY = {"retry-after": "2"}


class LedgerTurns:
    """Who reads the ledger now, and who waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: Counter[str] = Counter()
        self._running = threading.Semaphore(RUNNING_MAX)

    @contextmanager
    def turn(self, holder: str) -> Iterator[None]:
        """Read the ledger; a problem if too many do so already."""
        self._enter(holder)
        try:
            if not self._running.acquire(timeout=WAIT_SECONDS_MAX):
                raise _busy()
            try:
                yield
            finally:
                self._running.release()
        finally:
            self._leave(holder)

    def _enter(self, holder: str) -> None:
        with self._lock:
            if self._here[holder] >= HOLDER_MAX:
                raise Problem(429, f"{HOLDER_MAX} questions of yours to the ledger are not answered yet", headers=RETRY)
            if self._here.total() >= RUNNING_MAX + WAITING_MAX:
                raise _busy()
            self._here[holder] += 1

    def _leave(self, holder: str) -> None:
        with self._lock:
            self._here[holder] -= 1
            if not self._here[holder]:
                del self._here[holder]


def _busy() -> Problem:
    return Problem(503, "too many questions wait for the ledger", headers=RETRY)
