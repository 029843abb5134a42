"""Rows as JSON lines, tens of thousands at a time.

Every line is a row of a matrix of bytes. Each piece of a line stands in columns of its own, filled up
with zero bytes, and comes out of a table by its number. No piece contains a zero byte, so dropping
them all leaves the lines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from opentab.core.events import Reason
from opentab.core.money import MICROS_PER_UNIT
from opentab.core.periods import EPOCH_DAY, format_us
from opentab.simulator.telecom import BAD_REASONS, Rows, Spelling, Telecom, bills_micros, customer_names

Table = npt.NDArray[np.bytes_]

DAY_MS = 86_400_000
BAD_LINE_BYTES_MAX = 256
OFFSETS_MS = {Spelling.OFFSET_EAST: 19_800_000, Spelling.OFFSET_WEST: -10_800_000}
OFFSET_TEXTS = {Spelling.OFFSET_EAST: '+05:30"', Spelling.OFFSET_WEST: '-03:00"'}


class Writer:
    """Writes one telecom's rows as lines; `run` keeps the ids of its repetitions apart."""

    def __init__(self, telecom: Telecom, *, run: int = 0) -> None:
        plan, rules = telecom.plan, telecom.rules
        self._rules = rules
        self._customers = customer_names(plan.customers)
        self._ids = _table(f"{plan.seed:x}-{run}-{made_for}-" for made_for in (*telecom.periods, "tick"))
        first = _day(telecom.calendar.start_us(telecom.periods[0]) // 1000) - 1
        end_ms = telecom.calendar.end_us(telecom.periods[-1]) // 1000
        last = _day(max([end_ms, *telecom.tick_times_ms().tolist()])) + 1
        self._first_day = first
        self._days = _table(f'"{EPOCH_DAY + timedelta(days=day)}T' for day in range(first, last + 1))
        self._units = _table(str(n) for n in range(int(bills_micros(plan.customers).max()) // MICROS_PER_UNIT + 1))
        # Plain events first, CloudEvents second; without the latter no line is as wide as theirs.
        forms = 2 if plan.cloudevents_share else 1
        self._heads = _table(HEADS[:forms])
        self._middles = _table(MIDDLES[:forms])
        self._types = _table(form + kind + '","amount":' for form in BEFORE_TYPES[:forms] for kind in rules.types)
        self._tails = _table(TAILS[:forms])
        self._layout = np.dtype(
            [
                ("head", self._heads.dtype),
                ("id_key", "S6"),
                ("id", self._ids.dtype),
                ("id_a", "S3"),
                ("id_b", "S3"),
                ("id_c", "S3"),
                ("id_end", "S2"),
                ("time_key", "S7"),
                ("day", self._days.dtype),
                ("minute", MINUTES.dtype),
                ("second", SECONDS.dtype),
                ("offset", ZONES.dtype),
                ("middle", self._middles.dtype),
                ("customer", self._customers.dtype),
                ("type", self._types.dtype),
                ("quote", "S1"),
                ("units", self._units.dtype),
                ("point", "S1"),
                ("millis", "S3"),
                ("micros", "S3"),
                ("unquote", "S1"),
                ("tail", self._tails.dtype),
            ]
        )
        if plan.bad_share and self._layout.itemsize < BAD_LINE_BYTES_MAX:
            filler = f"S{BAD_LINE_BYTES_MAX - self._layout.itemsize}"
            self._layout = np.dtype([*self._layout.descr, ("filler", filler)])

    @property
    def line_bytes_max(self) -> int:
        """No line is longer than this."""
        return self._layout.itemsize

    def lines(self, rows: Rows) -> bytes:
        """The rows as JSON lines, in their order."""
        matrix = np.zeros(len(rows), self._layout)
        form = rows.is_cloudevent.astype(np.int64)
        matrix["head"] = self._heads[form]
        self._put_id(matrix, rows)
        matrix["time_key"] = b'"time":'
        self._put_time(matrix, rows)
        matrix["middle"] = self._middles[form]
        matrix["customer"] = self._customers[rows.customer]
        matrix["type"] = self._types[form * len(self._rules.types) + rows.type]
        self._put_amount(matrix, rows)
        matrix["tail"] = self._tails[form]
        for index in np.flatnonzero(rows.bad):
            matrix[index : index + 1].view(f"S{self._layout.itemsize}")[:] = self._bad_line(rows, int(index))
        return matrix.tobytes().translate(None, b"\0")

    def _put_id(self, matrix: npt.NDArray[Any], rows: Rows) -> None:
        matrix["id_key"] = b'"id":"'
        matrix["id"] = self._ids[rows.month]
        millions, rest = np.divmod(rows.serial, 1_000_000)
        thousands, ones = np.divmod(rest, 1000)
        matrix["id_a"], matrix["id_b"], matrix["id_c"] = THREE[millions], THREE[thousands], THREE[ones]
        matrix["id_end"] = b'",'
        without = np.flatnonzero(~rows.has_id)
        for name in ("id_key", "id", "id_a", "id_b", "id_c", "id_end"):
            matrix[name][without] = b""

    def _put_time(self, matrix: npt.NDArray[Any], rows: Rows) -> None:
        local_ms = rows.time_ms + OFFSETS_BY_SPELLING_MS[rows.spelling]
        day, of_day_ms = np.divmod(local_ms, DAY_MS)
        minute, of_minute_ms = np.divmod(of_day_ms.astype(np.int32), 60_000)
        matrix["day"] = self._days[day - self._first_day]
        matrix["minute"] = MINUTES[minute]
        matrix["second"] = SECONDS[of_minute_ms]
        matrix["offset"] = ZONES[rows.spelling]
        as_number = np.flatnonzero(rows.spelling == Spelling.TIME_MILLISECONDS)
        if len(as_number):
            digits = rows.time_ms[as_number].astype("S20")
            matrix["day"][as_number] = digits.astype(f"S{self._days.dtype.itemsize}")
            rest = [digit[self._days.dtype.itemsize :] for digit in digits.tolist()]
            matrix["minute"][as_number] = rest
            matrix["second"][as_number] = b""

    def _put_amount(self, matrix: npt.NDArray[Any], rows: Rows) -> None:
        units, rest = np.divmod(rows.amount_micros, MICROS_PER_UNIT)
        millis, micros = np.divmod(rest, 1000)
        quote = QUOTES[rows.spelling]
        matrix["quote"] = quote
        matrix["units"] = self._units[units]
        matrix["point"] = b"."
        matrix["millis"], matrix["micros"] = THREE[millis], THREE[micros]
        matrix["unquote"] = quote

    def _bad_line(self, rows: Rows, index: int) -> bytes:
        reason = BAD_REASONS[rows.bad[index] - 1]
        event = {
            "time": format_us(int(rows.time_ms[index]) * 1000),
            "customer": self._customers[rows.customer[index]].decode(),
            "type": self._rules.types[rows.type[index]],
            "amount": "1.250000",
        }
        return _spoiled(event, reason, int(rows.serial[index]), self._rules.currency) + b"\n"


def _spoiled(event: dict[str, Any], reason: Reason, turn: int, currency: str) -> bytes:
    """A good event, made bad for exactly this reason, in one of several ways by turn."""
    if reason is Reason.NOT_JSON:
        text = json.dumps(event, separators=(",", ":"))
        ways = (text[:-1], text[:-1] + ',"amount":"2.50"}', "usage of " + event["customer"])
        return ways[turn % len(ways)].encode()
    if reason is Reason.MISSING_FIELD:
        missing = ("customer", "amount", "time", "type")[turn % 4]
        changes: dict[str, Any] = {name: value for name, value in event.items() if name != missing}
        return json.dumps(changes, separators=(",", ":")).encode()
    other = "USD" if currency != "USD" else "EUR"
    ways_by_reason: dict[Reason, Sequence[dict[str, Any]]] = {
        Reason.WRONG_TYPE: ({"amount": True}, {"customer": 17}, {"type": None}, {"time": [1]}),
        Reason.BAD_TIME: ({"time": "2026-02-30T12:00:00Z"}, {"time": event["time"][:-1]}, {"time": "noon"}),
        Reason.TIME_IN_FUTURE: ({"time": "2999-01-01T00:00:00.000Z"}, {"time": 32_472_144_000_000}),
        Reason.BAD_AMOUNT: ({"amount": "1e3"}, {"amount": "1,25"}, {"amount": ".5"}, {"amount": ""}),
        Reason.AMOUNT_OUT_OF_RANGE: ({"amount": "1000000000.00"}, {"amount": -(10**12)}),
        Reason.AMOUNT_PRECISION: ({"amount": "0.0000001"}, {"amount": "1.2500000"}),
        Reason.CURRENCY_MISMATCH: ({"currency": other}, {"currency": currency.lower()}),
        # No home may have a type with a question mark.
        Reason.UNKNOWN_TYPE: ({"type": "FAX?"}, {"type": ""}),
        Reason.BAD_CUSTOMER: ({"customer": ".."}, {"customer": ""}, {"customer": "bell\a"}),
    }
    ways_here = ways_by_reason[reason]
    spoiled = event | ways_here[turn % len(ways_here)]
    return json.dumps(spoiled, separators=(",", ":")).encode()


def _table(texts: Any) -> Table:
    return np.array([text.encode() for text in texts], dtype=np.bytes_)


def _day(ms: int) -> int:
    return ms // DAY_MS


def _by_spelling(plain: str, others: dict[Spelling, str]) -> Table:
    return _table(others.get(spelling, plain) for spelling in Spelling)


HEADS = ("{", '{"specversion":"1.0","source":"/opentab/telecom","type":"opentab.usage",')
MIDDLES = (',"customer":"', ',"subject":"')
BEFORE_TYPES = ('","type":"', '","data":{"type":"')
TAILS = ("}\n", "}}\n")
THREE = _table(f"{n:03d}" for n in range(1000))
MINUTES = _table(f"{n // 60:02d}:{n % 60:02d}" for n in range(1440))
SECONDS = _table(f":{n // 1000:02d}.{n % 1000:03d}" for n in range(60_000))
ZONES = _by_spelling('Z"', OFFSET_TEXTS | {Spelling.TIME_MILLISECONDS: ""})
QUOTES = _by_spelling('"', {Spelling.AMOUNT_NUMBER: ""})
OFFSETS_BY_SPELLING_MS = np.array([OFFSETS_MS.get(spelling, 0) for spelling in Spelling], dtype=np.int64)
