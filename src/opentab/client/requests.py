"""Requests and answers as data: what both clients share, without waiting for anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from opentab.client.answers import Ingested, Refused, Taken
from opentab.client.errors import error_of

BATCH_EVENTS = 5_000
RETRIES = 5
RETRY_SECONDS = 0.2
RETRY_SECONDS_MAX = 10.0
OK, TAKEN, NONE_TAKEN = 200, 202, 422
JSON = {"content-type": "application/json"}
DOTS = {".": "%2E", "..": "%2E%2E"}  # as they are they would mean another path

Answer = TypeVar("Answer")


def headers_of(token: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


def path_of(*parts: str) -> str:
    """A path whose parts may hold any text."""
    return "/v1/" + "/".join(DOTS.get(part) or quote(part, safe="") for part in parts)


def read(status: int, body: bytes, kind: type[Answer]) -> Answer:
    """An answer, typed; or the error that it stands for."""
    if status != OK:
        raise error_of(status, body)
    return msgspec.json.decode(body, type=kind)


def batches(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """Events as bodies of requests, each with the place of its first event."""
    waiting: list[Mapping[str, Any]] = []
    first = 0
    for event in events:
        waiting.append(event)
        if len(waiting) == BATCH_EVENTS:
            yield first, msgspec.json.encode(waiting)
            first += len(waiting)
            waiting = []
    if waiting:
        yield first, msgspec.json.encode(waiting)


def waiting(wait: str | None, seconds: float) -> dict[str, str | float]:
    """The query of a request that waits for its events."""
    return {} if wait is None else {"wait": wait, "timeout": seconds}


def taken(status: int, body: bytes, first: int) -> Ingested:
    """What became of one batch of events."""
    if status not in (OK, TAKEN, NONE_TAKEN):
        raise error_of(status, body)
    try:
        answer = msgspec.json.decode(body, type=Taken)
    except msgspec.MsgspecError:
        raise error_of(status, body) from None
    refused = [
        Refused(first + index, result.reason or "", result.detail)
        for index, result in enumerate(answer.results)
        if not result.accepted
    ]
    return Ingested(
        accepted=answer.accepted,
        refused=refused,
        committed=answer.committed,
        position=answer.position,
        duplicates=[first + index for index, result in enumerate(answer.results) if result.state == "duplicate"],
        rejected=[
            Refused(first + index, result.reason or "", result.detail)
            for index, result in enumerate(answer.results)
            if result.state == "rejected"
        ],
    )


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
    """How long to wait before trying again: as the server says, or longer each time."""
    if retry_after is not None and retry_after.isdigit():
        return min(float(retry_after), RETRY_SECONDS_MAX)
    return min(RETRY_SECONDS * 2.0**attempt, RETRY_SECONDS_MAX)


def may_help(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in (429, 503)


class Messages:
    """Takes the lines of a stream apart; remembers the last id, to go on from there."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self._data: list[str] = []

    def take(self, line: str) -> str | None:
        """The data of a message once it is complete."""
        if line == "":
            data, self._data = "\n".join(self._data), []
            return data or None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "id":
            self.last_id = value
        return None
