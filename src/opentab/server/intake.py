"""Events that come over HTTP: judged one by one, and durable in the log before anyone is told so.

Requests that come at the same time share a segment, so a thousand small ones a second make a few dozen
segments and not a thousand.
"""

from __future__ import annotations

import queue
import shutil
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from opentab.config import Home
from opentab.log import Appends, open_producer
from opentab.log.directory import SEGMENT_BYTES_MAX, SEGMENT_LINES_MAX
from opentab.periods import to_us
from opentab.pipeline.exact import Event, judge
from opentab.server.freshness import Pulse

EVENTS_MAX = 10_000
BODY_BYTES_MAX = 16 * 2**20
UNREAD_MAX = {"segments": 5_000, "messages": 5_000_000}
FREE_BYTES_MIN = 256 * 2**20
GATHER_SECONDS = 0.004  # how long a segment waits for company


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

    def as_json(self) -> dict[str, object]:
        if self.reason is None:
            return {"accepted": True}
        return {"accepted": False, "reason": self.reason, "detail": self.detail}


def split(body: bytes) -> tuple[list[bytes], bool]:
    """The events of a body, one JSON text each, and whether they are a batch: an array. Raises ValueError."""
    is_batch = body.lstrip()[:1] == b"["
    try:
        many = msgspec.json.decode(body, type=list[msgspec.Raw]) if is_batch else [msgspec.Raw(body)]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    # A line break in JSON stands between its parts, never inside of a text.
    return [bytes(one).replace(b"\n", b" ").replace(b"\r", b" ").strip() for one in many], is_batch


class Intake:
    """Takes events into a home's log, for one process."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._pulse = Pulse(home.ledger)
        self._rules = home.rules
        self._calendar = home.calendar
        self._waiting: queue.SimpleQueue[tuple[bytes, int, Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="intake", daemon=True)
        self._started = False
        self._lock = threading.Lock()

    def judge(self, lines: list[bytes]) -> list[Verdict]:
        """What would become of each event now."""
        now_us = to_us(datetime.now(UTC))
        verdicts = []
        for line in lines:
            found = judge(line, arrived_us=now_us, rules=self._rules, calendar=self._calendar)
            verdicts.append(Verdict() if isinstance(found, Event) else Verdict(str(found.reason), found.detail))
        return verdicts

    def append(self, lines: list[bytes]) -> Future[None]:
        """Put events into the log; the future is done once they are durable."""
        with self._lock:
            if not self._started:
                self._started = True
                self._thread.start()
        done: Future[None] = Future()
        self._waiting.put((b"\n".join(lines) + b"\n", len(lines), done))
        return done

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

    def close(self) -> None:
        """Write what is waiting, and end."""
        if self._started:
            self._waiting.put(None)
            self._thread.join()

    def _write(self) -> None:
        producer: Appends | None = None
        ending = False
        while not ending:
            first = self._waiting.get()
            if first is None:
                return
            gathered, ending = self._gather(first)
            try:
                producer = producer or open_producer(self._home)
                producer.append(b"".join(body for body, _, _ in gathered))
            except Exception as error:
                for _, _, done in gathered:
                    done.set_exception(error)
                continue
            for _, _, done in gathered:
                done.set_result(None)

    def _gather(self, first: tuple[bytes, int, Future[None]]) -> tuple[list[tuple[bytes, int, Future[None]]], bool]:
        """The first body and whatever comes right behind it, as much as a segment holds."""
        gathered = [first]
        size, lines = len(first[0]), first[1]
        while size < SEGMENT_BYTES_MAX // 2 and lines < SEGMENT_LINES_MAX // 2:
            try:
                more = self._waiting.get(timeout=GATHER_SECONDS)
            except queue.Empty:
                return gathered, False
            if more is None:
                return gathered, True
            gathered.append(more)
            size, lines = size + len(more[0]), lines + more[1]
        return gathered, False
