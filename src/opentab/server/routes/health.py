"""/healthz, /readyz and /metrics: for those who operate it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Response
from fastapi.responses import PlainTextResponse
from msgspec.structs import asdict
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from opentab.api.answers import Alive, Ready
from opentab.core.errors import OpentabError
from opentab.server.intake import Intake, Overloaded
from opentab.server.metrics import Counters, exposition
from opentab.server.params import told
from opentab.server.problem import Problem
from opentab.server.queries import RETRY, Desk
from opentab.server.schemas import READY_PROBLEMS, sends


class _IngestCheck:
    """One look at the log for all who ask meanwhile: it may take long, and anybody may ask."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._look: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        """Raise what keeps events out of the log."""
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(run_in_threadpool(self._intake.check))
            self._look.add_done_callback(lambda look: look.cancelled() or look.exception())  # also if all have gone
        await asyncio.shield(self._look)


def add_routes(api: FastAPI, desk: Desk, intake: Intake, counters: Counters) -> None:
    check_ingest = _IngestCheck(intake)

    @api.get("/healthz", responses=sends(Alive), tags=["operating"])
    async def healthz() -> Response:
        """Alive."""
        return told(Alive("alive"))

    @api.get("/readyz", responses={**sends(Ready), **READY_PROBLEMS}, tags=["operating"])
    async def readyz(
        for_: Annotated[
            Literal["ingest"] | None, Query(alias="for", description="whether events would be taken, too")
        ] = None,
    ) -> Response:
        """Ready: the copy can be read, and its follower lives and has caught up once; if not, why.

        Age counts only where `server.ready_staleness_max` is set.
        """
        fresh = asdict(desk.ready())
        if for_ == "ingest":
            try:
                await check_ingest()
            except (Overloaded, OpentabError) as error:
                raise Problem(503, f"events cannot be taken: {error}", headers=RETRY, more=fresh) from None
        return told(Ready("ready", **fresh))

    @api.get("/metrics", response_class=PlainTextResponse, tags=["operating"])
    def metrics() -> Response:
        """For Prometheus."""
        return PlainTextResponse(exposition(counters, desk.ledger_metrics()), media_type=CONTENT_TYPE_LATEST)
