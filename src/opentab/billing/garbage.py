"""How much of their time Spark's Java processes spend on garbage collection, as Spark itself says.

The REST API of Spark's UI knows it of the driver and of every executor. Its first answer costs Java a second, so it is
asked only while events are billed late. Where the UI is switched off, nothing is known.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx

from opentab.runtime.heartbeat import DRIVER, Collecting

LOOK_SECONDS = 5.0
WINDOW_SECONDS = 60.0
ANSWER_SECONDS_MAX = 5.0
TIME_MS_MIN = 1_000  # of less time a share says nothing


class Spent(NamedTuple):
    """What a Java process has spent so far."""

    collecting_ms: int
    time_ms: int  # the driver: since its start; an executor: in tasks


class GarbageWatch:
    """A thread that asks Spark's UI every few seconds, as long as there is a reason to."""

    def __init__(self, executors_url: str, *, is_wanted: Callable[[], bool]) -> None:
        self._url = executors_url
        self._is_wanted = is_wanted
        self._seen: deque[tuple[float, Mapping[str, Spent]]] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="garbage", daemon=True)
        self.worst: Collecting | None = None  # in the last minute

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            if self._is_wanted():
                self._look(time.monotonic())
            else:
                self._seen.clear()
                self.worst = None

    def _look(self, now: float) -> None:
        try:
            answer = httpx.get(self._url, timeout=ANSWER_SECONDS_MAX, trust_env=False).raise_for_status().json()
            spent = spent_by(answer)
        except (httpx.HTTPError, KeyError, TypeError, ValueError):
            self.worst = None  # the UI may be behind a login, or be another version's
            return
        while self._seen and now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        if self._seen:
            self.worst = worst_between(self._seen[0][1], spent)
        self._seen.append((now, spent))


def executors_url(ui: str, application: str) -> str:
    """Where Spark's UI tells of the driver and the executors."""
    return f"{ui}/api/v1/applications/{application}/executors"


def spent_by(answer: Any) -> dict[str, Spent]:
    """What each Java process has spent so far, by its name in Spark and its machine."""
    return {_name(one): Spent(one["totalGCTime"], one["totalDuration"]) for one in answer}


def _name(executor: Any) -> str:
    machine = str(executor["hostPort"]).rpartition(":")[0]
    name = DRIVER if executor["id"] == "driver" else f"executor {executor['id']}"
    return f"{name} ({machine})"


def worst_between(before: Mapping[str, Spent], after: Mapping[str, Spent]) -> Collecting | None:
    """The process that spent the largest share of its time on garbage collection in between; None if none worked."""
    shares = {
        name: (spent.collecting_ms - before[name].collecting_ms) / (spent.time_ms - before[name].time_ms)
        for name, spent in after.items()
        if name in before and spent.time_ms - before[name].time_ms >= TIME_MS_MIN
    }
    worst = max(shares, key=lambda name: shares[name], default=None)
    return None if worst is None else Collecting(worst, round(shares[worst], 3))
