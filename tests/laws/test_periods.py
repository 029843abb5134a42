"""Days and months in any zone: no overlap, no gap, no drift."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opentab.core.errors import ConfigError, InputError
from opentab.core.periods import (
    DAY_MAX,
    DAY_MIN,
    Calendar,
    day_number,
    day_of_number,
    first_day,
    format_us,
    from_us,
    next_period,
    parse_period,
    period_of_day,
    to_us,
)

ZONES = sorted(available_timezones() - {"localtime", "posixrules", "Factory"})
zones = st.sampled_from(ZONES)
instants = st.datetimes(datetime(1850, 1, 1), datetime(2100, 1, 1)).map(lambda d: to_us(d.replace(tzinfo=UTC)))
days = st.dates(date(1850, 1, 2), date(2100, 1, 1)).map(day_number)


def us(text: str) -> int:
    return to_us(datetime.fromisoformat(text))


@given(zones, st.lists(instants, min_size=1, max_size=20))
def test_an_instant_lies_in_its_day(zone: str, moments: list[int]) -> None:
    calendar = Calendar(zone)
    for moment, day in zip(moments, calendar.days_of(np.array(moments)), strict=True):
        assert calendar.day_start_us(int(day)) <= moment < calendar.day_start_us(int(day) + 1)


@given(zones, days)
def test_a_day_begins_when_clocks_first_show_it(zone: str, day: int) -> None:
    calendar = Calendar(zone)
    start = calendar.day_start_us(day)
    info = ZoneInfo(zone)
    if calendar.day_start_us(day + 1) > start:  # a day that a zone skipped has no length
        assert from_us(start).astimezone(info).date() >= day_of_number(day)
        assert from_us(start - 1).astimezone(info).date() < day_of_number(day)


@given(zones, st.integers(1900, 2099), st.integers(1, 12))
def test_months_follow_each_other(zone: str, year: int, month: int) -> None:
    calendar = Calendar(zone)
    period = f"{year:04d}-{month:02d}"
    assert calendar.end_us(period) == calendar.start_us(next_period(period))
    assert calendar.period_of(calendar.start_us(period)) == period
    assert calendar.period_of(calendar.end_us(period) - 1) == period


@pytest.mark.parametrize(
    ("zone", "day", "start"),
    [
        ("UTC", "2026-01-01", "2026-01-01T00:00:00+00:00"),
        ("Europe/Berlin", "2026-03-29", "2026-03-28T23:00:00+00:00"),
        ("Europe/Berlin", "2026-03-30", "2026-03-29T22:00:00+00:00"),  # a day of 23 hours
        ("America/Havana", "2024-11-03", "2024-11-03T04:00:00+00:00"),  # midnight comes twice
        ("America/Asuncion", "2023-10-01", "2023-10-01T04:00:00+00:00"),  # midnight does not come
        ("America/St_Johns", "2009-11-01", "2009-11-01T02:30:00+00:00"),  # back across midnight at 00:01
        ("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00+00:00"),  # a day that never was
        ("Pacific/Apia", "2011-12-31", "2011-12-30T10:00:00+00:00"),
        ("America/Toronto", "1919-03-31", "1919-03-31T04:30:00+00:00"),  # clocks jump from 23:30 to 00:30
    ],
)
def test_clocks_do_odd_things(zone: str, day: str, start: str) -> None:
    assert Calendar(zone).day_start_us(day_number(date.fromisoformat(day))) == us(start)


def test_the_hour_that_comes_twice_stays_in_the_new_month() -> None:
    calendar = Calendar("America/St_Johns")
    again = us("2009-11-01T02:45:00+00:00")  # 23:15 on October 31 for the second time
    assert calendar.period_of(again) == "2009-11"


@pytest.mark.parametrize(
    ("period", "days"),
    [("2026-01", 31), ("2026-02", 28), ("2024-02", 29), ("1900-02", 28), ("2000-02", 29), ("2026-04", 30)],
)
def test_months_have_their_own_length(period: str, days: int) -> None:
    calendar = Calendar("UTC")
    assert calendar.end_us(period) - calendar.start_us(period) == timedelta(days=days) // timedelta(microseconds=1)


def test_the_ends_of_time() -> None:
    for zone in ("UTC", "Asia/Tokyo", "America/Los_Angeles"):
        calendar = Calendar(zone)
        early, late = us("0001-01-01T00:00:00+00:00"), us("9999-12-31T23:59:59+00:00")
        found = calendar.days_of(np.array([early, late]))
        assert DAY_MIN - 1 <= found[0] <= DAY_MIN
        assert DAY_MAX <= found[1] <= DAY_MAX + 1
    assert period_of_day(first_day("0001-01")) == "0001-01"
    assert Calendar("UTC").end_us("9999-12") == us("9999-12-31T23:59:59+00:00") + 1_000_000


def test_bad_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a time zone"):
        Calendar("Mars/Olympus")
    for text in ("2026-13", "2026", "26-01", "0000-01", "2026-01-01"):
        with pytest.raises(InputError, match="not a period"):
            parse_period(text)


def test_instants_are_printed_one_way() -> None:
    assert format_us(us("2026-01-31T22:15:04.120+00:00")) == "2026-01-31T22:15:04.120Z"
    assert format_us(None) is None
