"""/v1/stream: totals as they change."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from opentab.server.answers import Answers
from opentab.server.asked import CUSTOMER_BYTES_MAX, POSITION_MAX
from opentab.server.desk import RETRY, Desk
from opentab.server.feed import Feed
from opentab.server.guard import TOKEN_ID
from opentab.server.problem import Problem
from opentab.server.shapes import STREAM_ANSWERS


def add_routes(api: FastAPI, desk: Desk, feed: Feed) -> None:
    @api.get("/v1/stream", response_class=StreamingResponse, responses=STREAM_ANSWERS, tags=["live"])
    async def stream(
        request: Request,
        customer: Annotated[str | None, Query(max_length=CUSTOMER_BYTES_MAX, examples=["emma"])] = None,
        types: Annotated[str | None, Query(description="totals by type; needs no value")] = None,
        last_event_id: Annotated[
            str | None, Header(description="the position of the last message that you have")
        ] = None,
    ) -> Response:
        """Server-sent events: the totals of a customer or by type, then again whenever a batch touched them."""
        if (customer is None) == (types is None):
            raise Problem(422, "ask for ?customer=NAME or for ?types, one of them")
        last_seen = int(last_event_id) if last_event_id and last_event_id.isdecimal() else None
        holder = request.scope.get(TOKEN_ID)
        if not feed.has_room(holder):
            raise Problem(429, "there are too many streams open", headers=RETRY)

        def look() -> tuple[int, dict[str, object], object]:
            return desk.look(lambda answers: _touched(answers, customer))

        messages = feed.stream(look, last_seen=min(last_seen, POSITION_MAX) if last_seen else None, holder=holder)
        return StreamingResponse(messages, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _touched(answers: Answers, customer: str | None) -> dict[str, object]:
    """What a stream looks at: a customer's periods that are not final, or all types."""
    if customer is None:
        return {"types": list(answers.types())}
    live = [period for period in answers.moment.periods if answers.moment.status(period) != "final"]
    totals = [total for period in live if (total := answers.total_json(period, customer)) is not None]
    for total in totals:
        # They move with every batch; the message as a whole says them.
        del total["position"], total["watermark"]
    return {"customer": customer, "totals": totals}
