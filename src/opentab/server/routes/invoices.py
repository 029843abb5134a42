"""/v1/invoices: what was issued, with all revisions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Path, Query, Response

from opentab.server.answers import Answers
from opentab.server.params import CustomerPart, PeriodPart, conditions_of, sent
from opentab.server.paths import name_of
from opentab.server.queries import Conditions, Desk
from opentab.server.renderers import form_wanted
from opentab.server.schemas import INVOICE_ANSWERS, Invoice, Invoices

Format = Annotated[Literal["json", "csv", "html"] | None, Query(description="else the Accept header decides")]
Accept = Annotated[str | None, Header(include_in_schema=False)]
REVISION_MAX = 2**31


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)
    calendar = desk.home.calendar

    @api.get("/v1/customers/{customer}/invoices", response_model=Invoices, responses=INVOICE_ANSWERS, tags=["invoices"])
    def customer_invoices(
        customer: CustomerPart,
        format: Format = None,
        accept: Accept = None,
        conditions: Conditions = asking,
    ) -> Response:
        """All invoices of a customer, with all revisions."""
        name, form = name_of(customer), form_wanted(format, accept, calendar)
        return sent(desk.answer(lambda answers: answers.invoices(name) or None, conditions, form))

    @api.get("/v1/invoices/{period}/{customer}", response_model=Invoices, responses=INVOICE_ANSWERS, tags=["invoices"])
    def invoices(
        period: PeriodPart,
        customer: CustomerPart,
        format: Format = None,
        accept: Accept = None,
        conditions: Conditions = asking,
    ) -> Response:
        """All revisions of one invoice."""
        of, name, form = period, name_of(customer), form_wanted(format, accept, calendar)
        return sent(desk.answer(lambda answers: answers.invoices(name, of) or None, conditions, form))

    @api.get(
        "/v1/invoices/{period}/{customer}/{revision}",
        response_model=Invoice,
        responses=INVOICE_ANSWERS,
        tags=["invoices"],
    )
    def invoice(
        period: PeriodPart,
        customer: CustomerPart,
        revision: Annotated[int, Path(ge=1, le=REVISION_MAX)],
        format: Format = None,
        accept: Accept = None,
        conditions: Conditions = asking,
    ) -> Response:
        """One revision of one invoice."""
        of, name, form = period, name_of(customer), form_wanted(format, accept, calendar)

        def ask(answers: Answers) -> Any:
            found = [one for one in answers.invoices(name, of) if one["revision"] == revision]
            return found[0] if found else None

        return sent(desk.answer(ask, conditions, form))
