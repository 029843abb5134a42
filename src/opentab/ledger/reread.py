"""Inputs read again, one at a time, as they stand in the log."""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from opentab.core.errors import LogError, LogUnreachable, SegmentDamaged
from opentab.core.records import Spot
from opentab.ledger.receipt import Seen
from opentab.log import open_topic
from opentab.log.directory import DirectoryLog
from opentab.runtime.config import Home
from opentab.wire.hashing import key_of, payloads_of, with_key
from opentab.wire.reference import Event, judge

if TYPE_CHECKING:
    from opentab.log.topic import Topic

READ_SECONDS_MAX = 5.0
PAUSE_SECONDS = 5.0  # brokers that did not answer are not asked again for so long


class _Whose(msgspec.Struct, gc=False):
    customer: str | None = None
    subject: str | None = None
    specversion: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Reread:
    """Reads a home's log by place, from any thread."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._unreachable: tuple[float, LogUnreachable] | None = None

    def event(self, id_: str, source: str | None, seen: Seen) -> Event | None:
        """The event that counted, judged by the rules of its batch; None if what stands there is another."""
        line = self._line(seen.spot)
        found = judge(line, arrived_us=seen.arrived_us, rules=seen.record.rules, calendar=self._home.calendar)
        if not isinstance(found, Event) or (found.id, found.source) != (id_, source):
            return None
        # A single line is read without its segment's checksum; the journal knows a hash of what it said.
        if _payload(found) != seen.payload:
            raise SegmentDamaged(f"the line at {seen.spot.place} of the log is not the one that was billed")
        return found

    def customer_of(self, raw: bytes) -> str | None:
        """Whose an input is that could not be billed, as far as it can be told."""
        try:
            whose = msgspec.json.decode(raw, type=_Whose)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return whose.customer if whose.specversion is msgspec.UNSET else whose.subject

    def close(self) -> None:
        """Let go of the connections."""
        if "_topic" in self.__dict__ and self._topic is not None:
            self._topic.close()

    def _line(self, spot: Spot) -> bytes:
        if (spot.byte == 0) != (self._topic is not None):
            raise LogError(f"{spot.place} stands in a log that is not this home's any more")
        if self._topic is None:
            return DirectoryLog(self._home.log_path).line(*spot)
        with self._lock:
            if self._unreachable is not None and time.monotonic() - self._unreachable[0] < PAUSE_SECONDS:
                raise self._unreachable[1]
            try:
                return self._topic.line(int(spot.partition), spot.number, seconds_max=READ_SECONDS_MAX)
            except LogUnreachable as error:
                self._unreachable = (time.monotonic(), error)
                raise

    @cached_property
    def _topic(self) -> Topic | None:
        return open_topic(self._home)


def _payload(event: Event) -> int:
    """The hash of an event's values that the journal keeps with its id."""
    at_us, amount_micros = np.array([event.at_us], np.int64), np.array([event.amount_micros], np.int64)
    payloads = payloads_of(at_us, amount_micros, pa.array([event.customer]), [event.type], np.zeros(1, np.int64))
    payload = int(payloads[0])
    return payload if event.reverses is None else with_key(payload, key_of(event.reverses, event.source))
