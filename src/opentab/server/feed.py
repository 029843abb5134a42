"""Live streams: a message whenever a batch touched what the reader looks at (server-sent events).

Totals are cumulative, so only the newest state is ever sent: a slow reader skips what lies between, and nothing
is kept for it. Who asks for a pulse is told every second how fresh that state is, also while nothing happens.

A stream ends as soon as its token is no longer accepted: each message is checked before it is sent, and so are quiet
streams, four times a second.
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

from opentab.core.errors import ReplicaError
from opentab.replica.reader import Reader

POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 15.0
PULSE_SECONDS = 1.0
CHECK_SECONDS = 0.25
STREAMS_MAX = 2_000

Look = Callable[[], tuple[int, object, object]]  # position, what to send, what decides whether to
Pulse = Callable[[], object]
IsGood = Callable[[], bool]  # whether the stream's token is still accepted


def always() -> bool:
    """Where no token is needed."""
    return True


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
        self._reading = 0  # streams that have begun
        self._watched: set[IsGood] = set()  # the tokens of streams that go on

    def enter(self, holder: str | None) -> bool:
        """Let the holder of a token open one more stream, until `leave`; False where there are too many."""
        if self._open.total() >= STREAMS_MAX or (holder is not None and self._open[holder] >= self._per_token_max):
            return False
        self._open[holder] += 1
        self._streams.inc()
        return True

    def leave(self, holder: str | None) -> None:
        """A stream that was let in is over, or never began."""
        self._open[holder] -= 1
        if not self._open[holder]:
            del self._open[holder]
        self._streams.dec()

    async def stream(
        self,
        look: Look,
        *,
        last_seen: int | None,
        is_good: IsGood = always,
        pulse: Pulse | None = None,
    ) -> AsyncIterator[bytes]:
        """The messages of one stream; `last_seen` is the position that the reader has from before."""
        self._reading += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            sent: object = None
            known = self._at
            every = PULSE_SECONDS if pulse else HEARTBEAT_SECONDS
            due = time.monotonic()
            yield b"retry: 1000\n\n"
            while not self._ends and is_good():
                self._watched.add(is_good)
                # A replica that is made anew says nothing for a while; then it has moved on.
                with suppress(ReplicaError):
                    position, answer, state = look()
                    if state != sent and not (sent is None and last_seen is not None and last_seen >= position):
                        if not is_good():  # the look may have taken a while
                            return
                        yield b"id: %d\nevent: totals\ndata: %s\n\n" % (position, msgspec.json.encode(answer))
                    sent = state
                if time.monotonic() >= due:
                    if not is_good():  # a slow reader may have taken a while
                        return
                    due = time.monotonic() + every
                    yield _sign_of_life(pulse)
                known = await self._wait(known, due - time.monotonic())
        finally:
            self._reading -= 1
            self._watched.discard(is_good)

    async def _wait(self, known: tuple[int, int], seconds: float) -> tuple[int, int]:
        """Until the replica has moved on, a sign of life is due, or some stream's token is no longer accepted."""
        if self._at == known:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._moved.wait()
        return self._at

    async def _watch(self) -> None:
        check_due = time.monotonic()
        while self._reading:
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
                    self._wake()
            if time.monotonic() >= check_due:
                check_due = time.monotonic() + CHECK_SECONDS
                bad = {is_good for is_good in self._watched if not is_good()}
                if bad:
                    # Told once: a reader that takes nothing would let all others look again and again.
                    self._watched -= bad
                    self._wake()
            await asyncio.sleep(POLL_SECONDS)

    def _wake(self) -> None:
        """Let all streams look again."""
        self._moved.set()
        self._moved = asyncio.Event()


def _sign_of_life(pulse: Pulse | None) -> bytes:
    with suppress(ReplicaError):
        if pulse is not None:
            return b"event: pulse\ndata: %s\n\n" % msgspec.json.encode(pulse())
    return b": alive\n\n"
