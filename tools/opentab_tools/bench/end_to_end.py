"""A run of the pipeline with a replica beside it, on the same cores: until all of it can be read."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass

from opentab.core.errors import OpentabError, ReplicaError
from opentab.replica.reader import Reader
from opentab.runtime.config import Home
from opentab_tools.measuring.disk_usage import disk_bytes
from opentab_tools.measuring.measured_run import SECOND_US, WARM_UP_BATCHES, MeasuredRun, measure_home
from opentab_tools.servers.daemon import Daemon

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """What a run took, and when the replica had the last of its events."""

    run: MeasuredRun
    folded_us: int
    replica_bytes: int

    @property
    def events_per_second(self) -> float:
        """Of the whole run, from the start of the process to the moment when all can be read."""
        return self.run.event_count * SECOND_US / (self.folded_us - self.run.started_us)

    @property
    def warm_events_per_second(self) -> float:
        """Of the batches behind the warm-up, to the moment when all can be read; of the whole run where it is short."""
        warm = self.run.batches[WARM_UP_BATCHES:]
        if not warm:
            return self.events_per_second
        began_us = self.run.batches[WARM_UP_BATCHES - 1].at_us
        return sum(batch.event_count for batch in warm) * SECOND_US / (self.folded_us - began_us)


def measure_end_to_end(home: Home) -> EndToEnd:
    """Run a home once beside a follower of it."""
    home.logs_path.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "opentab.replica.follow", str(home.path), str(os.getpid())]
    follower = Daemon("follower", words, home.logs_path)
    follower.start()
    try:
        with _Watch(home) as watch:
            run = measure_home(home)
            last = max(one.batch for one in run.batches if one.event_count)
            folded_us = watch.reached_us(last, follower)
    finally:
        follower.stop()
    return EndToEnd(run, folded_us, disk_bytes(home.replica_path))


class _Watch:
    """Notes when a replica reaches which position."""

    def __init__(self, home: Home) -> None:
        self._reader = Reader(home.replica_path)
        self._reached: list[tuple[int, int]] = []  # position, when
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._reader.close()

    def reached_us(self, position: int, follower: Daemon) -> int:
        """When it was there; waits for it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            for reached, at_us in list(self._reached):
                if reached >= position:
                    return at_us
            follower.check()
            if time.monotonic() > deadline:
                raise OpentabError(f"the replica did not reach batch {position} in {PATIENCE_SECONDS} s")
            time.sleep(POLL_SECONDS)

    def _look(self) -> None:
        last = 0
        while not self._stopping.wait(POLL_SECONDS):
            try:
                with self._reader.read() as reading:
                    meta = reading.meta()
            except ReplicaError:
                continue  # it is being made
            if meta is not None and meta.position > last:
                last = meta.position
                self._reached.append((last, time.time_ns() // 1000))
