"""Notices a streaming query that hangs: a process of Spark's may be stopped or stuck, and nobody says so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentab.core.errors import TasksFailed
from opentab.runtime.config import Home

if TYPE_CHECKING:
    from opentab.billing.stream import Stream

TELL_SHARE = 0.5  # of the time-out; so long, people are told nothing


class Watchdog:
    """Watches one query after the other. One that takes too long for a batch, or begins none, is started again."""

    def __init__(self, home: Home) -> None:
        pauses = home["pipeline.batch_pause"] + home["pipeline.batch_pause_min"]
        self.timeout_seconds: float = home["pipeline.stall_timeout"].total_seconds()
        self._pauses: float = pauses.total_seconds()
        self._idle_since = time.monotonic()
        self.trouble: TasksFailed | None = None  # what people are told meanwhile

    def rest(self) -> None:
        """Begin anew: a query has done something, or there is nothing that it could do."""
        self._idle_since = time.monotonic()
        self.trouble = None

    def look(self, stream: Stream, batch: int, unread: str) -> None:
        """Raise if a query with something to do has hung for too long. `unread` says in words what waits."""
        seconds = stream.billing_seconds
        if seconds is not None:
            self._idle_since = time.monotonic()
            self._judge(seconds, f"batch {batch} has been running for {seconds:.0f} s: a task or the log hangs")
        else:
            seconds = time.monotonic() - self._idle_since - self._pauses
            self._judge(seconds, f"Spark's streaming query has begun no batch for {seconds:.0f} s, and {unread} wait")

    def _judge(self, seconds: float, fact: str) -> None:
        hint = "it is started again after pipeline.stall_timeout; raise that where batches may take so long"
        trouble = TasksFailed(fact, hint=hint, retry_helps=True)
        if seconds > self.timeout_seconds:
            raise trouble
        self.trouble = trouble if seconds > self.timeout_seconds * TELL_SHARE else None
