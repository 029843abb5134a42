"""Keeps small segments coming, as a log that is at work has them."""

from __future__ import annotations

import json
import threading

from opentab.log import DirectoryLog, Producer
from opentab.runtime.config import Home

EVENTS = 200
SECONDS = 0.25


class Feeder:
    """A thread that appends events of one customer, four times a second."""

    def __init__(self, home: Home, *, at: str) -> None:
        self._producer = Producer(DirectoryLog(home.log_path))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self.at = at  # the time of the events

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _feed(self) -> None:
        while not self._stopping.wait(SECONDS):
            event = {"time": self.at, "customer": "feeder", "type": "DATA", "amount": "0.01"}
            self._producer.append((json.dumps(event) + "\n").encode() * EVENTS)
