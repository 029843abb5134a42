"""One line of the log, read by the audit's own strict reader of JSON and judged by its own rules.

Nothing here is shared with the pipeline, and no JSON library is used: if both were wrong, they
would have to be wrong in the same way by chance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from enum import Enum, auto
from typing import Any

from opentab.audit.days import DAY_US, EPOCH_ORDINAL, SECOND_US, Days
from opentab.core.events import CUSTOMER_BYTES_MAX, NESTING_MAX, Reason, Rules

WHITE = b" \t\r\n"
# White space, then a mark, a text, a number or a word. Possessive: a token never gives back.
TOKEN = re.compile(
    r"([ \t\r\n]*+)"
    r"(?:([{}\[\],:])"
    r'|"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"'
    r"|(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)"
    r"|(true|false|null))"
)
SPACE, MARK, TEXT, NUMBER, WORD = 1, 2, 3, 4, 5
WORDS = {"true": True, "false": False, "null": None}

ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u((?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    r'|(["\\/bfnrt])|(.?))',
    re.DOTALL,
)
ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
AMOUNT = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?")
UNIT_DIGITS_MAX = 9
FRACTION_DIGITS_MAX = 6
MILLISECONDS_CHARS_MAX = 18


class NotJsonError(ValueError):
    """The bytes are not one strict JSON value."""


@dataclass(frozen=True, slots=True)
class Number:
    """A JSON number by its exact text."""

    text: str


@dataclass(frozen=True, slots=True)
class Counted:
    """A line that counts as an event, unless another one counted in its place (once.py).

    The amount is what it counts for: a reversal's has the opposite sign of the one on its line.
    """

    at_us: int
    day: int
    customer: str
    type: str
    amount_micros: int
    id: str | None = None  # None, too, where it is empty
    source: str | None = None  # of an envelope
    reverses: str | None = None  # the id of the event that it takes back
    reason: str | None = None  # why, and
    actor: str | None = None  # who: of a reversal


class _RefusedError(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def is_input(line: bytes) -> bool:
    """A line of nothing but JSON white space is no input."""
    return bool(line.strip(WHITE))


def decide(line: bytes, *, arrived_us: int, rules: Rules, days: Days) -> Counted | Reason:
    """What a line counts for, or the first reason for which it does not."""
    if len(line) > rules.event_bytes_max:
        return Reason.TOO_LARGE
    try:
        value = read(line)
    except NotJsonError:
        return Reason.NOT_JSON
    try:
        return _decide(value, arrived_us, rules, days)
    except _RefusedError as refused:
        return refused.reason


def read(line: bytes) -> Any:
    """Read one strict JSON value; raises NotJsonError."""
    try:
        text = line.decode("utf-8").rstrip(" \t\r\n")
    except UnicodeDecodeError:
        raise NotJsonError("not UTF-8") from None
    reader = _Reader()
    at = 0
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise NotJsonError(f"no token of JSON at {at}")
        reader.take(token)
        at = token.end()
    return reader.result()


class _Want(Enum):
    """What may stand next."""

    VALUE = auto()
    VALUE_OR_END = auto()  # just inside of a list
    KEY = auto()
    KEY_OR_END = auto()  # just inside of an object
    COLON = auto()
    COMMA_OR_END = auto()
    NOTHING = auto()


class _Reader:
    """The grammar of JSON over tokens, with a stack of its own: no input can exhaust Python's."""

    def __init__(self) -> None:
        self._want = _Want.VALUE
        self._open: list[Any] = []  # the containers around the place we are at
        self._keys: list[str] = []  # for each open object the key whose value follows
        self._top: Any = None

    def take(self, token: re.Match[str]) -> None:
        mark = token[MARK]
        if mark is None:
            if self._want in (_Want.KEY, _Want.KEY_OR_END):
                self._key(token)
            else:
                _expect(self._want in (_Want.VALUE, _Want.VALUE_OR_END))
                self._put(_scalar(token))
        elif mark in "{[":
            self._begin(mark)
        elif mark in "}]":
            self._end(mark)
        elif mark == ":":
            _expect(self._want is _Want.COLON)
            self._want = _Want.VALUE
        else:
            _expect(self._want is _Want.COMMA_OR_END)
            self._want = _Want.KEY if isinstance(self._open[-1], dict) else _Want.VALUE

    def result(self) -> Any:
        _expect(self._want is _Want.NOTHING)
        return self._top

    def _key(self, token: re.Match[str]) -> None:
        _expect(token.lastindex == TEXT)
        key = _text(token[TEXT])
        _expect(key not in self._open[-1])
        self._keys[-1] = key
        self._want = _Want.COLON

    def _begin(self, mark: str) -> None:
        _expect(self._want in (_Want.VALUE, _Want.VALUE_OR_END) and len(self._open) < NESTING_MAX)
        if mark == "{":
            self._open.append({})
            self._keys.append("")
            self._want = _Want.KEY_OR_END
        else:
            self._open.append([])
            self._want = _Want.VALUE_OR_END

    def _end(self, mark: str) -> None:
        empty = _Want.KEY_OR_END if mark == "}" else _Want.VALUE_OR_END
        _expect(self._want in (empty, _Want.COMMA_OR_END) and bool(self._open))
        container = self._open.pop()
        _expect(isinstance(container, dict) == (mark == "}"))
        if mark == "}":
            self._keys.pop()
        self._put(container)

    def _put(self, value: Any) -> None:
        self._want = _Want.COMMA_OR_END
        if not self._open:
            self._top = value
            self._want = _Want.NOTHING
        elif isinstance(self._open[-1], dict):
            self._open[-1][self._keys[-1]] = value
        else:
            self._open[-1].append(value)


def _expect(condition: bool) -> None:
    if not condition:
        raise NotJsonError("not the grammar of JSON, a repeated key, or nested too deep")


def _scalar(token: re.Match[str]) -> Any:
    if token.lastindex == TEXT:
        return _text(token[TEXT])
    if token.lastindex == NUMBER:
        return Number(token[NUMBER])
    return WORDS[token[WORD]]


def _text(body: str) -> str:
    return ESCAPE.sub(_unescaped, body) if "\\" in body else body


def _unescaped(match: re.Match[str]) -> str:
    high, low, code, short, _ = match.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    if code:
        return chr(int(code, 16))
    if short:
        return ESCAPED.get(short, short)
    raise NotJsonError("an escape that is none, or half a surrogate pair")


def _decide(value: Any, arrived_us: int, rules: Rules, days: Days) -> Counted:
    if not isinstance(value, dict):
        raise _RefusedError(Reason.WRONG_TYPE)
    enveloped = "specversion" in value
    who = "subject" if enveloped else "customer"
    data = value.get("data") if enveloped else value
    _all_there(value, ("time", who, "data") if enveloped else ("time", who))
    if isinstance(data, dict):
        _all_there(data, ("type", "amount"))
        if data.get("reverses") is not None:
            _all_there(data, ("reason", "actor"))
    if not isinstance(data, dict) or (enveloped and value["specversion"] != "1.0"):
        raise _RefusedError(Reason.WRONG_TYPE)

    time, customer = value["time"], value[who]
    type_, amount, currency = data["type"], data["amount"], data.get("currency")
    id_, source = value.get("id"), value.get("source") if enveloped else None
    reverses, reason, actor = _reversal(data)
    whole = isinstance(time, Number) and re.fullmatch(r"-?[0-9]+", time.text) is not None
    right = (
        (isinstance(time, str) or whole)
        and isinstance(customer, str)
        and isinstance(type_, str)
        and isinstance(amount, str | Number)
        and isinstance(currency, str | None)
        and isinstance(id_, str | None)
        and isinstance(source, str | None)
    )
    if not right:
        raise _RefusedError(Reason.WRONG_TYPE)

    at_us = _instant(time) if isinstance(time, str) else _milliseconds(time.text)
    day = days.day_of(at_us)
    if day is None:
        raise _RefusedError(Reason.BAD_TIME)
    if at_us > arrived_us + rules.future_skew_us:
        raise _RefusedError(Reason.TIME_IN_FUTURE)
    amount_micros = _amount(amount.text if isinstance(amount, Number) else amount)
    if currency is not None and currency != rules.currency:
        raise _RefusedError(Reason.CURRENCY_MISMATCH)
    if type_ not in rules.types:
        raise _RefusedError(Reason.UNKNOWN_TYPE)
    if not _may_be_customer(customer):
        raise _RefusedError(Reason.BAD_CUSTOMER)
    if reverses is not None:
        amount_micros = -amount_micros
    return Counted(at_us, day, customer, type_, amount_micros, id_ or None, source, reverses, reason, actor)


def _reversal(data: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    """What a line takes back, why and who; nothing of it where it takes back nothing."""
    if data.get("reverses") is None:
        return None, None, None
    reverses, reason, actor = data["reverses"], data["reason"], data["actor"]
    if not all(isinstance(text, str) and text for text in (reverses, reason, actor)):
        raise _RefusedError(Reason.WRONG_TYPE)
    return reverses, reason, actor


def _all_there(table: dict[str, Any], names: tuple[str, ...]) -> None:
    if any(name not in table for name in names):
        raise _RefusedError(Reason.MISSING_FIELD)


def _milliseconds(text: str) -> int:
    if len(text) > MILLISECONDS_CHARS_MAX:
        raise _RefusedError(Reason.BAD_TIME)
    return int(text) * 1000


def _instant(text: str) -> int:
    match = TIME.fullmatch(text)
    if match is None:
        raise _RefusedError(Reason.BAD_TIME)
    year, month, day_of_month, hour, minute, second = map(int, match.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    east = 0
    if sign:
        if offset_hours > "23" or offset_minutes > "59":
            raise _RefusedError(Reason.BAD_TIME)
        east = (int(offset_hours) * 60 + int(offset_minutes)) * (-60 if sign == "-" else 60)
    if hour > 23 or minute > 59 or second > 60:
        raise _RefusedError(Reason.BAD_TIME)
    try:
        day = date(year, month, day_of_month).toordinal() - EPOCH_ORDINAL
    except ValueError:
        raise _RefusedError(Reason.BAD_TIME) from None
    at_us = day * DAY_US + (hour * 3600 + minute * 60 + second - east) * SECOND_US
    if second == 60:
        # The leap second ends a UTC day: it counts as that day's last microsecond.
        if at_us % DAY_US != 0:
            raise _RefusedError(Reason.BAD_TIME)
        return at_us - 1
    return at_us + int(f"{fraction or ''}000000"[:6])


def _amount(text: str) -> int:
    match = AMOUNT.fullmatch(text)
    if match is None:
        raise _RefusedError(Reason.BAD_AMOUNT)
    sign, units, fraction = match[1], match[2].lstrip("0"), match[3] or ""
    if len(units) > UNIT_DIGITS_MAX:
        raise _RefusedError(Reason.AMOUNT_OUT_OF_RANGE)
    if len(fraction) > FRACTION_DIGITS_MAX:
        raise _RefusedError(Reason.AMOUNT_PRECISION)
    return int(f"{sign}{units or '0'}{fraction:0<6}")


def _may_be_customer(customer: str) -> bool:
    controls = any(c < " " or "\x7f" <= c <= "\x9f" for c in customer)
    return 1 <= len(customer.encode()) <= CUSTOMER_BYTES_MAX and customer not in (".", "..") and not controls
