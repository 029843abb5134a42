"""Write the simulated telecom's events to a log: live, or as fast as the disk allows.

The bills to be expected are written first (expected.py), from the plan alone (telecom.py). A run that
is stopped early has therefore written less than its bills say; its outcome tells.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np

from opentab.billing.log_check import open_checked_producer
from opentab.core.periods import Period, from_us, to_us
from opentab.log import Appends
from opentab.log.directory import SEGMENT_BYTES_MAX, SEGMENT_LINES_MAX, Clock, wall_clock
from opentab.runtime.config import Home
from opentab.simulator.expected import add_expected, read_bills, read_rejections
from opentab.simulator.lines import Writer
from opentab.simulator.telecom import MonthTally, Plan, Rows, Telecom, settle

__all__ = ["Outcome", "Plan", "generate", "read_bills", "read_rejections", "write_lines"]

TICK_SECONDS = 0.1
BLOCK_SEGMENTS_MAX = 8  # how many sources' segments are made in one go
APPENDS_WAITING_MAX = 4  # so a slow disk holds the simulator back, not memory

Progress = Callable[[int, int, datetime], None]  # lines done, lines in all, the simulated instant
Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has written."""

    periods: tuple[Period, ...]
    line_count: int  # lines written, bad ones, duplicates and conflicts among them
    line_count_planned: int
    event_count_planned: int  # events that the expected bills hold
    finished: bool  # False: it was stopped, and the expected bills are ahead of the log


def generate(
    plan: Plan,
    home: Home,
    *,
    clock: Clock = wall_clock,
    sleep: Callable[[float], None] = time.sleep,
    stop: Stop = lambda: False,
    progress: Progress = lambda done, total, at: None,
) -> Outcome:
    """Write the plan's expected bills, then its events to the home's log, in order of arrival.

    1. settle the months, 2. tally them, 3. write what is to be expected, 4. write the events
    """
    telecom = _settled(plan, home, clock)
    months = telecom.tally()
    run = add_expected(home.expected_path, telecom, months)
    writer = Writer(telecom, run=run)
    names = [_partition(home, telecom, source) for source in range(plan.sources)]
    producers = [open_checked_producer(home, name, clock=clock) for name in names]
    lines_max = min(_lines_max(writer), home["pipeline.batch_events_max"])
    report = _Report(progress, sum(month.line_count for month in months))
    with _Appender(writer, producers, lines_max) as appender:
        if plan.month_seconds is None:
            done = _write_fast(telecom, appender, stop, report)
        else:
            simulated = _SimulatedClock(telecom, plan.month_seconds, clock, sleep)
            done = _write_live(telecom, appender, simulated, stop, report)
    return _outcome(telecom, months, done)


def write_lines(
    plan: Plan,
    home: Home,
    file: BinaryIO,
    *,
    expected_path: Path | None = None,
    clock: Clock = wall_clock,
    stop: Stop = lambda: False,
    progress: Progress = lambda done, total, at: None,
) -> Outcome:
    """Write the plan's events to a file as JSON lines, all sources in one order of arrival.

    The home gives the rules only; the expected bills go to `expected_path`, where one is given.
    """
    telecom = _settled(plan, home, clock)
    months = telecom.tally()
    run = add_expected(expected_path, telecom, months) if expected_path else 0
    writer = Writer(telecom, run=run)
    size = _lines_max(writer)
    report = _Report(progress, sum(month.line_count for month in months))
    done = 0
    for rows in telecom.stream():
        for start in range(0, len(rows), size):
            if stop():
                return _outcome(telecom, months, done)
            block = rows.take(slice(start, start + size))
            file.write(writer.lines(block))
            done += len(block)
            report(done, int(block.arrival_ms[-1]))
    return _outcome(telecom, months, done)


@dataclass(frozen=True, slots=True)
class _Report:
    """Tells how far we are."""

    progress: Progress
    line_count: int

    def __call__(self, done: int, at_ms: int) -> None:
        self.progress(done, self.line_count, from_us(at_ms * 1000))


class _Appender:
    """Writes rows to their sources' partitions, one segment behind the other, while we go on."""

    def __init__(self, writer: Writer, producers: list[Appends], lines_max: int) -> None:
        self._writer = writer
        self._producers = producers
        self._lines_max = lines_max
        self._waiting: deque[Future[int]] = deque()
        # One thread: segments of a partition stay in order.
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.block_lines = lines_max * min(len(producers), BLOCK_SEGMENTS_MAX)

    def __enter__(self) -> _Appender:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self.flush()
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def add(self, rows: Rows) -> None:
        """Take rows in order of arrival; a source's rows become one segment, or more if they are many."""
        sources = len(self._producers)
        for source, producer in enumerate(self._producers):
            own = rows if sources == 1 else rows.take(np.flatnonzero(rows.customer % sources == source))
            for start in range(0, len(own), self._lines_max):
                body = self._writer.lines(own.take(slice(start, start + self._lines_max)))
                self._waiting.append(self._thread.submit(producer.append, body))
                while len(self._waiting) > APPENDS_WAITING_MAX:
                    self._waiting.popleft().result()

    def flush(self) -> None:
        """Return when all that was added is on the disk; raises what went wrong."""
        while self._waiting:
            self._waiting.popleft().result()


class _SimulatedClock:
    """Shows the simulated instant: each month takes the same wall time, however long it is."""

    def __init__(self, telecom: Telecom, month_seconds: float, clock: Clock, sleep: Callable[[float], None]) -> None:
        calendar = telecom.calendar
        self._starts_ms = [calendar.start_us(period) // 1000 for period in telecom.periods]
        self._ends_ms = [calendar.end_us(period) // 1000 for period in telecom.periods]
        self._month_seconds = month_seconds
        self._clock = clock
        self.sleep = sleep  # in seconds of wall time
        self._began_at = clock()

    def now_ms(self) -> int:
        elapsed = (self._clock() - self._began_at).total_seconds() / self._month_seconds
        # Behind the last month time runs on: the latest arrivals are still to come.
        month = max(0, min(int(elapsed), len(self._starts_ms) - 1))
        start_ms, end_ms = self._starts_ms[month], self._ends_ms[month]
        return start_ms + int((elapsed - month) * (end_ms - start_ms))


def _write_fast(telecom: Telecom, appender: _Appender, stop: Stop, report: _Report) -> int:
    done = 0
    for rows in telecom.stream():
        for start in range(0, len(rows), appender.block_lines):
            if stop():
                return done
            block = rows.take(slice(start, start + appender.block_lines))
            appender.add(block)
            done += len(block)
            report(done, int(block.arrival_ms[-1]))
    return done


def _write_live(telecom: Telecom, appender: _Appender, simulated: _SimulatedClock, stop: Stop, report: _Report) -> int:
    done = 0
    for rows in telecom.stream():
        written = 0
        while written < len(rows):
            if stop():
                return done
            now_ms = simulated.now_ms()
            due = int(np.searchsorted(rows.arrival_ms, now_ms, side="right"))
            upto = min(due, written + appender.block_lines)
            if upto > written:
                appender.add(rows.take(slice(written, upto)))
                appender.flush()
                done += upto - written
                written = upto
            report(done, now_ms)
            # Who is behind does not rest.
            if written == due:
                simulated.sleep(TICK_SECONDS)
    return done


def _partition(home: Home, telecom: Telecom, source: int) -> str | None:
    """Where a source writes; on Kafka a single one leaves it to the customers' names."""
    if home.kafka is None:
        return telecom.partition(source)
    return None if telecom.plan.sources == 1 else str(source)


def _settled(plan: Plan, home: Home, clock: Clock) -> Telecom:
    return settle(plan, rules=home.rules, calendar=home.calendar, now_us=to_us(clock()))


def _outcome(telecom: Telecom, months: list[MonthTally], done: int) -> Outcome:
    planned = sum(month.line_count for month in months)
    events = sum(sum(month.type_events) for month in months)
    return Outcome(telecom.periods, done, planned, events, finished=done == planned)


def _lines_max(writer: Writer) -> int:
    return min(SEGMENT_LINES_MAX, SEGMENT_BYTES_MAX // writer.line_bytes_max)
