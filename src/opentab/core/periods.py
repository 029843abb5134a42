"""Days and billing periods in the billing time zone. No other file knows what a month is.

A day begins once: at the first instant at which the zone's clocks show it. Days are therefore
half-open stretches of time that neither overlap nor leave gaps, also where clocks jump over
midnight, or show one midnight twice.

Instants are integers: microseconds since 1970-01-01T00:00:00Z (`_at` as a column, `_us` in code).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import overload
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from opentab.core.errors import ConfigError, InputError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = date(1970, 1, 1)
DAY_US = 86_400_000_000
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
_TWO = [f"{number:02d}" for number in range(60)]
_THREE = [f"{number:03d}" for number in range(1000)]

# The days and instants that a calendar can hold; an event outside of either is bad_time.
DAY_MIN = (date(1, 1, 1) - EPOCH_DAY).days
DAY_MAX = (date(9999, 12, 31) - EPOCH_DAY).days
INSTANT_MIN_US = DAY_MIN * DAY_US
INSTANT_MAX_US = (DAY_MAX + 1) * DAY_US - 1

Int64s = npt.NDArray[np.int64]
Period = str  # "2026-01"

DAY_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}")
PERIOD_PATTERN = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def to_us(instant: datetime) -> int:
    """The instant as microseconds since 1970; exact."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def from_us(us: int) -> datetime:
    """The instant that `us` microseconds since 1970 stand for."""
    return EPOCH + timedelta(microseconds=us)


@overload
def format_us(us: int) -> str: ...
@overload
def format_us(us: int | None) -> str | None: ...
def format_us(us: int | None) -> str | None:
    """RFC 3339 in UTC with milliseconds, the one way we print an instant."""
    if us is None:
        return None
    minute, rest_us = divmod(min(max(us, INSTANT_MIN_US), INSTANT_MAX_US), MINUTE_US)
    second, rest_us = divmod(rest_us, SECOND_US)
    return f"{_minute_text(minute)}:{_TWO[second]}.{_THREE[rest_us // 1000]}Z"


@lru_cache(maxsize=65_536)
def _minute_text(minute: int) -> str:
    """A month has less of them than fit in here."""
    return from_us(minute * MINUTE_US).isoformat(timespec="minutes").removesuffix("+00:00")


def day_number(day: date) -> int:
    """Days since 1970-01-01, as Arrow's date32 counts them."""
    return (day - EPOCH_DAY).days


def day_of_number(number: int) -> date:
    return EPOCH_DAY + timedelta(days=number)


def parse_period(text: str) -> Period:
    """Check that `text` names a period."""
    if not PERIOD_PATTERN.fullmatch(text) or text.startswith("0000"):
        raise InputError(f"{text!r} is not a period", hint="write a month as 2026-01")
    return text


def parse_day(text: str) -> date:
    """Read a day such as 2026-01-31."""
    try:
        if not DAY_PATTERN.fullmatch(text):
            raise ValueError(text)
        return date.fromisoformat(text)
    except ValueError:
        raise InputError(f"{text!r} is not a day", hint="write a day as 2026-01-31") from None


def period_of_day(day: int) -> Period:
    """The period that a day, counted from 1970-01-01, belongs to."""
    d = day_of_number(day)
    return f"{d.year:04d}-{d.month:02d}"


def month_number(period: Period) -> int:
    """The period as a number: year times 12 plus month, counted from 0."""
    return int(period[:4]) * 12 + int(period[5:7]) - 1


def period_of_month(number: int) -> Period:
    return f"{number // 12:04d}-{number % 12 + 1:02d}"


def last_day(period: Period) -> int:
    """The number of the period's last day."""
    return DAY_MAX if period == "9999-12" else first_day(next_period(period)) - 1


def first_day(period: Period) -> int:
    """The number of the period's first day."""
    return day_number(date(int(period[:4]), int(period[5:7]), 1))


def next_period(period: Period) -> Period:
    year, month = int(period[:4]), int(period[5:7])
    return f"{year + 1:04d}-01" if month == 12 else f"{year:04d}-{month + 1:02d}"


def previous_period(period: Period) -> Period:
    return period_of_day(first_day(period) - 1)


class Calendar:
    """The days and periods of one time zone, as stretches of instants."""

    def __init__(self, zone: str) -> None:
        try:
            self._zone = ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as error:
            raise ConfigError(
                f"billing.zone {zone!r} is not a time zone",
                hint='use an IANA name such as "UTC" or "Europe/Berlin"',
            ) from error
        self.zone = zone
        self.day_start_us = lru_cache(maxsize=65_536)(self._day_start_us)

    def _day_start_us(self, day: int) -> int:
        """The first instant of the day."""
        wanted = day_of_number(min(max(day, DAY_MIN), DAY_MAX))
        midnight = datetime(wanted.year, wanted.month, wanted.day, tzinfo=self._zone)
        start = day * DAY_US - (midnight.utcoffset() or timedelta()) // timedelta(microseconds=1)
        at_the_ends = not DAY_MIN + 1 < day < DAY_MAX
        if at_the_ends or self._wall(start) == midnight.replace(tzinfo=None):
            return start
        # Clocks jump over this midnight: find the jump.
        before, after = start - 2 * DAY_US, start + 2 * DAY_US
        while after - before > SECOND_US:
            middle = (before + after) // (2 * SECOND_US) * SECOND_US
            if self._wall(middle).date() >= wanted:
                after = middle
            else:
                before = middle
        return after

    def _wall(self, us: int) -> datetime:
        return from_us(us).astimezone(self._zone).replace(tzinfo=None)

    def days_of(self, instants_us: Int64s) -> Int64s:
        """The day number of each instant; outside of DAY_MIN … DAY_MAX where it has none."""
        if instants_us.size == 0:
            return instants_us.astype(np.int64)
        guess = instants_us // DAY_US
        if self.zone == "UTC":
            return guess
        guess = np.clip(guess, DAY_MIN - 1, DAY_MAX + 1)
        low = int(guess.min())
        if int(guess.max()) - low < 100_000:
            present = np.flatnonzero(np.bincount(guess - low)) + low
        else:
            present = np.unique(guess)
        at = np.searchsorted(present, guess)
        starts = np.array([self.day_start_us(int(d)) for d in present], dtype=np.int64)
        ends = np.array([self.day_start_us(int(d) + 1) for d in present], dtype=np.int64)
        # A zone is less than a day away from UTC, so the day is the guess or a neighbour of it.
        return guess + (instants_us >= ends[at]) - (instants_us < starts[at])

    def day_of(self, us: int) -> int:
        """The day number of one instant."""
        return int(self.days_of(np.array([us], dtype=np.int64))[0])

    def period_of(self, us: int) -> Period:
        """The period that contains the instant, or the calendar's first or last where it has none."""
        return period_of_day(min(max(self.day_of(us), DAY_MIN), DAY_MAX))

    def start_us(self, period: Period) -> int:
        """The first instant of the period."""
        return self.day_start_us(first_day(period))

    def end_us(self, period: Period) -> int:
        """The first instant after the period."""
        if period == "9999-12":
            return self.day_start_us(DAY_MAX + 1)
        return self.day_start_us(first_day(next_period(period)))
