"""A real `opentab serve` of a home, on a free port."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import msgspec
import psutil

from opentab.ledger.journal import Journal
from opentab.runtime.config import Home
from opentab.simulator.command import Command, started, wait_until
from opentab_tools.servers.free_port import free_port
from opentab_tools.servers.http_line import HttpLine

READY_POLL_SECONDS = 0.05
FOLLOWER = "follower"
WORKER = "HTTP worker"


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process holds, pages of the replica among it.

    RSS counts all of those that it has touched, PSS its share of them, USS those that no other process has.
    """

    rss_bytes: int
    pss_bytes: int
    uss_bytes: int


@dataclass(frozen=True, slots=True)
class ServedHome:
    """A server that answers."""

    command: Command
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory(self) -> list[tuple[str, Memory]]:
        """What each of its processes holds now, by role."""
        held = []
        for process in psutil.Process(self.command.process.pid).children():
            words = " ".join(process.cmdline())
            if "resource_tracker" in words:
                continue
            info = process.memory_full_info()
            role = FOLLOWER if "opentab.replica.follow" in words else WORKER
            held.append((role, Memory(info.rss, info.pss, info.uss)))
        return held


@contextmanager
def served(home: Home, *, workers: int) -> Iterator[ServedHome]:
    """Serve a home; yields once answers hold all that is in the ledger."""
    journal = Journal.open(home.ledger, home.identity)
    position = journal.position if journal else 0
    port = free_port()
    with started(home, "serve", "--port", str(port), "--workers", str(workers)) as command:
        wait_until(lambda: _position(port) >= position, "the replica had all", command, poll_seconds=READY_POLL_SECONDS)
        yield ServedHome(command, port)


def _position(port: int) -> int:
    """How far the answers are; -1 as long as there are none."""
    with closing(HttpLine(port)) as line:
        try:
            _, ready = line.get("/readyz")
        except (OSError, http.client.HTTPException, msgspec.MsgspecError):
            return -1
    return int(ready.get("position", -1))
