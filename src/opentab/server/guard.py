"""Who may ask: with a key, whoever brings a good token; without one, only programs on this machine."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Protocol
from urllib.parse import parse_qs

from opentab.core.errors import LedgerError
from opentab.runtime.logs import fields
from opentab.server.paths import App, Headers, parts_of
from opentab.server.problem import problem
from opentab.server.session import COOKIE_TOKEN
from opentab.server.tokens import Gate, Token, TokenRefused, may

# What tells nothing about anyone: health, and the files of the page, which asks for everything else.
PUBLIC: tuple[list[str], ...] = (
    ["healthz"],
    ["readyz"],
    ["openapi.json"],
    ["session"],
    [],
    ["management"],
    ["operations"],
)
CHALLENGE = {"www-authenticate": "Bearer"}
RETRY = {"retry-after": "5"}
TOKEN_ID = "opentab.token_id"  # where a request's scope says whose it is
TOKEN_CUSTOMER = "opentab.token_customer"  # and which customer's events alone it may see; None: all
TOKEN_IS_GOOD = "opentab.token_is_good"  # and a function that says whether the token would still be accepted

logger = logging.getLogger("opentab.server")


class Guard(Protocol):
    """An app that lets a request pass, or says why it does not."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None: ...

    def lets_read(self, customer: str, headers: Headers) -> bool:
        """Whether it would let a GET of this customer pass, as far as can be told from the headers alone."""


class LoopbackOnly:
    """Answers only who calls it by a loopback name: a foreign page's requests carry that page's own."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not is_loopback_name(_header(scope["headers"], b"host")):
            refusal = problem(403, "without a key this server answers on loopback names only, such as 127.0.0.1")
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def lets_read(self, customer: str, headers: Headers) -> bool:
        return is_loopback_name(_header(headers, b"host"))


class TokensOnly:
    """Answers only who brings a token that is good for what is asked."""

    def __init__(self, app: App, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            parts = [part for part in parts_of(scope) if part]
            if parts not in PUBLIC and parts[:1] != ["web"]:
                refusal = self._refusal(scope, parts)
                if refusal is not None:
                    await refusal(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def lets_read(self, customer: str, headers: Headers) -> bool:
        text = _bearer(headers)
        if text is None:
            return False
        try:
            token = self._gate.check(text)
        except (TokenRefused, LedgerError):
            return False
        return may(token, "GET", ["v1", "customers", customer], None)

    def _refusal(self, scope: dict[str, Any], parts: list[str]) -> Any:
        asked = scope.get("query_string", b"")
        query = parse_qs(asked.decode("latin-1"), keep_blank_values=True) if asked else {}
        token_text = _bearer(scope["headers"])
        if token_text is None:
            # A browser's EventSource cannot send headers.
            token_text = query.get("access_token", [""])[0] if parts == ["v1", "stream"] else ""
            if not token_text and scope["method"] in ("GET", "HEAD"):
                # The page's own: a browser sends it by itself, so it must not be able to change anything.
                token_text = scope.get(COOKIE_TOKEN, "")
        if not token_text:
            return problem(401, "a token is needed: authorization: Bearer …", headers=CHALLENGE)
        try:
            token: Token = self._gate.check(token_text.strip())
        except TokenRefused as refused:
            told = fields(client=(scope.get("client") or (None,))[0], reason=str(refused))
            logger.warning("token refused", extra=told)
            return problem(401, str(refused), headers=CHALLENGE)
        except LedgerError as error:
            return problem(503, error.fact, headers=RETRY)
        customers = query.get("customer", [])
        # More than one would leave it open which of them the answer is about.
        customer = customers[0] if len(customers) == 1 else None
        if not may(token, scope["method"], parts, customer):
            return problem(403, f"a token of the role {token.role} may not do that")
        scope[TOKEN_ID] = token.id
        scope[TOKEN_CUSTOMER] = token.customer
        scope[TOKEN_IS_GOOD] = partial(self._gate.is_still_good, token)
        return None


def holder_of(scope: Mapping[str, Any]) -> str:
    """Whose request it is, for limits: a token's, or without tokens an address's."""
    return str(scope.get(TOKEN_ID) or (scope["client"] or ("",))[0])


@lru_cache(maxsize=64)
def is_loopback_name(host: str) -> bool:
    """Whether a Host header names this machine by a loopback name."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _bearer(headers: Headers) -> str | None:
    """The token that an Authorization header brings; None where there is no such header, or of another kind."""
    kind, _, text = _header(headers, b"authorization").partition(" ")
    return text.strip() if kind.lower() == "bearer" else None


def _header(headers: Headers, name: bytes) -> str:
    found = [value for key, value in headers if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else ""
