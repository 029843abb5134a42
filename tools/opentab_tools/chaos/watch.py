"""The reader: asks both replicas in turn, all the time, and notes what it got and how old it was."""

from __future__ import annotations

import http.client
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from opentab_tools.chaos.replica import Replica
from opentab_tools.servers.broker import Broker

READS_PER_SECOND = 20
TIMEOUT_SECONDS = 1.0
CUSTOMER = "/v1/customers/emma"
LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Read:
    """One read as a caller of both replicas sees it: the other one is asked where the first does not answer."""

    at: float  # time.monotonic
    answered: bool
    staleness_s: float | None
    position: int
    tries: tuple[tuple[int, bool], ...]  # which replicas were asked, and whether they answered


@dataclass(frozen=True, slots=True)
class Flight:
    """How many messages of the log no reader could see yet."""

    at: float
    messages: int


class _Answer(msgspec.Struct):
    position: int = 0
    staleness_ms: int | None = None


_at = attrgetter("at")
_decode = msgspec.json.Decoder(_Answer).decode


class Watch:
    """Two threads: one reads, one looks how much is on its way."""

    def __init__(self, replicas: Sequence[Replica], broker: Broker, topic: str) -> None:
        self._replicas = replicas
        self._broker = broker
        self._topic = topic
        self._ends = threading.Event()
        self.began = time.monotonic()
        self.reads: list[Read] = []
        self.flights: list[Flight] = []
        self._latest: dict[int, Read] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._count)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def is_fresh(self, *, since: float, position: int, staleness_s_max: float) -> bool:
        """Whether every replica answers with what was so since then, from a batch behind that position.

        A batch that was committed right before a blow and read after it says nothing of what the blow did.
        """
        found = [self._latest.get(number) for number in range(len(self._replicas))]
        return all(
            read is not None
            and read.at > since
            and read.position > position
            and read.staleness_s is not None
            and read.staleness_s < min(staleness_s_max, read.at - since)
            for read in found
        )

    @property
    def position(self) -> int:
        """The latest batch that anyone has read."""
        return max((read.position for read in [*self._latest.values()]), default=0)

    def reads_between(self, first: float, last: float) -> list[Read]:
        return [read for read in [*self.reads] if first <= read.at <= last]

    def flight_max(self, first: float, last: float) -> int | None:
        """The most that was on its way, the looks right before and right after included; None if nobody looked.

        What was over within a look was on its way at the one before, and a broker that is down cannot be asked.
        """
        flights = [*self.flights]
        begin = max(bisect_left(flights, first, key=_at) - 1, 0)
        end = bisect_right(flights, last, key=_at) + 1
        return max((flight.messages for flight in flights[begin:end]), default=None)

    def _read(self) -> None:
        turn = 0
        while not self._ends.wait(1 / READS_PER_SECOND):
            turn += 1
            first = turn % len(self._replicas)
            at, tries = time.monotonic(), []
            answer: _Answer | None = None
            for number in (first, 1 - first):
                answer = self._ask(self._replicas[number])
                tries.append((number, answer is not None))
                if answer is not None:
                    break
            stale = None if answer is None or answer.staleness_ms is None else answer.staleness_ms / 1000
            read = Read(at, answer is not None, stale, answer.position if answer else 0, tuple(tries))
            self.reads.append(read)
            if answer is not None:
                self._latest[tries[-1][0]] = read

    def _ask(self, replica: Replica) -> _Answer | None:
        # A connection a read: one that is kept would hide a server that takes no new ones.
        with closing(http.client.HTTPConnection("127.0.0.1", replica.port, timeout=TIMEOUT_SECONDS)) as line:
            try:
                line.request("GET", CUSTOMER)
                with line.getresponse() as response:
                    # 404: nobody has billed her yet, and the answer says how fresh it is.
                    return _decode(response.read()) if response.status in (200, 404) else None
            except (OSError, http.client.HTTPException, msgspec.MsgspecError):
                return None

    def _count(self) -> None:
        while not self._ends.wait(LOOK_SECONDS):
            # What was seen is asked first: the other way round, what is slow to answer would hide what is on its way.
            seen = self._seen()
            at, written = time.monotonic(), self._broker.message_count(self._topic)
            if written is not None and seen is not None:
                self.flights.append(Flight(at, max(0, written - seen)))

    def _seen(self) -> int | None:
        """What the replica that has more has."""
        found = []
        for replica in self._replicas:
            try:
                status, answer = replica.ask("/v1/overview")
            except (OSError, http.client.HTTPException, msgspec.MsgspecError):
                continue
            if status == http.client.OK:
                found.append(int(answer["events"] + sum(answer["rejections"].values())))
        return max(found, default=None)
