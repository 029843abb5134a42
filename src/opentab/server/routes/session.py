"""/session: signing in to the page with a token, and out again."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI, Request, Response

from opentab.api.answers import Session
from opentab.runtime.config import Home
from opentab.server.params import body_of, told
from opentab.server.problem import Problem
from opentab.server.schemas import PROBLEM_503, SESSION_BODY, SESSION_PROBLEMS, sends
from opentab.server.session import COOKIE_TOKEN, cookie_of, no_cookie
from opentab.server.tokens import Gate, Token, TokenRefused

BODY_BYTES_MAX = 8 * 1024
NO_STORE = {"cache-control": "no-store"}


def add_routes(api: FastAPI, home: Home, gate: Gate | None) -> None:
    def session_of(token: Token | None) -> Session:
        return Session(
            tokens=gate is not None,
            role=str(token.role) if token else None,
            customer=token.customer if token else None,
            currency=home["billing.currency"],
            zone=home["billing.zone"],
            types=list(home["billing.types"]) if gate is None or token else [],
        )

    def is_secure(request: Request) -> bool:
        # What a proxy says of itself in headers, anybody could say.
        return request.url.scheme == "https" or bool(home["server.behind_https_proxy"])

    @api.get("/session", responses={**sends(Session), **PROBLEM_503}, tags=["page"])
    def session(request: Request) -> Response:
        """Whether a token is needed here, who the browser's own one is of, and how to show money and days."""
        token = None
        if gate is not None:
            try:
                token = gate.check(request.scope.get(COOKIE_TOKEN, ""))
            except TokenRefused:
                token = None
        return told(session_of(token), headers=NO_STORE)

    @api.post("/session", responses={**sends(Session), **SESSION_PROBLEMS}, openapi_extra=SESSION_BODY, tags=["page"])
    async def sign_in(request: Request) -> Response:
        """Keep a token in a cookie that no script can read; it is good for reads only."""
        if gate is None:
            raise Problem(404, "no token is needed here")
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise Problem(415, "send the token as application/json")
        text = await _token(request)
        try:
            token = gate.check(text)
        except TokenRefused as refused:
            raise Problem(401, str(refused)) from None
        cookie = cookie_of(text, secure=is_secure(request))
        return told(session_of(token), headers={**NO_STORE, "set-cookie": cookie})

    @api.delete("/session", status_code=204, tags=["page"])
    def sign_out(request: Request) -> Response:
        """Let the browser forget the token."""
        return Response(status_code=204, headers={**NO_STORE, "set-cookie": no_cookie(secure=is_secure(request))})


class _SignIn(msgspec.Struct):
    token: str


async def _token(request: Request) -> str:
    body = await body_of(request, bytes_max=BODY_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=_SignIn).token.strip()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Problem(400, 'the body is not {"token": "…"}') from None
