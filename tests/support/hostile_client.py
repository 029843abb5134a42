"""A hostile client of a server: python hostile_client.py PORT TOKEN SEED SECONDS SILENT.

Does at random what a server must not mind. At its end it prints the ids of the events that it was told are accepted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

CALLERS = 60
USEFUL_SECONDS = 10  # how long an answer is waited for, by a caller that wants it
BAD_EVENTS = [
    b"",
    b"{",
    b"null",
    b"[" * 50_000,
    b'{"a":' * 20_000,
    b'{"customer":"\xff"}',
    b'{"time":1,"time":2,"customer":"a","type":"CALL","amount":"1"}',
    b'{"time":"2026-01-15T12:00:00Z","customer":"a","type":"CALL","amount":' + b"9" * 50_000 + b"}",
    b'{"time":"2026-01-15T12:00:00Z","customer":"a","type":"FAX","amount":"1"}',
    b'{"time":"9999-99-99T12:00:00Z","customer":"a","type":"CALL","amount":"1"}',
    b'{"time":-1e999,"customer":"..","type":"CALL","amount":"1e9"}',
    b'{"time":"2026-01-15T12:00:00Z","customer":"' + b"\\u0000" * 1_000 + b'","type":"CALL","amount":"1"}',
    b'{"time":"2026-01-15T12:00:00Z","customer":"a","type":"CALL","amount":"1","note":"' + b"x" * 2**20 + b'"}',
    b"[" + b",".join([b"{}"] * 9_999) + b"]",
]
MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/customers/ann HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n",
    b"GET /" + b"%" * 5_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: \x00\r\n\r\n",
]


class Hostile:
    """What one of its callers does, again and again."""

    def __init__(self, port: int, token: str, seed: int) -> None:
        self.port = port
        self.auth = f"authorization: Bearer {token}"
        self.random = random.Random(seed)
        self.seed = seed
        self.accepted: list[str] = []
        self.sent = 0

    def head(self, method: str, path: str, *more: str) -> bytes:
        return "\r\n".join([f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *more, "", ""]).encode()

    async def run(self, until: float) -> None:
        acts = [
            self.good_events, self.bad_event, self.bad_event, self.malformed, self.large_head, self.slow_head,
            self.slow_body, self.sent_ahead, self.silent, self.reads_nothing, self.abandoned_stream, self.ledger_read,
        ]  # fmt: skip
        while time.monotonic() < until:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
                await self.one(self.random.choice(acts))

    async def one(self, act: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await act(reader, writer)
        finally:
            writer.close()

    async def answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        async with asyncio.timeout(USEFUL_SECONDS):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            size = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
            return int(lines[0].split()[1]), await reader.readexactly(size)

    async def post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> tuple[int, bytes]:
        head = self.head(
            "POST", "/v1/events", self.auth, "content-type: application/json", f"content-length: {len(body)}"
        )
        writer.write(head + body)
        return await self.answer(reader)

    async def good_events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self.random.randint(1, 5)):
            ids = [f"{self.seed}-{self.sent + number}" for number in range(self.random.randint(1, 20))]
            self.sent += len(ids)
            plain = {"time": "2026-01-15T12:00:00Z", "customer": "ann", "type": "CALL", "amount": "0.01"}
            status, _ = await self.post(reader, writer, json.dumps([{**plain, "id": id_} for id_ in ids]).encode())
            if status == 202:
                self.accepted += ids

    async def bad_event(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = self.random.choice(BAD_EVENTS)
        status, _ = await self.post(reader, writer, body)
        if status == 500:
            sys.exit(f"a bad event was answered with 500: {body[:50]!r}")

    async def malformed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.random.choice([*MALFORMED, self.random.randbytes(1_000)]))
        await self.answer(reader)

    async def large_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cookie = 'cookie: opentab_session="' + "\\" * self.random.choice((10_000, 60_000))
        writer.write(self.head("GET", self.random.choice(("/healthz", "/session", "/v1/periods")), cookie))
        await self.answer(reader)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while True:
                    writer.write(b"x-more: " + b"x" * 10_000 + b"\r\n")
                    await writer.drain()

    async def slow_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in self.head("GET", "/v1/customers/ann", self.auth)[: self.random.randint(1, 40)]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    async def slow_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = self.random.choice((1_000, 16 * 2**20))
        writer.write(
            self.head("POST", "/v1/events", self.auth, "content-type: application/json", f"content-length: {size}")
        )
        for _ in range(self.random.randint(1, 50)):
            writer.write(b"[" * self.random.randint(1, 10_000))
            await asyncio.sleep(0.02)

    async def sent_ahead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths = ("/v1/customers/ann", "/healthz", "/v1/customers/nobody", "/v1/periods", "/")
        writer.write(b"".join(self.head("GET", self.random.choice(paths), self.auth) for _ in range(500)))
        for _ in range(self.random.randint(0, 100)):
            await self.answer(reader)

    async def silent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.random.random() * 2)

    async def reads_nothing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(self.head("GET", "/v1/customers?period=2026-01&limit=1000", self.auth) * 100)
        await asyncio.sleep(self.random.random() * 2)

    async def abandoned_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        what = self.random.choice(("types", "overview&pulse", "customer=ann"))
        writer.write(self.head("GET", f"/v1/stream?{what}", self.auth))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.random.random()):
                await reader.readuntil(b"\n\n")
                await asyncio.sleep(1)

    async def ledger_read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = self.random.choice(
            (
                "/v1/customers/ann/usage?from=1970-01-01&to=2999-12-31&group=day,type",
                "/v1/customers/nobody/usage",
                "/v1/rejections?limit=100",
                "/v1/events/unknown",
            )
        )
        writer.write(self.head("GET", path, self.auth))
        await self.answer(reader)


async def attack(port: int, token: str, seed: int, seconds: float, silent: int) -> list[str]:
    """Callers, each with a seed of its own, and connections that say nothing."""
    callers = [Hostile(port, token, seed * 10_000 + number) for number in range(CALLERS)]
    until = time.monotonic() + seconds
    await asyncio.gather(*(caller.run(until) for caller in callers), *(say_nothing(port, until) for _ in range(silent)))
    return [id_ for caller in callers for id_ in caller.accepted]


async def say_nothing(port: int, until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(writer):
                async with asyncio.timeout(left):
                    await reader.read()


if __name__ == "__main__":
    logging.disable()  # asyncio says of each write that the server has gone
    given_port, given_token, *given_numbers = sys.argv[1:]
    found = asyncio.run(attack(int(given_port), given_token, *map(int, given_numbers)))
    sys.stdout.write(json.dumps(found))
