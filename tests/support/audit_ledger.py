"""Real logs, and journals made by hand: what a right pipeline would have written of them, in memory."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from opentab.audit import Report
from opentab.audit.murmur import murmur
from opentab.core.events import Rules
from opentab.core.periods import to_us
from opentab.core.records import ENTRY, REJECTION, SEEN, BatchRecord, PartitionState
from opentab.log import DirectoryLog, Producer, read_segment
from opentab.runtime import config
from opentab.wire.reference import Event, judge


def line(**changes: Any) -> bytes:
    """A good event with some fields changed; `...` leaves a field out."""
    fields = {"time": "2026-01-31T22:15:04.120Z", "customer": "emma", "type": "CALL", "amount": "0.1250"}
    return json.dumps({k: v for k, v in (fields | changes).items() if v is not ...}).encode()


def envelope(data: Any = None, **changes: Any) -> bytes:
    fields = {
        "specversion": "1.0",
        "id": "7",
        "time": "2026-01-31T22:15:04Z",
        "subject": "emma",
        "data": {"type": "CALL", "amount": "1"} if data is None else data,
    }
    return json.dumps({k: v for k, v in (fields | changes).items() if v is not ...}).encode()


def at(day: int, hour: int = 12, month: int = 1, second: int = 0) -> datetime:
    return datetime(2026, month, day, hour, second=second, tzinfo=UTC)


def failing(report: Report) -> dict[str, list[str]]:
    return {check.name: check.samples for check in report.checks if not check.agrees}


@dataclass
class FakeJournal:
    """A journal in memory, so that a test can change any one thing of it."""

    records: list[BatchRecord] = field(default_factory=list)
    entry_rows: list[dict[str, Any]] = field(default_factory=list)
    rejection_rows: list[dict[str, Any]] = field(default_factory=list)
    seen_rows: list[dict[str, Any]] = field(default_factory=list)

    def batches(self) -> list[BatchRecord]:
        return self.records

    def entries(self) -> ds.Dataset:
        return ds.dataset(pa.Table.from_pylist(self.entry_rows, schema=ENTRY))

    def rejections(self) -> ds.Dataset:
        return ds.dataset(pa.Table.from_pylist(self.rejection_rows, schema=REJECTION))

    def seen(self) -> ds.Dataset:
        return ds.dataset(pa.Table.from_pylist(self.seen_rows, schema=SEEN))


@dataclass
class Arrival:
    """A line of the log and what becomes of it."""

    batch: int
    arrived_us: int
    partition: str
    number: int
    byte: int
    raw: bytes
    event: Event | None = None  # with the sign that it counts with
    key: tuple[Any, str] | None = None  # source, id
    reverses: tuple[Any, str] | None = None  # the key that it refers to
    verdict: str = "counted"  # or duplicate, or why it is rejected
    first: Arrival | None = None  # of a duplicate, the one that counted

    @property
    def order(self) -> tuple[int, int, str, int, int]:
        return self.batch, self.arrived_us, self.partition, self.number, self.byte

    @property
    def place(self) -> str:
        return f"{self.partition}/{self.number}@{self.byte}"

    @property
    def values(self) -> tuple[Any, ...]:
        assert self.event is not None
        return self.event.at_us, self.event.customer, self.event.type, self.event.amount_micros, self.reverses


def count_once(arrivals: list[Arrival], window_us: int, forgotten_us: int | None, before: list[Arrival]) -> None:
    """ADR 16, word for word and slowly: the events of one batch, behind those that counted `before`."""

    def known(last: Arrival | None, one: Arrival) -> bool:
        if last is None or one.arrived_us - last.arrived_us > window_us:
            return False
        return forgotten_us is None or last.arrived_us >= forgotten_us

    if not window_us:
        for one in arrivals:
            one.verdict = "reversal_unknown" if one.reverses else "counted"
        return
    for one in sorted(arrivals, key=lambda one: one.order):
        last = last_of(one.key, before)
        original = last_of(one.reverses, before)
        if last and known(last, one):
            one.first = last
            one.verdict = "duplicate" if last.values == one.values else "conflicting_duplicate"
        elif one.reverses and (not original or original.batch == one.batch or not known(original, one)):
            one.verdict = "reversal_unknown"
        elif one.reverses and original and not takes_back(one, original):
            one.verdict = "reversal_mismatch"
        elif one.reverses and any(
            other.reverses == one.reverses
            for other in before[before.index(original) :]  # type: ignore[arg-type]
        ):
            one.verdict = "reversal_twice"
        else:
            before.append(one)


def last_of(key: tuple[Any, str] | None, before: list[Arrival]) -> Arrival | None:
    return next((one for one in reversed(before) if key and one.key == key), None)


def takes_back(one: Arrival, original: Arrival) -> bool:
    at_us, customer, type_, amount_micros, _ = one.values
    return original.values == (at_us, customer, type_, -amount_micros, None)


class Ledger:
    """Writes segments and, by the pipeline's own judge, the journal that they should give."""

    def __init__(
        self, path: Path, zone: str = "Europe/Berlin", window: str = "7d", pipeline: dict[str, Any] | None = None
    ) -> None:
        billing = {"zone": zone, "types": ["CALL", "DATA"], "dedupe_window": window}
        self.home = config.parse(path, {"billing": billing, "pipeline": pipeline or {}})
        self.rules = self.home.rules
        self.log = DirectoryLog(self.home.log_path)
        self.journal = FakeJournal()
        self.now = datetime(2026, 1, 10, tzinfo=UTC)
        self.is_old = False  # a version that knew nothing of ids
        self.arrivals: list[Arrival] = []
        self._counted: list[Arrival] = []
        self._states: dict[str, PartitionState] = {}
        self._forgotten_us: int | None = None
        self._watermark_us: int | None = None
        self._final_us: int | None = None

    def arrive(self, at: datetime, *lines: bytes, partition: str = "default") -> int:
        self.now = at
        return Producer(self.log, partition, clock=lambda: self.now).append(b"\n".join(lines))

    def batch(self, **taken: tuple[int, int]) -> None:
        number = len(self.journal.records) + 1
        arrivals = [one for name, (first, last) in taken.items() for one in self._read(number, name, first, last)]
        well = [one for one in arrivals if one.event]
        count_once(well, self.rules.dedupe_us, self._forgotten_us, self._counted)
        self.arrivals += arrivals
        reasons: Counter[str] = Counter()
        for one in arrivals:
            if one.verdict == "counted":
                e = one.event
                assert e
                self.journal.entry_rows.append(
                    {"batch": number, "day": e.day, "customer": e.customer, "type": e.type,
                     "amount_micros": e.amount_micros, "event_count": 1, "first_at": e.at_us, "last_at": e.at_us}
                )  # fmt: skip
                if one.key and self.rules.dedupe_us:
                    self.journal.seen_rows.append(seen_row(one))
            elif one.verdict != "duplicate":
                reasons[one.verdict] += 1
                self.journal.rejection_rows.append(
                    {"batch": number, "reason": one.verdict, "raw": one.raw, "place": one.place, "detail": "",
                     "arrived_at": one.arrived_us}
                )  # fmt: skip
        for partition, (_, last) in taken.items():
            old = self._states.get(partition)
            timed = ("counted", "duplicate")
            latest = [one.event.at_us for one in well if one.partition == partition and one.verdict in timed]  # type: ignore[union-attr]
            if old and old.latest_us is not None:
                latest.append(old.latest_us)
            path = self.log.find(partition, last)
            assert path
            arrived_us = read_segment(path).header.arrived_us
            self._states[partition] = PartitionState(last, max(latest, default=None), arrived_us, False)
        self._move_watermark(self.rules)
        self._forget(self.rules.dedupe_us)
        known = [s.latest_us for s in self._states.values() if s.latest_us is not None]
        events = [one for one in well if one.verdict == "counted"]
        self.journal.records.append(
            BatchRecord(
                batch=number, run="r",
                started_us=0, committed_us=to_us(self.now), taken=taken, partitions=dict(self._states),
                watermark_us=self._watermark_us, final_us=self._final_us, newest_us=max(known, default=None), event_count=len(events),
                sum_micros=str(sum(one.event.amount_micros for one in events if one.event)), entry_rows=len(events),
                rejections=dict(reasons), input_bytes=0, rules=self.rules,
                forgotten_us=self._forgotten_us,
                duplicates=sum(one.verdict == "duplicate" for one in well),
                without_id=sum(one.key is None for one in events) if self.rules.dedupe_us else 0,
            )
        )  # fmt: skip

    def _read(self, batch: int, partition: str, first: int, last: int) -> list[Arrival]:
        """The inputs of a batch in one partition; one without an event is rejected for what it says itself."""
        found = []
        for number in range(first, last + 1):
            path = self.log.find(partition, number)
            assert path
            segment = read_segment(path)
            byte = segment.body_at
            for raw in bytes(segment.body).split(b"\n")[:-1]:
                one = Arrival(batch, segment.header.arrived_us, partition, number, byte, raw)
                byte += len(raw) + 1
                if raw.strip():
                    self._judge(one)
                    found.append(one)
        return found

    def _judge(self, one: Arrival) -> None:
        plain = read_plain(one.raw)
        id_, source, reverses, bare = plain or (None, None, None, one.raw)
        verdict = judge(bare, arrived_us=one.arrived_us, rules=self.rules, calendar=self.home.calendar)
        if isinstance(verdict, Event):
            amount_micros = -verdict.amount_micros if reverses else verdict.amount_micros
            one.event = Event(verdict.at_us, verdict.day, verdict.customer, verdict.type, amount_micros)
            one.key = (source, id_) if id_ else None
            one.reverses = (source, reverses) if reverses else None
        else:
            one.verdict = str(verdict.reason)

    def _move_watermark(self, rules: Rules) -> None:
        clock_us = max(s.arrived_us for s in self._states.values())
        for name, s in self._states.items():
            following = self.log.find(name, s.segment + 1)
            unread = following is not None and read_segment(following).header.arrived_us <= clock_us
            idle = clock_us - s.arrived_us > rules.idle_after_us and not unread
            self._states[name] = PartitionState(s.segment, s.latest_us, s.arrived_us, idle)
        holding = [s.latest_us for s in self._states.values() if s.latest_us is not None and not s.idle]
        if holding:
            found = min(holding) - rules.out_of_orderness_us
            self._watermark_us = found if self._watermark_us is None else max(found, self._watermark_us)
            self._final_us = max(self._watermark_us - rules.allowed_lateness_us, self._final_us or -(2**62))

    def _forget(self, window_us: int) -> None:
        upto_us = min(s.arrived_us for s in self._states.values() if not s.idle) - window_us
        if not window_us:
            if self.is_old:
                return
            upto_us = max(s.arrived_us for s in self._states.values()) + 1
        self._forgotten_us = upto_us if self._forgotten_us is None else max(upto_us, self._forgotten_us)

    def change(self, **rules: Any) -> None:
        """From the next batch on, other rules."""
        self.rules = msgspec.structs.replace(self.rules, **rules)


def read_plain(raw: bytes) -> tuple[str | None, str | None, str | None, bytes] | None:
    """Id, source, what a line takes back, and the line as if it took back nothing; None if it is no object."""
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(value, dict) or len(json.dumps(value)) > 10_000:
        return None
    enveloped = "specversion" in value
    data = value.get("data", {}) if enveloped else value
    reverses = data.pop("reverses", None) if isinstance(data, dict) else None
    bare = json.dumps(value).encode() if reverses else raw
    return value.get("id"), value.get("source") if enveloped else None, reverses, bare


def seen_row(one: Arrival, payload: int = 5) -> dict[str, Any]:
    """The row that the journal holds of an event with an id."""
    assert one.key
    source, id_ = one.key
    high, low = murmur(id_.encode(), 0) if source is None else murmur(f"{len(source)}:{source}{id_}".encode(), 1)
    return {
        "batch": one.batch, "key_high": high, "key_low": low, "payload": payload, "arrived_us": one.arrived_us,
        "partition": one.partition, "number": one.number, "byte": one.byte,
    }  # fmt: skip
