"""The HTTP API over a replica. Answers are made in answers.py; here they get their URLs, headers and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from opentab import __version__
from opentab.config import Home
from opentab.heartbeat import read_heartbeat
from opentab.periods import PERIOD_PATTERN, to_us
from opentab.replica.reader import Reader
from opentab.replica.store import Meta
from opentab.server.answers import LIST_MAX, Answers
from opentab.server.freshness import Freshness, freshness_of
from opentab.server.paths import RawPaths, name_of
from opentab.server.problem import Problem, install

READY_STALENESS_MS_MAX = 10_000
PeriodName = Annotated[str, Query(pattern=PERIOD_PATTERN.pattern, examples=["2026-01"])]


def build_app(home: Home) -> Any:
    """An ASGI app that answers from the home's replica."""
    api = FastAPI(title="opentab", version=__version__, docs_url=None, redoc_url=None, lifespan=_closing)
    reader = api.state.reader = Reader(home.replica_path)
    install(api)
    desk = Desk(home, reader)
    for add_routes in (_customer_routes, _invoice_routes, _sum_routes, _health_routes):
        add_routes(api, desk)
    return RawPaths(api)


@asynccontextmanager
async def _closing(api: FastAPI) -> AsyncIterator[None]:
    yield
    api.state.reader.close()


class Desk:
    """Where questions are asked: one snapshot an answer, and with it how fresh it is."""

    def __init__(self, home: Home, reader: Reader) -> None:
        self._home = home
        self._reader = reader

    def answer(self, request: Request, ask: Callable[[Answers], Any]) -> Response:
        """Ask one snapshot; 304 if the caller has seen it, 404 if there is nothing."""
        with self._reader.read() as snapshot:
            answers = Answers(snapshot, self._home.calendar)
            fresh = self.freshness(answers.meta)
            etag = f'"{fresh.position}-{fresh.invoices_position}"'
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers=_headers(fresh, etag))
            found = ask(answers)
        if found is None:
            raise Problem(404, "nothing was billed there", more=fresh.as_json())
        body = found if isinstance(found, dict) else {"items": found}
        return JSONResponse({**body, **fresh.as_json()}, headers=_headers(fresh, etag))

    def freshness(self, meta: Meta | None) -> Freshness:
        return freshness_of(meta, read_heartbeat(self._home.ledger_path), to_us(datetime.now(UTC)))

    def ready(self) -> Freshness:
        """How fresh the replica is; a problem if it cannot be read or is stale."""
        with self._reader.read() as snapshot:
            fresh = self.freshness(snapshot.meta())
        if fresh.staleness_ms is None or fresh.staleness_ms > READY_STALENESS_MS_MAX:
            raise Problem(503, "the answers are stale", headers={"retry-after": "1"}, more=fresh.as_json())
        return fresh


def _customer_routes(api: FastAPI, desk: Desk) -> None:
    @api.get("/v1/customers")
    def customers(
        request: Request,
        period: PeriodName | None = None,
        prefix: Annotated[str, Query(max_length=256)] = "",
        after: Annotated[str | None, Query(max_length=256)] = None,
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 100,
    ) -> Response:
        """Customers of a period, by name."""

        def ask(answers: Answers) -> Any:
            wanted = period or answers.current_period
            if wanted is None:
                return {"period": None, "items": []}
            return {"period": wanted, "items": list(answers.customers(wanted, prefix=prefix, after=after, limit=limit))}

        return desk.answer(request, ask)

    @api.get("/v1/customers/{customer}")
    def customer(request: Request, customer: str) -> Response:
        """The current period's running total, the other open periods, and the last closed ones."""
        name = name_of(customer)

        def ask(answers: Answers) -> Any:
            totals = [t for p in answers.periods() if (t := answers.total_json(p, name)) is not None]
            if not totals:
                return None
            current = answers.current_period
            return {
                "customer": name,
                "current": next((t for t in totals if t["period"] == current), None),
                "open": [t for t in totals if t["status"] == "open" and t["period"] != current],
                "closed": [t for t in totals if t["status"] != "open"][-LAST_CLOSED:],
            }

        return desk.answer(request, ask)

    @api.get("/v1/customers/{customer}/periods/{period}")
    def customer_period(request: Request, customer: str, period: str) -> Response:
        """One period of a customer, open or closed."""
        return desk.answer(request, lambda answers: answers.total_json(_period(period), name_of(customer)))


def _invoice_routes(api: FastAPI, desk: Desk) -> None:
    @api.get("/v1/customers/{customer}/invoices")
    def customer_invoices(request: Request, customer: str) -> Response:
        """All invoices of a customer, with all revisions."""
        name = name_of(customer)

        def ask(answers: Answers) -> Any:
            return [invoice for period in answers.periods() for invoice in answers.invoices(period, name)] or None

        return desk.answer(request, ask)

    @api.get("/v1/invoices/{period}/{customer}")
    def invoices(request: Request, period: str, customer: str) -> Response:
        """All revisions of one invoice."""
        return desk.answer(request, lambda answers: answers.invoices(_period(period), name_of(customer)) or None)

    @api.get("/v1/invoices/{period}/{customer}/{revision}")
    def invoice(request: Request, period: str, customer: str, revision: int) -> Response:
        """One revision of one invoice."""

        def ask(answers: Answers) -> Any:
            found = answers.invoices(_period(period), name_of(customer))
            return found[revision - 1] if 1 <= revision <= len(found) else None

        return desk.answer(request, ask)


def _sum_routes(api: FastAPI, desk: Desk) -> None:
    @api.get("/v1/types")
    def types(request: Request, period: PeriodName | None = None) -> Response:
        """Running totals by type, by the events' own days."""
        return desk.answer(request, lambda answers: list(answers.types(period)))

    @api.get("/v1/types/{type_}")
    def one_type(request: Request, type_: str, period: PeriodName | None = None) -> Response:
        """Running totals of one type."""
        wanted = name_of(type_)
        return desk.answer(request, lambda answers: [t for t in answers.types(period) if t["type"] == wanted] or None)

    @api.get("/v1/periods")
    def periods(request: Request) -> Response:
        """Where every period stands."""
        return desk.answer(request, lambda answers: [answers.period_json(period) for period in answers.periods()])

    @api.get("/v1/periods/{period}")
    def one_period(request: Request, period: str) -> Response:
        """Where one period stands, and what it waits for."""
        return desk.answer(request, lambda answers: answers.period_json(_period(period)))


def _health_routes(api: FastAPI, desk: Desk) -> None:
    @api.get("/healthz")
    def healthz() -> dict[str, str]:
        """Alive."""
        return {"status": "alive"}

    @api.get("/readyz")
    def readyz() -> dict[str, object]:
        """Ready: the replica can be read and is fresh."""
        return {"status": "ready", **desk.ready().as_json()}


LAST_CLOSED = 3


def _period(text: str) -> str:
    if not PERIOD_PATTERN.fullmatch(text) or text.startswith("0000"):
        raise Problem(422, f"{text!r} is not a period: write a month as 2026-01")
    return text


def _headers(fresh: Freshness, etag: str) -> dict[str, str]:
    named = {
        "opentab-position": str(fresh.position),
        "opentab-invoices-position": str(fresh.invoices_position),
        "opentab-staleness-ms": "" if fresh.staleness_ms is None else str(fresh.staleness_ms),
    }
    return {"etag": etag, "cache-control": "no-cache", **named}
