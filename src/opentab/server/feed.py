"""Live streams: a message whenever a batch touched what the reader looks at (server-sent events).

Totals are cumulative, so only the newest state is ever sent: a slow reader skips what lies between, and nothing
is kept for it. Who asks for a pulse is told every second how fresh that state is, also while nothing happens.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from prometheus_client import Gauge

from opentab.errors import ReplicaError
from opentab.replica.reader import Reader

POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 15.0
PULSE_SECONDS = 1.0
STREAMS_MAX = 2_000

Look = Callable[[], tuple[int, dict[str, object], object]]  # position, what to send, what decides whether to
Pulse = Callable[[], dict[str, object]]


class Feed:
    """Tells all streams of one process when the replica has moved on: one look for all of them."""

    def __init__(self, reader: Reader, streams: Gauge, *, per_token_max: int, stopping: Path | None = None) -> None:
        self._reader = reader
        self._stopping = stopping  # once this file is there, streams end
        self._ends = False
        self._streams = streams
        self._per_token_max = per_token_max
        self._moved = asyncio.Event()  # a new one after each move: who waits needs no lock, and may go at any moment
        self._at = (0, 0)
        self._task: asyncio.Task[None] | None = None
        self._open: Counter[str | None] = Counter()  # by the token that opened them

    def has_room(self, holder: str | None) -> bool:
        """Whether one more stream may be opened, by the holder of this token."""
        if self._open.total() >= STREAMS_MAX:
            return False
        return holder is None or self._open[holder] < self._per_token_max

    async def stream(
        self, look: Look, *, last_seen: int | None, holder: str | None = None, pulse: Pulse | None = None
    ) -> AsyncIterator[bytes]:
        """The messages of one stream; `last_seen` is the position that the reader has from before."""
        self._open[holder] += 1
        self._streams.inc()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            sent: object = None
            known = self._at
            every = PULSE_SECONDS if pulse else HEARTBEAT_SECONDS
            due = time.monotonic()
            yield b"retry: 1000\n\n"
            while not self._ends:
                # A replica that is made anew says nothing for a while; then it has moved on.
                with suppress(ReplicaError):
                    position, answer, state = look()
                    if state != sent and not (sent is None and last_seen is not None and last_seen >= position):
                        yield b"id: %d\nevent: totals\ndata: %s\n\n" % (position, msgspec.json.encode(answer))
                    sent = state
                if time.monotonic() >= due:
                    due = time.monotonic() + every
                    yield _sign_of_life(pulse)
                known = await self._wait(known, due - time.monotonic())
        finally:
            self._open[holder] -= 1
            if not self._open[holder]:
                del self._open[holder]
            self._streams.dec()

    async def _wait(self, known: tuple[int, int], seconds: float) -> tuple[int, int]:
        """Until the replica has moved on, or a sign of life is due."""
        if self._at == known:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._moved.wait()
        return self._at

    async def _watch(self) -> None:
        while self._open:
            if self._stopping is not None and self._stopping.exists():
                self._ends = True
                self._moved.set()
                return
            with suppress(ReplicaError):
                with self._reader.read() as snapshot:
                    meta = snapshot.meta()
                at = (meta.position, meta.invoices_position) if meta else (0, 0)
                if at != self._at:
                    self._at = at
                    self._moved.set()
                    self._moved = asyncio.Event()
            await asyncio.sleep(POLL_SECONDS)


def _sign_of_life(pulse: Pulse | None) -> bytes:
    with suppress(ReplicaError):
        if pulse is not None:
            return b"event: pulse\ndata: %s\n\n" % msgspec.json.encode(pulse())
    return b": alive\n\n"
