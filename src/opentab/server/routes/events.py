"""/v1/events: what comes in."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from opentab.config import Home
from opentab.errors import OpentabError
from opentab.server.asked import body_of
from opentab.server.event_schema import request_body
from opentab.server.intake import BODY_BYTES_MAX, EVENTS_MAX, Intake, Overloaded, split
from opentab.server.problem import Problem
from opentab.server.shapes import EVENT_PROBLEMS, Taken

EVENT_MEDIA = ("application/json", "application/cloudevents+json", "application/cloudevents-batch+json")
RETRY = {"retry-after": "5"}


def add_routes(api: FastAPI, home: Home, intake: Intake) -> None:
    @api.post(
        "/v1/events",
        status_code=202,
        response_model=Taken,
        responses=EVENT_PROBLEMS,
        openapi_extra=request_body(home),
        tags=["events"],
    )
    async def events(request: Request) -> Response:
        """Put one event or up to 10,000 into the log; answered once they are durable.

        Each event of a batch gets its own verdict, and the batch is answered with 202 whatever they are.
        """
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media not in EVENT_MEDIA:
            raise Problem(415, f"send events as {', '.join(EVENT_MEDIA)}")
        try:
            lines, is_batch = split(await body_of(request, bytes_max=BODY_BYTES_MAX))
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None
        if len(lines) > EVENTS_MAX:
            raise Problem(413, f"{len(lines):,} events are too many: send up to {EVENTS_MAX:,} at a time")
        try:
            intake.check_room()
        except Overloaded as error:
            raise Problem(error.status, str(error), headers=RETRY) from None
        verdicts = await run_in_threadpool(intake.judge, lines)
        accepted = [line for line, verdict in zip(lines, verdicts, strict=True) if verdict.reason is None]
        if accepted:
            try:
                await asyncio.wrap_future(intake.append(accepted))
            except OpentabError as error:
                raise Problem(503, error.fact, headers=RETRY) from None
        body = {"accepted": len(accepted), "results": [verdict.as_json() for verdict in verdicts]}
        if not accepted and not is_batch:
            raise Problem(422, f"the event cannot be taken: {verdicts[0].detail}", more=body)
        return JSONResponse(body, status_code=202)
