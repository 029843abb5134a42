"""`opentab run --standby`: a second pipeline that waits with Spark up, and takes over by itself.

1. start Spark and its workers, and let them run a query once
2. watch the leader's heartbeat, which changes every second. Only our own monotonic clock counts, so the clocks of two
   machines need not agree
3. the heartbeat has stopped, or the leader's batch hangs: claim the home and bill
4. somebody else has taken over from us: back to 2

Nothing rests on who is believed to be alive. A leader that was merely slow is fenced by the journal, batch by batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from py4j.protocol import Py4JError

from opentab.billing.run import Pipeline, Progress
from opentab.billing.session import open_session, warm_stream
from opentab.core.errors import Fenced
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat, look_at_heartbeat
from opentab.runtime.logs import fields

SILENCE_SECONDS_MAX = 5.0
LOOK_SECONDS = 0.25
BATCH_SECONDS_MIN = 30.0  # no batch that is quicker is said to hang
BATCH_TIMES_MAX = 10  # as long as the median of the leader's batches

logger = logging.getLogger("opentab.billing")


class Standby:
    """Waits for a home's pipeline to fall silent, and is its pipeline then."""

    def __init__(self, home: Home, *, watch: Callable[[Progress], None], say: Callable[[str], None]) -> None:
        self._home = home
        self._watch = watch
        self._say = say
        self._stop = threading.Event()
        self._pipeline: Pipeline | None = None

    def stop(self) -> None:
        """Ask it to end: at once while it waits, else after the batch that is under way."""
        self._stop.set()
        if self._pipeline is not None:
            self._pipeline.stop()

    def run(self) -> Progress | None:
        """Wait and bill until told to stop. Returns what was billed; None if it was never its turn."""
        spark = open_session(self._home)
        try:
            warm_stream(spark, self._home.checkpoint_path)
            while self._waits():
                self._pipeline = Pipeline(self._home, take_over=True, spark=spark, watch=self._watch, say=self._say)
                if self._stop.is_set():
                    break
                try:
                    return self._pipeline.run()
                except Fenced as fenced:
                    self._say(f"{fenced.fact}; standing by again")
            return None
        finally:
            with suppress(Py4JError, ConnectionError):
                spark.stop()

    def _waits(self) -> bool:
        """Wait for our turn; False if we were told to stop instead."""
        self._say("standing by: takes over when the pipeline's heartbeat stops")
        logger.info("standby waits")
        leader = Leader()
        while not self._stop.wait(LOOK_SECONDS):
            with suppress(OSError):  # a ledger that does not answer tells nothing about the leader
                why = leader.look(look_at_heartbeat(self._home.ledger), time.monotonic())
                if why is not None:
                    self._say(f"taking over: {why}")
                    logger.warning("standby takes over", extra=fields(reason=why))
                    return True
        return False


class Leader:
    """What is known of the pipeline that bills, by the clock of whoever looks."""

    def __init__(self) -> None:
        self._beat: tuple[str, int] | None = None
        self._since: float | None = None  # when the heartbeat changed last

    def look(self, heartbeat: Heartbeat | None, now: float) -> str | None:
        """Why it has to be taken over from; None as long as it is well."""
        beat = None if heartbeat is None else (heartbeat.run, heartbeat.at_us)
        if self._since is None or beat != self._beat:
            self._beat, self._since = beat, now
        silence = now - self._since
        if silence > SILENCE_SECONDS_MAX:
            return f"no heartbeat for {silence:.0f} s" if heartbeat else "there has been no pipeline yet"
        if heartbeat is None or heartbeat.billing_ms is None:
            return None
        seconds_max = max(BATCH_SECONDS_MIN, BATCH_TIMES_MAX * heartbeat.median_ms / 1000)
        if heartbeat.billing_ms <= seconds_max * 1000:
            return None
        return f"batch {heartbeat.position + 1} has been running for {heartbeat.billing_ms / 1000:.0f} s"
