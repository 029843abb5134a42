"""/v1/events: what comes in, and what became of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from opentab.core.errors import OpentabError
from opentab.core.records import Spot
from opentab.ledger.outcomes import Fate
from opentab.server.event_lookup import Book
from opentab.server.event_schema import request_body
from opentab.server.guard import TOKEN_CUSTOMER, holder_of
from opentab.server.intake import BODY_BYTES_MAX, EVENTS_MAX, Intake, Overloaded, Verdict, split
from opentab.server.limits import BytesUnderWay
from opentab.server.params import EventPart, body_of, conditions_of, sent
from opentab.server.paths import name_of
from opentab.server.problem import Problem
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import EVENT_PROBLEMS, RECEIPT_PROBLEMS, Receipt, Taken

EVENT_MEDIA = ("application/json", "application/cloudevents+json", "application/cloudevents-batch+json")
RETRY = {"retry-after": "5"}
WAIT_SECONDS, WAIT_SECONDS_MAX = 10, 25
WAIT_SHARE_MAX = 5 / 6  # of server.request_timeout: the rest is for the answer
UNKNOWN = "no event with this id is known within the dedupe window"


def add_routes(api: FastAPI, desk: Desk, intake: Intake, book: Book) -> None:
    under_way = BytesUnderWay()
    asking = conditions_of(desk)
    wait_seconds_max = WAIT_SHARE_MAX * desk.home["server.request_timeout"].total_seconds()

    @api.post(
        "/v1/events",
        status_code=202,
        response_model=Taken,
        responses={200: {"description": "all that were accepted are in the journal", "model": Taken}, **EVENT_PROBLEMS},
        openapi_extra=request_body(desk.home),
        tags=["events"],
    )
    async def events(
        request: Request,
        wait: Annotated[
            Literal["committed"] | None, Query(description="answer once the events are in the journal: 200")
        ] = None,
        timeout: Annotated[
            float,
            Query(ge=0, le=WAIT_SECONDS_MAX, description="for so many seconds of the request; else 202, as without it"),
        ] = WAIT_SECONDS,
    ) -> Response:
        """Put one event or up to 10,000 into the log; answered once they are durable, or once they are committed.

        Each event of a batch gets its own verdict, and the batch is answered with 202 whatever they are.
        """
        deadline = time.monotonic() + min(timeout, wait_seconds_max)
        taken = await _take(request, intake, under_way, book if wait else None)
        if wait is None:
            return JSONResponse(_body(taken.verdicts), status_code=202)
        with_id = {spot: taken.verdicts[index].has_id for index, spot in taken.spots.items()}
        fates = await book.wait(with_id, after=taken.after, deadline=deadline)
        if fates is None:
            return JSONResponse({**_body(taken.verdicts), "committed": False}, status_code=202)
        known = {index: fates[spot] for index, spot in taken.spots.items()}
        return JSONResponse(_body(taken.verdicts, known) | _committed(known), status_code=200)

    @api.get("/v1/events/{event_id}", response_model=Receipt, responses=RECEIPT_PROBLEMS, tags=["events"])
    def event(
        request: Request,
        event_id: EventPart,
        source: Annotated[
            str | None, Query(description="of the CloudEvents envelope that it came in", examples=["network"])
        ] = None,
        conditions: Conditions = asking,
    ) -> Response:
        """The receipt of an event: counted, with its batch, day and invoice; or rejected, and why."""
        id_, customer = name_of(event_id), request.scope.get(TOKEN_CUSTOMER)
        try:
            return sent(
                desk.answer(
                    lambda answers: book.receipt(answers, id_, source, customer=customer), conditions, nothing=UNKNOWN
                )
            )
        except OpentabError as error:
            raise Problem(503, error.fact, headers=RETRY) from None


@dataclass(frozen=True, slots=True)
class _Taken:
    """What became of a request's events."""

    verdicts: list[Verdict]
    spots: dict[int, Spot]  # where the accepted ones stand in the log
    after: int | None  # the journal's position before, where somebody asked for it


async def _take(request: Request, intake: Intake, under_way: BytesUnderWay, book: Book | None) -> _Taken:
    """Read a request's events, judge them, and write those that are good; raises a problem where that cannot be."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in EVENT_MEDIA:
        raise Problem(415, f"send events as {', '.join(EVENT_MEDIA)}")
    with under_way.body(holder_of(request.scope)) as take:
        try:
            lines, is_batch = split(await body_of(request, bytes_max=BODY_BYTES_MAX, take=take))
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None
        if len(lines) > EVENTS_MAX:
            raise Problem(413, f"{len(lines):,} events are too many: send up to {EVENTS_MAX:,} at a time")
        try:
            intake.check_room()
            verdicts = await run_in_threadpool(intake.judge, lines)
            accepted = [index for index, verdict in enumerate(verdicts) if verdict.reason is None]
            if not accepted and not is_batch:
                raise Problem(422, f"the event cannot be taken: {verdicts[0].detail}", more=_body(verdicts))
            after = await book.position() if book and accepted else 0
            found = await asyncio.wrap_future(intake.append([lines[i] for i in accepted])) if accepted else []
        except Overloaded as error:
            raise Problem(error.status, str(error), headers=RETRY) from None
        except OpentabError as error:
            raise Problem(503, str(error), headers=RETRY) from None
    return _Taken(verdicts, dict(zip(accepted, found, strict=True)), after)


def _body(verdicts: list[Verdict], known: dict[int, Fate] | None = None) -> dict[str, Any]:
    accepted = sum(verdict.reason is None for verdict in verdicts)
    results = [verdict.as_json() for verdict in verdicts]
    for index, fate in (known or {}).items():
        why = {"reason": fate.reason, "detail": fate.detail} if fate.reason else {}
        results[index] |= {"state": fate.state, "batch": fate.batch, **why}
    return {"accepted": accepted, "results": results}


def _committed(known: dict[int, Fate]) -> dict[str, Any]:
    latest = max((fate.batch for fate in known.values()), default=None)
    return {"committed": True, **({"position": latest} if latest else {})}
