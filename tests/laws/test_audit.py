"""The judge must be right about the wire by itself, and must find every single thing that is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from audit_ledger import FakeJournal, Ledger, at, envelope, failing, line
from law_examples import examples
from ledgers import SETTINGS, bill, new_home
from opentab.audit import trace, verify
from opentab.audit.days import DAY_US, LAST_DAY, Days, month_of_day, month_of_period, period_of_month
from opentab.audit.logs import Logs
from opentab.audit.raw import RawDirectory
from opentab.audit.recompute import recompute
from opentab.audit.shapes import select_counted, shape_of
from opentab.audit.wire import Counted, NotJsonError, decide, is_input, read
from opentab.core.events import UNBOUNDED_BYTES, Reason, Rules
from opentab.core.periods import Calendar, day_number, from_us, period_of_day, to_us
from opentab.core.records import BatchRecord
from opentab.ledger.journal import Journal
from opentab.runtime import config
from opentab.wire.reference import Refusal, judge

HOUR_US = 3_600_000_000
RULES = Rules(
    currency="EUR",
    zone="UTC",
    types=("CALL", "DATA"),
    future_skew_us=DAY_US,
    out_of_orderness_us=12 * HOUR_US,
    allowed_lateness_us=3 * DAY_US,
    idle_after_us=600_000_000,
)
ARRIVED_US = to_us(datetime(2026, 2, 1, tzinfo=UTC))
UTC_DAYS = Days("UTC")


def decided(raw: bytes, rules: Rules = RULES) -> Counted | Reason:
    return decide(raw, arrived_us=ARRIVED_US, rules=rules, days=Days(rules.zone))


def judged(raw: bytes, rules: Rules = RULES) -> Counted | Reason:
    verdict = judge(raw, arrived_us=ARRIVED_US, rules=rules, calendar=Calendar(rules.zone))
    if isinstance(verdict, Refusal):
        return verdict.reason
    names = (verdict.id, verdict.source, verdict.reverses)
    return Counted(verdict.at_us, verdict.day, verdict.customer, verdict.type, verdict.amount_micros, *names)


# --- the wire, by hand -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"}",
        b"]",
        b"{]",
        b"[}",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b'{"a":1,}',
        b'{"a"}',
        b'{"a":}',
        b'{"a" 1}',
        b"{1:1}",
        b'{"a":1 "b":2}',
        b"{} {}",
        b"1 1",
        b",",
        b":",
        b"nul",
        b"nulll",
        b"True",
        b"NaN",
        b"-Infinity",
        b"Infinity",
        b'{"a":NaN}',
        b"01",
        b"-",
        b"+1",
        b".5",
        b"5.",
        b"1e",
        b"0x1",
        b'"',
        b'"a',
        b'"\\"',
        b'"\\x"',
        b'"\\u12"',
        b'"\\u12g4"',
        b'"\\ud800"',
        b'"\\udc00"',
        b'"\\ud800x"',
        b'"\\ud800\\ud800\\udc00"',
        b'"\\udc00\\ud800"',
        b'"\t"',
        b'"\x00"',
        b"'a'",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\xaf"',
        b'"\xf4\x90\x80\x80"',
        b"\xef\xbb\xbf{}",
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":1}',
        b'[[{"x":{"a":1,"a":1}}]]',
        b'{"a":"\\ud83d"}',
        b'{"\\ud83d":1}',
        b"[" * 101 + b"]" * 101,
        b"\x0c{}",
        b"\xc2\xa0{}",
        b"/**/{}",
        b'"a"\x0b',
    ],
)
def test_what_is_not_strict_json(raw: bytes) -> None:
    with pytest.raises(NotJsonError):
        read(raw)
    assert decided(raw) is Reason.NOT_JSON
    assert judged(raw) is Reason.NOT_JSON


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b' {"a" : [ ] , "b":{ } }\r', {"a": [], "b": {}}),
        (b'["\\ud83d\\ude00\\u00e9\\/\\b\\f\\n\\r\\t\\"\\\\"]', ['😀é/\b\f\n\r\t"\\']),
        ('"\x7f\x85\u2028"'.encode(), "\x7f\x85\u2028"),
        (b"[true,false,null]", [True, False, None]),
        (b'[{"a":1},{"a":1}]', None),
        (b"[" * 100 + b"]" * 100, None),
        (b"-0.0e+00", None),
    ],
)
def test_what_is_strict_json(raw: bytes, value: Any) -> None:
    assert value is None or read(raw) == value
    assert decided(raw) is Reason.WRONG_TYPE or value is not None


GOOD_US = to_us(datetime(2026, 1, 31, 22, 15, 4, 120_000, tzinfo=UTC))


@pytest.mark.parametrize(
    ("raw", "at_us", "micros"),
    [
        (line(), GOOD_US, 125_000),
        (line(time="2026-01-31t23:15:04.12+01:00"), GOOD_US, 125_000),
        (line(time="2026-01-31 22:15:04.1200009999999z"), GOOD_US, 125_000),
        (line(time=GOOD_US // 1000), GOOD_US, 125_000),
        (line(time=-1), -1000, 125_000),
        (line(time="0001-01-01T00:00:00Z"), day_number(date(1, 1, 1)) * DAY_US, 125_000),
        (line(time="2016-12-31T23:59:60.5Z"), to_us(datetime(2017, 1, 1, tzinfo=UTC)) - 1, 125_000),
        (line(time="2017-01-01T05:29:60+05:30"), to_us(datetime(2017, 1, 1, tzinfo=UTC)) - 1, 125_000),
        (line(time="2026-02-02T00:00:00Z"), ARRIVED_US + DAY_US, 125_000),
        (line(amount="-0"), GOOD_US, 0),
        (line(amount="+000000000000999999999.999999"), GOOD_US, 999_999_999_999_999),
        (line(amount="-0.000001"), GOOD_US, -1),
        (line(amount=-3), GOOD_US, -3_000_000),
        (line(id=None, currency=None, other={"a": [1]}), GOOD_US, 125_000),
        (line(customer="ä" * 128), GOOD_US, 125_000),
        (line(customer="a/..\u00a0"), GOOD_US, 125_000),
        (envelope(), GOOD_US - 120_000, 1_000_000),
        (envelope({"type": "CALL", "amount": 1, "currency": "EUR"}, type=5), GOOD_US - 120_000, 1_000_000),
    ],
)
def test_what_counts(raw: bytes, at_us: int, micros: int) -> None:
    verdict = decided(raw)
    assert isinstance(verdict, Counted), verdict
    assert (verdict.at_us, verdict.amount_micros) == (at_us, micros)
    assert judged(raw) == verdict


R = Reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"[]", R.WRONG_TYPE),
        (b'"text"', R.WRONG_TYPE),
        (b"null", R.WRONG_TYPE),
        (b"{}", R.MISSING_FIELD),
        (line(time=...), R.MISSING_FIELD),
        (line(amount=..., customer=5), R.MISSING_FIELD),
        (line(customer=None), R.WRONG_TYPE),
        (line(time=None), R.WRONG_TYPE),
        (line(time=True, amount="x"), R.WRONG_TYPE),
        (line(time=1.5), R.WRONG_TYPE),
        (line().replace(b'"2026-01-31T22:15:04.120Z"', b"1e3"), R.WRONG_TYPE),
        (line(amount=[1]), R.WRONG_TYPE),
        (line(amount=False), R.WRONG_TYPE),
        (line(id=7, time="x"), R.WRONG_TYPE),
        (line(currency=7), R.WRONG_TYPE),
        (line(specversion="1.0"), R.MISSING_FIELD),
        (envelope(5), R.WRONG_TYPE),
        (envelope(5, subject=...), R.MISSING_FIELD),
        (envelope({}, specversion="9"), R.MISSING_FIELD),
        (envelope(specversion="1.1"), R.WRONG_TYPE),
        (envelope(specversion=1.0), R.WRONG_TYPE),
        (envelope(specversion=None), R.WRONG_TYPE),
        (envelope({"type": "CALL", "amount": None}), R.WRONG_TYPE),
        (line(time="2026-01-31T22:15:04.120"), R.BAD_TIME),
        (line(time="2026-01-31T22:15:04.Z"), R.BAD_TIME),
        (line(time="2026-01-31  22:15:04Z"), R.BAD_TIME),
        (line(time="2026-02-29T22:15:04Z"), R.BAD_TIME),
        (line(time="2026-01-31T24:00:00Z"), R.BAD_TIME),
        (line(time="2026-01-31T22:15:60Z"), R.BAD_TIME),
        (line(time="2016-12-31T23:59:61Z"), R.BAD_TIME),
        (line(time="2016-12-31T23:59:60+00:01"), R.BAD_TIME),
        (line(time="2026-01-31T22:15:04+24:00"), R.BAD_TIME),
        (line(time="2026-01-31T22:15:04+01:60"), R.BAD_TIME),
        (line(time="2026-01-31T22:15:04+0100"), R.BAD_TIME),
        (line(time="2026-01-31T22:15:04Z\n"), R.BAD_TIME),
        (line(time="٢٠26-01-31T22:15:04Z"), R.BAD_TIME),
        (line(time="0000-12-31T22:15:04Z"), R.BAD_TIME),
        (line(time="0001-01-01T00:00:00+00:01"), R.BAD_TIME),
        (line(time="9999-12-31T23:59:59-00:01"), R.BAD_TIME),
        (line(time=10**18), R.BAD_TIME),
        (line(time=-(10**17)), R.BAD_TIME),
        (line(time="", amount="x"), R.BAD_TIME),
        (line(time="2026-02-02T00:00:00.000001Z", amount="x"), R.TIME_IN_FUTURE),
        (line(amount=""), R.BAD_AMOUNT),
        (line(amount="1e3"), R.BAD_AMOUNT),
        (line(amount=".5"), R.BAD_AMOUNT),
        (line(amount="5."), R.BAD_AMOUNT),
        (line(amount=" 5"), R.BAD_AMOUNT),
        (line(amount="1_0"), R.BAD_AMOUNT),
        (line(amount="٣"), R.BAD_AMOUNT),
        (line(amount=1e40), R.BAD_AMOUNT),
        (line(amount="1000000000.0000001"), R.AMOUNT_OUT_OF_RANGE),
        (line(amount=-1000000000), R.AMOUNT_OUT_OF_RANGE),
        (line(amount="0.0000000", currency="USD"), R.AMOUNT_PRECISION),
        (line(currency="eur", type="x"), R.CURRENCY_MISMATCH),
        (line(currency=""), R.CURRENCY_MISMATCH),
        (line(type="call", customer=""), R.UNKNOWN_TYPE),
        (line(customer=""), R.BAD_CUSTOMER),
        (line(customer="."), R.BAD_CUSTOMER),
        (line(customer=".."), R.BAD_CUSTOMER),
        (line(customer="a\x85"), R.BAD_CUSTOMER),
        (line(customer="a\x7f"), R.BAD_CUSTOMER),
        (line(customer="a\tb"), R.BAD_CUSTOMER),
        (line(customer="a" * 257), R.BAD_CUSTOMER),
        (line(customer="ä" * 128 + "a"), R.BAD_CUSTOMER),
    ],
)
def test_the_first_reason_that_applies(raw: bytes, reason: Reason) -> None:
    assert decided(raw) is reason
    assert judged(raw) is reason
    short = msgspec.structs.replace(RULES, event_bytes_max=len(raw) - 1)
    assert decided(raw, short) is judged(raw, short) is Reason.TOO_LARGE


def test_the_ends_of_the_calendar_are_those_of_the_zone() -> None:
    """An event's day lies in the years 1 to 9999, both in UTC and in the zone."""
    berlin = msgspec.structs.replace(RULES, zone="Europe/Berlin")
    start = day_number(date(1, 1, 1)) * DAY_US
    assert Days("Europe/Berlin").day_of(start) == day_number(date(1, 1, 1))
    assert Days("Europe/Berlin").day_of(start - 1) is None
    assert Days("America/New_York").day_of(start) is None
    end = (LAST_DAY + 1) * DAY_US - HOUR_US
    assert Days("Europe/Berlin").day_of(end - 1) == LAST_DAY
    assert Days("Europe/Berlin").day_of(end) is None
    assert decided(line(time="0001-01-01T00:00:00+01:00"), berlin) is Reason.BAD_TIME
    assert decided(line(time="9999-12-31T23:00:00Z"), berlin) is Reason.BAD_TIME


def test_no_input_takes_long() -> None:
    """Time grows with the length of a line and not with its square."""
    many = 200_000
    for raw in (
        b"[" * 101 + b'"' + b'\\"' * many,
        b"[]" * 101 + b'"' + b'\\"' * many,
        b"{" + b",".join(b'"%d":1' % i for i in range(many)) + b',"7":1}',
        b"[" * many,
        b'{"a":' * many,
        b'"' + b"\\u0061" * many,
        b"1" * many,
        b" " * many + b"x",
        b"-" * many,
    ):
        assert isinstance(decided(raw), Reason)


# --- the wire, by chance -----------------------------------------------------------------------

TEXTS = st.one_of(
    st.sampled_from(["", ".", "..", "emma", "CALL", "EUR", "1.0", "ä", "😀", "\x7f", "\x9f", "a b", "'"]),
    st.text(max_size=6),
)
TIMES = st.one_of(
    st.from_regex(
        r"20[0-9]{2}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,8})?"
        r"([Zz]|[+-][0-2][0-9]:[0-6][0-9])",
        fullmatch=True,
    ),
    st.sampled_from(["2016-12-31T23:59:60Z", "1969-12-31T23:59:59.999999Z", "2026-01-31T22:15:04+23:59"]),
    st.integers(-(10**14), 2 * 10**12),
    st.integers(-(10**20), 10**20),
    st.integers(-(3 * 10**16), 4 * 10**15).map(lambda us: from_us(us).replace(tzinfo=None).isoformat() + "Z"),
)
AMOUNTS = st.one_of(
    st.from_regex(r"[+-]?[0-9]{1,11}(\.[0-9]{1,8})?", fullmatch=True),
    st.decimals(allow_nan=False, allow_infinity=False, places=6).map(str),
    st.integers(-(10**10), 10**10),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
FIELDS = st.fixed_dictionaries(
    {
        "time": TIMES | ANYTHING,
        "customer": TEXTS | ANYTHING,
        "type": st.sampled_from(["CALL", "DATA", "call"]) | ANYTHING,
        "amount": AMOUNTS | ANYTHING,
    },
    optional={
        "id": TEXTS | ANYTHING,
        "currency": st.sampled_from(["EUR", "USD"]) | ANYTHING,
        "source": TEXTS | ANYTHING,
        "reverses": TEXTS | ANYTHING,
        "reason": TEXTS | ANYTHING,
        "actor": TEXTS | ANYTHING,
        "more": ANYTHING,
    },
)


@st.composite
def hostile_lines(draw: st.DrawFn) -> bytes:
    fields = draw(FIELDS)
    if draw(st.integers(0, 4)) == 0:
        fields = {
            "specversion": draw(st.sampled_from(["1.0", "1.0", "1.0", "1", 1.0, None])),
            "time": fields["time"],
            "subject": fields["customer"],
            "id": fields.get("id"),
            "source": fields.get("source"),
            "data": draw(st.just(fields) | ANYTHING),
        }
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=1)):
        if draw(st.booleans()):
            del fields[name]
    ensure_ascii = draw(st.booleans())
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r:")]))
    text = json.dumps(fields, ensure_ascii=ensure_ascii, separators=separators)
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(raw)))
        piece = draw(st.sampled_from(
            [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"-", b"e", b".", b"\x00", b"\xff", b" ",
             b"\\u0041", b"\\ud800", b"null", b"NaN", b'"time":1,', b'"data":{},', b'"id":"a"', b"\r"]
        ))  # fmt: skip
        raw[at : at + draw(st.integers(0, 2))] = piece
    return bytes(raw).replace(b"\n", b" ")


ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "America/Havana", "America/Asuncion"]


@examples(600)
@given(hostile_lines(), st.sampled_from(ZONES), st.sampled_from([UNBOUNDED_BYTES, UNBOUNDED_BYTES, 80, 100]))
@example(b'{"time":1,"customer":"a","type":"CALL","amount":1,"amount":1}', "UTC", UNBOUNDED_BYTES)
def test_the_pipeline_and_the_audit_reach_the_same_verdict(raw: bytes, zone: str, limit: int) -> None:
    rules = msgspec.structs.replace(RULES, zone=zone, dedupe_us=DAY_US, event_bytes_max=limit)
    if is_input(raw):
        found = decided(raw, rules)
        if isinstance(found, Counted):
            found = replace(found, reason=None, actor=None)  # the pipeline sees that they are there, and no more
        assert found == judged(raw, rules)


CANONICAL = [
    line(),
    line(id="a"),
    line(time=5, currency="EUR"),
    json.dumps(json.loads(line(id="a")), separators=(",", ":")).encode(),
    json.dumps({"amount": 1.5, "type": "CALL", "customer": "c", "id": None, "time": "2026-01-31T22:15:04Z"}).encode(),
    envelope(),
    envelope(source="/x", reverses="not here"),
    line(reverses=None, reason="x"),
    envelope({"type": "CALL", "amount": "1", "currency": "EUR", "tags": [1, "x", True]}, extra={"time": "x"}),
]


@st.composite
def shaped_lines(draw: st.DrawFn) -> bytes:
    """Lines of the common shapes with any values, good and bad."""
    value = json.loads(draw(st.sampled_from(CANONICAL)))
    data = value.get("data", value)
    value["time"] = draw(TIMES)
    value["customer" if "customer" in value else "subject"] = draw(TEXTS)
    data["amount"] = draw(AMOUNTS)
    data["type"] = draw(st.sampled_from(["CALL", "DATA", "call"]))
    for name in ("id", "source"):
        if isinstance(value.get(name), str):
            value[name] = draw(TEXTS | st.none() | st.just(5))
    if data.get("reverses", ...) is None:
        data["reverses"] = draw(st.none() | TEXTS)
    if "currency" in data:
        data["currency"] = draw(st.sampled_from(["EUR", "EUR", "USD"]))
    text = json.dumps(value, ensure_ascii=False, separators=draw(st.sampled_from([(", ", ": "), (",", ":")])))
    raw = text.encode("utf-8", "replace")
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.sampled_from([b"", b'"', b"0", b" ", b"\\u0041", b"\r"])) + raw[at + 1 :]
    return raw.replace(b"\n", b" ")


SHAPES = [shape for raw in CANONICAL if (shape := shape_of(raw, keyed=True)) is not None]


def test_every_canonical_line_teaches_a_shape() -> None:
    assert len(SHAPES) == len(CANONICAL)
    assert shape_of(line(customer="\\u0041"), keyed=True) is None
    for raw in CANONICAL:
        shape = shape_of(raw, keyed=False)
        assert shape is not None and not {"id", "source"} & set(shape.names), "nobody asks for it"


@examples(60)
@given(st.lists(shaped_lines(), min_size=1, max_size=40), st.sampled_from([UNBOUNDED_BYTES, 80, 100]))
def test_what_sql_decides_python_decides_alike(lines: list[bytes], limit: int) -> None:
    rules = msgspec.structs.replace(RULES, event_bytes_max=limit)
    texts = [raw.decode("utf-8", "replace") for raw in lines]
    todo = pa.table(
        {
            "n": np.arange(len(texts)),
            "slice": np.zeros(len(texts), np.int64),
            "latest_us": np.full(len(texts), ARRIVED_US + RULES.future_skew_us),
            "line": pa.array([text + "\n" for text in texts], pa.large_string()),
        }
    )
    con = duckdb.connect()
    con.register("todo", todo)
    for shape in SHAPES:
        for n, _, at_us, *values in con.execute(select_counted(shape, rules, "todo")).fetchall():
            assert decided(texts[n].encode(), rules) == Counted(at_us, at_us // DAY_US, *values)


def test_sql_decides_all_regular_lines() -> None:
    """Were a shape never to fit, everything would still be right, and slow."""
    con = duckdb.connect()
    for raw, shape in zip(CANONICAL, SHAPES, strict=True):
        todo = pa.table({"n": [0], "slice": [0], "latest_us": [ARRIVED_US], "line": [raw.decode() + "\n"]})
        con.register("todo", todo)
        assert len(con.execute(select_counted(shape, RULES, "todo")).fetchall()) == 1


@pytest.mark.parametrize("amount", ["999999999.999999", "-999999999.999999", "1000000.000000", "0.000001"])
def test_sql_holds_every_amount(amount: str) -> None:
    raw = line(amount=amount)
    shape = shape_of(raw, keyed=True)
    assert shape is not None
    con = duckdb.connect()
    todo = pa.table({"n": [0], "slice": [0], "latest_us": [ARRIVED_US], "line": [raw.decode() + "\n"]})
    con.register("todo", todo)
    ((*_, micros, _, _),) = con.execute(select_counted(shape, RULES, "todo")).fetchall()
    assert Decimal(micros) == Decimal(amount).scaleb(6)


# --- days --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "around"),
    [
        ("UTC", date(2026, 1, 1)),
        ("America/St_Johns", date(2009, 11, 1)),
        ("America/St_Johns", date(2009, 3, 8)),
        ("Pacific/Apia", date(2011, 12, 30)),
        ("America/Havana", date(2026, 11, 1)),
        ("America/Havana", date(2026, 3, 8)),
        ("Europe/Berlin", date(2026, 3, 29)),
        ("Europe/Berlin", date(2026, 10, 25)),
        ("America/Asuncion", date(2023, 10, 1)),
        ("America/Asuncion", date(2023, 3, 26)),
        ("America/Juneau", date(1867, 10, 18)),
        ("Pacific/Kwajalein", date(1993, 8, 21)),
        ("Asia/Manila", date(1844, 12, 31)),
        ("Africa/Monrovia", date(1972, 1, 7)),
    ],
)
def test_days_agree_with_the_calendar(zone: str, around: date) -> None:
    days, calendar = Days(zone), Calendar(zone)
    middle = day_number(around)
    assert [days.start_us(d) for d in range(middle - 3, middle + 4)] == [
        calendar.day_start_us(d) for d in range(middle - 3, middle + 4)
    ]
    pieces = days.pieces(range(middle - 3, middle + 4))
    for at_us in range((middle - 2) * DAY_US, (middle + 3) * DAY_US, 7 * 60_000_000):
        day = days.day_of(at_us)
        assert day == calendar.day_of(at_us)
        assert [p[3] for p in pieces if p[1] <= at_us < p[2]] == [day]


@examples(300)
@given(st.sampled_from(ZONES), st.integers(-5 * 10**15, 5 * 10**15))
def test_any_instant_has_the_calendars_day_and_month(zone: str, at_us: int) -> None:
    day = Calendar(zone).day_of(at_us)
    assert Days(zone).day_of(at_us) == day
    period = period_of_day(day)
    assert period_of_month(month_of_day(day)) == period
    assert Days(zone).month_end_us(month_of_period(period)) == Calendar(zone).end_us(period)


# --- a home, and everything that can be wrong with it ------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Three batches of two partitions; the third brings emma an adjustment, long after January."""
    made = Ledger(tmp_path)
    made.arrive(at(10), line(time="2026-01-10T11:00:00Z", amount="5.00"), b"", b"nonsense")
    made.arrive(at(11), line(time="2026-01-11T11:00:00Z", customer="noah", amount="-1.000001"))
    made.arrive(at(11, 13), line(time="2026-01-11T12:00:00Z", type="DATA", amount="2"), partition="east")
    made.batch(default=(1, 2), east=(1, 1))
    made.arrive(at(10, 0, 3), line(time="2026-03-09T00:00:00Z", amount="7"), b"\xff\xfe", line(type="X"))
    made.batch(default=(3, 3))
    made.arrive(
        at(11, 0, 3),
        line(time="2026-01-31T22:59:59.999999Z", amount="0.5"),
        line(customer="\u00e9mma"),
        envelope(time="2026-01-31T23:00:00Z"),
    )
    made.batch(default=(4, 4))
    made.log.archive_upto({"default": 4, "east": 1})
    return made


def test_a_right_journal_agrees(ledger: Ledger) -> None:
    seen: list[tuple[int, int]] = []
    report = verify(ledger.home, ledger.journal, keep_totals=True, progress=lambda *x: seen.append(x))
    assert failing(report) == {}
    assert report.agrees
    assert [check.name for check in report.checks] == [
        "log", "batches", "entries", "rejections", "ids", "watermarks", "totals"
    ]  # fmt: skip
    assert all(check.compared > 0 for check in report.checks)
    assert (report.batches, report.events, report.rejections) == (3, 7, 3)
    assert report.amount_micros == 5_000_000 - 1_000_001 + 2_000_000 + 7_000_000 + 500_000 + 125_000 + 1_000_000
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert report.totals is not None
    rows = {(r["period"], r["customer"], r["type"], r["own_period"]): r for r in report.totals.to_pylist()}
    adjusted = rows["2026-03", "emma", "CALL", "2026-01"]
    assert (int(adjusted["amount_micros"]), adjusted["events"]) == (500_000, 1)
    # In Berlin, 23:00 UTC on the last of January is February, and that is beyond, too.
    assert ("2026-03", "emma", "CALL", "2026-02") in rows


def test_a_home_without_batches_agrees(tmp_path: Path) -> None:
    made = Ledger(tmp_path)
    assert verify(made.home, made.journal).agrees
    made.arrive(at(10), line())
    report = verify(made.home, made.journal)
    assert report.agrees
    assert report.not_yet_billed_segments == 1


def test_what_is_not_yet_billed_is_no_difference(ledger: Ledger) -> None:
    ledger.arrive(at(12, 0, 3), line())
    ledger.arrive(at(12, 0, 3), line(), partition="west")
    report = verify(ledger.home, ledger.journal)
    assert report.agrees
    assert report.not_yet_billed_segments == 2


def record_changed(ledger: Ledger, index: int, **changes: Any) -> None:
    records = ledger.journal.records
    records[index] = msgspec.structs.replace(records[index], **changes)


def one_micro(ledger: Ledger) -> None:
    ledger.journal.entry_rows[1]["amount_micros"] += 1


def missing_entry(ledger: Ledger) -> None:
    del ledger.journal.entry_rows[1]


def doubled_entry(ledger: Ledger) -> None:
    ledger.journal.entry_rows.append(ledger.journal.entry_rows[1])


def other_customer(ledger: Ledger) -> None:
    ledger.journal.entry_rows[1]["customer"] = "noah "


def moved_time(ledger: Ledger) -> None:
    ledger.journal.entry_rows[1]["last_at"] += 1


def changed_reason(ledger: Ledger) -> None:
    ledger.journal.rejection_rows[0]["reason"] = "bad_time"


def changed_raw(ledger: Ledger) -> None:
    ledger.journal.rejection_rows[0]["raw"] = b"nonsensf"


def moved_place(ledger: Ledger) -> None:
    ledger.journal.rejection_rows[0]["place"] += "0"


def moved_watermark(ledger: Ledger) -> None:
    record_changed(ledger, 1, watermark_us=ledger.journal.records[1].watermark_us + 1)  # type: ignore[operator]


def early_watermark(ledger: Ledger) -> None:
    record_changed(ledger, 1, watermark_us=ledger.journal.records[0].watermark_us)


def moved_newest(ledger: Ledger) -> None:
    record_changed(ledger, 0, newest_us=5)


def wrong_idle(ledger: Ledger) -> None:
    states = ledger.journal.records[1].partitions
    assert states["east"].idle
    east = msgspec.structs.replace(states["east"], idle=False)
    record_changed(ledger, 1, partitions=states | {"east": east})


def lost_partition(ledger: Ledger) -> None:
    record_changed(ledger, 1, partitions={"default": ledger.journal.records[1].partitions["default"]})


def damaged_segment(ledger: Ledger) -> None:
    path = ledger.log.find("default", 2)
    assert path
    path.write_bytes(path.read_bytes().replace(b"-1.000001", b"-1.000002"))


def removed_segment(ledger: Ledger) -> None:
    path = ledger.log.find("default", 2)
    assert path
    path.unlink()


def segment_of_another_number(ledger: Ledger) -> None:
    one, two = ledger.log.find("default", 1), ledger.log.find("default", 2)
    assert one
    assert two
    two.write_bytes(one.read_bytes())


def taken_twice(ledger: Ledger) -> None:
    record_changed(ledger, 1, taken={"default": (2, 3)})


def taken_gap(ledger: Ledger) -> None:
    record_changed(ledger, 0, taken={"default": (1, 1), "east": (1, 1)})


def batch_gap(ledger: Ledger) -> None:
    record_changed(ledger, 2, batch=4)


def wrong_count(ledger: Ledger) -> None:
    record_changed(ledger, 0, event_count=4)


def wrong_amount(ledger: Ledger) -> None:
    record_changed(ledger, 0, sum_micros="0")


def wrong_reasons(ledger: Ledger) -> None:
    record_changed(ledger, 0, rejections={"bad_time": 1})


ALL_BUT_REJECTIONS = {"log", "batches", "entries", "watermarks", "totals"}


@pytest.mark.parametrize(
    ("change", "names", "check", "says"),
    [
        (one_micro, {"entries", "totals"}, "entries", "'noah', CALL: the journal says -1.000000 in 1"),
        (one_micro, {"entries", "totals"}, "totals", "2026-01, customer 'noah': the journal says -1.000000,"),
        (missing_entry, {"entries", "totals"}, "entries", "'noah', CALL: the journal says nothing"),
        (doubled_entry, {"entries", "totals"}, "entries", "-2.000002 in 2 events"),
        (other_customer, {"entries", "totals"}, "entries", "'noah '"),
        (moved_time, {"entries"}, "entries", "'noah'"),
        (changed_reason, {"rejections"}, "rejections", "the journal says bad_time, the log says not_json"),
        (changed_raw, {"rejections"}, "rejections", "with other bytes"),
        (moved_place, {"rejections"}, "rejections", "the journal says nothing, the log says not_json"),
        (moved_watermark, {"watermarks"}, "watermarks", "batch 2, watermark: the journal says 2026-03-08"),
        (early_watermark, {"watermarks", "totals"}, "totals", "2026-01, customer 'emma'"),
        (moved_newest, {"watermarks"}, "watermarks", "batch 1, newest event"),
        (wrong_idle, {"watermarks"}, "watermarks", "batch 2, log partition 'east'"),
        (lost_partition, {"watermarks"}, "watermarks", "the journal says nothing"),
        (damaged_segment, ALL_BUT_REJECTIONS, "log",
         "segment 2 of log partition 'default' is damaged: its crc32"),
        (damaged_segment, ALL_BUT_REJECTIONS, "entries", "'noah'"),
        (removed_segment, ALL_BUT_REJECTIONS, "log", "'default' is gone"),
        (segment_of_another_number, ALL_BUT_REJECTIONS, "log", "its number"),
        (taken_twice, {"log", "batches", "entries", "totals"}, "log", "segments 2 to 2 were taken twice"),
        (taken_gap, ALL_BUT_REJECTIONS | {"ids"}, "log", "no batch took the segments 2 to 2"),
        (wrong_count, {"batches"}, "batches", "batch 1, events: the journal says 4, the log says 3"),
        (wrong_amount, {"batches"}, "batches", "amount: the journal says 0.000000, the log says 5.999999"),
        (wrong_reasons, {"batches"}, "batches", "batch 1, rejections"),
    ],
)  # fmt: skip
def test_each_change_is_found(
    ledger: Ledger, change: Callable[[Ledger], None], names: set[str], check: str, says: str
) -> None:
    change(ledger)
    report = verify(ledger.home, ledger.journal)
    assert not report.agrees
    found = failing(report)
    assert set(found) == names
    assert any(says in sample for sample in found[check]), found[check]


def test_a_gap_in_the_batches_is_found(ledger: Ledger) -> None:
    batch_gap(ledger)
    assert "batch 4 stands where batch 3 should" in failing(verify(ledger.home, ledger.journal))["batches"]


def test_a_pipeline_at_work_is_no_difference(ledger: Ledger) -> None:
    """Batches that are committed while we read are left for the next time."""

    class Moving(FakeJournal):
        calls = 0

        def batches(self) -> list[BatchRecord]:
            self.calls += 1
            return self.records[: 2 if self.calls == 1 else 3]

    now = ledger.journal
    moving = Moving(now.records, now.entry_rows, now.rejection_rows, now.seen_rows)
    report = verify(ledger.home, moving)
    assert failing(report) == {}
    assert (report.batches, report.not_yet_billed_segments) == (2, 1)


def test_rows_of_no_batch_are_found(ledger: Ledger) -> None:
    ledger.journal.entry_rows.append(ledger.journal.entry_rows[0] | {"batch": 9, "customer": "ghost"})
    found = failing(verify(ledger.home, ledger.journal))
    assert set(found) == {"entries", "totals"}
    assert "'ghost'" in found["entries"][0]


def test_differences_are_counted_in_full_and_shown_in_part(tmp_path: Path) -> None:
    made = Ledger(tmp_path)
    made.arrive(at(31, 23), *(line(customer=f"c{i:02d}") for i in range(50)))
    made.batch(default=(1, 1))
    made.journal.entry_rows.clear()
    entries = next(c for c in verify(made.home, made.journal).checks if c.name == "entries")
    assert (entries.compared, entries.differences, len(entries.samples)) == (50, 50, 20)


def test_the_expected_bills(ledger: Ledger) -> None:
    ledger.home.expected_path.mkdir()
    bills = ledger.home.expected_path / "bills.csv"
    right = (
        "period,customer,total\n2026-01,emma,7.500000\n2026-01,noah,-1.000001\n"
        '2026-01,"émma",0.125000\n2026-02,emma,1.000000\n2026-03,emma,7.000000\n'
    )
    bills.write_text(right)
    report = verify(ledger.home, ledger.journal)
    assert failing(report) == {}
    assert report.checks[-1].name == "expected bills"
    assert report.checks[-1].compared == 5
    bills.write_text(right.replace("-1.000001", "-1.000000"))
    assert failing(verify(ledger.home, ledger.journal)) == {
        "expected bills": ["2026-01, customer 'noah': the expected bill says -1.000000, the log says -1.000001"]
    }
    assert verify(ledger.home, ledger.journal, expected=False).agrees


def test_a_long_log_learns_its_shapes_and_agrees(tmp_path: Path) -> None:
    made = Ledger(tmp_path, zone="America/St_Johns")
    for part in range(4):
        lines = []
        for i in range(600):
            time = datetime(2026, 1, 1 + (i * 7 + part) % 28, i % 24, i % 60, tzinfo=UTC)
            raw = line(time=time.isoformat(), id=f"{part}-{i}", customer=f"c{i % 7}", amount=f"{i}.{part:06d}")
            if i % 50 == 0:
                raw = [b"{", b"\xff", line(type="X"), line(customer="\u00e9"), b" \r"][i // 50 % 5]
            elif i % 3 == 0:
                raw = envelope({"type": "DATA", "amount": i / 4}, time=int(time.timestamp() * 1000))
            lines.append(raw)
        made.arrive(at(31) + timedelta(hours=part), *lines)
    made.batch(default=(1, 1))
    made.batch(default=(2, 4))
    report = verify(made.home, made.journal)
    assert failing(report) == {}
    assert report.events == made.journal.records[0].event_count + made.journal.records[1].event_count


def test_each_batch_is_held_against_the_largest_event_of_its_own_rules(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")

    def bill_with(limit: str, long: int) -> dict[str, int]:
        (home.path / "opentab.toml").write_text(SETTINGS + limit)
        lines = [line(id=f"{limit}-{n}", customer="c" * (200 if n < long else n % 9 + 1)) for n in range(600)]
        return bill(config.load(home.path), *(raw.decode() for raw in lines)).rejections

    assert bill_with("", 40) == {}
    assert bill_with("event_bytes_max = 200\n", 40) == {"too_large": 40}
    assert bill_with("event_bytes_max = 500\n", 30) == {}
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    assert failing(verify(home, journal)) == {}


def test_a_shape_is_used(tmp_path: Path) -> None:
    """Of a thousand regular lines all are decided in DuckDB."""
    made = Ledger(tmp_path)
    made.arrive(at(31, 23), *(line(customer=f"c{i}") for i in range(1000)))
    made.batch(default=(1, 1))
    with duckdb.connect() as con:
        recompute(con, Logs(RawDirectory(made.home.log_path)), made.journal.records)
        assert con.execute("SELECT count(*) FROM counted").fetchone() == (1000,)


# --- trace -------------------------------------------------------------------------------------


def test_trace_leads_to_the_places_in_the_log(ledger: Ledger) -> None:
    found = trace(ledger.home, ledger.journal, "2026-01", "emma")
    assert [(x.batch, x.type, x.amount_micros, x.adjustment) for x in found.lines] == [
        (1, "CALL", 5_000_000, False),
        (1, "DATA", 2_000_000, False),
    ]
    events = list(found.events())
    assert [e.type for e in events] == ["CALL", "DATA"]
    assert sum(e.amount_micros for e in events) == found.amount_micros == 7_000_000
    assert events[1].place.startswith("east/1@")
    for event in events:
        segment, place_at = event.place.split("@")
        path = ledger.log.find(*_segment(segment))
        assert path
        assert path.read_bytes()[int(place_at) :].startswith(event.raw + b"\n")


def test_trace_shows_adjustments_where_they_are_billed(ledger: Ledger) -> None:
    found = trace(ledger.home, ledger.journal, "2026-03", "emma")
    assert [(x.batch, x.own_period, x.adjustment) for x in found.lines] == [
        (2, "2026-03", False),
        (3, "2026-01", True),
        (3, "2026-02", True),
    ]
    assert [(e.batch, e.adjustment) for e in found.events()] == [(2, False), (3, True), (3, True)]
    assert found.event_count == 3


def test_trace_finds_escaped_names(ledger: Ledger) -> None:
    found = trace(ledger.home, ledger.journal, "2026-03", "émma")
    assert [event.raw for event in found.events()] == [line(customer="\u00e9mma")]
    assert b"\\u00e9" in line(customer="\u00e9mma")
    assert trace(ledger.home, ledger.journal, "2026-03", "nobody").lines == []


def test_a_check_says_whether_it_agrees(ledger: Ledger) -> None:
    report = verify(ledger.home, ledger.journal)
    assert not replace(report.checks[0], differences=1).agrees


def _segment(text: str) -> tuple[str, int]:
    partition, number = text.split("/")
    return partition, int(number)
