"""/healthz, /readyz and /metrics: for those who operate it."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from msgspec.structs import asdict
from prometheus_client import CONTENT_TYPE_LATEST

from opentab.api.answers import Alive, Ready
from opentab.server.metrics import Counters, exposition
from opentab.server.params import told
from opentab.server.queries import Desk
from opentab.server.schemas import PROBLEM_503, sends


def add_routes(api: FastAPI, desk: Desk, counters: Counters) -> None:
    @api.get("/healthz", responses=sends(Alive), tags=["operating"])
    async def healthz() -> Response:
        """Alive."""
        return told(Alive("alive"))

    @api.get("/readyz", responses={**sends(Ready), **PROBLEM_503}, tags=["operating"])
    async def readyz() -> Response:
        """Ready: the replica can be read, goes on, and is fresh; if not, why."""
        return told(Ready("ready", **asdict(desk.ready())))

    @api.get("/metrics", response_class=PlainTextResponse, tags=["operating"])
    def metrics() -> Response:
        """For Prometheus."""
        return PlainTextResponse(exposition(counters, desk.ledger_metrics()), media_type=CONTENT_TYPE_LATEST)
