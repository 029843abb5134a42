"""Streams: only the newest state is ever sent, however slowly someone reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from opentab.server.feed import Feed
from opentab.server.routes.health import _IngestCheck
from opentab.server.routes.stream import _Stream


@dataclass
class Moving:
    """Stands in for a replica's reader: a position that is moved by hand."""

    position: int = 1
    invoices_position: int = 0

    @contextmanager
    def read(self) -> Iterator[Moving]:
        yield self

    def meta(self) -> Moving:
        return self

    def look(self) -> tuple[int, dict[str, object], object]:
        return self.position, {"total": self.position}, self.position


def feed_of(replica: Any) -> Feed:
    return Feed(replica, Gauge("streams", "", registry=CollectorRegistry()), per_token_max=2)


def totals(message: bytes) -> bool:
    return message.startswith(b"id: ")


async def next_totals(messages: Any) -> bytes:
    while not totals(message := await anext(messages)):
        pass
    return bytes(message)


def test_a_slow_reader_skips_what_lies_between() -> None:
    async def read() -> tuple[bytes, bytes]:
        replica = Moving()
        feed = feed_of(replica)
        messages = feed.stream(replica.look, last_seen=None)
        first = await next_totals(messages)
        waiting = asyncio.ensure_future(next_totals(messages))
        await asyncio.sleep(0)
        replica.position = 1_000  # so many batches passed while it did not read
        second = await waiting
        await messages.aclose()  # type: ignore[attr-defined]
        return first, second

    first, second = asyncio.run(read())
    assert first == b'id: 1\nevent: totals\ndata: {"total":1}\n\n'
    assert second == b'id: 1000\nevent: totals\ndata: {"total":1000}\n\n'


def test_who_comes_back_is_told_only_what_is_new() -> None:
    async def read(last_seen: int) -> bytes:
        replica = Moving(position=7)
        messages = feed_of(replica).stream(replica.look, last_seen=last_seen)
        waiting = asyncio.ensure_future(next_totals(messages))
        while replica.position == 7 and not waiting.done():
            await asyncio.sleep(0.05)
            if last_seen == 7:
                replica.position = 8
        found = await waiting
        await messages.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(read(last_seen=6)).startswith(b"id: 7\n")
    assert asyncio.run(read(last_seen=7)).startswith(b"id: 8\n")


def test_so_many_streams_for_one_token() -> None:
    """A stream counts from the moment it is let in, so that many at once are no way round the limit."""
    feed = feed_of(Moving())
    assert [feed.enter("t") for _ in range(4)] == [True, True, False, False]
    assert feed.enter("other") and feed.enter(None)
    feed.leave("t")
    assert [feed.enter("t") for _ in range(2)] == [True, False]


def test_a_stream_that_never_begins_leaves_its_place() -> None:
    async def gone(message: object) -> None:
        raise OSError("the reader has gone")

    async def never() -> AsyncIterator[bytes]:
        yield b""

    async def nothing() -> dict[str, str]:
        return {"type": "http.disconnect"}

    over: list[bool] = []
    response = _Stream(never(), over=lambda: over.append(True))
    with pytest.raises(Exception):  # noqa: B017 - whatever the framework makes of it
        asyncio.run(response({"type": "http", "asgi": {"spec_version": "2.4"}}, nothing, gone))
    assert over == [True]


def test_one_look_at_the_log_for_all_who_ask_whether_events_would_be_taken() -> None:
    looks: list[int] = []
    running = threading.Semaphore(0)

    class Slow:
        def check(self) -> None:
            looks.append(1)
            assert running.acquire(timeout=30)

    async def ask() -> None:
        check = _IngestCheck(Slow())  # type: ignore[arg-type]
        asked = [asyncio.create_task(check()) for _ in range(100)]
        await asyncio.sleep(0)
        asked[0].cancel()  # who has left does not end it for the others
        running.release()
        await asyncio.gather(*asked[1:])

    asyncio.run(ask())
    assert looks == [1]


def test_a_stream_ends_once_its_token_is_not_accepted() -> None:
    async def read(moved: bool) -> list[bytes]:
        replica, good = Moving(), [True]
        messages = feed_of(replica).stream(replica.look, last_seen=None, is_good=lambda: good[0])
        while await anext(messages) != b": alive\n\n":
            pass
        rest = asyncio.ensure_future(_all(messages))
        await asyncio.sleep(0)
        good[0] = False
        replica.position += moved
        async with asyncio.timeout(2):
            return await rest

    assert asyncio.run(read(moved=True)) == [], "what changed is not sent any more"
    assert asyncio.run(read(moved=False)) == [], "a quiet stream ends, too"


def test_a_reader_that_takes_nothing_wakes_no_others() -> None:
    async def looks() -> int:
        replica, good, count, checks = Moving(), [True], [0], [0]

        def is_good() -> bool:
            checks[0] += 1
            return True

        def look() -> tuple[int, dict[str, object], object]:
            count[0] += 1
            return replica.look()

        feed = feed_of(replica)
        stuck = feed.stream(replica.look, last_seen=None, is_good=lambda: good[0])
        other = feed.stream(look, last_seen=None, is_good=is_good)
        await next_totals(stuck)
        while await anext(other) != b": alive\n\n":
            pass
        waiting = asyncio.ensure_future(anext(other))  # type: ignore[arg-type]
        good[0] = False
        checks[0] = 0
        while checks[0] < 5:  # the watch went round
            await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for stream in (stuck, other):
            await stream.aclose()  # type: ignore[attr-defined]
        return count[0]

    assert asyncio.run(looks()) <= 2


async def _all(messages: Any) -> list[bytes]:
    return [message async for message in messages]
