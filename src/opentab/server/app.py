"""The HTTP API over a replica. Answers are made in answers.py; here they get their URLs, headers and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from opentab import __version__
from opentab.config import Home
from opentab.errors import InputError, OpentabError, ReplicaError
from opentab.heartbeat import read_heartbeat
from opentab.ledger.journal import Journal
from opentab.ledger.usage import GROUPS, usage
from opentab.periods import PERIOD_PATTERN, parse_day, to_us
from opentab.replica.reader import Reader
from opentab.replica.store import Meta
from opentab.server.answers import LIST_MAX, Answers
from opentab.server.feed import STREAMS_MAX, Feed
from opentab.server.freshness import Freshness, freshness_of
from opentab.server.guard import LoopbackOnly, TokensOnly
from opentab.server.intake import BODY_BYTES_MAX, EVENTS_MAX, Intake, Overloaded, split
from opentab.server.metrics import Counters, LedgerCollector, Timed, exposition
from opentab.server.paths import RawPaths, name_of
from opentab.server.problem import Problem, install
from opentab.server.tokens import Gate, read_key

READY_STALENESS_MS_MAX = 10_000
WAIT_SECONDS_MAX = 5.0
WAIT_STEP_SECONDS = 0.01
RETRY = {"retry-after": "1"}
PeriodName = Annotated[str, Query(pattern=PERIOD_PATTERN.pattern, examples=["2026-01"])]


def build_app(home: Home) -> Any:
    """An ASGI app that answers from the home's replica."""
    api = FastAPI(title="opentab", version=__version__, docs_url=None, redoc_url=None, lifespan=_closing)
    reader = api.state.reader = Reader(home.replica_path)
    install(api)
    desk = Desk(home, reader)
    for add_routes in (_customer_routes, _usage_routes, _invoice_routes, _sum_routes, _health_routes):
        add_routes(api, desk)
    api.state.intake = Intake(home)
    _event_routes(api, api.state.intake)
    counters = Counters()
    _stream_routes(api, desk, Feed(reader, counters.streams))
    _metric_routes(api, desk, counters)
    inner = RawPaths(Timed(api, counters))
    key = read_key(home)
    if key is None:
        return LoopbackOnly(inner)
    return TokensOnly(inner, Gate(key, home.revoked_path))


@asynccontextmanager
async def _closing(api: FastAPI) -> AsyncIterator[None]:
    yield
    api.state.intake.close()
    api.state.reader.close()


@dataclass(frozen=True, slots=True)
class Asked:
    """A range of days, and how to group it."""

    first: date
    last: date
    group: tuple[str, ...]
    customer: str | None = None


class Desk:
    """Where questions are asked: one snapshot an answer, and with it how fresh it is."""

    def __init__(self, home: Home, reader: Reader) -> None:
        self._home = home
        self._reader = reader

    def answer(self, request: Request, ask: Callable[[Answers], Any]) -> Response:
        """Ask one snapshot; 304 if the caller has seen it, 404 if there is nothing.

        A caller may want an answer that is not older than a position (we wait a little for it) or than so
        many seconds.
        """
        self._wait_for(_number(request, "min_position"))
        staleness_max = _number(request, "max_staleness")
        with self._reader.read() as snapshot:
            answers = Answers(snapshot, self._home.calendar)
            fresh = self.freshness(answers.meta)
            if staleness_max is not None and (fresh.staleness_ms is None or fresh.staleness_ms > staleness_max * 1000):
                raise Problem(503, "the answer is older than that", headers=RETRY, more=fresh.as_json())
            etag = f'"{fresh.position}-{fresh.invoices_position}"'
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers=_headers(fresh, etag))
            found = ask(answers)
        if found is None:
            raise Problem(404, "nothing was billed there", more=fresh.as_json())
        body = found if isinstance(found, dict) else {"items": found}
        return JSONResponse({**body, **fresh.as_json()}, headers=_headers(fresh, etag))

    def usage(self, answers: Answers, asked: Asked) -> dict[str, object]:
        """What was used in a range of days, from the ledger, at the replica's own position."""
        journal = Journal.open(self._home.ledger_path, self._home.identity)
        rows = usage(
            journal,
            upto=answers.place.position,
            first=asked.first,
            last=asked.last,
            group=asked.group,
            customer=asked.customer,
        )
        bounds = {"from": str(asked.first), "to": str(asked.last)}
        return {"customer": asked.customer, **bounds, "source": "ledger", "items": list(rows)}

    def look(self, ask: Callable[[Answers], dict[str, object]]) -> tuple[int, dict[str, object], object]:
        """The position, an answer with how fresh it is, and the answer alone."""
        with self._reader.read() as snapshot:
            answers = Answers(snapshot, self._home.calendar)
            fresh = self.freshness(answers.meta)
            found = ask(answers)
        return fresh.position, {**found, **fresh.as_json()}, found

    def _wait_for(self, position: float | None) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while position is not None:
            with self._reader.read() as snapshot:
                meta = snapshot.meta()
            if meta is not None and meta.position >= position:
                return
            if time.monotonic() > deadline:
                at = meta.position if meta else 0
                raise Problem(503, f"position {position:.0f} is not there yet, but {at}", headers=RETRY)
            time.sleep(WAIT_STEP_SECONDS)

    def freshness(self, meta: Meta | None) -> Freshness:
        return freshness_of(meta, read_heartbeat(self._home.ledger_path), to_us(datetime.now(UTC)))

    def ledger_metrics(self) -> LedgerCollector:
        """What the ledger and the replica say to operators."""
        meta = None
        with suppress(ReplicaError), self._reader.read() as snapshot:
            meta = snapshot.meta()
        return LedgerCollector(meta, read_heartbeat(self._home.ledger_path), to_us(datetime.now(UTC)))

    def ready(self) -> Freshness:
        """How fresh the replica is; a problem if it cannot be read or is stale."""
        with self._reader.read() as snapshot:
            fresh = self.freshness(snapshot.meta())
        if fresh.staleness_ms is None or fresh.staleness_ms > READY_STALENESS_MS_MAX:
            raise Problem(503, "the answers are stale", headers=RETRY, more=fresh.as_json())
        return fresh


def _customer_routes(api: FastAPI, desk: Desk) -> None:
    @api.get("/v1/customers")
    def customers(
        request: Request,
        period: PeriodName | None = None,
        prefix: Annotated[str, Query(max_length=256)] = "",
        after: Annotated[str | None, Query(max_length=256)] = None,
        limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 100,
        order: Annotated[str, Query(pattern="^(customer|-total)$")] = "customer",
    ) -> Response:
        """Customers of a period, by name, or those with the largest totals."""
        if order == "-total" and (prefix or after is not None):
            raise Problem(422, "the largest totals come in one page, without prefix and after")

        def ask(answers: Answers) -> Any:
            wanted = period or answers.current_period
            if wanted is None:
                return {"period": None, "items": []}
            if order == "-total":
                return {"period": wanted, "items": answers.top_customers(wanted, limit=limit)}
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


def _usage_routes(api: FastAPI, desk: Desk) -> None:
    @api.get("/v1/customers/{customer}/usage")
    def customer_usage(
        request: Request,
        customer: str,
        first: Annotated[str, Query(alias="from", examples=["2026-01-10"])] = "0001-01-01",
        last: Annotated[str, Query(alias="to", examples=["2026-01-20"])] = "9999-12-31",
        group: Annotated[str, Query(examples=["day,type"])] = "",
    ) -> Response:
        """Totals of a customer over any range of days, across months, from the ledger."""
        asked = Asked(_day(first), _day(last), _groups(group), customer=name_of(customer))
        return desk.answer(request, lambda answers: desk.usage(answers, asked))


def _day(text: str) -> date:
    try:
        return parse_day(text)
    except InputError as error:
        raise Problem(422, str(error)) from None


def _groups(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if not set(names) <= set(GROUPS):
        raise Problem(422, f"group: {text!r} is no list of {' and '.join(GROUPS)}")
    return names


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


def _metric_routes(api: FastAPI, desk: Desk, counters: Counters) -> None:
    @api.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        """For Prometheus."""
        return PlainTextResponse(exposition(counters, desk.ledger_metrics()), media_type=CONTENT_TYPE_LATEST)


def _stream_routes(api: FastAPI, desk: Desk, feed: Feed) -> None:
    @api.get("/v1/stream", response_class=StreamingResponse)
    async def stream(
        customer: Annotated[str | None, Query(max_length=256)] = None,
        types: str | None = None,
        last_event_id: Annotated[int | None, Header()] = None,
    ) -> Response:
        """Server-sent events: the totals of a customer or by type, then again whenever a batch touched them."""
        if (customer is None) == (types is None):
            raise Problem(422, "ask for ?customer=NAME or for ?types, one of them")
        if feed.open_streams >= STREAMS_MAX:
            raise Problem(503, "there are too many streams", headers=RETRY)

        def look() -> tuple[int, dict[str, object], object]:
            return desk.look(lambda answers: _touched(answers, customer))

        messages = feed.stream(look, last_seen=last_event_id)
        return StreamingResponse(messages, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _touched(answers: Answers, customer: str | None) -> dict[str, object]:
    """What a stream looks at: a customer's periods that are not final, or all types."""
    if customer is None:
        return {"types": list(answers.types())}
    live = [period for period in answers.periods() if answers.status(period) != "final"]
    totals = [total for period in live if (total := answers.total_json(period, customer)) is not None]
    for total in totals:
        # They move with every batch; the message as a whole says them.
        del total["position"], total["watermark"]
    return {"customer": customer, "totals": totals}


def _event_routes(api: FastAPI, intake: Intake) -> None:
    @api.post("/v1/events", status_code=202)
    async def events(request: Request) -> Response:
        """Put one event or up to 10,000 into the log; answered once they are durable."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media not in EVENT_MEDIA:
            raise Problem(415, f"send events as {', '.join(EVENT_MEDIA)}")
        try:
            lines = split(await _body(request))
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None
        if len(lines) > EVENTS_MAX:
            raise Problem(413, f"{len(lines):,} events are too many: send up to {EVENTS_MAX:,} at a time")
        try:
            intake.check_room()
        except Overloaded as error:
            raise Problem(503, str(error), headers={"retry-after": "5"}) from None
        verdicts = await run_in_threadpool(intake.judge, lines)
        accepted = [line for line, verdict in zip(lines, verdicts, strict=True) if verdict.reason is None]
        if accepted:
            try:
                await asyncio.wrap_future(intake.append(accepted))
            except OpentabError as error:
                raise Problem(503, error.fact, headers={"retry-after": "5"}) from None
        body = {"accepted": len(accepted), "results": [verdict.as_json() for verdict in verdicts]}
        return JSONResponse(body, status_code=202 if accepted or not lines else 422)


async def _body(request: Request) -> bytes:
    """The body, as long as it is not too large."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > BODY_BYTES_MAX:
            raise Problem(413, f"the body is larger than {BODY_BYTES_MAX:,} bytes")
    return bytes(received)


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
EVENT_MEDIA = ("application/json", "application/cloudevents+json", "application/cloudevents-batch+json")


def _number(request: Request, name: str) -> float | None:
    """A number of the query that every question may have."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e15:
        raise Problem(422, f"query.{name}: {text!r} is no number from 0 on")
    return number


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
