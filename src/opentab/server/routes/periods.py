"""/v1/periods: where each month stands."""

from __future__ import annotations

from fastapi import FastAPI, Response
from msgspec.structs import asdict

from opentab.api.answers import OnePeriod, Periods
from opentab.server.answers import Answers
from opentab.server.params import PeriodPart, conditions_of, sent
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import answer


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)
    currency = desk.home["billing.currency"]

    @api.get("/v1/periods", responses=answer(Periods), tags=["periods"])
    def periods(conditions: Conditions = asking) -> Response:
        """Where every period stands."""

        def ask(answers: Answers) -> Periods:
            return answers.whole(Periods, items=[answers.period(one, currency) for one in answers.moment.periods])

        return sent(desk.answer(ask, conditions))

    @api.get("/v1/periods/{period}", responses=answer(OnePeriod), tags=["periods"])
    def one_period(period: PeriodPart, conditions: Conditions = asking) -> Response:
        """Where one period stands, how complete each partition of the log is, and what is missing."""
        of = period

        def ask(answers: Answers) -> OnePeriod | None:
            found = answers.period(of, currency)
            return answers.whole(OnePeriod, **asdict(found)) if found else None

        return sent(desk.answer(ask, conditions))
