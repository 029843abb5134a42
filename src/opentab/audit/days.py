"""Days and months of a time zone, worked out from the zone's clocks alone.

The audit's own calendar. A day begins at the first instant at which the clocks show it or a later
one; so a day that the clocks leave out is empty, and an hour shown again after midnight still
belongs to the new day.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
FIRST_DAY = date.min.toordinal() - EPOCH_ORDINAL
LAST_DAY = date.max.toordinal() - EPOCH_ORDINAL
# Clocks are less than a day away from UTC, and no zone changes its clocks twice in an hour.
REACH_HOURS = 26


def month_of_day(day: int) -> int:
    """The month of a day, counted from January of the year 0."""
    on = date.fromordinal(day + EPOCH_ORDINAL)
    return on.year * 12 + on.month - 1


def period_of_month(month: int) -> str:
    return f"{month // 12:04d}-{month % 12 + 1:02d}"


def month_of_period(period: str) -> int:
    year, month = period.split("-")
    return int(year) * 12 + int(month) - 1


class Days:
    """The days of one zone as half-open stretches of instants."""

    def __init__(self, zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self.start_us = lru_cache(maxsize=65_536)(self._start_us)

    def day_of(self, at_us: int) -> int | None:
        """The day that contains an instant, counted from 1970-01-01.

        None where the years 1 to 9999 do not hold it, be it in UTC or in the zone.
        """
        near = at_us // DAY_US
        if not FIRST_DAY <= near <= LAST_DAY:
            return None
        day = max(d for d in range(near - 2, near + 3) if self.start_us(d) <= at_us)
        return day if FIRST_DAY <= day <= LAST_DAY else None

    def pieces(self, utc_days: Iterable[int]) -> list[tuple[int, int, int, int]]:
        """Each UTC day cut where the zone's days begin: (UTC day, from, to, day of the zone)."""
        cut = []
        for utc_day in utc_days:
            first, last = utc_day * DAY_US, (utc_day + 1) * DAY_US
            for day in range(utc_day - 2, utc_day + 3):
                begin, end = max(first, self.start_us(day)), min(last, self.start_us(day + 1))
                if begin < end:
                    cut.append((utc_day, begin, end, day))
        return cut

    def month_end_us(self, month: int) -> int:
        """The first instant after a month."""
        if month_of_day(LAST_DAY) == month:
            return self.start_us(LAST_DAY + 1)
        following = date((month + 1) // 12, (month + 1) % 12 + 1, 1)
        return self.start_us(following.toordinal() - EPOCH_ORDINAL)

    def month_at(self, at_us: int) -> int:
        """The month that contains an instant."""
        day = self.day_of(at_us)
        if day is None:
            raise ValueError(at_us)
        return month_of_day(day)

    def _start_us(self, day: int) -> int:
        midnight = day * DAY_US
        # Next to the calendar's ends Python cannot convert, and no clock changes.
        if day < FIRST_DAY + 4:
            return midnight - _micros(datetime(1, 1, 2, tzinfo=self._zone).utcoffset())
        if day > LAST_DAY - 4:
            return midnight - _micros(datetime(9999, 12, 30, tzinfo=self._zone).utcoffset())
        a = midnight - REACH_HOURS * HOUR_US
        while True:
            b = a + HOUR_US
            change = self._change_between(a, b)
            for begin, end in ((a, change), (change, b)):
                if begin < end:
                    shown = max(begin, midnight - self._offset_us(begin))
                    if shown < end:
                        return shown
            a = b

    def _change_between(self, a: int, b: int) -> int:
        """When the clocks change after `a` and not after `b`; `b` where they do not."""
        before = self._offset_us(a)
        if self._offset_us(b) == before:
            return b
        while b - a > SECOND_US:
            middle = (a + b) // (2 * SECOND_US) * SECOND_US
            if self._offset_us(middle) == before:
                a = middle
            else:
                b = middle
        return b

    def _offset_us(self, at_us: int) -> int:
        at = EPOCH + timedelta(microseconds=at_us)
        return _micros(at.astimezone(self._zone).utcoffset())


def _micros(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // timedelta(microseconds=1)
