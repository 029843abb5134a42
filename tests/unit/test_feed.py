"""Streams: only the newest state is ever sent, however slowly someone reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from opentab.server.feed import Feed


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
    async def open_some() -> list[bool]:
        replica = Moving()
        feed = feed_of(replica)
        streams = [feed.stream(replica.look, last_seen=None, holder="t") for _ in range(2)]
        room = [feed.has_room("t")]
        for stream in streams:
            await anext(stream)
        room += [feed.has_room("t"), feed.has_room("other"), feed.has_room(None)]
        await streams[0].aclose()  # type: ignore[attr-defined]
        room.append(feed.has_room("t"))
        await streams[1].aclose()  # type: ignore[attr-defined]
        return room

    assert asyncio.run(open_some()) == [True, False, True, True, True]


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
