"""/v1/invoices: what was issued, with all revisions."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Header, Path, Query, Response
from msgspec.structs import asdict

from opentab.api.answers import Invoices, OneInvoice
from opentab.server.answers import Answers
from opentab.server.params import CustomerPart, PeriodPart, conditions_of, sent
from opentab.server.paths import name_of
from opentab.server.queries import Ask, Conditions, Desk
from opentab.server.renderers import form_wanted
from opentab.server.schemas import INVOICE_FORMS, answer

Format = Annotated[Literal["json", "csv", "html"] | None, Query(description="else the Accept header decides")]
Accept = Annotated[str | None, Header(include_in_schema=False)]
REVISION_MAX = 2**31


def add_routes(api: FastAPI, desk: Desk) -> None:
    asking = conditions_of(desk)
    calendar = desk.home.calendar

    @api.get("/v1/customers/{customer}/invoices", responses=answer(Invoices, INVOICE_FORMS), tags=["invoices"])
    def customer_invoices(
        customer: CustomerPart,
        format: Format = None,
        accept: Accept = None,
        conditions: Conditions = asking,
    ) -> Response:
        """All invoices of a customer, with all revisions."""
        name, form = name_of(customer), form_wanted(format, accept, calendar)
        return sent(desk.answer(_all_of(name), conditions, form))

    @api.get("/v1/invoices/{period}/{customer}", responses=answer(Invoices, INVOICE_FORMS), tags=["invoices"])
    def invoices(
        period: PeriodPart,
        customer: CustomerPart,
        format: Format = None,
        accept: Accept = None,
        conditions: Conditions = asking,
    ) -> Response:
        """All revisions of one invoice."""
        of, name, form = period, name_of(customer), form_wanted(format, accept, calendar)
        return sent(desk.answer(_all_of(name, of), conditions, form))

    @api.get(
        "/v1/invoices/{period}/{customer}/{revision}",
        responses=answer(OneInvoice, INVOICE_FORMS),
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

        def ask(answers: Answers) -> OneInvoice | None:
            found = [one for one in answers.invoices(name, of) if one.revision == revision]
            return answers.whole(OneInvoice, **asdict(found[0])) if found else None

        return sent(desk.answer(ask, conditions, form))


def _all_of(customer: str, period: str | None = None) -> Ask:
    """The question for all revisions of a customer's invoices; None if there are none."""

    def ask(answers: Answers) -> Invoices | None:
        found = answers.invoices(customer, period)
        return answers.whole(Invoices, items=found) if found else None

    return ask
