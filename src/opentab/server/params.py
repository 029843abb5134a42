"""What callers write into a URL, checked: names, periods, days, and what every question may ask besides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Header, Path, Query, Request, Response
from msgspec import Struct
from starlette.requests import ClientDisconnect

from opentab.core.errors import InputError
from opentab.core.periods import parse_day
from opentab.server.guard import holder_of
from opentab.server.problem import Problem
from opentab.server.queries import JSON, Conditions, Days, Desk, Reply

POSITION_MAX = 2**53 - 1
STALENESS_SECONDS_MAX = 1e9

# The year 0 is none.
MONTH = "^([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(0[1-9]|1[0-2])$"
DAY = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
PeriodPart = Annotated[str, Path(description="a month", pattern=MONTH, examples=["2026-01"])]
PeriodQuery = Annotated[str | None, Query(description="a month", pattern=MONTH, examples=["2026-01"])]
CustomerPart = Annotated[
    str, Path(description="a customer, each part of the URL percent-encoded", min_length=1, examples=["emma"])
]
EventPart = Annotated[str, Path(description="the id of an event, percent-encoded", min_length=1, examples=["01J9"])]
FirstDay = Annotated[
    str | None,
    Query(
        alias="from", description="a day", pattern=DAY, json_schema_extra={"format": "date"}, examples=["2026-01-10"]
    ),
]
LastDay = Annotated[
    str | None,
    Query(
        alias="to",
        description="a day, included",
        pattern=DAY,
        json_schema_extra={"format": "date"},
        examples=["2026-01-20"],
    ),
]


def conditions_of(desk: Desk) -> Any:
    """A dependency: what every question may ask besides, and the wait for a position."""

    async def conditions(
        request: Request,
        min_position: Annotated[
            int | None, Query(ge=0, le=POSITION_MAX, description="wait up to 5 s for this position: read your writes")
        ] = None,
        max_staleness: Annotated[
            float | None,
            Query(ge=0, le=STALENESS_SECONDS_MAX, description="503 if the answer is older than so many seconds"),
        ] = None,
        if_none_match: Annotated[str | None, Header(description="the ETag of an answer that you have")] = None,
    ) -> Conditions:
        if min_position is not None:
            await desk.wait_for(min_position)
        staleness_max_ms = None if max_staleness is None else max_staleness * 1000
        return Conditions(staleness_max_ms, if_none_match, holder_of(request.scope))

    return Depends(conditions)


def sent(reply: Reply) -> Response:
    """A reply in the framework's own words."""
    headers = {name: value for name, value in reply.headers.items() if name != "content-type"}
    return Response(reply.body, reply.status, headers, media_type=reply.headers["content-type"])


def told(answer: Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer that no replica gave."""
    return Response(msgspec.json.encode(answer), status, headers, media_type=JSON)


async def body_of(request: Request, *, bytes_max: int, take: Callable[[int], object] = lambda size: None) -> bytes:
    """The body, as long as it is not too large; `take` is told of each piece before it is kept."""
    received = bytearray()
    try:
        async for chunk in request.stream():
            if len(received) + len(chunk) > bytes_max:
                raise Problem(413, f"the body is larger than {bytes_max:,} bytes")
            take(len(chunk))
            received += chunk
    except ClientDisconnect:  # nobody reads this, and it is nothing to log
        raise Problem(400, "the body ends too early") from None
    return bytes(received)


def days_of(first: str | None, last: str | None, group: str = "") -> Days:
    """A range of days; what is left out is open."""
    return Days(
        _day(first) if first is not None else date.min,
        _day(last) if last is not None else date.max,
        tuple(name for name in group.split(",") if name),
    )


def _day(text: str) -> date:
    try:
        return parse_day(text)
    except InputError as error:
        raise Problem(422, str(error)) from None
