"""/v1/events: what comes in, and what became of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, Query, Request, Response
from msgspec import UNSET
from starlette.concurrency import run_in_threadpool

from opentab.api.answers import Receipt, Result, Taken
from opentab.core.errors import OpentabError
from opentab.core.records import Spot
from opentab.ledger.outcomes import Fate
from opentab.server.event_lookup import Book
from opentab.server.event_schema import request_body
from opentab.server.guard import TOKEN_CUSTOMER, holder_of
from opentab.server.intake import BODY_BYTES_MAX, EVENTS_MAX, Intake, Overloaded, TooManyEvents, Verdict, split
from opentab.server.limits import BytesUnderWay
from opentab.server.params import EventPart, body_of, conditions_of, sent, told
from opentab.server.paths import name_of
from opentab.server.problem import Problem
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import EVENT_PROBLEMS, RECEIPT_PROBLEMS, answer, sends

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
        responses={
            **sends(Taken, 202),
            **sends(Taken, description="all that were accepted are in the journal"),
            **EVENT_PROBLEMS,
        },
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
        written = await _write(request, intake, under_way, book if wait else None)
        if wait is None:
            return told(_taken(written.verdicts), 202)
        with_id = {spot: written.verdicts[index].has_id for index, spot in written.spots.items()}
        fates = await book.wait(with_id, after=written.after, deadline=deadline)
        if fates is None:
            return told(_taken(written.verdicts, committed=False), 202)
        known = {index: fates[spot] for index, spot in written.spots.items()}
        latest = max((fate.batch for fate in known.values()), default=UNSET)
        return told(_taken(written.verdicts, known, committed=True, position=latest))

    @api.get("/v1/events/{event_id}", responses=answer(Receipt, RECEIPT_PROBLEMS), tags=["events"])
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
class _Written:
    """What became of a request's events."""

    verdicts: list[Verdict]
    spots: dict[int, Spot]  # where the accepted ones stand in the log
    after: int | None  # the journal's position before, where somebody asked for it


async def _write(request: Request, intake: Intake, under_way: BytesUnderWay, book: Book | None) -> _Written:
    """Read a request's events, judge them, and write those that are good; raises a problem where that cannot be."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in EVENT_MEDIA:
        raise Problem(415, f"send events as {', '.join(EVENT_MEDIA)}")
    with under_way.body(holder_of(request.scope)) as take:
        try:
            body = await body_of(request, bytes_max=BODY_BYTES_MAX, take=take)
            lines, is_batch = await run_in_threadpool(split, body)
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None
        except TooManyEvents:
            raise Problem(413, f"these are too many events: send up to {EVENTS_MAX:,} at a time") from None
        try:
            intake.check_room()
            verdicts = await run_in_threadpool(intake.judge, lines)
            accepted = [index for index, verdict in enumerate(verdicts) if verdict.reason is None]
            if not accepted and not is_batch:
                more = msgspec.to_builtins(_taken(verdicts))
                raise Problem(422, f"the event cannot be taken: {verdicts[0].detail}", more=more)
            after = await book.position() if book and accepted else 0
            found = await asyncio.wrap_future(intake.append([lines[i] for i in accepted])) if accepted else []
        except Overloaded as error:
            raise Problem(error.status, str(error), headers=RETRY) from None
        except OpentabError as error:
            raise Problem(503, str(error), headers=RETRY) from None
    return _Written(verdicts, dict(zip(accepted, found, strict=True)), after)


def _taken(verdicts: list[Verdict], known: dict[int, Fate] | None = None, **committed: Any) -> Taken:
    """What became of the events, as far as it is known."""
    accepted, fates = sum(verdict.reason is None for verdict in verdicts), known or {}
    return Taken(accepted, [_result(verdict, fates.get(at)) for at, verdict in enumerate(verdicts)], **committed)


def _result(verdict: Verdict, fate: Fate | None) -> Result:
    if verdict.reason is not None:
        return Result(False, verdict.reason, verdict.detail)
    if fate is None:
        return Result(True)
    if fate.reason:
        return Result(True, fate.reason, fate.detail, fate.state, fate.batch)
    return Result(True, state=fate.state, batch=fate.batch)
