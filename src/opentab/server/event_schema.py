"""What may be posted, for the OpenAPI document: a single event has to be right, a batch gets a verdict for each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from opentab.core.periods import INSTANT_MIN_US, to_us
from opentab.runtime.config import Home
from opentab.server.intake import EVENTS_MAX

AMOUNT = {
    "description": "exact: a decimal text with at most 6 decimals, or a number; negative for a credit",
    "anyOf": [
        {"type": "string", "pattern": r"^[+-]?[0-9]{1,9}(\.[0-9]{1,6})?$"},
        {"type": "integer", "minimum": -999_999_999, "maximum": 999_999_999},
    ],
}


def request_body(home: Home) -> dict[str, Any]:
    """What an operation that takes events says of its body."""
    event, cloud_event = _event(home), _cloud_event(home)
    batch = {"type": "array", "items": {}, "description": f"up to {EVENTS_MAX:,}; each gets its own verdict"}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"anyOf": [event, {**batch, "example": [event["example"]]}]}},
                "application/cloudevents+json": {"schema": cloud_event},
                "application/cloudevents-batch+json": {"schema": {**batch, "example": [cloud_event["example"]]}},
            },
        }
    }


def _event(home: Home) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["time", "customer", "type", "amount"],
        "properties": {
            "id": {"type": "string", "description": "tells an event from its duplicate"},
            "time": _time(),
            "customer": _customer(),
            "type": {"type": "string", "enum": list(home["billing.types"])},
            "amount": AMOUNT,
            "currency": {"type": "string", "enum": [home["billing.currency"]]},
            "specversion": False,
        },
        "example": {
            "id": "01J9",
            "time": "2025-01-31T22:15:04.120Z",
            "customer": "emma",
            "type": home["billing.types"][0],
            "amount": "0.1250",
        },
    }


def _cloud_event(home: Home) -> dict[str, Any]:
    plain = _event(home)
    own = {name: plain["properties"][name] for name in ("type", "amount", "currency")}
    example = plain["example"]
    return {
        "type": "object",
        "required": ["specversion", "subject", "time", "data"],
        "properties": {
            "specversion": {"type": "string", "enum": ["1.0"]},
            "id": {"type": "string"},
            "source": {},
            "type": {},
            "subject": _customer(),
            "time": _time(),
            "data": {"type": "object", "required": ["type", "amount"], "properties": own},
        },
        "example": {
            "specversion": "1.0",
            "id": example["id"],
            "source": "network",
            "type": "usage",
            "subject": example["customer"],
            "time": example["time"],
            "data": {"type": example["type"], "amount": example["amount"]},
        },
    }


def _customer() -> dict[str, Any]:
    return {
        "type": "string",
        "description": "1 to 256 bytes without control characters, not . or ..",
        "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f.][^\\u0000-\\u001f\\u007f-\\u009f]*$",
        "maxLength": 256,
    }


def _time() -> dict[str, Any]:
    """Up to now; the future cannot be said in a schema but by the year."""
    now = datetime.now(UTC)
    decade, year = divmod(now.year - 1, 10)
    years = f"1[0-9]{{3}}|20[0-{decade % 10 - 1}][0-9]|{decade}[0-{year}]"
    return {
        "description": "RFC 3339 with an offset, or milliseconds since 1970; not in the future",
        "anyOf": [
            {"type": "string", "format": "date-time", "pattern": f"^({years})-"},
            {"type": "integer", "minimum": INSTANT_MIN_US // 1000, "maximum": to_us(now) // 1000},
        ],
    }
