"""/v1/customers: who owes how much."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Response
from msgspec.structs import asdict

from opentab.api.answers import Current, Customers, CustomerTotal, OnePeriodTotal, Usage
from opentab.server.answers import LIST_MAX, Answers
from opentab.server.params import CustomerPart, FirstDay, LastDay, PeriodPart, PeriodQuery, conditions_of, days_of, sent
from opentab.server.paths import name_of
from opentab.server.problem import Problem
from opentab.server.queries import Conditions, Desk
from opentab.server.schemas import answer

GROUPS = "^((day|type)(,(day|type))*)?$"


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)

    @api.get("/v1/customers", responses=answer(Customers), tags=["totals"])
    def customers(
        period: PeriodQuery = None,
        prefix: Annotated[str, Query(max_length=256, description="names that begin like this")] = "",
        after: Annotated[str | None, Query(max_length=256, description="the last customer of the page before")] = None,
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 100,
        order: Annotated[
            Literal["customer", "-total"], Query(description="by name, or the largest totals")
        ] = "customer",
        any_month: Annotated[
            bool, Query(description="search: the prefix in capitals or not, in all months of the replica, newest first")
        ] = False,
        conditions: Conditions = asking,
    ) -> Response:
        """The customers of a period by name, or the thousand with the largest totals, a page at a time."""
        if any_month and (period or after is not None or order != "customer"):
            raise Problem(422, "any_month goes with prefix and limit alone")

        def ask(answers: Answers) -> Customers:
            of = period or answers.moment.current_period
            if any_month:
                items = answers.customers_of_any_month(prefix, limit=limit)
            elif of is None:
                items = list[CustomerTotal]()
            elif order == "-total":
                items = answers.top_customers(of, prefix=prefix, after=after, limit=limit)
            else:
                items = answers.customers(of, prefix=prefix, after=after, limit=limit)
            return answers.whole(Customers, period=of, items=items)

        return sent(desk.answer(ask, conditions))

    @api.get("/v1/customers/{customer}", responses=answer(Current), tags=["totals"])
    def customer(customer: CustomerPart, conditions: Conditions = asking) -> Response:
        """The current period's running total, the other open periods, and the last closed ones."""
        name = name_of(customer)
        return sent(desk.answer(lambda answers: answers.at_a_glance(name), conditions))

    @api.get("/v1/customers/{customer}/periods/{period}", responses=answer(OnePeriodTotal), tags=["totals"])
    def customer_period(customer: CustomerPart, period: PeriodPart, conditions: Conditions = asking) -> Response:
        """One period of a customer, open or closed."""
        name, of = name_of(customer), period

        def ask(answers: Answers) -> OnePeriodTotal | None:
            found = answers.total(of, name)
            return answers.whole(OnePeriodTotal, **asdict(found)) if found else None

        return sent(desk.answer(ask, conditions))

    @api.get("/v1/customers/{customer}/usage", responses=answer(Usage), tags=["totals"])
    def customer_usage(
        customer: CustomerPart,
        first: FirstDay = None,
        last: LastDay = None,
        group: Annotated[str, Query(description="day, type or both", pattern=GROUPS, examples=["day,type"])] = "",
        conditions: Conditions = asking,
    ) -> Response:
        """Totals of a customer over any range of days, across months, grouped as asked."""
        name, days = name_of(customer), days_of(first, last, group)
        return sent(desk.answer(lambda answers: desk.usage(answers, days, name), conditions))
