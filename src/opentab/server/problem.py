"""Errors over HTTP, in one shape: RFC 9457 problem details."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from opentab.core.errors import LedgerError, ReplicaDamaged, ReplicaError

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self, status: int, detail: str, *, headers: dict[str, str] | None = None, more: dict[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.more = more or {}


def problem(status: int, detail: str, *, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """The one shape of all errors."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    return JSONResponse(body, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Let every error of an app take this shape."""

    async def ours(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return problem(error.status, error.detail, headers=error.headers, **error.more)

    async def framework(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), headers=dict(error.headers or {}))

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {first['msg']}")

    async def replica(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ReplicaError)
        # What is damaged is no business of who asks.
        detail = "the replica is damaged and is being rebuilt" if isinstance(error, ReplicaDamaged) else error.fact
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"retry-after": "1"})

    async def ledger(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, LedgerError)
        if not error.retry_helps:
            raise error
        # Where the ledger lies is no business of who asks.
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, "the ledger cannot be read now", headers={"retry-after": "5"})

    app.add_exception_handler(Problem, ours)
    app.add_exception_handler(LedgerError, ledger)
    app.add_exception_handler(ReplicaError, replica)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, invalid)
