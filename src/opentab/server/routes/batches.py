"""/v1/batches and /v1/overview: how the pipeline works, and where all of it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import FastAPI, Query, Response

from opentab.api.answers import Batches, Overview
from opentab.replica.batches import BATCHES_MAX
from opentab.server.params import conditions_of, sent
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import answer


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)
    currency = desk.home["billing.currency"]

    @api.get("/v1/batches", responses=answer(Batches), tags=["operating"])
    def batches(limit: Annotated[int, Query(ge=1, le=BATCHES_MAX)] = 100, conditions: Conditions = asking) -> Response:
        """The last batches, in order: what each took, and how long it took for what."""
        return sent(desk.answer(lambda answers: answers.whole(Batches, items=answers.batches(limit)), conditions))

    @api.get("/v1/overview", responses=answer(Overview), tags=["operating"])
    def overview() -> Response:
        """All that managers and operators watch, at one position; /v1/stream?overview sends the same."""
        # The pipeline's sign of life is a part of it, and moves on without a position: never 304.
        reply = desk.answer(lambda answers: answers.whole(Overview, **answers.overview(currency), **desk.pipeline()))
        headers = {name: value for name, value in reply.headers.items() if name != "etag"}
        return sent(replace(reply, headers={**headers, "cache-control": "no-store"}))
