"""Many input lines at once: decoded, checked and valued in columns.

The fast path accepts a line only where it is certain; every other line goes to exact.judge. So bad
rows cost their own time and not their neighbours', and both paths agree on every input.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opentab.events import CUSTOMER_BYTES_MAX, NESTING_MAX, Rules
from opentab.keys import key_of, keys_of, payloads_of, with_key
from opentab.money import AMOUNT_DIGITS_MAX
from opentab.periods import (
    DAY_MAX,
    DAY_MIN,
    DAY_US,
    INSTANT_MAX_US,
    INSTANT_MIN_US,
    SECOND_US,
    Calendar,
    Int64s,
)
from opentab.pipeline.exact import Event, Refusal, is_blank, judge

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

AMOUNT_TEXT_MAX = 20  # an amount of 9 digits, sign, point, 6 decimals and quotes fits
TIME_TEXT_MAX = 32  # RFC 3339 with 6 decimals and an offset
# Four keys and two texts are there in every plain event that the fast path takes.
QUOTES_BASE = 2 * 4 + 2 * 2


# Rows hold no cycles, and the garbage collector has better things to do than to look at each.
class _Plain(msgspec.Struct, gc=False):
    time: str | int
    customer: str
    type: str
    amount: msgspec.Raw
    id: str | None = None
    currency: str | None = None
    reverses: None = None  # one that reverses is looked at more closely


class _Data(msgspec.Struct, gc=False):
    type: str
    amount: msgspec.Raw
    currency: str | None = None
    reverses: None = None


class _Envelope(msgspec.Struct, gc=False):
    specversion: str
    time: str | int
    subject: str
    data: _Data
    id: str | None = None
    source: str | None = None


_decode_plain = msgspec.json.Decoder(_Plain).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_any = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells events from their repeats, as columns beside theirs."""

    line: Int64s  # the index of the line that each stands in
    has_key: Bools
    key_high: Int64s
    key_low: Int64s
    payload: Int64s
    reversals: dict[int, Event]  # by the index of the event


@dataclass(frozen=True, slots=True)
class Decoded:
    """The events among some lines, as columns, and the rejections, by line."""

    at_us: Int64s
    day: Int64s
    customer: pa.Array  # string
    type: pa.Array  # string
    amount_micros: Int64s
    refusals: list[tuple[int, Refusal]]  # index of the line, why
    identity: Identity | None = None  # None where every event counts

    def keep(self, kept: Bools) -> Decoded:
        """Only some of the events."""
        if kept.all():
            return self
        mask = pa.array(kept)
        return Decoded(
            self.at_us[kept],
            self.day[kept],
            self.customer.filter(mask),
            self.type.filter(mask),
            self.amount_micros[kept],
            self.refusals,
        )


def decode(lines: Sequence[bytes], *, arrived_us: Int64s, rules: Rules, calendar: Calendar) -> Decoded:
    """Decide what each line is: the same verdict and values as exact.judge, many at a time.

    `arrived_us` holds the arrival time of each line.
    """
    parsed = _parse(lines)
    columns, sure, amount_is_text = _columns(parsed.fields, arrived_us[parsed.at], rules, calendar)
    sure &= _keys_are_unique(lines, parsed, amount_is_text)
    doubtful = parsed.doubtful
    if not sure.all():
        doubtful = sorted(doubtful + parsed.at[~sure].tolist())
    events, refusals = _judge_each(lines, doubtful, arrived_us, rules, calendar)
    decoded = _joined(columns, sure, [event for _, event in events], refusals)
    if not rules.dedupe_us:
        return decoded
    return replace(decoded, identity=_identity(parsed, sure, events, decoded))


class _Fields(NamedTuple):
    """The fields of all rows, each as one column."""

    times: list[str | int]
    customers: list[str]
    types: list[str]
    amounts: list[msgspec.Raw]
    ids: list[str | None]
    currencies: list[str | None]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """Lines that fit one of the two forms, the index of each, and those that need a closer look."""

    fields: _Fields
    at: Int64s
    enveloped: dict[int, str | None]  # rows that came in a CloudEvents envelope, and its source
    doubtful: list[int]


@dataclass(frozen=True, slots=True)
class _Columns:
    at_us: Int64s
    day: Int64s
    amount_micros: Int64s
    customer: pa.Array
    type: pa.Array


def _judge_each(
    lines: Sequence[bytes],
    indexes: Sequence[int],
    arrived_us: Int64s,
    rules: Rules,
    calendar: Calendar,
) -> tuple[list[tuple[int, Event]], list[tuple[int, Refusal]]]:
    events: list[tuple[int, Event]] = []
    refusals: list[tuple[int, Refusal]] = []
    for index in indexes:
        if is_blank(lines[index]):
            continue
        verdict = judge(lines[index], arrived_us=int(arrived_us[index]), rules=rules, calendar=calendar)
        if isinstance(verdict, Event):
            events.append((index, verdict))
        else:
            refusals.append((index, verdict))
    return events, refusals


def _parse(lines: Sequence[bytes]) -> _Parsed:
    rows: list[_Plain] = []
    enveloped: dict[int, str | None] = {}
    doubtful: list[int] = []
    add = rows.append
    for index, line in enumerate(lines):
        try:
            add(_decode_plain(line))
        except _UNREADABLE:
            envelope = _unwrapped(line) if b'"specversion"' in line else None
            if envelope is None:
                doubtful.append(index)
            else:
                enveloped[len(rows)] = envelope.source
                data = envelope.data
                add(_Plain(envelope.time, envelope.subject, data.type, data.amount, envelope.id, data.currency))
    at = np.arange(len(lines))
    fields = _Fields(*(list(map(get, rows)) for get in _FIELDS))
    return _Parsed(fields, np.delete(at, doubtful) if doubtful else at, enveloped, doubtful)


def _unwrapped(line: bytes) -> _Envelope | None:
    """A CloudEvents envelope, where it is certainly one."""
    try:
        envelope = _decode_envelope(line)
    except _UNREADABLE:
        return None
    return envelope if envelope.specversion == "1.0" else None


def _keys_are_unique(lines: Sequence[bytes], parsed: _Parsed, amount_is_text: Bools) -> Bools:
    """Which rows certainly have no key twice, and no key that would change their meaning.

    Every key costs two quotes and every text two. A line that has just the quotes its known fields
    need can hold no other key. For the rest, the same count is made over all that the line holds.
    """
    quotes = np.fromiter(map(_count_quotes, lines), np.int64, len(lines))[parsed.at]
    fields = parsed.fields
    count = len(parsed.at)
    needed = QUOTES_BASE + 2 * _are(str, fields.times) + 4 * ~_are(NoneType, fields.ids)
    if fields.currencies.count(None) < count:
        needed += 4 * ~_are(NoneType, fields.currencies)
    unique: Bools = quotes == needed + 2 * amount_is_text
    if parsed.enveloped:
        unique[list(parsed.enveloped)] = False
    for i in np.flatnonzero(~unique):
        line = lines[parsed.at[i]]
        unique[i] = _accounts_for(line, int(quotes[i]), enveloped=int(i) in parsed.enveloped)
    return unique


def _accounts_for(line: bytes, quotes: int, *, enveloped: bool) -> bool:
    """Whether one reading of the line, with every key once, needs all of its quotes."""
    try:
        value = _decode_any(line)
    except _UNREADABLE:
        return False
    return ("specversion" in value) == enveloped and _quotes(value, 1) == quotes


def _quotes(value: Any, depth: int) -> int:
    if type(value) is str:
        return 2
    if type(value) is dict:
        inside = sum(_quotes(item, depth + 1) for item in value.values())
        return 2 * len(value) + inside if depth <= NESTING_MAX else _NEVER
    if type(value) is list:
        return sum(_quotes(item, depth + 1) for item in value) if depth <= NESTING_MAX else _NEVER
    return 0


def _columns(fields: _Fields, arrived_us: Int64s, rules: Rules, calendar: Calendar) -> tuple[_Columns, Bools, Bools]:
    """The rows' values, which of the rows are certainly right, and which amounts are texts."""
    at_us, sure = _instants(fields.times)
    day = calendar.days_of(at_us)
    sure &= (day >= DAY_MIN) & (day <= DAY_MAX)
    sure &= (at_us >= INSTANT_MIN_US) & (at_us <= INSTANT_MAX_US)
    sure &= at_us <= arrived_us + rules.future_skew_us
    amount_micros, amount_ok, amount_is_text = _amounts(fields.amounts)
    customer, customer_ok = _customers(fields.customers)
    kind = _strings(fields.types)
    sure &= amount_ok & customer_ok & _to_bools(pc.is_in(kind, value_set=_strings(rules.types)))
    if fields.currencies.count(None) < len(fields.currencies):
        ours = (currency is None or currency == rules.currency for currency in fields.currencies)
        sure &= np.fromiter(ours, np.bool_, len(fields.currencies))
    return _Columns(at_us, day, amount_micros, customer, kind), sure, amount_is_text


def _instants(times: Sequence[str | int]) -> tuple[Int64s, Bools]:
    """RFC 3339 texts and whole milliseconds as instants, and which of them are certain."""
    count = len(times)
    is_text = _are(str, times)
    if is_text.all():
        return _rfc3339(_strings(times))
    at_us = np.zeros(count, np.int64)
    sure = np.zeros(count, np.bool_)
    texts = np.flatnonzero(is_text)
    at_us[texts], sure[texts] = _rfc3339(_strings([times[int(i)] for i in texts]))
    for i in np.flatnonzero(~is_text):
        milliseconds = times[int(i)]
        if isinstance(milliseconds, int) and abs(milliseconds) < _MILLISECONDS_MAX:
            at_us[i], sure[i] = milliseconds * 1000, True
    return at_us, sure


def _rfc3339(texts: pa.Array) -> tuple[Int64s, Bools]:
    """The common shapes of RFC 3339; lower case, leap seconds and the like are left to exact."""
    text, size = _text_matrix(texts, TIME_TEXT_MAX)
    count = len(size)
    sure = (size >= 20) & (size <= TIME_TEXT_MAX)
    for column, mark in ((4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")):
        sure &= text[:, column] == ord(mark)

    def number(*columns: int) -> Int64s:
        nonlocal sure
        value = np.zeros(count, np.int64)
        for column in columns:
            digit = text[:, column] - np.uint8(48)
            sure &= digit < 10
            value = value * 10 + digit
        return value

    year, month, day = number(0, 1, 2, 3), number(5, 6), number(8, 9)
    hour, minute, second = number(11, 12), number(14, 15), number(17, 18)
    sure &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    sure &= day <= _MONTH_DAYS[np.clip(month, 0, 12)] + ((month == 2) & leap)
    sure &= (hour <= 23) & (minute <= 59) & (second <= 59)
    at_us = _days_from_civil(year, month, day) * DAY_US
    at_us += ((hour * 60 + minute) * 60 + second) * SECOND_US

    # The fraction, then what stands behind it, column by column.
    end = np.full(count, 19)
    inside = text[:, 19] == ord(".")
    end += inside
    scale = 100_000
    for column in range(20, 26):
        digit = text[:, column] - np.uint8(48)
        inside &= digit < 10
        at_us += np.where(inside, digit.astype(np.int64) * scale, 0)
        end += inside
        scale //= 10
    sure &= end != 20  # a point needs a digit behind it
    zulu = (text[np.arange(count), end] == ord("Z")) & (size == end + 1)
    if not zulu.all():
        offset_us, offset_is_sure = _offsets(text, size, end)
        at_us -= np.where(zulu, 0, offset_us)
        sure &= zulu | offset_is_sure
    return at_us, sure


def _offsets(text: Bytes, size: Int64s, end: Int64s) -> tuple[Int64s, Bools]:
    """The offset from UTC that stands at `end`, in microseconds, and which of them are certain."""
    rows = np.arange(len(size))
    marks = [text[rows, np.minimum(end + k, text.shape[1] - 1)] for k in range(6)]
    digits = [marks[k].astype(np.int64) - 48 for k in (1, 2, 4, 5)]
    sure: Bools = (size == end + 6) & ((marks[0] == ord("+")) | (marks[0] == ord("-")))
    sure &= marks[3] == ord(":")
    for digit in digits:
        sure &= (digit >= 0) & (digit <= 9)
    hours, minutes = digits[0] * 10 + digits[1], digits[2] * 10 + digits[3]
    sure &= (hours <= 23) & (minutes <= 59)
    offset_us = (hours * 60 + minutes) * 60 * SECOND_US
    return np.where(marks[0] == ord("-"), -offset_us, offset_us), sure


def _days_from_civil(year: Int64s, month: Int64s, day: Int64s) -> Int64s:
    """Days since 1970-01-01 in the Gregorian calendar, counting years from March."""
    year = year - (month <= 2)
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    days: Int64s = era * 146_097 + day_of_era - 719_468
    return days


def _amounts(raws: Sequence[msgspec.Raw]) -> tuple[Int64s, Bools, Bools]:
    """The texts of the amounts as micros, which are certain, and which stood in quotes."""
    text, size = _raw_matrix(raws, AMOUNT_TEXT_MAX)
    count = len(size)
    sure = size <= AMOUNT_TEXT_MAX
    is_text = text[:, 0] == ord('"')
    size = size - is_text  # the closing quote
    first = is_text.astype(np.int64)
    sign = text[np.arange(count), first]
    negative = sign == ord("-")
    first += negative | (sign == ord("+"))

    micros = np.zeros(count, np.int64)
    digits = np.zeros(count, np.int64)
    decimals = np.zeros(count, np.int64)
    points = np.zeros(count, np.int64)
    for column in range(int(size.max(initial=0)) if count else 0):
        if column >= AMOUNT_TEXT_MAX:
            break
        inside = (column >= first) & (column < size)
        digit = text[:, column] - np.uint8(48)
        is_digit = inside & (digit < 10)
        is_point = inside & (text[:, column] == ord(".")) & (digits > 0)
        sure &= ~inside | is_digit | is_point
        micros = np.where(is_digit, micros * 10 + digit, micros)
        digits += is_digit
        decimals += is_digit & (points > 0)
        points += is_point
    sure &= (points == 0) | ((points == 1) & (decimals > 0))
    sure &= (digits > 0) & (decimals <= 6) & (digits - decimals <= AMOUNT_DIGITS_MAX)
    micros *= _POWERS[np.clip(6 - decimals, 0, 6)]
    return np.where(negative, -micros, micros), sure, is_text


def _customers(customers: Sequence[str]) -> tuple[pa.Array, Bools]:
    names = _strings(customers)
    size = _to_numpy(pc.binary_length(names))
    sure = (size >= 1) & (size <= CUSTOMER_BYTES_MAX)
    data = np.frombuffer(names.buffers()[2] or b"", np.uint8)
    # 0xC2 leads U+0080 to U+009F, control characters too, among others.
    if ((data < 32) | (data == 127) | (data == 0xC2)).any():
        sure &= ~_to_bools(pc.match_substring_regex(names, r"[\x00-\x1f\x7f-\x{9f}]"))
    short = np.flatnonzero(size <= 2)
    for i in short:
        sure[i] &= customers[int(i)] not in (".", "..")
    return names, sure


def _joined(columns: _Columns, sure: Bools, slow: list[Event], refusals: list[tuple[int, Refusal]]) -> Decoded:
    at_us, day, micros = columns.at_us, columns.day, columns.amount_micros
    customer, kind = columns.customer, columns.type
    if not sure.all():
        keep = pa.array(sure)
        at_us, day, micros = at_us[sure], day[sure], micros[sure]
        customer, kind = customer.filter(keep), kind.filter(keep)
    if slow:
        at_us = np.append(at_us, [event.at_us for event in slow])
        day = np.append(day, [event.day for event in slow])
        micros = np.append(micros, [event.amount_micros for event in slow])
        customer = pa.concat_arrays([customer, _strings([event.customer for event in slow])])
        kind = pa.concat_arrays([kind, _strings([event.type for event in slow])])
    return Decoded(at_us, day, customer, kind, micros, refusals)


def _identity(parsed: _Parsed, sure: Bools, slow: list[tuple[int, Event]], decoded: Decoded) -> Identity:
    """The keys and payloads of the events, in the order of the columns: sure rows first, then those judged."""
    ids, sources = parsed.fields.ids, parsed.enveloped
    kept = np.flatnonzero(sure)
    texts = ids if len(kept) == len(ids) else [ids[row] for row in kept.tolist()]
    texts = texts + [event.id for _, event in slow]
    sourced = {at: sources[row] for at, row in enumerate(kept.tolist()) if row in sources} if sources else {}
    sourced |= {len(kept) + at: event.source for at, (_, event) in enumerate(slow)}
    named = None not in texts
    high, low = keys_of(texts if named else [text or "" for text in texts])
    for at, source in sourced.items():
        text = texts[at]
        if source is not None and text:
            high[at], low[at] = key_of(text, source)
    payload = payloads_of(decoded.at_us, decoded.amount_micros, decoded.customer, decoded.type)
    reversals = {len(kept) + at: event for at, (_, event) in enumerate(slow) if event.reverses is not None}
    for at, event in reversals.items():
        payload[at] = with_key(int(payload[at]), key_of(event.reverses or "", event.source))
    return Identity(
        line=np.concatenate([parsed.at[sure], np.fromiter((line for line, _ in slow), np.int64)]),
        has_key=np.ones(len(texts), np.bool_)
        if named and "" not in texts
        else np.fromiter(map(bool, texts), np.bool_, len(texts)),
        key_high=high,
        key_low=low,
        payload=payload,
        reversals=reversals,
    )


def _matrix(data: Bytes, start: Int64s, size: Int64s, width: int) -> Bytes:
    """The texts at `start` as rows of bytes, cut or filled up to `width`."""
    padded = np.concatenate([data, np.zeros(width, np.uint8)])
    text = np.lib.stride_tricks.sliding_window_view(padded, width)[start]
    text[np.arange(width)[None, :] >= size[:, None]] = 0
    return text


def _text_matrix(texts: pa.Array, width: int) -> tuple[Bytes, Int64s]:
    """Texts as rows of bytes, and how long each one is."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[: len(texts) + 1].astype(np.int64)
    size = np.diff(offsets)
    return _matrix(np.frombuffer(texts.buffers()[2] or b"", np.uint8), offsets[:-1], size, width), size


def _raw_matrix(raws: Sequence[msgspec.Raw], width: int) -> tuple[Bytes, Int64s]:
    """Raw JSON values as rows of bytes, and how long each one is."""
    joined = b"\n".join(raws)
    data = np.frombuffer(joined, np.uint8)
    end = np.append(np.flatnonzero(data == ord("\n")), len(joined))
    if len(end) != len(raws):  # a newline within a value: JSON allows it, our own log has none
        return _text_matrix(pa.array([bytes(raw) for raw in raws], pa.binary()), width)
    start = np.append([0], end[:-1] + 1)
    return _matrix(data, start, end - start, width), end - start


def _are(kind: type, values: Sequence[object]) -> Bools:
    """Which of the values are of just this type."""
    return np.fromiter(map(partial(operator.is_, kind), map(type, values)), np.bool_, len(values))


def _strings(texts: Sequence[Any]) -> pa.Array:
    return pa.array(texts, pa.string())


def _to_numpy(array: pa.Array) -> Int64s:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.int64)


def _to_bools(array: pa.Array) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


_count_quotes = operator.methodcaller("count", b'"')
_FIELDS = [operator.attrgetter(name) for name in ("time", "customer", "type", "amount", "id", "currency")]
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NEVER = -(2**60)  # no count of quotes comes near it
_MILLISECONDS_MAX = 10**15
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_POWERS = 10 ** np.arange(7)
