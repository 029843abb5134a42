"""Lines of the wire: good ones with some fields changed, and every kind that is refused, with its reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from opentab.core.events import Reason
from opentab.core.periods import to_us


def plain(**fields: object) -> str:
    base = {"time": "2026-01-31T22:15:04.120Z", "customer": "emma", "type": "CALL", "amount": "0.1250"}
    return json.dumps({key: value for key, value in {**base, **fields}.items() if value is not ...})


def envelope(**fields: object) -> str:
    base: dict[str, object] = {
        "specversion": "1.0", "id": "a", "source": "s", "type": "usage", "subject": "emma",
        "time": "2026-01-31T22:15:04.120Z", "data": {"type": "CALL", "amount": "0.1250"},
    }  # fmt: skip
    return json.dumps({key: value for key, value in {**base, **fields}.items() if value is not ...})


LONG = "x" * 10_000
REFUSED = [
    (b"", Reason.NOT_JSON), (b"nonsense", Reason.NOT_JSON), (plain()[:-3], Reason.NOT_JSON),
    (plain() + plain(), Reason.NOT_JSON), (b"\xff" + plain().encode(), Reason.NOT_JSON),
    (plain().encode().replace(b"emma", b"em\xc3"), Reason.NOT_JSON), (plain().encode() + b"\x00", Reason.NOT_JSON),
    ('{"a":NaN}', Reason.NOT_JSON), ('{"a":Infinity}', Reason.NOT_JSON), ('{"a":01}', Reason.NOT_JSON),
    (plain()[:-1] + ',"time":1}', Reason.NOT_JSON), (plain()[:-1] + ',"x":{"y":1,"y":1}}', Reason.NOT_JSON),
    (plain()[:-1] + ',"x" :1,"x" :1}', Reason.NOT_JSON), (plain(customer="em\ud800ma"), Reason.NOT_JSON),
    ("[" * 1000 + "]" * 1000, Reason.NOT_JSON), ("[" * 100_000, Reason.NOT_JSON),
    (plain(x=json.loads("[" * 100 + "]" * 100)), Reason.NOT_JSON),
    (b"\xef\xbb\xbf" + plain().encode(), Reason.NOT_JSON), ("{'time':1}", Reason.NOT_JSON),
    ("[]", Reason.WRONG_TYPE), ("42", Reason.WRONG_TYPE), ("null", Reason.WRONG_TYPE), ('"text"', Reason.WRONG_TYPE),
    ("{}", Reason.MISSING_FIELD), (plain(amount=...), Reason.MISSING_FIELD), (plain(time=..., customer=5), Reason.MISSING_FIELD),
    (envelope(subject=...), Reason.MISSING_FIELD), (envelope(data={"type": "CALL"}), Reason.MISSING_FIELD),
    (envelope(data=...), Reason.MISSING_FIELD),
    (plain(customer=5), Reason.WRONG_TYPE), (plain(type=None), Reason.WRONG_TYPE), (plain(amount=True), Reason.WRONG_TYPE),
    (plain(amount=["1"]), Reason.WRONG_TYPE), (plain(time=1.5), Reason.WRONG_TYPE), (plain(time={}), Reason.WRONG_TYPE),
    (plain(id=7), Reason.WRONG_TYPE), (plain(currency=1, time="never"), Reason.WRONG_TYPE),
    (envelope(specversion="2.0"), Reason.WRONG_TYPE), (envelope(data="x"), Reason.WRONG_TYPE), (envelope(specversion=1.0), Reason.WRONG_TYPE),
    (plain(time="yesterday"), Reason.BAD_TIME), (plain(time="2026-01-31T22:15:04"), Reason.BAD_TIME),
    (plain(time="2026-02-30T00:00:00Z"), Reason.BAD_TIME), (plain(time="2026-01-31T24:00:00Z"), Reason.BAD_TIME),
    (plain(time="2026-01-31T22:15Z"), Reason.BAD_TIME), (plain(time="2026-01-31T22:15:04+0100"), Reason.BAD_TIME),
    (plain(time="2026-01-31T22:15:04.Z"), Reason.BAD_TIME), (plain(time="2026-01-31T22:15:60Z"), Reason.BAD_TIME),
    (plain(time="2026-01-31T22:15:04+24:00"), Reason.BAD_TIME), (plain(time="0000-01-01T00:00:00Z"), Reason.BAD_TIME),
    (plain(time="２026-01-31T22:15:04Z"), Reason.BAD_TIME), (plain(time=""), Reason.BAD_TIME),
    (plain(time=10**30), Reason.BAD_TIME), (plain(time=-(10**17)), Reason.BAD_TIME), (plain(time="2026-1-31T22:15:04Z"), Reason.BAD_TIME),
    (plain(time="2026-03-02T00:00:00.000001Z"), Reason.TIME_IN_FUTURE), (plain(time="9999-12-31T23:59:59Z"), Reason.TIME_IN_FUTURE),
    (plain(time=to_us(datetime(2026, 3, 3, tzinfo=UTC)) // 1000, amount="x"), Reason.TIME_IN_FUTURE),
    (plain(amount=""), Reason.BAD_AMOUNT), (plain(amount="1e3"), Reason.BAD_AMOUNT), (plain(amount=".5"), Reason.BAD_AMOUNT),
    (plain(amount="5."), Reason.BAD_AMOUNT), (plain(amount="1,000"), Reason.BAD_AMOUNT), (plain(amount=" 1"), Reason.BAD_AMOUNT),
    (plain(amount="1").replace('"1"', "1e400"), Reason.BAD_AMOUNT), (plain(amount="٣"), Reason.BAD_AMOUNT),
    (plain(amount="--1"), Reason.BAD_AMOUNT), (plain(amount="NaN"), Reason.BAD_AMOUNT), (plain(amount="1.2.3"), Reason.BAD_AMOUNT),
    (plain(amount="1000000000"), Reason.AMOUNT_OUT_OF_RANGE), (plain(amount="-1000000000.0000000"), Reason.AMOUNT_OUT_OF_RANGE),
    (plain(amount="9" * 5000), Reason.AMOUNT_OUT_OF_RANGE), (plain(amount="0.0000001"), Reason.AMOUNT_PRECISION),
    (plain(amount="0.1000000"), Reason.AMOUNT_PRECISION),
    (plain(currency="USD"), Reason.CURRENCY_MISMATCH), (plain(currency="eur", type="X"), Reason.CURRENCY_MISMATCH),
    (plain(currency=""), Reason.CURRENCY_MISMATCH),
    (plain(type="call"), Reason.UNKNOWN_TYPE), (plain(type="", customer=""), Reason.UNKNOWN_TYPE),
    (plain(customer=""), Reason.BAD_CUSTOMER), (plain(customer="."), Reason.BAD_CUSTOMER), (plain(customer=".."), Reason.BAD_CUSTOMER),
    (plain(customer="a\nb"), Reason.BAD_CUSTOMER), (plain(customer="a\x7f"), Reason.BAD_CUSTOMER), (plain(customer="a\x85"), Reason.BAD_CUSTOMER),
    (plain(customer="\x00"), Reason.BAD_CUSTOMER), (plain(customer=LONG), Reason.BAD_CUSTOMER), (plain(customer="é" * 129), Reason.BAD_CUSTOMER),
]  # fmt: skip
