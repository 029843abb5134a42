"""/healthz, /readyz and /metrics: for those who operate it."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from opentab.server.metrics import Counters, exposition
from opentab.server.queries import Desk
from opentab.server.schemas import PROBLEM_503, Alive, Ready


def add_routes(api: FastAPI, desk: Desk, counters: Counters) -> None:
    @api.get("/healthz", response_model=Alive, tags=["operating"])
    async def healthz() -> dict[str, str]:
        """Alive."""
        return {"status": "alive"}

    @api.get("/readyz", response_model=Ready, responses=PROBLEM_503, tags=["operating"])
    async def readyz() -> dict[str, object]:
        """Ready: the replica can be read, goes on, and is fresh; if not, why."""
        return {"status": "ready", **desk.ready().as_json()}

    @api.get("/metrics", response_class=PlainTextResponse, tags=["operating"])
    def metrics() -> Response:
        """For Prometheus."""
        return PlainTextResponse(exposition(counters, desk.ledger_metrics()), media_type=CONTENT_TYPE_LATEST)
