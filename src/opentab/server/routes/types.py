"""/v1/types: what was used of which type, by everyone."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Response

from opentab.api.answers import Types
from opentab.server.answers import Answers
from opentab.server.params import FirstDay, LastDay, PeriodQuery, conditions_of, days_of, sent
from opentab.server.paths import name_of
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import answer

Group = Annotated[str, Query(description="day: one total for each day", pattern="^(day)?$", examples=["day"])]


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)

    @api.get("/v1/types", responses=answer(Types), tags=["totals"])
    def types(
        period: PeriodQuery = None,
        first: FirstDay = None,
        last: LastDay = None,
        group: Group = "",
        conditions: Conditions = asking,
    ) -> Response:
        """Running totals by type and period, or over a range of days, by the events' own days."""
        return sent(desk.answer(_question(period, first, last, group), conditions))

    @api.get("/v1/types/{type}", responses=answer(Types), tags=["totals"])
    def one_type(
        type: str,
        period: PeriodQuery = None,
        first: FirstDay = None,
        last: LastDay = None,
        group: Group = "",
        conditions: Conditions = asking,
    ) -> Response:
        """The same of one type."""
        return sent(desk.answer(_question(period, first, last, group, name_of(type)), conditions))


def _question(period: str | None, first: str | None, last: str | None, group: str, type_: str | None = None) -> Any:
    days = days_of(first, last, group)
    ranged = first is not None or last is not None or "day" in days.group
    if ranged and period is not None:
        days = days.within(period)

    def ask(answers: Answers) -> Types | None:
        if ranged:
            items = answers.types_of_days(days.first, days.last, by_day="day" in days.group, type_=type_)
        else:
            items = list(answers.types(period, type_=type_))
        if type_ is not None and not items:
            return None
        return answers.whole(Types, **(days.fields() if ranged else {}), items=items)

    return ask
