"""/v1/rejections: what could not be billed, and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Response

from opentab.api.answers import Rejections
from opentab.core.events import Reason
from opentab.server.answers import Answers
from opentab.server.params import conditions_of, sent
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import answer

SAMPLES_MAX = 100


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)

    @api.get("/v1/rejections", responses=answer(Rejections), tags=["operating"])
    def rejections(
        reason: Annotated[Reason | None, Query(description="this reason only")] = None,
        limit: Annotated[int, Query(ge=1, le=SAMPLES_MAX)] = 20,
        conditions: Conditions = asking,
    ) -> Response:
        """How many inputs could not be billed for which reason, and the newest of them, cut to 2,000 bytes."""

        def ask(answers: Answers) -> Rejections:
            counts, items = answers.rejections(reason, limit)
            return answers.whole(Rejections, counts=counts, items=items)

        return sent(desk.answer(ask, conditions))
