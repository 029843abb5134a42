"""What callers write into a URL, checked: names, periods, days, and what every question may ask besides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Path, Query, Response

from opentab.errors import InputError
from opentab.ledger.usage import GROUPS
from opentab.periods import PERIOD_PATTERN, parse_day, parse_period
from opentab.server.desk import Conditions, Days, Desk, Reply
from opentab.server.paths import name_of
from opentab.server.problem import Problem

POSITION_MAX = 2**53 - 1
STALENESS_SECONDS_MAX = 1e9
CUSTOMER_BYTES_MAX = 256

Parsed = TypeVar("Parsed")

PeriodPart = Annotated[str, Path(description="a month", pattern=f"^{PERIOD_PATTERN.pattern}$", examples=["2026-01"])]
PeriodQuery = Annotated[
    str | None, Query(description="a month", pattern=f"^{PERIOD_PATTERN.pattern}$", examples=["2026-01"])
]
CustomerPart = Annotated[
    str, Path(description="a customer, each part of the URL percent-encoded", min_length=1, examples=["emma"])
]
FirstDay = Annotated[str | None, Query(alias="from", description="the first day", examples=["2026-01-10"])]
LastDay = Annotated[str | None, Query(alias="to", description="the last day, included", examples=["2026-01-20"])]


def conditions_of(desk: Desk) -> Any:
    """A dependency: what every question may ask besides, and the wait for a position."""

    async def conditions(
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
        return Conditions(None if max_staleness is None else max_staleness * 1000, if_none_match)

    return Depends(conditions)


def sent(reply: Reply) -> Response:
    """A reply in the framework's own words."""
    headers = {name: value for name, value in reply.headers.items() if name != "content-type"}
    return Response(reply.body, reply.status, headers, media_type=reply.headers["content-type"])


def customer_named(part: str) -> str:
    """The customer that a part of a path names."""
    return _customer(name_of(part))


def _customer(name: str) -> str:
    if len(name.encode("utf-8", errors="surrogatepass")) > CUSTOMER_BYTES_MAX:
        raise Problem(422, f"a customer's name has {CUSTOMER_BYTES_MAX} bytes at most")
    return name


def period_named(text: str) -> str:
    return _checked(parse_period, text)


def days_of(first: str | None, last: str | None, group: str = "") -> Days:
    """A range of days; what is left out is open."""
    names = tuple(name for name in group.split(",") if name)
    if not set(names) <= set(GROUPS):
        raise Problem(422, f"group: {group!r} is no list of {' and '.join(GROUPS)}")
    return Days(
        _checked(parse_day, first) if first is not None else date.min,
        _checked(parse_day, last) if last is not None else date.max,
        names,
    )


def _checked(parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except InputError as error:
        raise Problem(422, str(error)) from None
