"""The client for programs that wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from types import TracebackType
from typing import Any, Literal, Unpack, overload

import httpx

from opentab.api.answers import (
    Current,
    Invoice,
    Live,
    LiveCustomer,
    LiveTypes,
    OnePeriod,
    OnePeriodTotal,
    PeriodStatus,
    Receipt,
    TypeTotal,
    Used,
)
from opentab.client import requests
from opentab.client.exchange import Connection, Exchange, Message, Stream
from opentab.client.ingested import Ingested
from opentab.client.requests import Answer, Call, Conditions


class Client(Connection[httpx.Client]):
    """Reads from and writes to one server, or the next one where it is gone."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def customer(self, customer: str, **conditions: Unpack[Conditions]) -> Current:
        """A customer's current total, the other open periods and the last closed ones."""
        return self._ask(requests.customer(customer, conditions))

    def total(self, customer: str, period: str, **conditions: Unpack[Conditions]) -> OnePeriodTotal:
        """One period of a customer."""
        return self._ask(requests.total(customer, period, conditions))

    def invoices(self, customer: str, **conditions: Unpack[Conditions]) -> list[Invoice]:
        """All revisions of all of a customer's invoices."""
        return self._ask(requests.invoices(customer, conditions))

    def usage(
        self,
        customer: str,
        first: date | str | None = None,
        last: date | str | None = None,
        *,
        group: Literal["", "day", "type", "day,type"] = "",
        **conditions: Unpack[Conditions],
    ) -> list[Used]:
        """What a customer used from one day to another, both included, in one sum or by day and type."""
        return self._ask(requests.usage(customer, (first, last), group, conditions))

    def periods(self, **conditions: Unpack[Conditions]) -> list[PeriodStatus]:
        """Where every period stands."""
        return self._ask(requests.periods(conditions))

    def period(self, period: str, **conditions: Unpack[Conditions]) -> OnePeriod:
        """Where one period stands, and what it waits for."""
        return self._ask(requests.period(period, conditions))

    def types(
        self,
        type_: str | None = None,
        *,
        period: str | None = None,
        first: date | str | None = None,
        last: date | str | None = None,
        group: Literal["", "day"] = "",
        **conditions: Unpack[Conditions],
    ) -> list[TypeTotal]:
        """What everyone used, by type and period; of a range of days by type, or by day and type."""
        return self._ask(requests.types(type_, period, (first, last), group, conditions))

    def receipt(self, id_: str, source: str | None = None, **conditions: Unpack[Conditions]) -> Receipt:
        """What became of the event with this id, and source where its envelope has one; NotThere if none is known."""
        return self._ask(requests.receipt(id_, source, conditions))

    def ingest(
        self,
        events: Iterable[Mapping[str, Any]],
        *,
        wait: Literal["committed"] | None = None,
        wait_seconds: float = 10.0,
    ) -> Ingested:
        """Send events; returns once all are durable or refused. An event without an id gets one, and counts once.

        With `wait` each request waits, up to `wait_seconds`, until its events are in the journal.
        """
        return requests.together(self._ask(call) for call in requests.sends(events, wait, wait_seconds))

    @overload
    def live(self, *, customer: str) -> Iterator[LiveCustomer]: ...
    @overload
    def live(self, *, customer: None = None) -> Iterator[LiveTypes]: ...
    def live(self, *, customer: str | None = None) -> Iterator[Live]:
        """Totals of a customer, or by type, as they change; goes on where it was if the connection breaks."""
        if customer is None:
            return self._follow(Stream(LiveTypes, {"types": ""}, self._servers, self._policy))
        return self._follow(Stream(LiveCustomer, {"customer": customer}, self._servers, self._policy))

    @staticmethod
    def _open(headers: dict[str, str]) -> httpx.Client:
        return httpx.Client(headers=headers)

    def _ask(self, call: Call[Answer]) -> Answer:
        exchange = Exchange(call, self._servers, self._policy)
        while not exchange.is_done:
            time.sleep(exchange.pause_seconds)
            try:
                answer = self._http.request(**exchange.request())
            except httpx.TransportError as error:
                exchange.failed(error)
            else:
                exchange.answered(answer.status_code, answer.headers, answer.content)
        return exchange.answer

    def _follow(self, stream: Stream[Message]) -> Iterator[Message]:
        while True:
            time.sleep(stream.pause_seconds)
            try:
                with self._http.stream(**stream.request()) as answer:
                    if answer.status_code != requests.OK:
                        stream.refused(answer.status_code, answer.read())
                        continue
                    for line in answer.iter_lines():
                        if (message := stream.take(line)) is not None:
                            yield message
                        if stream.is_stale:
                            break
                stream.ended()
            except httpx.TransportError as error:
                stream.failed(error)
