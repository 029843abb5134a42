"""What operators watch (Prometheus): the pipeline by its own records, the replica by its position, the workers
by the requests they answered."""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from opentab.core.records import BatchRecord
from opentab.replica.flags import Trouble
from opentab.runtime.heartbeat import Heartbeat
from opentab.server.common_files import DIRECTORY_VARIABLE
from opentab.server.freshness import freshness_of
from opentab.server.paths import App
from opentab.server.position_view import Moment
from opentab.sinks.delivery_status import Backlog

SECOND_US = 1_000_000
TELL_SECONDS = 0.2
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Counters:
    """What the workers count; one for each process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "opentab_request_seconds",
            "How long requests took",
            ["route", "method", "status"],
            registry=self.registry,
            buckets=BUCKETS,
        )
        self.streams = Gauge(
            "opentab_open_streams", "Live streams", registry=self.registry, multiprocess_mode="livesum"
        )


class Times:
    """Times of one kind of request, counted here and told to the histogram a few times a second.

    To tell it of each takes as long as half an answer: it writes to a file that other workers read.
    """

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._counts = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._is_due = False

    def add(self, seconds: float, count: int) -> None:
        """Count some that took so long; it is told within TELL_SECONDS, by the loop that this runs in."""
        self._counts[bisect_left(BUCKETS, seconds)] += count
        self._seconds += seconds * count
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell)

    def _tell(self) -> None:
        self._is_due = False
        # What observe() does for one, for many.
        self._histogram._sum.inc(self._seconds)
        for bucket, count in zip(self._histogram._buckets, self._counts, strict=True):
            if count:
                bucket.inc(count)
        self._counts = [0] * len(self._counts)
        self._seconds = 0.0


class Timed:
    """Measures every request, by the route that answered it."""

    def __init__(self, app: App, counters: Counters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def sent(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            took = time.perf_counter() - began
            self._counters.requests.labels(route, scope["method"], str(status)).observe(took)


class LedgerCollector:
    """What the journal, the replica and the heartbeat say at this moment."""

    def __init__(
        self,
        moment: Moment | None,
        heartbeat: Heartbeat | None,
        now_us: int,
        trouble: Trouble | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        self._moment = moment
        self._meta = moment.meta if moment else None
        self._record = moment.record if moment else None
        self._heartbeat = heartbeat
        self._now_us = now_us
        self._trouble = trouble
        self._backlog = backlog

    def collect(self) -> Iterator[Metric]:
        yield from self._pipeline()
        yield from self._replica()
        yield from self._sink()

    def _pipeline(self) -> Iterator[Metric]:
        beat = self._heartbeat
        if beat is not None:
            yield gauge("heartbeat_age_seconds", "Since the pipeline last said it lives", self._age(beat.at_us))
            yield gauge("journal_position", "The last batch of the journal", beat.position)
            yield gauge("unread_segments", "Segments of the log that are not in the journal", beat.unread_segments)
            yield gauge("invoices_position", "All that was due up to this batch was issued", beat.invoices_position)
            yield gauge("held_back_partitions", "Log partitions stamped ahead of the pipeline's clock", beat.held_back)
        record, meta = self._record, self._meta
        if record is None or meta is None:
            return
        last = GaugeMetricFamily("opentab_batch_seconds", "What the last batch spent on what", labels=["step"])
        for step, took_ms in record.steps_ms.items():
            last.add_metric([step], took_ms / 1000)
        last.add_metric(["all"], (record.committed_us - record.started_us) / SECOND_US)
        yield last
        steps = CounterMetricFamily("opentab_batch_step_seconds", "What all batches spent on what", labels=["step"])
        for step, took_ms in meta.steps_ms.items():
            steps.add_metric([step], took_ms / 1000)
        yield steps
        yield gauge("batch_events", "Events of the last batch", record.event_count)
        yield gauge("batch_input_bytes", "Bytes of the log in the last batch", record.input_bytes)
        yield gauge("batch_segments", "Segments of the log in the last batch", segments_of(record))
        yield gauge("batch_files", "Files that the last batch added to the ledger", record.file_count)
        yield gauge("batch_entries", "Entries of the last batch", record.entry_rows)
        yield counter("batches", "Batches that were billed", meta.position)
        yield counter("events", "Events that were billed", meta.events)
        yield counter("duplicates", "Repeats of events that had counted", meta.duplicates)
        yield counter("events_without_id", "Events that cannot be told from their repeats", meta.without_id)
        yield counter("input_bytes", "Bytes of the log that were read", meta.input_bytes)
        rejected = CounterMetricFamily("opentab_rejections", "Inputs that could not be billed", labels=["reason"])
        for reason, count in sorted(meta.rejections.items()):
            rejected.add_metric([reason], count)
        yield rejected
        if record.watermark_us is not None:
            yield gauge("watermark_lag_seconds", "Now less the watermark", self._age(record.watermark_us))

    def _replica(self) -> Iterator[Metric]:
        position = self._meta.position if self._meta else 0
        yield gauge("replica_position", "The last batch of the replica", position)
        if self._meta is not None:
            yield gauge("replica_fold_seconds", "What the last fold took", self._meta.fold_seconds)
        if self._heartbeat is not None:
            behind = max(0, self._heartbeat.position - position)
            yield gauge("replica_lag_batches", "Batches that the replica has not folded yet", behind)
        yield gauge("replica_in_trouble", "1 if the replica does not go on", 1 if self._trouble else 0)
        if self._moment is None:
            return
        staleness_ms = freshness_of(self._moment, self._heartbeat, self._now_us).staleness_ms
        if staleness_ms is not None:
            yield gauge("staleness_seconds", "Since answers were caught up with the log", staleness_ms / 1000)
        if self._record is not None:
            yield gauge("replica_lag_seconds", "Since the replica's last batch was committed", self._lag())

    def _sink(self) -> Iterator[Metric]:
        backlog = self._backlog
        if backlog is None:
            return
        yield gauge("deliverer_age_seconds", "Since opentab deliver last said it lives", self._age(backlog.at_us))
        yield gauge("deliveries_waiting", "Invoices that the receiver does not have yet", backlog.waiting)
        yield gauge("deliveries_stuck", "Of these: refused by the receiver", backlog.stuck)
        oldest = 0.0 if backlog.oldest_us is None else self._age(backlog.oldest_us)
        yield gauge("deliveries_oldest_seconds", "Since the first of them was issued to the sink", oldest)
        yield gauge("deliveries_position", "All invoices up to this batch were taken up", backlog.position)
        yield gauge("receiver_gone", "1 if the receiver takes nothing", 1 if backlog.gone else 0)
        yield counter("deliveries", "Invoices that the receiver has taken", backlog.delivered)
        if backlog.delivered_us is not None:
            yield gauge("deliveries_success_age_seconds", "Since one was last taken", self._age(backlog.delivered_us))

    def _lag(self) -> float:
        """How old the replica's last batch is while there are later ones."""
        assert self._record is not None
        behind = self._heartbeat is not None and self._heartbeat.position > self._record.batch
        return self._age(self._record.committed_us) if behind else 0.0

    def _age(self, at_us: int) -> float:
        return (self._now_us - at_us) / SECOND_US


def segments_of(record: BatchRecord) -> int:
    """How many segments of the log a batch took."""
    return sum(last - first + 1 for first, last in record.taken.values())


def gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"opentab_{name}", documentation, value=value)


def counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(f"opentab_{name}", documentation, value=value)


def exposition(counters: Counters, ledger: LedgerCollector) -> bytes:
    """All of it, as Prometheus reads it: the ledger's, and those of all workers together."""
    registry = CollectorRegistry()
    registry.register(ledger)
    own = counters.registry
    if os.environ.get(DIRECTORY_VARIABLE):
        own = CollectorRegistry()
        multiprocess.MultiProcessCollector(own)  # type: ignore[no-untyped-call]
    return generate_latest(registry) + generate_latest(own)
