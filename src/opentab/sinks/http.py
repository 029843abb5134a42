"""One delivery over HTTP: the request, its signature (Standard Webhooks), and what the answer means."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from importlib.util import find_spec
from types import TracebackType
from urllib.parse import quote, urlsplit

import httpx

from opentab import __version__
from opentab.core.errors import ConfigError
from opentab.runtime.config import Home, is_loopback
from opentab.runtime.permissions import read_secret
from opentab.sinks.parcel import Parcel

KEY_VARIABLE = "OPENTAB_INVOICES_KEY"
KEY_PREFIX = "whsec_"
KEY_BYTES_MIN = 24
ERROR_CHARACTERS_MAX = 200
ANSWER_BYTES_MAX = 64 * 1024
LATER_STATUSES = (408, 425, 429)
TOO_MANY = 429
RETRY_AFTER_MAX = timedelta(days=1)
RETRY_AFTER_DIGITS_MAX = 6  # longer than that already

if find_spec("sniffio") is None:
    # httpx looks for it several times a request, which is a quarter of all that a delivery costs: say at once that
    # it is not there.
    sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]


class Outcome(StrEnum):
    """What came of a try."""

    DELIVERED = "delivered"
    LATER = "later"  # the receiver is gone, slow or busy
    REFUSED = "refused"  # it does not want this one


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a try, and what the receiver asked for."""

    outcome: Outcome
    error: str = ""
    retry_after: timedelta | None = None
    slow_down: bool = False  # it wants less of everything


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where deliveries go, and what they carry."""

    url: str
    keys: Sequence[bytes]  # several while one replaces another
    headers: Mapping[str, str]
    timeout: timedelta

    @property
    def is_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")


def receiver_of(home: Home) -> Receiver:
    """The home's receiver; raises ConfigError if there is none, or if it could not tell who sends."""
    url = str(home["invoices.http_url"])
    if not url:
        raise ConfigError("there is nowhere to deliver invoices to", hint="set http_url under [invoices]")
    receiver = Receiver(url, _keys(home), _headers(home), home["invoices.http_timeout"])
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"invoices.http_url = {url!r} is no address: {error}", hint="mend it") from error
    if not receiver.keys and not receiver.is_loopback:
        raise ConfigError(
            f"invoices would go to {url} without a signature",
            hint=f"put a key into a file and name it as http_key_file under [invoices], or set {KEY_VARIABLE}",
        )
    return receiver


class Sender:
    """Puts parcels to a receiver, over connections that stay open."""

    def __init__(self, receiver: Receiver, *, parallel: int) -> None:
        self._receiver = receiver
        self._client = httpx.AsyncClient(
            timeout=None,  # the whole of a try has one limit, below
            limits=httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel),
            verify=ssl.create_default_context(),
            trust_env=not receiver.is_loopback,  # a proxy is on the way to other machines
            follow_redirects=False,
        )

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def send(self, parcel: Parcel, *, at: datetime) -> Verdict:
        """Try once. Whatever goes wrong on the way is a verdict, too."""
        headers = {**self._receiver.headers, **signed(parcel, self._receiver.keys, at=at)}
        limit = self._receiver.timeout.total_seconds()
        try:
            async with (
                asyncio.timeout(limit),
                self._client.stream(
                    "PUT", address(self._receiver.url, parcel), content=parcel.body, headers=headers
                ) as answer,
            ):
                return judge(answer.status_code, answer.headers, await _beginning(answer), at=at)
        except TimeoutError:
            return Verdict(Outcome.LATER, f"no answer within {limit:g} s")
        except (httpx.HTTPError, OSError) as error:
            return Verdict(Outcome.LATER, _readable(str(error) or type(error).__name__))


def address(url: str, parcel: Parcel) -> str:
    """Where a parcel is put: the customer is one part of the path, whatever characters it has."""
    return f"{url}/{parcel.period}/{quote(parcel.customer, safe='')}/{parcel.revision}"


def signed(parcel: Parcel, keys: Sequence[bytes], *, at: datetime) -> dict[str, str]:
    """The headers of a try: what it is, when it was sent, and for each key a signature of both and of the body."""
    timestamp = str(int(at.timestamp()))
    content = b".".join((parcel.id.encode(), timestamp.encode(), parcel.body))
    signatures = (base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys)
    headers = {
        "content-type": "application/json",
        "user-agent": f"opentab/{__version__}",
        "idempotency-key": parcel.id,
        "webhook-id": parcel.id,
        "webhook-timestamp": timestamp,
    }
    if keys:
        headers["webhook-signature"] = " ".join(f"v1,{signature}" for signature in signatures)
    return headers


def judge(status: int, headers: Mapping[str, str], text: str, *, at: datetime) -> Verdict:
    """What an answer means."""
    if 200 <= status < 300:
        return Verdict(Outcome.DELIVERED)
    error = _readable(f"{status} {text}".strip())
    if status >= 500 or status in LATER_STATUSES:
        wait = _retry_after(headers.get("retry-after"), at)
        return Verdict(Outcome.LATER, error, retry_after=wait, slow_down=status == TOO_MANY)
    return Verdict(Outcome.REFUSED, error)


async def _beginning(answer: httpx.Response) -> str:
    """The first bytes of an answer; a small one is read to its end, so that the connection can be used again."""
    body = b""
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            break
    return body[: 4 * ERROR_CHARACTERS_MAX].decode("utf-8", errors="replace")


def _readable(text: str) -> str:
    """A text from outside in one line that cannot disturb a terminal or a page."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= ERROR_CHARACTERS_MAX else f"{line[: ERROR_CHARACTERS_MAX - 1]}…"


def _retry_after(text: str | None, at: datetime) -> timedelta | None:
    """How long the receiver asks us to wait: seconds, or a moment."""
    if text is None:
        return None
    digits = text.strip()
    if digits.isascii() and digits.isdecimal():
        digits = digits.lstrip("0")[:RETRY_AFTER_DIGITS_MAX] or "0"  # Python reads no number of thousands of digits
        return min(timedelta(seconds=int(digits)), RETRY_AFTER_MAX)
    try:
        moment = parsedate_to_datetime(text)
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - at
    except (ValueError, OverflowError):  # no date, or none of any calendar
        return None
    return min(max(timedelta(), wait), RETRY_AFTER_MAX)


def _keys(home: Home) -> list[bytes]:
    text = os.environ.get(KEY_VARIABLE)
    if text is None:
        text = _text_of(home, "invoices.http_key_file")
    return [_key(line) for line in text.split()]


def _key(text: str) -> bytes:
    """A key as Standard Webhooks writes it (whsec_ and base64), or as any other text."""
    try:
        key = base64.b64decode(text.removeprefix(KEY_PREFIX), validate=True) if text.startswith(KEY_PREFIX) else b""
    except binascii.Error:
        raise ConfigError(
            f"the key that invoices are signed with is no base64 behind {KEY_PREFIX}", hint=_HOW_TO_KEY
        ) from None
    key = key or text.encode()
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"the key that invoices are signed with has {len(key)} bytes, and needs {KEY_BYTES_MIN} at least",
            hint=_HOW_TO_KEY,
        )
    return key


_HOW_TO_KEY = f'make one with: echo "{KEY_PREFIX}$(openssl rand -base64 32)"'


def _headers(home: Home) -> dict[str, str]:
    headers = {}
    for line in _text_of(home, "invoices.http_header_file").splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not name.replace("-", "").replace("_", "").isalnum() or not line.isascii():
            # The line itself may be a secret.
            raise ConfigError(
                f"invoices.http_header_file {home['invoices.http_header_file']!r} has a line that is no header",
                hint="for example Authorization: Bearer …, one header a line",
            )
        headers[name.lower()] = value
    return headers


def _text_of(home: Home, setting: str) -> str:
    name = str(home[setting])
    if not name:
        return ""
    try:
        return read_secret(home.path / name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{setting} {home.path / name} cannot be read: {reason}", hint="mend it") from error
