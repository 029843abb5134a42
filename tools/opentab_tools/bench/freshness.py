"""opentab bench freshness: how long until an event that was accepted over HTTP is in the answer over HTTP.

A real pipeline and a real server work on a new home, under a steady stream of events. A probe posts events of a
customer of its own and asks for that customer's total all the time. What the first seconds show is Spark's
warm-up; it is left out.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from opentab.core.errors import OpentabError
from opentab.core.records import BatchRecord
from opentab.ledger.journal import Journal
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.simulator.command import started, streams, wait_until
from opentab_tools.bench.audited import audit
from opentab_tools.bench.figures import Figure, Say, at_most, plain, write_json
from opentab_tools.measuring.machine import describe_machine
from opentab_tools.servers.broker import Broker
from opentab_tools.servers.http_line import HttpLine
from opentab_tools.servers.served_home import served

WARM_UP_SECONDS = 60  # Java compiles what a batch runs for about as long
POST_EVENTS_MIN, POSTS_PER_SECOND = 20, 50
SENT_SHARE_MIN = 0.9  # of the rate that the figures are for
CUSTOMERS = 1_000
PROBE = "probe"
PROBE_SECONDS = 0.1  # on average; in step with the batches it would see the same moment of each
POLL_SECONDS = 0.02  # asked every 5 ms, a server on two cores makes the pipeline wait
WATCH_SECONDS = 0.5
PATIENCE_SECONDS = 60
P50_MS_MAX = 400.0
P99_MS_MAX = 800.0
SAMPLES_MIN = 2


@dataclass(frozen=True, slots=True)
class MeasuredFreshness:
    """What came of one run behind its warm-up."""

    visible_ms: tuple[float, ...]  # from the accepted POST to the GET that shows it, event by event
    batches: tuple[BatchRecord, ...]
    seconds: float
    sent: int  # of the whole run
    sent_per_second: float


def bench_freshness(
    *, seconds: int, rate: int, repeats: int, json_path: Path | None, work_dir: Path, say: Say,
    warm_up: int = WARM_UP_SECONDS, kafka: bool = False,
) -> list[Figure]:  # fmt: skip
    """Measure how fresh answers are under a steady stream of events; write the figures where asked to."""
    machine = describe_machine()
    runs = []
    with Broker(work_dir / "broker") if kafka else nullcontext() as broker:
        for repeat in range(1, repeats + 1):
            settings = f'[log]\nuri = "kafka://{broker.address}/freshness-{repeat}"\n' if broker else ""
            measured = measure_freshness(
                work_dir / f"home-{repeat}", seconds=seconds, rate=rate, say=say, warm_up=warm_up, settings=settings
            )
            probes = len(measured.visible_ms)
            say(f"run {repeat} of {repeats}: the slowest of {probes:,} probes took {_slowest_ms(measured):.0f} ms")
            runs.append(measured)
    figures = freshness_figures(runs, rate=rate)
    write_json(json_path, machine, figures)
    return figures


def freshness_figures(runs: Sequence[MeasuredFreshness], *, rate: int) -> list[Figure]:
    """What the runs come to."""
    if any(len(run.visible_ms) < SAMPLES_MIN for run in runs):
        raise OpentabError("too few events became visible to say anything", hint="give --seconds more")
    p50_ms, p99_ms = ([percentile(run.visible_ms, share) for run in runs] for share in (50, 99))
    label = f"{rate:,} events/s"
    figures = [
        at_most(f"p50 from accepted to visible, {label}", p50_ms, "ms", P50_MS_MAX),
        at_most(f"p99 from accepted to visible, {label}", p99_ms, "ms", P99_MS_MAX),
        plain(f"slowest from accepted to visible, {label}", [_slowest_ms(run) for run in runs], "ms"),
        plain(f"from accepted to visible, {label}", [ms for run in runs for ms in run.visible_ms], "ms"),
        plain("probes", [len(run.visible_ms) for run in runs], "events"),
        plain("events accepted", [run.sent_per_second for run in runs], "events/s"),
    ]
    batches = [record for run in runs for record in run.batches]
    if batches:
        figures += [
            plain("batch", [record.took_ms for record in batches], "ms"),
            plain("events of a batch", [record.event_count for record in batches], "events"),
            plain("batches", [len(run.batches) / run.seconds for run in runs], "batches/s"),
        ]
    return [
        *figures,
        plain("events accepted in all, all billed", [run.sent for run in runs], "events"),
    ]


def _slowest_ms(run: MeasuredFreshness) -> float:
    return max(run.visible_ms, default=0.0)


def percentile(values: Sequence[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def measure_freshness(
    path: Path, *, seconds: int, rate: int, say: Say, warm_up: int = WARM_UP_SECONDS, settings: str = ""
) -> MeasuredFreshness:
    """Probe a new home under load.

    1. start the pipeline and the server, 2. send and probe, 3. wait until all that was sent is billed, 4. audit it
    """
    path.mkdir(parents=True)
    (path / config.FILE_NAME).write_text(settings, encoding="utf-8")
    home = config.load(path)
    say("starting the pipeline and the server")
    with started(home, "run") as pipeline:
        wait_until(lambda: streams(home, pipeline), "Spark was up", pipeline)
        with served(home, workers=home["server.workers"]) as server, ThreadPoolExecutor(3) as threads:
            say(f"sending for {warm_up} s of warm-up, which do not count, and for {seconds} s")
            stopping = threading.Event()
            sender, probe = _Sender(server.port, rate, stopping), _Probe(server.port, stopping)
            began_at = time.monotonic()
            working = [threads.submit(work) for work in (sender.send, probe.post, probe.look)]
            try:
                while time.monotonic() < began_at + warm_up + seconds:
                    if any(work.done() for work in working):
                        break  # it has failed, and its result says how
                    pipeline.check()
                    server.command.check()
                    time.sleep(WATCH_SECONDS)
            except BaseException:
                probe.abandoned.set()  # what was posted will not become visible
                raise
            finally:
                stopping.set()
            for work in working:
                work.result()
            sent = sender.sent + probe.sent
            _wait_until_billed(home, sent)
    sent_per_second = sent / (sender.ended_at - began_at)
    if sent_per_second < SENT_SHARE_MIN * rate:
        raise OpentabError(f"{sent_per_second:,.0f} events/s were accepted where {rate:,} were to be sent")
    audit(home)
    records = _records(home)
    billed = sum(record.event_count for record in records)
    if billed != sent:
        raise OpentabError(f"{sent:,} events were accepted, but {billed:,} are billed")
    warm_at = began_at + warm_up
    warm_us = time.time_ns() // 1000 - round((time.monotonic() - warm_at) * 1e6)
    return MeasuredFreshness(
        visible_ms=tuple(probe.visible_ms(since=warm_at)),
        batches=tuple(
            r for r in records if warm_us <= r.started_us and r.committed_us <= warm_us + seconds * 1_000_000
        ),
        seconds=seconds,
        sent=sent,
        sent_per_second=sent_per_second,
    )


@dataclass(slots=True)
class _Sender:
    """Sends events at a steady rate, more in a request where it is higher; held up, it catches up."""

    port: int
    rate: int
    stopping: threading.Event
    sent: int = 0
    ended_at: float = 0.0

    def send(self) -> None:
        drawn = random.Random(1)
        next_at = time.monotonic()
        count = min(max(POST_EVENTS_MIN, self.rate // POSTS_PER_SECOND), self.rate)
        with closing(HttpLine(self.port)) as line:
            while not self.stopping.wait(max(0.0, next_at - time.monotonic())):
                names = [f"c{drawn.randrange(CUSTOMERS):07d}" for _ in range(count)]
                _post(line, [_event(name) for name in names])
                self.sent += len(names)
                next_at += len(names) / self.rate
        self.ended_at = time.monotonic()


@dataclass(slots=True)
class _Probe:
    """Posts one event after the other, and looks when each of them is in the answer.

    Posting does not wait for looking: else a slow moment would be probed less often than a fast one.
    """

    port: int
    stopping: threading.Event
    posted: threading.Event = field(default_factory=threading.Event)  # and no more will be
    abandoned: threading.Event = field(default_factory=threading.Event)
    accepted_at: list[float] = field(default_factory=list)
    visible_at: list[float] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return len(self.accepted_at)

    def visible_ms(self, *, since: float) -> list[float]:
        pairs = zip(self.accepted_at, self.visible_at, strict=False)  # billed twice, more may be visible
        return [max(0.0, visible - accepted) * 1000 for accepted, visible in pairs if accepted >= since]

    def post(self) -> None:
        drawn = random.Random(2)
        try:
            with closing(HttpLine(self.port)) as line:
                while not self.stopping.wait(drawn.uniform(0, 2 * PROBE_SECONDS)):
                    _post(line, [_event(PROBE)])
                    self.accepted_at.append(time.monotonic())
        finally:
            self.posted.set()

    def look(self) -> None:
        deadline = math.inf
        with closing(HttpLine(self.port)) as line:
            while not self.abandoned.is_set() and not self._all_visible():
                now = time.monotonic()
                if self.posted.is_set():
                    deadline = min(deadline, now + PATIENCE_SECONDS)
                if now > deadline:
                    raise OpentabError(f"{self.sent - len(self.visible_at)} events did not become visible")
                count = _event_count(*line.get(f"/v1/customers/{PROBE}"))
                # The server may show an event before we have its answer that it was accepted.
                self.visible_at += [time.monotonic()] * (count - len(self.visible_at))
                time.sleep(POLL_SECONDS)

    def _all_visible(self) -> bool:
        return self.posted.is_set() and len(self.visible_at) >= self.sent


def _event(customer: str) -> dict[str, str]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"id": uuid4().hex, "time": now, "customer": customer, "type": "DATA", "amount": "0.01"}


def _post(line: HttpLine, events: list[dict[str, str]]) -> None:
    status, answer = line.post("/v1/events", msgspec.json.encode(events))
    if status != 202 or answer["accepted"] != len(events):
        raise OpentabError(f"the server did not accept all events of a request: {status} {answer}")


def _event_count(status: int, answer: dict[str, Any]) -> int:
    """How many events of a customer an answer shows, in all of its periods."""
    if status == 404:
        return 0  # none of them is billed yet
    if status != 200:
        raise OpentabError(f"the server did not answer: {status} {answer}")
    periods = [answer["current"], *answer["open"], *answer["closed"]]
    return sum(period["events"] for period in periods if period is not None)


def _records(home: Home) -> list[BatchRecord]:
    journal = Journal.open(home.ledger, home.identity)
    return journal.batches() if journal else []


def _wait_until_billed(home: Home, sent: int) -> None:
    """Give the pipeline time to bill the rest; whether it is all of it is said elsewhere."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and sum(record.event_count for record in _records(home)) < sent:
        time.sleep(1.0)
