"""/v1/stream: totals as they change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec.structs import asdict
from pydantic import StringConstraints
from starlette.types import Receive, Scope, Send

from opentab.api.answers import LiveCustomer, LiveCustomers, LiveTotal, LiveTotals, LiveTypes
from opentab.core.events import CUSTOMER_BYTES_MAX
from opentab.server.answers import Answers
from opentab.server.feed import Feed, always
from opentab.server.guard import TOKEN_ID, TOKEN_IS_GOOD
from opentab.server.params import POSITION_MAX
from opentab.server.problem import Problem
from opentab.server.queries import RETRY, Desk
from opentab.server.schemas import STREAM_ANSWERS

CUSTOMERS_MAX = 20
DIGITS_MAX = 20  # of a position: Python refuses thousands
NOBODY: list[str] = []

CustomerName = Annotated[str, StringConstraints(max_length=CUSTOMER_BYTES_MAX)]


def add_routes(api: FastAPI, desk: Desk, feed: Feed) -> None:
    currency = desk.home["billing.currency"]

    @api.get("/v1/stream", response_class=StreamingResponse, responses=STREAM_ANSWERS, tags=["live"])
    async def stream(
        request: Request,
        customer: Annotated[list[CustomerName], Query(max_length=CUSTOMERS_MAX, examples=[["emma"]])] = NOBODY,
        types: Annotated[str | None, Query(description="totals by type; needs no value")] = None,
        overview: Annotated[str | None, Query(description="what /v1/overview says; needs no value")] = None,
        pulse: Annotated[str | None, Query(description="every second, how fresh it is; needs no value")] = None,
        last_event_id: Annotated[
            str | None, Header(description="the position of the last message that you have")
        ] = None,
    ) -> Response:
        """Server-sent events: the totals of customers or by type, then again whenever a batch touched them."""
        if [bool(customer), types is not None, overview is not None].count(True) != 1:
            raise Problem(422, "ask for ?customer=NAME, for ?types or for ?overview, one of them")
        last_seen = int(last_event_id[:DIGITS_MAX]) if last_event_id and last_event_id.isdecimal() else None
        holder = request.scope.get(TOKEN_ID)
        if not feed.enter(holder):
            raise Problem(429, "there are too many streams open", headers=RETRY)

        def look() -> tuple[int, object, object]:
            if overview is None:
                kind = LiveTypes if not customer else LiveCustomer if len(customer) == 1 else LiveCustomers
                fresh, found = desk.look(lambda answers: _touched(answers, customer))
                return fresh.position, kind(**found, **asdict(fresh)), found
            fresh, found = desk.look(lambda answers: answers.overview(currency))
            # The pipeline's sign of life moves on all the time: it is told, but is no reason to tell.
            return fresh.position, {**found, **asdict(fresh), **desk.pipeline()}, found

        def sign_of_life() -> object:
            return desk.pulse() if overview is None else {**asdict(desk.pulse()), **desk.pipeline()}

        messages = feed.stream(
            look,
            last_seen=min(last_seen, POSITION_MAX) if last_seen else None,
            is_good=request.scope.get(TOKEN_IS_GOOD, always),
            pulse=sign_of_life if pulse is not None else None,
        )
        return _Stream(messages, over=partial(feed.leave, holder))


class _Stream(StreamingResponse):
    """A stream that says when it is over, also where it never began because its reader had gone."""

    def __init__(self, messages: AsyncIterator[bytes], *, over: Callable[[], None]) -> None:
        super().__init__(messages, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


def _touched(answers: Answers, customers: list[str]) -> dict[str, Any]:
    """What a stream looks at: the periods of a customer or of several that are not final, or all types."""
    if not customers:
        return {"types": list(answers.types())}
    looked_at = [LiveTotals(customer, _live(answers, customer)) for customer in customers]
    current = {"current_period": answers.moment.current_period}
    return {**(asdict(looked_at[0]) if len(looked_at) == 1 else {"customers": looked_at}), **current}


def _live(answers: Answers, customer: str) -> list[LiveTotal]:
    live = [period for period in answers.moment.periods if answers.moment.status(period) != "final"]
    totals = [total for period in live if (total := answers.total(period, customer)) is not None]
    # Position and watermark move with every batch: the message as a whole says them.
    return [LiveTotal(*(getattr(total, name) for name in LiveTotal.__struct_fields__)) for total in totals]
