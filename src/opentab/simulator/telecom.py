"""The simulated telecom: who its customers are, what each uses, and when the log hears of it.

Everything here is pure: the same plan and seed give the same rows, and nothing touches the disk.
A customer's month is its bill, cut at random into events, so the bill is known before any event is
written. Each kind of draw has a random stream of its own, keyed by seed, month and purpose: what a
month costs can be drawn again without its times, and a month does not depend on its neighbours.

Instants are whole milliseconds since 1970 (`_ms`), because that is what the wire can carry in every
spelling. `arrival_ms` is the place of a row on the simulated clock; rows are written in its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from opentab.core.errors import InputError
from opentab.core.events import REASONS_BY_OTHERS, Reason, Rules
from opentab.core.periods import Calendar, Int64s, Period, next_period, parse_period, previous_period
from opentab.log.directory import PARTITION_DEFAULT
from opentab.simulator.trickle import BEYOND_MS, PERIOD_MIN, latest_final_period, tick_times_ms

Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

NINE_BILLS_CENTS = {
    "emma": 100_00,
    "olivia": 80_00,
    "sophia": 120_00,
    "ava": 60_00,
    "isa": 20_00,
    "noah": 200_00,
    "william": 250_00,
    "liam": 30_00,
    "jacob": 40_00,
}
MICROS_PER_CENT = 10_000
CUSTOMERS_MAX = 10_000_000  # their names have seven digits
EVENTS_PER_CUSTOMER_MAX = 10_000_000
MONTH_EVENTS_MAX = 10**9  # ids have nine digits
SILENCE_MAX = timedelta(days=20)

# Every reason that a line has by itself, whatever else is in the log.
# Without lines that are too large: they would be most of what is written.
BAD_REASONS = tuple(reason for reason in Reason if reason not in (Reason.TOO_LARGE, *REASONS_BY_OTHERS))


class Spelling(IntEnum):
    """How a row writes its time and amount; all mean the same."""

    PLAIN = 0
    AMOUNT_NUMBER = 1
    TIME_MILLISECONDS = 2
    OFFSET_EAST = 3
    OFFSET_WEST = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate. Shares are parts of the month's events, from 0 to 1."""

    seed: int = 1
    customers: int = 9  # nine have names and bills of their own; any other number has a formula
    events_per_customer: int = 10_000  # a month, give or take a twentieth
    months: int = 1
    first_period: Period | None = None  # None: the latest months that are over
    month_seconds: float | None = None  # wall time of a month; None: as fast as the disk allows
    sources: int = 1  # partitions of the log; a customer belongs to one of them
    id_share: float = 0.8
    late_share: float = 0.01  # after the month closed, within the allowed lateness
    beyond_share: float = 0.0  # after the allowed lateness
    duplicate_share: float = 0.0  # extra lines: events with ids, byte for byte again
    conflict_share: float = 0.0  # extra lines: events with ids again, with another amount
    bad_share: float = 0.0  # extra lines: each rejection reason in turn
    cloudevents_share: float = 0.0
    variety_share: float = 0.02  # amounts as numbers, times as milliseconds or with an offset
    lag: timedelta = timedelta()  # how far the last source is behind the others
    silence: timedelta = timedelta()  # how long the first source is quiet in the middle of a month
    until_final: bool = False  # let time pass behind the last month, until all of it is final

    def __post_init__(self) -> None:
        _check(0 <= self.seed < 2**63, f"seed {self.seed} is out of range", "use 0 or more")
        _check(
            1 <= self.customers <= CUSTOMERS_MAX,
            f"{self.customers} customers cannot be simulated",
            f"use 1 to {CUSTOMERS_MAX}",
        )
        _check(
            1 <= self.events_per_customer <= EVENTS_PER_CUSTOMER_MAX
            and self.customers * self.events_per_customer <= MONTH_EVENTS_MAX,
            f"{self.events_per_customer} events for each of {self.customers} customers cannot be simulated",
            f"stay below {MONTH_EVENTS_MAX} events a month",
        )
        _check(1 <= self.months <= 1200, f"{self.months} months cannot be simulated", "use 1 to 1200")
        _check(1 <= self.sources <= 1000, f"{self.sources} sources cannot be simulated", "use 1 to 1000")
        if self.first_period is not None:
            _check(
                parse_period(self.first_period) >= PERIOD_MIN,
                f"the month {self.first_period} is too long ago",
                f"begin with {PERIOD_MIN} or later",
            )
        _check(
            self.month_seconds is None or self.month_seconds > 0,
            f"a month of {self.month_seconds} seconds is too short",
            "use more than 0",
        )
        for field in fields(self):
            share = getattr(self, field.name)
            if field.name.endswith("_share"):
                _check(0 <= share <= 1, f"{field.name} {share} is no share", "use 0 to 1")
        _check(
            self.late_share + self.beyond_share <= 1,
            "late_share and beyond_share are more than all events",
            "let them sum up to at most 1",
        )
        _check(self.lag >= timedelta(), "a lag cannot be negative", "use 0s or more")
        _check(
            timedelta() <= self.silence <= SILENCE_MAX,
            f"a silence of {self.silence} cannot be simulated",
            f"use 0s to {SILENCE_MAX.days}d",
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Lines to be written, as columns of the same length."""

    arrival_ms: Int64s
    time_ms: Int64s
    amount_micros: npt.NDArray[np.int32]
    customer: npt.NDArray[np.int32]  # index
    serial: npt.NDArray[np.int32]  # within the month it was made for; leads to its id
    month: npt.NDArray[np.int16]  # which of the plan's months it was made for; a tick: behind the last
    type: npt.NDArray[np.uint8]  # index
    has_id: Bools
    is_cloudevent: Bools
    spelling: npt.NDArray[np.uint8]
    bad: npt.NDArray[np.uint8]  # 0: a good row; else 1 + the index in BAD_REASONS

    def __len__(self) -> int:
        return len(self.arrival_ms)

    def take(self, index: Int64s | slice) -> Rows:
        return Rows(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        names = [field.name for field in fields(Rows)]
        return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class MonthTally:
    """What one month comes to, before its times are drawn."""

    period: Period
    type_micros: tuple[int, ...]  # in the order of the home's types
    type_events: tuple[int, ...]
    duplicate_count: int
    conflict_count: int
    bad_count: int
    is_trickle: bool = False  # True: a month behind the plan's, with ticks alone

    @property
    def line_count(self) -> int:
        return sum(self.type_events) + self.duplicate_count + self.conflict_count + self.bad_count


@dataclass(frozen=True, slots=True)
class Telecom:
    """A plan, settled: its months are known, and the rules of the home it writes for."""

    plan: Plan
    periods: tuple[Period, ...]
    rules: Rules
    calendar: Calendar

    def tally(self) -> list[MonthTally]:
        """What every month comes to, with those of the ticks. It holds one month in memory at a time."""
        return [*(self._tally(period) for period in self.periods), *self._tick_tallies()]

    def stream(self) -> Iterator[Rows]:
        """All rows in the order of their arrival, about a month at a time.

        What arrives after its month's end is carried over and merged into the next.
        """
        carried: list[Rows] = []
        bad_before = 0
        for month, period in enumerate(self.periods):
            made = self._rows(month, bad_before)
            bad_before += int(np.count_nonzero(made.bad))
            is_last = month + 1 == len(self.periods)
            # Ticks first: what arrives in the same millisecond is behind the closing, not before it.
            ticks = [self._ticks()] if is_last and self.plan.until_final else []
            rows = Rows.concat([*ticks, *carried, made]) if ticks or carried else made
            order = arrival_order(rows.arrival_ms)
            if is_last:
                yield rows.take(order)
                return
            # Nothing of the next month arrives before this one's end.
            end_ms = self.calendar.end_us(period) // 1000
            split = int(np.count_nonzero(rows.arrival_ms < end_ms))
            carried = [rows.take(order[split:])]
            yield rows.take(order[:split])

    def partition(self, source: int) -> str:
        """The log partition of a source, counted from 0."""
        return PARTITION_DEFAULT if self.plan.sources == 1 else f"source{source + 1}"

    def tick_times_ms(self) -> Int64s:
        """The event times at which each source ticks behind the last month, if the plan wants that."""
        if not self.plan.until_final:
            return np.empty(0, np.int64)
        return tick_times_ms(self.periods[-1], rules=self.rules, calendar=self.calendar)

    def tick_customers(self) -> npt.NDArray[np.int32]:
        """Who ticks: the first customer of each source, by source; a source without customers is none."""
        return np.arange(min(self.plan.sources, self.plan.customers), dtype=np.int32)

    def silent_windows_ms(self) -> list[tuple[int, int]]:
        """The stretch of each month in which the first source is quiet."""
        windows = []
        for period in self.periods:
            start_ms, end_ms = self.calendar.start_us(period) // 1000, self.calendar.end_us(period) // 1000
            quiet_ms = _ms(self.plan.silence)
            first_ms = start_ms + (end_ms - start_ms - quiet_ms) // 2
            windows.append((first_ms, first_ms + quiet_ms))
        return windows

    def _tally(self, period: Period) -> MonthTally:
        usage = _usage(self.plan, period, len(self.rules.types))
        type_micros, type_events = [], []
        for index in range(len(self.rules.types)):
            mine = usage.type == index
            type_micros.append(int(usage.amount_micros.sum(where=mine, dtype=np.int64)))
            type_events.append(int(np.count_nonzero(mine)))
        return MonthTally(
            period,
            tuple(type_micros),
            tuple(type_events),
            duplicate_count=_again_count(self.plan.duplicate_share, usage),
            conflict_count=_again_count(self.plan.conflict_share, usage),
            bad_count=_bad_count(self.plan, len(usage.type)),
        )

    def _tick_tallies(self) -> list[MonthTally]:
        counts = Counter(self.calendar.period_of(time_ms * 1000) for time_ms in self.tick_times_ms().tolist())
        nothing = (0,) * len(self.rules.types)
        return [
            MonthTally(
                period,
                type_micros=nothing,
                type_events=(count * len(self.tick_customers()), *nothing[1:]),
                duplicate_count=0,
                conflict_count=0,
                bad_count=0,
                is_trickle=True,
            )
            for period, count in counts.items()
        ]

    def _ticks(self) -> Rows:
        """The ticks of all sources, in no order."""
        times_ms, customers = self.tick_times_ms(), self.tick_customers()
        count = len(times_ms) * len(customers)
        customer = np.repeat(customers, len(times_ms))
        time_ms = np.tile(times_ms, len(customers))
        arrival_ms = time_ms.copy()
        # It would have to wait for a month; it comes right behind everything else instead.
        arrival_ms[time_ms == times_ms[-1]] = times_ms[-2] + 1
        arrival_ms[self._lags(customer) | (time_ms == times_ms[-1])] += self._lag_ms
        return Rows(
            arrival_ms=arrival_ms,
            time_ms=time_ms,
            amount_micros=np.zeros(count, np.int32),
            customer=customer,
            serial=np.arange(count, dtype=np.int32),
            month=np.full(count, len(self.periods), np.int16),
            type=np.zeros(count, np.uint8),
            has_id=np.ones(count, np.bool_),
            is_cloudevent=np.zeros(count, np.bool_),
            spelling=np.zeros(count, np.uint8),
            bad=np.zeros(count, np.uint8),
        )

    @property
    def _lag_ms(self) -> int:
        """How far the last source is behind the others, if it has a customer at all."""
        return _ms(self.plan.lag) if self.plan.sources <= self.plan.customers else 0

    def _lags(self, customer: npt.NDArray[np.int32]) -> Bools:
        last: Bools = customer % self.plan.sources == self.plan.sources - 1
        return last

    def _rows(self, month: int, bad_before: int) -> Rows:
        """All rows made for one month, in no order."""
        plan, period = self.plan, self.periods[month]
        usage = _usage(plan, period, len(self.rules.types))
        count = len(usage.type)
        time_ms, arrival_ms, on_time = self._times(month, usage.customer)
        events = Rows(
            arrival_ms=arrival_ms,
            time_ms=time_ms,
            amount_micros=usage.amount_micros,
            customer=usage.customer,
            serial=np.arange(count, dtype=np.int32),
            month=np.full(count, month, np.int16),
            type=usage.type,
            has_id=usage.has_id,
            is_cloudevent=usage.is_cloudevent,
            spelling=_spellings(plan, period, count),
            bad=np.zeros(count, np.uint8),
        )
        del usage
        if plan.silence:
            events = self._hushed(events, on_time)
        conflicts = self._again(period, events, "conflict", plan.conflict_share)
        conflicts.amount_micros[:] ^= 1  # a micro more or less, and never negative
        duplicates = self._again(period, events, "duplicate", plan.duplicate_share)
        parts = [events, duplicates, conflicts, self._bad_rows(month, bad_before, count)]
        parts = [part for part in parts if len(part)]
        rows = Rows.concat(parts) if len(parts) > 1 else events
        if plan.silence:
            self._defer(rows.arrival_ms, rows.customer)
        if plan.lag:
            rows.arrival_ms[self._lags(rows.customer)] += self._lag_ms
        return rows

    def _times(self, month: int, customer: npt.NDArray[np.int32]) -> tuple[Int64s, Int64s, Bools]:
        """When each event happens, when it arrives, and which of them are not late."""
        plan, period = self.plan, self.periods[month]
        count = len(customer)
        start_ms, end_ms = self.calendar.start_us(period) // 1000, self.calendar.end_us(period) // 1000
        time_ms = _random(plan, period, "time").integers(0, end_ms - start_ms, count)
        if plan.silence:
            # Squeezed into the month less its silence, then moved apart around it.
            quiet_ms = _ms(plan.silence)
            first_ms = self.silent_windows_ms()[month][0] - start_ms
            squeezed = time_ms * (end_ms - start_ms - quiet_ms) // (end_ms - start_ms)
            squeezed += quiet_ms * (squeezed >= first_ms)
            time_ms = np.where(customer % plan.sources == 0, squeezed, time_ms)
        time_ms += start_ms

        disorder_ms = self.rules.out_of_orderness_us // 1000
        lateness_ms = self.rules.allowed_lateness_us // 1000
        delay = _random(plan, period, "delay").random(count)
        arrival_ms = time_ms + (delay * (0.9 * disorder_ms)).astype(np.int64)
        if not plan.late_share + plan.beyond_share:
            return time_ms, arrival_ms, np.ones(count, np.bool_)
        pick = _random(plan, period, "late").random(count)
        late = np.flatnonzero(pick < plan.late_share)
        beyond = np.flatnonzero((pick >= plan.late_share) & (pick < plan.late_share + plan.beyond_share))
        closed_ms = end_ms + disorder_ms
        final_ms = closed_ms + lateness_ms
        arrival_ms[late] = closed_ms + ((0.1 + 0.7 * delay[late]) * lateness_ms).astype(np.int64)
        arrival_ms[beyond] = final_ms + ((0.1 + 0.7 * delay[beyond]) * BEYOND_MS).astype(np.int64)
        on_time: Bools = pick >= plan.late_share + plan.beyond_share
        if plan.until_final and plan.lag:
            # A month closes when the last source has come so far: what is to be late waits for that.
            arrival_ms[~on_time & ~self._lags(customer)] += self._lag_ms
        return time_ms, arrival_ms, on_time

    def _hushed(self, events: Rows, on_time: Bools) -> Rows:
        """The first source's events, arrived before the silence where they happened before it."""
        arrival_ms = events.arrival_ms
        first_source = on_time & (events.customer % self.plan.sources == 0)
        for first_ms, last_ms in self.silent_windows_ms():
            inside = first_source & (arrival_ms >= first_ms) & (arrival_ms < last_ms)
            # An earlier arrival keeps the bound on disorder; a later one could break it.
            room_ms = first_ms - events.time_ms[inside]
            arrival_ms[inside] = events.time_ms[inside] + (arrival_ms[inside] - first_ms) % room_ms
        return events

    def _defer(self, arrival_ms: Int64s, customer: npt.NDArray[np.int32]) -> None:
        """Whatever else would arrive from the first source in its silence comes right after it."""
        for first_ms, last_ms in self.silent_windows_ms():
            inside = (arrival_ms >= first_ms) & (arrival_ms < last_ms)
            arrival_ms[inside & (customer % self.plan.sources == 0)] = last_ms

    def _again(self, period: Period, events: Rows, purpose: str, share: float) -> Rows:
        """Some events with ids once more, a little later.

        They come behind the first in the same partition: however batches are cut, that one is looked at first.
        """
        count = _again_count(share, events)
        random = _random(self.plan, period, purpose)
        again = events.take(np.sort(random.choice(np.flatnonzero(events.has_id), count, replace=False)))
        # On top of 0.9 of the bound at most: a copy of an on-time event is within it, too.
        later_ms = random.random(count) * (0.1 * (self.rules.out_of_orderness_us // 1000) - 1)
        again.arrival_ms[:] += 1 + np.maximum(later_ms, 0).astype(np.int64)
        return again

    def _bad_rows(self, month: int, bad_before: int, event_count: int) -> Rows:
        """Rows that no bill may hold, the reasons in turn, anywhere in the month."""
        plan, period = self.plan, self.periods[month]
        count = _bad_count(plan, event_count)
        random = _random(plan, period, "bad")
        start_ms, end_ms = self.calendar.start_us(period) // 1000, self.calendar.end_us(period) // 1000
        time_ms = random.integers(start_ms, end_ms, count)
        turn = bad_before + np.arange(count)
        return Rows(
            arrival_ms=time_ms.copy(),
            time_ms=time_ms,
            amount_micros=np.zeros(count, np.int32),
            customer=random.integers(0, plan.customers, count, dtype=np.int32),
            serial=(turn // len(BAD_REASONS)).astype(np.int32),
            month=np.full(count, month, np.int16),
            type=random.integers(0, len(self.rules.types), count, dtype=np.uint8),
            has_id=np.zeros(count, np.bool_),
            is_cloudevent=np.zeros(count, np.bool_),
            spelling=np.zeros(count, np.uint8),
            bad=(1 + turn % len(BAD_REASONS)).astype(np.uint8),
        )


def settle(plan: Plan, *, rules: Rules, calendar: Calendar, now_us: int) -> Telecom:
    """Fix the plan's months; they all lie in the past, so that no event is ahead of its arrival."""
    _check(
        not plan.conflict_share or rules.dedupe_us > 0,
        "without dedupe no two events conflict",
        "set billing.dedupe_window, or leave out the conflicts",
    )
    current = calendar.period_of(now_us)
    if plan.until_final:
        first_latest = latest_final_period(now_us, rules=rules, calendar=calendar)
    else:
        first_latest = previous_period(current)
    for _ in range(plan.months - 1):
        first_latest = previous_period(first_latest)
    periods = [first_latest if plan.first_period is None else plan.first_period]
    while len(periods) < plan.months:
        periods.append(next_period(periods[-1]))
    if plan.until_final:
        _check(
            first_latest >= PERIOD_MIN,
            f"{plan.months} months from {PERIOD_MIN} on cannot all be final by now",
            "simulate fewer months, or shorten billing.out_of_orderness or billing.allowed_lateness",
        )
        _check(
            periods[0] <= first_latest,
            f"the month {periods[-1]} cannot be final by now",
            f"let the first period be {first_latest} or earlier",
        )
    if periods[0] > first_latest:
        raise InputError(
            f"the month {periods[-1]} is not over yet",
            hint=f"let the simulated months end before {current}",
        )
    return Telecom(plan, tuple(periods), rules, calendar)


def customer_names(count: int) -> npt.NDArray[np.bytes_]:
    """The customers by index: nine by name, any other number as c0000000, c0000001 …"""
    if count == len(NINE_BILLS_CENTS):
        return np.array(list(NINE_BILLS_CENTS), dtype=np.bytes_)
    powers = 10 ** np.arange(6, -1, -1)
    letters = np.full((count, 8), ord("c"), np.uint8)
    letters[:, 1:] = np.arange(count)[:, None] // powers % 10 + ord("0")
    return letters.view("S8")[:, 0]


def bills_micros(count: int) -> Int64s:
    """What each customer owes a month: the nine's own bills, else 1.00 + (index × 79.19) mod 249.01."""
    if count == len(NINE_BILLS_CENTS):
        cents = np.array(list(NINE_BILLS_CENTS.values()), dtype=np.int64)
    else:
        cents = 100 + np.arange(count, dtype=np.int64) * 7919 % 24_901
    return cents * MICROS_PER_CENT


def split(totals_micros: Int64s, counts: Int64s, random: np.random.Generator) -> Int64s:
    """Cut each total into so many random parts that sum up to it exactly; totals stay below 2^28.

    Parts are differences of running cuts, and the last cut is the total. All of it is integers. A
    part is at least a micro where the total allows.
    """
    ends = np.cumsum(counts)
    starts = ends - counts
    # Weights sum up to less than 2^35 a total, so their product with it fits into 63 bits.
    scale = 2**34 / (WEIGHT_MAX * int(counts.max()))
    draws = random.standard_exponential(int(ends[-1]), dtype=np.float32)
    weights = 1 + (np.minimum(draws, WEIGHT_MAX) * scale).astype(np.int64)
    running = np.cumsum(weights)
    before = running[starts] - weights[starts]
    least = (totals_micros >= counts).astype(np.int64)
    cuts = running - np.repeat(before, counts)
    cuts *= np.repeat(totals_micros - least * counts, counts)
    cuts //= np.repeat(running[ends - 1] - before, counts)
    parts: Int64s = np.diff(cuts, prepend=0)
    parts[starts] = cuts[starts]
    parts += np.repeat(least, counts)
    return parts


def arrival_order(arrival_ms: Int64s) -> Int64s:
    """The indexes that put rows in order of arrival, ties by index."""
    if not len(arrival_ms):
        return np.empty(0, np.int64)
    bits = len(arrival_ms).bit_length()
    since_ms = arrival_ms - arrival_ms.min()
    if int(since_ms.max()).bit_length() + bits > 63:
        return np.argsort(arrival_ms, kind="stable")
    # Sorting the index along with the key is several times faster than argsort.
    keys: Int64s = (since_ms << bits) | np.arange(len(arrival_ms))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


WEIGHT_MAX = 16
PURPOSES = ("usage", "time", "delay", "late", "spelling", "duplicate", "bad", "conflict")


@dataclass(frozen=True, slots=True)
class _Usage:
    """What is used in a month and what it costs."""

    amount_micros: npt.NDArray[np.int32]
    customer: npt.NDArray[np.int32]
    type: npt.NDArray[np.uint8]
    has_id: Bools
    is_cloudevent: Bools


def _usage(plan: Plan, period: Period, type_count: int) -> _Usage:
    random = _random(plan, period, "usage")
    spread = plan.events_per_customer // 20
    counts = plan.events_per_customer + random.integers(-spread, spread + 1, plan.customers)
    amounts = split(bills_micros(plan.customers), counts, random).astype(np.int32)
    count = len(amounts)
    type_ = random.integers(0, type_count, count, dtype=np.uint8)
    has_id = random.random(count, dtype=np.float32) < plan.id_share
    is_cloudevent = random.random(count, dtype=np.float32) < plan.cloudevents_share
    # CloudEvents 1.0 asks for an id.
    has_id |= is_cloudevent
    customer = np.repeat(np.arange(plan.customers, dtype=np.int32), counts)
    return _Usage(amounts, customer, type_, has_id, is_cloudevent)


def _spellings(plan: Plan, period: Period, count: int) -> npt.NDArray[np.uint8]:
    spelling = np.zeros(count, np.uint8)
    if plan.variety_share:
        random = _random(plan, period, "spelling")
        other = np.flatnonzero(random.random(count, dtype=np.float32) < plan.variety_share)
        spelling[other] = random.integers(1, len(Spelling), len(other), dtype=np.uint8)
    return spelling


def _again_count(share: float, events: _Usage | Rows) -> int:
    return min(round(share * len(events.type)), int(np.count_nonzero(events.has_id)))


def _bad_count(plan: Plan, event_count: int) -> int:
    return round(plan.bad_share * event_count)


def _random(plan: Plan, period: Period, purpose: str) -> np.random.Generator:
    month = int(period[:4]) * 12 + int(period[5:])
    key = (month, PURPOSES.index(purpose))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(plan.seed, spawn_key=key)))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _check(holds: bool, fact: str, hint: str) -> None:
    if not holds:
        raise InputError(fact, hint=hint)
