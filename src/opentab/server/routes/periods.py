"""/v1/periods: where each month stands."""

from __future__ import annotations

from fastapi import FastAPI, Response

from opentab.server.answers import Answers
from opentab.server.params import PeriodPart, conditions_of, sent
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import ANSWER_PROBLEMS, OnePeriod, Periods


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)
    currency = desk.home["billing.currency"]

    @api.get("/v1/periods", response_model=Periods, responses=ANSWER_PROBLEMS, tags=["periods"])
    def periods(conditions: Conditions = asking) -> Response:
        """Where every period stands."""

        def ask(answers: Answers) -> list[object]:
            return [answers.period_json(period, currency) for period in answers.moment.periods]

        return sent(desk.answer(ask, conditions))

    @api.get("/v1/periods/{period}", response_model=OnePeriod, responses=ANSWER_PROBLEMS, tags=["periods"])
    def one_period(period: PeriodPart, conditions: Conditions = asking) -> Response:
        """Where one period stands, how complete each partition of the log is, and what is missing."""
        of = period
        return sent(desk.answer(lambda answers: answers.period_json(of, currency), conditions))
