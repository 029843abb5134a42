"""Events that come over HTTP: judged one by one, and durable in the log before anyone is told so.

Requests that come at the same time share a segment, so a thousand small ones a second make a few dozen
segments and not a thousand.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import threading
import traceback
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec

from opentab.billing.log_check import LogCheck
from opentab.core.periods import to_us
from opentab.core.records import Spot
from opentab.log import Appends, open_log, open_producer
from opentab.log.directory import SEGMENT_BYTES_MAX, SEGMENT_LINES_MAX
from opentab.runtime import crash
from opentab.runtime.config import Home
from opentab.server.freshness import Pulse
from opentab.wire.reference import Event, judge

EVENTS_MAX = 10_000
BODY_BYTES_MAX = 16 * 2**20
COMMAS_MAX = 50 * EVENTS_MAX
UNREAD_MAX = {"segments": 5_000, "messages": 5_000_000}
FREE_BYTES_MIN = 256 * 2**20
GATHER_SECONDS = 0.004  # how long a segment waits for company
# Requests that wait for a log that stalls. Above either limit a request is refused at once.
WAITING_BYTES_MAX = 4 * BODY_BYTES_MAX
WAITING_REQUESTS_MAX = 2_000


class Overloaded(Exception):
    """The log cannot take more right now."""

    def __init__(self, status: int, fact: str) -> None:
        super().__init__(fact)
        self.status = status  # 429: send more slowly; 503: it is not up to you


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one event."""

    reason: str | None = None
    detail: str | None = None
    has_id: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The events of one request on their way into the log."""

    lines: list[bytes]
    bytes: int
    done: Future[list[Spot]]


def split(body: bytes) -> tuple[list[bytes], bool]:
    """The events of a body, one JSON text each, and whether they are a batch: an array.

    Raises ValueError, and TooManyEvents before it takes millions of small values apart: that would hold Python's lock
    for seconds.
    """
    is_batch = body.lstrip()[:1] == b"["
    if body.count(b",") > COMMAS_MAX:
        raise TooManyEvents
    try:
        many = msgspec.json.decode(body, type=list[msgspec.Raw]) if is_batch else [msgspec.Raw(body)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if len(many) > EVENTS_MAX:
        raise TooManyEvents
    # A line break in JSON stands between its parts, never inside of a text.
    return [bytes(one).replace(b"\n", b" ").replace(b"\r", b" ").strip() for one in many], is_batch


class TooManyEvents(Exception):
    """A body holds more events than a request may have, or far more values than so many events have."""


class Intake:
    """Takes events into a home's log, for one process."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._pulse = Pulse(home.ledger)
        self._log_check = LogCheck(home)
        # A check and a log are for one thread at a time: these are for those who ask whether events would be taken.
        self._ready_check, self._log, self._checking = LogCheck(home), open_log(home), threading.Lock()
        self._rules = home.rules
        self._calendar = home.calendar
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._started = False
        self._lock = threading.Lock()
        # Requests from `append` until they are written or dropped, cancelled ones included: they use memory, too.
        self._waiting_requests = 0
        self._waiting_bytes = 0

    def judge(self, lines: list[bytes]) -> list[Verdict]:
        """What would become of each event now."""
        now_us = to_us(datetime.now(UTC))
        verdicts = []
        for line in lines:
            found = judge(line, arrived_us=now_us, rules=self._rules, calendar=self._calendar)
            if isinstance(found, Event):
                verdicts.append(Verdict(has_id=found.id is not None))
            else:
                verdicts.append(Verdict(str(found.reason), found.detail))
        return verdicts

    def append(self, lines: list[bytes]) -> Future[list[Spot]]:
        """Put events into the log; the future is done once they are durable, and says where each stands.

        A future that is cancelled before its events are being written keeps them out of the log. Raises Overloaded
        if too much is waiting already.
        """
        waiting = Waiting(lines, sum(map(len, lines)) + len(lines), Future())
        with self._lock:
            if not self._started:
                self._thread.start()
                self._started = True
            self._check_queue(waiting.bytes)
            self._waiting_requests += 1
            self._waiting_bytes += waiting.bytes
            self._waiting.put(waiting)
        return waiting.done

    def check_room(self) -> None:
        """Raise Overloaded if the pipeline is far behind or the disk nearly full."""
        heartbeat = self._pulse.beat()
        if heartbeat is not None and heartbeat.unread_segments > UNREAD_MAX[heartbeat.unread_unit]:
            raise Overloaded(429, f"the pipeline is {heartbeat.unread_segments:,} {heartbeat.unread_unit} behind")
        if self._home.kafka is not None:
            return  # its disks are not ours
        place = self._home.log_path if self._home.log_path.exists() else self._home.path
        if shutil.disk_usage(place).free < FREE_BYTES_MIN:
            raise Overloaded(503, "the disk of the log is nearly full")

    def check(self) -> None:
        """Raise what keeps an event that came now out of the log: Overloaded, or the log's own trouble."""
        self.check_room()
        with self._lock:
            self._check_queue(0)
        with self._checking:
            self._ready_check.check()
            self._log.find_id()  # Kafka's brokers must answer

    def close(self) -> None:
        """Write what is waiting, and end."""
        if self._started:
            self._waiting.put(None)
            self._thread.join()

    def _check_queue(self, more_bytes: int) -> None:
        if self._waiting_requests >= WAITING_REQUESTS_MAX or self._waiting_bytes + more_bytes > WAITING_BYTES_MAX:
            raise Overloaded(503, f"the log is slow: {self._waiting_requests:,} requests are waiting for it")

    def _run(self) -> None:
        """Write until `close`. Any error here is a bug, and ends the process: without this thread no event
        could be taken, and the server starts another worker."""
        try:
            self._write()
        except BaseException as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})".replace("\n", " ")
            sys.stderr.write(f"Error: the intake thread failed, this worker ends: {reason}\n")
            sys.stderr.flush()
            os._exit(1)

    def _write(self) -> None:
        producer: Appends | None = None
        ending = False
        while not ending:
            first = self._waiting.get()
            if first is None:
                return
            gathered, ending = self._gather(first)
            crash.moment("gathered")
            # From here on a request cannot be cancelled; its future takes the result even if nobody waits for it.
            wanted = [one for one in gathered if one.done.set_running_or_notify_cancel()]
            if wanted:
                try:
                    self._log_check.check()
                    producer = producer or open_producer(self._home)
                    spots = iter(producer.put([line for one in wanted for line in one.lines]))
                except Exception as error:
                    for one in wanted:
                        one.done.set_exception(error)
                else:
                    for one in wanted:
                        one.done.set_result(list(islice(spots, len(one.lines))))
            with self._lock:
                self._waiting_requests -= len(gathered)
                self._waiting_bytes -= sum(one.bytes for one in gathered)

    def _gather(self, first: Waiting) -> tuple[list[Waiting], bool]:
        """The first request's events and whatever comes right behind them, as much as a segment holds."""
        gathered = [first]
        size, lines = first.bytes, len(first.lines)
        while size < SEGMENT_BYTES_MAX // 2 and lines < SEGMENT_LINES_MAX // 2:
            try:
                more = self._waiting.get(timeout=GATHER_SECONDS)
            except queue.Empty:
                return gathered, False
            if more is None:
                return gathered, True
            gathered.append(more)
            size, lines = size + more.bytes, lines + len(more.lines)
        return gathered, False
