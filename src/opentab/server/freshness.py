"""How fresh an answer is: a quiet log is not stale, a dead pipeline is."""

from __future__ import annotations

import atexit
import threading
import time

from opentab.api.answers import Fresh
from opentab.replica.presence import Presence, present
from opentab.runtime.heartbeat import Heartbeat, read_heartbeat
from opentab.runtime.storage import Place
from opentab.server.position_view import Moment

LOOK_SECONDS = 0.05
BUCKET_LOOK_SECONDS = 0.5
BUCKET_REPLICAS_SECONDS = 5.0


class Pulse:
    """What pipeline and replicas last said, looked at again after some milliseconds and not for every answer.

    A bucket is looked at by a thread: no answer waits for it, and while it is gone the last word holds.
    """

    def __init__(self, ledger: Place) -> None:
        self._ledger = ledger
        self._is_local = ledger.is_local
        self._seen: Heartbeat | None = None
        self._replicas: list[Presence] = []
        self._looked = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def beat(self) -> Heartbeat | None:
        """The pipeline's last heartbeat."""
        if not self._is_local:
            self._watch()
            return self._seen
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._seen = read_heartbeat(self._ledger)
            self._looked = now
        return self._seen

    def replicas(self, now_us: int) -> list[Presence]:
        """The replicas that spoke lately."""
        if self._is_local:
            return present(self._ledger, now_us=now_us)
        self._watch()
        return self._replicas

    def _watch(self) -> None:
        """Look once, then go on looking in a thread."""
        with self._lock:
            if self._thread is None:
                self._look()
                self._thread = threading.Thread(target=self._keep_looking, name="pulse", daemon=True)
                self._thread.start()
                atexit.register(self._ended.set)  # before pyarrow lets go of its buckets

    def _keep_looking(self) -> None:
        while not self._ended.wait(BUCKET_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        self._seen = read_heartbeat(self._ledger) or self._seen
        if time.monotonic() - self._looked > BUCKET_REPLICAS_SECONDS:
            self._replicas = present(self._ledger, now_us=time.time_ns() // 1000)
            self._looked = time.monotonic()


def freshness_of(moment: Moment, heartbeat: Heartbeat | None, now_us: int) -> Fresh:
    """How fresh a replica's answer is at this moment.

    It is known to be caught up with the log at the last moment at which the pipeline had read all of it,
    if the replica has all that the pipeline had committed by then; else when its own batch was committed.
    """
    meta, record = moment.meta, moment.record
    if meta is None or record is None:
        caught_up_us = heartbeat.caught_up_us if heartbeat and heartbeat.position == 0 else None
        staleness_ms = _age_ms(caught_up_us, now_us)
        return Fresh(position=0, invoices_position=0, watermark=None, as_of=None, staleness_ms=staleness_ms)
    caught_up_us = record.committed_us
    if heartbeat is not None and heartbeat.caught_up_us is not None and meta.position >= heartbeat.position:
        caught_up_us = max(caught_up_us, heartbeat.caught_up_us)
    return Fresh(
        position=meta.position,
        invoices_position=meta.invoices_position,
        watermark=moment.watermark,
        as_of=moment.as_of,
        staleness_ms=_age_ms(caught_up_us, now_us),
    )


def _age_ms(at_us: int | None, now_us: int) -> int | None:
    return None if at_us is None else max(0, (now_us - at_us) // 1000)
