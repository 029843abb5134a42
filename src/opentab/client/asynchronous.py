"""The client for programs that do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal

import httpx
import msgspec

from opentab.client.answers import Current, Ingested, Invoice, Invoices, Live, PeriodTotal, Receipt
from opentab.client.errors import error_of
from opentab.client.requests import (
    JSON,
    RETRIES,
    Answer,
    Messages,
    batches,
    headers_of,
    may_help,
    path_of,
    pause_seconds,
    read,
    taken,
    together,
    waiting,
)


class AsyncClient:
    """Reads from and writes to one server."""

    def __init__(self, url: str, *, token: str | None = None, timeout_seconds: float = 10.0) -> None:
        self._timeout_seconds = timeout_seconds
        self._http = httpx.AsyncClient(base_url=url, headers=headers_of(token), timeout=timeout_seconds)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def customer(self, customer: str, **query: float) -> Current:
        """A customer's current total, the other open periods and the last closed ones."""
        return await self._get(path_of("customers", customer), Current, query)

    async def total(self, customer: str, period: str, **query: float) -> PeriodTotal:
        """One period of a customer."""
        return await self._get(path_of("customers", customer, "periods", period), PeriodTotal, query)

    async def invoices(self, customer: str, **query: float) -> list[Invoice]:
        """All revisions of all of a customer's invoices."""
        return (await self._get(path_of("customers", customer, "invoices"), Invoices, query)).items

    async def receipt(self, id_: str, source: str | None = None, **query: float) -> Receipt:
        """What became of the event with this id, and source where its envelope has one; NotThere if none is known."""
        asked: dict[str, str | float] = {**query}
        if source is not None:
            asked["source"] = source
        return await self._get(path_of("events", id_), Receipt, asked)

    async def ingest(
        self,
        events: Iterable[Mapping[str, Any]],
        *,
        wait: Literal["committed"] | None = None,
        wait_seconds: float = 10.0,
    ) -> Ingested:
        """Send events; returns once all are durable or refused. Tries again while the server cannot take them.

        With `wait` each request waits, up to `wait_seconds`, until its events are in the journal.
        """
        query = waiting(wait, wait_seconds)
        return together([await self._send(first, body, query) for first, body in batches(events)])

    async def live(self, *, customer: str | None = None) -> AsyncIterator[Live]:
        """Totals of a customer, or by type, as they change; goes on where it was if the connection breaks."""
        messages = Messages()
        failures = 0
        query = {"types": ""} if customer is None else {"customer": customer}
        while True:
            headers = {"last-event-id": messages.last_id} if messages.last_id else {}
            try:
                async with self._http.stream(
                    "GET", path_of("stream"), params=query, headers=headers, timeout=httpx.Timeout(10, read=60)
                ) as answer:
                    if answer.status_code != 200:
                        if not may_help(answer.status_code):
                            raise error_of(answer.status_code, await answer.aread())
                        raise httpx.TransportError("try again")
                    async for line in answer.aiter_lines():
                        failures = 0
                        data = messages.take(line)
                        if data is not None:
                            yield msgspec.json.decode(data, type=Live)
                raise httpx.TransportError("the server ended the stream")
            except httpx.TransportError:
                await asyncio.sleep(pause_seconds(failures, None))
                failures += 1

    async def _get(self, path: str, kind: type[Answer], query: Mapping[str, str | float]) -> Answer:
        answer = await self._http.get(path, params=dict(query))
        return read(answer.status_code, answer.content, kind)

    async def _send(self, first: int, body: bytes, query: dict[str, str | float]) -> Ingested:
        timeout = float(query.get("timeout", 0)) + self._timeout_seconds
        for attempt in range(RETRIES + 1):
            answer = await self._http.post(path_of("events"), content=body, params=query, headers=JSON, timeout=timeout)
            if not may_help(answer.status_code) or attempt == RETRIES:
                break
            await asyncio.sleep(pause_seconds(attempt, answer.headers.get("retry-after")))
        return taken(answer.status_code, answer.content, first)
