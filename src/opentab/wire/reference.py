"""One input line, judged exactly: an event, or the first reason why it cannot be billed.

This is the slow path and the reference. The vectorised path in decode.py may only accept what this
one accepts, with the same values; whatever it is not sure of comes here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn

from opentab.core.events import CUSTOMER_BYTES_MAX, NESTING_MAX, Reason, Rules
from opentab.core.money import AMOUNT_DIGITS_MAX, MICROS_PER_UNIT
from opentab.core.periods import DAY_MAX, DAY_MIN, DAY_US, INSTANT_MAX_US, INSTANT_MIN_US, SECOND_US, Calendar, to_us

BLANK = b" \t\r\n"
TIME_PATTERN = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:[Zz]|([+-])(\d{2}):(\d{2}))",
    re.ASCII,
)
AMOUNT_PATTERN = re.compile(r"([+-]?)(\d+)(?:\.(\d+))?", re.ASCII)
# A text without an end reaches to the end of the line: each character is looked at once.
NESTING_PATTERN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z|\\\Z)|[\[\]{}]', re.DOTALL)
CONTROL_PATTERN = re.compile(r"[\x00-\x1f\x7f-\x9f]")
DETAIL_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Event:
    """One priced use that can be billed."""

    at_us: int
    day: int
    customer: str
    type: str
    amount_micros: int  # of a reversal with its sign turned
    id: str | None = None  # never empty
    source: str | None = None  # of a CloudEvents envelope: the id is one of this source's
    reverses: str | None = None  # the id, of the same source, of the event that this one takes back


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a line cannot be billed."""

    reason: Reason
    detail: str
    id: str | None = None  # of the event, as far as it can be told
    source: str | None = None


class _Refused(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason, detail[:DETAIL_CHARS_MAX])


class _Number(str):
    """A JSON number by its exact text."""

    __slots__ = ()


def is_blank(line: bytes) -> bool:
    """A line of JSON white space is no input at all."""
    return not line.strip(BLANK)


def judge(line: bytes, *, arrived_us: int, rules: Rules, calendar: Calendar) -> Event | Refusal:
    """Decide what one line is. Never raises on any bytes."""
    if len(line) > rules.event_bytes_max:  # before anything reads it: its length is all that it costs
        return Refusal(Reason.TOO_LARGE, f"{len(line):,} bytes are more than {rules.event_bytes_max:,}")
    value: Any = None
    try:
        value = _parse(line)
        fields = _fields(value)
        at_us, day = _instant(fields["time"], arrived_us, rules, calendar)
        amount_micros = _micros(fields["amount"])
        if fields["currency"] not in (None, rules.currency):
            raise _Refused(Reason.CURRENCY_MISMATCH, f"{fields['currency']!r} is not {rules.currency!r}")
        if fields["type"] not in rules.types:
            raise _Refused(Reason.UNKNOWN_TYPE, f"{fields['type']!r} is no type of this home")
        _check_customer(fields["customer"])
        if fields["reverses"] is not None:
            if not rules.dedupe_us:
                raise _Refused(Reason.REVERSAL_UNKNOWN, "no event is remembered: billing.dedupe_window is off")
            amount_micros = -amount_micros
        names = (fields["id"] or None, fields["source"], fields["reverses"])
        return Event(at_us, day, fields["customer"], fields["type"], amount_micros, *names)
    except _Refused as refused:
        id_, source = _identity(value)
        return replace(refused.refusal, id=id_, source=source)


def _identity(value: Any) -> tuple[str | None, str | None]:
    """The id of an input that cannot be billed, and its source, if they are texts."""
    if not isinstance(value, dict):
        return None, None
    id_, source = value.get("id"), value.get("source") if "specversion" in value else None
    if type(id_) is not str or not id_ or not (source is None or type(source) is str):
        return None, None
    return id_, source


def _parse(line: bytes) -> Any:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Refused(Reason.NOT_JSON, f"not UTF-8 at byte {error.start}") from None
    _check_nesting(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_constant,
        )
    except ValueError as error:
        raise _Refused(Reason.NOT_JSON, str(error)) from None
    if "\\u" in text:
        _check_surrogates(value)
    return value


def _check_nesting(text: str) -> None:
    if text.count("[") + text.count("{") <= NESTING_MAX:
        return
    depth = 0
    for token in NESTING_PATTERN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > NESTING_MAX:
                raise _Refused(Reason.NOT_JSON, f"nested deeper than {NESTING_MAX}")
        elif token[0] in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(Reason.NOT_JSON, f"the key {twice!r} stands twice in one object")
    return table


def _constant(name: str) -> NoReturn:
    raise _Refused(Reason.NOT_JSON, f"{name} is not JSON")


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _Refused(Reason.NOT_JSON, "half a surrogate pair is no character") from None


def _fields(value: Any) -> dict[str, Any]:
    """The fields that matter, by our own names, from the plain form or a CloudEvents envelope."""
    if not isinstance(value, dict):
        raise _Refused(Reason.WRONG_TYPE, "an event is a JSON object")
    if "specversion" in value:
        return _cloudevent(value)
    _require(value, "time", "customer", "type", "amount", *_of_reversal(value))
    return _typed(value["time"], value["customer"], value, value.get("id"), None, customer_name="customer")


def _cloudevent(value: dict[str, Any]) -> dict[str, Any]:
    _require(value, "time", "subject", "data")
    data = value["data"]
    if isinstance(data, dict):
        _require(data, "type", "amount", *_of_reversal(data), prefix="data.")
    if value["specversion"] != "1.0" or isinstance(value["specversion"], _Number):
        raise _Refused(Reason.WRONG_TYPE, 'specversion must be "1.0"')
    if not isinstance(data, dict):
        raise _Refused(Reason.WRONG_TYPE, "data must be an object")
    return _typed(value["time"], value["subject"], data, value.get("id"), value.get("source"), customer_name="subject")


def _of_reversal(data: dict[str, Any]) -> tuple[str, ...]:
    """What must stand beside `reverses`."""
    return ("reason", "actor") if data.get("reverses") is not None else ()


def _require(value: dict[str, Any], *names: str, prefix: str = "") -> None:
    for name in names:
        if name not in value:
            raise _Refused(Reason.MISSING_FIELD, f"{prefix}{name} is missing")


def _typed(
    time: Any, customer: Any, data: dict[str, Any], id_: Any, source: Any, *, customer_name: str
) -> dict[str, Any]:
    if not isinstance(time, str) or (isinstance(time, _Number) and not time.lstrip("-").isdigit()):
        raise _Refused(Reason.WRONG_TYPE, "time must be a text or whole milliseconds")
    _check_text(customer, customer_name)
    _check_text(data["type"], "type")
    if not isinstance(data["amount"], str):
        raise _Refused(Reason.WRONG_TYPE, "amount must be a decimal text or a number")
    currency = data.get("currency")
    if currency is not None:
        _check_text(currency, "currency")
    for text, name in ((id_, "id"), (source, "source")):
        if text is not None:
            _check_text(text, name)
    reverses = data.get("reverses")
    if reverses is not None:
        for name in ("reverses", "reason", "actor"):
            _check_text(data[name], name)
            if not data[name]:
                raise _Refused(Reason.WRONG_TYPE, f"{name} must not be empty")
    return {
        "time": time,
        "customer": customer,
        "type": data["type"],
        "amount": data["amount"],
        "currency": currency,
        "id": id_,
        "source": source,
        "reverses": reverses,
    }


def _check_text(value: Any, name: str) -> None:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise _Refused(Reason.WRONG_TYPE, f"{name} must be a text")


def _instant(time: str, arrived_us: int, rules: Rules, calendar: Calendar) -> tuple[int, int]:
    at_us = _milliseconds(time) if isinstance(time, _Number) else _rfc3339(time)
    day = calendar.day_of(at_us)
    if not (DAY_MIN <= day <= DAY_MAX and INSTANT_MIN_US <= at_us <= INSTANT_MAX_US):
        raise _Refused(Reason.BAD_TIME, f"{time[:40]} lies outside of the years 1 to 9999")
    if at_us > arrived_us + rules.future_skew_us:
        raise _Refused(Reason.TIME_IN_FUTURE, f"{time[:40]} is too far ahead of its arrival")
    return at_us, day


def _milliseconds(number: _Number) -> int:
    if len(number) > 18:
        raise _Refused(Reason.BAD_TIME, "the milliseconds lie outside of the years 1 to 9999")
    at_us = int(number) * 1000
    if not (DAY_MIN - 1) * DAY_US <= at_us <= (DAY_MAX + 2) * DAY_US:
        raise _Refused(Reason.BAD_TIME, f"{number} lies outside of the years 1 to 9999")
    return at_us


def _rfc3339(text: str) -> int:
    match = TIME_PATTERN.fullmatch(text)
    if match is None:
        raise _Refused(Reason.BAD_TIME, f"{text[:40]!r} is not RFC 3339 with an offset")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    offset = timedelta()
    if match[8]:
        offset_hours, offset_minutes = int(match[9]), int(match[10])
        if offset_hours > 23 or offset_minutes > 59:
            raise _Refused(Reason.BAD_TIME, f"{text[:40]!r} has an impossible offset")
        offset = timedelta(hours=offset_hours, minutes=offset_minutes)
        if match[8] == "-":
            offset = -offset
    leap = second == 60
    try:
        whole = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=timezone.utc)  # noqa: UP017
    except ValueError as error:
        raise _Refused(Reason.BAD_TIME, f"{text[:40]!r}: {error}") from None
    at_us = to_us(whole) - offset // timedelta(microseconds=1)
    if leap:
        # A leap second ends a UTC day; it belongs to the day that it ends.
        if (at_us // SECOND_US) % 86_400 != 86_399:
            raise _Refused(Reason.BAD_TIME, f"{text[:40]!r} has no leap second there")
        return at_us + SECOND_US - 1
    return at_us + int((match[7] or "0")[:6].ljust(6, "0"))


def _micros(text: str) -> int:
    match = AMOUNT_PATTERN.fullmatch(text)
    if match is None:
        raise _Refused(Reason.BAD_AMOUNT, f"{text[:40]!r} is not a plain decimal")
    sign, units, fraction = match[1], match[2].lstrip("0"), match[3] or ""
    if len(units) > AMOUNT_DIGITS_MAX:
        raise _Refused(Reason.AMOUNT_OUT_OF_RANGE, "the amount must stay below 1,000,000,000")
    if len(fraction) > 6:
        raise _Refused(Reason.AMOUNT_PRECISION, f"{text[:40]!r} has more than 6 decimals")
    micros = int(units or "0") * MICROS_PER_UNIT + int(fraction.ljust(6, "0"))
    return -micros if sign == "-" else micros


def _check_customer(customer: str) -> None:
    size = len(customer.encode("utf-8"))
    if not 1 <= size <= CUSTOMER_BYTES_MAX:
        raise _Refused(Reason.BAD_CUSTOMER, f"a customer has 1 to {CUSTOMER_BYTES_MAX} bytes, not {size}")
    if customer in (".", ".."):
        raise _Refused(Reason.BAD_CUSTOMER, f"{customer!r} cannot be a customer")
    if CONTROL_PATTERN.search(customer):
        raise _Refused(Reason.BAD_CUSTOMER, "a customer has no control characters")
