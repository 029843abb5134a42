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
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.core.events import NESTING_MAX, Rules
from opentab.core.periods import DAY_MAX, DAY_MIN, INSTANT_MAX_US, INSTANT_MIN_US, Calendar, Int64s
from opentab.wire.byte_columns import Bools, Texts
from opentab.wire.hashing import key_of, keys_of, payloads_of, with_key
from opentab.wire.reference import Event, Refusal, is_blank, judge
from opentab.wire.template import Formed, formed
from opentab.wire.values import are_customers, instants_of, micros_of

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
    type: pa.Array  # string, each once in a dictionary of the rules' types
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


def decode(lines: Texts, *, arrived_us: Int64s, rules: Rules, calendar: Calendar) -> Decoded:
    """Decide what each line is: the same verdict and values as exact.judge, many at a time.

    1. lines that are written alike are read together, 2. the others one by one, 3. what is not certain is judged

    `arrived_us` holds the arrival time of each line.
    """
    whole, lines = lines, _without_long(lines, rules.event_bytes_max)
    alike, others = formed(lines)
    parts = [_part_of(one, arrived_us[one.at], rules, calendar) for one in alike]
    doubtful: list[int] = []
    if len(others) or not parts:
        parsed = _parse(lines, others)
        parts.append(_parsed_part(lines, parsed, arrived_us[parsed.at], rules, calendar))
        doubtful = parsed.doubtful
    doubtful += [line for part in parts for line in part.at[~part.sure].tolist()]
    parts = [_certain(part) for part in parts]
    events, refusals = _judge_each(whole, sorted(doubtful), arrived_us, rules, calendar)
    decoded = _joined(parts, [event for _, event in events], refusals, rules.types)
    if not rules.dedupe_us:
        return decoded
    return replace(decoded, identity=_identity(parts, events, decoded, rules.types))


class _Fields(NamedTuple):
    """The fields of lines that were read one by one, each as one column."""

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
class _Part:
    """Lines that were read together: the index and the values of each, and which are certainly right."""

    at: Int64s
    sure: Bools
    at_us: Int64s
    day: Int64s
    amount_micros: Int64s
    customer: pa.Array
    names: Texts  # the customers again
    type_at: Int64s  # its place among the rules' types
    ids: Texts | None  # empty where there is none; None: nowhere
    sources: dict[int, str | None]  # of the rows that came in an envelope


def _without_long(lines: Texts, bytes_max: int) -> Texts:
    """Lines that are too long are left empty, so the fast path reads nothing of them and is sure of none."""
    return Texts(lines.data, lines.start, np.where(lines.size <= bytes_max, lines.size, 0))


def _judge_each(
    lines: Texts,
    indexes: Sequence[int],
    arrived_us: Int64s,
    rules: Rules,
    calendar: Calendar,
) -> tuple[list[tuple[int, Event]], list[tuple[int, Refusal]]]:
    events: list[tuple[int, Event]] = []
    refusals: list[tuple[int, Refusal]] = []
    for index in indexes:
        line = lines[index]
        if is_blank(line):
            continue
        verdict = judge(line, arrived_us=int(arrived_us[index]), rules=rules, calendar=calendar)
        if isinstance(verdict, Event):
            events.append((index, verdict))
        else:
            refusals.append((index, verdict))
    return events, refusals


def _part_of(formed: Formed, arrived_us: Int64s, rules: Rules, calendar: Calendar) -> _Part:
    """The values of lines that are written alike."""
    fields = formed.fields
    at_us, sure = instants_of(fields["time"])
    amount_micros, amount_ok = micros_of(fields["amount"], is_text=formed.amount_is_text)
    sure &= amount_ok
    if "currency" in fields:
        sure &= fields["currency"].are(rules.currency.encode())
    customer, kind = fields["customer"].to_array(), fields["type"].to_array()
    return _checked(
        formed.at, sure, at_us, amount_micros, customer, kind, fields.get("id"), {}, arrived_us, rules, calendar
    )


def _parsed_part(lines: Texts, parsed: _Parsed, arrived_us: Int64s, rules: Rules, calendar: Calendar) -> _Part:
    """The values of lines that were read one by one."""
    fields = parsed.fields
    at_us, sure = _instants(fields.times)
    raws = Texts.of(fields.amounts)
    is_text = raws.byte(0) == ord('"')
    amounts = Texts(raws.data, raws.start + is_text, raws.size - 2 * is_text)
    amount_micros, amount_ok = micros_of(amounts, is_text=is_text)
    sure &= amount_ok & _keys_are_unique(lines, parsed, is_text)
    if fields.currencies.count(None) < len(fields.currencies):
        ours = (currency is None or currency == rules.currency for currency in fields.currencies)
        sure &= np.fromiter(ours, np.bool_, len(fields.currencies))
    customer, kind = _strings(fields.customers), _strings(fields.types)
    ids = Texts.of_array(_strings(fields.ids)) if rules.dedupe_us else None
    return _checked(
        parsed.at, sure, at_us, amount_micros, customer, kind, ids, parsed.enveloped, arrived_us, rules, calendar
    )


def _checked(
    at: Int64s, sure: Bools, at_us: Int64s, amount_micros: Int64s, customer: pa.Array, kind: pa.Array,
    ids: Texts | None, sources: dict[int, str | None], arrived_us: Int64s, rules: Rules, calendar: Calendar,
) -> _Part:  # fmt: skip
    """Values that are sure as texts, held against the calendar, the clock and the rules."""
    day = calendar.days_of(at_us)
    sure &= (day >= DAY_MIN) & (day <= DAY_MAX)
    sure &= (at_us >= INSTANT_MIN_US) & (at_us <= INSTANT_MAX_US)
    sure &= at_us <= arrived_us + rules.future_skew_us
    type_at = pc.fill_null(pc.index_in(kind, value_set=_strings(rules.types)), _NO_TYPE).to_numpy().astype(np.int64)
    names = Texts.of_array(customer)
    sure &= are_customers(customer, names) & (type_at != _NO_TYPE)
    return _Part(at, sure, at_us, day, amount_micros, customer, names, type_at, ids, sources)


def _parse(lines: Texts, at: Int64s) -> _Parsed:
    rows: list[_Plain] = []
    enveloped: dict[int, str | None] = {}
    doubtful: list[int] = []
    add = rows.append
    for index, line in zip(at.tolist(), lines.take(at), strict=True):
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
    fields = _Fields(*(list(map(get, rows)) for get in _FIELDS))
    return _Parsed(fields, np.setdiff1d(at, doubtful, assume_unique=True) if doubtful else at, enveloped, doubtful)


def _unwrapped(line: bytes) -> _Envelope | None:
    """A CloudEvents envelope, where it is certainly one."""
    try:
        envelope = _decode_envelope(line)
    except _UNREADABLE:
        return None
    return envelope if envelope.specversion == "1.0" else None


def _keys_are_unique(lines: Texts, parsed: _Parsed, amount_is_text: Bools) -> Bools:
    """Which rows certainly have no key twice, and no key that would change their meaning.

    Every key costs two quotes and every text two. A line that has just the quotes its known fields
    need can hold no other key. For the rest, the same count is made over all that the line holds.
    """
    count = len(parsed.at)
    quotes = np.fromiter(map(_count_quotes, lines.take(parsed.at)), np.int64, count)
    fields = parsed.fields
    needed = QUOTES_BASE + 2 * _are(str, fields.times) + 4 * ~_are(NoneType, fields.ids)
    if fields.currencies.count(None) < count:
        needed += 4 * ~_are(NoneType, fields.currencies)
    unique: Bools = quotes == needed + 2 * amount_is_text
    if parsed.enveloped:
        unique[list(parsed.enveloped)] = False
    for i in np.flatnonzero(~unique):
        line = lines[int(parsed.at[i])]
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


def _instants(times: Sequence[str | int]) -> tuple[Int64s, Bools]:
    """RFC 3339 texts and whole milliseconds as instants, and which of them are certain."""
    count = len(times)
    is_text = _are(str, times)
    if is_text.all():
        return instants_of(Texts.of_array(_strings(times)))
    at_us = np.zeros(count, np.int64)
    sure = np.zeros(count, np.bool_)
    texts = np.flatnonzero(is_text)
    at_us[texts], sure[texts] = instants_of(Texts.of_array(_strings([times[int(i)] for i in texts])))
    for i in np.flatnonzero(~is_text):
        milliseconds = times[int(i)]
        if isinstance(milliseconds, int) and abs(milliseconds) < _MILLISECONDS_MAX:
            at_us[i], sure[i] = milliseconds * 1000, True
    return at_us, sure


def _certain(part: _Part) -> _Part:
    """A part without the rows that are not sure."""
    sure = part.sure
    if sure.all():
        return part
    mask, row_of = pa.array(sure), np.cumsum(sure) - 1
    return _Part(
        part.at[sure],
        sure[sure],
        part.at_us[sure],
        part.day[sure],
        part.amount_micros[sure],
        part.customer.filter(mask),
        part.names.take(sure),
        part.type_at[sure],
        None if part.ids is None else part.ids.take(sure),
        {int(row_of[row]): source for row, source in part.sources.items() if sure[row]},
    )


def _joined(
    parts: Sequence[_Part], slow: list[Event], refusals: list[tuple[int, Refusal]], types: Sequence[str]
) -> Decoded:
    """The events of all parts, then those that were judged."""

    def numbers(name: Literal["at_us", "day", "amount_micros"]) -> Int64s:
        judged = np.array([getattr(event, name) for event in slow], np.int64)
        return np.concatenate([*(getattr(part, name) for part in parts), judged])

    customer = pa.concat_arrays([*(part.customer for part in parts), _strings([event.customer for event in slow])])
    judged = np.array([types.index(event.type) for event in slow], np.int64)
    type_at = np.concatenate([*(part.type_at for part in parts), judged])
    kind = pa.DictionaryArray.from_arrays(type_at.astype(np.int32), _strings(types))
    return Decoded(numbers("at_us"), numbers("day"), customer, kind, numbers("amount_micros"), refusals)


def _identity(
    parts: Sequence[_Part], slow: list[tuple[int, Event]], decoded: Decoded, types: Sequence[str]
) -> Identity:
    """The keys and payloads of the events, in the order of the columns."""
    keys = [_keys(part) for part in parts]
    payloads = [payloads_of(part.at_us, part.amount_micros, part.names, types, part.type_at) for part in parts]
    judged = [event.id or "" for _, event in slow]
    high, low = keys_of(judged)
    for at, (_, event) in enumerate(slow):
        if event.id and event.source is not None:
            high[at], low[at] = key_of(event.id, event.source)
    keys.append((high, low, np.array(list(map(bool, judged)), np.bool_)))
    first = len(decoded.at_us) - len(slow)
    type_at = np.array([types.index(event.type) for _, event in slow], np.int64)
    payloads.append(
        payloads_of(decoded.at_us[first:], decoded.amount_micros[first:], decoded.customer[first:], types, type_at)
    )
    payload = np.concatenate(payloads)
    reversals = {first + at: event for at, (_, event) in enumerate(slow) if event.reverses is not None}
    for at, event in reversals.items():
        payload[at] = with_key(int(payload[at]), key_of(event.reverses or "", event.source))
    lines = [part.at for part in parts]
    lines.append(np.array([line for line, _ in slow], np.int64))
    return Identity(
        line=np.concatenate(lines),
        has_key=np.concatenate([one[2] for one in keys]),
        key_high=np.concatenate([one[0] for one in keys]),
        key_low=np.concatenate([one[1] for one in keys]),
        payload=payload,
        reversals=reversals,
    )


def _keys(part: _Part) -> tuple[Int64s, Int64s, Bools]:
    """Both words of the keys of a part's rows, and which of them have one."""
    if part.ids is None:
        count = len(part.at)
        return np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.bool_)
    high, low = keys_of(part.ids)
    for row, source in part.sources.items():
        if source is not None and part.ids.size[row]:
            high[row], low[row] = key_of(part.ids[row].decode(), source)
    return high, low, part.ids.size > 0


def _are(kind: type, values: Sequence[object]) -> Bools:
    """Which of the values are of just this type."""
    return np.fromiter(map(partial(operator.is_, kind), map(type, values)), np.bool_, len(values))


def _strings(texts: Sequence[Any]) -> pa.Array:
    return pa.array(texts, pa.string())


_count_quotes = operator.methodcaller("count", b'"')
_FIELDS = [operator.attrgetter(name) for name in ("time", "customer", "type", "amount", "id", "currency")]
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NEVER = -(2**60)  # no count of quotes comes near it
_MILLISECONDS_MAX = 10**15
_NO_TYPE = -1
