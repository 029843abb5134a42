"""Access tokens: who may read what. Signed (JWT, HS256), with an end, and revocable.

    customer   its own totals, invoices, receipts and stream, and nothing else
    reader     all reads
    ingest     POST /v1/events, and what became of events
    admin      everything

The key is read from a file or the environment, and never written anywhere.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256

import jwt

from opentab.core.errors import ConfigError, InputError, LedgerError
from opentab.runtime.config import Home
from opentab.runtime.permissions import read_secret
from opentab.server.revocations import Revocations

ALGORITHM = "HS256"
KEY_VARIABLE = "OPENTAB_KEY"
KEY_BYTES_MIN = 32
CHECKED_MAX = 10_000
LEEWAY_SECONDS = 60


class Role(StrEnum):
    """What a token is for."""

    CUSTOMER = "customer"
    READER = "reader"
    INGEST = "ingest"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was found to be good."""

    id: str
    role: Role
    customer: str | None
    expires: int  # seconds since 1970


class TokenRefused(Exception):
    """A token that is no good; the message says why, and nothing of the token."""


def read_key(home: Home) -> bytes | None:
    """The home's key, from the environment or from `server.key_file`; None where none is configured."""
    text = os.environ.get(KEY_VARIABLE)
    key_file = home["server.key_file"]
    if text is None and key_file:
        path = home.path / key_file
        try:
            text = read_secret(path)
        except OSError as error:
            raise ConfigError(
                f"the key file {path} cannot be read: {error.strerror}",
                hint="make one with opentab token key, or mend server.key_file",
            ) from error
    if text is None:
        return None
    key = text.strip().encode()
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"the key has {len(key)} characters, and needs {KEY_BYTES_MIN} at least",
            hint="make one with opentab token key",
        )
    return key


def new_key() -> str:
    """A key that nobody can guess."""
    return secrets.token_urlsafe(48)


def issue(key: bytes, role: Role, *, customer: str | None, lifetime: timedelta, now: float | None = None) -> str:
    """A new token."""
    if (role is Role.CUSTOMER) != (customer is not None):
        raise InputError("a customer's token names the customer, and no other does", hint="use --customer NAME")
    at = int(time.time() if now is None else now)
    claims = {"jti": secrets.token_hex(8), "role": str(role), "iat": at, "exp": at + int(lifetime.total_seconds())}
    if customer is not None:
        claims["sub"] = customer
    return jwt.encode(claims, key, algorithm=ALGORITHM)


class Gate:
    """Tells good tokens from bad ones."""

    def __init__(self, key: bytes, revocations: Revocations) -> None:
        self._key = key
        self._revocations = revocations
        # Signatures that were checked before: by a hash, so that finding one tells nothing about another.
        self._checked: dict[bytes, Token] = {}

    def check(self, text: str) -> Token:
        """The token. Raises TokenRefused, or LedgerError if nobody can tell now whether it was revoked."""
        digest = sha256(text.encode()).digest()
        token = self._checked.get(digest)
        if token is None:
            if len(self._checked) >= CHECKED_MAX:
                self._checked.clear()
            token = self._checked[digest] = self._decode(text)
        self._check_again(token)
        return token

    def is_still_good(self, token: Token) -> bool:
        """Whether `check` would let it pass now, too."""
        try:
            self._check_again(token)
        except (TokenRefused, LedgerError):
            return False
        return True

    def _check_again(self, token: Token) -> None:
        if time.time() >= token.expires:
            raise TokenRefused("the token has expired")
        if self._revocations.holds(token.id):
            raise TokenRefused("the token was revoked")

    def _decode(self, text: str) -> Token:
        try:
            # The leeway is for a clock that issued it ahead of ours; its end has none, `check` sees to that.
            claims = jwt.decode(
                text,
                self._key,
                algorithms=[ALGORITHM],
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iat", "jti", "role"]},
            )
            token = Token(str(claims["jti"]), Role(claims["role"]), claims.get("sub"), int(claims["exp"]))
        except jwt.ExpiredSignatureError:
            raise TokenRefused("the token has expired") from None
        except (jwt.PyJWTError, ValueError):
            raise TokenRefused("the token is not one of ours") from None
        if (token.role is Role.CUSTOMER) != (token.customer is not None):
            raise TokenRefused("the token is not one of ours")
        return token


def token_id(text: str) -> str:
    """The id of a token, or the text itself where it is one already."""
    if "." not in text:
        return text
    try:
        claims = jwt.decode(text, options={"verify_signature": False})
        return str(claims["jti"])
    except (jwt.PyJWTError, KeyError):
        raise InputError("that is no token", hint="give the token or its id") from None


def may(token: Token, method: str, parts: list[str], query_customer: str | None) -> bool:
    """Whether a token is good for a request; `parts` are those of the path, decoded."""
    if token.role is Role.ADMIN:
        return True
    if method == "POST":
        return token.role is Role.INGEST and parts == ["v1", "events"]
    if method not in ("GET", "HEAD"):
        return False
    # Of a customer's own events only: the endpoint sees to that.
    is_receipt = parts[:2] == ["v1", "events"] and len(parts) == 3
    if token.role is Role.READER or is_receipt:
        return True
    if token.role is Role.INGEST:
        return False
    own = token.customer
    if parts[:2] == ["v1", "customers"]:
        return len(parts) > 2 and parts[2] == own
    if parts[:2] == ["v1", "invoices"]:
        return len(parts) > 3 and parts[3] == own
    return parts == ["v1", "stream"] and query_customer is not None and query_customer == own
