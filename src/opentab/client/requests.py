"""What to ask a server, and what its answers mean: calls as data. Waits for nothing and opens no connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Generic, Protocol, TypedDict, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec
from msgspec import UNSET

from opentab.api.answers import (
    Current,
    Invoice,
    Invoices,
    OnePeriod,
    OnePeriodTotal,
    Periods,
    PeriodStatus,
    Receipt,
    Taken,
    Types,
    TypeTotal,
    Usage,
    Used,
)
from opentab.client.errors import error_of
from opentab.client.ingested import Ingested, Refused

BATCH_EVENTS = 5_000
RETRY_SECONDS = 0.2
RETRY_SECONDS_MAX = 10.0
DOUBLED_MAX = 10  # times: by then it is the longest
OK, TAKEN, NONE_TAKEN = 200, 202, 422
DOTS = {".": "%2E", "..": "%2E%2E"}  # as they are they would mean another path

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Days = tuple[date | str | None, date | str | None]  # the first and the last one
Query = dict[str, Any]


class Conditions(TypedDict, total=False):
    """What every question may ask besides."""

    min_position: int  # wait up to 5 s until the server has it: read your writes
    max_staleness: float  # seconds: no older answer than that


class Listing(Protocol[Item]):
    """An answer that is a list."""

    @property
    def items(self) -> list[Item]: ...


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A request, and what its answer means."""

    path: str
    read: Callable[[int, bytes], Answer]  # status and body of an answer that a later try would not change
    query: Query = field(default_factory=dict)
    body: bytes | None = None
    waits_seconds: float = 0.0  # how long the server is asked to take


def customer(name: str, query: Conditions) -> Call[Current]:
    return _get(("customers", name), Current, query)


def total(name: str, period: str, query: Conditions) -> Call[OnePeriodTotal]:
    return _get(("customers", name, "periods", period), OnePeriodTotal, query)


def invoices(name: str, query: Conditions) -> Call[list[Invoice]]:
    return _get_items(("customers", name, "invoices"), Invoices, query)


def usage(name: str, days: Days, group: str, query: Conditions) -> Call[list[Used]]:
    return _get_items(("customers", name, "usage"), Usage, query, **_range(days), group=group)


def types(type_: str | None, period: str | None, days: Days, group: str, query: Conditions) -> Call[list[TypeTotal]]:
    path = ("types",) if type_ is None else ("types", type_)
    return _get_items(path, Types, query, period=period, **_range(days), group=group)


def periods(query: Conditions) -> Call[list[PeriodStatus]]:
    return _get_items(("periods",), Periods, query)


def period(name: str, query: Conditions) -> Call[OnePeriod]:
    return _get(("periods", name), OnePeriod, query)


def receipt(id_: str, source: str | None, query: Conditions) -> Call[Receipt]:
    return _get(("events", id_), Receipt, query, source=source)


def sends(events: Iterable[Mapping[str, Any]], wait: str | None, wait_seconds: float) -> Iterator[Call[Ingested]]:
    """The requests that send events, one for some thousands of them."""
    query: Query = {} if wait is None else {"wait": wait, "timeout": wait_seconds}
    for first, body in batches(events):

        def read(status: int, answer: bytes, first: int = first) -> Ingested:
            return _taken(status, answer, first)

        yield Call(_path_of("events"), read, query, body, wait_seconds if wait else 0.0)


def batches(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """Events as bodies of requests, each with the place of its first event."""
    waiting: list[Mapping[str, Any]] = []
    first = 0
    for event in events:
        waiting.append(_with_id(event))
        if len(waiting) == BATCH_EVENTS:
            yield first, msgspec.json.encode(waiting)
            first += len(waiting)
            waiting = []
    if waiting:
        yield first, msgspec.json.encode(waiting)


def _with_id(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event that counts once, however often it is sent."""
    return event if event.get("id") not in (None, "") else {**event, "id": str(uuid4())}


def together(parts: Iterable[Ingested]) -> Ingested:
    """Several batches as one."""
    known = list(parts)
    waited = [part.committed for part in known if part.committed is not None]
    return Ingested(
        accepted=sum(part.accepted for part in known),
        refused=[refused for part in known for refused in part.refused],
        committed=all(waited) if waited else None,
        position=max((part.position for part in known if part.position is not None), default=None),
        duplicates=[index for part in known for index in part.duplicates],
        rejected=[rejected for part in known for rejected in part.rejected],
    )


def pause_seconds(attempt: int, retry_after: str | None) -> float:
    """How long to wait before trying again: longer each time, and at least as long as the server says."""
    own = RETRY_SECONDS * 2.0 ** min(attempt, DOUBLED_MAX)
    asked = float(retry_after) if retry_after is not None and retry_after.isdecimal() else 0.0
    return min(max(own, asked), RETRY_SECONDS_MAX)


def _get(parts: tuple[str, ...], kind: type[Answer], query: Conditions, **more: str | None) -> Call[Answer]:
    asked: Query = {**query, **{name: value for name, value in more.items() if value is not None}}
    return Call(_path_of(*parts), lambda status, body: _read(status, body, kind), asked)


def _get_items(
    parts: tuple[str, ...], kind: type[Listing[Item]], query: Conditions, **more: str | None
) -> Call[list[Item]]:
    call = _get(parts, kind, query, **more)
    return Call(call.path, lambda status, body: call.read(status, body).items, call.query)


def _range(days: Days) -> dict[str, str | None]:
    first, last = (None if day is None else str(day) for day in days)
    return {"from": first, "to": last}


def _path_of(*parts: str) -> str:
    """A path whose parts may hold any text."""
    return "/v1/" + "/".join(DOTS.get(part) or quote(part, safe="") for part in parts)


def _read(status: int, body: bytes, kind: type[Answer]) -> Answer:
    """An answer, typed; or the error that it stands for."""
    if status != OK:
        raise error_of(status, body)
    return msgspec.json.decode(body, type=kind)


def _taken(status: int, body: bytes, first: int) -> Ingested:
    """What became of one batch of events, whose first one stands at this place."""
    if status not in (OK, TAKEN, NONE_TAKEN):
        raise error_of(status, body)
    try:
        answer = msgspec.json.decode(body, type=Taken)
    except msgspec.MsgspecError:
        raise error_of(status, body) from None
    results = list(enumerate(answer.results, first))
    return Ingested(
        accepted=answer.accepted,
        refused=[Refused(at, one.reason or "", one.detail or None) for at, one in results if not one.accepted],
        committed=None if answer.committed is UNSET else answer.committed,
        position=answer.position or None,
        duplicates=[at for at, one in results if one.state == "duplicate"],
        rejected=[Refused(at, one.reason or "", one.detail or None) for at, one in results if one.state == "rejected"],
    )


class Messages:
    """Takes the lines of a stream apart, into messages and the names of their events."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.event = ""  # of the last message
        self._data: list[str] = []
        self._event = ""

    def take(self, line: str) -> str | None:
        """The data of a message once it is complete."""
        if line == "":
            data, self._data = "\n".join(self._data), []
            self.event, self._event = self._event, ""
            return data or None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id":
            self.last_id = value
        return None
