"""Behind the last month: ticks, events of amount 0 that bill nothing and let time pass.

The watermark follows event times alone, so a month that nothing comes behind never closes. Each
source therefore ticks on, all of them at the same event times:

    the end of the month    the first tick
    + out-of-orderness      the month closes; its late events come behind this tick
    + allowed lateness      the month is final; its beyond events come behind this one
    + the beyond window     all events have come
    the last tick           makes the month final that the beyond events were billed in

The last tick lies ahead of the others by up to a month, and arrives right behind them.
"""

from __future__ import annotations

import numpy as np

from opentab.core.events import Rules
from opentab.core.periods import Calendar, Int64s, Period, previous_period

BEYOND_MS = 3 * 86_400_000  # beyond events come within this time after their month was final
PERIOD_MIN = "1970-01"  # no earlier month is simulated
TICKS_MAX = 200  # of a source, give or take the milestones
STEP_MS_MAX = 6 * 3_600_000  # unless that would be more ticks
BEHIND_MS = 1000  # by how much the last tick is behind what it makes final


def tick_times_ms(period: Period, *, rules: Rules, calendar: Calendar) -> Int64s:
    """The event times of each source's ticks behind `period`, ascending."""
    end_ms, closed_ms, final_ms, over_ms = _milestones_ms(period, rules, calendar)
    step_ms = min((closed_ms - end_ms) // 4, STEP_MS_MAX)
    step_ms = max(step_ms, -((end_ms - over_ms) // TICKS_MAX))
    steps_ms = np.arange(end_ms, over_ms, step_ms, dtype=np.int64)
    last_ms = last_tick_ms(period, rules=rules, calendar=calendar)
    return np.unique(np.append(steps_ms, [closed_ms, final_ms, over_ms, last_ms]))


def last_tick_ms(period: Period, *, rules: Rules, calendar: Calendar) -> int:
    """The event time that makes final whatever the events of `period` were billed in."""
    end_ms, closed_ms, final_ms, over_ms = _milestones_ms(period, rules, calendar)
    # No adjustment is billed behind the period that contains the watermark when all events have come.
    watermark_ms = over_ms - (closed_ms - end_ms)
    billed_in = calendar.period_of(watermark_ms * 1000)
    return calendar.end_us(billed_in) // 1000 + (final_ms - end_ms) + BEHIND_MS


def latest_final_period(now_us: int, *, rules: Rules, calendar: Calendar) -> Period:
    """The latest period whose last tick is not ahead of now; a period before PERIOD_MIN if there is none."""
    period = calendar.period_of(now_us)
    while period >= PERIOD_MIN and last_tick_ms(period, rules=rules, calendar=calendar) * 1000 > now_us:
        period = previous_period(period)
    return period


def _milestones_ms(period: Period, rules: Rules, calendar: Calendar) -> tuple[int, int, int, int]:
    """When the period ends, closes and is final, and when the last of its events has come."""
    disorder_ms = rules.out_of_orderness_us // 1000
    end_ms = calendar.end_us(period) // 1000
    closed_ms = end_ms + disorder_ms
    final_ms = closed_ms + rules.allowed_lateness_us // 1000
    # A duplicate comes behind its event by up to a tenth of the out-of-orderness.
    over_ms = final_ms + max(BEYOND_MS, BEYOND_MS * 8 // 10 + disorder_ms // 10 + 1)
    return end_ms, closed_ms, final_ms, over_ms
